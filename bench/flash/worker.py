"""One rank of one measurement. Run by path, also by the Python of DLRover's environment.

`worker.py REQUEST`: makes the state, measures, and rank 0 writes what it found. What is around it,
the stage has set up.

The whole stall of a save: a step is matrix products of about 9 ms that stay in the cache; on a GPU
as many milliseconds of larger ones, waited for. The optimizer's step, before which an overlapped
copy must be done, comes after 0.6 s of them.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.flash.reference import Reference
from bench.flash.results import FIRST, OURS, RESTORE, SMALL, STALL, TWO, SaveResult
from bench.flash.state import gpt, many, nested
from bench.flash.systems import SYSTEMS, SavedState, WayOfSaving, restoring

FORWARD_BACKWARD_SECONDS: Final = 0.6
CALM_STEPS: Final = 60
LIMIT_SECONDS: Final = 60.0
_PRODUCTS: Final = {"cpu": (512, 6), "cuda": (4096, 3)}
"""Size and number of a step's matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order for one measurement, by one process or by one for each rank."""

    case: str
    system: str
    mib: int
    """Of the state, on all ranks together; with small tensors their number."""
    repeats: int
    """Without the first."""
    device: str = "cpu"
    """Where the state is: "cpu" or "cuda"."""
    folder: str
    """Of this run, on the disk that checkpoints go to."""
    out: str

    @property
    def ranks(self) -> int:
        """Return the number of processes that take part."""
        return 2 if self.case == TWO else 1


def read(path: Path) -> Order:
    """Read the request that the conductor wrote."""
    return Order(**json.loads(path.read_text()))


def main(path: Path) -> None:
    """Measure."""
    import torch

    request = read(path)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rank, world = int(os.environ.get("RANK", "0")), request.ranks
    if world > 1 or request.system not in OURS:
        torch.distributed.init_process_group("gloo")
    if request.case == SMALL:
        model, optimizer = many(request.mib, request.device)
    else:
        model, optimizer = gpt(request.mib, sharded=world > 1, device=request.device)
    folder = Path(request.folder, "checkpoints")
    folder.mkdir(exist_ok=True)
    subject = SavedState(
        folder=folder,
        model=model,
        optimizer=optimizer,
        state=nested(model, optimizer),
        world=world,
        device=request.device,
    )
    measured = _MEASURES.get(request.case, blocking)(request, subject)
    if rank == 0:
        Path(request.out).write_text(json.dumps(asdict(measured)))
    if world > 1:
        torch.distributed.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def blocking(request: Order, subject: SavedState) -> SaveResult:
    """Measure the time that a save takes from the trainer, and before each save a plain copy."""
    import torch

    reference = Reference(subject.state)
    system = SYSTEMS[request.system](subject)
    turns, collectives = [], 0
    with torch.no_grad():
        for step in range(1, request.repeats + 2):
            _meet(subject)
            begun = time.process_time()
            copied = reference.seconds()
            between = time.process_time()
            _meet(subject)
            before = _collectives()
            saving, taken = time.process_time(), _seconds(system.save, step, subject)
            spent = time.process_time() - saving
            collectives += _collectives() - before
            cpu = spent / max(between - begun, 1e-4)
            turns.append((_slowest(copied, subject), _slowest(taken, subject), cpu))
            system.settle()
    system.close()
    figures = {"collectives": collectives / (request.repeats + 1)}
    return _result(request, subject, reference, turns, figures)


def _result(
    request: Order,
    subject: SavedState,
    reference: Reference,
    turns: Sequence[tuple[float, float, float]],
    figures: dict[str, float],
) -> SaveResult:
    """Return the result of turns (the copy, s; the save, s; its × in CPU time)."""
    (copied, taken, _), *counted = turns
    return SaveResult(
        case=request.case,
        system=request.system,
        ranks=subject.world,
        bytes=reference.bytes * subject.world,
        tensors=reference.tensors,
        seconds=[seconds for _, seconds, _ in counted],
        copies=[copy for copy, _, _ in counted],
        cpu=[cpu for _, _, cpu in counted],
        first=[taken / copied],
        figures=figures,
    )


def first_saves(request: Order, subject: SavedState) -> SaveResult:
    """Measure the first save into a fresh arena that was made ready, and two later ones."""
    from holdfast import Checkpointer

    reference = Reference(subject.state)
    seconds, copies, first, warm_up = [], [], [], []
    for repeat in range(request.repeats):
        with tempfile.TemporaryDirectory(dir=subject.folder) as folder:
            made = Checkpointer(folder, model=subject.model, optimizer=subject.optimizer)
            begun = time.perf_counter()
            made.prepare()
            took = time.perf_counter() - begun
            saver = made._preparer.copier  # noqa: SLF001
            size = len(saver.arena.memory) if saver else 0
            warm_up.append(size / 1e9 / took)
            for step in range(1, 4):
                copied = reference.seconds()
                taken = _seconds(functools.partial(made.save, durable=False), step, subject)
                time.sleep(0.1 + reference.bytes / 4e9)  # until it is hashed
                if step == 1:
                    first.append(taken / copied)
                else:
                    seconds.append(taken)
                    copies.append(copied)
            made.close()
        print(f"{repeat + 1} of {request.repeats} arenas", flush=True)
    return SaveResult(
        case=request.case,
        system=request.system,
        bytes=reference.bytes,
        tensors=reference.tensors,
        seconds=seconds,
        copies=copies,
        first=first,
        figures={"warm_up_gb_s": statistics.median(warm_up)},
    )


def _collectives() -> int:
    """Count what all of this process's groups have carried out so far."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - the only list
    numbers = [int(group._get_sequence_number_for_group()) for group in groups]  # noqa: SLF001
    return sum(numbers) + 1000 * len(groups)  # a new group is seen too


def _seconds(work: Callable[[int], None], step: int, subject: SavedState) -> float:
    """Measure until the call has returned and a step after the call could compute."""
    begun = time.perf_counter()
    work(step)
    if subject.device == "cuda":
        import torch

        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begun


def _meet(subject: SavedState) -> None:
    import torch.distributed as dist

    if subject.world > 1:
        dist.barrier()


def _slowest(seconds: float, subject: SavedState) -> float:
    import torch.distributed as dist

    if subject.world == 1:
        return seconds
    found = [0.0] * subject.world
    dist.all_gather_object(found, seconds)
    return max(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Of one save, in seconds."""

    stall_s: float
    """Waited, and lost by slower steps."""
    blocked_s: float
    """Waited: in the call, and before the optimizer's step."""
    cpu_s: float
    """The stall in CPU time of the training thread: what others take of its core is not in it."""
    durable_s: float
    """Until it was on disk."""


class _Steps:
    """Training steps."""

    def __init__(self, device: str) -> None:
        import torch

        size, self._products = _PRODUCTS[device]
        self._one = torch.randn(size, size, device=device)
        self._other = torch.randn(size, size, device=device)
        self._gpu = device == "cuda"
        self.count = 0

    def step(self) -> float:
        import torch

        begun = time.perf_counter()
        for _ in range(self._products):
            torch.mm(self._one, self._other)
        if self._gpu:
            torch.cuda.current_stream().synchronize()
        self.count += 1
        return time.perf_counter() - begun


def _stall(system: WayOfSaving, number: int, device: str) -> Stall:
    """Save once amid training steps."""
    steps: Any = _Steps(device)
    begun_cpu = time.thread_time()
    calm = statistics.median(steps.step() for _ in range(CALM_STEPS))
    calm_cpu = (time.thread_time() - begun_cpu) / CALM_STEPS
    steps.count = 0
    begun, begun_cpu = time.perf_counter(), time.thread_time()
    system.save(number)
    blocked, joined = time.perf_counter() - begun, False
    while not joined or not _done(system, begun):
        steps.step()
        if not joined and time.perf_counter() - begun - blocked >= FORWARD_BACKWARD_SECONDS:
            waited = time.perf_counter()
            system.join()
            blocked += time.perf_counter() - waited
            joined = True
    took = time.perf_counter() - begun
    cpu = time.thread_time() - begun_cpu
    return Stall(
        stall_s=took - steps.count * calm,
        blocked_s=blocked,
        cpu_s=cpu - steps.count * calm_cpu,
        durable_s=took,
    )


def _done(system: WayOfSaving, begun: float) -> bool:
    if time.perf_counter() - begun > LIMIT_SECONDS:
        raise RuntimeError(f"not durable after {LIMIT_SECONDS:g} s")
    return system.is_durable()


def whole_stall(request: Order, subject: SavedState) -> SaveResult:
    """Measure the cost of saving until the checkpoint is on disk."""
    reference = Reference(subject.state)
    system = SYSTEMS[request.system](subject)
    turns, stalls = [], []
    for step in range(1, request.repeats + 2):
        copied = reference.seconds()
        stalls.append(stall := _stall(system, step, request.device))
        turns.append((copied, stall.stall_s, stall.cpu_s / copied))
        system.settle()
    system.close()
    figures = {
        "blocked_s": statistics.median(one.blocked_s for one in stalls[1:]),
        "durable_s": statistics.median(one.durable_s for one in stalls[1:]),
    }
    return _result(request, subject, reference, turns, figures)


def restored(request: Order, subject: SavedState) -> SaveResult:
    """Measure how long it takes until the parameters have their values again."""
    reference = Reference(subject.state)
    with restoring(request.system, subject, reference) as system:
        turns = []
        for step in range(request.repeats + 1):
            begun = time.process_time()
            copied = reference.back()
            between = time.process_time()
            taken = _seconds(system.save, step, subject)
            cpu = (time.process_time() - between) / max(between - begun, 1e-4)
            turns.append((copied, taken, cpu))
            system.settle()
    return _result(request, subject, reference, turns, {})


_MEASURES: dict[str, Callable[[Order, SavedState], SaveResult]] = {
    FIRST: first_saves,
    STALL: whole_stall,
    RESTORE: restored,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""One rank of one measurement. Run by path, also by the Python of DLRover's environment.

`worker.py REQUEST`: makes the state, measures, and rank 0 writes what it found. What is around it,
the stage has set up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.flash import restore, stall
from bench.flash.reference import Reference
from bench.flash.results import FIRST, OURS, RESTORE, SMALL, STALL, TWO, Result
from bench.flash.state import gpt, many, nested
from bench.flash.systems import SYSTEMS, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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


def read(path: Path) -> Request:
    """Read the request that the conductor wrote."""
    return Request(**json.loads(path.read_text()))


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
    subject = Subject(
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


def blocking(request: Request, subject: Subject) -> Result:
    """Measure the time that a save takes from the trainer, and before each save a plain copy."""
    import torch

    reference = Reference(subject.state)
    system = SYSTEMS[request.system](subject)
    seconds, copies, cpu = [], [], []
    calls = Collectives()
    with torch.no_grad():
        for step in range(1, request.repeats + 2):
            _meet(subject)
            begun = time.process_time()
            copied = reference.seconds()
            between = time.process_time()
            _meet(subject)
            with calls.counted():
                saving, taken = time.process_time(), _seconds(system.save, step, subject)
                spent = time.process_time() - saving
            copies.append(_slowest(copied, subject))
            seconds.append(_slowest(taken, subject))
            cpu.append(spent / max(between - begun, 1e-4))
            system.settle()
    system.close()
    return Result(
        case=request.case,
        system=request.system,
        ranks=subject.world,
        bytes=reference.bytes * subject.world,
        tensors=reference.tensors,
        seconds=seconds[1:],
        copies=copies[1:],
        cpu=cpu[1:],
        first=[seconds[0] / copies[0]],
        figures={"collectives": calls.count / (request.repeats + 1)},
    )


def first_saves(request: Request, subject: Subject) -> Result:
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
    return Result(
        case=request.case,
        system=request.system,
        bytes=reference.bytes,
        tensors=reference.tensors,
        seconds=seconds,
        copies=copies,
        first=first,
        figures={"warm_up_gb_s": statistics.median(warm_up)},
    )


class Collectives:
    """Counts the collectives that all of this process's groups carry out."""

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the collectives inside the context."""
        before = _collectives()
        yield
        self.count += _collectives() - before


def _collectives() -> int:
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)  # noqa: SLF001 - the only list
    numbers = [int(group._get_sequence_number_for_group()) for group in groups]  # noqa: SLF001
    return sum(numbers) + 1000 * len(groups)  # a new group is seen too


def _seconds(work: Callable[[int], None], step: int, subject: Subject) -> float:
    """Measure until the call has returned and a step after the call could compute."""
    begun = time.perf_counter()
    work(step)
    if subject.device == "cuda":
        import torch

        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begun


def _meet(subject: Subject) -> None:
    import torch.distributed as dist

    if subject.world > 1:
        dist.barrier()


def _slowest(seconds: float, subject: Subject) -> float:
    import torch.distributed as dist

    if subject.world == 1:
        return seconds
    found = [0.0] * subject.world
    dist.all_gather_object(found, seconds)
    return max(found)


def whole_stall(request: Request, subject: Subject) -> Result:
    """Measure the cost of saving until the checkpoint is on disk."""
    reference = Reference(subject.state)
    system = SYSTEMS[request.system](subject)
    turns = []
    for step in range(1, request.repeats + 2):
        copied = reference.seconds()
        turns.append((copied, stall.measure(system, step, request.device)))
        system.settle()
    system.close()
    return Result(
        case=request.case,
        system=request.system,
        bytes=reference.bytes,
        tensors=reference.tensors,
        seconds=[turn.stall_s for _, turn in turns[1:]],
        copies=[copied for copied, _ in turns[1:]],
        cpu=[turn.cpu_s / copied for copied, turn in turns[1:]],
        first=[turns[0][1].stall_s / turns[0][0]],
        figures={
            "blocked_s": statistics.median(turn.blocked_s for _, turn in turns[1:]),
            "durable_s": statistics.median(turn.durable_s for _, turn in turns[1:]),
        },
    )


def restored(request: Request, subject: Subject) -> Result:
    """Measure how long it takes until the parameters have their values again."""
    reference = Reference(subject.state)
    with restore.source(request.system, subject, reference) as system:
        seconds, copies, cpu = [], [], []
        for step in range(request.repeats + 1):
            begun = time.process_time()
            copies.append(reference.back())
            between = time.process_time()
            seconds.append(_seconds(system.save, step, subject))
            cpu.append((time.process_time() - between) / max(between - begun, 1e-4))
            system.settle()
    return Result(
        case=request.case,
        system=request.system,
        bytes=reference.bytes,
        tensors=reference.tensors,
        seconds=seconds[1:],
        copies=copies[1:],
        cpu=cpu[1:],
        first=[seconds[0] / copies[0]],
    )


_MEASURES: dict[str, Callable[[Request, Subject], Result]] = {
    FIRST: first_saves,
    STALL: whole_stall,
    RESTORE: restored,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))

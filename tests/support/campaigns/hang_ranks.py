"""Worlds of real gloo ranks, one of which comes to hang in a given way.

Run as a script: it imports torch once, then reads one line of JSON per world from standard input
(`Plant`), forks its ranks, and ends them at the next line. Each rank serves torch's worker server
at FOLDER/RANK.sock; the odd rank writes FOLDER/hung just before it hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOREVER_SECONDS = 3600.0
LOCAL_SECONDS = 0.01
"""Work of each rank before each collective."""
_PR_SET_PDEATHSIG = 1
_VFORK = """
#include <unistd.h>
int wait_for_child(void) { if (vfork() == 0) { for (;;) pause(); } return 0; }
"""
"""The parent of a vfork sleeps in D state until the child is gone."""
_LIBRARY = "vfork.so"


@dataclass(frozen=True)
class Plant:
    """One world and its hang."""

    name: str
    """A key of `HANGS`."""
    ranks: int
    odd: int
    """The rank that hangs."""
    step: int
    """Steps that work before."""
    folder: str


@dataclass(frozen=True)
class Rank:
    """A rank, for the function that hangs it."""

    number: int
    odd: bool
    folder: Path
    world: Any
    """torch.distributed."""
    torch: Any

    def reduce(self, *shape: int) -> None:
        """All-reduce a tensor."""
        self.world.all_reduce(self.torch.ones(*shape))

    def mark(self) -> None:
        """Tell that the hang comes now."""
        (self.folder / "hung").touch()


def _joins(hang: Callable[[Rank], None]) -> Callable[[Rank], None]:
    """Return a hang in which the others enter the next collective and wait for the odd rank."""

    def run(rank: Rank) -> None:
        if rank.odd:
            rank.mark()
            hang(rank)
            (rank.folder / "woken").touch()
        rank.reduce(2, 3)

    return run


def _sleep(_: Rank) -> None:
    time.sleep(FOREVER_SECONDS)


def _other_operation(rank: Rank) -> None:
    rank.world.barrier()


def _other_order(rank: Rank) -> None:
    """Reduce in two groups of all ranks, the odd rank in the other order."""
    groups = [rank.world.new_group() for _ in range(2)]
    tensor = rank.torch.ones(1)
    for group in groups:
        rank.world.all_reduce(tensor, group=group)
    if rank.odd:
        rank.mark()
        groups.reverse()
    for group in groups:
        rank.world.all_reduce(tensor, group=group)


def _data_parallel(rank: Rank) -> None:
    """Have the others wait in a backward pass, which shows no frame of a collective."""
    model = rank.torch.nn.parallel.DistributedDataParallel(rank.torch.nn.Linear(8, 8))
    for step in range(3):
        loss = model(rank.torch.ones(4, 8)).sum()
        if rank.odd and step == 2:
            rank.mark()
            time.sleep(FOREVER_SECONDS)
        loss.backward()


def _loop(_: Rank) -> None:
    while True:
        pass


def _lock(_: Rank) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _event(_: Rank) -> None:
    threading.Event().wait()


def _gil(_: Rank) -> None:
    ctypes.PyDLL(None).sleep(int(FOREVER_SECONDS))


def _stop(_: Rank) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _end(_: Rank) -> None:
    os._exit(0)


def _fifo(rank: Rank) -> None:
    os.mkfifo(rank.folder / "fifo")
    (rank.folder / "fifo").read_bytes()


def _load(rank: Rank) -> None:
    os.mkfifo(rank.folder / "fifo")
    rank.torch.load(rank.folder / "fifo")


def _uninterruptible(rank: Rank) -> None:
    ctypes.CDLL(str(rank.folder / _LIBRARY)).wait_for_child()


def _build(folder: Path) -> None:
    source = folder / "vfork.c"
    source.write_text(_VFORK)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / _LIBRARY), str(source)]
    subprocess.run(command, check=True, timeout=60)


class _Sleeps:
    """A data set whose first sample never comes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        time.sleep(FOREVER_SECONDS)
        return index


def _worker(rank: Rank) -> None:
    loader = rank.torch.utils.data.DataLoader(
        _Sleeps(), num_workers=1, multiprocessing_context="fork"
    )
    next(iter(loader))


def _data_set(rank: Rank) -> None:
    next(iter(rank.torch.utils.data.DataLoader(_Sleeps())))


def _compile(rank: Rank) -> None:
    """Hang in a backend of the compiler; what comes before imports for a second."""

    def backend(*_: Any) -> None:
        rank.mark()
        time.sleep(FOREVER_SECONDS)

    if rank.odd:
        rank.torch.compile(lambda tensor: tensor + 1, backend=backend)(rank.torch.ones(1))
    rank.reduce(2, 3)


def _no_send(rank: Rank) -> None:
    """Have the others wait for a message that the odd rank never sends."""
    if rank.odd:
        rank.mark()
        time.sleep(FOREVER_SECONDS)
    target = rank.torch.ones(1)
    sender = next(number for number in range(rank.world.get_world_size()) if _is_odd(rank, number))
    rank.world.recv(target, sender)


def _is_odd(rank: Rank, number: int) -> bool:
    plant = json.loads((rank.folder / "plant").read_text())
    return bool(plant["odd"] == number)


def _lost_packets(rank: Rank) -> None:
    """Have all bytes that the odd rank sends vanish, then reduce with all ranks."""
    if rank.odd:
        nowhere, kept = socket.socketpair()
        keep: list[Any] = [nowhere, kept]
        for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if _is_tcp(number):
                keep.append(os.dup(number))
                os.dup2(nowhere.fileno(), number)
        rank.mark()
    rank.reduce(2, 3)


def _is_tcp(number: int) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with socket.socket(fileno=os.dup(number)) as one:
            return one.family in {socket.AF_INET, socket.AF_INET6} and bool(one.getpeername())
    except OSError:
        return False


def _new_group(rank: Rank) -> None:
    rank.world.new_group()


def _mesh(rank: Rank) -> None:
    rank.world.device_mesh.init_device_mesh("cpu", (rank.world.get_world_size(),))
    rank.world.new_group(backend="gloo")


def _store(rank: Rank) -> None:
    rank.world.distributed_c10d._get_default_store().get("nobody-sets-this")


def _read_pipe(_: Rank) -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def _write_pipe(_: Rank) -> None:
    _reader, writer = os.pipe()
    os.write(writer, bytes(1 << 20))


def _helper(_: Rank) -> None:
    """Wait for what a helper says, which says nothing."""
    command = ["sleep", str(int(FOREVER_SECONDS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as helper:
        assert helper.stdout
        helper.stdout.read()


def _thread(rank: Rank) -> None:
    """End the script on all ranks; a thread of the odd one lives on."""
    if not rank.odd:
        os._exit(0)
    threading.Thread(target=time.sleep, args=(FOREVER_SECONDS,)).start()
    rank.mark()
    threading._shutdown()  # type: ignore[attr-defined]


def _sleep_of_c(_: Rank) -> None:
    ctypes.CDLL(None).sleep(int(FOREVER_SECONDS))


def _poll_with_gil(_: Rank) -> None:
    ctypes.PyDLL(None).poll(None, 0, int(FOREVER_SECONDS) * 1000)


def _semaphore(_: Rank) -> None:
    """Wait as C code does that takes EINTR for an error."""

    class Deadline(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    libc, semaphore = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.sem_init(semaphore, 0, 0)
    until = Deadline(int(time.time() + FOREVER_SECONDS), 0)
    libc.sem_timedwait(semaphore, ctypes.byref(until))


START_UP = "start-up"
"""The odd rank hangs before it makes the process group."""


HANGS: Mapping[str, Callable[[Rank], None]] = {
    "sleep": _joins(_sleep),
    "other-operation": _joins(_other_operation),
    "other-order": _other_order,
    "data-parallel": _data_parallel,
    "loop": _joins(_loop),
    "lock": _joins(_lock),
    "event": _joins(_event),
    "gil": _joins(_gil),
    "stop": _joins(_stop),
    "exit": _joins(_end),
    "fifo": _joins(_fifo),
    "load": _joins(_load),
    "vfork": _joins(_uninterruptible),
    "worker": _joins(_worker),
    "data-set": _joins(_data_set),
    "compile": _compile,
    "no-send": _no_send,
    "lost-packets": _lost_packets,
    "new-group": _joins(_new_group),
    "mesh": _joins(_mesh),
    "store": _joins(_store),
    "read-pipe": _joins(_read_pipe),
    "write-pipe": _joins(_write_pipe),
    "helper": _joins(_helper),
    "thread": _thread,
    "c-sleep": _joins(_sleep_of_c),
    "c-poll": _joins(_poll_with_gil),
    "c-semaphore": _joins(_semaphore),
    START_UP: _sleep,
}
"""How the odd rank comes to hang, and with it all others.

A collective of another shape is not among them: gloo aborts a process that receives more than it
expects, which is no hang.
"""


def _rank(plant: Plant, number: int) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer

    folder = Path(plant.folder)
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    server = _WorkerServer(str(folder / f"{number}.sock"))
    if plant.name == START_UP and number == plant.odd:
        (folder / "hung").touch()
        time.sleep(FOREVER_SECONDS)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", meet, rank=number, world_size=plant.ranks)
    rank = Rank(number, number == plant.odd, folder, dist, torch)
    for _ in range(plant.step):
        time.sleep(LOCAL_SECONDS)
        rank.reduce(2, 3)
    HANGS[plant.name](rank)
    raise AssertionError(f"rank {number} did not hang with {server}")


def _start(plant: Plant) -> list[int]:
    Path(plant.folder).mkdir()
    (Path(plant.folder) / "plant").write_text(json.dumps(plant.__dict__))
    if plant.name == "vfork":
        _build(Path(plant.folder))
    pids = []
    for number in range(plant.ranks):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        try:
            _rank(plant, number)
        except BaseException:  # noqa: BLE001 - the end of a forked child
            traceback.print_exc()
            _sleep_if_gone(plant)
        os._exit(1)
    return pids


def _sleep_if_gone(plant: Plant) -> None:
    """Stay, as with NCCL: gloo tells ranks that a peer has ended, and they would fail."""
    if plant.name == "exit":
        time.sleep(FOREVER_SECONDS)


def _end_ranks(pids: Sequence[int]) -> None:
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


def main() -> None:
    """Serve worlds, one after another."""
    import torch
    import torch._dynamo
    import torch.distributed
    import torch.distributed.device_mesh
    import torch.utils.data

    torch.set_num_threads(1)
    pids: list[int] = []
    for line in sys.stdin:
        _end_ranks(pids)
        asked = json.loads(line)
        pids = _start(Plant(**asked)) if asked else []
        print(json.dumps(pids), flush=True)
    _end_ranks(pids)


if __name__ == "__main__":
    main()

"""Kills trainers and keepers of the flash checkpoint at random instants, and looks what is left.

Run as a script (`--seed`, `--kills`); prints what it did as JSON, and what went wrong with the
number of the kill. No torch: a rank fills its slots with a pattern of (lineage, step), so a mixed
state shows in any byte. Half of the kills fall at a moment, half at a line of the code drawn from
the seed: lines between two stores are never hit by a clock.

With --files arenas lie in files of a directory, as in a pod; with --held this process has their
descriptors too, as the local runner: then what all ranks had in memory must outlive the keeper too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from campaigns.kill_records import record
from checkpoints.led_nodes import answered
from holdfast.flash.memory.arena import Arena
from holdfast.flash.memory.fdstore_backend import FdStoreBackend
from holdfast.flash.memory.file_backend import FileBackend
from holdfast.flash.memory.shard_table import ByteItem, ShardTable, TensorItem, encode
from holdfast.flash.memory.slots import SlotState, Version, choose
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.local_commit import local_service
from holdfast.flash.server.protocol import (
    Durable,
    Granted,
    Layout,
    Restore,
    RestoreStart,
    ServerLink,
    TrainerHello,
    connect,
    listen,
)
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import Manifest, steps
from holdfast.flash.storage.reader import newest
from holdfast_cli.runner.fd_store import FdStore, close_all
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy

SIZE = 256 * 1024
TRAINER_LINES = ("flash/memory/arena.py", "campaigns/flash_kills.py")
KEEPER_LINES = tuple(
    f"flash/{name}.py"
    for name in (
        "server/arena_store", "server/service", "server/local_commit", "server/tiers",
        "storage/commit", "storage/filesystem", "storage/manifest", "storage/owners",
        "storage/retention", "storage/writer", "memory/arena", "memory/fdstore_backend",
        "memory/file_backend", "memory/recovery",
    )
)  # fmt: skip


def table_of(rank: int, world: int) -> bytes:
    """Return the shard table of a rank: its rows of one tensor of bytes, and one value."""
    item = TensorItem(
        name="weight",
        dtype="uint8",
        shape=(world, SIZE),
        offsets=(rank, 0),
        sizes=(1, SIZE),
        at=0,
        length=SIZE,
        payload=0,
        size=SIZE,
    )
    table = ShardTable(
        rank=rank,
        world=world,
        tensor_bytes=SIZE,
        tensors=(item,),
        byte_items=(ByteItem(name=f"rank_{rank}.value"),),
        paths={"weight": ("weight",), f"rank_{rank}.value": (f"rank_{rank}", "value")},
    )
    return encode(table)


def pattern(version: Version) -> bytes:
    """Return the eight bytes that a version's image repeats."""
    return version.lineage.to_bytes(4, "little") + version.step.to_bytes(4, "little")


def die_at_line(number: int, files: Sequence[str]) -> None:
    """Have this process kill itself at the `number`th line that it runs in one of `files`."""
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(tuple(files)):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def serve(path: str, lines: int, files: str, runner: int) -> None:
    """Be the keeper; files: the directory of its arenas; runner: a socket to who holds them too."""
    listener = listen(path)
    if lines:
        die_at_line(lines, KEEPER_LINES)
    held = FdStoreBackend(runner, "job") if runner >= 0 else None
    keeper = ArenaStore(backend=FileBackend(files, "job") if files else held)
    for note in keeper.take_over():
        Path(path).with_name("note").write_text(note)
    local_service(keeper, listener).run()


@dataclass(frozen=True, slots=True)
class World:
    """The settings that a rank needs."""

    path: str
    root: str
    ranks: int
    lineage: int


def train(world: World, rank: int, lines: int, tell: Callable[[str], None]) -> None:
    """Be a rank: check what is restored, then save until killed."""
    link = connect(world.path)
    link.send(
        TrainerHello(
            rank=rank, world=world.ranks, kept=world.ranks, lineage=world.lineage,
            root=world.root, policy=CheckpointPolicy(keep_last=2), token=f"t{world.lineage}",
        )
    )  # fmt: skip
    link.send(Restore())
    origin, descriptors = answered(link, RestoreStart)
    tell(f"origin {origin.lineage} {origin.step} {int(not origin.path)}")
    _check_slots(origin, descriptors, tell)
    link.send(Layout(table=table_of(rank, world.ranks).decode(), bytes_room=4096, slots=3))
    _, (fd,) = answered(link, Granted)
    arena = Arena(fd)
    tell("ready")
    if lines:
        die_at_line(lines, TRAINER_LINES)
    step = origin.step
    while True:
        step += 1
        _listen(link, tell)
        durable = step % 5 == 0
        while durable and all(slot.state is not SlotState.EMPTY for slot in arena.slots):
            _listen(link, tell)
        _save(arena, Version(world.lineage, step), rank, world.ranks, link, tell)


def _save(
    arena: Arena,
    version: Version,
    rank: int,
    world: int,
    link: ServerLink,
    tell: Callable[[str], None],
) -> None:
    from holdfast.flash.server.protocol import Saved

    free = choose(arena.views())
    if free is None:
        return
    slot = arena.slots[free]
    slot.begin_write(version)
    piece = pattern(version) * (SIZE // 64)
    for at in range(0, SIZE, len(piece)):
        slot.image[at : at + len(piece)] = piece
    slot.image[SIZE : SIZE + 8] = pattern(version)
    slot.commit([8])
    tell(f"saved {version.step}")
    tier = Tier.MEMORY if version.step % 5 else Tier.STORAGE
    link.send(Saved(lineage=version.lineage, step=version.step, tier=tier))


def _listen(link: ServerLink, tell: Callable[[str], None]) -> None:
    while (found := link.receive(0)) is not None:
        if isinstance(found[0], Durable):
            tell(f"durable {found[0].step}")


def _check_slots(
    origin: RestoreStart, descriptors: Sequence[int], tell: Callable[[str], None]
) -> None:
    version = Version(origin.lineage, origin.step)
    for fd, index in zip(descriptors, origin.slots, strict=True):
        slot = Arena(fd).slots[index]
        if bytes(slot.image[: SIZE + 8]) != pattern(version) * (SIZE // 8 + 1):
            tell(f"mixed {origin.step}")


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the child must end here in any case
        if not isinstance(error, SystemExit) and os.environ.get("FLASH_KILLS_TALK"):
            sys.stderr.write(f"{os.getpid()}: {error!r}\n")
    os._exit(1)


@dataclass
class Process:
    """A forked process, and what it says: a word and numbers on each line."""

    pid: int
    pipe: int
    said: list[list[str]] = field(default_factory=list)
    text: bytes = b""
    ended: bool = False

    def hear(self) -> None:
        """Take in what there is; `ended` at the end."""
        chunk = os.read(self.pipe, 65536)
        *lines, self.text = (self.text + chunk).split(b"\n")
        self.said += [line.decode().split() for line in lines]
        self.ended = not chunk

    def words(self, kind: str) -> list[list[str]]:
        """Return what it said of a kind, without the kind."""
        return [rest for first, *rest in self.said if first == kind]

    def numbers(self, kind: str) -> set[int]:
        """Return the first numbers of what it said of a kind."""
        return {int(rest[0]) for rest in self.words(kind)}

    def kill(self) -> None:
        """End it, and hear its last words."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        while not self.ended:
            self.hear()
        os.close(self.pipe)


def start(work: Callable[[int], None]) -> Process:
    """Fork a process that is given a pipe to speak into."""
    begin, end = os.pipe()

    def child() -> None:
        os.close(begin)
        work(end)

    pid = fork(child)
    os.close(end)
    return Process(pid, begin)


class Campaign:
    """A sequence of worlds on one directory, each killed."""

    def __init__(self, seed: int, folder: Path, *, files: bool, held: bool) -> None:
        """Begin with nothing."""
        self._shelf = FdStore(0, close_all, lambda: True) if held else None
        # Not on a disk: a mapping's writes would wait for it.
        self._files = tempfile.mkdtemp(dir="/dev/shm") if files else ""
        self._rng = random.Random(seed)
        self._folder = folder
        self._root = str(folder / "ck")
        Path(self._root).mkdir()
        self._keeper = 0
        self._path = ""
        self._lineage = 0
        self._announced = 0
        self._common = 0
        self._before = ""
        self.wrong: list[str] = []
        self.kills = {"trainer": 0, "keeper": 0}
        self.resumed = {"memory": 0, "storage": 0, "nothing": 0}

    def round(self) -> None:
        """Start a world, kill it, and judge it."""
        rng, self._lineage = self._rng, self._lineage + 1
        victim = rng.choice(["trainer", "trainer", "keeper"])
        by_line = rng.random() < 0.5
        lines = rng.randrange(1, 3000) if by_line else 0
        if not self._keeper:
            self._path = str(self._folder / f"keeper{self._lineage}")
            self._serve(lines if victim == "keeper" else 0)
            _until(lambda: Path(self._path).exists() or not _lives(self._keeper))
        elif victim == "keeper":
            lines = 0
        ranks = self._start(rng.choice([1, 2]) if self._lineage == 1 else 2, victim, lines)
        self._run(ranks, victim, 0.0 if lines else rng.random() * 0.06)
        self._judge(ranks, victim)

    def _serve(self, lines: int) -> None:
        end = self._shelf.connect() if self._shelf else None
        runner = end.fileno() if end else -1
        self._keeper = fork(lambda: serve(self._path, lines, self._files, runner))
        if end:
            end.close()

    def _start(self, count: int, victim: str, lines: int) -> list[Process]:
        world = World(self._path, self._root, 2, self._lineage)

        def work(rank: int, pipe: int) -> None:
            at = lines if victim == "trainer" and rank == 0 else 0
            train(world, rank, at, lambda text: _tell(pipe, text))

        return [start(partial(work, rank)) for rank in range(2)]

    def _run(self, ranks: list[Process], victim: str, wait_s: float) -> None:
        """Let them work until the kill, then end the whole world as an agent would."""
        self._watch(ranks, wait_s)
        if victim == "keeper":
            _kill(self._keeper)
        for rank in ranks:
            rank.kill()
        if not _lives(self._keeper):
            _kill(self._keeper)
            self._keeper = 0
            if self._shelf:
                self._shelf.disconnect()
        self.kills[victim] += 1

    def _watch(self, ranks: list[Process], wait_s: float) -> None:
        deadline = time.monotonic() + 30
        instant = None
        while time.monotonic() < deadline:
            if instant is None and all(rank.words("ready") for rank in ranks) and wait_s:
                instant = time.monotonic() + wait_s
            over = instant is not None and time.monotonic() >= instant
            if over or not all(map(_lives, [self._keeper, *(rank.pid for rank in ranks)])):
                return
            ready, _, _ = select.select([rank.pipe for rank in ranks], [], [], 0.005)
            if self._shelf:
                self._shelf.take_in(32)
            for rank in ranks:
                if rank.pipe in ready:
                    rank.hear()
        self.wrong.append(f"lineage {self._lineage}: nothing went on for 30 s")

    def _judge(self, ranks: list[Process], victim: str) -> None:
        say = self.wrong.append
        name = f"lineage {self._lineage}"
        origins = {tuple(map(int, words)) for rank in ranks for words in rank.words("origin")}
        if len(origins) > 1:
            say(f"{name}: ranks resumed from {origins}")
        if any(rank.words("mixed") for rank in ranks):
            say(f"{name}: a restored slot holds a mixed state")
        for _, step, memory in origins:
            kind = "nothing" if not step else "memory" if memory else "storage"
            self.resumed[kind] += 1
            if step < max(self._announced, self._common):
                say(
                    f"{name}: resumed from {step} in {kind}; announced {self._announced}, "
                    f"in memory on all ranks {self._common}; before: {self._before}"
                )
            self._common = step if memory else 0
        saved = [rank.numbers("saved") for rank in ranks]
        steps_of = [sorted(one)[-4:] for one in saved]
        self._before = f"{victim}, {[rank.words('origin') for rank in ranks]}, saved {steps_of}"
        self._announced = max(
            [self._announced, *set().union(*(r.numbers("durable") for r in ranks))]
        )
        shared = saved[0] & saved[1]
        outlives = self._keeper or self._files or self._shelf is not None
        self._common = max([self._common, *shared]) if outlives else 0
        note = self._folder / "note"
        if note.exists():
            say(f"{name}: {note.read_text()}")
        found, notes = _newest(self._root)
        step = found.version.step if found else 0
        if step < self._announced or notes:
            say(f"{name}: {self._announced} was announced, {step} is there; {notes}")

    def close(self) -> None:
        """End the keeper, and take away what it leaves."""
        if self._keeper:
            _kill(self._keeper)
        if self._files:
            shutil.rmtree(self._files)
        if self._shelf:
            self._shelf.disconnect()
            self._shelf.clear()


def _newest(root: str) -> tuple[Manifest | None, list[str]]:
    """Look for the newest step; again when a keeper that lives has changed the directory."""
    while True:
        before = steps(Disk(), root)
        found = newest(Disk(), root)
        if steps(Disk(), root) == before:
            return found


def _tell(pipe: int, text: str) -> None:
    os.write(pipe, text.encode() + b"\n")


def _lives(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kills", type=int, required=True)
    parser.add_argument("--files", action="store_true", help="arenas lie in files")
    parser.add_argument("--held", action="store_true", help="this process has them too")
    parser.add_argument("--record", default="", help="file to add a line to")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    campaign = Campaign(arguments.seed, folder, files=arguments.files, held=arguments.held)
    begin = time.monotonic()
    try:
        for _ in range(arguments.kills):
            campaign.round()
    finally:
        campaign.close()
        shutil.rmtree(folder, ignore_errors=True)
    said = {
        "seed": arguments.seed,
        "files": arguments.files,
        "held": arguments.held,
        "kills": campaign.kills,
        "resumed": campaign.resumed,
        "seconds": round(time.monotonic() - begin, 1),
        "wrong": campaign.wrong,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    record(arguments.record, "arena and commit", said)
    return bool(campaign.wrong)


if __name__ == "__main__":
    sys.exit(main())

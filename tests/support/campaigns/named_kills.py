"""Kills a trainer or a keeper at each named line of the flash checkpoint; judges what is left.

Run as a script with the kind of victims (`trainer`, `keeper`, `led`); prints one line of JSON per
point: whether it was hit, and what was wrong afterwards. Two ranks of a real `Checkpointer` save
each step to memory and each second one to storage, where two stay; every number of their state is
the step, so a state that is mixed of two steps shows. torch is imported once, then all is forked.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaigns.flash_kills import Process, start
from campaigns.kill_points import KEEPER, LED, TRAINER, Point, die_at
from holdfast.flash.memory.file_backend import FileBackend
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.local_commit import local_service
from holdfast.flash.server.protocol import listen
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import ManifestError, steps
from holdfast.flash.storage.reader import verify
from house.patience import patience

STEPS = 8
"""Of one world."""
STORED_EVERY = 2
WAIT_SECONDS = 60.0 * patience()
_WORLDS = 3
MID_SAVE = Point(
    "trainer", "memory.arena", "ArenaSlot.commit", "self.words[SlotWord.SEQUENCE] += 1", 4
)


def listen_to(processes: Sequence[Process], until: Callable[[], bool]) -> bool:
    """Hear them all until a condition; False when the time is up."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not until():
        if time.monotonic() > deadline:
            return False
        ready, _, _ = select.select([one.pipe for one in processes if not one.ended], [], [], 0.2)
        for one in processes:
            if one.pipe in ready:
                one.hear()
    return True


@dataclass(frozen=True, slots=True)
class World:
    """The settings that a rank needs."""

    arena: str
    root: str
    rank: int
    round: int
    local_rank: int
    local_world: int
    overlap: bool = False


class Value:
    """A value that is no tensor."""

    value: Any = 0

    def state_dict(self) -> Any:
        """Return it."""
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        """Take it."""
        self.value = state["value"]


def train(world: World, point: Point | None, pipe: int) -> None:
    """Be a rank: say what is restored, then count."""
    import torch

    from holdfast.flash.checkpointer import Checkpointer

    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)) + "\n").encode())

    os.environ |= {
        "RANK": str(world.rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_world), "HOLDFAST_ROUND": str(world.round),
        "HOLDFAST_ARENA": world.arena,
    }  # fmt: skip
    model = torch.nn.Linear(48, 48)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 48)).sum().backward()
    optimizer.step()
    moments = [optimizer.state[one]["momentum_buffer"] for one in model.parameters()]
    tensors = [*(one.detach() for one in model.parameters()), *moments]
    count, own = Value(), Value()
    flash = Checkpointer(
        world.root, model=model, optimizer=optimizer, extra={"count": count},
        per_rank={"own": own}, keep_last=2, overlap=world.overlap,
    )  # fmt: skip
    if point is not None:
        die_at(point, pipe)
    begin = flash.load()
    say("start", begin)
    if wrong := _wrong(begin, tensors, count.value, own.value, world.rank):
        say("mixed", wrong)
    for step in range(begin + 1, begin + 1 + STEPS):
        for tensor in tensors:
            tensor.fill_(step)
        count.value, own.value = step, [step, world.rank]
        flash.save(step, durable=step % STORED_EVERY == 0)
        flash.join()
        say("saved", step)
        if step % STORED_EVERY == 0:
            flash.wait(step)
            say("durable", step)
    say("end")
    signal.pause()


def _wrong(begin: int, tensors: Sequence[Any], count: Any, own: Any, rank: int) -> str:
    """Return what of a restored state is not of that step; empty: nothing."""
    seen = {float(number) for tensor in tensors for number in tensor.unique()} if begin else {0.0}
    right = ({float(begin)}, begin, [begin, rank] if begin else 0)
    return "" if (seen, count, own) == right else f"{begin}: {seen}, {count}, {own}"


def serve(path: str, files: str, point: Point | None, pipe: int) -> None:
    """Be the keeper; files: the directory of its arenas, if they lie in one."""
    listener = listen(path)
    if point is not None:
        die_at(point, pipe)
    keeper = ArenaStore(backend=FileBackend(files, "job") if files else None)
    for note in keeper.take_over():
        os.write(pipe, f"note {note}\n".encode())
    local_service(keeper, listener).run()


@dataclass
class Judge:
    """A record of the promises so far and of those that were broken."""

    root: str
    announced: int = 0
    in_memory: int = 0
    """The newest step that all ranks have saved, while what holds their memory lives."""
    wrong: list[str] = field(default_factory=list)

    def started(self, name: str, ranks: Sequence[Process]) -> None:
        """Judge what a world resumed from."""
        starts = set[int]().union(*(rank.numbers("start") for rank in ranks))
        if len(starts) > 1:
            self.wrong.append(f"{name}: ranks started from {starts}")
        for rank in ranks:
            self.wrong += [f"{name}: mixed {words}" for words in rank.words("mixed")]
        if starts and min(starts) < max(self.announced, self.in_memory):
            self.wrong.append(
                f"{name}: started from {starts}; announced {self.announced}, "
                f"in memory {self.in_memory}"
            )

    def saved(self, ranks: Sequence[Process], *, memory: bool) -> None:
        """Note what a world has saved; memory: it is still there."""
        self.announced = max([self.announced, *set().union(*(r.numbers("durable") for r in ranks))])
        common = set.intersection(*(rank.numbers("saved") for rank in ranks))
        self.in_memory = max([self.in_memory, *common]) if memory else 0

    def stored(self, name: str, *, clean: bool) -> None:
        """Look at the directory, which nobody writes to; clean: nothing half done may be left."""
        there = steps(Disk(), self.root)
        if self.announced and max(there, default=0) < self.announced:
            self.wrong.append(f"{name}: {self.announced} was announced, {there} are there")
        for step in there:
            try:
                verify(Disk(), f"{self.root}/step_{step}")
            except ManifestError as error:
                self.wrong.append(f"{name}: {error}")
        known = {"owners", *(f"step_{n}" for n in there)}
        left = {path.name for path in Path(self.root).iterdir()} - known
        if clean and (left or len(there) > 2):
            self.wrong.append(f"{name}: {there} stay, and {left}")


class Scene:
    """One point: worlds until it is hit, and one that goes on after it."""

    def __init__(self, point: Point, folder: Path) -> None:
        """Begin with nothing."""
        self._point = point
        self._folder = folder
        self._root = str(folder / "ck")
        Path(self._root).mkdir()
        self._files = tempfile.mkdtemp(dir="/dev/shm") if point.files else ""
        self._keeper: Process | None = None
        self._path = ""
        self._judge = Judge(self._root)
        self.hit = False

    def play(self) -> list[str]:
        """Return what was wrong."""
        try:
            for number in range(1, _WORLDS + 1):
                before = self.hit
                self._world(number)
                if before:
                    break
        finally:
            if self._keeper is not None:
                self._keeper.kill()
            shutil.rmtree(self._files or self._folder / "none", ignore_errors=True)
        self._judge.stored("at the end", clean=True)
        return self._judge.wrong

    def _world(self, number: int) -> None:
        point, armed = self._point, not self.hit
        if self._keeper is None:
            self._path = str(self._folder / f"keeper{number}")
            at = point if armed and point.who == "keeper" else None
            path, files = self._path, self._files
            self._keeper = start(lambda pipe: serve(path, files, at, pipe))
            assert listen_to([self._keeper], Path(path).exists)
        keeper = self._keeper
        trap = point if armed and point.who == "trainer" and point.world == number else None
        if point.after and number == 1:
            trap = MID_SAVE
        ranks = [self._rank(number, rank, None if rank else trap) for rank in (0, 1)]
        everybody = [keeper, *ranks]
        over = listen_to(
            everybody,
            lambda: any(one.ended for one in everybody) or all(r.words("end") for r in ranks),
        )
        if not over:
            self._judge.wrong.append(f"world {number}: nothing went on")
        name = f"world {number}"
        self._hear_the_keeper(name, keeper, ranks)
        for rank in ranks:
            rank.kill()
        victims = ranks if point.who == "trainer" else [keeper]
        self.hit = self.hit or any(one.words("hit") for one in victims)
        if keeper.ended:
            keeper.kill()
            self._keeper = None
        self._judge.started(name, ranks)
        self._judge.saved(ranks, memory=bool(self._keeper or self._files))
        self._judge.wrong += [f"{name}: {' '.join(note)}" for note in keeper.words("note")]
        if self._keeper is None:
            self._judge.stored(name, clean=False)

    def _hear_the_keeper(self, name: str, keeper: Process, ranks: Sequence[Process]) -> None:
        """Check that the keeper of a rank that ended unkilled ends, too, if a little later."""
        orphans = [rank for rank in ranks if rank.ended]
        if not orphans or any(rank.words("hit") for rank in orphans):
            return
        if not listen_to([keeper], lambda: keeper.ended):
            self._judge.wrong.append(f"{name}: a rank ended, and nobody was killed")

    def _rank(self, number: int, rank: int, trap: Point | None) -> Process:
        world = World(self._path, self._root, rank, number, rank, 2, self._point.overlap)
        return start(lambda pipe: train(world, trap, pipe))


def main() -> int:
    """Play all scenes of a kind."""
    import torch
    import torch._dynamo
    import torch.distributed.tensor

    import holdfast.flash.checkpointer  # noqa: F401 - forked ranks find it imported
    from campaigns.led_kills import LedScene

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["trainer", "keeper", "led"])
    parser.add_argument("--only", default="", help="part of the names of points")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    points = {"trainer": TRAINER, "keeper": KEEPER, "led": LED}[arguments.kind]
    failed = False
    for point in points:
        if arguments.only not in point.name:
            continue
        folder = Path(tempfile.mkdtemp())
        scene = (LedScene if arguments.kind == "led" else Scene)(point, folder)
        begin = time.monotonic()
        wrong = scene.play()
        shutil.rmtree(folder)
        seconds = round(time.monotonic() - begin, 2)
        said = {"point": point.name, "hit": scene.hit, "wrong": wrong, "seconds": seconds}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        failed = failed or bool(wrong) or not scene.hit
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The power fails at each operation of a whole life of a directory: no promise is broken.

Beyond one commit (`test_commit`): parts of two nodes with their descriptions, a coordinator that
takes over from another, retention, a lineage that replaces another's step, and a checkpoint with a
name of the user's own that is given anew.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from checkpoints.filled_arenas import grant, layout
from checkpoints.forgetful_disk import ForgetfulDisk, PowerCut
from holdfast.flash.memory.arena import RankArena
from holdfast.flash.memory.slots import Move, Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.manifest import Manifest, ManifestError, Shard, is_own, steps
from holdfast.flash.storage.reader import verify
from holdfast.flash.storage.writer import SlotWork, StepStorage
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy
from house.extended import usual

ROOT = "ck"
BEST = f"{ROOT}/best"
JOB = "7e01"
KEEP = CheckpointPolicy(keep_last=2)


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[RankArena]]:
    """The arenas of two ranks, which are on two nodes."""
    keepers = [ArenaStore(), ArenaStore()]
    yield [grant(arenas, rank, layout(rank)) for rank, arenas in enumerate(keepers)]
    for arenas in keepers:
        arenas.close()


@dataclass
class Life:
    """Life of a directory: the announced, coming and going steps, by path."""

    disk: ForgetfulDisk
    ranks: list[RankArena]
    announced: dict[str, Manifest] = field(default_factory=dict)
    coming: dict[str, Manifest] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)
    """What retention may have begun to delete."""

    def live(self) -> None:
        """Save, until the power fails."""
        self.disk.make_dir(ROOT)
        self.disk.sync_dir("")
        for step in (10, 20, 30, 40):
            self.save(Version(1, step), "w1", falls=step == 20)
        self.save(Version(2, 40), "w2")  # the world went back behind step 40
        self.name(Version(2, 40), "w2")
        self.name(Version(2, 45), "w2")
        self.save(Version(2, 50), "w2")

    def _job(self, held: RankArena, version: Version, final: str = "") -> SlotWork:
        slot = held.arena.slots[0]
        slot.begin_write(version)
        body = bytes((version.step, version.lineage, held.rank)) * len(slot.image)
        slot.image[:] = body[: len(slot.image)]
        slot.commit([100 + version.step])
        return SlotWork(held=held, slot=slot, version=version, tier=Tier.STORAGE, final=final)

    def save(self, version: Version, token: str, *, falls: bool = False) -> None:
        """Write both parts and commit them; falls: the first coordinator does so half-way."""
        shards = []
        for held in self.ranks:
            job = self._job(held, version)
            try:
                shards.append(StepStorage(self.disk, ROOT, token, KEEP, JOB).write(job, alone=True))
            finally:
                job.slot.give_back(Move.RELEASE)
        path = f"{ROOT}/step_{version.step}"
        self._will_be(path, version, shards)
        older = [known for known in self.announced if known not in (BEST, path)]
        self.going |= set(older[:-1])
        if falls:
            self.disk.refuse = lambda name: errno.EIO if name == "rename_new" else 0
            with pytest.raises(CommitError):
                self._grant(version, token, "1")
            self.disk.refuse = lambda _: 0
        self._grant(version, token, "2")
        self._is(path)

    def _grant(self, version: Version, token: str, number: str) -> None:
        StepStorage(self.disk, ROOT, token, KEEP, JOB).commit_granted(
            version, world=2, attempt=token, own=f"{token}e1c{number}"
        )

    def name(self, version: Version, token: str) -> None:
        """Commit a checkpoint under a name of its own, by one keeper of both ranks."""
        storage = StepStorage(self.disk, ROOT, token, KEEP, JOB)
        jobs = [self._job(held, version, BEST) for held in self.ranks]
        try:
            shards = {job.held.rank: storage.write(job, alone=False) for job in jobs}
            self._will_be(BEST, version, list(shards.values()))
            storage.commit(jobs[0], shards)
        finally:
            for job in jobs:
                job.slot.give_back(Move.RELEASE)
        self._is(BEST)

    def _will_be(self, path: str, version: Version, shards: list[Shard]) -> None:
        self.coming[path] = Manifest(version=version, shards=tuple(shards))

    def _is(self, path: str) -> None:
        self.announced[path] = self.coming[path]

    def broken(self, found: ForgetfulDisk) -> list[str]:
        """Return which promises the disk of after the power cut breaks."""
        wrong = []
        there = [f"{ROOT}/step_{step}" for step in steps(found, ROOT)]
        named = [BEST] if "best" in (found.names(ROOT) if there else []) else []
        for path in [*there, *named]:
            try:
                manifest = verify(found, path)
            except ManifestError as error:
                wrong.append(f"{path} looks committed, but {error}")
                continue
            if manifest not in (self.announced.get(path), self.coming.get(path)):
                wrong.append(f"{path} is another one")
            if not is_own(found, path):
                wrong.append(f"{path} holds more than a checkpoint: {found.names(path)}")
        if there and found.names(f"{ROOT}/owners") != [f"1.{JOB}"]:
            wrong.append(f"{found.names(f'{ROOT}/owners')} is not who saved {there}")
        gone = self.announced.keys() - {*there, *named} - self.going
        return [*wrong, *(f"{path} was announced and is gone" for path in sorted(gone))]

    def goes_on(self, found: ForgetfulDisk) -> list[str]:
        """Let the next world clear up and save; return what is wrong then."""
        if ROOT not in found.names(""):
            return []
        self.disk = found
        owners.clear_up(found, ROOT, owners.left_behind(found, ROOT, "w3"))
        self.save(Version(3, 60), "w3")
        self.going |= set(self.announced) - {BEST, f"{ROOT}/step_60"}
        left = [name for name in found.names(ROOT) if ".tmp." in name or ".trash." in name]
        return [*self.broken(found), *(f"{name} is left" for name in left)]


def _cut_at(operation: int, ranks: list[RankArena], *, forgetful: str = "") -> Life:
    disk = ForgetfulDisk()
    disk.cut_at = operation
    if forgetful:
        setattr(disk, forgetful, True)
    life = Life(disk, ranks)
    try:
        life.live()
    except PowerCut:
        disk.cut_at = 0
    return life


def _operations(ranks: list[RankArena]) -> int:
    return _cut_at(0, ranks).disk.operations


MORE = pytest.mark.extended(
    "other losses of the same cuts; each run draws others",
    held_by=[
        "flash/unit/test_power_cuts.py::test_a_power_cut_anywhere_in_a_directorys_life_breaks_no_promise"
    ],
)


@pytest.mark.parametrize("draw", usual(range(4), 0, more=MORE))
def test_a_power_cut_anywhere_in_a_directorys_life_breaks_no_promise(
    ranks: list[RankArena], draw: int
) -> None:
    """An announced step always loads, a half-written one never. The next world finds its way."""
    seed = random.randrange(2**32)
    for cut in range(1, _operations(ranks) + 2):
        life = _cut_at(cut, ranks)
        found = life.disk.after_power_cut(random.Random(f"{seed}/{draw}/{cut}"))
        assert life.broken(found) == [], f"seed {seed}, operation {cut}"
        assert life.goes_on(found) == [], f"seed {seed}, operation {cut}"


@pytest.mark.parametrize("forgotten", ["forget_sync", "forget_sync_dir"])
def test_a_fsync_that_is_left_out_shows(ranks: list[RankArena], forgotten: str) -> None:
    """Of files, or of directories: some crash breaks a promise."""
    for cut in range(1, _operations(ranks) + 2):
        life = _cut_at(cut, ranks, forgetful=forgotten)
        if life.broken(life.disk.after_power_cut(random.Random(cut))):
            return
    pytest.fail("nothing broke")

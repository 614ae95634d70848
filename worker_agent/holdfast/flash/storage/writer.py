"""Writes a VALID slot to storage on a worker thread: hash, write, commit.

A checkpoint server that serves all ranks commits by its own knowledge. Where each rank has a server
of its own and there is no master, the servers meet in the attempt's directory: every shard lies
beside a description of itself. Rank 0's server waits for all shards and commits, and the others
wait for that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.flash.ids import unique
from holdfast.flash.memory import replica_check
from holdfast.flash.memory.arena import ArenaSlot, RankArena
from holdfast.flash.memory.slots import Version
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import (
    Attempt,
    CommitError,
    attempts_of,
    commit,
    open_attempt,
    write_shard,
)
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestError,
    Shard,
    decode_manifest,
    encode_manifest,
    read_manifest_or_none,
)
from holdfast.flash.storage.retention import Retainer
from holdfast_wire.messages import Tier
from holdfast_wire.messages.spec import CheckpointPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWork:
    """One VALID slot to be written or read; its slot must not be given back meanwhile."""

    held: RankArena
    slot: ArenaSlot
    version: Version
    tier: Tier
    """Tier that the slot is read for; memory: it stays where it is."""
    final: str = ""
    """Path for the checkpoint; empty: the root's directory of that step."""

    @property
    def image(self) -> memoryview:
        """Bytes of the slot's image."""
        return self.slot.image


_TOGETHER_SECONDS: Final = 600.0
"""Seconds in which the shards of all ranks must be on storage."""
_ORPHAN_SECONDS: Final = 5.0
"""Seconds without any change after which a commit gives up, if no trainer waits for it."""
_LOOK_SECONDS: Final = 0.02
_FAILED: Final = ".failed."
"""Prefix of a file in which a rank says that it cannot write its part; its number follows."""
_REFUSED: Final = "rank 0 refused the commit: "
"""First words of such a file if rank 0 has its part, but does not commit the step."""


def hashed(job: SlotWork) -> Shard:
    """Hash every item of the slot, store the hashes in it, and return the shard."""
    slot, table = job.slot, job.held.arena.table
    hashes = slot.hash_image(training=True)
    slot.store_hashes(hashes)
    sketches = b""  # where the ranks were compared before
    for item, (begin, length) in zip(table.items, slot.spans, strict=True):
        if item.name == replica_check.ITEM and item.tail:
            sketches = bytes(slot.image[begin : begin + length])
    return Shard(table=table, lengths=tuple(slot.lengths), hashes=hashes, sketches=sketches)


class StepStorage:
    """One directory of checkpoints, for one checkpoint server."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        token: str,
        retention: CheckpointPolicy,
        owner: str,
        awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the directory; `token` names this world's attempts.

        owner: Names the job.
        awaited: tells, from any thread, whether a living trainer waits for the write.
        """
        self._awaited = awaited
        self._disk, self.root, self.token, self.owner = disk, root, token, owner
        self._retainer = Retainer(disk, root, retention)
        self._own = unique()

    def _attempt(self, version: Version) -> Attempt:
        return Attempt(version=version, number=self.token)

    def write(self, job: SlotWork, *, alone: bool) -> Shard:
        """Hash and write one rank's shard; alone: this server does not serve all ranks.

        Raises `CommitError`.
        """
        shard = hashed(job)
        root, _ = self._where(job.version, job.final)
        try:
            folder = open_attempt(self._disk, root, self._attempt(job.version))
            write_shard(self._disk, folder, shard, job.image)
            if alone:
                self._describe(folder, job, shard)
        except (OSError, CommitError) as error:
            if alone:
                self._give_up(job.version, job.final, shard.table.rank, str(error))
            if isinstance(error, CommitError):
                raise
            raise CommitError(f"step {job.version.step}: {root}: {error}") from error
        return shard

    def _where(self, version: Version, final: str) -> tuple[str, str]:
        """Return the directory of a checkpoint, and the path of its attempt."""
        root = (final.rpartition("/")[0] or "/") if final else self.root
        return root, f"{root}/{self._attempt(version).folder}"

    def _describe(self, folder: str, job: SlotWork, shard: Shard) -> None:
        content = encode_manifest(Manifest(version=job.version, shards=(shard,)))
        self._put(folder, _description(shard.table.rank), content)

    def _put(self, folder: str, name: str, content: bytes) -> None:
        handle = self._disk.create(f"{folder}/{name}.new", direct=False)
        try:
            self._disk.write(handle, content)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.rename(f"{folder}/{name}.new", f"{folder}/{name}")

    def leave_word(self, version: Version, final: str, rank: int, error: str) -> None:
        """Tell other ranks, which would wait, that this rank has no part of a step."""
        with contextlib.suppress(OSError):  # the directory itself may be the fault
            open_attempt(self._disk, self._where(version, final)[0], self._attempt(version))
        self._give_up(version, final, rank, error)

    def _give_up(self, version: Version, final: str, rank: int, error: str) -> None:
        """Write that into an attempt's directory; the attempt is not continued."""
        with contextlib.suppress(OSError):
            self._put(self._where(version, final)[1], f"{_FAILED}{rank}", error.encode())

    def _given_up(self, folder: str) -> str:
        """Return the reason why a step is not committed, with the rank; empty: none.

        A rank that has no part is the cause of a refused commit, so it is named first.
        """
        refused = ""
        with contextlib.suppress(OSError):
            for name in self._disk.names(folder):
                rank = name.removeprefix(_FAILED)
                if rank != name and rank.isdigit():
                    error = self._disk.read(f"{folder}/{name}").decode(errors="replace")
                    if not error.startswith(_REFUSED):
                        return f"rank {rank} could not write its part: {error}"
                    refused = error
        return refused

    def commit(self, job: SlotWork, shards: Mapping[int, Shard]) -> None:
        """Commit the step of `job` and delete what retention gives up.

        Raises `CommitError`.
        """
        world = job.held.arena.table.world
        if len(shards) == world:
            self._commit(job, shards)
        elif 0 in shards:
            try:
                self._commit(job, self._gather(job, world))
            except CommitError as error:
                self._give_up(job.version, job.final, 0, f"{_REFUSED}{error}")
                raise
        else:
            self._await(job)

    def _commit(self, job: SlotWork, shards: Mapping[int, Shard]) -> None:
        root, _ = self._where(job.version, job.final)
        attempt = self._attempt(job.version)
        if job.final:
            commit(self._disk, root, attempt, shards.values(), self._own, final=job.final)
        else:
            self._commit_own(attempt, shards, self._own, self.token)

    def _commit_own(
        self, attempt: Attempt, shards: Mapping[int, Shard], own: str, begun: str
    ) -> None:
        """Commit a step of this directory, for its owner. begun: number of the parts' attempt."""
        owners.take(self._disk, self.root, self.owner)
        commit(self._disk, self.root, attempt, shards.values(), own)
        self._retainer.delete_old(attempt.version.step)
        owners.pass_over(self._disk, self.root, begun, attempt.version)

    def commit_granted(self, version: Version, *, world: int, attempt: str, own: str) -> None:
        """Commit the step that a master has granted, also after another coordinator began it.

        world: number of ranks of the version. attempt: attempt of their parts. own: its new number.
        Raises `CommitError`.
        """
        begun = Attempt(version=version, number=attempt)
        final = f"{self.root}/step_{version.step}"
        try:
            for found in attempts_of(self._disk, self.root, begun):
                folder = f"{self.root}/{found.folder}"
                shards = _shards_in(self._disk, folder, world)
                if len(shards) == world:
                    self._commit_own(found, shards, own, attempt)
                    return
        except OSError as error:
            raise CommitError(f"{final} was not committed: {error}") from error
        done = read_manifest_or_none(self._disk, final)
        if done is None or done.version != version:  # otherwise only the answer was lost
            raise CommitError(
                f"{self.root}/{begun.folder} does not hold the parts of all {world} ranks: "
                "do all nodes see the same directory?"
            )

    def _gather(self, job: SlotWork, world: int) -> dict[int, Shard]:
        root, folder = self._where(job.version, job.final)
        attempt, shards = self._attempt(job.version), dict[int, Shard]()
        patience = _Patience(self._disk, folder, self._awaited)
        while len(shards) < world:
            shards |= _described(self._disk, folder, set(range(world)) - shards.keys())
            if attempt not in attempts_of(self._disk, root, attempt):
                raise CommitError(f"{folder} was swept: a newer world has begun")
            if len(shards) < world and (error := self._given_up(folder)):
                raise CommitError(f"step {job.version.step}: {error}")
            if len(shards) < world and patience.is_over():
                missing = sorted(set(range(world)) - shards.keys())
                raise CommitError(f"step {job.version.step}: no shard of ranks {missing} came")
            time.sleep(_LOOK_SECONDS)
        return shards

    def _await(self, job: SlotWork) -> None:
        _, folder = self._where(job.version, job.final)
        final = job.final or f"{self.root}/step_{job.version.step}"
        deadline = time.monotonic() + _TOGETHER_SECONDS
        while True:
            found = read_manifest_or_none(self._disk, final)
            if found is not None and found.version == job.version:
                return
            if error := self._given_up(folder):
                raise CommitError(f"step {job.version.step}: {error}")
            if time.monotonic() > deadline or not self._awaited():
                raise CommitError(f"{final}: rank 0 did not commit it in {_TOGETHER_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)


class _Patience:
    """Patience of a commit with the shards of other ranks."""

    def __init__(self, disk: Disk, folder: str, awaited: Callable[[], bool]) -> None:
        self._disk, self._folder, self._awaited = disk, folder, awaited
        self._end = time.monotonic() + _TOGETHER_SECONDS
        self._moved, self._seen = time.monotonic(), list[tuple[str, int]]()

    def is_over(self) -> bool:
        """Return True if the time is up, or no trainer waits and nothing changes any more."""
        now, seen = time.monotonic(), list[tuple[str, int]]()
        if not self._awaited():
            for name in self._disk.names(self._folder):
                with contextlib.suppress(OSError):
                    seen.append((name, self._disk.size(f"{self._folder}/{name}")))
        if self._awaited() or seen != self._seen:
            self._moved, self._seen = now, seen
        return now > self._end or now - self._moved > _ORPHAN_SECONDS


def _shards_in(disk: Disk, folder: str, world: int) -> dict[int, Shard]:
    """Return the shards of an attempt by rank: by its manifest, or as they describe themselves."""
    with contextlib.suppress(OSError, ManifestError):
        manifest = decode_manifest(disk.read(f"{folder}/{MANIFEST_NAME}"))
        return {shard.table.rank: shard for shard in manifest.shards}
    return _described(disk, folder, range(world))


def _described(disk: Disk, folder: str, ranks: Iterable[int]) -> dict[int, Shard]:
    """Return the shards of these ranks that describe themselves."""
    shards: dict[int, Shard] = {}
    for rank in ranks:
        with contextlib.suppress(OSError, ManifestError):
            content = disk.read(f"{folder}/{_description(rank)}")
            shards[rank] = decode_manifest(content).shards[0]
    return shards


def _description(rank: int) -> str:
    return f".shard.{rank}.json"

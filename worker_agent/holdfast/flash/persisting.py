"""What is done with a VALID slot, on a thread of its own: hash it, write it, commit the step.

Where a keeper holds all ranks it commits by what it knows. Where each rank has a keeper of its own
and there is no master, they meet in the attempt's directory: every shard lies beside a description
of itself, rank 0's keeper waits for all of them and commits, and the others wait for that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.flash import leftovers, owners
from holdfast.flash.commit import (
    Attempt,
    CommitError,
    attempts_of,
    commit,
    open_attempt,
    read_manifest_or_none,
    unique,
    write_shard,
)
from holdfast.flash.decide.retention import RetentionSettings
from holdfast.flash.decide.slots import Version
from holdfast.flash.disk import Disk
from holdfast.flash.header import SlotWord
from holdfast.flash.keeper import Job
from holdfast.flash.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestError,
    Shard,
    decode_manifest,
    encode_manifest,
    hash_items,
)
from holdfast.flash.retaining import Retainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A master lets this keeper commit a step whose parts are all on storage."""

    version: Version
    world: int
    root: str
    attempt: str
    own: str
    """Number of the attempt from now on."""


_TOGETHER_S: Final = 600.0
"""Seconds in which all ranks' shards of a step must be there."""
_ORPHAN_S: Final = 5.0
"""Seconds without any change after which parts are not waited for that nobody waits for either."""
_LOOK_S: Final = 0.02
_FAILED: Final = ".failed."
"""Begins the name of a rank's word that it cannot write its part; its number follows."""


def hashed(job: Job) -> Shard:
    """Hash every item of the slot, leave the hashes in it, and return the shard."""
    slot, table = job.slot, job.held.arena.table
    lengths = tuple(slot.lengths)
    spans = table.spans(lengths)
    hashes = hash_items(slot.image, spans)
    for index, number in enumerate(hashes):
        slot.hashes[index] = number
    slot.words[SlotWord.HASHED] = slot.words[SlotWord.SEQUENCE]
    return Shard(table=table, lengths=lengths, hashes=hashes)


class Storage:
    """One directory of checkpoints, as one keeper uses it."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        token: str,
        retention: RetentionSettings,
        owner: str,
        awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the directory; `token` names this world's attempts.

        owner: Names the job.
        awaited: tells, from any thread, whether a trainer lives that waits for what is written.
        """
        self._awaited = awaited
        self._disk, self.root, self._token, self._owner = disk, root, token, owner
        self._retainer = Retainer(disk, root, retention)
        self._own = unique()

    @property
    def token(self) -> str:
        """Name of this world's attempts."""
        return self._token

    def _attempt(self, version: Version) -> Attempt:
        return Attempt(version=version, number=self._token)

    def write(self, job: Job, *, alone: bool) -> Shard:
        """Hash and write one rank's shard; alone: this keeper does not hold all ranks.

        Raises `CommitError`.
        """
        shard = hashed(job)
        root, _ = self._where(job.version, job.final)
        try:
            folder = open_attempt(self._disk, root, self._attempt(job.version))
            write_shard(self._disk, folder, shard, job.slot.image)
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
        """Return the directory that an attempt is in, and what it becomes."""
        if final:
            return final.rpartition("/")[0] or "/", final
        return self.root, f"{self.root}/step_{version.step}"

    def _describe(self, folder: str, job: Job, shard: Shard) -> None:
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
        """Have other ranks, which would wait, know that this one has no part of a step."""
        with contextlib.suppress(OSError):  # it may be this directory that fails
            open_attempt(self._disk, self._where(version, final)[0], self._attempt(version))
        self._give_up(version, final, rank, error)

    def _give_up(self, version: Version, final: str, rank: int, error: str) -> None:
        """Leave word in an attempt that is there; nobody writes it again."""
        folder = f"{self._where(version, final)[0]}/{self._attempt(version).folder}"
        with contextlib.suppress(OSError):
            self._put(folder, f"{_FAILED}{rank}", error.encode())

    def _given_up(self, folder: str) -> str:
        """Return which rank left word that it cannot, and why; empty: none."""
        with contextlib.suppress(OSError):
            for name in self._disk.names(folder):
                rank = name.removeprefix(_FAILED)
                if rank != name and rank.isdigit():
                    error = self._disk.read(f"{folder}/{name}").decode(errors="replace")
                    return f"rank {rank} could not write its part: {error}"
        return ""

    def commit(self, job: Job, shards: Mapping[int, Shard]) -> None:
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
                self._give_up(job.version, job.final, 0, str(error))
                raise
        else:
            self._await(job)

    def _commit(self, job: Job, shards: Mapping[int, Shard]) -> None:
        root, _ = self._where(job.version, job.final)
        attempt = self._attempt(job.version)
        if not job.final:
            owners.take(self._disk, root, self._owner)
        commit(self._disk, root, attempt, shards.values(), self._own, final=job.final)
        if not job.final:
            self._retainer.delete_old(job.version.step)
            leftovers.pass_over(self._disk, self.root, self._token, job.version)

    def commit_granted(self, grant: Grant) -> None:
        """Commit the step that a master has granted; what another coordinator began is taken over.

        Raises `CommitError`.
        """
        attempt = Attempt(version=grant.version, number=grant.attempt)
        final = f"{self.root}/step_{grant.version.step}"
        try:
            for found in attempts_of(self._disk, self.root, attempt):
                folder = f"{self.root}/{found.folder}"
                shards = _shards_in(self._disk, folder, grant.world)
                if len(shards) == grant.world:
                    owners.take(self._disk, self.root, self._owner)
                    commit(self._disk, self.root, found, shards.values(), grant.own)
                    self._retainer.delete_old(grant.version.step)
                    leftovers.pass_over(self._disk, self.root, grant.attempt, grant.version)
                    return
        except OSError as error:
            raise CommitError(f"{final} was not committed: {error}") from error
        done = read_manifest_or_none(self._disk, final)
        if done is None or done.version != grant.version:  # else only the answer was lost
            raise CommitError(
                f"{self.root}/{attempt.folder} does not hold the parts of all {grant.world} ranks: "
                "do all nodes see the same directory?"
            )

    def _gather(self, job: Job, world: int) -> dict[int, Shard]:
        root, _ = self._where(job.version, job.final)
        folder = f"{root}/{self._attempt(job.version).folder}"
        shards: dict[int, Shard] = {}
        patience = _Patience(self._disk, folder, self._awaited)
        while len(shards) < world:
            for rank in set(range(world)) - shards.keys():
                with contextlib.suppress(OSError, ManifestError):
                    content = self._disk.read(f"{folder}/{_description(rank)}")
                    shards[rank] = decode_manifest(content).shards[0]
            if self._attempt(job.version) not in attempts_of(
                self._disk, root, self._attempt(job.version)
            ):
                raise CommitError(f"{folder} was swept: a newer world has begun")
            if len(shards) < world and (error := self._given_up(folder)):
                raise CommitError(f"step {job.version.step}: {error}")
            if len(shards) < world and patience.is_over():
                missing = sorted(set(range(world)) - shards.keys())
                raise CommitError(f"step {job.version.step}: no shard of ranks {missing} came")
            time.sleep(_LOOK_S)
        for rank in shards:
            with contextlib.suppress(OSError):
                self._disk.unlink(f"{folder}/{_description(rank)}")
        return shards

    def _await(self, job: Job) -> None:
        root, final = self._where(job.version, job.final)
        folder = f"{root}/{self._attempt(job.version).folder}"
        deadline = time.monotonic() + _TOGETHER_S
        while True:
            found = read_manifest_or_none(self._disk, final)
            if found is not None and found.version == job.version:
                return
            if error := self._given_up(folder):
                raise CommitError(f"step {job.version.step}: {error}")
            if time.monotonic() > deadline or not self._awaited():
                raise CommitError(f"{final}: rank 0 did not commit it in {_TOGETHER_S:g} s")
            time.sleep(_LOOK_S)

    def superseded(self) -> str:
        """Return why this job may start from nothing here; empty: it may. Raises OSError."""
        return owners.superseded(self._disk, self.root, self._owner)

    def left_behind(self) -> frozenset[str]:
        """Return what earlier worlds left half done, for `clear_up`."""
        return leftovers.left_behind(self._disk, self.root, self._token)

    def clear_up(self, folders: frozenset[str] | None = None) -> None:
        """Delete what was left behind; raises OSError. By default what is so now."""
        leftovers.clear_up(
            self._disk, self.root, self.left_behind() if folders is None else folders
        )


class _Patience:
    """How long the other ranks' shards are waited for."""

    def __init__(self, disk: Disk, folder: str, awaited: Callable[[], bool]) -> None:
        self._disk, self._folder, self._awaited = disk, folder, awaited
        self._end = time.monotonic() + _TOGETHER_S
        self._moved, self._seen = time.monotonic(), list[tuple[str, int]]()

    def is_over(self) -> bool:
        """Tell so when the time is up, or, once no trainer waits, when nothing moves any more."""
        now, seen = time.monotonic(), list[tuple[str, int]]()
        if not self._awaited():
            for name in self._disk.names(self._folder):
                with contextlib.suppress(OSError):
                    seen.append((name, self._disk.size(f"{self._folder}/{name}")))
        if self._awaited() or seen != self._seen:
            self._moved, self._seen = now, seen
        return now > self._end or now - self._moved > _ORPHAN_S


def _shards_in(disk: Disk, folder: str, world: int) -> dict[int, Shard]:
    """Return the shards that an attempt's directory describes, by rank."""
    shards: dict[int, Shard] = {}
    with contextlib.suppress(OSError, ManifestError):
        manifest = decode_manifest(disk.read(f"{folder}/{MANIFEST_NAME}"))
        return {shard.table.rank: shard for shard in manifest.shards}
    for rank in range(world):
        with contextlib.suppress(OSError, ManifestError):
            content = disk.read(f"{folder}/{_description(rank)}")
            shards[rank] = decode_manifest(content).shards[0]
    return shards


def _description(rank: int) -> str:
    return f".shard.{rank}.json"

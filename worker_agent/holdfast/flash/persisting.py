"""What is done with a VALID slot, on a thread of its own: hash it, write it, commit the step.

Where a keeper holds all ranks it commits by what it knows. Where each rank has a keeper of its own
and there is no master, they meet in the attempt's directory: every shard lies beside a description
of itself, rank 0's keeper waits for all of them and commits, and the others wait for that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Final

from holdfast.flash.commit import (
    Attempt,
    CommitError,
    commit,
    delete_steps,
    open_attempt,
    read_manifest_or_none,
    steps,
    sweep,
    unique,
    write_shard,
)
from holdfast.flash.decide.retention import RetentionSettings, to_delete
from holdfast.flash.disk import Disk
from holdfast.flash.header import SlotWord
from holdfast.flash.keeper import Job
from holdfast.flash.manifest import (
    Manifest,
    ManifestError,
    Shard,
    decode_manifest,
    encode_manifest,
    hash_items,
)

_TOGETHER_S: Final = 600.0
"""Seconds in which all ranks' shards of a step must be there."""
_LOOK_S: Final = 0.02


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

    def __init__(self, disk: Disk, root: str, token: str, retention: RetentionSettings) -> None:
        """Take the directory; `token` names this world's attempts."""
        self._disk, self._root, self._token = disk, root, token
        self._retention = retention
        self._own = unique()

    def _attempt(self, job: Job) -> Attempt:
        return Attempt(version=job.version, number=self._token)

    def write(self, job: Job, *, alone: bool) -> Shard:
        """Hash and write one rank's shard; alone: this keeper does not hold all ranks.

        Raises `CommitError`.
        """
        shard = hashed(job)
        try:
            folder = open_attempt(self._disk, self._root, self._attempt(job))
            write_shard(self._disk, folder, shard, job.slot.image)
            if alone:
                self._describe(folder, job, shard)
        except OSError as error:
            raise CommitError(f"step {job.version.step}: {self._root}: {error}") from error
        return shard

    def _describe(self, folder: str, job: Job, shard: Shard) -> None:
        content = encode_manifest(Manifest(version=job.version, shards=(shard,)))
        name = _description(shard.table.rank)
        handle = self._disk.create(f"{folder}/{name}.new", direct=False)
        try:
            self._disk.write(handle, content)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.rename(f"{folder}/{name}.new", f"{folder}/{name}")

    def commit(self, job: Job, shards: Mapping[int, Shard]) -> None:
        """Commit the step of `job` and delete what retention gives up.

        Raises `CommitError`.
        """
        world = job.held.arena.table.world
        if len(shards) == world:
            self._commit(job, shards)
        elif 0 in shards:
            self._commit(job, self._gather(job, world))
        else:
            self._await(job)

    def _commit(self, job: Job, shards: Mapping[int, Shard]) -> None:
        commit(self._disk, self._root, self._attempt(job), shards.values(), self._own)
        with contextlib.suppress(OSError):  # an old step that stays costs room, not safety
            found = steps(self._disk, self._root)
            older = [step for step in found if step <= job.version.step]
            delete_steps(self._disk, self._root, to_delete(older, self._retention))

    def _gather(self, job: Job, world: int) -> dict[int, Shard]:
        folder = f"{self._root}/{self._attempt(job).folder}"
        shards: dict[int, Shard] = {}
        deadline = time.monotonic() + _TOGETHER_S
        while len(shards) < world:
            for rank in set(range(world)) - shards.keys():
                with contextlib.suppress(OSError, ManifestError):
                    content = self._disk.read(f"{folder}/{_description(rank)}")
                    shards[rank] = decode_manifest(content).shards[0]
            if time.monotonic() > deadline:
                missing = sorted(set(range(world)) - shards.keys())
                raise CommitError(
                    f"step {job.version.step}: no shard of ranks {missing} in {_TOGETHER_S:g} s"
                )
            time.sleep(_LOOK_S)
        for rank in shards:
            with contextlib.suppress(OSError):
                self._disk.unlink(f"{folder}/{_description(rank)}")
        return shards

    def _await(self, job: Job) -> None:
        final = f"{self._root}/step_{job.version.step}"
        deadline = time.monotonic() + _TOGETHER_S
        while True:
            found = read_manifest_or_none(self._disk, final)
            if found is not None and found.version == job.version:
                return
            if time.monotonic() > deadline:
                raise CommitError(f"{final}: rank 0 did not commit it in {_TOGETHER_S:g} s")
            time.sleep(_LOOK_S)

    def clear_up(self) -> None:
        """Delete what earlier worlds left half done; no attempt of this one is touched."""
        with contextlib.suppress(FileNotFoundError):
            sweep(self._disk, self._root, lambda attempt: attempt.number == self._token)


def _description(rank: int) -> str:
    return f".shard.{rank}.json"

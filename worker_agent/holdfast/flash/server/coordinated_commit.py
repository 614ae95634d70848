"""Commits coordinated by a job master: a step is committed only with the master's grant.

Belongs here: reports of written parts to the master, its grants, and its orders to flush memory to
storage. Everything runs on the service's own thread, except for work that is handed out. Messages
of the master come by `Service.post`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.coordinated_restore import CoordinatedRestore, Coordinator
from holdfast.flash.server.protocol import Durable, TrainerHello
from holdfast.flash.server.service import ServerState
from holdfast.flash.storage import owners
from holdfast.flash.storage.commit import CommitError
from holdfast.flash.storage.manifest import Shard, read_manifest_or_none
from holdfast.flash.storage.writer import SlotWork
from holdfast_wire import messages as wire

log: Final = logging.getLogger(__name__)

_MOST_HELD: Final = 8
_KEPT_ENDS: Final = 8
"""Outcomes repeated to a new master: as many as a master has under way at once, and one."""
_GRANTED: Final = wire.Tier.STORAGE
"""Tier of parts, grants and flushes: their messages name none."""


class CoordinatedCommit:
    """The commit policy of one node of a job; see `service.CommitPolicy`."""

    def __init__(self, node: ServerState, coordinator: Coordinator) -> None:
        self._node, self._arenas, self._coordinator = node, node.arenas, coordinator
        self._held: tuple[int, frozenset[Version]] = (0, frozenset())
        """Round, and its ranks' versions in memory here, as last reported to the master."""
        self._unannounced: dict[Version, wire.ShardsPersisted] = {}
        self._begun_in: set[tuple[str, str]] = set()
        """(directory, name) of all attempts that parts were written to, or may have been."""
        shared = node.tiers[_GRANTED].shared
        assert shared is not None, "all nodes write to storage"  # noqa: S101
        self._shared = shared
        self._flushing: set[tuple[Version, str]] = set()
        """Versions that are being written for a flush, with the name of their attempt."""
        self._granted: set[tuple[str, str]] = set()
        """(directory, own name) of all grants so far."""
        self._ended: list[wire.CommitResult] = []
        """Their newest outcomes, which are repeated to a new master."""
        self.restore = CoordinatedRestore(node, coordinator, self._write_beside)

    def token(self, hello: TrainerHello) -> str:
        """Return the name of a world's attempts, the same on all of its nodes."""
        token = self._coordinator.attempt(hello.lineage)
        self._begun_in.add((hello.root, token))
        return token

    def owner(self, _: TrainerHello) -> str:
        """Return the uid of the job."""
        return self._coordinator.job

    # --- memory ---------------------------------------------------------------------------------

    def turn_ended(self) -> None:
        """Report the versions in memory to the master, including a dead rank's last save."""
        arenas = self._arenas
        if not arenas.here or len(arenas.here) < arenas.kept:
            return
        if arenas.lineage != self._node.begun:
            return  # a restore may have to fall back to what is there
        now = (arenas.lineage, arenas.held.saved_by(arenas.here, arenas.world))
        if now != self._held:
            self._held = now
            self._tell_held()

    def _tell_held(self) -> None:
        number, versions = self._held
        held = wire.MemoryCheckpoints(
            versions=tuple(sorted(versions, reverse=True)[:_MOST_HELD]),
            whole=self._arenas.held.is_whole(versions),
            memory_only=not self._shared.root,
        )
        self._coordinator.send(held, number)

    def release(self, message: wire.ReleaseCheckpoints) -> None:
        """Note the versions that the master allows to drop."""
        complete = message.complete
        self._arenas.note_complete(complete, frozenset(message.passed_over))
        if complete is not None and complete.lineage >= self._node.begun:
            self.restore.give_up()  # all ranks have saved since: the lent parts are not needed

    # --- storage --------------------------------------------------------------------------------

    def parts_ready(self, job: SlotWork, parts: Mapping[int, Shard]) -> None:
        """Report to the master that the parts of all ranks here are on storage."""
        if self._node.commits_alone(job.tier):
            self._node.commit(job, parts)
            return
        shared, world = self._shared, job.held.arena.table.world
        self._tell(_shards(job.version, shared.root, shared.attempt, world, parts))

    def failed(self, name: wire.Tier, version: Version, error: str) -> None:
        """Report a failure to the master, so that other nodes' ranks do not wait for the step."""
        if self._node.commits_alone(name):
            return
        attempt = self._shared.attempt or self._coordinator.attempt(version.lineage)
        self._unannounced.pop(version, None)
        self._tell(_shards(version, self._shared.root, attempt, self._arenas.world, {}, error))

    def _tell(self, shards: wire.ShardsPersisted) -> None:
        assert shards.version is not None, "all of this module have one"  # noqa: S101
        if not shards.error:
            self._unannounced[shards.version] = shards
        self._coordinator.send(shards)

    def flush_to_storage(self, message: wire.FlushToStorage) -> None:
        """Write a version in memory here to storage, even of dead ranks; report the outcome."""
        if message.version is None:
            return
        version, attempt, node = message.version, message.attempt, self._node
        known, shared, key = self._unannounced.get(version), self._shared, (_GRANTED, version)
        if known is not None and known.attempt == attempt:
            self._coordinator.send(known)
            return
        on_its_way = node.writing[key] + len(node.parts.get(key, ()))
        if shared.root and shared.attempt == attempt and on_its_way >= self._arenas.kept:
            return  # its ranks asked for it: the report comes when it is written
        self._flush(version, shared.root, attempt)

    def _write_beside(self, version: Version) -> None:
        """Write a version to storage while the world starts from it: storage lacks it."""
        if self._shared.root and self._arenas.held.places(version):
            self._flush(version, self._shared.root, self._shared.attempt)

    def _flush(self, version: Version, root: str, attempt: str) -> None:
        """Begin to write a version; a request for one that is being written changes nothing.

        root: Directory of this node's checkpoints; empty: its ranks named none.
        attempt: Name of the parts' directory; the same on all nodes.
        """
        self._begun_in.add((root, attempt))
        key = (version, attempt)
        if key in self._flushing:
            return
        if problem := self._problem(version, root):
            self._tell(_shards(version, root, attempt, self._arenas.world, {}, problem))
            return
        ranks = [held.rank for held, _ in self._arenas.held.places(version)]
        found = [self._arenas.saved(rank, version, _GRANTED) for rank in ranks]
        jobs = [job for job in found if job is not None]
        self._flushing.add(key)

        def write() -> dict[int, Shard]:
            parts = dict[int, Shard]()
            for job in jobs:
                part = self._shared.write_attempt(job, root, attempt, self._coordinator.job)
                parts[job.held.rank] = part
            return parts

        def flushed(parts: dict[int, Shard] | None, error: str) -> None:
            self._flushing.remove(key)
            for job in jobs:
                self._arenas.done(job)
            world = jobs[0].held.arena.table.world
            self._tell(_shards(version, root, attempt, world, parts or {}, error))

        self._node.worker.hand_out(f"writing step {version.step}", write, flushed, CommitError)

    def _problem(self, version: Version, root: str) -> str:
        """Return the reason why this node cannot write a version; empty: it can."""
        if not root:
            return "its ranks named no directory for checkpoints"
        arenas, tables = self._arenas, self._arenas.held.tables(version)
        same = {table.world for table in tables} == {arenas.world}  # else of another world's ranks
        if not tables or (same and len(tables) < arenas.kept):
            return (
                f"step {version.step} of round {version.lineage} is in the memory of "
                f"{len(tables)} of its {arenas.kept} ranks"
            )
        return ""

    def grant(self, grant: wire.CommitGrant) -> None:
        """Commit a step that the master has granted to this node, of whatever world; once."""
        if grant.version is None or (grant.root, grant.own) in self._granted:
            return  # under way, or done: `restate` repeats the outcome
        self._granted.add((grant.root, grant.own))
        work = self._shared.commit_granted(grant, grant.version, self._coordinator.job)
        what, ended = f"committing step {grant.version.step}", partial(self._carried_out, grant)
        self._node.worker.hand_out(what, work, ended, CommitError)

    def _carried_out(self, grant: wire.CommitGrant, _: None, error: str) -> None:
        ended = wire.CommitResult(version=grant.version, own=grant.own, error=error)
        self._ended = [*self._ended[-_KEPT_ENDS:], ended]
        self._coordinator.send(ended)

    def announce(self, message: wire.CommitAnnounced) -> None:
        """Note that a step is committed, or will not be, as the master says."""
        if message.version is None:
            return
        version = message.version
        known = self._unannounced.pop(version, None)
        if message.error:
            self._node.tell_failed(_GRANTED, version, message.error)
            if known is not None and 0 in self._arenas.held.ranks:
                self._discard(version, known)
        else:
            self._node.tell(version, Durable(step=version.step))

    def _discard(self, version: Version, shards: wire.ShardsPersisted) -> None:
        """Delete the parts of a step that nobody commits: otherwise each would stay until the end.

        Called on the node of rank 0 only.
        """
        what = f"deleting the parts of step {version.step}"

        def deleted(_: None, error: str) -> None:
            if error:
                log.warning("%s: %s", what, error)

        disk, root, attempt = self._shared.disk, shards.root, shards.attempt
        work = partial(owners.discard_attempt, disk, root, attempt, version)
        self._node.worker.hand_out(what, work, deleted, OSError)

    def leave_nothing(self) -> None:
        """Delete this node's attempts that no node commits any more; raises OSError."""
        first = 0 in self._arenas.held.ranks
        for root in {root for root, _ in self._begun_in | self._granted if root}:
            begun = frozenset(name for where, name in self._begun_in if where == root)
            own = frozenset(name for where, name in self._granted if where == root)
            owners.leave_nothing(self._shared.disk, root, begun, own, first=first)

    # --- another master -------------------------------------------------------------------------

    def restate(self) -> None:
        """Repeat to a new master all that it has to know."""
        for ended in self._ended:
            self._coordinator.send(ended)
        for version, shards in list(self._unannounced.items()):
            found = read_manifest_or_none(self._shared.disk, f"{shards.root}/step_{version.step}")
            if found is not None and found.version == version:
                # The report may be lost with the old master.
                self.announce(wire.CommitAnnounced(version=shards.version))
            else:
                self._coordinator.send(shards)
        self.restore.restate()
        if self._held[0]:
            self._tell_held()


def _shards(
    version: Version,
    root: str,
    attempt: str,
    world: int,
    parts: Mapping[int, Shard],
    error: str = "",
) -> wire.ShardsPersisted:
    """Return the report of a node's parts: all of them, or none and an error."""
    return wire.ShardsPersisted(
        version=version,
        world_size=world,
        ranks=tuple(sorted(parts)),
        root=root,
        attempt=attempt,
        bytes=sum(part.bytes for part in parts.values()),
        error=error,
    )

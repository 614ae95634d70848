"""Commits and restores without a job master: the service decides by its own knowledge."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import Fetch, LinkError, Member, RestoreStart, TrainerHello
from holdfast.flash.server.service import ServerState, Service
from holdfast.flash.server.tiers import CheckpointTier
from holdfast.flash.server.worker_thread import failure_of
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import FormatError, Shard
from holdfast.flash.storage.writer import SlotWork
from holdfast_wire.messages import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The start of a world, the same for all of its ranks."""

    version: Version | None = None
    """None: there is nothing to start from."""
    tier: Tier = Tier.UNSPECIFIED
    """Tier that it is read from."""
    notes: tuple[str, ...] = ()
    """Versions that were passed over, with reasons."""


def choose_origin(tiers: Mapping[Tier, CheckpointTier], asking: Sequence[TrainerHello]) -> Origin:
    """Return the newest version that verifies; of equal ones that of the nearest tier.

    Call it when no trainer of an older world lives, and no write is under way.
    """
    version, chosen, notes = None, Tier.UNSPECIFIED, list[str]()
    for name, tier in tiers.items():
        found, passed_over = tier.newest(asking, version)
        notes += passed_over
        if found is not None:
            version, chosen = found, name
    return Origin(version=version, tier=chosen, notes=tuple(notes))


log: Final = logging.getLogger(__name__)


class LocalCommit:
    """Commit policy without a master; see `service.CommitPolicy`."""

    def __init__(self, node: ServerState) -> None:
        self._node = node

    def token(self, hello: TrainerHello) -> str:
        """Return the name of this world's attempts, the same for all of its ranks.

        Another world has another name: its unfinished parts must not pass for this world's.
        """
        return hello.token or f"{self._node.arenas.token}r{hello.lineage}"

    def owner(self, hello: TrainerHello) -> str:
        """Return the name of this run of the script."""
        return hello.token or self._node.arenas.token

    def parts_ready(self, job: SlotWork, parts: Mapping[int, Shard]) -> None:
        """Commit the step."""
        self._node.commit(job, parts)

    def failed(self, name: Tier, version: Version, error: str) -> None:
        """Do nothing: no other node has to know."""

    def turn_ended(self) -> None:
        """Do nothing: no master wants to know the versions in memory."""

    def leave_nothing(self) -> None:
        """Do nothing: a half-written attempt stays for the script's next run, which removes it."""


class LocalRestore:
    """Restore policy without a master; see `service.RestorePolicy`."""

    is_busy = False

    def __init__(self, node: ServerState) -> None:
        self._node = node
        self._origin: tuple[int, Origin] | None = None
        """Start of the newest lineage, chosen once for all of its ranks."""

    def choose(self, lineage: int, asking: list[Member]) -> None:
        """Answer with the newest version that verifies, the same for all ranks of a lineage."""
        node = self._node
        if self._origin is None or self._origin[0] != lineage:
            try:
                self._origin = (lineage, self._choose(asking))
            except (OSError, FormatError) as error:
                node.refuse(asking, str(error))
                return
        origin = self._origin[1]
        if origin.version is None:
            node.start_from(asking, RestoreStart(notes=origin.notes))
            return
        tier = node.tiers[origin.tier]
        images = tier.images(origin.version)
        start = images.start(origin.version, origin.notes, durable=tier.durable)
        node.start_from(asking, start, images.descriptors)

    def _choose(self, asking: list[Member]) -> Origin:
        tiers = self._node.tiers
        origin = choose_origin(tiers, [member.hello for member in asking if member.hello])
        for name, tier in tiers.items():
            work = tier.resume(origin.version if name is origin.tier else None)
            if work and (error := failure_of("clearing up", work, OSError)):
                # It costs room, not safety: the directory may be read-only.
                log.warning("earlier worlds' parts stay: %s", error)
        return origin

    def fetch(self, member: Member, wanted: Fetch) -> None:
        """Refuse: there are no other nodes."""
        raise LinkError(f"{type(wanted).__name__} is not for a checkpoint server")


def local_service(
    arenas: ArenaStore, listener: socket.socket | None = None, disk: Disk | None = None
) -> Service:
    """Return a service without a master. listener: see `Service`."""
    node = ServerState(arenas, disk)
    return Service(node, LocalCommit(node), LocalRestore(node), listener)

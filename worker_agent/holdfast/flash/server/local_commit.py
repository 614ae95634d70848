"""Commits and restores without a job master: the service decides by its own knowledge."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Final

from holdfast.flash.memory.slots import Version
from holdfast.flash.server.arena_store import ArenaStore
from holdfast.flash.server.protocol import Fetch, LinkError, Member, RequestRefused, TrainerHello
from holdfast.flash.server.service import CommitPolicy, ServerState, Service
from holdfast.flash.server.worker_thread import failure_of
from holdfast.flash.storage.manifest import FormatError, Shard
from holdfast.flash.storage.writer import SlotWork
from holdfast_wire.messages import Tier

log: Final = logging.getLogger(__name__)


class LocalCommit(CommitPolicy):
    """Commit policy without a master.

    At the end a half-written attempt stays: the script's next run removes it.
    """

    def __init__(self, node: ServerState) -> None:
        self._node = node

    def token(self, hello: TrainerHello) -> str:
        """Return the token that the ranks brought, or one of this server and the lineage.

        Another world has another name: its unfinished parts must not pass for this world's.
        """
        return hello.token or f"{self._node.arenas.token}r{hello.lineage}"

    def owner(self, hello: TrainerHello) -> str:
        """Return the name of this run of the script."""
        return hello.token or self._node.arenas.token

    def parts_ready(self, job: SlotWork, parts: Mapping[int, Shard]) -> None:
        """Commit the step."""
        self._node.commit(job, parts)


class LocalRestore:
    """Restore policy without a master: of equal versions it takes that of the nearest tier."""

    is_busy = False

    def __init__(self, node: ServerState) -> None:
        self._node = node
        self._lineage = -1
        """Newest lineage that has a start; the start is chosen once for all of its ranks."""
        self._version: Version | None = None
        self._tier = Tier.UNSPECIFIED
        self._notes: list[str] = []

    def choose(self, lineage: int, asking: list[Member]) -> None:
        """Answer with the newest version that verifies, the same for all ranks of a lineage."""
        node = self._node
        try:
            if self._lineage != lineage:
                self._choose([member.hello for member in asking if member.hello])
                self._lineage = lineage
        except (OSError, FormatError) as error:
            node.answer(asking, RequestRefused(error=str(error)))
        else:
            node.start_from(asking, self._version, [self._tier], self._notes)

    def _choose(self, asking: list[TrainerHello]) -> None:
        version, chosen, notes = None, Tier.UNSPECIFIED, list[str]()
        for name, tier in self._node.tiers.items():
            found, passed_over = tier.newest(asking, version)
            notes += passed_over
            if found is not None:
                version, chosen = found, name
        for name, tier in self._node.tiers.items():
            work = tier.resume(version if name is chosen else None)
            if work and (error := failure_of("clearing up", work, OSError)):
                # It costs room, not safety: the directory may be read-only.
                log.warning("earlier worlds' parts stay: %s", error)
        self._version, self._tier, self._notes = version, chosen, notes

    def fetch(self, member: Member, wanted: Fetch) -> None:
        """Refuse: there are no other nodes."""
        raise LinkError(f"{type(wanted).__name__} is not for a checkpoint server")


def local_service(arenas: ArenaStore, listener: socket.socket | None = None) -> Service:
    """Return a service without a master. listener: see `Service`."""
    node = ServerState(arenas)
    return Service(node, LocalCommit(node), LocalRestore(node), listener)

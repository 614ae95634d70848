"""The shared directory of checkpoints: durable parts, who may commit them, what is committed.

Belongs here: what the storage itself does, and what must hold of it. Does not belong here: agents
(`keeper`), and the real files, whose own tests kill writers at every operation.
"""

from __future__ import annotations

import collections

from holdfast_wire import messages as wire
from simulation.oracle.invariants import require

Key = tuple[wire.CheckpointVersion, str]
"""A version and the name of the attempt that its parts lie under."""


class Storage:
    """Outlives every agent and master."""

    def __init__(self) -> None:
        self.parts: dict[Key, set[int]] = collections.defaultdict(set)
        """Ranks whose parts are durable."""
        self.sizes: dict[tuple[wire.CheckpointVersion, str], int] = {}
        """Ranks that each world saved a version with."""
        self.committed: set[wire.CheckpointVersion] = set()
        self._taken: dict[Key, str] = {}
        """The name that the newest coordinator has given to the attempt."""
        self._coordinators: dict[str, str] = {}
        """Such a name to the agent that was granted it."""
        self._contents: dict[tuple[int, str], str] = {}
        """Round and world to the world that saved what it started from in memory."""
        self._origins: dict[tuple[int, str], wire.CheckpointVersion | None] = {}

    def write(self, shard: wire.ShardsPersisted) -> None:
        """A node's parts of a version are durable."""
        if shard.version is not None:
            self.parts[shard.version, shard.attempt].update(shard.ranks)

    def take(self, order: wire.CommitGrant, agent_id: str) -> None:
        """An agent obeys a grant: whoever had one before finds nothing to commit any more."""
        key = _key(order)
        holder = self._coordinators.setdefault(order.own, agent_id)
        text = f"{order.own} was granted to {holder} and to {agent_id}"
        require(holder == agent_id, "one_coordinator", text)
        there = self.parts[key]
        text = f"{order.own} was granted with parts of ranks {sorted(there)} of {order.world_size}"
        require(len(there) == order.world_size, "granted_whole", text)
        self._taken[key] = order.own

    def commit(self, order: wire.CommitGrant) -> str:
        """Carry a grant out; why not, empty when it is committed."""
        key = _key(order)
        if key[0] in self.committed:
            return ""
        if self._taken[key] != order.own:
            return f"{self._taken[key]} has it"
        self.committed.add(key[0])
        return ""

    def announced(self, version: wire.CheckpointVersion) -> None:
        """An agent hears that a version will not be lost."""
        text = f"step {version.step} of lineage {version.lineage} was announced and is not there"
        require(version in self.committed, "announced_is_durable", text)

    def contents(self, number: int, world: str, saved_by: str) -> None:
        """A node's ranks start a round from what a world has saved to memory."""
        first = self._contents.setdefault((number, world), saved_by)
        text = f"nodes of round {number} start from what {first[:8]} and {saved_by[:8]} saved"
        require(first == saved_by, "one_origin", text)

    def started(self, number: int, world: str, origin: wire.RestorePlan) -> None:
        """A node's ranks start a round from this."""
        chosen = origin.version
        first = self._origins.setdefault((number, world), chosen)
        text = f"nodes of round {number} start from {first} and from {chosen}"
        require(first == chosen, "one_origin", text)
        if origin.version is not None and origin.tier is not wire.Tier.MEMORY:
            text = f"round {number} starts from {origin.version}, which is not committed"
            require(origin.version in self.committed, "origin_is_there", text)


def _key(order: wire.CommitGrant) -> Key:
    require(order.version is not None, "granted_whole", "a grant names no version")
    assert order.version is not None
    return order.version, order.attempt

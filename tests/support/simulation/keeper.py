"""Checkpoints of an agent's ranks: kept, written, committed when granted, started from.

The real one is a thread of the agent over real memory and files (`holdfast.flash.server.service`)
with tests of its own; this has its words with the master and its delays. The processes of a
simulated round do not wait for what they are to start from: only the words are compared.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from holdfast_wire import messages as wire
from holdfast_wire.tiers import offered
from simulation.local_round import LocalRound
from simulation.oracle.invariants import require
from simulation.storage import Key

if TYPE_CHECKING:
    from simulation.agent import Agent

EVERY = 20
"""Steps between two that go to memory."""
STORED = 3
"""Every how many of them go to storage too."""
ROOT = "/checkpoints"
MOST_HELD = 8
MOST_STORED = 16
FAILS = 0.03
"""Chance that a part cannot be written, or that a version turns out to be damaged."""
HANGS = 0.02
"""Chance that a disk answers so late that another agent is asked, or nobody waits any more; half of
them never do."""
COPIES = 0.5
"""Share of the jobs in which every node holds the whole state, as under DDP."""
LARGE = 0.2
"""Share of the jobs whose checkpoints take seconds to look through."""


class Keeper:
    """The checkpoints of one agent process: they end with it."""

    def __init__(self, agent: Agent, number: int) -> None:
        scenario = agent.job.scenario
        self.agent, self.storage = agent, agent.job.storage
        self.luck = random.Random(f"{scenario.seed}/keeper/{agent.rank}/{number}")
        self.pause = scenario.commits
        large = random.Random(f"{scenario.seed}/checks").random() < LARGE
        self.check_seconds = 3.0 if large else 0.3
        """Longest, of looking through what a round is to start from."""
        self.whole = random.Random(f"{scenario.seed}/copies").random() < COPIES
        """Any world could start from what this node alone has."""
        self.memory: dict[wire.CheckpointVersion, wire.WorldAssignment] = {}
        """With the place of the ranks that saved it."""
        self.told: tuple[wire.MemoryCheckpoints, int] | None = None
        """What was said last of it, and of which round."""
        self.unheard: dict[Key, wire.ShardsPersisted] = {}
        """What was written, until it is known what became of it."""
        self.looked = (0, 0)
        """(round, step) up to which everything was saved."""
        self.question: tuple[LocalRound, wire.RestoreRequest] | None = None
        if self.pause:
            agent.later(self.luck.uniform(0.0, self.pause), self._tick)

    # ------------------------------------------------------------------------------------- saving

    def _tick(self) -> None:
        current = self.agent.workers.current
        lives = current is not None and not (current.dead or current.killed)
        if lives and current is not None and current.physics is not None and current.slot.attached:
            self._save_new(current, self.agent.job.training.step(current.physics))
        self.agent.later(self.pause, self._tick)

    def _save_new(self, current: LocalRound, step: int) -> None:
        assert current.physics is not None
        number, before = self.looked
        before = before if number == current.number else current.physics.base
        for at in range((before // EVERY + 1) * EVERY, step + 1, EVERY):
            self._save(current, wire.CheckpointVersion(lineage=current.number, step=at))
        self.looked = (current.number, max(before, step))

    def _save(self, current: LocalRound, version: wire.CheckpointVersion) -> None:
        place = self.memory[version] = current.assignment
        self.storage.sizes[version, place.world_hash] = place.world_size
        self._say_held(current.number)
        if version.step // EVERY % STORED == 0:
            self._write(version, f"{place.world_hash}-{version.step}")

    def _say_held(self, number: int) -> None:
        self.told = (
            wire.MemoryCheckpoints(versions=tuple(self._newest()), whole=self.whole),
            number,
        )
        self.agent.report(*self.told)

    def _write(self, version: wire.CheckpointVersion, attempt: str) -> None:
        place = self.memory[version]
        shard = wire.ShardsPersisted(
            version=version,
            world_size=place.world_size,
            ranks=self._ranks(version),
            root=ROOT,
            attempt=attempt,
        )
        self.agent.later(self._delay(0.8), self._written, shard)

    def _ranks(self, version: wire.CheckpointVersion) -> tuple[int, ...]:
        """Those whose parts of a version lie here."""
        place = self.memory[version]
        return tuple(range(place.base_rank, place.base_rank + self.agent.local))

    def _parts(self) -> tuple[wire.HeldPart, ...]:
        return tuple(
            wire.HeldPart(
                version=one,
                world_size=self.memory[one].world_size,
                ranks=self._ranks(one),
                whole=self.whole,
                world=self.memory[one].world_hash,
            )
            for one in self._newest()
        )

    def _delay(self, most: float) -> float:
        """Seconds that a disk takes."""
        if self.luck.random() < HANGS:
            return self.luck.choice((self.luck.uniform(6.0, 40.0), 1e6))
        return self.luck.uniform(0.02, most) + self.agent.drag

    def _newest(self) -> list[wire.CheckpointVersion]:
        return sorted(self.memory, reverse=True)[:MOST_HELD]

    def _usable(self, place: wire.WorldAssignment) -> tuple[wire.CheckpointVersion, ...]:
        """Return the versions that the same ranks of a world of the same size have saved."""
        here = (place.world_size, place.base_rank)
        return tuple(
            one
            for one in self._newest()
            if (self.memory[one].world_size, self.memory[one].base_rank) == here
        )

    def _written(self, shard: wire.ShardsPersisted) -> None:
        if self.luck.random() < FAILS:
            shard = dataclasses.replace(shard, ranks=(), error="no space")
        else:
            self.storage.write(shard)
        assert shard.version is not None
        self.unheard[shard.version, shard.attempt] = shard
        self.agent.report(shard)

    # ------------------------------------------------------------------------------------ starting

    def ask(self, current: LocalRound) -> None:
        """The ranks of a round wait to be told what to start from."""
        if not self.pause:
            return
        stored = sorted(self.storage.committed, reverse=True)[:MOST_STORED]
        offers = (
            wire.TierVersions(tier=wire.Tier.MEMORY, versions=self._usable(current.assignment)),
            wire.TierVersions(tier=wire.Tier.STORAGE, versions=tuple(stored)),
        )
        asked = wire.RestoreRequest(offers=offers, parts=self._parts())
        self.question = (current, asked)
        self.agent.report(asked, current.number)

    def welcomed(self) -> None:
        """A master may not have heard what was said last."""
        for shard in list(self.unheard.values()):
            self.agent.report(shard)
        if self.told is not None:
            self.agent.report(*self.told)
        if self.question is not None:
            current, asked = self.question
            if not (current.dead or current.killed):
                self.agent.report(asked, current.number)

    def on_origin(self, origin: wire.RestorePlan, number: int) -> None:
        """Check the origin of a round or begin with it."""
        if self.question is None or self.question[0].number != number:
            return
        current, asked = self.question
        if not origin.go:
            error = "a bit is flipped" if self.luck.random() < FAILS else self._lacking(origin)
            answer = wire.RestorePlanVerified(plan_id=origin.plan_id, error=error)
            pause = self.luck.uniform(0.01, self.check_seconds)
            self.agent.later(pause, self.agent.report, answer, number)
            return
        self.storage.started(number, current.assignment.world_hash, origin)
        is_memory = origin.tier is wire.Tier.MEMORY
        if is_memory:
            self._has_all(asked, origin, number, current.assignment)
        self.question = (current, dataclasses.replace(asked, told=origin))
        start = origin.version if is_memory else None
        self.memory = {
            one: place for one, place in self.memory.items() if start is not None and one <= start
        }
        self._say_held(number)

    def _lacking(self, origin: wire.RestorePlan) -> str:
        """Return an error that names a source without the version; empty if all have it."""
        for source in origin.sources:
            peer = self.agent.job.peer(self.agent, source.node_rank)
            held = peer.keeper.memory if peer is not None else {}
            if origin.version not in held:
                return f"node {source.node_rank} does not answer"
        return ""

    def _has_all(
        self,
        asked: wire.RestoreRequest,
        origin: wire.RestorePlan,
        number: int,
        assignment: wire.WorldAssignment,
    ) -> None:
        """A world starts from memory where each node has, or reads, all that it needs."""
        assert origin.version is not None
        own = [part for part in asked.parts if part.version == origin.version]
        there = {rank for part in own for rank in part.ranks}
        there.update(rank for source in origin.sources for rank in source.ranks)
        worlds = {part.world for part in own} | self._lent_by(origin)
        text = f"{self.agent.agent_id} mixes what {len(worlds)} worlds have saved"
        require(len(worlds) <= 1, "one_origin", text)
        for world in worlds:
            self.storage.contents(number, assignment.world_hash, world)
            size = self.storage.sizes[origin.version, world]
            enough = any(part.whole for part in own) or (self.whole and bool(there))
            text = f"{self.agent.agent_id} is to start from {origin.version}, which it has not"
            fine = (
                origin.version in offered(asked, wire.Tier.MEMORY)
                or enough
                or there == set(range(size))
            )
            require(fine, "origin_is_there", text)

    def _lent_by(self, origin: wire.RestorePlan) -> set[str]:
        """Return the hashes of the worlds whose saves the living sources still hold."""
        peers = [self.agent.job.agents.get(source.node_rank) for source in origin.sources]
        held = [peer.keeper.memory for peer in peers if peer is not None]
        return {
            memory[origin.version].world_hash
            for memory in held
            if origin.version is not None and origin.version in memory
        }

    # -------------------------------------------------------------------------------------- orders

    def on_grant(self, order: wire.CommitGrant, _: int) -> None:
        """Commit a version: nobody does that without being told."""
        self.storage.take(order, self.agent.agent_id)
        self.agent.later(self._delay(1.0), self._commit, order)

    def _commit(self, order: wire.CommitGrant) -> None:
        error = self.storage.commit(order)
        answer = wire.CommitResult(version=order.version, own=order.own, error=error)
        self.agent.report(answer)

    def on_announced(self, message: wire.CommitAnnounced, _: int) -> None:
        """A version is committed, or will not be."""
        if not message.error and message.version is not None:
            self.storage.announced(message.version)
        self.unheard = {key: one for key, one in self.unheard.items() if key[0] != message.version}

    def on_release(self, order: wire.ReleaseCheckpoints, _: int) -> None:
        """Forget the versions that need not be kept in memory any more."""
        for one in list(self.memory):
            old = order.complete is not None and one < order.complete
            if old or one in order.passed_over:
                del self.memory[one]

    def on_save_held(self, order: wire.FlushToStorage, _: int) -> None:
        """Write the version from memory, whoever of its ranks lives, or report its lack."""
        assert order.version is not None
        known = self.unheard.get((order.version, order.attempt))
        if known is not None:
            self.agent.report(known)
        elif order.version in self.memory:
            self._write(order.version, order.attempt)
        else:
            error = "it is not in memory"
            shard = wire.ShardsPersisted(version=order.version, attempt=order.attempt, error=error)
            self.agent.report(shard)

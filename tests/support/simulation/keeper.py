"""What an agent does with its ranks' checkpoints: keep, write, commit when granted, start a round.

The real one is a thread of the agent over real memory and files (`holdfast.flash.led`) with tests
of its own; this has its words with the master and its delays. The processes of a simulated round do
not wait for what they are to start from: only the words are compared.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from holdfast_wire.messages import (
    CheckpointHeld,
    CheckpointShard,
    CheckpointVersion,
    CommitStep,
    Origin,
    OriginChecked,
    ReleaseBefore,
    RestoreAsked,
    StepAnnounced,
    StepCommitted,
)
from simulation.invariants import require
from simulation.local_round import LocalRound
from simulation.storage import Key

if TYPE_CHECKING:
    from simulation.agent import Agent

EVERY = 20
"""Steps between two that go to memory and to storage."""
ROOT = "/checkpoints"
MOST_HELD = 8
MOST_STORED = 16
FAILS = 0.03
"""Chance that a part cannot be written, or that a version turns out to be damaged."""
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
        self.memory: set[CheckpointVersion] = set()
        self.unheard: dict[Key, CheckpointShard] = {}
        """What was written, until it is known what became of it."""
        self.looked = (0, 0)
        """(round, step) up to which everything was saved."""
        self.question: tuple[LocalRound, RestoreAsked] | None = None
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
            self._save(current, CheckpointVersion(lineage=current.number, step=at))
        self.looked = (current.number, max(before, step))

    def _save(self, current: LocalRound, version: CheckpointVersion) -> None:
        self.memory.add(version)
        held = CheckpointHeld(versions=tuple(self._newest()))
        self.agent.report(held, current.number)
        place = current.assignment
        shard = CheckpointShard(
            version=version,
            world_size=place.world_size,
            ranks=tuple(range(place.base_rank, place.base_rank + self.agent.local)),
            root=ROOT,
            attempt=f"{place.world_hash}-{version.step}",
        )
        self.agent.later(self.luck.uniform(0.02, 0.8) + self.agent.drag, self._written, shard)

    def _newest(self) -> list[CheckpointVersion]:
        return sorted(self.memory, reverse=True)[:MOST_HELD]

    def _written(self, shard: CheckpointShard) -> None:
        if self.luck.random() < FAILS:
            shard = dataclasses.replace(shard, error="no space")
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
        asked = RestoreAsked(memory=tuple(self._newest()), stored=tuple(stored))
        self.question = (current, asked)
        self.agent.report(asked, current.number)

    def welcomed(self) -> None:
        """A master may not have heard what was said last."""
        for shard in list(self.unheard.values()):
            self.agent.report(shard)
        if self.question is not None:
            current, asked = self.question
            if not (current.dead or current.killed):
                self.agent.report(asked, current.number)

    def on_origin(self, origin: Origin, number: int) -> None:
        """What a round starts from: to be checked, or to be begun with."""
        if self.question is None or self.question[0].number != number:
            return
        current, asked = self.question
        if not origin.go:
            error = "a bit is flipped" if self.luck.random() < FAILS else ""
            answer = OriginChecked(origin_id=origin.origin_id, error=error)
            pause = self.luck.uniform(0.01, self.check_seconds)
            self.agent.later(pause, self.agent.report, answer, number)
            return
        self.storage.started(number, current.assignment.world_hash, origin)
        if origin.memory:
            text = f"{self.agent.agent_id} is to start from {origin.version}, which it has not"
            require(origin.version in asked.memory, "origin_is_there", text)
        self.question = (current, dataclasses.replace(asked, told=origin))

    # -------------------------------------------------------------------------------------- orders

    def on_grant(self, order: CommitStep, _: int) -> None:
        """Commit a version: nobody does that without being told."""
        self.storage.take(order, self.agent.agent_id)
        self.agent.later(self.luck.uniform(0.02, 1.0) + self.agent.drag, self._commit, order)

    def _commit(self, order: CommitStep) -> None:
        error = self.storage.commit(order)
        answer = StepCommitted(version=order.version, own=order.own, error=error)
        self.agent.report(answer)

    def on_announced(self, message: StepAnnounced, _: int) -> None:
        """A version is committed, or will not be."""
        if not message.error and message.version is not None:
            self.storage.announced(message.version)
        self.unheard = {key: one for key, one in self.unheard.items() if key[0] != message.version}

    def on_release(self, order: ReleaseBefore, _: int) -> None:
        """What need not be kept in memory any more."""
        self.memory -= set(order.passed_over)
        if order.complete is not None:
            self.memory = {one for one in self.memory if one >= order.complete}

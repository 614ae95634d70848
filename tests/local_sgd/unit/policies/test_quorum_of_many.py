"""Ten thousand replicas without a barrier, in virtual time: dead, slow and ordinary ones."""

from __future__ import annotations

import heapq
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies import quorum
from holdfast.local_sgd.policies.quorum import Decision, Lags

REPLICAS = 10_000
ROUNDS = 12
SETTINGS = LocalSGDConfig(quorum=0.8, grace_min_seconds=0.5, grace_max_seconds=20.0)
SEED = int(os.environ.get("QUORUM_SEED", random.randrange(2**32)))


@dataclass(slots=True)
class Replica:
    """One replica: how fast it is, and what its next delta consists of."""

    seconds: float
    """Of the work of one round."""
    round: int = 0
    """Anchor that it works from."""
    parts: dict[int, float] = field(default_factory=dict)
    """Pieces of work in its delta, and their factor. A piece is the work between two arrivals."""
    tokens: float = 0.0


@dataclass(slots=True)
class World:
    """The rounds, driven as `quorum.close` asks for."""

    chance: random.Random
    replicas: dict[int, Replica] = field(default_factory=dict)
    """The live ones."""
    arrived: dict[int, float] = field(default_factory=dict)
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    round: int = 0
    lags: Lags = field(default_factory=Lags)
    pieces: int = 0
    made: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each piece: its replica, and the round whose anchor it left."""
    counted: Counter[int] = field(default_factory=Counter)
    """Times that a piece went into an anchor."""
    factors: dict[int, set[float]] = field(default_factory=lambda: defaultdict(set))
    """Factors of the pieces that went into an anchor, by the rounds that they had missed."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """Of each round: seconds from its quorum to its end, and its window."""
    quorums: list[float] = field(default_factory=list)
    after_quorum: list[list[float]] = field(default_factory=list)
    """Of each round: seconds from its quorum to each arrival."""
    in_rounds: list[int] = field(default_factory=list)
    late: int = 0

    def push(self, at: float, kind: str, replica: int) -> None:
        """Plan an event; ties are in the order of planning."""
        self.pieces += 1
        heapq.heappush(self.events, (at, self.pieces, kind, replica))

    def work(self, now: float, replica: int) -> None:
        """Let a replica work until its next arrival."""
        one = self.replicas[replica]
        self.push(now + one.seconds * self.chance.uniform(0.9, 1.2), "arrival", replica)
        piece = self.pieces
        self.made[piece] = (replica, self.round)
        one.parts[piece] = 1.0
        one.tokens += 1000.0

    def arrive(self, now: float, replica: int) -> None:
        """Enter the open round, or, late, carry the delta on and work on."""
        one = self.replicas[replica]
        missed = self.round - one.round
        if not missed:
            self.arrived[replica] = now
            return
        self.late += 1
        self.after_quorum[one.round].append(now - self.quorums[one.round])
        carried = quorum.carry(one.tokens, missed, SETTINGS)
        one.parts = {piece: factor * carried.factor for piece, factor in one.parts.items()}
        one.tokens, one.round = carried.steps, self.round
        self.work(now, replica)

    def end(self, now: float, decision: Decision) -> None:
        """Put the deltas of a round into the anchor, once each, and let everybody work on."""
        assert decision.quorum_at is not None
        self.waits.append((now - decision.quorum_at, quorum.window(self.lags, SETTINGS)))
        self.quorums.append(decision.quorum_at)
        self.after_quorum.append(
            [self.arrived[one] - decision.quorum_at for one in decision.replicas]
        )
        if self.round:
            self.lags = quorum.learn(self.lags, self.after_quorum[self.round - 1], SETTINGS)
        self.in_rounds.append(len(decision.replicas))
        for at in decision.replicas:
            one = self.replicas[at]
            self.counted.update(one.parts.keys())
            for piece, factor in one.parts.items():
                self.factors[self.round - self.made[piece][1]].add(factor)
            one.parts, one.tokens, one.round = {}, 0.0, self.round + 1
        self.round += 1
        members, self.arrived = decision.replicas, {}
        for at in members:
            self.work(now, at)

    def ask(self, now: float) -> None:
        """Decide, and plan the next question."""
        decision = quorum.close(now, self.arrived, self.replicas.keys(), self.lags, SETTINGS)
        if decision.closes:
            self.end(now, decision)
        elif decision.wait_until is not None:
            self.push(decision.wait_until, "window", self.round)

    def run(self) -> None:
        """Run the rounds."""
        asked = -1
        while self.round < ROUNDS:
            now, _, kind, replica = heapq.heappop(self.events)
            if kind == "arrival" and replica in self.replicas:
                self.arrive(now, replica)
            elif kind == "death":
                self.replicas.pop(replica, None)
                self.arrived.pop(replica, None)
            elif kind == "window" and replica != self.round:
                continue
            least = quorum.needed(len(self.replicas), SETTINGS)
            quorum_is_new = len(self.arrived) >= least and asked != self.round
            all_there = len(self.arrived) == len(self.replicas)
            if quorum_is_new or all_there or kind != "arrival":
                asked = self.round if len(self.arrived) >= least else asked
                self.ask(now)


@pytest.fixture(scope="module")
def world() -> World:
    """Return a world that has run: 3 % slow by 3 to 30 times, 2 % die, all uneven."""
    made = World(random.Random(SEED))
    for at in range(REPLICAS):
        slow = made.chance.uniform(3, 30) if made.chance.random() < 0.03 else 1.0
        made.replicas[at] = Replica(10.0 * made.chance.uniform(0.9, 1.1) * slow)
        made.work(0.0, at)
    for at in made.chance.sample(range(REPLICAS), REPLICAS // 50):
        made.push(made.chance.uniform(0, 10.0 * ROUNDS), "death", at)
    made.run()
    return made


def test_no_round_waits_longer_than_its_window(world: World) -> None:
    """Neither slow nor dead replicas hold it up."""
    assert len(world.waits) == ROUNDS
    for at, (waited, length) in enumerate(world.waits):
        assert waited <= length + 1e-9, f"round {at}, seed {SEED}"
        assert SETTINGS.grace_min_seconds <= length <= SETTINGS.grace_max_seconds


def test_the_window_becomes_as_short_as_the_ordinary_lags(world: World) -> None:
    """The first round waits for the upper bound, later ones for the lags of ordinary replicas."""
    assert world.waits[0][1] == SETTINGS.grace_max_seconds
    assert world.waits[-1][1] < SETTINGS.grace_max_seconds / 3, f"seed {SEED}"


def test_a_round_has_its_quorum(world: World) -> None:
    """And all but the slow and the dead are in it."""
    assert min(world.in_rounds) >= 0.8 * len(world.replicas), f"seed {SEED}"
    assert world.late > 0


def test_no_delta_is_counted_twice(world: World) -> None:
    """A piece of work goes into one anchor, in its own round or carried into a later one."""
    assert max(world.counted.values()) == 1, f"seed {SEED}"


def test_no_delta_is_lost_while_its_replica_lives(world: World) -> None:
    """Each piece of a live replica is in an anchor, or in the delta that it holds now."""
    held = Counter(piece for one in world.replicas.values() for piece in one.parts)
    for piece, (replica, _) in world.made.items():
        if replica in world.replicas:
            assert world.counted[piece] + held[piece] == 1, f"piece {piece}, seed {SEED}"


def test_a_late_delta_has_half_its_weight_for_each_round_that_it_missed(world: World) -> None:
    """Also where it was late more than once on its way."""
    assert {0, 1} <= world.factors.keys(), f"seed {SEED}"
    assert dict(world.factors) == {missed: {0.5**missed} for missed in world.factors}

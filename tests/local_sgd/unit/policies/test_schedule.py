"""Schedule of rounds by steps (EDiT) and by time (A-EDiT), in virtual time."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies import schedule
from holdfast.local_sgd.policies.schedule import Boundary, Entry, ReplicaProgress, Turn


def edit(warmup: int, interval: int) -> LocalSGDConfig:
    """Return settings of EDiT."""
    return LocalSGDConfig(
        local_sgd_warmup_steps=warmup,
        local_sgd_sync_interval=interval,
    )


def boundaries(settings: LocalSGDConfig, last: int, wanted: Boundary) -> list[int]:
    """Return the steps up to `last` with this boundary."""
    return [at for at in range(last + 1) if schedule.boundary(at, settings) is wanted]


@pytest.mark.parametrize(
    ("warmup", "interval", "anchors", "rounds"),
    [
        (0, 1, [0], list(range(1, 21))),
        (0, 8, [0], [8, 16]),
        (10, 4, [10], [14, 18]),
        (4, 10, [4], [14]),
        (30, 4, [], []),
    ],
)
def test_the_first_sync_is_at_w_and_a_round_after_each_h(
    warmup: int, interval: int, anchors: list[int], rounds: list[int]
) -> None:
    """At W there is nothing to exchange, so the anchors are taken; rounds follow."""
    settings = edit(warmup, interval)
    assert boundaries(settings, 20, Boundary.ANCHORS) == anchors
    assert boundaries(settings, 20, Boundary.ROUND) == rounds


def test_atorch_bug_3_without_a_warm_up_the_anchors_are_those_before_the_first_step() -> None:
    """ATorch clones them after it, when the replicas have parted."""
    assert schedule.boundary(0, edit(0, 8)) is Boundary.ANCHORS
    assert not schedule.is_warm_up(0, edit(0, 8))


def test_atorch_bug_4_anchors_are_those_of_the_end_of_the_warm_up() -> None:
    """ATorch freezes them at step 1, and its first round replays the warm-up."""
    assert boundaries(edit(100, 10), 200, Boundary.ANCHORS) == [100]


@pytest.mark.parametrize(("warmup", "interval"), [(256, 32), (10, 32), (32, 32), (0, 32)])
def test_atorch_bug_8_each_step_reduces_gradients_or_is_followed_by_a_round(
    warmup: int, interval: int
) -> None:
    """ATorch compares the warm-up with the interval: 32/256 has neither in steps 32 to 255."""
    settings = edit(warmup, interval)
    last = warmup + 3 * interval
    reduces = [schedule.is_warm_up(at, settings) for at in range(last)]
    assert reduces == [True] * warmup + [False] * 3 * interval
    rounds = boundaries(settings, last, Boundary.ROUND)
    assert rounds == [warmup + interval, warmup + 2 * interval, last]


TIMED = LocalSGDConfig(use_async=True, local_sgd_sync_time=10.0, min_total_global_steps=20)


def test_with_a_edit_no_number_of_steps_ends_a_round() -> None:
    """Anchors come at W all the same."""
    assert boundaries(TIMED, 300, Boundary.ROUND) == []
    assert boundaries(TIMED, 300, Boundary.ANCHORS) == [0]


def test_the_time_is_up_at_tau() -> None:
    """Neither before it nor without a monotonic clock."""
    turn = Turn(round=3, started=100.0)
    assert not schedule.is_triggering(turn, 109.999, TIMED)
    assert schedule.is_triggering(turn, 110.0, TIMED)
    with pytest.raises(ValueError, match=r"time\.monotonic"):
        schedule.is_triggering(turn, 99.0, TIMED)


def test_atorch_bug_5_a_short_time_is_seen_on_a_large_clock() -> None:
    """ATorch's float32 has steps of 128 s at today's epoch."""
    short = replace(TIMED, local_sgd_sync_time=0.01)
    turn = Turn(round=0, started=1.8e9)
    assert not schedule.is_triggering(turn, 1.8e9 + 0.009, short)
    assert schedule.is_triggering(turn, 1.8e9 + 0.011, short)


def test_too_few_steps_leave_the_round_out_and_start_the_time_again() -> None:
    """Steps stay counted; the next attempt has a key of its own."""
    turn = schedule.stepped(Turn(round=2, started=0.0, steps=6))
    entered = schedule.enter([ReplicaProgress(7), ReplicaProgress(12)], TIMED)
    assert entered.entry is Entry.SKIP
    assert entered.reason == "19 steps of all replicas since the last round, 20 are the least"
    skipped = schedule.after(turn, entered.entry, 10.5)
    assert skipped == Turn(round=2, attempt=1, started=10.5, steps=7)
    assert skipped.key != turn.key


def test_enough_steps_make_the_round() -> None:
    """Then counts start at 0."""
    turn = Turn(round=2, attempt=3, started=0.0, steps=8)
    assert schedule.enter([ReplicaProgress(8), ReplicaProgress(12)], TIMED).entry is Entry.ROUND
    assert schedule.after(turn, Entry.ROUND, 11.0) == Turn(round=3, started=11.0)


def test_the_last_round_is_made_however_few_the_steps_are() -> None:
    """When all data are used up nobody waits for τ, and no delta is lost."""
    turn = Turn(round=2, started=0.0, steps=1, exhausted=True)
    assert schedule.is_triggering(turn, 0.1, TIMED, all_exhausted=True)
    done = ReplicaProgress(1, exhausted=True)
    assert schedule.enter([done, done], TIMED).entry is Entry.LAST
    assert schedule.enter([done, ReplicaProgress(30)], TIMED).entry is Entry.ROUND


@dataclass
class Replica:
    """A replica of the simulation."""

    step_seconds: float
    data: int
    turn: Turn
    waits: list[float] = field(default_factory=list)
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    """Round, attempt, steps, of each entry."""

    def step(self) -> None:
        """Take one step, if there is data, and see if it was the last."""
        if self.data > 0:
            self.data -= 1
            self.turn = schedule.stepped(self.turn)
        self.turn = replace(self.turn, exhausted=self.data == 0)


def simulate(replicas: list[Replica], settings: LocalSGDConfig) -> None:
    """Run until the last round, with one store, in virtual time."""
    keys: set[str] = set()
    waiting: dict[int, float] = {}
    queue = [(one.step_seconds, at) for at, one in enumerate(replicas)]
    heapq.heapify(queue)
    while True:
        now, at = heapq.heappop(queue)
        one = replicas[at]
        one.step()
        all_exhausted = all(other.data == 0 for other in replicas)
        if schedule.is_triggering(one.turn, now, settings, all_exhausted=all_exhausted):
            keys.add(one.turn.key)
        if one.turn.key not in keys:
            heapq.heappush(queue, (now + one.step_seconds, at))
            continue
        waiting[at] = now
        if len(waiting) < len(replicas):
            continue
        told = [ReplicaProgress(other.turn.steps, other.turn.exhausted) for other in replicas]
        entry = schedule.enter(told, settings).entry
        for number, other in enumerate(replicas):
            other.waits.append(now - waiting[number])
            other.rounds.append((other.turn.round, other.turn.attempt, other.turn.steps))
            other.turn = schedule.after(other.turn, entry, now)
        if entry is Entry.LAST:
            return
        waiting.clear()
        queue = [(now + other.step_seconds, number) for number, other in enumerate(replicas)]
        heapq.heapify(queue)


@pytest.mark.parametrize("seed", range(20))
def test_all_replicas_enter_the_same_rounds_and_wait_for_one_step_at_most(seed: int) -> None:
    """Fast replicas make more steps; uneven data end in one last round; no step is lost."""
    chance = random.Random(seed)
    data = [chance.randrange(200, 2000) for _ in range(chance.randrange(1, 8))]
    replicas = [Replica(chance.uniform(0.05, 2.0), one, Turn(round=0, started=0.0)) for one in data]
    simulate(replicas, TIMED)
    entries = [[entry[:2] for entry in one.rounds] for one in replicas]
    assert all(one == entries[0] for one in entries), f"seed {seed}"
    slowest = max(one.step_seconds for one in replicas)
    assert max(wait for one in replicas for wait in one.waits) <= slowest + 1e-9, f"seed {seed}"
    for one, had in zip(replicas, data, strict=True):
        made = [
            steps
            for (number, _, steps), after in zip(
                one.rounds, [*one.rounds[1:], (-1, 0, 0)], strict=True
            )
            if after[0] != number
        ]
        assert sum(made) == had, f"seed {seed}"


def test_an_exhausted_replica_joins_with_no_steps_until_the_end() -> None:
    """It weighs nothing then, and the others are not held up."""
    replicas = [Replica(1.0, count, Turn(round=0, started=0.0)) for count in (5, 100)]
    simulate(replicas, replace(TIMED, min_total_global_steps=1))
    assert [steps for _, _, steps in replicas[0].rounds] == [5] + [0] * 9
    assert [steps for _, _, steps in replicas[1].rounds] == [10] * 10

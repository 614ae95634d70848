"""Meetings in a real store, by many threads at once: none is decided twice."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import torch.distributed as dist

from holdfast.local_sgd import quorum_turns
from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.schedule import Entry
from holdfast.local_sgd.quorum_turns import Met, QuorumTurns
from holdfast.local_sgd.sync.group import Group

REPLICAS = 5
CONFIG = LocalSGDConfig(
    use_async=True,
    local_sgd_sync_time=0.004,
    min_total_global_steps=1,
    quorum=0.4,
    grace_max_seconds=0.002,
    whole_round_interval=0,
)


class Replica(threading.Thread):
    """Steps at a random pace, at times of many rounds."""

    def __init__(self, number: int, store: dist.Store) -> None:
        """Take its number."""
        super().__init__()
        group = Group.of_one()
        group.rank, group.size, group.timeout = number, REPLICAS, 30.0
        self.turns = QuorumTurns(CONFIG, group, Group.of_one(), store=store)
        self._random = random.Random(number)
        self.met: list[Met] = []
        self.steps = 0

    def run(self) -> None:
        """Make steps, then join the others' rounds."""
        for _ in range(60):
            time.sleep(self._random.choice([0.0, 0.001, 0.001, 0.03]))
            self.steps += 1
            if (met := self.turns.stepped()) is not None:
                self.met.append(met)
        while not self.met or self.met[-1].entry is not Entry.LAST:
            self.met.append(self.turns.exhausted())


def test_all_who_are_in_a_round_know_it_and_nobody_else() -> None:
    """Five replicas race for about a hundred meetings; each list is exactly who was told of it."""
    store = dist.PrefixStore("test", dist.HashStore())
    replicas = [Replica(number, store) for number in range(REPLICAS)]
    for one in replicas:  # each process counts its trainings; here they are in one
        one.turns.store = dist.PrefixStore("one", store)
        one.start()
    for one in replicas:
        one.join(timeout=60)
        assert not one.is_alive()
    told = defaultdict[int, list[int]](list)
    lists = dict[int, set[tuple[int, ...]]]()
    for number, one in enumerate(replicas):
        for met in one.met:
            told[met.number].append(number)
            lists.setdefault(met.number, set()).add(met.replicas)
    assert all({tuple(told[number])} == found for number, found in lists.items())
    assert any(len(one) < REPLICAS for one in told.values())
    assert told[max(told)] == list(range(REPLICAS))
    assert len({one.turns.turn.round for one in replicas}) == 1
    assert replicas[0].turns.turn.round == len(told)


def test_a_replica_that_missed_more_meetings_than_are_kept_finds_the_newest() -> None:
    """The keys of old meetings are gone, and it neither waits nor calls for one of them."""
    store = dist.PrefixStore("test", dist.HashStore())
    fast, late = Replica(0, store), Replica(1, store)
    for one in (fast, late):
        one.turns.store = dist.PrefixStore("one", store)
    third = Replica(2, store)
    third.turns.store = fast.turns.store
    rounds = quorum_turns.KEPT + 20
    helper = threading.Thread(target=lambda: _meet(third, rounds))
    helper.start()
    _meet(fast, rounds)
    helper.join(timeout=60)
    assert fast.turns.turn.round == rounds
    late.turns.restart()
    assert late.turns.stepped() is None
    assert late.turns.turn.round == rounds


def _meet(one: Replica, rounds: int) -> None:
    while one.turns.turn.round < rounds:
        time.sleep(0.004)
        one.turns.stepped()

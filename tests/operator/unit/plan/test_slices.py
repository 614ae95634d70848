"""A queued job runs as many workers as its queue has admitted, and no pod without a reservation."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.plan.slices import CORE, Demand, Placement, Slice, judge, slice_size


def _demand(*, pods: int = 0, **changes: Any) -> Demand:
    """Return a demand; `pods`: of the lowest ranks."""
    base = Demand(
        workers=6, least=2, most=6, unit=1, ranks=tuple(range(pods)), ready=0, others=False
    )
    return dataclasses.replace(base, **changes)


def _slice(index: int, workers: int, state: str = "admitted") -> Slice:
    return Slice(
        index=index,
        name=f"s{index}",
        workers=workers,
        reserved=state in {"admitted", "evicted"},
        admitted=state in {"admitted", "evicted"},
        evicted=state == "evicted",
        reason={"evicted": "preempted by b", "waiting": "no quota"}.get(state, ""),
    )


def test_a_new_job_asks_for_its_core_first() -> None:
    """Slices of a job whose core waits would hold quota for nothing."""
    verdict = judge([], _demand())
    assert (verdict.workers, verdict.create) == (0, ((CORE, 2),))
    waiting = judge([_slice(CORE, 2, "waiting")], _demand())
    assert (waiting.workers, waiting.create, waiting.reason) == (0, (), "no quota")


def test_an_admitted_core_runs_and_asks_for_the_rest() -> None:
    """The job trains with minReplicas, and the slices wait in the queue."""
    verdict = judge([_slice(CORE, 2)], _demand(pods=2))
    assert verdict.workers == 2
    assert verdict.create == ((1, 1), (2, 1), (3, 1), (4, 1))
    assert verdict.reason == "2 of 6 workers are admitted"


def test_slices_are_few_and_multiples_of_the_unit() -> None:
    """A large job has no more Workloads than a small one."""
    assert slice_size(_demand(least=2, most=6)) == 1
    assert slice_size(_demand(least=100, most=1000)) == 113
    assert slice_size(_demand(least=4, most=68, unit=4)) == 8
    assert slice_size(_demand(least=4, most=4)) == 1


def test_an_evicted_slice_shrinks_the_job_before_its_quota_goes_back() -> None:
    """While its pod still ends it is held; after that it is released, and waits again."""
    slices = [_slice(CORE, 2), _slice(1, 2), _slice(2, 2, "evicted")]
    ending = judge(slices, _demand(pods=6))
    assert (ending.workers, ending.release) == (4, ())
    gone = judge(slices, _demand(pods=4))
    assert (gone.workers, gone.release) == (4, ("s2",))
    assert gone.reason == "4 of 6 workers are admitted: preempted by b"


def test_slices_are_reported_as_started_in_order_and_once() -> None:
    """A queue that waits for ready pods would evict a job that says nothing."""
    slices = [_slice(CORE, 2), _slice(1, 2), _slice(2, 2)]
    assert judge(slices, _demand(pods=4, ready=3)).started == ("s0",)
    assert judge(slices, _demand(pods=6, ready=6)).started == ("s0", "s1", "s2")
    later = [slices[0], slices[1], dataclasses.replace(slices[2], started=True)]
    assert judge(later, _demand(pods=4, ready=4)).started == ("s0",)
    told = [dataclasses.replace(one, started=True) for one in slices]
    assert judge(told, _demand(pods=6, ready=6)).started == ()
    assert judge(slices, _demand(workers=5, pods=5, ready=5)).started == ("s0", "s1", "s2")


def test_a_successor_that_is_made_in_the_same_look_keeps_its_quota() -> None:
    """The pod of rank 0 is gone, and those of an evicted slice still end."""
    slices = [_slice(CORE, 2), _slice(1, 2, "evicted")]
    assert judge(slices, _demand(ranks=(1, 2))).release == ()
    assert judge(slices, _demand(ranks=(1,))).release == ("s1",)


def test_an_evicted_core_stops_the_job_and_gives_all_back() -> None:
    """First all pods end; then the slices go, and the core waits again."""
    slices = [_slice(CORE, 2, "evicted"), _slice(1, 2)]
    assert judge(slices, _demand(pods=1)) == judge(slices, _demand(others=True))
    gone = judge(slices, _demand())
    assert (gone.workers, gone.release, gone.delete) == (0, ("s0",), ("s1",))


def test_a_scale_down_deletes_waiting_slices_first_and_held_ones_without_pods() -> None:
    """A slice that holds quota goes when its pods are gone."""
    slices = [_slice(CORE, 2), _slice(1, 2), _slice(2, 2, "waiting")]
    assert judge(slices, _demand(workers=4, pods=4)).delete == ("s2",)
    assert judge(slices, _demand(workers=2, pods=4)).delete == ("s2",)
    assert judge(slices, _demand(workers=2, pods=2)).delete == ("s2", "s1")


def test_what_is_given_back_is_not_used_in_the_same_look() -> None:
    """A slice with room for a pod to come stays; a deleted one is no room for those that end."""
    waiting = [_slice(CORE, 2), _slice(1, 3, "waiting"), _slice(2, 1)]
    verdict = judge(waiting, _demand(workers=5, pods=2))
    assert (verdict.workers, verdict.delete) == (3, ())
    evicted = [_slice(CORE, 2), _slice(1, 2), _slice(2, 2, "evicted")]
    verdict = judge(evicted, _demand(workers=2, pods=4))
    assert (verdict.delete, verdict.release) == (("s2",), ())


def test_a_part_of_a_slice_stays_reserved() -> None:
    """A Workload cannot shrink: a job of 5 keeps the slice of 2 that its fifth worker needs."""
    slices = [_slice(CORE, 2), _slice(1, 2), _slice(2, 2)]
    verdict = judge(slices, _demand(workers=5, pods=6))
    assert (verdict.workers, verdict.delete) == (5, ())


def test_a_stopped_job_gives_its_quota_back_when_its_pods_are_gone() -> None:
    """Suspended, ended or deleted: nothing is held."""
    slices = [_slice(CORE, 2), _slice(1, 2)]
    assert judge(slices, _demand(stopped=True, pods=2)).delete == ()
    assert judge(slices, _demand(stopped=True)).delete == ("s0", "s1")


def test_all_pods_get_the_flavors_of_the_core() -> None:
    """Its slices are asked for in the same one, so that any rank may be in any slice."""
    spot = {"worker": Placement(node_selector={"pool": "spot"})}
    core = dataclasses.replace(_slice(CORE, 2), placements=spot)
    assert judge([core, _slice(3, 2)], _demand()).placements == spot


def test_a_job_whose_queue_or_templates_changed_asks_anew_once_its_pods_are_gone() -> None:
    """What was reserved counts other requests than its pods would have, or in another queue."""
    stale = [_slice(CORE, 2), dataclasses.replace(_slice(1, 2), stale=True)]
    ending = judge(stale, _demand(pods=1))
    assert (ending.workers, ending.delete, ending.create) == (0, (), ())
    assert judge(stale, _demand()).delete == ("s0", "s1")


def test_a_core_that_waits_follows_the_fewest_workers() -> None:
    """A job that would do with less is not kept waiting for more."""
    waiting = [_slice(CORE, 4, "waiting")]
    assert judge(waiting, _demand()).delete == ("s0",)
    assert judge(waiting, _demand(least=4)).delete == ()


def test_a_job_with_too_few_admitted_workers_keeps_nothing() -> None:
    """Two that each kept a part of what they need would wait for each other for ever."""
    slices = [_slice(CORE, 2), _slice(1, 2, "evicted")]
    ending = judge(slices, _demand(least=4, pods=4))
    assert (ending.workers, ending.delete) == (0, ())
    assert judge(slices, _demand(least=4)).delete == ("s0", "s1")


def test_what_the_slices_do_not_count_is_held_back_and_named() -> None:
    """More pods of a role, or more memory, would use what is not reserved; nobody is stopped."""
    slices = [
        dataclasses.replace(_slice(CORE, 2), roles={"eval": 1}, memory=3 * 2**30),
        dataclasses.replace(_slice(1, 4), memory=2**30),
    ]
    wanted = _demand(pods=6, roles={"eval": 10}, memory=4 * 2**30)
    verdict = judge(slices, wanted)
    assert (verdict.workers, verdict.roles, verdict.memory) == (6, {"eval": 1}, 2**30)
    assert (verdict.delete, verdict.create) == ((), ())
    assert verdict.reason == (
        "1 of 10 pods of eval are admitted, more only after the next suspension; "
        "a worker gets 1024Mi of memory at most, more only after the next suspension"
    )
    less = _demand(pods=6, roles={"eval": 1}, memory=2**30)
    assert judge(slices, less).reason == ""


@pytest.mark.parametrize("change", [{"roles": {"eval": 2}}, {"memory": 2**30}])
def test_a_core_that_waits_asks_anew_for_what_it_does_not_count(change: dict[str, Any]) -> None:
    """Nothing runs that would have to stop for it."""
    waiting = [_slice(CORE, 2, "waiting")]
    assert judge(waiting, _demand(**change)).delete == ("s0",)
    asked_for = [dataclasses.replace(waiting[0], **change)]
    assert judge(asked_for, _demand(**change)).delete == ()


@given(
    states=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from(["admitted", "evicted", "waiting"])),
        max_size=6,
    ),
    workers=st.integers(1, 12),
    ranks=st.lists(st.integers(0, 13), max_size=14),
)
def test_what_is_kept_covers_the_pods_that_are_and_those_that_may_be(
    states: list[tuple[int, str]], workers: int, ranks: list[int]
) -> None:
    """Whatever the slices: no rule gives back what another one counts on."""
    slices = [_slice(index, size, state) for index, (size, state) in enumerate(states)]
    demand = _demand(
        workers=workers, least=min(workers, states[0][0] if states else 1), ranks=ranks
    )
    verdict = judge(slices, demand)
    back = {*verdict.delete, *verdict.release}
    held = sum(one.workers for one in slices if one.reserved)
    kept = sum(one.workers for one in slices if one.reserved and one.name not in back)
    usable = sum(one.workers for one in slices if one.usable and one.name not in back)
    made = {*ranks, *range(verdict.workers)}
    doubles = len(ranks) - len(set(ranks))
    assert kept >= min(len(made) + doubles, held)
    assert usable >= verdict.workers


class _Queue:
    """A model of a queue: admits by priority and age, and evicts the newest of lower priority."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.slices: dict[tuple[str, int], Slice] = {}
        self.priority: dict[str, int] = {}
        self.age: dict[tuple[str, int], int] = {}
        self._clock = 0

    @property
    def used(self) -> int:
        return sum(one.workers for one in self.slices.values() if one.reserved)

    def _level(self, key: tuple[str, int]) -> int:
        """Priority of a slice: those beside a core come just below it."""
        return 10 * self.priority[key[0]] - (key[1] != CORE)

    def step(self) -> None:
        self._clock += 1
        waiting = [key for key, one in self.slices.items() if not one.reserved]
        for key in sorted(waiting, key=lambda key: (-self._level(key), self.age[key])):
            one = self.slices[key]
            if self.used + one.workers <= self.quota:
                self.slices[key] = dataclasses.replace(one, reserved=True, admitted=True)
                continue
            self._preempt(key)
            break

    def _preempt(self, key: tuple[str, int]) -> None:
        held = [other for other, one in self.slices.items() if one.reserved]
        lesser = [other for other in held if self._level(other) < self._level(key)]
        victims = sorted(lesser, key=lambda one: (self._level(one), -self.age[one]))
        need = self.used + self.slices[key].workers - self.quota
        for other in victims:
            if need <= 0:
                return
            self.slices[other] = dataclasses.replace(self.slices[other], evicted=True)
            need -= self.slices[other].workers


class _Job:
    """A job whose pods come and go one at a time."""

    def __init__(self, name: str, demand: Demand) -> None:
        self.name = name
        self.demand = demand

    def step(self, queue: _Queue, now: int) -> None:
        mine = [one for (job, _), one in queue.slices.items() if job == self.name]
        verdict = judge(mine, self.demand)
        for index, workers in verdict.create:
            name = f"{self.name}-{index}"
            queue.slices[self.name, index] = Slice(index=index, name=name, workers=workers)
            queue.age[self.name, index] = now
        for key in [key for key, one in queue.slices.items() if one.name in verdict.delete]:
            del queue.slices[key]
        for key, one in queue.slices.items():
            if one.name in verdict.release:
                free = dataclasses.replace(one, reserved=False, admitted=False, evicted=False)
                queue.slices[key] = free
        pods = self.demand.pods
        change = 1 if pods < verdict.workers else -1 if pods > verdict.workers else 0
        ranks = tuple(range(pods + change))
        self.demand = dataclasses.replace(self.demand, ranks=ranks, others=bool(ranks))


@pytest.mark.parametrize("seed", range(50))
def test_quota_is_never_overcommitted_and_every_job_gets_its_share(seed: int) -> None:
    """Jobs come, scale and end in a random order; the least important one gets what is left."""
    chance = random.Random(seed)
    queue = _Queue(quota=12)
    jobs: list[_Job] = []
    for now in range(400):
        if now % 40 == 0 and len(jobs) < 4:
            least = chance.randint(1, 3)
            most = chance.randint(least, 8)
            name = f"j{len(jobs)}"
            queue.priority[name] = chance.randint(0, 9)
            jobs.append(_Job(name, _demand(workers=most, least=least, most=most)))
        if now < 300 and chance.random() < 0.05:
            job = chance.choice(jobs)
            wanted = chance.randint(job.demand.least, job.demand.most)
            job.demand = dataclasses.replace(job.demand, workers=wanted)
        chance.shuffle(jobs)
        for job in jobs:
            job.step(queue, now)
            mine = [one for key, one in queue.slices.items() if key[0] == job.name]
            held = sum(one.workers for one in mine if one.reserved)
            assert job.demand.pods <= held, f"seed {seed}: {job.name} runs without quota"
        queue.step()
        assert queue.used <= queue.quota
    assert all(job.demand.pods in {0, *range(job.demand.least, 9)} for job in jobs)
    first = max(jobs, key=lambda job: queue.priority[job.name])
    assert first.demand.pods == first.demand.workers, f"seed {seed}: the first job waits"

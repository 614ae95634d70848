"""More memory for the next pod of a worker that ran out of it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast_operator.events.news import transitions
from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.memory_raise import RaisedMemory, after
from holdfast_operator.pods.memory import raise_memory
from holdfast_operator.spec.job import MemoryPolicy, SpecVersion
from holdfast_operator.spec.quantities import MEBIBYTE, in_mebibytes, to_bytes
from holdfast_wire.messages import JobStatus, MemoryShortage
from jobs.planned import World, running

GIB = 2**30
POLICY = MemoryPolicy(raise_percent=25, most_bytes=2 * GIB)
FIELDS = {"failurePolicy": {"memory": {"raisePercent": 25, "maxMemory": "2Gi"}}}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12Gi", 12 * GIB),
        ("1500M", 1_500_000_000),
        ("1.5Gi", 3 * GIB // 2),
        ("2e9", 2_000_000_000),
        ("1E", 10**18),
        ("128974848000m", 128974848),
        (1024, 1024),
        ("lots", None),
        ("-1", None),
        (True, None),
        (None, None),
    ],
)
def test_quantities_are_read_as_kubernetes_does(text: Any, size: int | None) -> None:
    """And what is none is not taken for one."""
    assert to_bytes(text) == size


def test_a_limit_is_raised_once_for_what_was_too_small_however_often_it_is_told() -> None:
    """Twice in the same pod is once: nobody has tried the higher limit yet."""
    found = after(None, 3, [GIB, GIB], POLICY)
    assert found == RaisedMemory(node_rank=3, too_small=GIB, limit=5 * GIB // 4)
    pages = after(None, 3, [10**9, 10**9 // 4096 * 4096], POLICY)  # as the kernel rounds a limit
    assert pages is not None
    assert pages.limit == 1193 * MEBIBYTE
    assert after(found, 3, [GIB], POLICY) == found
    again = after(found, 3, [GIB, 5 * GIB // 4], POLICY)
    assert again is not None
    assert (again.too_small, again.limit) == (5 * GIB // 4, 1600 * MEBIBYTE)


def test_a_limit_is_never_lowered_and_never_above_the_most() -> None:
    """At the most it is exhausted; the incidents before it do not take that back."""
    top = after(None, 0, [GIB, 5 * GIB // 4, 1600 * MEBIBYTE, 2000 * MEBIBYTE], POLICY)
    assert top is not None
    assert (top.limit, top.exhausted) == (2 * GIB, False)
    spent = after(top, 0, [2 * GIB], POLICY)
    assert spent == dataclasses.replace(top, exhausted=True)
    assert after(spent, 0, [GIB], POLICY) == spent
    more = after(None, 0, [4 * GIB], POLICY)
    assert more == RaisedMemory(node_rank=0, too_small=4 * GIB, limit=4 * GIB, exhausted=True)


def test_a_container_without_a_limit_is_left_alone() -> None:
    """The machine's memory was short, not the container's."""
    assert after(None, 0, [0], POLICY) is None


@pytest.mark.parametrize(
    ("resources", "then"),
    [
        pytest.param(
            {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi", "cpu": 1}},
            {"limits": {"memory": "1280Mi"}, "requests": {"memory": "1280Mi", "cpu": 1}},
            id="guaranteed-stays-guaranteed",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi"}, "requests": {"memory": "512Mi"}},
            {"limits": {"memory": "1280Mi"}, "requests": {"memory": "640Mi"}},
            id="in-proportion",
        ),
        pytest.param(
            {"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1280Mi"}}, id="no-request"
        ),
        pytest.param({"limits": {"memory": "8Gi"}}, {"limits": {"memory": "8Gi"}}, id="has-more"),
        pytest.param({"limits": {"cpu": 1}}, {"limits": {"cpu": 1}}, id="no-limit"),
        pytest.param(None, None, id="no-resources"),
    ],
)
def test_request_and_limit_grow_together(resources: Any, then: Any) -> None:
    """And a template with more than that keeps it."""
    container = {"name": "worker", "resources": copy.deepcopy(resources)}
    raise_memory(container, 1280 * MEBIBYTE)
    assert container["resources"] == then


def _memory(world: World) -> Iterator[tuple[str, int]]:
    for action in world.look().actions:
        if isinstance(action, CreatePod):
            yield action.name, action.memory_limit


def _killed(world: World, name: str, limit: int) -> None:
    """The kernel ends a worker's container for lack of memory."""
    world.end(name, 137, reason="OOMKilled")
    world.pods[name] = dataclasses.replace(
        world.pods[name], ran_out_of_memory=True, memory_limit=limit
    )


def test_only_the_worker_that_ran_out_of_memory_gets_more() -> None:
    """Others have what they had, and so has the master."""
    world = running(replicas=2, **FIELDS)
    _killed(world, "t-worker-1-0", GIB)
    world.end("t-worker-0-0", 1)
    assert dict(_memory(world)) == {"t-worker-0-1": 0, "t-worker-1-1": 1280 * MEBIBYTE}
    assert world.status["raisedMemory"] == [
        {"nodeRank": 1, "tooSmall": "1024Mi", "limit": "1280Mi", "exhausted": False}
    ]


def test_without_the_field_nothing_is_raised() -> None:
    """It is off unless a person wants it."""
    world = running(replicas=2)
    _killed(world, "t-worker-1-0", GIB)
    assert dict(_memory(world)) == {"t-worker-1-1": 0}
    assert "raisedMemory" not in world.status


def test_a_rank_that_ran_out_of_memory_in_a_pod_that_lives_counts_for_the_next_pod() -> None:
    """Its master tells of it; the pod runs on, with new processes."""
    world = running(replicas=2, **FIELDS)
    short = MemoryShortage(node_rank=1, limit_bytes=GIB)
    world.master = world.master.hear(
        JobStatus(memory_shortages=(short,)), now=world.now, version=SpecVersion(1)
    )
    assert dict(_memory(world)) == {}
    world.end("t-worker-1-0", 1)
    assert dict(_memory(world)) == {"t-worker-1-1": 1280 * MEBIBYTE}


def test_an_operator_that_was_started_anew_raises_nothing_twice_and_forgets_nothing() -> None:
    """Its memory is the status: also once the pod is gone and the master is away."""
    world = running(replicas=2, **FIELDS)
    _killed(world, "t-worker-1-0", GIB)
    world.look()
    world.history, kept = {}, world.status["raisedMemory"]
    assert dict(_memory(world)) == {"t-worker-1-1": 1280 * MEBIBYTE}
    assert world.status["raisedMemory"] == kept
    del world.pods["t-worker-1-0"]
    world.master = type(world.master)()
    assert [limit for _, limit in _memory(world)] == [1280 * MEBIBYTE]
    assert world.status["raisedMemory"] == kept


def _told(before: dict[str, Any], after_it: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.reason, one.text) for one in transitions(before, after_it, 1.0)]


def test_people_are_told_once_what_was_raised_and_once_that_no_more_is_allowed() -> None:
    """From what to what, and why."""
    entry = {"nodeRank": 1, "tooSmall": "1024Mi", "limit": "1280Mi", "exhausted": False}
    one: dict[str, Any] = {"raisedMemory": [entry]}
    assert _told({}, one) == [
        ("MemoryRaised", "node 1 ran out of memory with a limit of 1024Mi: its next pod has 1280Mi")
    ]
    spent: dict[str, Any] = {"raisedMemory": [{**entry, "exhausted": True}]}
    [(reason, text)] = _told(one, spent)
    assert reason == "MemoryNotRaised"
    assert "failurePolicy.memory.maxMemory allows no more" in text
    assert _told(one, one) == _told(spent, spent) == []


def test_a_limit_is_written_in_whole_mebibytes() -> None:
    """Rounded up: less than was asked for would be too small again."""
    assert in_mebibytes(GIB + 1) == "1025Mi"


def test_a_pod_never_gets_more_than_is_allowed_now_whatever_was_raised_before() -> None:
    """A queue counts maxMemory: after it was lowered, more would be beyond what is reserved."""
    world = running(replicas=2, **FIELDS)
    raised = {"nodeRank": 1, "tooSmall": "2Gi", "limit": "3Gi", "exhausted": False}
    world.status["raisedMemory"] = [raised]
    world.end("t-worker-1-0", 1)
    assert dict(_memory(world)) == {"t-worker-1-1": 2 * GIB}

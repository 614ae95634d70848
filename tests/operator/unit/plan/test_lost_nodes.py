"""No pod is made on a node that the operator knows to be gone, and none waits there."""

from __future__ import annotations

import pytest

from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.history import SETTLED_SECONDS
from holdfast_operator.plan.lost import SURE_SECONDS
from holdfast_operator.plan.pods import OVERDUE_SECONDS, PodSlot
from holdfast_wire.messages import PodPhase, ReplaceDecision
from jobs.planned import World, creates, deletes, made_by, running, worker


def _lost(**fields: object) -> World:
    """Worker 1's node is gone: its pod's deletion is overdue, and its successor was made."""
    world = running(replicas=2, **fields)
    gone = world.pods["t-worker-1-0"]
    world.hear(ReplaceDecision(node_rank=1, pod_uid=gone.uid, reason="silent"))
    (only,) = world.look().actions
    world.carry_out(only)
    world.change(gone.name, gone_by=world.now + 1)
    world.now += 1 + OVERDUE_SECONDS
    return world


def _made(world: World) -> dict[str, tuple[str, ...]]:
    return {one.name: one.avoid_nodes for one in world.look().actions if isinstance(one, CreatePod)}


def test_the_successor_must_not_run_on_the_lost_node() -> None:
    """A preference loses to any other one: the cluster takes that node for the emptiest of all."""
    world = _lost()
    (new,) = made_by(world.look())
    assert (new.name, new.avoid_nodes, new.shun_nodes) == ("t-worker-1-1", ("node-1",), ())


def test_no_pod_of_the_job_is_made_there() -> None:
    """Of whatever place: one lost pod speaks for its node."""
    world = _lost(extraRoles=[{"name": "eval", "template": _TEMPLATE}], maxReplicas=3)
    world.scale(3)
    world.end("t-eval-0-0")
    assert _made(world) == dict.fromkeys(
        ["t-worker-1-1", "t-worker-2-0", "t-eval-0-1"], ("node-1",)
    )


_TEMPLATE = {"spec": {"containers": [{"name": "eval", "image": "x", "command": ["eval"]}]}}


def test_the_exclusion_ends_when_the_lost_pod_is_gone_or_the_cluster_must_know() -> None:
    """A dead node has a taint by then; one that lives and ends no pod is the last choice."""
    world = _lost()
    world.now += SURE_SECONDS - 1
    assert _made(world) == {"t-worker-1-1": ("node-1",)}
    world.now += 1
    (new,) = made_by(world.look())
    assert (new.avoid_nodes, new.shun_nodes) == ((), ("node-1",))
    world.now -= SURE_SECONDS
    del world.pods["t-worker-1-0"]
    assert _made(world) == {"t-worker-1-1": ()}


def _no_room() -> World:
    """The successor finds no other node."""
    world = _lost()
    world.do(world.look())
    world.change("t-worker-1-1", node="", waiting="Unschedulable", waiting_text="0/2 nodes")
    return world


def test_where_no_other_node_fits_the_pod_waits_until_the_lost_one_is_back() -> None:
    """It is made anew without the exclusion, once the lost pod is gone from its node."""
    world = _no_room()
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), SURE_SECONDS)
    world.now += SETTLED_SECONDS
    assert world.look().actions == ()
    del world.pods["t-worker-1-0"]
    assert deletes(world.look()) == {"t-worker-1-1": "Replaced"}


def test_it_waits_no_longer_than_the_cluster_needs_to_know() -> None:
    """A node that the cluster finds well all that time is better than none."""
    world = _no_room()
    made = world.look()
    world.now += made.requeue_after or 0.0
    assert deletes(world.look()) == {"t-worker-1-1": "Replaced"}


@pytest.mark.parametrize("slot", [worker(1), PodSlot("eval", 0)])
def test_a_pod_that_waits_on_a_node_nobody_hears_is_made_anew_at_once(slot: PodSlot) -> None:
    """No kubelet starts it; nobody waits for its end, and its successor is elsewhere."""
    world = running(replicas=2, extraRoles=[{"name": "eval", "template": _TEMPLATE}])
    name, node = slot.pod_name("t", 0), f"node-{slot.index}"
    world.silent = frozenset({node, "another"})
    assert world.look().actions == (), "it runs: its master, or the cluster, judges it"
    world.change(name, phase=PodPhase.PENDING, ready=False)
    made = world.look()
    assert deletes(made)[name] == "NodeLost"
    assert _made(world)[slot.pod_name("t", 1)] == (node,)


def test_a_pod_that_waits_where_another_one_was_lost_is_made_anew() -> None:
    """It was bound there before anybody knew."""
    world = _lost(maxReplicas=3)
    world.scale(3)
    world.make(worker(2), 0)
    world.change("t-worker-2-0", node="node-1")
    assert deletes(world.look()) == {"t-worker-2-0": "NodeLost"}
    assert "t-worker-2-1" in creates(world.look())

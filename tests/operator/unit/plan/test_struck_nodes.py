"""Pods keep away from nodes on which several jobs had trouble, as long as that counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from holdfast_operator.plan.actions import CreatePod
from holdfast_operator.plan.history import SETTLED_SECONDS
from holdfast_operator.plan.pods import Role
from holdfast_wire.messages import ExcludeDecision, PodPhase
from jobs.job_files import TEMPLATE
from jobs.planned import World, deletes


def _avoided(world: World) -> dict[Role, tuple[str, ...]]:
    """Nodes that the next pods avoid, by their role."""
    made = (action for action in world.look().actions if isinstance(action, CreatePod))
    return {action.slot.role: action.avoid_nodes for action in made}


@pytest.mark.parametrize(
    ("scheduling", "own"),
    [({}, ("n1", "n2")), ({"maxExcludedNodes": 1}, ("n2",)), ({"excludeFailedNodes": False}, ())],
)
def test_they_come_to_those_that_the_job_excludes_itself(
    scheduling: dict[str, Any], own: tuple[str, ...]
) -> None:
    """Each has a bound of its own. A master needs no fast node, and may go anywhere else."""
    world = World({"replicas": 1, "scheduling": scheduling}, struck=("bad", "n2"))
    for node in ("n1", "n2"):
        world.hear(ExcludeDecision(node=node))
    both = tuple(dict.fromkeys([*own, "bad", "n2"]))
    assert _avoided(world) == {Role.MASTER: own, Role.WORKER: both}
    assert world.status.get("excludedNodes", []) == list(own)


def test_pods_that_run_or_come_stay_where_they_are() -> None:
    """Only a job's own master knows that a pod must go."""
    world = World({"replicas": 1})
    world.settle()
    for phase in (PodPhase.RUNNING, PodPhase.PENDING):
        world.change("t-worker-0-0", phase=phase)
        world.struck = ("node-0",)
        assert world.look().actions == ()


def _waiting(world: World) -> None:
    """Its worker finds no node, and avoids one."""
    world.settle()
    world.change(
        "t-worker-0-0",
        phase=PodPhase.PENDING,
        node="",
        waiting="Unschedulable",
        avoids=("bad", "own"),
        ready=False,
    )


def test_a_pod_that_waits_is_made_anew_when_a_node_is_free_again() -> None:
    """A pod cannot be changed: it would wait for a node that its successor can have."""
    world = World({"replicas": 1})
    world.hear(ExcludeDecision(node="own"))
    world.struck = ("bad",)
    _waiting(world)
    assert world.look().actions == ()
    world.struck = ()
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), SETTLED_SECONDS), "its successor might wait"
    world.now += SETTLED_SECONDS
    assert deletes(world.look()) == {"t-worker-0-0": "Replaced"}
    world.change("t-worker-0-0", waiting="ImagePullFailed")
    assert world.look().actions == ()


def test_nodes_that_the_template_avoids_stay_avoided() -> None:
    """A person wrote them down: a new pod would avoid them, too, and another one, for ever."""
    template = copy.deepcopy(TEMPLATE)
    wish = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["bad", "own"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wish]}]}
    template["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    }
    world = World({"replicas": 1, "worker__template": template})
    _waiting(world)
    assert world.look().actions == ()

"""Every wanted place has exactly one living pod; who left is succeeded, and by what rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from holdfast_cli.runner.local_job import ExtraRoles
from holdfast_operator.plan.actions import (
    MOST_AT_ONCE,
    Action,
    CreatePod,
    DeletePod,
    DeleteReason,
    ScaleJob,
    in_steps,
)
from holdfast_operator.plan.history import EXTRA_ATTEMPTS, SETTLED_SECONDS, SlotHistory
from holdfast_operator.plan.pods import MASTER_SLOT, OVERDUE_SECONDS, WORKER, PodSlot, Role
from holdfast_wire.messages import ExcludeDecision, PodPhase, ReplaceDecision, ScaleDecision
from jobs.job_files import TEMPLATE
from jobs.planned import World, creates, deletes, made_by, running, worker

SCALE = ScaleJob(decision_id=1, replicas=2, reason="")


def _roles(policy: str) -> dict[str, Any]:
    role = {"name": "eval", "replicas": 2, "restartPolicy": policy, "template": TEMPLATE}
    return {"replicas": 1, "extraRoles": [role]}


def test_a_new_job_gets_its_master_then_workers_by_rank_then_extra_roles() -> None:
    """Standbys have the ranks after replicas; names are made of job, role, rank, incarnation."""
    world = World({**_roles("Never"), "replicas": 2, "worker__standbys": 1})
    made = world.look()
    assert creates(made) == [
        "t-master-0-0",
        "t-worker-0-0",
        "t-worker-1-0",
        "t-worker-2-0",
        "t-eval-0-0",
        "t-eval-1-0",
    ]
    assert [action.slot.role for action in made.actions if isinstance(action, CreatePod)] == [
        Role.MASTER,
        *[Role.WORKER] * 3,
        *[Role.EXTRA] * 2,
    ]
    assert made.requeue_after is None


def test_a_running_job_is_left_alone() -> None:
    """A job with everything as wanted needs no actions."""
    assert running(replicas=3).look().actions == ()


@pytest.mark.parametrize(
    ("pod", "happens", "how"),
    [
        (
            "t-worker-1",
            lambda world, name: world.end(name, 137, reason="OOMKilled"),
            "ended with exit code 137 (OOMKilled)",
        ),
        ("t-worker-0", lambda world, name: world.pods.pop(name), "is gone"),
        # As a runner passes it on: it is as if it were not there.
        ("t-worker-0", lambda world, name: world.change(name, phase=PodPhase.GONE), "is gone"),
        # A job without a master cannot end.
        ("t-master-0", lambda world, name: world.end(name, 0), "ended with exit code 0"),
    ],
    ids=["failed", "vanished", "said to be gone", "a master that ended"],
)
def test_a_pod_that_ended_gets_a_successor_of_the_next_incarnation(
    pod: str, happens: Callable[[World, str], object], how: str
) -> None:
    """A number is not used again; the reason says how the last pod ended."""
    world = running(replicas=2)
    happens(world, f"{pod}-0")
    (action,) = world.look().actions
    assert isinstance(action, CreatePod)
    assert (action.name, action.incarnation) == (f"{pod}-1", 1)
    assert action.reason == f"{pod}-0 {how}"


def test_a_worker_that_succeeded_is_not_made_again() -> None:
    """Its ranks are done; only the master knows if a later world needs the node."""
    world = running(replicas=2)
    world.end("t-worker-1-0", 0)
    assert world.look().actions == ()
    del world.pods["t-worker-1-0"]
    assert world.look().actions == ()


@pytest.mark.parametrize("exit_code", [0, 143])
def test_a_worker_that_was_taken_away_is_made_again(exit_code: int) -> None:
    """Deleted by hand, drained or preempted: its agent left in order, its ranks are not done."""
    world = running(replicas=2)
    world.change("t-worker-1-0", deleting=True)
    world.look()
    world.end("t-worker-1-0", exit_code)
    (action,) = world.look().actions
    assert isinstance(action, CreatePod)
    assert (action.name, action.reason) == ("t-worker-1-1", "t-worker-1-0 was taken away")
    world.history = {}  # the planner was just started
    assert creates(world.look()) == ["t-worker-1-1"]


def test_the_master_can_have_a_succeeded_worker_made_again() -> None:
    """A replace decision about that very pod overrules its success."""
    world = running(replicas=2)
    uid = world.pods["t-worker-1-0"].uid
    world.end("t-worker-1-0", 0)
    world.hear(ReplaceDecision(decision_id=1, node_rank=1, pod_uid=uid, reason="a new world"))
    (action,) = world.look().actions
    assert isinstance(action, CreatePod)
    assert action.name == "t-worker-1-1"
    assert "the master wants t-worker-1-0 made anew: a new world" in action.reason
    world.carry_out(action)
    assert world.look().actions == ()


def test_a_replaced_worker_is_deleted_first_and_made_anew_once_it_is_gone() -> None:
    """Two pods of one rank never live at a time; a newer pod satisfies the decision."""
    world = running(replicas=2)
    uid = world.pods["t-worker-1-0"].uid
    world.hear(ReplaceDecision(decision_id=1, node_rank=1, pod_uid=uid, reason="slow"))
    made = world.look()
    assert deletes(made) == {"t-worker-1-0": "Replaced"}
    assert creates(made) == []
    (action,) = made.actions
    assert isinstance(action, DeletePod)
    assert (action.uid, action.grace_s) == (uid, 1)
    world.carry_out(action)
    assert world.look().actions == ()
    world.finish_deletions()
    assert creates(world.look()) == ["t-worker-1-1"]
    world.settle()
    assert world.look().actions == ()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replace_decision_about_an_older_pod_is_satisfied(rank: int) -> None:
    """The decision names a pod, not a rank: the master of rank 0's namesake is not meant either."""
    world = running(replicas=2)
    world.hear(ReplaceDecision(decision_id=1, node_rank=rank, pod_uid="long gone"))
    assert world.look().actions == ()


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    """Whoever deletes it: the successor comes when it is gone."""
    world = running(replicas=2)
    world.change("t-worker-0-0", deleting=True)
    assert world.look().actions == ()
    world.finish_deletions()
    assert creates(world.look()) == ["t-worker-0-1"]


def test_a_pod_that_stays_terminating_does_not_hold_up_the_successor_for_long() -> None:
    """Its time is over, so whoever should end it does not answer; a second one is never made."""
    world = running(replicas=2)
    world.change("t-worker-0-0", deleting=True, gone_by=world.now + 30)
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), 30 + OVERDUE_SECONDS)
    world.now += 30 + OVERDUE_SECONDS
    made = world.look()
    assert (creates(made), deletes(made)) == (["t-worker-0-1"], {})
    world.do(made)
    assert world.look().actions == ()


def test_a_lost_node_does_not_hold_up_the_successor() -> None:
    """Nobody can say whether the old pod lives, but its lease is over: it is replaced."""
    world = running(replicas=2)
    world.change("t-worker-1-0", lost=True)
    made = world.look()
    assert deletes(made) == {"t-worker-1-0": "NodeLost"}
    assert creates(made) == ["t-worker-1-1"]
    (create,) = made_by(made)
    assert create.reason == "t-worker-1-0 is on node-1, which does not answer"


def test_a_lost_pod_that_comes_back_is_deleted_for_its_successor() -> None:
    """The newest pod of a place stays."""
    world = running(replicas=2)
    world.change("t-worker-1-0", lost=True, node="")
    assert "which does not answer" in str(world.look().actions)
    world.make(worker(1), 1)
    world.change("t-worker-1-0", lost=False)
    assert deletes(world.look()) == {"t-worker-1-0": "Duplicate"}


def test_only_the_last_dead_pod_of_a_place_is_kept() -> None:
    """Its log may explain something; those before it have been explained."""
    world = running(replicas=1)
    for incarnation in range(3):
        world.now += SETTLED_SECONDS
        world.end(f"t-worker-0-{incarnation}")
        world.make(worker(0), incarnation + 1)
    assert deletes(world.look()) == {"t-worker-0-0": "Superseded", "t-worker-0-1": "Superseded"}


def test_nothing_is_made_for_a_job_that_somebody_stops() -> None:
    """A job that is about to end gets no new pods."""
    world = running(replicas=2)
    world.stopping = True
    world.end("t-worker-0-0")
    assert world.look().actions == ()


@pytest.mark.parametrize(
    ("policy", "exit_code", "again"),
    [
        ("Never", 1, False),
        ("Never", 0, False),
        ("OnFailure", 1, True),
        ("OnFailure", 0, False),
        ("Always", 0, True),
        ("Always", 1, True),
    ],
)
def test_an_extra_role_follows_its_restart_policy(
    policy: str,
    exit_code: int,
    again: bool,  # noqa: FBT001
) -> None:
    """The restart policy and a pod's exit code decide whether the pod gets a successor."""
    world = running(**_roles(policy))
    world.now += SETTLED_SECONDS
    world.end("t-eval-1-0", exit_code)
    assert creates(world.look()) == (["t-eval-1-1"] if again else [])


def test_an_extra_pod_that_was_taken_away_comes_back() -> None:
    """Being deleted is no end of its own, whatever the policy."""
    world = running(**_roles("Never"))
    world.change("t-eval-0-0", deleting=True)
    world.look()
    world.finish_deletions()
    assert creates(world.look()) == ["t-eval-0-1"]


@pytest.mark.parametrize("policy", ["OnFailure", "Always"])
def test_an_extra_role_that_cannot_start_is_given_up_until_it_is_wanted_anew(policy: str) -> None:
    """With growing waits, every restart told; the job goes on without it and says so."""
    world = running(**_roles(policy))
    news = ExtraRoles()
    told: list[str] = []
    for incarnation in range(EXTRA_ATTEMPTS):
        world.change(f"t-eval-0-{incarnation}", created_at=world.now, ready=False)
        world.history = _born(world, incarnation)
        world.now += 0.5
        world.end(f"t-eval-0-{incarnation}", 3)
        made = world.look()
        told += news.news(made)
        if made.requeue_after and not creates(made):
            world.now += made.requeue_after
            made = world.look()
            told += news.news(made)
        last = incarnation == EXTRA_ATTEMPTS - 1
        assert creates(made) == ([] if last else [f"t-eval-0-{incarnation + 1}"])
        if not last:
            world.make(PodSlot("eval", 0), incarnation + 1)
    assert told[0] == "t-eval-0-0 ended with exit code 3; t-eval-0-1 takes its place"
    assert len(told) == EXTRA_ATTEMPTS
    assert "in a row ended at once of: eval 0" in told[-1]
    assert list(news.news(world.look())) == []
    world.suspend(wanted=True)
    world.settle()
    world.suspend(wanted=False)
    world.settle()
    assert any(pod.slot == PodSlot("eval", 0) and pod.live for pod in world.pods.values())


def _born(world: World, incarnation: int) -> dict[PodSlot, SlotHistory]:
    slot = PodSlot("eval", 0)
    entry = dataclasses.replace(
        world.history[slot], incarnation=incarnation, born=world.now, settled=False
    )
    return {**world.history, slot: entry}


@pytest.mark.parametrize(
    ("scheduling", "avoided"),
    [
        ({}, ("n1", "n2", "n3")),
        ({"maxExcludedNodes": 2}, ("n2", "n3")),
        ({"maxExcludedNodes": 0}, ()),
        ({"excludeFailedNodes": False}, ()),
    ],
)
def test_a_successor_avoids_the_excluded_nodes(
    scheduling: dict[str, Any], avoided: tuple[str, ...]
) -> None:
    """At most so many, the oldest forgotten first; none where the spec does not want it."""
    world = World({"replicas": 1, "scheduling": scheduling})
    for node in ("n1", "n2", "n3"):
        world.hear(ExcludeDecision(node=node))
    found = {a.avoid_nodes for a in world.look().actions if isinstance(a, CreatePod)}
    assert found == {avoided}


def test_a_pod_that_was_made_before_its_node_was_excluded_is_made_again() -> None:
    """As long as nothing of it runs, and only where its own affinity does not keep it away."""
    world = World({"replicas": 2})
    world.settle()
    world.end("t-worker-1-0")
    world.do(world.look())
    world.hear(ExcludeDecision(node="node-1"))
    assert deletes(world.look()) == {"t-worker-1-1": "Replaced"}
    running_now = world.change("t-worker-1-1", phase=PodPhase.RUNNING)
    assert world.look().actions == ()
    world.change(running_now.name, phase=PodPhase.PENDING, avoids=("node-1",))
    assert world.look().actions == ()


def test_a_wish_for_another_size_is_handed_on_until_it_is_answered() -> None:
    """The planner never changes the size itself: there is one writer of it."""
    world = running(replicas=2)
    world.hear(ScaleDecision(decision_id=7, replicas=3, reason="a person"))
    made = world.look()
    assert made.actions == (ScaleJob(decision_id=7, replicas=3, reason="a person"),)
    world.master = world.master.answered(6)
    assert len(world.look().actions) == 1
    world.carry_out(made.actions[0])
    assert creates(world.look()) == ["t-worker-2-0"]


def _create(slot: PodSlot) -> CreatePod:
    return CreatePod(slot=slot, incarnation=0, name=slot.pod_name("t", 0), reason="")


def _sizes(actions: list[Action]) -> list[int]:
    return [len(step) if isinstance(step, tuple) else 0 for step in in_steps(actions)]


def test_pods_are_made_slowly_first_and_then_many_at_once() -> None:
    """A quota that is used up costs one request, a thousand workers ten rounds."""
    workers: list[Action] = [_create(PodSlot(WORKER, rank)) for rank in range(200)]
    assert _sizes(workers) == [1, 2, 4, 8, 16, 32, MOST_AT_ONCE, MOST_AT_ONCE, 9]


def test_a_master_is_made_alone_and_nothing_changes_its_place() -> None:
    """Workers that came before it would only wait for it."""
    gone = DeletePod(
        slot=PodSlot(WORKER, 9),
        name="t-worker-9-0",
        uid="u",
        grace_s=1,
        reason=DeleteReason.SURPLUS,
    )
    master, *workers = (
        _create(slot) for slot in (MASTER_SLOT, PodSlot(WORKER, 0), PodSlot(WORKER, 1))
    )
    steps = list(in_steps([gone, master, *workers, SCALE]))
    assert steps == [gone, (master,), (workers[0],), (workers[1],), SCALE]


def test_no_action_is_lost() -> None:
    """Whatever the number."""
    for count in range(70):
        workers: list[Action] = [_create(PodSlot(WORKER, rank)) for rank in range(count)]
        flat = [one for step in in_steps(workers) if isinstance(step, tuple) for one in step]
        assert flat == workers
    assert list(in_steps([])) == []

"""A master whose node is gone is made anew elsewhere; one that is merely not heard is left."""

from __future__ import annotations

import dataclasses

import pytest

from holdfast_operator import election
from holdfast_operator.plan.actions import DeletePod
from holdfast_operator.plan.lost import AGAIN_SECONDS, SILENT_SECONDS, cut_off
from holdfast_operator.plan.pods import OVERDUE_SECONDS
from holdfast_wire.messages import JobStatus, PodPhase
from jobs.planned import World, creates, deletes, made_by, running

MASTER = "t-master-0-0"


def _silent(*, serving: bool = True, unheard: bool = False, met: bool = True) -> World:
    """A job whose master was heard and is not any more, from now on."""
    world = running(replicas=2)
    world.hear(JobStatus(round=1))
    pod = world.change(MASTER, serving=serving, unheard=unheard)
    world.master = world.master.met(pod.uid if met else "").disconnected(world.now)
    return world


def test_a_master_that_was_reached_and_is_not_any_more_is_made_anew_elsewhere() -> None:
    """After the wait and no sooner; its successor neither waits for its end nor takes its node."""
    world = _silent()
    made = world.look()
    assert made.actions == ()
    assert made.requeue_after == SILENT_SECONDS
    world.now += SILENT_SECONDS
    made = world.look()
    assert deletes(made) == {MASTER: "NodeLost"}
    (new,) = made_by(made)
    assert (new.name, new.avoid_nodes, new.shun_nodes) == ("t-master-0-1", ("node-0",), ())
    assert new.reason == f"{MASTER} is on node-0, which does not answer"
    world.do(made)
    world.change("t-master-0-1", phase=PodPhase.RUNNING, serving=True)
    assert creates(world.look()) == []


def test_a_successor_that_was_not_made_yet_is_not_forgotten() -> None:
    """The deletion has shown, the creation was refused: the old pod still counts as gone."""
    world = _silent()
    world.now += SILENT_SECONDS
    world.look()
    world.change(MASTER, deleting=True, gone_by=world.now + 1)
    assert creates(world.look()) == ["t-master-0-1"]


def test_a_master_that_was_never_reached_is_not_made_anew() -> None:
    """A network policy may be in the way: one verdict for each stream that there was."""
    world = _silent(met=False)
    world.now += 100 * SILENT_SECONDS
    assert world.look().actions == ()


def test_a_master_that_is_reached_or_starts_again_is_left_alone() -> None:
    """Whatever the cluster says of its node; and a kubelet that starts it again lives."""
    world = _silent(serving=False)
    world.now += 100 * SILENT_SECONDS
    assert world.look().actions == ()
    world = _silent(unheard=True)
    world.hear(JobStatus(round=1))
    world.now += 100 * SILENT_SECONDS
    assert world.look().actions == ()


def test_an_operator_that_has_just_begun_believes_the_cluster() -> None:
    """It has never reached the master, of whose node the cluster hears nothing; it tries first."""
    world = _silent(met=False, unheard=True)
    world.master = dataclasses.replace(world.master, silent_since=None)
    world.first_seen_at = world.now
    assert world.look().requeue_after == SILENT_SECONDS
    world.now += SILENT_SECONDS
    assert deletes(world.look()) == {MASTER: "NodeLost"}


def test_an_operator_that_reaches_nobody_judges_nobody() -> None:
    """It looks again soon, and judges once it reaches another master."""
    world = _silent()
    world.cut_off = True
    world.now += 10 * SILENT_SECONDS
    made = world.look()
    assert (made.actions, made.requeue_after) == ((), AGAIN_SECONDS)
    world.cut_off = False
    assert deletes(world.look()) == {MASTER: "NodeLost"}


def test_an_operator_without_its_lease_ends_before_it_judges() -> None:
    """Cut off from the API server too, it must not kill a master when both come back at once."""
    assert SILENT_SECONDS >= election._RENEW_SECONDS


@pytest.mark.parametrize(
    ("reached", "nodes", "expected"),
    [
        ((False,), ("a",), False),
        ((False, False), ("a", "a"), False),
        ((False, False), ("a", "b"), True),
        ((False, True), ("a", "b"), False),
        ((), (), False),
    ],
)
def test_masters_on_several_nodes_do_not_fall_silent_together(
    reached: tuple[bool, ...], nodes: tuple[str, ...], *, expected: bool
) -> None:
    """Those of one node do, with it; and one that answers shows that the way is open."""
    assert cut_off(reached, nodes) is expected


def test_a_node_that_answers_nothing_while_others_do_is_given_no_more_time() -> None:
    """Somebody else's answer shows that this side is not cut off, whatever other masters say."""
    world = _silent()
    world.unreachable = frozenset({"node-0"})
    world.cut_off = True
    made = world.look()
    assert deletes(made) == {MASTER: "NodeLost"}
    (new,) = made_by(made)
    assert new.avoid_nodes == ("node-0",)


def test_a_master_that_is_reached_is_left_alone_whatever_its_node_answers() -> None:
    """And so is one that was never reached: both may have a firewall in front of them."""
    for world in (_silent(met=False), _silent()):
        world.unreachable = frozenset({"node-0"})
        if world.master.speaker:
            world.hear(JobStatus(round=1))
        assert world.look().actions == ()


def test_a_followed_master_leaves_its_service_once_its_successor_is_there() -> None:
    """A pod that nobody ends would draw every second connection for minutes; a worker stays."""
    world = _silent()
    world.unreachable = frozenset({"node-0"})
    world.do(world.look())
    world.change("t-master-0-1", node="node-7")
    (gone,) = world.look().actions
    assert isinstance(gone, DeletePod)
    assert (gone.name, gone.grace_s, gone.reason.value) == (MASTER, 0, "NodeLost")
    world.unreachable = frozenset()
    world.hear(JobStatus(round=1))
    world.change(MASTER, gone_by=world.now + 1)
    assert world.look().actions == (), "its node may end it in order"
    world.now += 1 + OVERDUE_SECONDS
    (gone,) = world.look().actions
    assert isinstance(gone, DeletePod)
    assert (gone.name, gone.grace_s) == (MASTER, 0)


def test_a_successor_that_was_placed_on_another_dead_node_is_made_anew() -> None:
    """The cluster believes in that node for long; every node that answers nothing is avoided."""
    world = _silent()
    world.unreachable = frozenset({"node-0", "node-1"})
    made = world.look()
    (new,) = made_by(made)
    assert new.avoid_nodes == ("node-0", "node-1")
    world.do(made)
    world.change("t-master-0-1", node="node-1")
    assert creates(world.look()) == ["t-master-0-2"]

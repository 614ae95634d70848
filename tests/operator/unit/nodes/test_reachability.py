"""A node counts as unreachable only while another one answers, and if it has answered before."""

from __future__ import annotations

from holdfast_operator.nodes.reachability import MOST_NODES, NodeReachability, ProbeTarget, asked
from holdfast_wire.messages import PodPhase

KNOWN = NodeReachability(own_node="own", answered=frozenset(f"uid-{number}" for number in range(9)))


def _target(node: str, number: int, *, phase: PodPhase = PodPhase.RUNNING) -> ProbeTarget:
    return ProbeTarget(node, f"10.0.0.{number}", f"uid-{number}", phase)


A, A2, B, C = _target("a", 1), _target("a", 2), _target("b", 3), _target("c", 4)
OWN = _target("own", 5)


def test_a_node_that_answers_nothing_while_another_answers_is_unreachable() -> None:
    """One answer of a node is enough, whatever its other pods do."""
    assert KNOWN.hear({A: False, A2: False, B: True}, {"a"}).unreachable == {"a"}
    assert KNOWN.hear({A: False, A2: True, B: True}, {"a"}).unreachable == frozenset()


def test_a_pod_that_never_answered_cannot_fall_silent() -> None:
    """A policy that lets this side reach nothing but masters is no reason to doubt workers."""
    learnt = NodeReachability().hear({A: False, B: True, C: None}, ())
    assert learnt.answered == {"uid-3"}
    again = learnt.hear({A: False, B: True}, {"a"})
    assert again.hear({A: False, B: True}, {"a"}).unreachable == frozenset()


def test_where_nobody_else_answers_it_may_be_this_side_that_is_cut_off() -> None:
    """Pods on its own node are no witnesses; and what was known before stays."""
    assert KNOWN.hear({A: False, B: False}, {"a"}).unreachable == frozenset()
    assert KNOWN.hear({A: False, B: False, OWN: True}, {"a"}).unreachable == frozenset()
    gone = KNOWN.hear({A: False, B: True}, {"a"})
    assert gone.hear({A: False, B: False}, {"a"}).unreachable == {"a"}
    assert gone.hear({A: True, B: False}, {"a"}).unreachable == frozenset()


def test_a_node_without_a_pod_of_the_job_is_not_called_unreachable() -> None:
    """Nobody is left there to answer: new pods would avoid it for ever once the others are gone."""
    gone = KNOWN.hear({A: False, B: True}, {"a"})
    assert gone.hear({B: False, OWN: True}, {"b"}).unreachable == frozenset()


def test_a_node_that_was_not_in_question_counts_from_its_second_silence_on() -> None:
    """In the first round only one of its pods was asked."""
    first = KNOWN.hear({A: False, B: True, C: False}, {"a"})
    assert first.unreachable == {"a"}
    assert first.hear({A: False, B: True, C: False}, {"a"}).unreachable == {"a", "c"}


def test_a_question_that_could_not_be_put_says_nothing() -> None:
    """This side was out of sockets, or stood still."""
    assert KNOWN.hear({A: None, B: True}, {"a"}).unreachable == frozenset()


def test_every_pod_of_a_node_in_doubt_is_asked_and_one_of_each_other() -> None:
    """Those in doubt first; pods that do not run or have no address cannot answer."""
    targets = [
        _target("b", 1),
        _target("b", 2),
        _target("c", 3, phase=PodPhase.PENDING),
        _target("d", 4),
        _target("d", 5),
        ProbeTarget("a", "", "uid-6", PodPhase.RUNNING),
        ProbeTarget("", "10.0.0.7", "uid-7", PodPhase.RUNNING),
    ]
    assert [one.uid for one in asked(targets, ["d"])] == ["uid-4", "uid-5", "uid-1"]


def test_in_a_large_job_only_some_nodes_are_asked_and_the_doubted_one_is() -> None:
    """A thousand attempts to connect show no more than a few hundred."""
    targets = [_target(f"n{number:04}", number) for number in range(1_000)]
    chosen = asked(targets, ["n0999"])
    assert (len(chosen), chosen[0].node) == (MOST_NODES, "n0999")

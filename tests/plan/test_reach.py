"""A node counts as unreachable only while another one answers."""

from __future__ import annotations

from holdfast_operator.plan.reach import MOST_NODES, Place, asked, unreachable
from holdfast_wire.messages import PodPhase


def _place(node: str, number: int, *, phase: PodPhase = PodPhase.RUNNING) -> Place:
    return Place(node, f"10.0.0.{number}", f"uid-{number}", phase)


def test_a_node_that_answers_nothing_while_another_answers_is_unreachable() -> None:
    """One answer of a node is enough, whatever its other pods do."""
    answers = {_place("a", 1): False, _place("a", 2): False, _place("b", 3): True}
    assert unreachable(answers) == {"a"}
    answers[_place("a", 4)] = True
    assert unreachable(answers) == frozenset()


def test_where_nobody_answers_it_may_be_this_side_that_is_cut_off() -> None:
    """Then nobody is unreachable; nor where nobody was asked."""
    assert unreachable({_place("a", 1): False, _place("b", 2): False}) == frozenset()
    assert unreachable({}) == frozenset()


def test_every_pod_of_a_node_in_doubt_is_asked_and_one_of_each_other() -> None:
    """Those in doubt first; pods that do not run or have no address cannot answer."""
    places = [
        _place("b", 1),
        _place("b", 2),
        _place("c", 3, phase=PodPhase.PENDING),
        _place("d", 4),
        _place("d", 5),
        Place("a", "", "uid-6", PodPhase.RUNNING),
        Place("", "10.0.0.7", "uid-7", PodPhase.RUNNING),
    ]
    assert [one.uid for one in asked(places, ["d"])] == ["uid-4", "uid-5", "uid-1"]


def test_in_a_large_job_only_some_nodes_are_asked_and_the_doubted_one_is() -> None:
    """A thousand attempts to connect show no more than a few hundred."""
    places = [_place(f"n{number:04}", number) for number in range(1_000)]
    chosen = asked(places, ["n0999"])
    assert (len(chosen), chosen[0].node) == (MOST_NODES, "n0999")

"""Preflight: rounds, pairs, verdicts and reference figures, on pretended nodes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_master.policies.preflight.figures import (
    CheckStanding,
    Figure,
    FigureReport,
    Pair,
    Participant,
    RoundId,
    refuse,
)
from holdfast_master.policies.preflight.references import NONE, References, forget
from holdfast_master.policies.preflight.rounds import (
    MOST_PAIR_ROUNDS,
    begin,
    conclude,
    judge,
    references_after,
)
from holdfast_master.policies.preflight.verdicts import BAD, NodeVerdict
from holdfast_wire.resources import Resource
from nodes.simulated_nodes import COMPUTE, DEAD, DISK, NETWORK, Cluster, Fault, trusted

SLOW_COMPUTE = Fault(COMPUTE, 0.5)
SLOW_LINK = Fault(NETWORK, 0.1)
SLOW_DISK = Fault(DISK, 0.1)
HANGS = Fault(hangs=Resource.DISK_WRITE)
BY_ITSELF = {"slow compute": SLOW_COMPUTE, "slow disk": SLOW_DISK, "hang": HANGS, "dead": DEAD}


def verdicts(found: Mapping[str, object]) -> dict[str, NodeVerdict]:
    """The verdict of each node."""
    return {node: one.verdict for node, one in found.items()}  # type: ignore[attr-defined]


def references(size: int = 8, seed: int = 99) -> References:
    """What a check of healthy nodes leaves, without figures of single nodes."""
    cluster = Cluster(size, {}, seed)
    check = cluster.check()
    return forget(references_after(check, judge(check)), cluster.nodes)


# ------------------------------------------------------------------------------ the named node


@pytest.mark.parametrize("size", [2, 3, 4, 16, 256])
@pytest.mark.parametrize("fault", BY_ITSELF)
def test_a_node_that_is_bad_by_itself_is_named(size: int, fault: str) -> None:
    """The node is named and no other one, also of two nodes."""
    bad = f"n{size - 1}"
    outcome = Cluster(size, {bad: BY_ITSELF[fault]}).outcome()
    assert outcome.bad() == (bad,), outcome.nodes


@pytest.mark.parametrize("size", [3, 4, 5, 16, 17, 256])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_slow_link_of_one_node_names_the_node_and_not_its_partners(size: int, place: int) -> None:
    """Both nodes of a slow pair meet another partner; only one of them is slow again."""
    bad = f"n{place % size}"
    outcome = Cluster(size, {bad: SLOW_LINK}).outcome()
    assert outcome.bad() == (bad,), outcome.nodes
    assert "healthy: n" in outcome.nodes[bad].reason
    assert outcome.links == ()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 16, 256])
def test_healthy_nodes_are_not_named(size: int) -> None:
    """Noise is no fault."""
    outcome = Cluster(size, {}).outcome()
    assert outcome.bad() == ()
    assert outcome.links == ()


def test_a_node_that_is_nearly_half_as_fast_is_named_beside_one_other() -> None:
    """A rule of twice the median lets a node pass that takes 94 % longer, and any node of two."""
    outcome = Cluster(2, {"n1": Fault(COMPUTE, 1 / 1.94)}).outcome()
    assert outcome.bad() == ("n1",)
    assert "cpu matmul" in outcome.nodes["n1"].reason


def test_a_fast_processor_hides_no_slow_link() -> None:
    """Each resource is judged by itself: figures are not added up."""
    cluster = Cluster(4, {"n2": SLOW_LINK}, kinds={"n2": "fast"})
    outcome = cluster.outcome()
    assert outcome.bad() == ("n2",)
    slow = {one.resource for one in outcome.findings if one.verdict in BAD}
    assert slow <= NETWORK
    assert Resource.LINK_BANDWIDTH in slow


@pytest.mark.parametrize("size", [2, 4, 16])
def test_half_of_the_nodes_may_be_slow(size: int) -> None:
    """A fault makes nodes slower only, so the faster half shows the level."""
    bad = [f"n{at}" for at in range(0, size, 2)]
    outcome = Cluster(size, dict.fromkeys(bad, SLOW_COMPUTE)).outcome()
    assert list(outcome.bad()) == bad


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_node_that_dies_in_any_round_is_named(number: int) -> None:
    """The round that it was silent in is its reason, and its partner is not to blame."""
    outcome = Cluster(8, {"n3": Fault(dead_from=number)}).outcome()
    assert outcome.bad() == ("n3",)
    assert outcome.nodes["n3"].verdict is NodeVerdict.FAULTY
    assert f"round {number}: no answer" in outcome.nodes["n3"].reason


def test_a_hang_names_the_resource() -> None:
    """A measurement that never ends is a result."""
    outcome = Cluster(3, {"n0": HANGS}).outcome()
    assert outcome.nodes["n0"].verdict is NodeVerdict.FAULTY
    assert outcome.nodes["n0"].reason == "disk write: no result in 10 s: it hangs"


def test_too_little_room_and_a_wrong_clock_are_faults_whatever_others_have() -> None:
    """Limits need no other node."""
    check = begin(1, [Participant(node="n0"), Participant(node="n1")])
    good, bad = (
        FigureReport(
            round=RoundId(1, 0),
            node=node,
            figures=(
                Figure(resource=Resource.SHM_ROOM, value=room),
                Figure(resource=Resource.CLOCK_OFFSET, value=offset),
            ),
        )
        for node, room, offset in (("n0", 8.0, 0.0), ("n1", 0.001, 30.0))
    )
    outcome = judge(conclude(check, [good, bad]))
    assert outcome.bad() == ("n1",)
    assert "shm room is 0.001 GiB" in outcome.nodes["n1"].reason
    assert "clock offset is 30 s, the most is 1 s" in outcome.nodes["n1"].reason


def test_the_worst_device_of_a_node_counts() -> None:
    """One slow accelerator of eight slows the whole world."""
    check = begin(1, [Participant(node=f"n{at}") for at in range(4)])
    reports = [
        FigureReport(
            round=RoundId(1, 0),
            node=f"n{at}",
            figures=tuple(
                Figure(
                    resource=Resource.DEVICE_MATMUL,
                    subject=f"cuda:{device}",
                    value=300.0 if (at, device) == (2, 5) else 600.0,
                )
                for device in range(8)
            ),
        )
        for at in range(4)
    ]
    outcome = judge(conclude(check, reports))
    assert outcome.bad() == ("n2",)
    assert outcome.nodes["n2"].reason.startswith("cuda:5: device matmul is 300 TFLOP/s, 50%")


# ----------------------------------------------------------------------------------- undecided


def test_a_slow_link_of_two_nodes_is_undecided() -> None:
    """One pair has one figure: nothing tells it apart from a slow network, nor its two ends."""
    outcome = Cluster(2, {"n0": SLOW_LINK}).outcome()
    assert set(verdicts(outcome.nodes).values()) == {NodeVerdict.UNDECIDED}


def test_a_slow_link_of_two_nodes_is_known_and_not_pinned_with_a_reference() -> None:
    """The reference tells that the pair is slow, and nothing tells which end is."""
    outcome = Cluster(2, {"n0": SLOW_LINK}).outcome(references=references())
    assert outcome.bad() == ()
    assert "do not tell which of n0 and n1 is the cause" in outcome.nodes["n0"].reason


def test_a_slow_link_of_two_nodes_is_pinned_where_one_of_them_is_trusted() -> None:
    """The other one was found healthy before."""
    cluster = Cluster(2, {"n0": SLOW_LINK})
    people = [Participant(node="n0"), *trusted("n1")]
    outcome = cluster.outcome(participants=people, references=references())
    assert outcome.bad() == ("n0",)


def test_a_failed_pair_of_two_nodes_changes_roles_and_stays_undecided() -> None:
    """Both answer, and neither reaches the other."""
    check = begin(1, [Participant(node="n0"), Participant(node="n1")])
    seen = list[Pair]()
    while check.current is not None:
        seen += check.current.pairs
        partners = check.current.partners
        failed = Figure(resource=Resource.LINK_BANDWIDTH, error="connection refused")
        check = conclude(
            check,
            [
                FigureReport(
                    round=check.current.id,
                    node=node,
                    partner=partner,
                    figures=(failed,) if partner else (),
                )
                for node, partner in partners.items()
            ],
        )
    assert [tuple(pair) for pair in seen] == [("n0", "n1"), ("n1", "n0")]
    outcome = judge(check)
    assert set(verdicts(outcome.nodes).values()) == {NodeVerdict.UNDECIDED}
    assert "failed (connection refused)" in outcome.nodes["n0"].reason


@pytest.mark.parametrize("size", [2, 3, 4, 16])
@pytest.mark.parametrize("fault", [SLOW_COMPUTE, SLOW_DISK, HANGS, DEAD, SLOW_LINK])
def test_no_check_ever_names_all_nodes(size: int, fault: Fault) -> None:
    """A fault of all is a shared one, or the reference is wrong."""
    nodes = [f"n{at}" for at in range(size)]
    outcome = Cluster(size, dict.fromkeys(nodes, fault)).outcome(references=references())
    assert outcome.bad() == ()
    assert set(verdicts(outcome.nodes).values()) == {NodeVerdict.UNDECIDED}


def test_faults_of_every_node_in_different_resources_name_nobody() -> None:
    """Each would be named by the others' figures; together they are all there is."""
    outcome = Cluster(2, {"n0": SLOW_COMPUTE, "n1": SLOW_DISK}).outcome()
    assert outcome.bad() == ()
    assert "each node that answered has a fault" in outcome.nodes["n0"].reason


def test_a_node_below_the_others_is_named_where_all_are_below_the_reference() -> None:
    """A busy shared disk slows all; one of them is slower still."""
    faults = dict.fromkeys((f"n{at}" for at in range(6)), Fault(DISK, 0.2))
    outcome = Cluster(6, faults | {"n4": Fault(DISK, 0.02)}).outcome(references=references())
    assert outcome.bad() == ("n4",)
    assert outcome.nodes["n0"].verdict is NodeVerdict.UNDECIDED
    assert "all 6 nodes fall short of the reference" in outcome.nodes["n0"].reason


def test_a_single_node_without_a_reference_is_undecided() -> None:
    """There is nothing to compare it with; its figures become the reference."""
    cluster = Cluster(1, {})
    check = cluster.check()
    outcome = judge(check)
    assert outcome.nodes["n0"].verdict is NodeVerdict.UNDECIDED
    assert references_after(check, outcome).of("n7", "cpu", Resource.CPU_MATMUL) is not None


def test_nodes_of_two_kinds_are_not_compared() -> None:
    """Older hardware is no fault."""
    kinds = {f"n{at}": "fast" for at in range(2)}
    outcome = Cluster(4, {}, kinds=kinds).outcome()
    assert outcome.bad() == ()


def test_a_link_that_is_slow_between_two_healthy_nodes_is_reported_as_a_link() -> None:
    """Neither node is slow with others."""
    cluster = Cluster(4, {}, slow_links={frozenset({"n0", "n1"}): 0.1})
    outcome = cluster.outcome()
    assert outcome.bad() == ()
    assert {frozenset(link.pair) for link in outcome.links} == {frozenset({"n0", "n1"})}


# -------------------------------------------------------------------------------------- rounds


def test_neighbours_come_first_then_the_fastest_meet_the_slowest() -> None:
    """Both nodes of the slow pair are among the slowest."""
    cluster = Cluster(6, {"n2": SLOW_LINK})
    cluster.check()
    assert cluster.pairs[:3] == [
        frozenset({"n0", "n1"}),
        frozenset({"n2", "n3"}),
        frozenset({"n4", "n5"}),
    ]
    second = cluster.pairs[3:6]
    assert all(pair & {"n2", "n3"} != {"n2", "n3"} for pair in second)
    assert len({node for pair in second for node in pair}) == 6
    assert [number for _, number in cluster.rounds] == [0, 1, 2]


@pytest.mark.parametrize(("size", "rounds"), [(3, 4), (4, 4), (5, 3), (16, 3), (17, 3)])
def test_a_third_round_of_pairs_is_for_few_nodes_or_doubt(size: int, rounds: int) -> None:
    """Of three or four, slow pairs may look like the usual case."""
    cluster = Cluster(size, {})
    cluster.check()
    assert len(cluster.rounds) == rounds


@given(
    size=st.integers(1, 40),
    bad=st.sets(st.integers(0, 39), max_size=20),
    spare=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_no_two_nodes_meet_twice_and_no_node_is_in_two_pairs(
    size: int, bad: set[int], spare: int, seed: int
) -> None:
    """Each pair of a round has nodes of its own; healthy partners are never named."""
    faults = {f"n{at}": SLOW_LINK for at in bad if at < size - spare}
    cluster = Cluster(size, faults, seed)
    people = [Participant(node=node) for node in cluster.nodes[: size - spare]]
    people += trusted(*cluster.nodes[size - spare :])
    check = begin(7, people)
    met = Counter[frozenset[str]]()
    while check.current is not None:
        nodes = [node for pair in check.current.pairs for node in pair]
        assert len(nodes) == len(set(nodes))
        met.update(frozenset(pair) for pair in check.current.pairs)
        assert check.pair_rounds < MOST_PAIR_ROUNDS
        check = conclude(check, cluster.answers(check))
    assert all(count == 1 for count in met.values())
    outcome = judge(check)
    assert set(outcome.bad()) <= faults.keys()
    assert list(outcome.nodes) == [one.node for one in people if one.standing is CheckStanding.NEW]


def test_only_new_and_suspect_nodes_measure_themselves() -> None:
    """A trusted node is a partner at the most."""
    people = [Participant(node="n0", standing=CheckStanding.SUSPECT), *trusted("n1", "n2", "n3")]
    check = begin(1, people)
    assert check.current is not None
    assert check.current.nodes == ("n0",)
    cluster = Cluster(4, {"n0": SLOW_LINK})
    over = cluster.check(participants=people)
    assert cluster.pairs == [frozenset({"n0", "n1"}), frozenset({"n0", "n2"})]
    assert list(judge(over).nodes) == ["n0"]


def test_nodes_of_one_machine_are_no_pair() -> None:
    """Between them is no network; a pair of them would make all others look slow."""
    cluster = Cluster(6, {"n4": SLOW_LINK})
    people = [Participant(node=f"n{at}", machine=f"m{at // 2}") for at in range(6)]
    outcome = cluster.outcome(participants=people)
    beside = [frozenset({f"n{at}", f"n{at + 1}"}) for at in (0, 2, 4)]
    assert len(cluster.pairs) >= 5
    assert not set(beside) & set(cluster.pairs)
    assert outcome.bad() == ("n4",)


def test_two_nodes_of_one_machine_have_no_network_to_measure() -> None:
    """And are judged by what each has by itself."""
    cluster = Cluster(2, {"n1": SLOW_COMPUTE})
    people = [Participant(node=node, machine="m0") for node in cluster.nodes]
    outcome = cluster.outcome(participants=people)
    assert cluster.pairs == []
    assert outcome.bad() == ("n1",)


def test_a_check_without_a_node_to_test_is_over_at_once() -> None:
    """The running world is left alone."""
    check = begin(1, trusted("n0", "n1"))
    assert check.current is None
    assert conclude(check, []) is check
    assert judge(check).nodes == {}


def test_without_the_network_there_are_no_pairs() -> None:
    """`spec.health.preflight.networkCheck: false`."""
    cluster = Cluster(4, {"n1": SLOW_COMPUTE})
    outcome = cluster.outcome(network=False)
    assert cluster.pairs == []
    assert outcome.bad() == ("n1",)


def test_a_report_of_another_round_is_refused_with_the_reason() -> None:
    """Reports carry the round's id, and a late one changes nothing."""
    cluster = Cluster(2, {})
    check = begin(5, [Participant(node=node) for node in cluster.nodes])
    reports = cluster.answers(check)
    old = [dataclasses.replace(one, round=RoundId(4, 0), figures=()) for one in reports]
    assert refuse(check.current, old[0]) == "it belongs to round (4, 0), this is (5, 0)"
    stranger = dataclasses.replace(reports[0], node="n9")
    assert refuse(check.current, stranger) == "node n9 has no part in round (5, 0)"
    other = dataclasses.replace(reports[0], partner="n1")
    assert refuse(check.current, other) == "node n0 measures with '' in this round"
    assert refuse(None, reports[0]) == "no round is open"
    assert not refuse(check.current, reports[0])
    after = conclude(check, [*old, stranger, *reports])
    assert set(after.alone) == {"n0", "n1"}
    assert all(report.figures for report in after.alone.values())


def test_a_node_that_is_slow_once_measures_itself_again() -> None:
    """Only it; the better figure counts, and a node that is slow twice is named."""
    cluster = Cluster(3, {"n1": SLOW_COMPUTE})
    check = begin(1, [Participant(node=node) for node in cluster.nodes])
    check = conclude(check, cluster.answers(check))
    assert check.current is not None
    assert (check.current.nodes, check.current.pairs) == (("n1",), ())
    slow_again = conclude(check, cluster.answers(check))
    assert judge(slow_again).bad() == ("n1",)
    cluster.faults = {}
    recovered = conclude(check, cluster.answers(check))
    assert judge(recovered).bad() == ()
    assert recovered.current is not None
    assert recovered.current.pairs


def test_a_failure_is_not_made_good_by_a_second_try() -> None:
    """A disk that fails now and then is a fault."""
    cluster = Cluster(3, {"n1": dataclasses.replace(SLOW_COMPUTE, hangs=Resource.DISK_WRITE)})
    check = begin(1, [Participant(node=node) for node in cluster.nodes])
    check = conclude(check, cluster.answers(check))
    cluster.faults = {}
    check = conclude(check, cluster.answers(check))
    assert judge(check).nodes["n1"].verdict is NodeVerdict.FAULTY
    assert "disk write" in judge(check).nodes["n1"].reason


# ---------------------------------------------------------------------------------- references


def test_a_single_newcomer_is_judged_by_the_reference() -> None:
    """What earlier nodes reached is what it has to reach."""
    known = references()
    assert Cluster(1, {"n0": SLOW_COMPUTE}).outcome(references=known).bad() == ("n0",)
    assert Cluster(1, {}).outcome(references=known).nodes["n0"].verdict is NodeVerdict.HEALTHY


def test_a_suspect_is_judged_by_its_own_past_too() -> None:
    """A node that was faster than its kind has to stay so."""
    cluster = Cluster(2, {})
    check = cluster.check()
    known = references_after(check, judge(check))
    quick = dict(known.own)
    quick["n0", Resource.CPU_MATMUL] += 1.0
    suspect = [Participant(node="n0", standing=CheckStanding.SUSPECT)]
    outcome = cluster.outcome(
        participants=suspect, references=dataclasses.replace(known, own=quick)
    )
    assert outcome.bad() == ("n0",)


def test_bad_nodes_leave_no_reference() -> None:
    """The reference after a check with bad nodes is that of the healthy ones."""
    faults = {f"n{at}": SLOW_COMPUTE for at in range(4)}
    check = Cluster(8, faults).check()
    after = references_after(check, judge(check))
    assert not {node for node, _ in after.own} & faults.keys()
    level = after.by_kind["cpu", Resource.CPU_MATMUL]
    assert level.good == pytest.approx(
        references().by_kind["cpu", Resource.CPU_MATMUL].good, abs=0.1
    )
    assert level.weight == 4


def test_a_reference_follows_what_is_measured() -> None:
    """Healthy figures change it by their number of nodes; those of pairs stand by themselves."""
    known = references(4)
    check = Cluster(4, {}, seed=5).check(references=known)
    after = references_after(check, judge(check))
    key = ("cpu", Resource.CPU_MATMUL)
    assert after.by_kind[key].weight == 8
    assert after.by_kind[key].good != known.by_kind[key].good
    assert {resource for kind, resource in after.by_kind if kind == "link"} == set(NETWORK)
    assert NONE.by_kind == {}

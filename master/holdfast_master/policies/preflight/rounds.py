"""A check from its first round to its outcome.

Belongs here: which round is next, what its reports add, the outcome, and what it adds to the
reference figures. Does not belong here: when a round's time is over (the caller's clock), what is
done with a verdict (`job/health`).

Rounds:

- Each node that is new or suspect measures itself. Those that would be named as slow do so once
  more, and the better figure counts: a disturbance of a second is no fault.
- Neighbours measure the network in pairs.
- Then the fastest with the slowest, so that both nodes of a slow pair meet a fast one.
- Then, only where doubt is left, the nodes in doubt with healthy partners. Of three or four nodes
  without a reference, all pairs have then met: two slow pairs look alike, and so do two healthy
  ones.

Two nodes have one pair. If it fails, the roles change once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from holdfast_master.policies.preflight.figures import (
    NO_ANSWER,
    FigureReport,
    MeasuringRound,
    Pair,
    PairTest,
    Participant,
    RoundId,
    better,
    merge,
    pair_tests,
)
from holdfast_master.policies.preflight.pair_verdicts import Network, networks
from holdfast_master.policies.preflight.references import LINK, NONE, Key, References, learn
from holdfast_master.policies.preflight.verdicts import (
    BAD,
    LinkFinding,
    NodeFinding,
    NodeVerdict,
    judge_alone,
    whole,
)
from holdfast_wire.resources import TRAITS, Resource

_FEW_NODES = 4
"""Up to so many nodes without a reference, two rounds of pairs may all be slow by one bad node or
two: all pairs are measured."""
Met = Mapping[str, AbstractSet[str]]
"""Nodes that are no partners any more: those of earlier rounds, and those of the same machine."""
MOST_PAIR_ROUNDS = 5
"""Rounds of pairs; each takes as long as its slowest pair. One bad node needs three at the most,
many bad ones more. A node in doubt after the last is undecided."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of some nodes. Immutable: `conclude` returns the next state."""

    number: int
    participants: tuple[Participant, ...]
    """In an order in which neighbours are near each other."""
    references: References = NONE
    network: bool = True
    """Nodes measure the network in pairs, too (`PreflightPolicy.network_check`)."""
    current: MeasuringRound | None
    """The open round; None: the check is over."""
    alone: Mapping[str, FigureReport] = dataclasses.field(default_factory=dict)
    """Each node's figures of itself; of two reports the better ones."""
    pair_rounds: int = 0
    """Rounds of pairs that are over."""
    tests: tuple[PairTest, ...] = ()
    silent: Mapping[str, RoundId] = dataclasses.field(default_factory=dict)
    """Nodes that did not answer, and the round."""
    mute: frozenset[RoundId] = frozenset()
    """Rounds in which none of the nodes that were asked answered: a shared cause is likelier."""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Nodes that answered that they could not measure, and the reason. They get no more pairs."""
    left_alone: frozenset[str] = frozenset()
    """Partners of those."""

    def tested(self) -> tuple[str, ...]:
        """Return the nodes that are judged and have answered so far."""
        return self._answered(trusted=False)

    def trusted(self) -> tuple[str, ...]:
        """Return the partners that have answered so far."""
        return self._answered(trusted=True)

    def _answered(self, *, trusted: bool) -> tuple[str, ...]:
        mine = (one for one in self.participants if one.is_trusted is trusted)
        return tuple(one.node for one in mine if one.node not in self.silent)

    def networks(self) -> Mapping[Resource, Network]:
        """Return the view of each resource of pairs."""
        return networks(self.tests, self.tested(), self.trusted(), self.references)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The findings of a check."""

    number: int
    """Number of the check."""
    nodes: Mapping[str, NodeFinding]
    """The verdict on each node that was new or suspect, with its reason."""
    findings: tuple[NodeFinding, ...]
    """All verdicts, by resource."""
    links: tuple[LinkFinding, ...]
    """Links that are slow between two healthy nodes."""

    def bad(self) -> tuple[str, ...]:
        """Return the nodes that are named, slow or faulty."""
        return tuple(node for node, one in self.nodes.items() if one.verdict in BAD)


def begin(
    number: int,
    participants: Iterable[Participant],
    references: References = NONE,
    *,
    network: bool = True,
) -> Check:
    """Return a check with its first round open; without a node to test it is over at once.

    Args:
        number: Number of the check, another one each time.
        participants: The nodes, neighbours beside each other; none of a running world.
        references: Figures of earlier checks.
        network: As in `Check`.
    """
    everyone = tuple(participants)
    nodes = tuple(one.node for one in everyone if not one.is_trusted)
    return Check(
        number=number,
        participants=everyone,
        references=references,
        network=network,
        current=MeasuringRound(id=RoundId(number, 0), nodes=nodes) if nodes else None,
    )


def conclude(
    check: Check, reports: Iterable[FigureReport], never_asked: Iterable[str] = ()
) -> Check:
    """Return the check after its open round, with the next round open.

    The caller decides when: all nodes have reported, or the round's time is over.

    Args:
        check: The check; one that is over is returned as it is.
        reports: Reports of the round. One of another round, or of a node without a part in it, is
            dropped (`figures.refuse` has the reason).
        never_asked: Nodes of the round that nothing was asked of, as their partners were not ready.
            They are not silent.
    """
    current = check.current
    if current is None:
        return check
    taken, missing = merge(current, reports)
    missing -= frozenset(never_asked)
    refused = {
        node: f"round {current.id.number}: {one.refused}"
        for node, one in taken.items()
        if one.refused
    }
    mute = not taken and (len(missing) >= 2 or bool(current.pairs))
    after = dataclasses.replace(
        check,
        silent=dict(check.silent) | dict.fromkeys(sorted(missing), current.id),
        mute=check.mute | {current.id} if mute else check.mute,
        refused=dict(check.refused) | refused,
        left_alone=check.left_alone.union(current.partners[node] for node in refused),
    )
    following = RoundId(check.number, current.id.number + 1)
    if current.pairs:
        tests = (*check.tests, *pair_tests(current, taken))
        after = dataclasses.replace(after, tests=tests, pair_rounds=check.pair_rounds + 1)
    elif not check.alone:
        after = dataclasses.replace(after, alone=taken)
        if again := _slow_alone(after):
            return dataclasses.replace(after, current=MeasuringRound(id=following, nodes=again))
    else:
        both = {node: better(check.alone[node], one) for node, one in taken.items()}
        after = dataclasses.replace(after, alone=dict(check.alone) | both)
    pairs = _next_pairs(after, after.pair_rounds + 1)
    return dataclasses.replace(
        after, current=MeasuringRound(id=following, pairs=pairs) if pairs else None
    )


def _slow_alone(check: Check) -> tuple[str, ...]:
    """Return the nodes that measure themselves once more, because they would be named as slow."""
    findings = judge_alone(check.alone, check.references)
    slow = {one.node for one in findings if one.verdict is NodeVerdict.SLOW}
    return tuple(node for node in check.tested() if node in slow)


def _next_pairs(check: Check, number: int) -> tuple[Pair, ...]:
    tested = tuple(one for one in check.tested() if one not in check.refused)
    trusted = tuple(one for one in check.trusted() if one not in check.refused)
    if not check.network or number > MOST_PAIR_ROUNDS or not tested:
        return ()
    met = _met(check)
    if number == 1:
        return neighbours(tested, trusted, met)
    views = check.networks()
    if len(tested) == 2 and not trusted:
        return _other_way_round(check)
    if number == 2:
        scores = {node: min(view.score(node) for view in views.values()) for node in tested}
        return extremes(scores, trusted, met)
    return _to_decide(tested, trusted, views, met)


def _other_way_round(check: Check) -> tuple[Pair, ...]:
    """Return the only pair of two nodes with changed roles, once, if it failed."""
    if len(check.tests) != 1 or not check.tests[0].errors:
        return ()
    before = check.tests[0].pair
    return (Pair(before.joins, before.serves),)


def _to_decide(
    tested: tuple[str, ...], trusted: tuple[str, ...], views: Mapping[Resource, Network], met: Met
) -> tuple[Pair, ...]:
    """Return the pairs that decide about nodes in doubt; none where there is no doubt."""
    measured = [view for view in views.values() if view.best]
    doubts = frozenset(node for view in measured for node in view.doubtful)
    doubtful = [node for node in tested if node in doubts]
    if not doubtful:
        return _few(tested, trusted, measured, met)
    proven = [one for one in (*tested, *trusted) if all(one in view.proven for view in measured)]
    return match(doubtful, proven, met) or unseen(doubtful, met)


def _few(
    tested: tuple[str, ...], trusted: tuple[str, ...], measured: Iterable[Network], met: Met
) -> tuple[Pair, ...]:
    if len(tested) > _FEW_NODES or trusted:
        return ()
    alike = any(view.reference is None and not view.named for view in measured)
    return unseen(tested, met) if alike else ()


def _met(check: Check) -> dict[str, set[str]]:
    found, machines = dict[str, set[str]](), dict[str, list[str]]()
    for one in check.participants:
        if one.machine:
            machines.setdefault(one.machine, []).append(one.node)
    for nodes in machines.values():
        for node in nodes:
            found[node] = {other for other in nodes if other != node}
    for test in check.tests:
        for node in test.pair:
            found.setdefault(node, set()).add(test.pair.other(node))
    return found


def judge(check: Check) -> CheckOutcome:
    """Return the outcome of a check; one that is not over is judged by what it has so far."""
    views = check.networks()
    findings = [
        *_silences(check),
        *_refused(check),
        *judge_alone(check.alone, check.references),
        *(finding for view in views.values() for finding in view.findings()),
    ]
    tested = frozenset(check.tested())
    findings = [one for one in findings if one.node in tested or one.node in check.silent]
    findings = _never_all(check, findings)
    by_node = {one.node: list[NodeFinding]() for one in check.participants if not one.is_trusted}
    for one in findings:
        if one.node in by_node:
            by_node[one.node].append(one)
    named = {one.node for one in findings if one.verdict in BAD}
    links = (link for view in views.values() for link in view.links())
    return CheckOutcome(
        number=check.number,
        nodes={node: whole(node, own) for node, own in by_node.items()},
        findings=tuple(findings),
        links=tuple(link for link in links if named.isdisjoint(link.pair)),
    )


def _silences(check: Check) -> list[NodeFinding]:
    tail = "; no node answered, so the cause is not one of them"
    return [
        NodeFinding(
            node=node,
            resource=None,
            verdict=NodeVerdict.UNDECIDED if at in check.mute else NodeVerdict.FAULTY,
            reason=f"round {at.number}: {NO_ANSWER}{tail if at in check.mute else ''}",
        )
        for node, at in check.silent.items()
    ]


def _refused(check: Check) -> list[NodeFinding]:
    """Return findings on nodes that refused, and on those that met nobody because of that."""
    met = {node for test in check.tests for node in test.pair}
    without = check.left_alone - met - {""} - set(check.refused)
    text = "the network: its partner could not measure"
    whys = dict(check.refused) | dict.fromkeys(sorted(without), text)
    return [
        NodeFinding(node=node, resource=None, verdict=NodeVerdict.UNDECIDED, reason=why)
        for node, why in whys.items()
    ]


def _never_all(check: Check, findings: list[NodeFinding]) -> list[NodeFinding]:
    """Take back the verdicts on nodes that answered, where they name every node of a check."""
    answered = check.tested()
    named = {one.node for one in findings if one.verdict in BAD}
    if len(answered) < 2 or not named.issuperset(answered):
        return findings
    text = "; each node that answered has a fault, so none is named"
    return [
        dataclasses.replace(one, verdict=NodeVerdict.UNDECIDED, reason=one.reason + text)
        if one.verdict in BAD and one.node in answered
        else one
        for one in findings
    ]


def references_after(check: Check, outcome: CheckOutcome) -> References:
    """Return the references with the figures of this check's healthy nodes.

    A figure that nothing could be compared with is taken, too: it is the first of its kind.
    """
    own = dict[tuple[str, Resource], float]()
    found = dict[Key, list[float]]()
    bad = set(outcome.bad())
    for one in outcome.findings:
        usable = one.verdict is NodeVerdict.HEALTHY or not one.compared
        if one.resource is None or one.good is None or one.node in bad or not usable:
            continue
        own[one.node, one.resource] = one.good
        of_pair = TRAITS[one.resource].of_pair
        kind = LINK if of_pair or one.node not in check.alone else check.alone[one.node].kind
        found.setdefault((kind, one.resource), []).append(one.good)
    return learn(check.references, found, own)


def neighbours(nodes: Sequence[str], spare: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of neighbours in the given order; who is left over gets one of the spare."""
    left, pairs, odd = dict.fromkeys(nodes), list[Pair](), list[str]()
    while left:
        node = next(iter(left))
        del left[node]
        partner = next((one for one in left if one not in met.get(node, ())), None)
        if partner is None:
            odd.append(node)
        else:
            del left[partner]
            pairs.append(Pair(node, partner))
    return (*pairs, *match(odd, spare, met))


def extremes(scores: Mapping[str, float], spare: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of the fastest with the slowest, none for the second time.

    Args:
        scores: Score of each tested node, in a fixed order; more is better. A node without a
            partner so far has minus infinity.
        spare: Trusted nodes. They are partners where the tested nodes are too few or odd.
        met: Partners of earlier rounds.
    """
    slowest_first = sorted(scores, key=lambda node: scores[node])
    half = len(slowest_first) // 2
    if len(slowest_first) <= 2 and spare:
        return match(slowest_first, spare, met)
    needy, fast = slowest_first[:half], slowest_first[:half:-1]
    middle = slowest_first[half]
    if len(slowest_first) % 2 == 0:
        fast.append(middle)
        return match(needy, fast, met)
    # The odd one in the middle goes without, unless a spare can take it.
    return (*match(needy, fast, met), *match([middle], spare, met))


def match(needy: Sequence[str], partners: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return a pair for each needy node, in order, with the first partner that it has not met.

    Where all that are left have been met, it changes partners with a pair before.
    """
    left = dict.fromkeys(partners)
    for node in needy:
        left.pop(node, None)
    made = dict[str, str]()
    for node in needy:
        free = next((one for one in left if one not in met.get(node, ())), None)
        if free is not None:
            del left[free]
            made[node] = free
        elif (swap := _swap(node, made, left, met)) is not None:
            earlier, other = swap
            del left[other]
            made[node], made[earlier] = made[earlier], other
    return tuple(Pair(partner, node) for node, partner in made.items())


def _swap(
    node: str, made: Mapping[str, str], left: Collection[str], met: Met
) -> tuple[str, str] | None:
    for earlier, partner in reversed(list(made.items())):
        if partner in met.get(node, ()):
            continue
        for other in left:
            if other not in met.get(earlier, ()):
                return earlier, other
    return None


def unseen(nodes: Sequence[str], met: Met) -> tuple[Pair, ...]:
    """Return pairs of nodes that have not met, each node once, in the given order."""
    taken, pairs = set[str](), list[Pair]()
    for one, other in itertools.combinations(nodes, 2):
        if not {one, other} & taken and other not in met.get(one, ()):
            pairs.append(Pair(one, other))
            taken |= {one, other}
    return tuple(pairs)

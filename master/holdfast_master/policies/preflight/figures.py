"""Reports of nodes about themselves and about pairs, and the round that they belong to.

Belongs here: the values that come in, and their fit to a round. Does not belong here: who is
measured next (`rounds`), what follows from a figure (`verdicts`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast_wire.resources import TRAITS, Resource, goodness

NO_ANSWER = "no answer until the round's deadline"


class RoundId(NamedTuple):
    """The name of one round of one check; each report carries it."""

    check: int
    """Number of the check; each check of a job has another one."""
    number: int
    """From 0 on, in order."""


class Pair(NamedTuple):
    """Two nodes that measure the network between them."""

    serves: str
    """The node that listens."""
    joins: str
    """The node that connects."""

    def other(self, node: str) -> str:
        """Return the partner of a node of this pair."""
        return self.joins if node == self.serves else self.serves


class CheckStanding(enum.Enum):
    """Reason for a node's part in a check."""

    NEW = "new"
    """It has not been checked yet."""
    SUSPECT = "suspect"
    """It was checked before, and something speaks against it."""
    TRUSTED = "trusted"
    """It was found healthy and is idle: it is a partner for the others and is not judged."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One node of a check. No node of a running world may be one."""

    node: str
    standing: CheckStanding = CheckStanding.NEW
    machine: str = ""
    """Machine that it is on; "": unknown. Two nodes of one machine are no pair: between them there
    is no link that others have."""

    @property
    def is_trusted(self) -> bool:
        """True: it is a partner for the others and is not judged."""
        return self.standing is CheckStanding.TRUSTED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value, or the reason why there is none."""

    resource: Resource
    value: float = 0.0
    """In the resource's unit."""
    subject: str = ""
    """Device or folder that was measured."""
    error: str = ""
    """It failed or hung; the value means nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureReport:
    """Figures of one node from one round."""

    round: RoundId
    node: str
    partner: str = ""
    """Rounds of pairs: the other node."""
    kind: str = ""
    """Hardware of the node. Only nodes of one kind are compared with each other."""
    figures: tuple[Figure, ...] = ()
    refused: str = ""
    """Why the node measured nothing, as it says itself; empty: it measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuringRound:
    """One round: who measures, and with whom."""

    id: RoundId
    nodes: tuple[str, ...] = ()
    """Nodes that measure themselves."""
    pairs: tuple[Pair, ...] = ()
    """Or pairs without a common node; all of them measure at the same time."""

    @functools.cached_property
    def partners(self) -> Mapping[str, str]:
        """The partner of each node; "" where it measures itself."""
        found = dict.fromkeys(self.nodes, "")
        for pair in self.pairs:
            found |= {pair.serves: pair.joins, pair.joins: pair.serves}
        return found

    @functools.cached_property
    def servers(self) -> frozenset[str]:
        """The nodes that listen for their partner."""
        return frozenset(pair.serves for pair in self.pairs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PairTest:
    """The outcome of one pair in one round."""

    pair: Pair
    number: int
    """Number of the round."""
    good: Mapping[Resource, float]
    """Goodness by resource, the worse of both nodes' figures; minus infinity where one failed."""
    errors: Mapping[Resource, str]


def refuse(current: MeasuringRound | None, report: FigureReport) -> str:
    """Return the reason why a report does not belong to the current round, or ""."""
    if current is None:
        return "no round is open"
    if report.round != current.id:
        return f"it belongs to round {tuple(report.round)}, this is {tuple(current.id)}"
    partners = current.partners
    if report.node not in partners:
        return f"node {report.node} has no part in round {tuple(current.id)}"
    if partners[report.node] != report.partner:
        return f"node {report.node} measures with {partners[report.node]!r} in this round"
    return ""


def merge(
    current: MeasuringRound, reports: Iterable[FigureReport]
) -> tuple[dict[str, FigureReport], frozenset[str]]:
    """Return the reports that belong to a round, by node, and the nodes that sent none."""
    taken = {one.node: one for one in reports if not refuse(current, one)}
    return taken, frozenset(current.partners) - frozenset(taken)


def pair_tests(current: MeasuringRound, taken: Mapping[str, FigureReport]) -> tuple[PairTest, ...]:
    """Return one outcome for each pair of a round of which both nodes answered and measured.

    Where one refused, the other found nobody there: that says nothing of either of them.
    """
    tests = []
    for pair in current.pairs:
        both = [taken[node] for node in pair if node in taken and not taken[node].refused]
        if len(both) == 2:
            figures = [figure for one in both for figure in one.figures]
            tests.append(_pair_test(pair, current.id.number, figures))
    return tuple(tests)


def _pair_test(pair: Pair, number: int, figures: Iterable[Figure]) -> PairTest:
    good = dict[Resource, float]()
    errors = dict[Resource, str]()
    for figure in figures:
        if not TRAITS[figure.resource].of_pair:
            continue
        if figure.error:
            errors.setdefault(figure.resource, figure.error)
        value = goodness(figure.resource, 0.0 if figure.error else figure.value)
        good[figure.resource] = min(value, good.get(figure.resource, value))
    return PairTest(pair=pair, number=number, good=good, errors=errors)


def better(first: FigureReport, second: FigureReport) -> FigureReport:
    """Return a node's first report with the better figure of both; a failure stays."""
    again = {(one.resource, one.subject): one for one in second.figures}
    figures = (
        max((one, again.get((one.resource, one.subject), one)), key=_worth) for one in first.figures
    )
    return dataclasses.replace(first, figures=tuple(figures))


def _worth(figure: Figure) -> tuple[bool, float]:
    """Order figures of one device for `better`: a failure goes before every value."""
    return bool(figure.error), goodness(figure.resource, figure.value)


def worst(figures: Iterable[Figure]) -> dict[Resource, Figure]:
    """Return each resource's worst figure among a node's devices; a failed one is the worst."""
    found = dict[Resource, Figure]()
    for figure in figures:
        before = found.get(figure.resource)
        if before is None or _quality(figure) < _quality(before):
            found[figure.resource] = figure
    return found


def _quality(figure: Figure) -> tuple[bool, float]:
    return not figure.error, goodness(figure.resource, figure.value)

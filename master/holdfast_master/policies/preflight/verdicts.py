"""Verdicts on nodes, on links between them, and on what every node has by itself.

Belongs here: the four verdicts, and the judgement of figures that one node has alone. Does not
belong here: figures of pairs (`pair_verdicts`), the choice of who is measured (`rounds`).

Each resource is judged by itself: figures of different resources are never added up, so a fast
processor hides no slow link. Where all nodes of a test fall short, the cause is shared or the
reference is wrong, and nobody is named.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Mapping

from holdfast_master.policies.preflight.figures import Figure, FigureReport, Pair, worst
from holdfast_master.policies.preflight.references import References, group_margin
from holdfast_wire.resources import (
    TRAITS,
    Resource,
    amount,
    broken_limit,
    goodness,
    label,
    level_of,
    margin,
    share,
    value_of,
)


class NodeVerdict(enum.IntEnum):
    """Judgement of a node; the larger one counts where a node has several."""

    HEALTHY = 0
    UNDECIDED = 1
    """It may join. The figures do not tell whether it, another one or something shared is slow; or
    there is nothing to compare them with."""
    SLOW = 2
    """It works, and is slower than its reference."""
    FAULTY = 3
    """A measurement failed or hung, it did not answer, or it breaks a limit."""


BAD = (NodeVerdict.SLOW, NodeVerdict.FAULTY)
"""Verdicts that name a node."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinding:
    """The verdict on one node for one resource."""

    node: str
    resource: Resource | None
    """None: it is about the node as a whole."""
    verdict: NodeVerdict
    reason: str
    good: float | None = None
    """Goodness of the figure; None: there is none."""
    compared: bool = True
    """False: there was nothing to compare the figure with. It may become the reference."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkFinding:
    """A link that is slow between two nodes that are not."""

    pair: Pair
    resource: Resource
    reason: str


def judge_alone(reports: Mapping[str, FigureReport], references: References) -> list[NodeFinding]:
    """Return the findings about the figures that each node has by itself.

    Args:
        reports: Report of round 0, by node.
        references: Figures of earlier checks.
    """
    figures = {node: worst(one.figures) for node, one in reports.items()}
    findings = list[NodeFinding]()
    for resource in Resource:
        if TRAITS[resource].of_pair:
            continue
        measured = {node: own[resource] for node, own in figures.items() if resource in own}
        hard = _hard_faults(resource, measured)
        findings += _hard_findings(resource, hard, len(measured))
        for kind in sorted({reports[node].kind for node in measured}):
            group = {
                node: figure
                for node, figure in measured.items()
                if node not in hard and reports[node].kind == kind
            }
            findings += _Group(kind, resource, group, references).judge()
    return findings


def _hard_faults(resource: Resource, measured: Mapping[str, Figure]) -> dict[str, str]:
    """Return the reason of each node whose figure is a fault whatever other nodes have."""
    found = dict[str, str]()
    for node, figure in measured.items():
        where = f" ({figure.subject})" if figure.subject else ""
        text = f"{label(resource)}{where}: {figure.error}" if figure.error else ""
        if reason := text or broken_limit(resource, figure.value):
            found[node] = reason
    return found


def _hard_findings(resource: Resource, hard: Mapping[str, str], measured: int) -> list[NodeFinding]:
    shared = len(hard) == measured >= 2
    verdict = NodeVerdict.UNDECIDED if shared else NodeVerdict.FAULTY
    tail = f"; so it is on all {measured} nodes, the cause is probably shared" if shared else ""
    return [
        NodeFinding(node=node, resource=resource, verdict=verdict, reason=reason + tail)
        for node, reason in hard.items()
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Nodes with hardware of one kind, and their figures of one resource."""

    kind: str
    resource: Resource
    figures: Mapping[str, Figure]
    references: References

    def judge(self) -> list[NodeFinding]:
        """Return one finding for each node."""
        if not self.figures:
            return []
        if math.isinf(margin(self.resource)):
            text = f"{label(self.resource)} is within its limits"
            return [self._finding(node, NodeVerdict.HEALTHY, text) for node in self.figures]
        goods = {node: self._good(node) for node in self.figures}
        of = self.references.of
        targets = {node: of(node, self.kind, self.resource) for node in goods}
        known = {node: target for node, target in targets.items() if target is not None}
        width = group_margin(self.resource, goods.values())
        short = {node for node, target in known.items() if goods[node] < target - width}
        if len(known) < len(goods) or (len(short) == len(goods) >= 2):
            return self._by_peers(goods, width, short)
        return [self._against(node, "reference", known[node], slow=node in short) for node in goods]

    def _by_peers(
        self, goods: Mapping[str, float], width: float, short: set[str]
    ) -> list[NodeFinding]:
        """Judge nodes by each other: there is no reference, or all of them fall short of it."""
        if len(goods) == 1:
            (node,) = goods
            text = f"{label(self.resource)}: one node and no reference figure"
            return [self._finding(node, NodeVerdict.UNDECIDED, text, compared=False)]
        level = level_of(goods.values())
        slow = {node for node, good in goods.items() if good < level - width}
        most = 2 * len(slow) > len(goods)
        findings = list[NodeFinding]()
        for node in goods:
            if node in slow and most:
                text = self._text(node, "fastest quarter", level)
                text = f"{text}; so are most, of two kinds perhaps"
                findings.append(self._finding(node, NodeVerdict.UNDECIDED, text))
            elif node in short and node not in slow:
                text = f"{label(self.resource)}: all {len(goods)} nodes fall short of the reference"
                findings.append(self._finding(node, NodeVerdict.UNDECIDED, text))
            else:
                findings.append(self._against(node, "other nodes", level, slow=node in slow))
        return findings

    def _against(self, node: str, what: str, target: float, *, slow: bool) -> NodeFinding:
        verdict = NodeVerdict.SLOW if slow else NodeVerdict.HEALTHY
        return self._finding(node, verdict, self._text(node, what, target))

    def _text(self, node: str, what: str, target: float) -> str:
        return compared_text(self.resource, self._good(node), what, target)

    def _finding(
        self, node: str, verdict: NodeVerdict, reason: str, *, compared: bool = True
    ) -> NodeFinding:
        subject = self.figures[node].subject
        return NodeFinding(
            node=node,
            resource=self.resource,
            verdict=verdict,
            reason=f"{subject}: {reason}" if subject else reason,
            good=self._good(node),
            compared=compared,
        )

    def _good(self, node: str) -> float:
        return goodness(self.resource, self.figures[node].value)


def compared_text(resource: Resource, good: float, what: str, target: float) -> str:
    """Return the sentence that compares a figure with a reference."""
    value, reference = value_of(resource, good), value_of(resource, target)
    if not (math.isfinite(value) and reference):
        return f"{label(resource)} failed"
    return (
        f"{label(resource)} is {amount(resource, value)}, {share(resource, value, reference):.0%} "
        f"of the {amount(resource, reference)} of the {what}"
    )


def whole(node: str, findings: Iterable[NodeFinding]) -> NodeFinding:
    """Return the verdict on a node: that of its worst resource, with every reason of that kind."""
    own = list(findings)
    verdict = max((one.verdict for one in own), default=NodeVerdict.UNDECIDED)
    reasons = [one.reason for one in own if one.verdict is verdict]
    text = "; ".join(dict.fromkeys(reasons)) or "nothing was measured"
    if verdict is NodeVerdict.HEALTHY:
        text = f"{len(own)} resources are as they should be"
    return NodeFinding(node=node, resource=None, verdict=verdict, reason=text)

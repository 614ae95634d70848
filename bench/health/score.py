"""The score of a rule on traces: found, missed, when, and false alarms. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bench.health.generator import Flags, Trace

WEEK_SECONDS = 7 * 86_400.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One rule on one trace. Counts are of nodes: a node is what a job can go on without."""

    slow: int
    """Nodes with a slow rank."""
    delays: tuple[int, ...]
    """Steps from the first slow one until the accusation, of each node that was found."""
    left: int
    """Steps from the first slow one until the trace's end."""
    false_alarms: int
    """Times that a node began to be accused which was not slow."""
    healthy_weeks: float
    """Node-weeks that nodes were not slow."""


def score(trace: Trace, accused: Flags, steps: int) -> Score:
    """Return the score of accusations [windows, ranks]."""
    nodes = len(trace.reference)
    by_node = np.zeros((len(accused), nodes), bool)
    for node in range(nodes):
        by_node[:, node] = accused[:, trace.node == node].any(axis=1)
    ends = (np.arange(len(accused)) + 1) * steps
    truth = (ends[:, None] > trace.onset) & trace.slow_nodes
    wrong = by_node & ~truth
    began = wrong[1:] & ~by_node[:-1]
    delays = []
    for node in np.flatnonzero(trace.slow_nodes).tolist():
        hits = np.flatnonzero(by_node[:, node] & truth[:, node])
        if len(hits):
            delays.append(int(ends[hits[0]] - trace.onset))
    return Score(
        slow=int(trace.slow_nodes.sum()),
        delays=tuple(delays),
        left=len(trace.local) - trace.onset,
        false_alarms=int(began.sum() + (wrong[0].sum() if len(wrong) else 0)),
        healthy_weeks=healthy_weeks(trace),
    )


def healthy_weeks(trace: Trace) -> float:
    """Return the node-weeks of a trace in which a node was not slow."""
    wall = trace.wall.astype(float)
    slow = trace.slow_nodes.sum()
    seconds = (len(trace.reference) - slow) * wall.sum() + slow * wall[: trace.onset].sum()
    return float(seconds / WEEK_SECONDS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One rule on many traces."""

    rule: str
    steps: int
    """Of a window."""
    traces: int
    slow: int
    found: int
    false_alarms: int
    node_weeks: float
    delay_median: float
    """Steps, of those found."""
    delay_mean: float
    """Steps; a node that was missed counts as found at its trace's end."""

    @property
    def recall(self) -> float:
        """Return the share of slow nodes that were accused."""
        return self.found / self.slow if self.slow else 0.0

    @property
    def precision(self) -> float:
        """Return the share of accusations that were right."""
        accused = self.found + self.false_alarms
        return self.found / accused if accused else 0.0

    @property
    def false_rate(self) -> float:
        """Return false alarms in 1,000 node-weeks."""
        return 1000 * self.false_alarms / self.node_weeks if self.node_weeks else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def total(rule: str, steps: int, scores: Sequence[Score]) -> Total:
    """Add up scores."""
    delays = [delay for one in scores for delay in one.delays]
    missed = [one.left for one in scores for _ in range(one.slow - len(one.delays))]
    return Total(
        rule=rule,
        steps=steps,
        traces=len(scores),
        slow=sum(one.slow for one in scores),
        found=len(delays),
        false_alarms=sum(one.false_alarms for one in scores),
        node_weeks=sum(one.healthy_weeks for one in scores),
        delay_median=float(np.median(delays)) if delays else 0.0,
        delay_mean=float(np.mean(delays + missed)) if delays or missed else 0.0,
    )

"""The scores of rules on traces: found, missed, when, and false alarms.

Belongs here: the score of one trace, the totals as lines of a results file, and which rules see
which traces in which windows. Does not belong here: a rule (`rules`), the page of the lines.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.harness.record import Line
from bench.health import recorder
from bench.health.generator import Flags, Trace, make
from bench.health.rules import PEERS, POLICY, RULES, holdfast

ALL = "all"
OURS = "holdfast"
SWEEP = 25
"""Each such trace is judged with other windows and votes, too."""
SWEEP_WINDOWS = (5, 10, 25, 50)
VOTES = ((1, 1), (2, 3), (3, 5))

Accuse = Callable[[Trace, int], Flags]
Map = Callable[..., Iterable[Any]]
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


def rows(rules: Mapping[str, Accuse], seeds: Sequence[int], each: Map = map) -> Iterator[Line]:
    """Judge the traces of these seeds; yield a line for each rule and each kind of trace."""
    scores: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for kind, found in each(functools.partial(_judged, rules), seeds):
        for name, one in found.items():
            scores[name, ALL].append(one)
            scores[name, kind].append(one)
    for (name, kind), ones in scores.items():
        line = dataclasses.asdict(total(name, POLICY.window_steps, ones))
        yield {"what": "rule", "kind": kind, **line}


def _judged(rules: Mapping[str, Accuse], seed: int) -> tuple[str, dict[str, Score]]:
    trace, steps = make(seed), POLICY.window_steps
    return trace.kind, {
        name: score(trace, accuse(trace, steps), steps) for name, accuse in rules.items()
    }


def sweep(seeds: Sequence[int], each: Map = map) -> Iterator[Line]:
    """Judge with other windows, and ours with other votes."""
    scores: dict[tuple[str, int], list[Score]] = defaultdict(list)
    for found in each(_swept, seeds):
        for (name, steps), one in found.items():
            scores[name, steps].append(one)
    for (name, steps), ones in scores.items():
        yield {"what": "sweep", **dataclasses.asdict(total(name, steps, ones))}


def _swept(seed: int) -> dict[tuple[str, int], Score]:
    rules = {name: RULES[name].accuse for name in PEERS}
    for votes, out_of in VOTES:
        policy = dataclasses.replace(POLICY, votes=votes, votes_out_of=out_of)
        rules[f"{OURS}, {votes} of {out_of}"] = functools.partial(holdfast, policy)
    trace = make(seed)
    return {
        (name, steps): score(trace, accuse(trace, steps), steps)
        for steps in SWEEP_WINDOWS
        for name, accuse in rules.items()
    }


def real() -> Iterator[Line]:
    """Judge the recorded runs."""
    for one in recorder.load_all():
        trace = recorder.trace_of(one)
        for name in RULES:
            if name != "dlrover":  # it has a score of its own check, which no run contains
                accused = RULES[name].accuse(trace, recorder.WINDOW_STEPS)
                found = score(trace, accused, recorder.WINDOW_STEPS)
                line = {"cause": one.cause, "rule": name, "steps": len(trace.local)}
                yield {"what": "recorded", **line, **dataclasses.asdict(found)}

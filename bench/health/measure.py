"""The measurement: each trace judged by each rule, and the totals as lines of a results file.

Belongs here: which rules see which traces in which windows. Does not belong here: a rule (`rules`),
the score of one trace (`score`), the page of the lines (`page`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.health import recorded
from bench.health.generator import Flags, Trace, make
from bench.health.page import ALL, OURS
from bench.health.rules import PEERS, POLICY, RULES, holdfast
from bench.health.score import Score, score, total

SWEEP = 25
"""Each such trace is judged with other windows and votes, too."""
SWEEP_WINDOWS = (5, 10, 25, 50)
VOTES = ((1, 1), (2, 3), (3, 5))

Accuse = Callable[[Trace, int], Flags]
Line = dict[str, Any]
Map = Callable[..., Iterable[Any]]


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
    for one in recorded.load_all():
        trace = recorded.trace_of(one)
        for name in RULES:
            if name != "dlrover":  # it has a score of its own check, which no run contains
                accused = RULES[name].accuse(trace, recorded.WINDOW_STEPS)
                found = score(trace, accused, recorded.WINDOW_STEPS)
                line = {"cause": one.cause, "rule": name, "steps": len(trace.local)}
                yield {"what": "recorded", **line, **dataclasses.asdict(found)}

"""The page of a results file. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import machine
from bench.harness.page import kept, table
from bench.harness.record import Line
from bench.health.generator import KINDS
from bench.health.rules import PEERS, RULES
from bench.health.score import ALL, OURS, Total

RECALL_BAR = 0.99
FALSE_BAR = 1.0
"""False verdicts in 1,000 node-weeks."""
EARLIER_BAR = 2.0
USEFUL_RECALL = 0.5


def read_total(line: Line) -> Total:
    """Return the total of a line."""
    return Total(**{name: line[name] for name in Total.__dataclass_fields__})


def page_of(about: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the page's text."""
    rules = [one for one in lines if one["what"] == "rule"]
    sweep = [read_total(one) for one in lines if one["what"] == "sweep"]
    whole = [one for one in rules if one["kind"] == ALL]
    ours = next(read_total(one) for one in whole if one["rule"] == OURS)
    last = about["first"] + ours.traces - 1
    parts = [
        _INTRO.format(traces=ours.traces, first=about["first"], last=last),
        machine.sentence(about) + "\n",
        overview(whole),
        _READING,
        "## The bars\n",
        _bars(ours, sweep),
        _SWEEP_INTRO.format(traces=sweep[0].traces if sweep else 0),
        _sweep(sweep),
        "## By kind of trace\n",
        _kinds(rules),
        _RECORDED_INTRO,
        _recorded([one for one in lines if one["what"] == "recorded"]),
        _OWN,
    ]
    return "\n".join(parts)


def overview(lines: Sequence[Line]) -> str:
    """Return the table of rules."""
    head = (
        *("rule", "precision", "recall", "false alarms in 1,000 node-weeks"),
        *("delay, median", "delay, mean with misses"),
    )
    body = []
    for one in map(read_total, lines):
        rate = f"{one.false_rate:,.1f} ({one.false_alarms:,} in {one.node_weeks:,.0f})"
        said = f", {RULES[one.rule].text}" if one.rule in RULES else ""
        percents = [f"{100 * value:.1f} %" for value in (one.precision, one.recall)]
        body.append([one.rule + said, *percents, rate, *_delays(one)])
    return table(head, body)


def _delays(one: Total) -> list[str]:
    return [f"{one.delay_median:.0f}" if one.found else "–", f"{one.delay_mean:.0f}"]


# ------------------------------------------------------------------------------------- the bars


def best_peers(sweep: Sequence[Total]) -> list[Total]:
    """Return the peers' settings with the best F1: of all, and of those that find at least half."""
    peers = sorted((one for one in sweep if one.rule in PEERS), key=lambda one: -one.f1)
    found = peers[:1] + [one for one in peers if one.recall >= USEFUL_RECALL][:1]
    return list(dict.fromkeys(found))


def at_its_rate(sweep: Sequence[Total], peer: Total) -> Total | None:
    """Return our earliest settings that have no more false alarms than the peer."""
    ours = [one for one in sweep if one.rule.startswith(OURS)]
    fit = [one for one in ours if one.false_alarms <= peer.false_alarms]
    return min(fit, key=lambda one: (one.delay_mean, one.delay_median), default=None)


def _bars(ours: Total, sweep: Sequence[Total]) -> str:
    most = 1000 * upper(ours.false_alarms) / ours.node_weeks
    sure = f"with 95 % confidence below {most:.1f}"
    rows = [
        [
            f"recall ≥ {100 * RECALL_BAR:.0f} %",
            f"{100 * ours.recall:.2f} %",
            kept(ours.recall >= RECALL_BAR),
        ],
        [
            f"≤ {FALSE_BAR:.0f} false verdict in 1,000 node-weeks",
            f"{ours.false_rate:.2f} ({ours.false_alarms} in {ours.node_weeks:,.0f}; {sure})",
            kept(ours.false_rate <= FALSE_BAR),
        ],
    ]
    for peer in best_peers(sweep):
        rows += _earlier(peer, at_its_rate(sweep, peer))
    return table(("bar", "measured", "held"), rows)


def upper(count: int) -> float:
    """Return the mean of a Poisson process that has so few events in 5 % of cases only."""
    low, high = 0.0, 10.0 + 3 * count
    for _ in range(60):
        mean = (low + high) / 2
        chance = sum(mean**k * math.exp(-mean) / math.factorial(k) for k in range(count + 1))
        low, high = (mean, high) if chance > 0.05 else (low, mean)
    return high


def _earlier(peer: Total, ours: Total | None) -> list[list[str]]:
    text = (
        f"≥ {EARLIER_BAR:.0f} × earlier than {peer.rule} in windows of {peer.steps} steps, "
        f"which finds {100 * peer.recall:.0f} %, at its false-alarm rate"
    )
    if ours is None or not ours.found:
        return [[text, "no settings with so few false alarms find anybody", kept(False)]]
    settings = f"({ours.rule}, {ours.steps} steps)"
    return [
        [
            f"{text}: {name}",
            f"{mine:.0f} for {theirs:.0f} steps: {theirs / mine:.1f} × {settings}",
            kept(theirs >= EARLIER_BAR * mine),
        ]
        for name, theirs, mine in (
            ("mean with misses", peer.delay_mean, ours.delay_mean),
            ("median of those found", peer.delay_median, ours.delay_median),
        )
    ]


def _sweep(sweep: Sequence[Total]) -> str:
    head = (
        *("rule", "steps of a window", "precision", "recall"),
        *("false alarms in 1,000 node-weeks", "delay, median", "delay, mean with misses"),
    )
    body = [
        [
            *(one.rule, str(one.steps), f"{100 * one.precision:.1f} %"),
            *(f"{100 * one.recall:.1f} %", f"{one.false_rate:,.1f}", *_delays(one)),
        ]
        for one in sorted(sweep, key=lambda one: (one.rule, one.steps))
    ]
    return table(head, body)


def _kinds(rules: Sequence[Line]) -> str:
    names = [OURS, *PEERS]
    by = {(one["kind"], one["rule"]): read_total(one) for one in rules}
    body = []
    for kind in KINDS:
        if (kind, OURS) in by:
            counts = [str(by[kind, OURS].traces), str(by[kind, OURS].slow)]
            body.append([kind, *counts, *(_cell(by.get((kind, name))) for name in names)])
    return table(("kind", "traces", "slow nodes", *names), body)


def _cell(one: Total | None) -> str:
    return "–" if one is None else f"{one.found} / {one.false_alarms:,}"


def _recorded(lines: Sequence[Line]) -> str:
    rules = list(dict.fromkeys(one["rule"] for one in lines))
    body = []
    for cause in dict.fromkeys(one["cause"] for one in lines):
        mine = {one["rule"]: one for one in lines if one["cause"] == cause}
        steps = str(next(iter(mine.values()))["steps"])
        body.append([cause, steps, *(_said(mine[rule]) for rule in rules)])
    return table(("run", "steps", *rules), body)


def _said(one: Line) -> str:
    found = f"found after {one['delays'][0]} steps" if one["delays"] else "missed"
    parts = [found] if one["slow"] else []
    if one["false_alarms"]:
        parts.append(f"{one['false_alarms']} false")
    return ", ".join(parts) or "–"


_INTRO = """\
# Stragglers: who is found, when, and who is wrongly accused

Generated from [health.jsonl](health.jsonl) by `python -m bench.health --publish`.

Each rule judges the same {traces:,} seeded traces (seeds {first} to {last}): local times of each
rank in each step. Most have no straggler, but causes that are easily taken for one. The policy of
the master ([design](../design/0031-health.md)) runs as shipped, with the defaults of a job's file:
windows of 50 steps, 3 votes of 5, 20 %. It was tuned on other seeds, from 1,000,000 on. The
generator and the policy have the same authors: it has no fault that they did not think of.
"""
_READING = """\
- A slow node is found by its first accusation after its first slow step; slowdowns are 25 to 200 %
  of a step. Delay is in steps until the end of that window. In the mean a node that was missed
  counts as found at its trace's end.
- A false alarm is each time that a node begins to be accused which is not slow. Precision is found
  nodes over found nodes and false alarms.
- Node-weeks are the wall times of all steps of all traces, for each node, without the time in which
  it is slow. A step takes 1 to 32 s.
- The rules of peers are their published thresholds on these local times, in the same windows:
  NVRx's relative and individual scores, Megatron's deviation, DLRover's check at the job's start.
  Nothing else of these products is judged. They judge each window by itself; ours counts votes.
  Ours also uses what a script declares (work, checkpoints, evaluations, equal ranks) in the traces
  that have it, and the check at the start.
"""
_SWEEP_INTRO = """\
The last bars compare settings on each 25th trace ({traces:,}): peers' rules and ours in windows of
5, 10, 25 and 50 steps, ours with 1 of 1, 2 of 3 and 3 of 5 votes. Peers are taken in the setting
of the best F1: of all, and of those that find at least half. Ours are the earliest settings that
have no more false alarms than the peer. The median of those found favours a rule that finds only
the slowest.
"""
_RECORDED_INTRO = """\
Cells are found nodes / false alarms.

## Real runs

Four ranks on one machine, DDP on gloo, recorded with torch's flight recorder
([traces](../../bench/health/traces)) by `python -m bench.health.recorder`, aligned by the master's
own code, in windows of 20 steps. In *slow* runs rank 2 sleeps longer from step 120 on. The machine
had two cores and much other work: a step took 65 to 320 ms of which 30 ms were slept, so these runs
show what noise does. Ours misses *slow loader*: it learned the noise in the first windows, when the
machine was busy, and does not unlearn it.
"""
_OWN = """\
## Your own rule

A rule is a function from a trace to accusations, an array of windows and ranks. Write a file:

```python
import numpy as np


def accuse(trace, steps):
    # trace.local is [steps, ranks] in seconds; see bench/health/generator.py for the rest.
    count = len(trace.local) // steps
    windows = trace.local[: count * steps].reshape(count, steps, -1)
    now = np.median(windows, axis=1)
    usual = np.median(now[1:6], axis=0)  # of each rank's own past
    change = now / usual
    excess = change / np.median(change, axis=1, keepdims=True)
    slow = excess > 1.3
    slow[:6] = False
    votes = np.cumsum(slow, axis=0)
    votes[3:] -= votes[:-3].copy()
    return votes == 3  # in three windows, one after another
```

`python -m bench.health --rule mine.py` prints its row and the oracle's on the published seeds, in
minutes. `--traces 500` is a quick look. To have it in this table, put the function into
`bench/health/rules.py` and a line into `RULES`.
"""

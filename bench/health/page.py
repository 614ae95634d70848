"""The page of a results file. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import machine
from bench.harness.page import fill, kept, table
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
    return fill(
        "health/page",
        traces=f"{ours.traces:,}",
        first=str(about["first"]),
        last=str(about["first"] + ours.traces - 1),
        run=machine.sentence(about),
        overview=overview(whole),
        bars=_bars(ours, sweep),
        swept=f"{sweep[0].traces if sweep else 0:,}",
        sweep=_sweep(sweep),
        kinds=_kinds(rules),
        recorded=_recorded([one for one in lines if one["what"] == "recorded"]),
    )


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

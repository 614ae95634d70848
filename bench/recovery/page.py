"""The page of a run: what is promised, then a section for each fault. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.harness import machine
from bench.harness.page import (
    Verdict,
    at_most,
    fill,
    judged,
    load_range,
    promises,
    ratio,
    table,
    times,
)
from bench.recovery.results import OURS, RECOVERED, Result

_MEASURED = ("crash", "node-lost", "rejoin", "agent-frozen", "node-frozen")
_PAUSE_COUNTS = frozenset({"rejoin"})
"""The subject of the ratio is the pause of the rank that trained on, not the whole time."""
_BY_RANK = frozenset({"node-lost", "rejoin"})
"""Which rank is hit makes a difference, so ranks have rows of their own."""


def page(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the whole page."""
    promised = ""
    if any(result.case.system == OURS for result in results):
        columns = {"promise (medians)": "text", "at": "promised", "measured": "reached"}
        promised = promises(judge(results), columns | {"trials": "times", "kept": "kept"})
    sections = {
        name.replace("-", "_"): _section([one for one in results if one.measured == name])
        for name in _MEASURED
    }
    return fill("recovery/page", run=_machine(about, results), promises=promised, **sections)


def spread(values: Sequence[float]) -> str:
    """Return "median (least–greatest)" of seconds, to three digits that count."""
    if not values:
        return "–"
    if len(values) == 1:
        return seconds(values[0])
    return f"{seconds(median(values))} ({seconds(min(values))}–{seconds(max(values))})"


def seconds(value: float) -> str:
    """Return ``value`` with as many digits as it carries."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _machine(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    loaded = [result for result in results if result.load]
    load = load_range(loaded) if loaded else "unknown"
    words = machine.words(about, "DLRover {dlrover}", plan=", plan {plan}")
    left_out = about.get("left_out") or {}
    lines = [f"{words}; load average at the faults {load}."]
    lines += [f"Left out: {name}: {reason}" for name, reason in sorted(left_out.items())]
    return "\n".join(lines) + "\n"


def _section(results: Sequence[Result]) -> str:
    if not results:
        return ""
    groups: dict[_Key, list[Result]] = {}
    for result in results:
        groups.setdefault(_key(result), []).append(result)
    ours = {key: _figures(group) for key, group in groups.items() if key.system == OURS}
    rows = [
        _row(key, groups[key], _figures(groups[key]), _base(key, ours)) for key in sorted(groups)
    ]
    header = ["restore", "system", "rank hit", "recovered", "total, s", "pause, s", "restore, s"]
    header += ["steps redone", "× Holdfast"]
    parts = [table(header, rows)]
    parts += [f"- {line}" for line in _reasons(groups)]
    return "\n".join([*parts, "", _stages(groups)])


@dataclass(frozen=True, slots=True, order=True)
class _Key:
    """The key of a row of a table; rows stand in the order of their keys."""

    restore_last: bool
    restore: str
    peer: bool
    system: str
    variant: str
    rank: str

    @property
    def name(self) -> str:
        return self.system if self.system == OURS else f"{self.system}, {self.variant}"


def _key(result: Result) -> _Key:
    case = result.case
    return _Key(
        restore_last=case.restore != "torch",
        restore=case.restore,
        peer=case.system != OURS,
        system=case.system,
        variant=case.variant,
        rank=str(result.target) if result.measured in _BY_RANK else "either",
    )


def _base(key: _Key, ours: Mapping[_Key, Sequence[float]]) -> list[float]:
    """Return Holdfast's figures to compare ``key`` with: same restore, and same rank if any."""
    same = [k for k in ours if k.restore == key.restore]
    exact = [k for k in same if k.rank == key.rank]
    return [value for k in exact or same for value in ours[k]]


def _figures(results: Sequence[Result]) -> list[float]:
    return [
        found.pause_s if result.measured in _PAUSE_COUNTS else found.total_s
        for result in results
        if (found := result.recovery)
    ]


def _row(
    key: _Key, results: Sequence[Result], figures: Sequence[float], ours: Sequence[float]
) -> list[str]:
    found = [result.recovery for result in results if result.recovery]
    redone = [one.redone_steps for one in found]
    return [
        key.restore,
        key.name,
        key.rank,
        f"{len(found)}/{len(results)}" if found else f"**never**, 0/{len(results)}",
        spread([one.total_s for one in found]),
        spread([one.pause_s for one in found]),
        spread([one.restore_s for one in found]),
        f"{median(redone):.0f} ({min(redone)}–{max(redone)})" if redone else "–",
        "1" if key.system == OURS else times(ratio(figures, ours)),
    ]


def _reasons(groups: Mapping[_Key, Sequence[Result]]) -> list[str]:
    """Return the reasons for which trials did not recover, each reason once."""
    lines: dict[str, None] = {}
    for key in sorted(groups):
        for result in groups[key]:
            if result.outcome != RECOVERED:
                lines[f"{key.name}, rank {result.target}: {result.outcome}: {result.reason}"] = None
    return list(lines)


def _stages(groups: Mapping[_Key, Sequence[Result]]) -> str:
    """Return a table of the time by stage: medians of the stages of the slowest rank."""
    rows: list[list[str]] = []
    names: list[str] = []
    for key in sorted(groups):
        found = [result.recovery.stages for result in groups[key] if result.recovery]
        if found:
            names = list(found[0])
            medians = [seconds(median(stages[name] for stages in found)) for name in names]
            rows.append([key.restore, key.name, key.rank, *medians])
    if not rows:
        return ""
    header = ["restore", "system", "rank hit", *names]
    return "Where the total went, by what the slowest rank had reached (medians, s):\n\n" + table(
        header, rows
    )


# --------------------------------------------------------------------------------------- the bars


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A promise about the median of one figure."""

    text: str
    measured: str
    restore: str = "torch"
    figure: Callable[[Result], float | None] = field(default=lambda one: _of(one, "total_s"))
    """Seconds; None where this result has no such figure."""
    at_most_s: float | None = None
    times_faster: float = 0.0
    """At least so many times faster than the fastest peer that recovered."""
    peers: str = ""
    """The variant of the peers that the ratio is about; empty: all."""


def _of(result: Result, name: str) -> float | None:
    return getattr(result.recovery, name) if result.recovery else None


def _alive_in_new_round(result: Result) -> float | None:
    """Return the seconds that the frozen agent's worker lived beside the new round.

    The value is negative where the worker was dead before the round, infinite where the worker was
    never seen dead, and None where no new round started.
    """
    dead, started = result.notes.get("old worker dead"), result.notes.get("new round started")
    if started is None:
        return None
    return float("inf") if dead is None else dead - started


BARS = (
    Bar(
        text="worker killed → next step, without the script's restore",
        measured="crash",
        figure=lambda one: _of(one, "net_s"),
        at_most_s=0.25,
    ),
    Bar(
        text="worker killed → next step, whole, restored by DCP",
        measured="crash",
        restore="dcp",
        at_most_s=0.45,
    ),
    Bar(
        text="worker killed → next step, beside the fastest peer", measured="crash", times_faster=15
    ),
    Bar(text="node lost → next step", measured="node-lost", at_most_s=0.7),
    Bar(
        text="node lost → next step, beside the fastest tuned peer",
        measured="node-lost",
        times_faster=8,
        peers="tuned",
    ),
    Bar(text="agent frozen → next step", measured="agent-frozen", at_most_s=6),
    Bar(
        text="agent frozen: its worker's life beside the new round",
        measured="agent-frozen",
        figure=_alive_in_new_round,
        at_most_s=0,
    ),
    Bar(
        text="node back: pause, without the script's save and restore",
        measured="rejoin",
        figure=lambda one: _of(one, "net_pause_s"),
        at_most_s=0.5,
    ),
    Bar(
        text="node back: pause, whole, restored by DCP",
        measured="rejoin",
        restore="dcp",
        figure=lambda one: _of(one, "pause_s"),
        at_most_s=0.9,
    ),
)


def judge(results: Sequence[Result]) -> list[Verdict]:
    """Hold the results against every bar."""
    return [_judge(bar, results) for bar in BARS]


def _judge(bar: Bar, results: Sequence[Result]) -> Verdict:
    ours = _measured(bar, [r for r in results if r.case.system == OURS])
    if (limit := bar.at_most_s) is not None:
        return judged(bar.text, f"≤ {limit:g} s", ours, at_most(limit), _median_seconds)
    promised, fastest = f"≥ {bar.times_faster:g}×", _fastest_peer(bar, results)
    if not ours or fastest is None:
        return Verdict(bar.text, promised, times=len(ours))
    peer, name = fastest
    faster = peer / median(ours)
    reached = f"{faster:.1f}× ({name})"
    return Verdict(bar.text, promised, reached, faster >= bar.times_faster, len(ours))


def _median_seconds(found: Sequence[float]) -> str:
    return f"{median(found):.2f} s"


def _fastest_peer(bar: Bar, results: Sequence[Result]) -> tuple[float, str] | None:
    """Return the least median of a peer and variant, and whose it is."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        case = result.case
        if case.system != OURS and bar.peers in {"", case.variant}:
            groups.setdefault(f"{case.system} {case.variant}", []).append(result)
    found = {name: figures for name, group in groups.items() if (figures := _measured(bar, group))}
    return min(((median(figures), name) for name, figures in found.items()), default=None)


def _measured(bar: Bar, results: Sequence[Result]) -> list[float]:
    return [
        figure
        for result in results
        if result.outcome == RECOVERED
        and (result.measured, result.case.restore) == (bar.measured, bar.restore)
        and (figure := bar.figure(result)) is not None
    ]

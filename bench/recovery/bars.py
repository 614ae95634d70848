"""Bars of recovery, and the judgement of a run by them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.recovery.results import OURS, RECOVERED, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A promise about the median of one figure."""

    text: str
    measured: str
    restore: str
    figure: Callable[[Result], float | None]
    """Seconds; None where this result has no such figure."""
    at_most_s: float | None = None
    times_faster: float | None = None
    """At least so many times faster than the fastest peer that recovered."""
    peers: str = ""
    """The variant of the peers that the ratio is about; empty: all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one bar by a run."""

    bar: Bar
    promised: str
    reached: str
    kept: bool | None
    """None where the run did not measure it."""
    trials: int


def _total(result: Result) -> float | None:
    return result.recovery.total_s if result.recovery else None


def _net(result: Result) -> float | None:
    return result.recovery.net_s if result.recovery else None


def _pause(result: Result) -> float | None:
    return result.recovery.pause_s if result.recovery else None


def _net_pause(result: Result) -> float | None:
    return result.recovery.net_pause_s if result.recovery else None


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
        restore="torch",
        figure=_net,
        at_most_s=0.25,
    ),
    Bar(
        text="worker killed → next step, whole, restored by DCP",
        measured="crash",
        restore="dcp",
        figure=_total,
        at_most_s=0.45,
    ),
    Bar(
        text="worker killed → next step, beside the fastest peer",
        measured="crash",
        restore="torch",
        figure=_total,
        times_faster=15,
    ),
    Bar(
        text="node lost → next step",
        measured="node-lost",
        restore="torch",
        figure=_total,
        at_most_s=0.7,
    ),
    Bar(
        text="node lost → next step, beside the fastest tuned peer",
        measured="node-lost",
        restore="torch",
        figure=_total,
        times_faster=8,
        peers="tuned",
    ),
    Bar(
        text="agent frozen → next step",
        measured="agent-frozen",
        restore="torch",
        figure=_total,
        at_most_s=6,
    ),
    Bar(
        text="agent frozen: its worker's life beside the new round",
        measured="agent-frozen",
        restore="torch",
        figure=_alive_in_new_round,
        at_most_s=0,
    ),
    Bar(
        text="node back: pause, without the script's save and restore",
        measured="rejoin",
        restore="torch",
        figure=_net_pause,
        at_most_s=0.5,
    ),
    Bar(
        text="node back: pause, whole, restored by DCP",
        measured="rejoin",
        restore="dcp",
        figure=_pause,
        at_most_s=0.9,
    ),
)


def judge(results: Sequence[Result]) -> list[Verdict]:
    """Hold the results against every bar."""
    return [_judge(bar, results) for bar in BARS]


def _judge(bar: Bar, results: Sequence[Result]) -> Verdict:
    ours = _figures(bar, [r for r in results if r.case.system == OURS])
    if bar.at_most_s is not None:
        promised = f"≤ {bar.at_most_s:g} s"
        if not ours:
            return Verdict(bar, promised, "not measured", None, 0)
        middle = median(ours)
        return Verdict(bar, promised, f"{middle:.2f} s", middle <= bar.at_most_s, len(ours))
    least = bar.times_faster or 0.0
    promised = f"≥ {least:g}×"
    fastest = _fastest_peer(bar, results)
    if not ours or fastest is None:
        return Verdict(bar, promised, "not measured", None, len(ours))
    name, peer = fastest
    times = peer / median(ours)
    return Verdict(bar, promised, f"{times:.1f}× ({name})", times >= least, len(ours))


def _fastest_peer(bar: Bar, results: Sequence[Result]) -> tuple[str, float] | None:
    """Return the peer and variant with the least median, and that median."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        case = result.case
        if case.system != OURS and bar.peers in {"", case.variant}:
            groups.setdefault(f"{case.system} {case.variant}", []).append(result)
    found = {name: figures for name, group in groups.items() if (figures := _figures(bar, group))}
    medians = sorted((median(figures), name) for name, figures in found.items())
    return (medians[0][1], medians[0][0]) if medians else None


def _figures(bar: Bar, results: Sequence[Result]) -> list[float]:
    return [
        figure
        for result in results
        if result.outcome == RECOVERED
        and (result.measured, result.case.restore) == (bar.measured, bar.restore)
        and (figure := bar.figure(result)) is not None
    ]

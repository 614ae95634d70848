"""Bars of a master under load, and the judgement of a run by them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.load import figures
from bench.load.results import (
    FAILURE,
    HERD,
    OURS,
    PEER,
    STEADY,
    WATCHERS,
    WORLD,
    Result,
)

HEARTBEAT_5_SECONDS = "a heartbeat per 5 s"
MANY = 10_000
"""As many agents as the machine's limits allow, to this many."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one promise by a run."""

    text: str
    promised: str
    reached: str
    kept: bool | None
    """None where the run did not measure it."""


def judge(results: Sequence[Result]) -> list[Verdict]:
    """Hold the results against every promise."""
    ours = [result for result in results if result.system == OURS]
    some = _largest(ours, STEADY, lambda r: r.clients == 3_000 and r.variant == HEARTBEAT_5_SECONDS)
    many = _largest(ours, STEADY, lambda r: not r.variant)
    return [
        _at_most("3,000 agents, a heartbeat per 5 s: core", some, "cores", 0.25),
        _at_most("3,000 agents, a heartbeat per 5 s: memory, MB", some, "rss_mb", 320),
        _at_most(f"{_size(many)} agents: core", many, "cores", 0.7),
        _at_most(f"{_size(many)} agents: memory, MB", many, "rss_mb", 1_100),
        _over_all("latest answer of a steady state, ms", ours, (STEADY, WATCHERS), "probe_ms_max"),
        _none("agents that were falsely taken for lost", ours, (STEADY,), "lost"),
        _none("worlds made after a master's restart", ours, (HERD,), "rounds_made"),
        _none("workers killed after a master's restart", ours, (HERD,), "workers_killed"),
        _delivery("first world, decided and delivered", ours, WORLD, "told_s"),
        _delivery("failure, decided and everybody told", ours, FAILURE, "told_s_p50"),
        _delivery("failure, the slowest of ten", ours, FAILURE, "told_s_max"),
        _growth(ours),
        *_beside_peer(results),
    ]


def costs(results: Sequence[Result]) -> dict[int, float]:
    """Return the seconds from a failure until every agent was told, by the number of agents."""
    return {
        result.clients: result.figures["told_s_p50"]
        for result in results
        if result.system == OURS and result.scenario == FAILURE and not result.variant
    }


def _largest(
    results: Sequence[Result], scenario: str, fits: Callable[[Result], bool]
) -> Result | None:
    found = [result for result in results if result.scenario == scenario and fits(result)]
    return max(found, key=lambda result: result.clients, default=None)


def _size(result: Result | None) -> str:
    return f"{result.clients if result else MANY:,}"


def _at_most(text: str, result: Result | None, figure: str, limit: float) -> Verdict:
    value = result.figures.get(figure) if result is not None else None
    kept = None if value is None else value <= limit
    reached = "not measured" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return Verdict(text, f"≤ {limit:g}", reached, kept)


def _over_all(
    text: str, results: Sequence[Result], scenarios: Sequence[str], figure: str
) -> Verdict:
    found = _values(results, scenarios, figure)
    if not found:
        return Verdict(text, "≤ 1000", "not measured", None)
    return Verdict(text, "≤ 1000", f"{max(found):.0f}", max(found) <= 1000)


def _none(text: str, results: Sequence[Result], scenarios: Sequence[str], figure: str) -> Verdict:
    found = _values(results, scenarios, figure)
    kept = not any(found) if found else None
    return Verdict(text, "0", f"{sum(found):.0f}" if found else "not measured", kept)


def _delivery(text: str, results: Sequence[Result], scenario: str, figure: str) -> Verdict:
    result = _largest(results, scenario, lambda r: not r.variant)
    return _at_most(f"{text} to {_size(result)} agents, s", result, figure, 2.0)


def _growth(results: Sequence[Result]) -> Verdict:
    text = "growth of a failure's delivery: k of (N log N)^k"
    power = figures.growth(costs(results))
    if power is None:
        return Verdict(text, "≤ 1", "not measured", None)
    return Verdict(text, "≤ 1", f"{power:.2f}", power <= 1.0)


def _beside_peer(results: Sequence[Result]) -> list[Verdict]:
    wanted = (("grpc heartbeat", "its gRPC heartbeat", 4.0), ("grpc poll", "its poll call", 3.0))
    return [
        _ratio(f"CPU per message beside {name}, {clients:,} clients", results, clients, kind, least)
        for clients in sorted({r.clients for r in results if r.system == PEER})
        for kind, name, least in wanted
    ]


def _ratio(
    text: str, results: Sequence[Result], clients: int, variant: str, least: float
) -> Verdict:
    found = ratio(results, clients, variant)
    if found is None:
        return Verdict(text, f"≥ {least:g}×", "not measured", None)
    middle, low, high = found
    reached = f"{middle:.1f}× ({low:.1f}–{high:.1f})"
    return Verdict(text, f"≥ {least:g}×", reached, middle >= least)


def ratio(
    results: Sequence[Result], clients: int, variant: str
) -> tuple[float, float, float] | None:
    """Return how many times more CPU the peer takes for a message: middle, least, greatest."""
    ours = _samples(results, OURS, clients, "")
    return figures.ratio(_samples(results, PEER, clients, variant), ours)


def _samples(results: Sequence[Result], system: str, clients: int, variant: str) -> list[float]:
    key = (system, STEADY, clients, variant)
    return [
        value
        for result in results
        if (result.system, result.scenario, result.clients, result.variant) == key
        for value in result.samples.get("message_us", [])
    ]


def _values(results: Sequence[Result], scenarios: Sequence[str], figure: str) -> list[float]:
    return [
        result.figures[figure]
        for result in results
        if result.scenario in scenarios and figure in result.figures
    ]

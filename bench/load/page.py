"""The page of a run: what was promised, then each scenario's figures; and the bars. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.harness import machine, page
from bench.harness.page import Ratio, Verdict, at_most, table, times
from bench.load import figures
from bench.load.results import (
    FAILURE,
    HERD,
    OURS,
    PEER,
    SLOW_AGENT,
    SLOW_WATCHER,
    STEADY,
    WATCHERS,
    WORLD,
    LoadResult,
)

HEARTBEAT_5_SECONDS = "a heartbeat per 5 s"
MANY = 10_000
"""As many agents as the machine's limits allow, to this many."""


def _spread(said: str, figure: str) -> dict[str, str]:
    """Return the columns of a spread; `figure` ends with the unit of all of them."""
    unit = figure.rpartition("_")[2]
    return {f"{said} {end}, {unit}": f"{figure}_{end}" for end in ("p50", "p99", "max")}


_USE = {
    "messages/s": "messages_per_s",
    "µs/message": "message_us",
    "cores": "cores",
    "MB": "rss_mb",
    "open files": "files",
}
_PEERS_USE = {heading: name for heading, name in _USE.items() if name != "cores"} | _spread(
    "answer", "answer_ms"
)
_SLOW = "slow"
_SLOW_ONES = (SLOW_AGENT, SLOW_WATCHER)
"""The scenarios of one table."""
_TABLES = {
    STEADY: {
        **_USE,
        **_spread("probe", "probe_ms"),
        **_spread("heartbeat seen", "heartbeat_seen_ms"),
        "falsely lost": "lost",
    },
    WORLD: {"told, s": "told_s", "master's part, s": "own_s", "connected, s": "connected_s"},
    FAILURE: {
        **_spread("told", "told_s"),
        "master's part p50, s": "own_s_p50",
        "CPU, s": "cpu_s_p50",
        "training p50, s": "training_s_p50",
    },
    HERD: {
        "serving, s": "serving_s",
        "welcomed, s": "welcomed_s",
        "peak MB": "peak_mb",
        "attempts": "attempts",
        "new worlds": "rounds_made",
        "workers killed": "workers_killed",
    },
    WATCHERS: {
        **{heading: name for heading, name in _USE.items() if name != "files"},
        "news/s": "watched_per_s",
        **_spread("probe", "probe_ms"),
        "agents told, s": "told_s",
        "watchers told, s": "watchers_told_s",
    },
    _SLOW: {
        "cut off after, s": "cut_off_s",
        "memory grew by, MB": "grown_mb",
        "probe p50, ms": "probe_ms_p50",
        "p99": "probe_ms_p99",
        "calm p50, ms": "calm_probe_ms_p50",
        "p99 ": "calm_probe_ms_p99",
    },
}
"""Figures by their headings, by scenario, which is also the placeholder's name."""


def page_of(about: Mapping[str, Any], results: Sequence[LoadResult]) -> str:
    """Return the whole page."""
    return page.fill(
        "load/page",
        run=_machine(about),
        promises=page.promises(judge(results), page.PLAIN_COLUMNS),
        peer=_peer(results),
        **{scenario: _table(scenario, results) for scenario in _TABLES},
    )


def number(value: float | None) -> str:
    """Return ``value`` with as many digits as it carries."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _machine(about: Mapping[str, Any]) -> str:
    words = machine.words(about, "gRPC {grpc}", "DLRover {dlrover}", without={"torch"})
    said = f"{words}; open files {about['open_files']}."
    left_out = [f"Left out: {text}" for text in about.get("left_out", [])]
    return "\n\n".join([said, *left_out]) + "\n"


def _table(scenario: str, results: Sequence[LoadResult]) -> str:
    scenarios = _SLOW_ONES if scenario == _SLOW else (scenario,)
    found = [one for one in results if one.system == OURS and one.scenario in scenarios]
    if not found:
        return ""
    columns = _TABLES[scenario]
    rows = [
        _row(one, one.variant or (one.scenario if len(scenarios) > 1 else ""), columns)
        for one in found
    ]
    return table(["agents", "", *columns, "load average"], rows)


def _row(result: LoadResult, variant: str, columns: Mapping[str, str], *more: str) -> list[str]:
    cells = [number(result.figures.get(name)) for name in columns.values()]
    return [f"{result.clients:,}", variant, *cells, *more, f"{result.load:.1f}"]


def _peer(results: Sequence[LoadResult]) -> str:
    found = [one for one in results if one.system == PEER]
    if not found:
        return ""
    rows = [
        _row(one, one.variant, _PEERS_USE, times(ratio(results, one.clients, one.variant)))
        for one in found
    ]
    return table(["clients", "call", *_PEERS_USE, "CPU × Holdfast's", "load average"], rows)


# --------------------------------------------------------------------------------------- the bars


def judge(results: Sequence[LoadResult]) -> list[Verdict]:
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


def costs(results: Sequence[LoadResult]) -> dict[int, float]:
    """Return the seconds from a failure until every agent was told, by the number of agents."""
    return {
        result.clients: result.figures["told_s_p50"]
        for result in results
        if result.system == OURS and result.scenario == FAILURE and not result.variant
    }


def _largest(
    results: Sequence[LoadResult], scenario: str, fits: Callable[[LoadResult], bool]
) -> LoadResult | None:
    found = [result for result in results if result.scenario == scenario and fits(result)]
    return max(found, key=lambda result: result.clients, default=None)


def _size(result: LoadResult | None) -> str:
    return f"{result.clients if result else MANY:,}"


def _at_most(text: str, result: LoadResult | None, figure: str, limit: float) -> Verdict:
    value = result.figures.get(figure) if result is not None else None
    return _limited(text, limit, value, ".0f" if value is None or value >= 10 else ".2f")


def _limited(text: str, limit: float, value: float | None, spec: str) -> Verdict:
    """Hold a value against what it may be at most; None: it was not measured."""
    found = [] if value is None else [value]
    return page.judged(text, f"≤ {limit:g}", found, at_most(limit), lambda _: f"{value:{spec}}")


def _over_all(
    text: str, results: Sequence[LoadResult], scenarios: Sequence[str], figure: str
) -> Verdict:
    return _limited(text, 1000, max(_values(results, scenarios, figure), default=None), ".0f")


def _none(
    text: str, results: Sequence[LoadResult], scenarios: Sequence[str], figure: str
) -> Verdict:
    found = _values(results, scenarios, figure)
    total = [sum(found)] if found else []
    return page.judged(text, "0", total, at_most(0), lambda _: f"{sum(found):.0f}")


def _delivery(text: str, results: Sequence[LoadResult], scenario: str, figure: str) -> Verdict:
    result = _largest(results, scenario, lambda r: not r.variant)
    return _at_most(f"{text} to {_size(result)} agents, s", result, figure, 2.0)


def _growth(results: Sequence[LoadResult]) -> Verdict:
    text = "growth of a failure's delivery: k of (N log N)^k"
    return _limited(text, 1, figures.growth(costs(results)), ".2f")


def _beside_peer(results: Sequence[LoadResult]) -> list[Verdict]:
    wanted = (("grpc heartbeat", "its gRPC heartbeat", 4.0), ("grpc poll", "its poll call", 3.0))
    return [
        _ratio(f"CPU per message beside {name}, {clients:,} clients", results, clients, kind, least)
        for clients in sorted({r.clients for r in results if r.system == PEER})
        for kind, name, least in wanted
    ]


def _ratio(
    text: str, results: Sequence[LoadResult], clients: int, variant: str, least: float
) -> Verdict:
    found = ratio(results, clients, variant)
    if found is None:
        return Verdict(text, f"≥ {least:g}×")
    return Verdict(text, f"≥ {least:g}×", times(found), found[0] >= least)


def ratio(results: Sequence[LoadResult], clients: int, variant: str) -> Ratio | None:
    """Return how many times more CPU the peer takes for a message: middle, least, greatest."""
    ours = _samples(results, OURS, clients, "")
    return page.ratio(_samples(results, PEER, clients, variant), ours, figures.median)


def _samples(results: Sequence[LoadResult], system: str, clients: int, variant: str) -> list[float]:
    key = (system, STEADY, clients, variant)
    return [
        value
        for result in results
        if (result.system, result.scenario, result.clients, result.variant) == key
        for value in result.samples.get("message_us", [])
    ]


def _values(results: Sequence[LoadResult], scenarios: Sequence[str], figure: str) -> list[float]:
    return [
        result.figures[figure]
        for result in results
        if result.scenario in scenarios and figure in result.figures
    ]

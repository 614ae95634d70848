"""The page of a run: what was promised, then each scenario's figures; and the bars. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    """Of the placeholder in the page's text."""
    scenarios: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Heading and figure."""


_SPREAD = (("p50", "p50"), ("p99", "p99"), ("max", "max"))
_USE = (
    ("messages/s", "messages_per_s"),
    ("µs/message", "message_us"),
    ("cores", "cores"),
    ("MB", "rss_mb"),
    ("open files", "files"),
)
_TABLES = (
    _Table(
        "steady",
        (STEADY,),
        (
            *_USE,
            *((f"probe {word}, ms", f"probe_ms_{end}") for word, end in _SPREAD),
            *((f"heartbeat seen {word}, ms", f"heartbeat_seen_ms_{end}") for word, end in _SPREAD),
            ("falsely lost", "lost"),
        ),
    ),
    _Table(
        "world",
        (WORLD,),
        (("told, s", "told_s"), ("master's part, s", "own_s"), ("connected, s", "connected_s")),
    ),
    _Table(
        "failure",
        (FAILURE,),
        (
            *((f"told {word}, s", f"told_s_{end}") for word, end in _SPREAD),
            ("master's part p50, s", "own_s_p50"),
            ("CPU, s", "cpu_s_p50"),
            ("training p50, s", "training_s_p50"),
        ),
    ),
    _Table(
        "herd",
        (HERD,),
        (
            ("serving, s", "serving_s"),
            ("welcomed, s", "welcomed_s"),
            ("peak MB", "peak_mb"),
            ("attempts", "attempts"),
            ("new worlds", "rounds_made"),
            ("workers killed", "workers_killed"),
        ),
    ),
    _Table(
        "watchers",
        (WATCHERS,),
        (
            *_USE[:4],
            ("news/s", "watched_per_s"),
            *((f"probe {word}, ms", f"probe_ms_{end}") for word, end in _SPREAD),
            ("agents told, s", "told_s"),
            ("watchers told, s", "watchers_told_s"),
        ),
    ),
    _Table(
        "slow",
        (SLOW_AGENT, SLOW_WATCHER),
        (
            ("cut off after, s", "cut_off_s"),
            ("memory grew by, MB", "grown_mb"),
            ("probe p50, ms", "probe_ms_p50"),
            ("p99", "probe_ms_p99"),
            ("calm p50, ms", "calm_probe_ms_p50"),
            ("p99 ", "calm_probe_ms_p99"),
        ),
    ),
)


def page_of(about: Mapping[str, Any], results: Sequence[LoadResult]) -> str:
    """Return the whole page."""
    return page.fill(
        "load/page",
        run=_machine(about),
        promises=page.promises(judge(results), page.PLAIN_COLUMNS),
        peer=_peer(results),
        **{one.name: _shown(one, results) for one in _TABLES},
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


def _shown(item: _Table, results: Sequence[LoadResult]) -> str:
    found = [r for r in results if r.system == OURS and r.scenario in item.scenarios]
    if not found:
        return ""
    rows = [
        [
            f"{result.clients:,}",
            result.variant or (result.scenario if len(item.scenarios) > 1 else ""),
            *(number(result.figures.get(name)) for _, name in item.columns),
            f"{result.load:.1f}",
        ]
        for result in found
    ]
    header = ["agents", "", *(heading for heading, _ in item.columns), "load average"]
    return table(header, rows)


def _peer(results: Sequence[LoadResult]) -> str:
    found = [result for result in results if result.system == PEER]
    if not found:
        return ""
    rows = [
        [
            f"{result.clients:,}",
            result.variant,
            *(number(result.figures.get(name)) for _, name in _USE if name != "cores"),
            *(number(result.figures.get(f"answer_ms_{end}")) for _, end in _SPREAD),
            times(ratio(results, result.clients, result.variant)),
            f"{result.load:.1f}",
        ]
        for result in found
    ]
    header = ["clients", "call", *(heading for heading, name in _USE if name != "cores")]
    header += [f"answer {word}, ms" for word, _ in _SPREAD]
    header += ["CPU × Holdfast's", "load average"]
    return table(header, rows)


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

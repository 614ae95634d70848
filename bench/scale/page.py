"""The page of the figures at scale, and the bars that they are held against. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from bench.harness import machine, page

Line = Mapping[str, Any]
Bar = tuple[str, str, str, float]
_OURS: Final = "holdfast"
_BARS: Final[tuple[Bar, ...]] = (
    ("30,000 pods: memory, MB", "steady", "rss_mb", 250.0),
    ("30,000 pods: cores while nothing happens", "steady", "cores", 0.1),
    ("CPU of a pod's event that changes nothing, ms", "same events", "cpu_ms_per_event", 0.2),
    ("CPU of a pod's event that changes its readiness, ms", "events", "cpu_ms_per_event", 0.2),
)
"""Text, kind of measurement, its figure, the most that it may be."""
_CREATION: Final = 1.3
_MANY: Final = 30_000
_LARGE: Final = 500
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "created": {
        "all created, s": "created_s",
        "all run, s": "running_s",
        "CPU, s": "cpu_s",
        "CPU a pod, ms": "cpu_ms_per_pod",
        "requests a pod": "requests_per_pod",
        "reconcile p99, s": "look_p99_s",
        "MB": "rss_mb",
        "peak MB": "peak_mb",
    },
    "taken_over": {
        "ready, s": "ready_s",
        "all masters heard, s": "heard_s",
        "CPU, s": "cpu_s",
        "CPU a pod, ms": "cpu_ms_per_pod",
        "requests a job": "requests_per_job",
        "reconcile p99, s": "look_p99_s",
        "MB": "rss_mb",
        "peak MB": "peak_mb",
    },
    "steady": {
        "cores": "cores",
        "requests/s": "requests_per_s",
        "reconciles/s": "looks_per_s",
        "MB": "rss_mb",
    },
    "training": {
        "cores": "cores",
        "requests/s": "requests_per_s",
        "reconciles/s": "looks_per_s",
        "MB": "rss_mb",
    },
    "events": {
        "events": "events",
        "CPU an event, ms": "cpu_ms_per_event",
        "reconciles": "looks",
        "reconcile p99, s": "look_p99_s",
        "requests": "requests",
    },
    "torn": {
        "acts again, s": "acts_again_s",
        "CPU, s": "cpu_s",
        "requests": "requests",
        "MB": "rss_mb",
        "peak MB": "peak_mb",
    },
}
"""Figures by their headings, by kind, which is also the placeholder's name."""


def page_of(about: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the page of a run."""
    tables = {kind: _table(lines, kind, columns) for kind, columns in _COLUMNS.items()}
    promises = page.promises(judge(lines), page.PLAIN_COLUMNS)
    return page.fill(
        "scale/page",
        run=machine.sentence(about),
        left_out="\n\n".join(f"Left out: {text}" for text in about["left_out"]),
        promises=promises,
        pods=", ".join(sorted({str(line["pods"]) for line in lines if line["kind"] == "creation"})),
        creation=_creation(lines),
        channels=_channels(lines),
        same=_table(lines, "same events", _COLUMNS["events"]),
        **tables,
    )


def problems(lines: Sequence[Line]) -> list[str]:
    """Return a line of text for each bar that was not held, and for each that was not measured."""
    return [
        f"{one.text}: must be {one.promised}, is {one.reached}"
        for one in judge(lines)
        if not one.kept
    ]


def judge(lines: Sequence[Line]) -> list[page.Verdict]:
    """Hold the figures of the largest cluster, and the creation of one job, against the bars.

    A smaller cluster, or a smaller job, than a bar names proves nothing: it is shown, not judged.
    """
    ours = [line for line in lines if line.get("system") == _OURS]
    return [*(_judged(bar, ours) for bar in _BARS), _creation_judged(lines)]


def _judged(bar: Bar, ours: Iterable[Line]) -> page.Verdict:
    text, kind, figure, limit = bar
    found = [line for line in ours if line["kind"] == kind]
    largest = max((line["jobs"] * line["workers"] for line in found), default=0)
    values = [float(line[figure]) for line in found if line["jobs"] * line["workers"] == largest]
    verdict = page.judged(text, f"≤ {limit:g}", values, page.at_most(limit), _words(limit))
    return verdict if largest >= _MANY else _shown(verdict, f"{largest:,} pods")


def _creation_judged(lines: Iterable[Line]) -> page.Verdict:
    found = [line for line in lines if line["kind"] == "creation"]
    pods = min((line["pods"] for line in found), default=0)
    ratios = [line["operator_s"] / line["bare_s"] for line in found]
    text = f"{_LARGE} pods of one job created: time beside a bare client of the same limits"
    held = page.at_most(_CREATION)
    verdict = page.judged(text, f"≤ {_CREATION}×", ratios, held)
    return verdict if pods >= _LARGE else _shown(verdict, f"{pods} pods")


def _shown(verdict: page.Verdict, size: str) -> page.Verdict:
    if not verdict.times:
        return verdict
    return dataclasses.replace(verdict, reached=f"{verdict.reached} with {size}", kept=None)


def _words(limit: float) -> Callable[[Sequence[float]], str]:
    spec = ".0f" if limit >= 10 else ".3f"
    return lambda values: ", ".join(f"{value:{spec}}" for value in values)


def _table(lines: Sequence[Line], kind: str, columns: Mapping[str, str]) -> str:
    rows = [
        [
            line["system"],
            f"{line['jobs']:,} × {line['workers']}",
            *(_number(line.get(name)) for name in columns.values()),
            f"{line['load']:.1f}",
        ]
        for line in lines
        if line["kind"] == kind
    ]
    return page.table(["operator", "jobs", *columns, "load"], rows) if rows else ""


def _channels(lines: Sequence[Line]) -> str:
    found = [line for line in lines if line["kind"] == "channel"]
    names = ("calls", "ping_s", "kb", "cpu_us_per_s")
    rows = [[*(_number(line[name]) for name in names), f"{line['load']:.1f}"] for line in found]
    heads = ["open calls", "s between pings", "kB", "µs of CPU a second", "load"]
    return page.table(heads, rows) if found else ""


def _creation(lines: Sequence[Line]) -> str:
    found = [line for line in lines if line["kind"] == "creation"]
    names = ("operator_s", "bare_s", "kubectl_s")
    rows = [[*(f"{line[name]:.2f}" for name in names), f"{line['load']:.1f}"] for line in found]
    if not found:
        return ""
    rows.append([*(f"**{median(line[name] for line in found):.2f}**" for name in names), "median"])
    return page.table(["operator, s", "bare client, s", "kubectl create, s", "load"], rows)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:g}"

"""The page of the cluster's figures, and the values that they are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from bench.harness.page import fill

Line = Mapping[str, Any]
Row = tuple[str, str, str, str, Callable[[Line], bool]]

_LOST: Final = "{max_s} s at worst (median {median_s} s, {nodes} nodes"


def _soon(line: Line) -> bool:
    return bool(line["max_s"] <= 6)


_ROWS: Final[tuple[Row, ...]] = (
    (
        "begin",
        "`helm install` → operator ready (right after an uninstall ≤ 15 s more, its Lease)",
        "≤ 15 s",
        "{ready_max_s} s at worst (median {ready_median_s} s, {times} times)",
        lambda one: one["ready_max_s"] <= 15,
    ),
    (
        "begin",
        "job created → its first step, two pods, real torch on gloo, warm",
        "≤ 8 s",
        "{first_step_max_s} s at worst (median {first_step_median_s} s, {times} times)",
        lambda one: one["first_step_max_s"] <= 8,
    ),
    (
        "replacement",
        "pod gone → replacement created, p99, idle cluster",
        "≤ 0.3 s",
        "{p99_s} s (median {p50_s} s, worst {max_s} s, {pods} pods)",
        lambda one: one["p99_s"] <= 0.3,
    ),
    (
        "many",
        "first pod of a job → its last",
        "no bar",
        "{seconds} s for {workers} workers ({pods_per_s} pods/s)",
        lambda _: True,
    ),
    (
        "node",
        "node lost silently → training again at the smaller world",
        *("≤ 6 s", f"{_LOST})", _soon),
    ),
    (
        "node-defaults",
        "the same, where Kubernetes gives a node up after 40 s and its pods after 300 s more",
        *("≤ 6 s", f"{_LOST})", _soon),
    ),
    (
        "master-node",
        "the same of the node that also has the job's master, Kubernetes' own times",
        *("≤ 6 s", f"{_LOST}, {{new_masters}} new masters)", _soon),
    ),
    (
        "master",
        "master pod deleted → adopted",
        "0 steps lost",
        "{new_rounds} rounds, {processes_begun_again} processes begun again ({masters} masters)",
        lambda one: one["new_rounds"] == one["processes_begun_again"] == 0,
    ),
    (
        "kills",
        "operator killed anywhere",
        "0 duplicates, 0 leaks over ≥ 200 kills",
        "{kills} kills (seed {seed}), {changes} changes of jobs, {pods} pods: faults {faults}",
        lambda one: not one["faults"] and one["kills"] >= 200,
    ),
    (
        "writes",
        "requests per worker pod over a job's life",
        "≤ 1 create, ≤ 1 delete",
        "{creates_per_worker} creates, {deletes_per_worker} deletes ({workers} workers)",
        lambda one: one["creates_per_worker"] <= 1 and one["deletes_per_worker"] <= 1,
    ),
    (
        "writes",
        "status writes of a job",
        "≤ 1 in any second",
        "{most_status_writes_in_a_second} at most, {status_writes_per_s}/s on average",
        lambda one: one["most_status_writes_in_a_second"] <= 1,
    ),
)


def problems(lines: Iterable[Line]) -> list[str]:
    """Return a line of text for each figure that misses its bar."""
    return [
        f"{what}: must be {bar}, is {text.format(**line)}"
        for line in lines
        for kind, what, bar, text, holds in _ROWS
        if kind == line["kind"] and not holds(line)
    ]


def _row(row: Row, line: Line) -> str:
    _, what, bar, text, holds = row
    held = "" if holds(line) else " **(not held)**"
    return f"| {what} | {bar} | {text.format(**line)}{held} |"


def page(lines: Mapping[str, Line]) -> str:
    """Return the page of everything that is recorded."""
    newest = max((line["about"] for line in lines.values()), key=lambda about: str(about["date"]))
    machine = (
        f"{newest['cores']} cores of {newest['cpu']}, {newest['memory_gib']} GiB, Linux "
        f"{newest['kernel']}, Python {newest['python']}, torch {newest['torch']}"
    )
    rows = [_row(row, lines[row[0]]) for row in _ROWS if row[0] in lines]
    dates = [
        f"| {kind} | {line['about']['date']} | {line['about']['commit']} "
        f"| {line['load_before']} | {line.get('bed_s', '')} |"
        for kind, line in lines.items()
    ]
    figures, runs = "\n".join(rows), "\n".join(dates)
    return fill("cluster/page", machine=machine, figures=figures, runs=runs)

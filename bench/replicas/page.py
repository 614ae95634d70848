"""The page of a results file, its bars, and the costs that simulated worlds are given. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from bench.harness import machine, page
from bench.harness.page import Verdict, at_least, at_most, judged, table
from bench.replicas import effective
from bench.replicas import results as r
from bench.replicas.effective import Costs
from bench.replicas.results import ReplicaRun

_SMALL: Final = "1 MB"
_THOUSAND: Final = 1000
_AWAY_SECONDS: Final = 600.0
"""Until a replica is back in a simulated world: another node, its image and its checkpoint's read
take minutes there, and seconds here."""


def page_of(about: Mapping[str, Any], results: Sequence[ReplicaRun]) -> str:
    """Return the page's text."""
    said = (
        f"{machine.sentence(about)} Seed {about['seed']}. "
        f"Load average {page.load_range([one for one in results if one.row != r.SIMULATED])}."
        f"{' ' if 'added' in about else ''}{about.get('added', '')}"
    )
    rows = {row: _row([one for one in results if one.row == row]) for row in r.ROWS}
    return page.fill(
        "replicas/page",
        run=said,
        left_out=_left_out(about, results),
        promises=page.promises(judge(results)),
        ratios=ratios(results),
        **rows,
    )


def _left_out(about: Mapping[str, Any], results: Sequence[ReplicaRun]) -> str:
    """Return what was not measured, with the reason."""
    said = [str(one) for one in about["left_out"]]
    said += [f"{one.row}, {one.group}: {one.reason}" for one in results if one.reason]
    return "\n".join(f"- Not measured: {one}" for one in said)


def _row(results: Sequence[ReplicaRun]) -> str:
    """Return a table: a line for each group and way, a column for each value."""
    results = [one for one in results if one.values]
    if not results:
        return ""
    names = list(dict.fromkeys(name for one in results for name in one.values))
    lines = []
    for group, way in dict.fromkeys((one.group, one.way) for one in results):
        own = [one for one in results if (one.group, one.way) == (group, way)]
        cells = [_cell([one.values[name] for one in own if name in one.values]) for name in names]
        lines.append([group, way, str(len(own)), *cells])
    return table(("group", "way", "n", *names), lines)


def _cell(found: Sequence[float]) -> str:
    """Return median, least and greatest, as exact as the figure needs."""
    if not found:
        return "–"
    most = max(found)
    if most == min(found):
        return f"{most:.4g}" if most < _THOUSAND else f"{most:.0f}"
    digits = next((digits for least, digits in ((100, 0), (10, 1)) if most >= least), 3)
    return page.spread(found, f".{digits}f")


# -------------------------------------------------------------------------------------- the figures


def values(results: Sequence[ReplicaRun], row: str, group: str, way: str, name: str) -> list[float]:
    """Return a value of all runs of a way."""
    return [
        one.values[name]
        for one in results
        if (one.row, one.group, one.way) == (row, group, way) and name in one.values
    ]


def ratios(results: Sequence[ReplicaRun]) -> str:
    """Return how many times later the others' next whole step is than that of replicas."""
    lines = []
    for shape in r.SHAPES:
        group = f"{shape}, {_SMALL}"
        ours = values(results, r.LOSSES, group, r.REPLICAS, r.TOTAL)
        for way in r.WAYS[1:]:
            theirs = values(results, r.LOSSES, group, way, r.TOTAL)
            if theirs and ours:
                lines.append([shape, way, page.times(page.ratio(theirs, ours))])
    header = ("shape", "way", "kill → next whole step, times that of replicas")
    return table(header, lines) if lines else ""


def step_ratios(results: Sequence[ReplicaRun], group: str, name: str) -> list[float]:
    """Return, turn by turn, a value of replicas over that of plain torch."""
    found = [
        (one.turn, one.way, one.values[name])
        for one in results
        if (one.row, one.group) == (r.STEPS, group) and name in one.values
    ]
    return page.turn_ratios(found, r.REPLICAS, r.PLAIN)


def gradients(results: Sequence[ReplicaRun], group: str) -> list[float]:
    """Return the memory beyond plain torch's, in gradients of a rank, by pairs of a turn."""
    found = {
        (one.turn, one.way): one.values
        for one in results
        if (one.row, one.group) == (r.MEMORY, group)
    }
    return [
        (one[r.PEAK] - found[turn, r.PLAIN][r.PEAK]) / one[r.GRADIENT]
        for (turn, way), one in sorted(found.items())
        if way == r.REPLICAS and (turn, r.PLAIN) in found
    ]


def costs_of(results: Sequence[ReplicaRun]) -> dict[str, Costs]:
    """Return what a failure costs: as published, and as far as it was measured, here."""
    found = {
        "restart in 10 min, published": Costs(stall=effective.PUBLISHED_STALL),
        "FT-HSDP, 3 min, published": Costs(stall=effective.HSDP_STALL, away=_AWAY_SECONDS),
    }
    for way in (r.RESTART, r.NIGHTLY, r.REPLICAS):
        mine = _measured(results, way)
        if mine is not None:
            found[way] = mine
    if r.REPLICAS in found:
        for factor in (10, 100):
            name = f"{r.REPLICAS}, all wait {factor} times as long"
            found[name] = effective.stalled(found[r.REPLICAS], factor)
    return found


def _measured(results: Sequence[ReplicaRun], way: str) -> Costs | None:
    """Return a way's costs, from the medians of its losses and joins."""

    def of(name: str) -> float:
        found = values(results, r.LOSSES, f"{r.FOUR}, {_SMALL}", way, name)
        return max(0.0, median(found) / 1000) if found else 0.0

    step, total = of(r.ORDINARY), of(r.TOTAL)
    if not total:
        return None
    if way == r.RESTART:
        return Costs(stall=max(0.0, total - step))
    join = of(r.PAUSE)
    if way == r.NIGHTLY:
        return Costs(stall=max(0.0, total - step), join=join, away=_AWAY_SECONDS)
    return Costs(stall=of(r.BEYOND), shared=step, join=join, away=_AWAY_SECONDS)


# ----------------------------------------------------------------------------------------- the bars


def judge(results: Sequence[ReplicaRun]) -> list[Verdict]:
    """Hold the results against every bar; medians count."""
    parts = (_losses, _frozen, _steps, _joins, _goodput, _simulated)
    return [verdict for one in parts for verdict in one(results)]


def _verdict(
    text: str, promised: str, found: Sequence[float], kept: Callable[[float], bool], digits: int = 1
) -> Verdict:
    said = f".{digits}f"
    return judged(text, promised, found, kept, lambda some: page.spread(some, said, alone=True))


def _losses(results: Sequence[ReplicaRun]) -> list[Verdict]:
    verdicts = []
    for shape in r.SHAPES:
        group = f"{shape}, {_SMALL}"

        def of(way: str, name: str, group: str = group) -> list[float]:
            return values(results, r.LOSSES, group, way, name)

        text = f"kill → next whole step beyond a step and the recomputed share, ms: {shape}"
        verdicts.append(_verdict(text, "≤ 60", of(r.REPLICAS, r.BEYOND), at_most(60)))
        for name in (r.BEGUN_AGAIN, r.REDONE):
            text = f"{name}: {shape}"
            verdicts.append(_verdict(text, "0", of(r.REPLICAS, name), at_most(0), 0))
        for way, least in ((r.RESTART, 3.0), (r.TORCHRUN, 60.0)):
            found = page.ratio(of(way, r.TOTAL), of(r.REPLICAS, r.TOTAL))
            text = f"times sooner than {way}: {shape}"
            verdicts.append(
                _verdict(text, f"≥ {least:g}", [] if found is None else [found[0]], at_least(least))
            )
    return verdicts


def _frozen(results: Sequence[ReplicaRun]) -> list[Verdict]:
    found = values(results, r.FROZEN, f"{r.FOUR}, {_SMALL}", r.REPLICAS, r.STOPPED)
    return [_verdict("frozen replica out, and the next whole step, s", "≤ 5", found, at_most(5))]


def _steps(results: Sequence[ReplicaRun]) -> list[Verdict]:
    verdicts = []
    for shape, plain in ((r.FOUR, "DDP"), (r.TWO, "HSDP")):
        for name, said in ((r.WALL, "time"), (r.CPU, "CPU time")):
            found = step_ratios(results, f"{shape}, {_SMALL}", name)
            text = f"{said} of a step, nothing happening, beside {plain}: {shape}"
            verdicts.append(_verdict(text, "≤ 1.01×", found, at_most(1.01), 3))
        found = gradients(results, f"{shape}, 101 MB")
        text = f"memory beyond {plain}, in gradients of a rank: {shape}"
        verdicts.append(_verdict(text, "≤ 1.1", found, at_most(1.1), 2))
    return verdicts


def _joins(results: Sequence[ReplicaRun]) -> list[Verdict]:
    small = values(results, r.LOSSES, f"{r.FOUR}, {_SMALL}", r.REPLICAS, r.UNCOVERED)
    large = values(results, r.JOINS, f"{r.FOUR}, 101 MB", r.REPLICAS, r.UNCOVERED)
    return [
        _verdict(f"{r.UNCOVERED}: {size}", "≤ 30", found, at_most(30))
        for size, found in ((_SMALL, small), ("101 MB", large))
    ]


def _goodput(results: Sequence[ReplicaRun]) -> list[Verdict]:
    found = values(results, r.GOODPUT, f"{r.FOUR}, {_SMALL}", r.REPLICAS, r.SHARE)
    return [_verdict("goodput under a kill each 10 s", "≥ 0.97", found, at_least(0.97), 3)]


def _simulated(results: Sequence[ReplicaRun]) -> list[Verdict]:
    ours = [one for one in results if one.row == r.SIMULATED and one.way == r.REPLICAS]
    return [
        _verdict(f"effective time: {one.group}", "≥ 0.95", [one.values["effective"]],
                 at_least(0.95), 4)
        for one in ours
    ]  # fmt: skip

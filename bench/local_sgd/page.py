"""The page of a results file, and its bars. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.harness import machine, page
from bench.harness.page import Verdict, at_least, at_most, judged, table
from bench.local_sgd import plan
from bench.local_sgd import results as r
from bench.local_sgd.results import Measured


def page_of(about: Mapping[str, Any], results: Sequence[Measured]) -> str:
    """Return the page's text."""
    said = (
        f"{machine.sentence(about)} Seed {about['seed']}. "
        f"Load average {page.load_range(results)}. {about.get('remark', '')}".strip()
    )
    rows = {row: _row(row, [one for one in results if one.row == row]) for row in r.ROWS}
    return page.fill("local_sgd/page", run=said, promises=page.promises(judge(results)), **rows)


def _row(row: str, results: Sequence[Measured]) -> str:
    if not results:
        return ""
    if row != r.ELASTIC:
        return _table(results)
    return "\n".join(
        _table([one for one in results if one.group == group])
        for group in dict.fromkeys(one.group for one in results)
    )


def _table(results: Sequence[Measured]) -> str:
    names = list(dict.fromkeys(name for one in results for name in one.values))
    rows = []
    for group in dict.fromkeys(one.group for one in results):
        mine = [one for one in results if one.group == group]
        for way in dict.fromkeys(one.way for one in mine):
            own = [one for one in mine if one.way == way]
            cells = [
                _cell([one.values[name] for one in own if name in one.values]) for name in names
            ]
            rows.append([group, way, str(len(own)), *cells])
    return table(("group", "way", "runs", *names), rows)


def _cell(found: Sequence[float]) -> str:
    return _spread(found, 0 if found and max(found) >= 1000 else 3)


def _spread(found: Sequence[float], digits: int = 2) -> str:
    return page.spread(found, f".{digits}f", alone=True)


# --------------------------------------------------------------------------------------- the bars


def values(
    results: Sequence[Measured], row: str, group: str, way: str, name: str
) -> dict[int, float]:
    """Return a value by turn."""
    return {
        one.turn: one.values[name]
        for one in results
        if (one.row, one.group, one.way) == (row, group, way) and name in one.values
    }


def ratios(
    results: Sequence[Measured], row: str, group: str, ways: tuple[str, str], name: str
) -> list[float]:
    """Return, turn by turn, the first way's value over the second's."""
    found = [
        (turn, way, value)
        for way in ways
        for turn, value in values(results, row, group, way, name).items()
    ]
    return page.turn_ratios(found, *ways)


def judge(results: Sequence[Measured]) -> list[Verdict]:
    """Hold the results against every bar; medians count."""
    judges = (_bytes, _links, _slow, _loss, _robust, _elastic)
    return [verdict for one in judges for verdict in one(results)]


def _verdict(
    text: str, promised: str, found: Sequence[float], kept: Callable[[float], bool], digits: int = 2
) -> Verdict:
    return judged(text, promised, found, kept, lambda found: _spread(found, digits))


def _bytes(results: Sequence[Measured]) -> list[Verdict]:
    verdicts = []
    for group in ("2 replicas", "4 replicas"):
        for interval, codec, limit in ((16, "", 1.02), (32, "", 1.02), (16, ", int8", 0.27)):
            way = f"EDiT, H = {interval}{codec}"
            found = ratios(results, r.BYTES, group, (way, plan.DDP), r.SENT)
            shares = [one * interval for one in found]
            text = f"bytes a step × H, beside DDP in fp32: {group}, {way}"
            verdicts.append(_verdict(text, f"≤ {limit}", shares, at_most(limit), 4))
    return verdicts


def _links(results: Sequence[Measured]) -> list[Verdict]:
    verdicts = []
    for mbit, interval, least in ((100, 16, 5.0), (100, 32, 8.0), (10, 32, 12.0)):
        way, group = f"EDiT, H = {interval}", f"{mbit} Mbit/s"
        found = ratios(results, r.LINKS, group, (plan.DDP, way), r.SECONDS)
        text = f"steps/s beside DDP, {group}, H = {interval}"
        verdicts.append(_verdict(text, f"≥ {least:g}×", found, at_least(least)))
    return verdicts


def _slow(results: Sequence[Measured]) -> list[Verdict]:
    group, way, verdicts = plan.SLOW_GROUP, "A-EDiT", []
    for name, of in ((r.FAST_STEPS, "a fast replica's"), (r.ALL_STEPS, "all replicas'")):
        found = ratios(results, r.SLOW, group, (way, plan.DDP), name)
        text = f"{of} steps/s beside DDP, {group}: {way}"
        verdicts.append(_verdict(text, "≥ 3×", found, at_least(3.0)))
    return verdicts


def _loss(results: Sequence[Measured]) -> list[Verdict]:
    verdicts = []
    for steps in plan.LENGTHS:
        for interval, most in ((16, 0.0), (32, 1.0), (64, 3.0)):
            ways = (f"EDiT, H = {interval}", plan.DDP)
            found = ratios(results, r.LOSS, "4 replicas", ways, r.AFTER_STEPS.format(steps))
            more = [100 * (one - 1) for one in found]
            text = f"validation loss beside DDP's, H = {interval}, {steps} steps, %"
            verdicts.append(_verdict(text, f"≤ {most:+g}", more, at_most(most)))
    return verdicts


def _robust(results: Sequence[Measured]) -> list[Verdict]:
    verdicts = []
    for group, way, limit, bad in (
        (plan.ONE, plan.EQUAL, 0.15, True),
        (plan.ONE, plan.WEIGHTS, 0.02, False),
        (plan.ONE, plan.ELIMINATION, 0.02, False),
        (plan.ONE, plan.ALL, 0.02, False),
        (plan.EVERY, plan.ALL, 0.03, False),
    ):
        jumps = jumps_of(results, group, way)
        kept, sign = (at_least(limit), "≥") if bad else (at_most(limit), "≤")
        text = f"loss after less loss before: {group}, {way}"
        verdicts.append(_verdict(text, f"{sign} {limit}", jumps, kept, 3))
    finite = list(values(results, r.ROBUST, plan.NAN, plan.ALL, r.FINITE).values())
    text = f"all weights are finite: {plan.NAN}"
    verdicts.append(_verdict(text, "1", finite, at_least(1.0), 0))
    return verdicts


def _elastic(results: Sequence[Measured]) -> list[Verdict]:
    def of(group: str, way: str, name: str) -> list[float]:
        return list(values(results, r.ELASTIC, group, way, name).values())

    verdicts = []
    for way, name, said in (
        ("loss", "median ms", "the median loss"),
        ("loss", "p95 ms", "95 of 100 losses"),
        ("loss, from the roster on", "worst ms", "the worst loss, from the roster on"),
    ):
        text = f"a lost replica's cost at the next sync, ms: {said}"
        verdicts.append(_verdict(text, "≤ 50", of("losses", way, name), at_most(50), 1))
    for group, way in (("grow", "4-2-6"), ("kills", "kills")):
        for name in ("steps lost", "processes begun again", "rounds whose replicas differ"):
            text = f"{name} of survivors, {way}"
            verdicts.append(_verdict(text, "0", of(group, way, name), at_most(0), 0))
    for way, other, text in (
        ("4-2-6", "static", "4 → 2 → 6 beside 4 throughout"),
        ("4-2-6", "static, 6 replicas", "4 → 2 → 6 beside 6 throughout"),
        ("4-2-4", "static", "4 → 2 → 4 beside 4 throughout"),
    ):
        ends = ratios(results, r.ELASTIC, "grow", (way, other), r.VALIDATION)
        apart = [100 * (one - 1) for one in ends]
        said = f"validation loss after {text}, %"
        verdicts.append(_verdict(said, "± 0.5", apart, lambda found: abs(found) <= 0.5))
    for way, text in (
        ("kills", "goodput under a kill each 10 s"),
        ("kills, under a job master", "the same under a real job master and its agents"),
    ):
        verdicts.append(_verdict(text, "≥ 0.88", of("kills", way, "goodput"), at_least(0.88), 3))
    beside = ratios(results, r.ELASTIC, "kills", ("kills", "DDP, restarted"), "goodput")
    text = "goodput under a kill each 10 s beside DDP that restarts"
    verdicts.append(_verdict(text, "≥ 1×", beside, at_least(1.0), 3))
    return verdicts


def jumps_of(results: Sequence[Measured], group: str, way: str) -> list[float]:
    """Return how much the loss has grown in the disturbed round, by turn."""
    before = values(results, r.ROBUST, group, way, r.BEFORE)
    after = values(results, r.ROBUST, group, way, r.AFTER)
    return [after[turn] - before[turn] for turn in sorted(before.keys() & after.keys())]

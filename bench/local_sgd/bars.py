"""Bars of local SGD, and the judgement of a run by them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.local_sgd import plan
from bench.local_sgd import results as r
from bench.local_sgd.results import ByCost


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one promise by a run."""

    text: str
    promised: str
    reached: str
    kept: bool | None
    """None: not measured in this run."""


def values(
    results: Sequence[ByCost], row: str, group: str, way: str, name: str
) -> dict[int, float]:
    """Return a value by turn."""
    return {
        one.turn: one.values[name]
        for one in results
        if (one.row, one.group, one.way) == (row, group, way) and name in one.values
    }


def ratios(
    results: Sequence[ByCost], row: str, group: str, ways: tuple[str, str], name: str
) -> list[float]:
    """Return, turn by turn, the first way's value over the second's."""
    one, other = (values(results, row, group, way, name) for way in ways)
    return [one[turn] / other[turn] for turn in sorted(one.keys() & other.keys()) if other[turn]]


def spread(found: Sequence[float], digits: int = 2) -> str:
    """Return median and range in words."""
    if not found:
        return "–"
    middle = f"{statistics.median(found):.{digits}f}"
    if len(found) == 1:
        return middle
    return f"{middle} ({min(found):.{digits}f}–{max(found):.{digits}f})"


def judge(results: Sequence[ByCost]) -> list[Verdict]:
    """Hold the results against every bar; medians count."""
    judges = (_bytes, _links, _slow, _loss, _robust, _elastic)
    return [verdict for one in judges for verdict in one(results)]


def _verdict(
    text: str, promised: str, found: Sequence[float], kept: Callable[[float], bool], digits: int = 2
) -> Verdict:
    if not found:
        return Verdict(text, promised, "not measured", None)
    return Verdict(text, promised, spread(found, digits), kept(statistics.median(found)))


def _bytes(results: Sequence[ByCost]) -> list[Verdict]:
    verdicts = []
    for group in ("2 replicas", "4 replicas"):
        for interval, codec, limit in ((16, "", 1.02), (32, "", 1.02), (16, ", int8", 0.27)):
            way = f"EDiT, H = {interval}{codec}"
            found = ratios(results, r.BYTES, group, (way, plan.DDP), r.SENT)
            shares = [one * interval for one in found]
            text = f"bytes a step × H, beside DDP in fp32: {group}, {way}"
            verdicts.append(_verdict(text, f"≤ {limit}", shares, _at_most(limit), 4))
    return verdicts


def _links(results: Sequence[ByCost]) -> list[Verdict]:
    verdicts = []
    for mbit, interval, least in ((100, 16, 5.0), (100, 32, 8.0), (10, 32, 12.0)):
        way, group = f"EDiT, H = {interval}", f"{mbit} Mbit/s"
        found = ratios(results, r.LINKS, group, (plan.DDP, way), r.SECONDS)
        text = f"steps/s beside DDP, {group}, H = {interval}"
        verdicts.append(_verdict(text, f"≥ {least:g}×", found, _at_least(least)))
    return verdicts


def _slow(results: Sequence[ByCost]) -> list[Verdict]:
    group, way, verdicts = plan.SLOW_GROUP, "A-EDiT", []
    for name, of in ((r.FAST_STEPS, "a fast replica's"), (r.ALL_STEPS, "all replicas'")):
        found = ratios(results, r.SLOW, group, (way, plan.DDP), name)
        text = f"{of} steps/s beside DDP, {group}: {way}"
        verdicts.append(_verdict(text, "≥ 3×", found, _at_least(3.0)))
    return verdicts


def _loss(results: Sequence[ByCost]) -> list[Verdict]:
    verdicts = []
    for steps in plan.LENGTHS:
        for interval, most in ((16, 0.0), (32, 1.0), (64, 3.0)):
            ways = (f"EDiT, H = {interval}", plan.DDP)
            found = ratios(results, r.LOSS, "4 replicas", ways, r.AFTER_STEPS.format(steps))
            more = [100 * (one - 1) for one in found]
            text = f"validation loss beside DDP's, H = {interval}, {steps} steps, %"
            verdicts.append(_verdict(text, f"≤ {most:+g}", more, _at_most(most)))
    return verdicts


def _robust(results: Sequence[ByCost]) -> list[Verdict]:
    verdicts = []
    for group, way, limit, bad in (
        (plan.ONE, plan.EQUAL, 0.15, True),
        (plan.ONE, plan.WEIGHTS, 0.02, False),
        (plan.ONE, plan.ELIMINATION, 0.02, False),
        (plan.ONE, plan.ALL, 0.02, False),
        (plan.EVERY, plan.ALL, 0.03, False),
    ):
        jumps = jumps_of(results, group, way)
        kept, sign = (_at_least(limit), "≥") if bad else (_at_most(limit), "≤")
        text = f"loss after less loss before: {group}, {way}"
        verdicts.append(_verdict(text, f"{sign} {limit}", jumps, kept, 3))
    finite = list(values(results, r.ROBUST, plan.NAN, plan.ALL, r.FINITE).values())
    text = f"all weights are finite: {plan.NAN}"
    verdicts.append(_verdict(text, "1", finite, _at_least(1.0), 0))
    return verdicts


def _elastic(results: Sequence[ByCost]) -> list[Verdict]:
    def of(group: str, way: str, name: str) -> list[float]:
        return list(values(results, r.ELASTIC, group, way, name).values())

    verdicts = []
    for way, name, said in (
        ("loss", "median ms", "the median loss"),
        ("loss", "p95 ms", "95 of 100 losses"),
        ("loss, from the roster on", "worst ms", "the worst loss, from the roster on"),
    ):
        text = f"a lost replica's cost at the next sync, ms: {said}"
        verdicts.append(_verdict(text, "≤ 50", of("losses", way, name), _at_most(50), 1))
    for group, way in (("grow", "4-2-6"), ("kills", "kills")):
        for name in ("steps lost", "processes begun again", "rounds whose replicas differ"):
            text = f"{name} of survivors, {way}"
            verdicts.append(_verdict(text, "0", of(group, way, name), _at_most(0), 0))
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
        verdicts.append(_verdict(text, "≥ 0.88", of("kills", way, "goodput"), _at_least(0.88), 3))
    beside = ratios(results, r.ELASTIC, "kills", ("kills", "DDP, restarted"), "goodput")
    text = "goodput under a kill each 10 s beside DDP that restarts"
    verdicts.append(_verdict(text, "≥ 1×", beside, _at_least(1.0), 3))
    return verdicts


def jumps_of(results: Sequence[ByCost], group: str, way: str) -> list[float]:
    """Return how much the loss has grown in the disturbed round, by turn."""
    before = values(results, r.ROBUST, group, way, r.BEFORE)
    after = values(results, r.ROBUST, group, way, r.AFTER)
    return [after[turn] - before[turn] for turn in sorted(before.keys() & after.keys())]


def _at_most(limit: float) -> Callable[[float], bool]:
    return lambda found: found <= limit


def _at_least(limit: float) -> Callable[[float], bool]:
    return lambda found: found >= limit

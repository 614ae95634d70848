"""The page of a results file, and its bars. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.harness import machine, page
from bench.harness.page import Verdict, at_least, at_most, judged, spread, table
from bench.universal import results as r
from bench.universal.results import Timed


def page_of(about: Mapping[str, Any], results: Sequence[Timed]) -> str:
    """Return the page's text."""
    versions = f"DeepSpeed {about['deepspeed']}, megatron-core {about['megatron']}"
    said = (
        f"{machine.sentence(about)} {versions}. Seed {about['seed']}. "
        f"Load average {page.load_range(results)}. {about.get('remark', '')}".strip()
    )
    columns = {"promise (medians)": "text", "state": "state", "at": "promised"}
    promises = page.promises(judge(results), columns | {"measured": "reached", "kept": "kept"})
    states = "\n".join(_states(results))
    return page.fill("universal/page", run=said, promises=promises, states=states)


def ratios(results: Sequence[Timed], system: str, other: str) -> list[float]:
    """Return, for each turn of one act of one state, a system's time over another's."""
    return page.turn_ratios(((one.turn, one.system, one.seconds) for one in results), system, other)


def _states(results: Sequence[Timed]) -> list[str]:
    found = []
    for state in dict.fromkeys(one.state for one in results):
        mine = [one for one in results if one.state == state]
        mib = max(one.mib for one in mine)
        head = ("act", "system", "calls", "s", "× Holdfast", "collectives")
        rows = [
            _row([one for one in mine if one.act == act], system)
            for act in dict.fromkeys(one.act for one in mine)
            for system in dict.fromkeys(one.system for one in mine if one.act == act)
        ]
        found.append(f"## {state}\n\n{mib:.0f} MiB in all.\n\n" + table(head, rows))
    return found


def _row(results: Sequence[Timed], system: str) -> list[str]:
    mine = [one for one in results if one.system == system]
    beside = "1" if system == r.FLASH else spread(ratios(results, system, r.FLASH))
    collectives = max(one.collectives for one in mine)
    seconds = spread([one.seconds for one in mine], ".3f")
    return [mine[0].act, system, str(len(mine)), seconds, beside, str(collectives)]


# --------------------------------------------------------------------------------------- the bars


def judge(results: Sequence[Timed]) -> list[Verdict]:
    """Hold the results against every promise; medians count."""
    megatron = [one for one in results if one.state.startswith("Megatron")]
    zero = [one for one in results if one.state.startswith("ZeRO")]
    return [
        *_at_most("a save stops training, × warm copy", megatron, r.SAVE, 1.1),
        *_below("… below a gather on rank 0 and torch.save", megatron, r.SAVE, r.GATHER, 20),
        *_no_collectives(megatron),
        *_below("load from storage, below torch.load", megatron, r.LOAD, r.TORCH, 3),
        *_at_most("load from memory, × warm copy", megatron, r.RESTART, 1.35),
        *_without_gather("… without Megatron's gather of the weights", megatron, 1.35),
        *_below("reshaping, below ds_to_universal and load", zero, r.RESHAPE, r.UNIVERSAL, 3),
    ]


def _cases(results: Sequence[Timed], act: str) -> dict[str, list[Timed]]:
    """Return the results of an act, or of all acts with that begin, by state and act."""
    found: dict[str, list[Timed]] = {}
    for one in results:
        if one.act == act or (act == r.RESHAPE and one.act.startswith(act)):
            name = one.state if one.act == act else f"{one.state}, {one.act}"
            found.setdefault(name, []).append(one)
    return found


def _verdicts(
    text: str,
    promised: str,
    cases: dict[str, list[float]],
    kept: Callable[[float], bool],
) -> list[Verdict]:
    return [
        replace(judged(text, promised, found, kept), state=name)
        for name, found in cases.items()
        if found
    ]


def _at_most(text: str, results: Sequence[Timed], act: str, limit: float) -> list[Verdict]:
    cases = {name: ratios(mine, r.FLASH, r.COPY) for name, mine in _cases(results, act).items()}
    return _verdicts(text, f"≤ {limit:g}", cases, at_most(limit))


def _without_gather(text: str, results: Sequence[Timed], limit: float) -> list[Verdict]:
    """Judge loads from memory less what Megatron's own gather takes, which no copy has in it."""
    cases = {}
    for name, mine in _cases(results, r.RESTART).items():
        whole, gather = ratios(mine, r.FLASH, r.COPY), ratios(mine, r.SYNC, r.COPY)
        if len(whole) == len(gather):
            cases[name] = [one - other for one, other in zip(whole, gather, strict=True)]
    return _verdicts(text, f"≤ {limit:g}", cases, at_most(limit))


def _below(
    text: str, results: Sequence[Timed], act: str, other: str, times: float
) -> list[Verdict]:
    cases = {name: ratios(mine, other, r.FLASH) for name, mine in _cases(results, act).items()}
    return _verdicts(text, f"≥ {times:g}×", cases, at_least(times))


def _no_collectives(results: Sequence[Timed]) -> list[Verdict]:
    found = []
    for name, mine in _cases(results, r.SAVE).items():
        counts = [one.collectives for one in mine if one.system == r.FLASH]
        if counts:
            said = f"{sum(counts)} in {len(counts)} saves"
            text = "collectives of a save"
            found.append(Verdict(text, "0", said, not any(counts), state=name))
    return found

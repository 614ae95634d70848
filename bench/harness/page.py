"""The parts of a page that every benchmark has: its words, tables, ratios, judged promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from string import Template
from typing import Any

from bench import ROOT

_KEPT = {True: "yes", False: "**no**", None: "–"}
_COLUMNS = {"promise (medians)": "text", "at": "promised", "measured": "reached", "kept": "kept"}

PLAIN_COLUMNS = {"promise": "text", "at": "promised", "measured": "reached", "kept": "kept"}
"""Of a section of promises that are not about medians."""


def fill(name: str, /, **values: str) -> str:
    """Return the text of `bench/{name}.md.template` with the values of its placeholders.

    A section (from "## " on) is left out where all of its placeholders are empty, and so is a
    paragraph that is an empty placeholder. ValueError names a placeholder without a value, and a
    value without a placeholder.
    """
    text = (ROOT / "bench" / f"{name}.md.template").read_text(encoding="utf-8")
    wanted = set(Template(text).get_identifiers())
    if wanted != values.keys():
        missing, unused = sorted(wanted - values.keys()), sorted(values.keys() - wanted)
        raise ValueError(f"{name}.md.template: no value for {missing}, no placeholder for {unused}")
    sections = [
        section
        for section in re.split(r"^(?=## )", text, flags=re.MULTILINE)
        if not (names := Template(section).get_identifiers()) or any(values[one] for one in names)
    ]
    text = re.sub(
        r"^\$\{(\w+)\}\n\n",
        lambda found: found[0] if values[found[1]] else "",
        "".join(sections),
        flags=re.MULTILINE,
    )
    stripped = {one: value.rstrip("\n") for one, value in values.items()}
    return Template(text).substitute(stripped).rstrip("\n") + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def kept(held: bool | None) -> str:  # noqa: FBT001 - a cell
    """Return the cell that says whether a promise was kept; None: it was not measured."""
    return _KEPT[held]


def spread(
    values: Sequence[float], spec: str = ".2f", unit: str = "", *, alone: bool = False
) -> str:
    """Return "median (least–greatest)"; with `alone`, one value stands without its range."""
    if not values:
        return "–"
    middle = f"{median(values):{spec}}{unit}"
    if alone and len(values) == 1:
        return middle
    return f"{middle} ({min(values):{spec}}–{max(values):{spec}})"


def load_range(results: Iterable[Any]) -> str:
    """Return the least and the greatest load average of results."""
    loads = [one.load for one in results] or [0.0]
    return f"{min(loads):.1f}–{max(loads):.1f}"


Ratio = tuple[float, float, float]
"""Of the medians, and of the two pairings that bound all others."""


def ratio(
    theirs: Sequence[float],
    ours: Sequence[float],
    middle: Callable[[Sequence[float]], float] = median,
) -> Ratio | None:
    """Return how many times more theirs is; None where there is nothing to compare.

    No pair of one value of theirs and one of ours gives a ratio outside of the bounds.
    """
    if not theirs or not ours or min(ours) <= 0:
        return None
    return middle(theirs) / middle(ours), min(theirs) / max(ours), max(theirs) / min(ours)


def times(found: Ratio | None) -> str:
    """Return a ratio in words."""
    return "–" if found is None else "{:.1f}× ({:.1f}–{:.1f})".format(*found)


def turn_ratios(values: Iterable[tuple[int, str, float]], one: str, other: str) -> list[float]:
    """Return, turn by turn, one's value over another's, of (turn, whose, value)."""
    turns: dict[int, dict[str, float]] = {}
    for turn, whose, value in values:
        turns.setdefault(turn, {})[whose] = value
    return [turn[one] / turn[other] for turn in turns.values() if one in turn and turn.get(other)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one promise by a run."""

    text: str
    promised: str
    reached: str = "not measured"
    kept: bool | None = None
    """None where the run did not measure it."""
    times: int = 0
    """How often it was measured."""
    state: str = ""
    """The measured thing, where a promise is about several."""


def judged(
    text: str,
    promised: str,
    values: Sequence[float],
    held: Callable[[float], bool],
    words: Callable[[Sequence[float]], str] = spread,
) -> Verdict:
    """Hold the median of the values against a bar."""
    if not values:
        return Verdict(text, promised)
    return Verdict(text, promised, words(values), held(median(values)), len(values))


def at_most(limit: float) -> Callable[[float], bool]:
    """Return the bar that no figure may be above."""
    return lambda found: found <= limit


def at_least(limit: float) -> Callable[[float], bool]:
    """Return the bar that every figure must reach."""
    return lambda found: found >= limit


def promises(verdicts: Iterable[Verdict], columns: Mapping[str, str] = _COLUMNS) -> str:
    """Return the section of a page about what is promised; `columns`: fields by their headings."""
    rows = [
        [kept(one.kept) if name == "kept" else str(getattr(one, name)) for name in columns.values()]
        for one in verdicts
    ]
    return "## What is promised\n\n" + table(list(columns), rows)

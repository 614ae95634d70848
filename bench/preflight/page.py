"""The page of a results file. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import machine
from bench.harness.page import fill, kept, table
from bench.harness.record import Line
from bench.preflight.checks import AGAIN, ALONE, PAIR

LEAST_NAMED = 0.99
MOST_SECONDS = 10.0
"""The bars: share of the bad nodes that are named, and seconds of a check on idle nodes."""


def page_of(about: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the page's text."""
    seconds = least(lines)
    return fill(
        "preflight/page",
        run=machine.sentence(about),
        bars=_bars(lines, seconds),
        parts=_parts(lines),
        real=_real_table(lines),
        simulated=_simulated(lines, seconds),
    )


def least(lines: Sequence[Line]) -> dict[str, float]:
    """Return the shortest time of each part, s."""
    found = dict[str, float]()
    for one in lines:
        if one["what"] == "part" and not one["error"]:
            found[one["part"]] = min(one["seconds"], found.get(one["part"], one["seconds"]))
    return found


def check_seconds(seconds: Mapping[str, float], alone: int, pairs: int) -> float:
    """Return the time of a check with so many rounds, s."""
    again = (alone - 1) * seconds.get(AGAIN, 0.0)
    return seconds.get(ALONE, 0.0) + again + pairs * seconds.get(PAIR, 0.0)


def _bars(lines: Sequence[Line], seconds: Mapping[str, float]) -> str:
    rows = []
    for what, text in (("real", "real agents"), ("simulated", "clusters from seeds")):
        found = [one for one in lines if one["what"] == what and one["fault"] != "none"]
        if not found:
            continue
        bad = sum(one.get("bad", 1) for one in found)
        share = sum(one["named"] for one in found) / bad
        rows.append(_bar(f"bad nodes named, {text}", f"{share:.2%} of {bad}", share, LEAST_NAMED))
    if whole := [one["seconds"] for one in lines if one["what"] == "real" and one["core"] == 1.0]:
        text = "seconds of a check of real agents with a core each, at most"
        rows.append(_bar(text, f"{max(whole):.1f}", -max(whole), -MOST_SECONDS))
    slowest = check_seconds(seconds, alone=2, pairs=3)
    text = "seconds of a check of 4 idle nodes, a slow one among them (the sum of its parts)"
    rows.append(_bar(text, f"{slowest:.1f}", -slowest, -MOST_SECONDS))
    return table(("what", "measured", "bar", "held"), rows)


def _bar(what: str, measured: str, value: float, bar: float) -> list[str]:
    words = f"{bar:.0%}" if bar > 0 else f"{-bar:.0f}"
    return [what, measured, words, kept(value >= bar)]


def _parts(lines: Sequence[Line]) -> str:
    rows = []
    for part in (ALONE, AGAIN, PAIR):
        found = [one for one in lines if one["what"] == "part" and one["part"] == part]
        whole = [one for one in found if not one["error"]]
        if whole:
            took = sorted(one["seconds"] for one in whole)
            row = (took[0], statistics.median(took), took[-1])
            waited = statistics.median(one["waited"] for one in found)
            trials = f"{len(whole)} of {len(found)}"
            rows.append([part, trials, *(f"{one:.2f}" for one in row), f"{waited:.0%}"])
    return table(("part", "trials without an error", "least", "median", "most", "waiting"), rows)


def _real_table(lines: Sequence[Line]) -> str:
    found = [one for one in lines if one["what"] == "real"]
    kinds = dict.fromkeys((one["nodes"], one["fault"]) for one in found)
    rows = []
    for nodes, fault in kinds:
        own = [one for one in found if (one["nodes"], one["fault"]) == (nodes, fault)]
        rows.append(_real(nodes, fault, own))
    head = ("nodes", "core of each", "fault", "trials", "named", "healthy named", "check, s")
    return table((*head, "from hello, s"), rows)


def _real(nodes: int, fault: str, own: Sequence[Line]) -> list[str]:
    named = f"{sum(one['named'] for one in own)} of {len(own)}" if fault != "none" else "–"
    wrong = str(sum(one["wrong"] for one in own))
    took, whole = _range(own, "seconds"), _range(own, "from_hello_s")
    return [str(nodes), _core(own[0]["core"]), fault, str(len(own)), named, wrong, took, whole]


def _core(share: float | None) -> str:
    """Return the share of a core that a node has; None: it shared one without a quota."""
    return "shared" if share is None else f"{share:.2g}"


def _range(lines: Sequence[Line], name: str) -> str:
    values = sorted(one[name] for one in lines)
    return f"{values[0]:.1f} to {values[-1]:.1f}"


def _simulated(lines: Sequence[Line], seconds: Mapping[str, float]) -> str:
    rows = [
        [
            str(one["nodes"]),
            one["fault"],
            str(one["clusters"]),
            str(one["bad"] // one["clusters"]),
            f"{one['named'] / one['bad']:.2%}" if one["bad"] else "–",
            f"{one['wrong']} of {one['healthy']}",
            f"{one['alone_rounds']} + {one['pair_rounds']}",
            f"{check_seconds(seconds, one['alone_rounds'], one['pair_rounds']):.1f}",
        ]
        for one in lines
        if one["what"] == "simulated"
    ]
    head = ("nodes", "fault", "clusters", "bad nodes in each", "named", "healthy named")
    return table((*head, "rounds alone + in pairs, at most", "time, s"), rows)

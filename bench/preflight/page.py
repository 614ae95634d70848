"""The page of a results file. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.harness import machine
from bench.harness.page import kept, table
from bench.harness.record import Line
from bench.preflight.checks import AGAIN, ALONE, PAIR

LEAST_NAMED = 0.99
MOST_SECONDS = 10.0
"""The bars: share of the bad nodes that are named, and seconds of a check on idle nodes."""
_INTRO = """\
# Preflight: who is named, and how soon

Generated from [preflight.jsonl](preflight.jsonl) by `PYTHONPATH=tests/support python -m
bench.preflight --publish`. [Health](../health.md) describes the check.
"""
_SIMULATED = """\
## Clusters from seeds

The shipped policy judges figures that differ from node to node and from test to test as measured
ones do. What is left of a bad node's speed is drawn: CPU 0.25 to 0.6, memory 0.2 to 0.55,
network 0.05 to 0.3. A dead node answers from the first or the second round on no more. In a job
a dead agent is lost after 5 s, and the check goes on without it; "dead" is an agent that is
connected and says nothing. Its round ends at the deadline: 185 s, or what is left of
`timeoutSeconds`. The time is that of the most rounds any of the clusters had, by the parts
above; without the deadline of a dead node.
"""
_PARTS = """\
## Parts of a check

Seconds of each part as the process of a node takes it, one process to a core. The import of
torch is no part of a check: an agent makes it while its ranks' zygote imports torch, before a
node can be checked. `waiting` is the share of the time in which some task on this machine waited
for a CPU: above 0, the nodes were not idle, and the least of the trials is nearest to idle ones.
"""
_REAL = """\
## Real agents

Agents of one job on this machine, each with a host name of its own, so that any two are a pair.
Each is bound to one core. Where there are more agents than cores, all are bound to the first one,
and each has its share of it by a quota (a cgroup's, in periods of 10 ms): such nodes are slower,
and a check of them takes longer, but none is faster than another. "Shared" stands where the
machine allows no quota: such nodes are as fast as their neighbours let them be. Slow memory: each
copy is made five times. Dead: the process that measures is killed once. Time is that from event
`PreflightBegun` to the last verdict, and from the first `NodeJoined` on.
"""


def page_of(about: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the page's text."""
    seconds = least(lines)
    parts = [
        _INTRO,
        f"{machine.sentence(about)}\n",
        _bars(lines, seconds),
        _PARTS,
        _parts(lines),
        _real_section(lines),
        _SIMULATED,
        _simulated(lines, seconds),
    ]
    return "\n".join(parts)


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


def _real_section(lines: Sequence[Line]) -> str:
    found = [one for one in lines if one["what"] == "real"]
    kinds = dict.fromkeys((one["nodes"], one["fault"]) for one in found)
    rows = []
    for nodes, fault in kinds:
        own = [one for one in found if (one["nodes"], one["fault"]) == (nodes, fault)]
        rows.append(_real(nodes, fault, own))
    head = ("nodes", "core of each", "fault", "trials", "named", "healthy named", "check, s")
    return _REAL + "\n" + table((*head, "from hello, s"), rows)


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

"""The page of a run, from its recorded lines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.failover.instants import Scene
from bench.failover.verdict import Answer
from bench.harness import machine
from bench.harness.page import fill, table
from bench.harness.record import Line

_ABRUPT = frozenset({Scene.RESTART.value, Scene.WORKER.value})
"""Ranks are killed by the scene itself: the steps since their checkpoint are its price."""
_HEAD = (
    "when",
    "journal",
    "instants",
    "changes granted",
    "new rounds",
    "steps lost",
    "no master, s (median)",
    "problems",
)


def page(lines: Sequence[Line]) -> str:
    """Return the page's text."""
    parts = [fill("failover/page")]
    for torch in (False, True):
        instants = [line for line in lines if line["kind"] == "instant" and line["torch"] is torch]
        runs = [line for line in lines if line["kind"] == "run" and line["torch"] is torch]
        if instants:
            parts.append(_section(instants, runs, torch=torch))
    return "\n".join(parts)


def problems(lines: Sequence[Line]) -> list[str]:
    """Return everything that must not be."""
    found = []
    for line in lines:
        who = f"seed {line['seed']}, "
        who += f"instant {line['instant']}" if line["kind"] == "instant" else "watcher"
        found += [f"{who}: {text}" for text in line["problems"]]
    return found


def _section(instants: Sequence[Line], runs: Sequence[Line], *, torch: bool) -> str:
    name = "examples/train_gpt.py (torch, gloo)" if torch else "a loop without torch"
    kept = sum(line["journal"] for line in instants)
    lost = sum(line["redone"] for line in instants if line["scene"] not in _ABRUPT)
    bad = problems([*instants, *runs])
    seeds = ", ".join(str(seed) for seed in sorted({line["seed"] for line in instants}))
    counts = (
        f"Seeds {seeds}; journal kept {kept} times, removed {len(instants) - kept} times. Steps "
        f"lost: **{lost}**. Instants with a problem: "
        f"**{sum(bool(line['problems']) for line in instants)}**.\n"
    )
    rows = [_row(instants, scene, kept=kept) for scene in Scene for kept in (True, False)]
    return "\n".join(
        [
            f"## {name}: {len(instants)} instants\n",
            counts,
            table(_HEAD, [row for row in rows if row]),
            _watched(runs),
            "".join(f"{machine.sentence(run['about'])}\n" for run in runs),
            "".join(f"- {text}\n" for text in bad),
        ]
    )


def _watched(runs: Sequence[Line]) -> str:
    total = {name: sum(run[name] for run in runs) for name in ("events", "resumed", "resets")}
    wrong = sum(len(run["problems"]) for run in runs)
    return (
        f"A watcher beside saw {total['events']} events. At {total['resumed']} masters it went on "
        f"at its token, at {total['resets']} it was told to begin anew, because the journal was "
        f"gone; {wrong} events were missing or came twice.\n"
    )


def _row(instants: Sequence[Line], scene: Scene, *, kept: bool) -> list[str]:
    mine = [p for p in instants if p["scene"] == scene.value and p["journal"] is kept]
    if not mine:
        return []
    granted = sum(p["answer"] == Answer.GRANTED.value or scene is Scene.WORKER for p in mine)
    lost = sum(p["redone"] for p in mine)
    return [
        scene.value,
        "kept" if kept else "removed",
        str(len(mine)),
        str(granted),
        str(sum(p["rounds"] - p["split"] for p in mine)),
        f"{lost} (unsaved ones)" if scene.value in _ABRUPT and lost else str(lost),
        f"{statistics.median(p['away_s'] for p in mine):.1f}",
        str(sum(bool(p["problems"]) for p in mine)),
    ]

"""Writes the results of a run as a Markdown page. Pure: results in, text out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.recovery.bars import judge
from bench.recovery.measure import Recovery
from bench.recovery.results import OURS, RECOVERED, Result

_INTRO = """\
# Recovery, beside torchrun and DLRover

Generated from [recovery.jsonl](recovery.jsonl) by `python -m bench.recovery --publish`.

One script, one restore, two nodes of one worker each, gloo on the loopback, ~30 ms a step, a
checkpoint every 10 steps. All systems in one run, their trials interleaved, each trial in a PID
namespace of its own. A step counts once all ranks have completed it; "next step" is the first one
of the new round; steps done again are a column of their own. Seconds: median (least–greatest).
Ratios: of the medians (least of theirs over greatest of ours – greatest over least).

"Tuned": the peer's own time-outs as low as it accepts without taking a healthy node for dead
(torchrun: last call 1 s, keep-alive 3 × 1 s, its store in a process of its own, no store shared
with the ranks; DLRover: last call 1 s), and collectives that give up after 5 s. Holdfast runs
with its defaults. Trust the ratios more than the seconds: two shared cores.
"""


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    text: str
    figure: Callable[[Recovery], float]
    """What the ratio is about."""
    by_target: bool
    """Which rank is hit makes a difference, so ranks have rows of their own."""


SECTIONS = {
    "crash": _Section(
        "A worker process is killed",
        "`kill -9` of either of two ranks. Next step: of both ranks.",
        lambda found: found.total_s,
        by_target=False,
    ),
    "node-lost": _Section(
        "A node is lost",
        "`kill -9` of an agent and everything below it. Next step: of the world that goes on.",
        lambda found: found.total_s,
        by_target=True,
    ),
    "rejoin": _Section(
        "The node comes back",
        "From the start of the new agent's process to the first step of both ranks. The ratio is "
        "that of the pause: how long the rank that trained meanwhile stood still.",
        lambda found: found.pause_s,
        by_target=True,
    ),
    "agent-frozen": _Section(
        "An agent freezes",
        "SIGSTOP of an agent alone; its worker is free to go on.",
        lambda found: found.total_s,
        by_target=False,
    ),
    "node-frozen": _Section(
        "A node freezes",
        "SIGSTOP of an agent and everything below it.",
        lambda found: found.total_s,
        by_target=False,
    ),
}


def page(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the whole page."""
    parts = [_INTRO, _machine(about, results)]
    if any(result.case.system == OURS for result in results):
        parts.append(_promises(results))
    for name, section in SECTIONS.items():
        of_it = [result for result in results if result.measured == name]
        if of_it:
            parts.append(_section(section, of_it))
    return "\n".join(parts)


def spread(values: Sequence[float]) -> str:
    """Return "median (least–greatest)" of seconds, to three digits that count."""
    if not values:
        return "–"
    if len(values) == 1:
        return seconds(values[0])
    return f"{seconds(median(values))} ({seconds(min(values))}–{seconds(max(values))})"


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return the ratio of theirs to ours: that of the medians, then the least and the greatest.

    No pair of one trial of theirs and one of ours gives a ratio outside of the bounds.
    """
    if not theirs or not ours or min(ours) <= 0:
        return "–"
    middle = median(theirs) / median(ours)
    least, greatest = min(theirs) / max(ours), max(theirs) / min(ours)
    return f"{middle:.1f}× ({least:.1f}–{greatest:.1f})"


def seconds(value: float) -> str:
    """Return ``value`` with as many digits as it carries."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _machine(about: Mapping[str, Any], results: Sequence[Result]) -> str:
    loads = [result.load for result in results if result.load]
    load = f"{min(loads):.1f}–{max(loads):.1f}" if loads else "unknown"
    left_out = about.get("left_out") or {}
    lines = [
        (
            f"{about.get('date')}, commit {about.get('commit')}, plan {about.get('plan')}: "
            f"{about.get('cores')} × {about.get('cpu')}, {about.get('memory_gib')} GiB, Linux "
            f"{about.get('kernel')}, Python {about.get('python')}, torch {about.get('torch')}, "
            f"DLRover {about.get('dlrover')}; load average at the faults {load}."
        ),
        *(f"Left out: {name}: {reason}" for name, reason in sorted(left_out.items())),
    ]
    return "\n".join(lines) + "\n"


def _promises(results: Sequence[Result]) -> str:
    words = {True: "yes", False: "**no**", None: "–"}
    rows = [
        [v.bar.text, v.promised, v.reached, str(v.trials), words[v.kept]] for v in judge(results)
    ]
    header = ["promise (medians)", "at", "measured", "trials", "kept"]
    return "## What is promised\n\n" + table(header, rows)


def _section(section: _Section, results: Sequence[Result]) -> str:
    groups: dict[_Key, list[Result]] = {}
    for result in results:
        groups.setdefault(_key(result, section), []).append(result)
    ours = {key: _figures(section, group) for key, group in groups.items() if key.system == OURS}
    rows = [
        _row(key, groups[key], _figures(section, groups[key]), _base(key, ours))
        for key in sorted(groups)
    ]
    header = ["restore", "system", "rank hit", "recovered", "total, s", "pause, s", "restore, s"]
    header += ["steps redone", "× Holdfast"]
    parts = [f"## {section.title}\n\n{section.text}\n", table(header, rows)]
    parts += [f"- {line}" for line in _reasons(groups)]
    return "\n".join([*parts, "", _stages(groups)])


@dataclass(frozen=True, slots=True, order=True)
class _Key:
    """The key of a row of a table; rows stand in the order of their keys."""

    restore_last: bool
    restore: str
    peer: bool
    system: str
    variant: str
    rank: str

    @property
    def name(self) -> str:
        return self.system if self.system == OURS else f"{self.system}, {self.variant}"


def _key(result: Result, section: _Section) -> _Key:
    case = result.case
    return _Key(
        restore_last=case.restore != "torch",
        restore=case.restore,
        peer=case.system != OURS,
        system=case.system,
        variant=case.variant,
        rank=str(result.target) if section.by_target else "either",
    )


def _base(key: _Key, ours: Mapping[_Key, Sequence[float]]) -> list[float]:
    """Return Holdfast's figures to compare ``key`` with: same restore, and same rank if any."""
    same = [k for k in ours if k.restore == key.restore]
    exact = [k for k in same if k.rank == key.rank]
    return [value for k in exact or same for value in ours[k]]


def _figures(section: _Section, results: Sequence[Result]) -> list[float]:
    return [section.figure(result.recovery) for result in results if result.recovery]


def _row(
    key: _Key, results: Sequence[Result], figures: Sequence[float], ours: Sequence[float]
) -> list[str]:
    found = [result.recovery for result in results if result.recovery]
    redone = [one.redone_steps for one in found]
    return [
        key.restore,
        key.name,
        key.rank,
        f"{len(found)}/{len(results)}" if found else f"**never**, 0/{len(results)}",
        spread([one.total_s for one in found]),
        spread([one.pause_s for one in found]),
        spread([one.restore_s for one in found]),
        f"{median(redone):.0f} ({min(redone)}–{max(redone)})" if redone else "–",
        "1" if key.system == OURS else ratio(figures, ours),
    ]


def _reasons(groups: Mapping[_Key, Sequence[Result]]) -> list[str]:
    """Return the reasons for which trials did not recover, each reason once."""
    lines: dict[str, None] = {}
    for key in sorted(groups):
        for result in groups[key]:
            if result.outcome != RECOVERED:
                lines[f"{key.name}, rank {result.target}: {result.outcome}: {result.reason}"] = None
    return list(lines)


def _stages(groups: Mapping[_Key, Sequence[Result]]) -> str:
    """Return a table of the time by stage: medians of the stages of the slowest rank."""
    rows: list[list[str]] = []
    names: list[str] = []
    for key in sorted(groups):
        found = [result.recovery.stages for result in groups[key] if result.recovery]
        if found:
            names = list(found[0])
            medians = [seconds(median(stages[name] for stages in found)) for name in names]
            rows.append([key.restore, key.name, key.rank, *medians])
    if not rows:
        return ""
    header = ["restore", "system", "rank hit", *names]
    return "Where the total went, by what the slowest rank had reached (medians, s):\n\n" + table(
        header, rows
    )

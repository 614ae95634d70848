"""The page of a results file. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.overhead.results import SdkCost, Trial
from bench.overhead.step import HOLDFAST, TORCHRUN
from bench.recovery.report import table

SDK_BAR_NS = 2000
SHARE_BAR = 0.005

_INTRO = """\
# What Holdfast costs a job to which nothing happens

Generated from [overhead.jsonl](overhead.jsonl) by `python -m bench.overhead --publish`.

Two ranks of one node keep both cores busy (DDP over gloo, steps of about 30 ms of arithmetic, a
heartbeat of what the SDK wrote into its page), in turns under torchrun without the SDK and under
`holdfast-run` with it. What runs beside the ranks takes its CPU time from one of them, and the
others wait for that one: so that time, as a share of the step's, is the overhead. The ranks answer
samples of their collectives at the same time, so of them the rank counts that takes longest. The
ratio of the step times says the same with the machine's noise in it. The job master runs on the
node only here: in a cluster it has its own pod.
"""


def page(about: Mapping[str, Any], results: Sequence[SdkCost | Trial]) -> str:
    """Return the page's text."""
    costs = [one for one in results if isinstance(one, SdkCost)]
    trials = [one for one in results if isinstance(one, Trial)]
    loads = [trial.load for trial in trials]
    machine = (
        f"{about['date']}, commit {about['commit']}: {about['cores']} × {about['cpu']}, Linux "
        f"{about['kernel']}, Python {about['python']}, torch {about['torch']}; load average "
        f"{min(loads):.1f}–{max(loads):.1f}.\n"
    )
    return "\n".join([_INTRO, machine, _promises(costs, trials), _sdk(costs), _steps(trials)])


def _promises(costs: Sequence[SdkCost], trials: Sequence[Trial]) -> str:
    worst = max(cost.median for cost in costs)
    share = overhead(costs, trials)
    rows = [
        ["`job.step()`, worst case's median", "≤ 2 µs", f"{worst / 1000:.2f} µs"],
        ["agent, SDK and sampling on the time of a step", "≤ 0.5 %", f"{share:.2%}"],
    ]
    kept = [worst <= SDK_BAR_NS, share <= SHARE_BAR]
    marked = [[*row, "yes" if held else "**no**"] for row, held in zip(rows, kept, strict=True)]
    return "## What is promised\n\n" + table(("promise", "at", "measured", "kept"), marked)


def overhead(costs: Sequence[SdkCost], trials: Sequence[Trial]) -> float:
    """Return what agent, zygote, the SDK's calls and samples take of a step."""
    ours = [trial for trial in trials if trial.launcher == HOLDFAST]
    call_us = max(cost.median for cost in costs) / 1000
    return statistics.median(
        trial.share(trial.launcher_us + call_us + (trial.sampling_us or 0.0)) for trial in ours
    )


def _sdk(costs: Sequence[SdkCost]) -> str:
    rows = [
        [cost.case, *(f"{ns:.0f}" for ns in (cost.median, cost.p10, cost.p90, cost.greatest))]
        for cost in costs
    ]
    head = ("CPU time of `job.step(n, samples=…, loss=…)`, ns", "median", "p10", "p90", "greatest")
    return "## The SDK\n\n" + table(head, rows)


def _steps(trials: Sequence[Trial]) -> str:
    rows = []
    for name in (TORCHRUN, HOLDFAST):
        mine = [trial for trial in trials if trial.launcher == name]
        rows.append(
            [
                name,
                str(len(mine)),
                f"{statistics.median(one.step_us for one in mine) / 1000:.1f}",
                _share([one.share(one.launcher_us) for one in mine]),
                _share([one.share(one.sampling_us) for one in mine if one.sampling_us is not None]),
                _share([one.share(one.master_us) for one in mine]),
            ]
        )
    head = (
        "launcher",
        "runs",
        "step, ms",
        "launcher's share",
        "samples in a rank",
        "master's share",
    )
    ratios = _ratios(trials)
    said = (
        f"Step time, pair by pair: {statistics.median(ratios):.3f} × torchrun's "
        f"({min(ratios):.3f}–{max(ratios):.3f}).\n"
    )
    return "## The step\n\n" + table(head, rows) + "\n" + said


def _share(shares: Sequence[float]) -> str:
    if not shares:
        return "not measured"
    return f"{statistics.median(shares):.2%} ({min(shares):.2%}–{max(shares):.2%})"


def _ratios(trials: Sequence[Trial]) -> list[float]:
    by_pair: dict[int, dict[str, float]] = {}
    for trial in trials:
        by_pair.setdefault(trial.pair, {})[trial.launcher] = trial.step_us
    return [pair[HOLDFAST] / pair[TORCHRUN] for pair in by_pair.values() if len(pair) == 2]

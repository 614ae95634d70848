"""``python -m bench.overhead``: costs in a job without faults; the page and its bars."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import machine, page, record
from bench.harness.launch import HOLDFAST, TORCHRUN
from bench.harness.page import Verdict, spread, table
from bench.overhead import measure
from bench.overhead.measure import SdkCost, TrainingRun

SDK_BAR_NS = 2000
SHARE_BAR = 0.005


def page_of(about: Mapping[str, Any], results: Sequence[SdkCost | TrainingRun]) -> str:
    """Return the page's text."""
    costs = [one for one in results if isinstance(one, SdkCost)]
    runs = [one for one in results if isinstance(one, TrainingRun)]
    words = machine.words(about, without={"memory_gib"})
    values = ((run.pair, run.launcher, run.step_us) for run in runs)
    return page.fill(
        "overhead/page",
        run=f"{words}; load average {page.load_range(runs)}.",
        promises=_promises(costs, runs),
        sdk=_sdk(costs),
        steps=_steps(runs),
        ratios=spread(page.turn_ratios(values, HOLDFAST, TORCHRUN), ".3f", " × torchrun's"),
    )


def _promises(costs: Sequence[SdkCost], runs: Sequence[TrainingRun]) -> str:
    worst, share = max(cost.median for cost in costs), overhead(costs, runs)
    verdicts = [
        Verdict(
            "`job.step()`, worst case's median",
            "≤ 2 µs",
            f"{worst / 1000:.2f} µs",
            worst <= SDK_BAR_NS,
        ),
        Verdict(
            "agent, SDK and sampling on the time of a step",
            "≤ 0.5 %",
            f"{share:.2%}",
            share <= SHARE_BAR,
        ),
    ]
    return page.promises(verdicts, page.PLAIN_COLUMNS)


def overhead(costs: Sequence[SdkCost], runs: Sequence[TrainingRun]) -> float:
    """Return the share of a step that agent, zygote, the SDK's calls and samples take."""
    ours = [run for run in runs if run.launcher == HOLDFAST]
    call_us = max(cost.median for cost in costs) / 1000
    return statistics.median(
        run.share(run.launcher_us + call_us + (run.sampling_us or 0.0)) for run in ours
    )


def _sdk(costs: Sequence[SdkCost]) -> str:
    rows = [
        [cost.case, *(f"{ns:.0f}" for ns in (cost.median, cost.p10, cost.p90, cost.greatest))]
        for cost in costs
    ]
    head = ("CPU time of `job.step(n, samples=…, loss=…)`, ns", "median", "p10", "p90", "greatest")
    return table(head, rows)


def _steps(runs: Sequence[TrainingRun]) -> str:
    rows = []
    for name in (TORCHRUN, HOLDFAST):
        mine = [run for run in runs if run.launcher == name]
        samples = [one.share(one.sampling_us) for one in mine if one.sampling_us is not None]
        rows.append(
            [
                name,
                str(len(mine)),
                f"{statistics.median(one.step_us for one in mine) / 1000:.1f}",
                spread([one.share(one.launcher_us) for one in mine], ".2%"),
                spread(samples, ".2%") if samples else "not measured",
                spread([one.share(one.master_us) for one in mine], ".2%"),
            ]
        )
    head = ("launcher", "runs", "step, ms", "launcher's share", "samples in a rank")
    return table((*head, "master's share"), rows)


def _result(**fields: Any) -> SdkCost | TrainingRun:
    return TrainingRun(**fields) if "launcher" in fields else SdkCost(**fields)


BENCH = record.Bench("overhead", page_of, _result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="of runs, one under each launcher")
    parser.add_argument("--steps", type=int, default=500, help="of each run")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    with record.recording(options.out, {}) as note, tempfile.TemporaryDirectory() as folder:
        measure.calls(note)
        measure.steps(options.pairs, options.steps, Path(folder), note)


if __name__ == "__main__":
    sys.exit(main())

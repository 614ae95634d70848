"""``python -m bench.recovery``: run a plan, write its results, show or publish the page."""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from bench.harness import record, sandbox, venvs
from bench.recovery.page import page, seconds
from bench.recovery.plan import PLANS, Trials, cases, chosen, estimate_s
from bench.recovery.results import Case, Result, result
from bench.recovery.trial import Conductor

BENCH = record.Bench("recovery", page, result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--plan", choices=sorted(PLANS), default="record")
    parser.add_argument("--systems", nargs="+", default=[], help="only these")
    parser.add_argument("--scenarios", nargs="+", default=[], help="only these")
    parser.add_argument("--repetitions", type=int, help="trials of each row, not the plan's")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the faults")
    parser.add_argument("--list", action="store_true", help="show the trials and start nothing")
    options = parser.parse_args(arguments)
    rows = chosen(PLANS[options.plan], options.systems, options.scenarios)
    todo = cases(rows, options.repetitions)
    if not options.page_of:
        minutes = estimate_s(rows, options.repetitions) / 60
        print(f"{len(todo)} trials, about {minutes:.0f} min on an idle machine", flush=True)
    if options.list:
        print("\n".join(_name(case) for case in todo))
        return 0
    return BENCH.main(options, lambda _: _run(options, rows, todo))


def _run(options: argparse.Namespace, rows: Sequence[Trials], todo: Sequence[Case]) -> None:
    sandbox.check()
    pythons, missing = _prepare(sorted({row.system for row in rows}))
    for system, reason in missing.items():
        print(f"left out: {system}: {reason}", flush=True)
    runner = Conductor(options.out.with_suffix(".logs"), pythons, options.seed)
    begun = time.monotonic()
    with record.recording(options.out, missing, plan=options.plan) as note:
        for number, case in enumerate(todo, 1):
            if case.system not in pythons:
                continue
            for found in runner.run(case):
                passed = time.monotonic() - begun
                note(found, f"{number}/{len(todo)} {passed:.0f} s  {_said(found)}")


def _prepare(systems: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Set up and warm what the systems need: (interpreter by system, why others are left out)."""
    pythons: dict[str, str] = {}
    missing: dict[str, str] = {}
    for system in systems:
        try:
            pythons[system] = venvs.python_of(system)
            venvs.warm_up(pythons[system])
        except (venvs.SetupError, subprocess.TimeoutExpired, OSError) as error:
            missing[system] = str(error)
    return pythons, missing


def _name(case: Case) -> str:
    who = f"{case.system} {case.variant} {case.restore}"
    return f"{case.scenario:13} {who:26} rank {case.target} #{case.repetition}"


def _said(one: Result) -> str:
    found = one.recovery
    if found is None:
        what = f"{one.outcome}: {one.reason}"
    else:
        what = f"{seconds(found.total_s)} s, pause {seconds(found.pause_s)} s"
    return f"{_name(one.case)}  {one.measured}: {what}"


if __name__ == "__main__":
    sys.exit(main())

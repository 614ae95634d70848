"""``python -m bench.recovery``: run a plan, write its results, show or publish the page."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.recovery import conductor, sandbox
from bench.recovery.plan import PLANS, Row, cases, chosen, estimate_s
from bench.recovery.report import page, seconds
from bench.recovery.results import Case, Result, read, to_line

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "recovery.md"
RECORD = PAGE.with_suffix(".jsonl")
_BUILD = ROOT / "build" / "bench"


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--plan", choices=sorted(PLANS), default="record")
    parser.add_argument("--systems", nargs="+", default=[], help="only these")
    parser.add_argument("--scenarios", nargs="+", default=[], help="only these")
    parser.add_argument("--repetitions", type=int, help="trials of each row, not the plan's")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the faults")
    parser.add_argument("--out", type=Path, default=_BUILD / "recovery.jsonl")
    parser.add_argument("--list", action="store_true", help="show the trials and start nothing")
    parser.add_argument(
        "--publish", action="store_true", help=f"also write {RECORD.name} and {PAGE.name} in docs/"
    )
    parser.add_argument("--page-of", type=Path, help="print the page of a results file and leave")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    options = _arguments(arguments)
    if options.page_of:
        sys.stdout.write(page(*read(options.page_of.read_text().splitlines())))
        return 0
    rows = chosen(PLANS[options.plan], options.systems, options.scenarios)
    todo = cases(rows, options.repetitions)
    minutes = estimate_s(rows, options.repetitions) / 60
    print(f"{len(todo)} trials, about {minutes:.0f} min on an idle machine", flush=True)
    if options.list:
        print("\n".join(_name(case) for case in todo))
        return 0
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        print(f"bench.recovery: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also tidies up
    try:
        _run(options, rows, todo)
    except KeyboardInterrupt:
        print(f"bench.recovery: interrupted; the results so far: {options.out}", file=sys.stderr)
        return 130
    text = options.out.read_text()
    finished = page(*read(text.splitlines()))
    print(finished)
    if options.publish:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(text)
        PAGE.write_text(finished)
    return 0


def _run(options: argparse.Namespace, rows: Sequence[Row], todo: Sequence[Case]) -> None:
    """Run the trials; each result is in the file as soon as it is known."""
    pythons, missing = conductor.prepare(sorted({row.system for row in rows}))
    for system, reason in missing.items():
        print(f"left out: {system}: {reason}", flush=True)
    runner = conductor.Conductor(options.out.with_suffix(".logs"), pythons, options.seed)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with options.out.open("w") as out:
        out.write(conductor.header(conductor.about(options.plan, missing)) + "\n")
        for number, case in enumerate(todo, 1):
            if case.system not in pythons:
                continue
            for result in runner.run(case):
                out.write(to_line(result) + "\n")
                out.flush()
                passed = time.monotonic() - begun
                print(f"{number}/{len(todo)} {passed:.0f} s  {_said(result)}", flush=True)


def _name(case: Case) -> str:
    who = f"{case.system} {case.variant} {case.restore}"
    return f"{case.scenario:13} {who:26} rank {case.target} #{case.repetition}"


def _said(result: Result) -> str:
    found = result.recovery
    if found is None:
        what = f"{result.outcome}: {result.reason}"
    else:
        what = f"{seconds(found.total_s)} s, pause {seconds(found.pause_s)} s"
    return f"{_name(result.case)}  {result.measured}: {what}"


if __name__ == "__main__":
    sys.exit(main())

"""``python -m bench.recovery``: run a plan, write its results, show or publish the page."""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence

from bench import machine, record
from bench.recovery import conductor, report, sandbox
from bench.recovery.plan import PLANS, Row, cases, chosen, estimate_s
from bench.recovery.results import Case, Result, read


def _page(lines: Iterable[str]) -> str:
    return report.page(*read(lines))


RECORD = record.Record("recovery", _page)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = RECORD.parser(__doc__)
    parser.add_argument("--plan", choices=sorted(PLANS), default="record")
    parser.add_argument("--systems", nargs="+", default=[], help="only these")
    parser.add_argument("--scenarios", nargs="+", default=[], help="only these")
    parser.add_argument("--repetitions", type=int, help="trials of each row, not the plan's")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the faults")
    parser.add_argument("--list", action="store_true", help="show the trials and start nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    options = _arguments(arguments)
    if options.page_of:
        return RECORD.show(options)
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
    return RECORD.make(options, lambda: _run(options, rows, todo))


def _run(options: argparse.Namespace, rows: Sequence[Row], todo: Sequence[Case]) -> None:
    """Run the trials; each result is in the file as soon as it is known."""
    pythons, missing = conductor.prepare(sorted({row.system for row in rows}))
    for system, reason in missing.items():
        print(f"left out: {system}: {reason}", flush=True)
    runner = conductor.Conductor(options.out.with_suffix(".logs"), pythons, options.seed)
    begun = time.monotonic()
    with record.written(options.out, machine.about(options.plan, missing)) as add:
        for number, case in enumerate(todo, 1):
            if case.system not in pythons:
                continue
            for result in runner.run(case):
                add(record.to_line(result))
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
        what = f"{report.seconds(found.total_s)} s, pause {report.seconds(found.pause_s)} s"
    return f"{_name(result.case)}  {result.measured}: {what}"


if __name__ == "__main__":
    sys.exit(main())

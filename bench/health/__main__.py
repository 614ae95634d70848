"""``python -m bench.health``: judge seeded and recorded traces by every rule (5 minutes of a core).

``--rule FILE`` runs a rule of your own on the same traces instead: the function ``accuse`` of FILE.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness import record
from bench.health.page import overview, page_of
from bench.health.rules import RULES
from bench.health.score import ALL, SWEEP, Accuse, real, rows, sweep

TRACES = 5_000
"""Seeds 0, 1, …; the policy was tuned on others, from 1,000,000 on."""
BENCH = record.Bench("health", page_of)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--traces", type=int, default=TRACES, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rule", type=Path, help="a file with your rule: accuse(trace, steps)")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.traces)
    if options.rule:
        rules = {options.rule.stem: _loaded(options.rule), "oracle": RULES["oracle"].accuse}
        print(overview([one for one in rows(rules, seeds) if one["kind"] == ALL]))
        return 0
    return BENCH.main(options, lambda _: _run(options, seeds))


def _run(options: argparse.Namespace, seeds: range) -> None:
    rules = {name: rule.accuse for name, rule in RULES.items()}
    context = multiprocessing.get_context("spawn")
    with (
        record.recording(options.out, {}, first=seeds.start) as note,
        context.Pool(options.workers) as pool,
    ):
        each = functools.partial(pool.imap, chunksize=5)
        for lines in (real(), sweep(seeds[::SWEEP], each), rows(rules, seeds, each)):
            for line in lines:
                note(line, "")


def _loaded(path: Path) -> Accuse:
    """Return the rule of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(
            f"--rule {path}: not a Python file; give one that has accuse(trace, steps)"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    accuse: Accuse = module.accuse
    return accuse


if __name__ == "__main__":
    sys.exit(main())

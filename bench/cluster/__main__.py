"""`python -m bench.cluster [--publish] [NAME …]`: measure the operator on a real control plane.

Each measurement has a cluster of its own, with nothing else in it. Prints and records a JSON line
for each; ends with 1 where a bar was not held.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable

from bench import ROOT
from bench.cluster import measure
from bench.cluster.measure import Figures
from bench.cluster.page import page, problems
from bench.cluster.stage import Stage, stage
from bench.harness import machine
from bench.harness.record import DOCS

PAGE = DOCS / "cluster.md"
NAMES = "begin, replacement, many, node, node-defaults, master-node, master, writes, kills"
RECORD = PAGE.with_suffix(".jsonl")


def main() -> int:
    """Measure what is named, or everything; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("names", nargs="*", help=NAMES)
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    seed = options.seed
    all_of_them: dict[str, Callable[[Stage], Figures]] = {
        "begin": measure.begin,
        "replacement": lambda one: measure.replacement(one, seed),
        "many": measure.many,
        "node": measure.lost_node,
        "node-defaults": lambda one: measure.lost_node(one, count=2),
        "master-node": measure.lost_master_node,
        "master": measure.lost_master,
        "writes": measure.writes,
        "kills": lambda one: measure.kills(one, seed, options.kills),
    }
    lines = []
    for name in options.names or all_of_them:
        load, began = os.getloadavg()[0], time.monotonic()
        with stage(own_times=name in {"node-defaults", "master-node"}) as ready:
            bed = time.monotonic() - began
            figures = all_of_them[name](ready)
        line = {"kind": name, "load_before": round(load, 1), "bed_s": round(bed, 1)}
        line |= figures
        print(json.dumps(line), flush=True)
        lines.append(line)
    if options.publish:
        _publish(lines)
    wrong = problems(lines)
    print("\n".join(wrong))
    return 1 if wrong else 0


def _publish(lines: list[Figures]) -> None:
    """Replace what was measured anew in the record, and write the page of the whole of it."""
    kept = {}
    if RECORD.exists():
        kept = {one["kind"]: one for one in map(json.loads, RECORD.read_text().splitlines())}
    about = machine.about("cluster", [])
    kept |= {line["kind"]: {**line, "about": about} for line in lines}
    RECORD.write_text("".join(json.dumps(one) + "\n" for one in kept.values()))
    PAGE.write_text(page(kept))


if __name__ == "__main__":
    sys.exit(main())

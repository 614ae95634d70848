"""``python -m bench.hang``: one hang under each system, all at once (31 minutes)."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.hang.trial import START_SECONDS, SYSTEMS, Hung
from bench.harness import machine, page, record, sandbox
from bench.harness.venvs import python_of

LIMIT_SECONDS = 2000.0
"""gloo's own time-out is 1,800 s."""
BAR = 30.0
"""Times sooner than the soonest peer."""
_OURS = "holdfast"


def page_of(about: Mapping[str, Any], results: Sequence[Hung]) -> str:
    """Return the page's text."""
    peers = [one for one in results if not one.system.startswith(_OURS)]
    soonest = min([one.seconds or one.limit for one in peers], default=0.0)
    head = ("system", "noticed after, s", "times sooner than the soonest peer", "by")
    rows = [_row(one, soonest) for one in results]
    found = page.table((*head, "names the rank"), rows)
    return page.fill("hang/page", run=machine.sentence(about), table=found)


def _row(one: Hung, soonest: float) -> list[str]:
    took, ratio = f"not within {one.limit:.0f}", ""
    if one.seconds is not None:
        took = f"{one.seconds:.1f}"
        if one.system.startswith(_OURS):
            times = soonest / (one.seconds or 1.0)
            ratio = f"{times:.0f} (bar {BAR:.0f}: {page.kept(times >= BAR)})"
    by = one.by.replace("|", "\\|") or "–"
    return [one.system, took, ratio, by, "yes" if one.named else "no"]


BENCH = record.Bench("hang", page_of, Hung)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds to wait")
    return BENCH.main(parser.parse_args(arguments), _run)


def _run(options: argparse.Namespace) -> None:
    sandbox.check()
    with (
        record.recording(options.out, {}) as note,
        tempfile.TemporaryDirectory(prefix="hang-") as folder,
        concurrent.futures.ThreadPoolExecutor(len(options.systems)) as pool,
    ):
        tasks = [
            pool.submit(_trial, system, Path(folder) / str(at), options.limit)
            for at, system in enumerate(options.systems)
        ]
        for task in concurrent.futures.as_completed(tasks):
            note(task.result())


def _trial(system: str, folder: Path, limit: float) -> Hung:
    folder.mkdir()
    name = system.partition(",")[0]
    request = {"system": system, "python": python_of(name), "folder": str(folder), "limit": limit}
    failure = sandbox.trial("bench.hang.trial", request, folder, limit + START_SECONDS + 60)
    said = (folder / "trial.log").read_text()
    if failure:
        raise RuntimeError(f"{system}: {failure}: {said[-2000:]}")
    return Hung(**json.loads(said.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())

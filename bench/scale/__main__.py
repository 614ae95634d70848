"""`python -m bench.scale [--publish]`: measure the operator with up to 30,000 pods."""

from __future__ import annotations

import argparse
import asyncio
import sys
import resource

from bench.harness import record
from bench.scale import measure
from bench.scale.page import page_of
from bench.scale.stage import System, stage

BENCH = record.Bench("scale", page_of)


async def _run(options: argparse.Namespace, note: record.Note) -> None:
    for plan in options.plan.split(","):
        jobs, workers = map(int, plan.split("x"))
        async with stage(System.HOLDFAST, jobs * (workers + 1)) as ready:
            base = {"system": "holdfast", "jobs": jobs, "workers": workers}

            def say(kind: str, figures: measure.Figures) -> None:
                note({"kind": kind, **base, **figures, "load": measure.load()})

            say("idle", await measure.steady(ready, 5))
            first = measure.taken_over if options.stored else measure.created
            say(first.__name__, await first(ready, jobs, workers, options.limit))
            calm = await measure.steady(ready, options.seconds)
            say("steady", calm)
            say("events", await measure.events(ready, options.events, calm["cores"]))
            say("torn", await measure.torn(ready, calm["cores"]))
            if options.hold:
                print(ready.operator.pid, ready.plane.folder, flush=True)
                await asyncio.sleep(options.hold)


def _measure(options: argparse.Namespace) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with record.recording(options.out, [], plan="scale") as note:
        asyncio.run(_run(options, note))


def main() -> int:
    """Measure, and show the page; return the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--plan", default="500x20,2000x15", help="JOBSxWORKERS,…")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--limit", type=float, default=2400)
    parser.add_argument("--stored", action="store_true", help="stored in etcd, and taken over")
    parser.add_argument("--hold", type=float, default=0)
    return BENCH.main(parser.parse_args(), _measure)


if __name__ == "__main__":
    sys.exit(main())

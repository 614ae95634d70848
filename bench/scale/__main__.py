"""`python -m bench.scale [--publish]`: measure the operator with up to 30,000 pods.

Ends with 1 where a bar was not held.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.harness import record
from bench.scale import channels, creation, measure
from bench.scale.page import page_of, problems
from bench.scale.process import quiet
from bench.scale.stage import OperatorKind, stage

BENCH: Final = record.Bench("scale", page_of)
_IDLE_SECONDS: Final = 10.0


async def _whole(
    options: argparse.Namespace, note: record.Note, system: OperatorKind, plan: str, how: str
) -> None:
    """Measure one size: how the jobs come, then the cluster with them."""
    jobs, workers = map(int, plan.split("x"))
    async with stage(system, jobs * (workers + 1)) as ready:
        about = {"system": system.value, "jobs": jobs, "workers": workers, "how": how}

        async def say(kind: str, measured: Awaitable[measure.Figures]) -> measure.Figures:
            figures = await measured
            note({"kind": kind, **about, **figures, "load": measure.load()})
            return figures

        await say("idle", measure.steady(ready, _IDLE_SECONDS))
        begin: Callable[..., Any] = measure.taken_over if how == "stored" else measure.created
        await say(begin.__name__, begin(ready, jobs, workers, options.limit))
        calm = await say("steady", measure.steady(ready, options.seconds))
        if system is OperatorKind.HOLDFAST:
            await say("training", measure.training(ready, options.seconds))
            await quiet(ready.operator, calm["cores"] + 0.1, 300.0)
        await say("events", measure.events(ready, options.events, calm["cores"]))
        await say("same events", measure.same_events(ready, options.events, calm["cores"]))
        await say("torn", measure.torn(ready, calm["cores"]))


async def _creation(options: argparse.Namespace, note: record.Note) -> None:
    async with stage(OperatorKind.HOLDFAST, options.large) as ready:
        for number in range(options.rounds):
            figures = await creation.compared(ready, options.large, number)
            note({"kind": "creation", **figures, "load": measure.load()})


async def _all(options: argparse.Namespace, note: record.Note) -> None:
    for figures in await channels.costs(options.channels) if options.channels else ():
        note({"kind": "channel", **figures, "load": measure.load()})
    if options.rounds:
        await _creation(options, note)
    for name, how, system in (
        ("created", "made", OperatorKind.HOLDFAST),
        ("stored", "stored", OperatorKind.HOLDFAST),
        ("plain", "made", OperatorKind.PLAIN),
    ):
        for plan in filter(None, getattr(options, name).split(",")):
            await _whole(options, note, system, plan, how)


def _measure(options: argparse.Namespace) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with record.recording(options.out, [], plan="scale") as note:
        asyncio.run(_all(options, note))


def main() -> int:
    """Measure, and show the page; return the exit code."""
    parser = BENCH.parser(__doc__)
    sizes = "JOBSxWORKERS,…; empty: none"
    parser.add_argument("--created", default="500x20,2000x15", help=f"{sizes}; by the operator")
    parser.add_argument("--stored", default="2000x15", help=f"{sizes}; stored, then taken over")
    parser.add_argument("--plain", default="100x20", help=f"{sizes}; by plain kopf")
    parser.add_argument("--rounds", type=int, default=3, help="of the creation of one large job")
    parser.add_argument("--large", type=int, default=500, help="pods of that job")
    parser.add_argument("--channels", type=int, default=300, help="to masters, measured apart")
    parser.add_argument("--seconds", type=float, default=60, help="of the steady state")
    parser.add_argument("--events", type=int, default=2000, help="pods whose status changes")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one step at most")
    options = parser.parse_args()
    code = BENCH.main(options, _measure)
    if code or options.page_of:
        return code
    wrong = problems(BENCH.read(options.out.read_text().splitlines())[1])
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

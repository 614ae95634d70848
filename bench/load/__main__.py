"""``python -m bench.load``: load the masters, write the results, show or publish the page."""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc

from bench.harness import record, venvs
from bench.load import peer, scenarios, strain
from bench.load.herd import Herd, LoadError, Setup
from bench.load.master import JOB, LoadedMaster
from bench.load.page import page_of
from bench.load.peer import PeerPlan
from bench.load.results import OURS, LoadResult
from bench.load.scenarios import Plan

FILES_BESIDE = 200
"""Open files of a master for everything but agents."""
WATCHED = 1_000
_SLOW_AMONG = 100
_RATES = {100: 200.0, 1_000: 1_000.0}
"""Messages per second that Holdfast's agents send at these sizes: the peer gets as many."""

Part = Callable[[Path], Iterator[LoadResult]]
"""Measures in a directory of its own."""


BENCH = record.Bench("load", page_of, LoadResult)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--agents", default="100,1000,3000,10000", help="sizes")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each steady state")
    parser.add_argument("--no-peer", action="store_true", help="leave DLRover out")
    return BENCH.main(parser.parse_args(arguments), _run)


def fitting(sizes: Sequence[int], files: int) -> tuple[list[int], list[str]]:
    """Return the sizes, each cut to what so many open files allow, and a note for each cut."""
    most = files - FILES_BESIDE
    kept, said = [], []
    for size in sizes:
        if size > most:
            said.append(
                f"{size:,} agents need {size + FILES_BESIDE:,} open files, the hard limit is "
                f"{files:,}: {most:,} instead (raise it with ulimit -Hn)"
            )
        kept.append(min(size, most))
    return sorted(set(kept)), said


def _run(options: argparse.Namespace) -> None:
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    sizes, left_out = fitting([int(size) for size in options.agents.split(",")], files)
    python = None if options.no_peer else venvs.dlrover(left_out)
    begun = time.monotonic()
    facts = {"grpc": metadata.version("grpcio"), "open_files": files}
    with record.recording(options.out, left_out, plan="load", **facts) as note:
        for name, part in _parts(sizes, options.seconds, python):
            for result in _tried(name, part):
                said = f"{time.monotonic() - begun:.0f} s  {record.to_line(result)}"
                note(result, said)


def _parts(sizes: Sequence[int], seconds: float, python: str | None) -> Iterator[tuple[str, Part]]:
    """Yield the measurements in order; the peer comes behind the same size, as the pace drifts."""
    for size in sizes:
        for plan in _plans(size, seconds):
            yield f"{plan.agents} agents {plan.variant}", _bound(_course, plan)
        if python is not None and size in _RATES:
            theirs = PeerPlan(clients=size, rate=_RATES[size], seconds=seconds / 2)
            yield f"DLRover, {size} clients", _bound(peer.run, python, theirs)
    yield "slow readers", _bound(strain.slow_readers, _SLOW_AMONG)


def _plans(size: int, seconds: float) -> list[Plan]:
    watchers = WATCHED if size == WATCHED else 0
    plans = [Plan(agents=size, steady_s=seconds, watchers=watchers)]
    if size == 1_000:
        plans.append(Plan(agents=size, steady_s=seconds, ranks=8, failures=0, herd=False))
    if size == 3_000:
        plans.append(Plan(agents=size, steady_s=seconds, interval_s=5.0, failures=0, herd=False))
    return plans


def _course(plan: Plan, directory: Path) -> Iterator[LoadResult]:
    """Load one master with one size, all scenarios in their order; yield what it showed."""
    master = LoadedMaster(directory, plan.agents, plan.core())
    master.start()
    setup = Setup(master.target, JOB, master.key.hex(), plan.ranks)
    try:
        with Herd(setup, plan.agents, directory / "generators.log") as herd:
            yield scenarios.world(plan, master, herd)
            yield scenarios.steady(plan, master, herd)
            if plan.failures:
                yield scenarios.failures(plan, master, herd)
            if plan.watchers:
                yield strain.watched(plan, master, herd, plan.watchers)
            if plan.herd:
                yield scenarios.thunder(plan, master, herd)
    finally:
        master.kill()


def _bound(run: Callable[..., Iterator[LoadResult]], *given: Any) -> Part:
    return lambda directory: run(*given, directory)


def _tried(name: str, part: Callable[[Path], Iterator[LoadResult]]) -> Iterator[LoadResult]:
    """Run one part in a directory of its own; a part that fails yields a result that says so."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-load-"))
    try:
        yield from part(directory)
    except (LoadError, OSError, grpc.RpcError) as error:
        print(f"{name}: {error}; its files are in {directory}", file=sys.stderr, flush=True)
        yield LoadResult(system=OURS, scenario="failed", clients=0, variant=name, limits=str(error))
    else:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())

"""All scenarios of one size against one master, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.load import scenarios, strain
from bench.load.herd import Herd, Setup
from bench.load.master import JOB, LoadedMaster
from bench.load.results import Result
from bench.load.scenarios import Plan


def run(plan: Plan, directory: Path) -> Iterator[Result]:
    """Load one master with one size and yield what it showed."""
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

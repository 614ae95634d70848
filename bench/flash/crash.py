"""A rank is killed, and all go on from what the agents have in memory: `bench.recovery`'s crash.

What a fresh process takes for itself is known of each crash by its stages, and what a cold copy of
as many bytes takes the ranks measure before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.flash.results import CRASH, FLASH_1, Result
from bench.recovery.conductor import Conductor
from bench.recovery.measure import Recovery
from bench.recovery.results import Case
from bench.recovery.results import Result as Found

MIB: Final = 256
"""Of the state on each rank; as `crash_script` has it."""
_FRESH: Final = ("imported", "joined", "built", "first step")


def run(runs: int, logs: Path) -> Iterator[Result]:
    """Crash so many jobs, each twice."""
    conductor = Conductor(logs, {"holdfast": sys.executable}, seed=1)
    for number in range(runs):
        case = Case(
            scenario="crash",
            system="holdfast",
            variant="default",
            restore="flash",
            target=number % 2,
            repetition=number,
        )
        for found in conductor.run(case):
            yield _result(found)


def _result(found: Found) -> Result:
    recovery, copied = found.recovery, found.notes.get("compared")
    if recovery is None or copied is None:
        why = found.reason or "no copy was compared with"
        return Result(case=CRASH, system=FLASH_1, load=found.load, failed=f"{found.outcome}: {why}")
    return Result(
        case=CRASH,
        system=FLASH_1,
        ranks=recovery.world,
        bytes=MIB * 2**20,
        seconds=[recovery.total_s],
        copies=[copied],
        figures=_stages(recovery) | {"cold_copy_s": copied},
        load=found.load,
    )


def _stages(recovery: Recovery) -> dict[str, float]:
    stages = recovery.stages
    return {
        "started_s": stages["started"],
        "restored_s": stages["restored"],
        "fresh_s": sum(stages[name] for name in _FRESH),
    }

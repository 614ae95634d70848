"""``python -m bench.replicas``: run the rows, write the results, show the page.

The ways of a row take turns in one run, in an order drawn by a seed. A way that cannot be set up or
does not train is left out, by name, with the reason. `--quick` has each row once, with the shortest
lengths: for a look at whether all of it runs, not for figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bench.harness import record, sandbox, venvs
from bench.harness.record import Note
from bench.replicas import effective, kills, steps
from bench.replicas import results as r
from bench.replicas.page import costs_of, page_of
from bench.replicas.results import ReplicaRun
from bench.replicas.systems import WAYS

BENCH = record.Bench("replicas", page_of, ReplicaRun)
_LARGE_MB: Final = 100.0
_LARGE_PACE_MS: Final = 100.0
"""Slept in each micro-batch of the large model: an accelerator leaves its host as idle. Without it
four ranks' optimizers take both cores, and a transfer has none that it could use beside them."""
_OF_TWO: Final = tuple(way for way in r.WAYS if way not in (r.TORCHFT, r.NIGHTLY))
"""Ways that have replicas of several ranks here: torchft's script has replica groups of one."""
_GOODPUT: Final = (r.REPLICAS, r.RESTART, r.NIGHTLY)
_FROZEN: Final = (r.REPLICAS, r.NIGHTLY)
_JOINS: Final = (r.REPLICAS, r.NIGHTLY)
_QUICK: Final = (r.REPLICAS, r.RESTART, r.NIGHTLY)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCH.parser(__doc__)
    parser.add_argument("--rows", nargs="*", choices=r.ROWS, default=list(r.ROWS))
    parser.add_argument("--ways", nargs="*", choices=r.WAYS, default=list(r.WAYS))
    parser.add_argument("--turns", type=int, default=5, help="of each comparison")
    parser.add_argument("--kills", type=int, default=6, help="of a way in a turn of losses")
    parser.add_argument("--seed", type=int, default=1, help="of the order in a turn, and of kills")
    parser.add_argument("--kill-seconds", type=float, default=600.0, help="of the row of goodput")
    parser.add_argument("--quick", action="store_true", help="each row once, as short as can be")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.kills, options.kill_seconds = 1, 1, 20.0
        options.ways = [way for way in options.ways if way in _QUICK]
    return BENCH.main(options, _run)


def _run(options: argparse.Namespace) -> None:
    sandbox.check()
    pythons, left_out = _pythons(options.ways)
    with record.recording(options.out, left_out, seed=options.seed) as note:
        found: list[ReplicaRun] = []
        runs = _Runs(options, pythons)
        for one in runs.all():
            found.append(one)
            note(one)
        if r.SIMULATED in options.rows:
            _note_all(note, simulated(found))


def _note_all(note: Note, results: Iterable[ReplicaRun]) -> None:
    for one in results:
        note(one)


def _pythons(ways: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the interpreters of ways, and which cannot be set up here, with the reason."""
    pythons, left_out = {}, []
    for way in ways:
        try:
            pythons[way] = venvs.python_of(WAYS[way].environment)
        except venvs.SetupError as error:
            left_out.append(f"{way}: {error}")
    return pythons, left_out


@dataclasses.dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of all rows but the last, which needs no process."""

    options: argparse.Namespace
    pythons: dict[str, str]

    def all(self) -> Iterator[ReplicaRun]:
        """Run them."""
        for turn in range(self.options.turns):
            yield from self._steps(turn)
            for row, shape, ways, size in self._plan():
                yield from self._killed(row, shape, ways, turn, size)
        if r.GOODPUT in self.options.rows:
            yield from self._killed(r.GOODPUT, r.FOUR, _GOODPUT, 0, 0.0)

    def _plan(self) -> Iterator[tuple[str, str, Sequence[str], float]]:
        if r.LOSSES in self.options.rows:
            yield r.LOSSES, r.FOUR, r.WAYS, 0.0
            yield r.LOSSES, r.TWO, (r.REPLICAS,) if self.options.quick else _OF_TWO, 0.0
        if r.FROZEN in self.options.rows:
            yield r.FROZEN, r.FOUR, _FROZEN, 0.0
        if r.JOINS in self.options.rows and not self.options.quick:
            yield r.JOINS, r.FOUR, _JOINS, _LARGE_MB

    def _steps(self, turn: int) -> Iterator[ReplicaRun]:
        quick, ways = self.options.quick, [r.PLAIN, r.REPLICAS]
        seed = self.options.seed + turn
        for shape, (_, shards) in r.SHAPES.items():
            plan = steps.StepPlan(
                ways=ways, shards=shards, turns=1 if quick else 4, steps=3 if quick else 25,
                seed=seed,
            )  # fmt: skip
            if r.STEPS in self.options.rows:
                for one in steps.step_times(shape, plan):
                    yield dataclasses.replace(one, turn=one.turn + turn * plan.turns)
            if r.MEMORY in self.options.rows and not (quick and shards > 1):
                large = dataclasses.replace(plan, model_mb=25.0 if quick else _LARGE_MB, steps=3)
                yield from steps.memory(shape, large, turn)

    def _killed(
        self, row: str, shape: str, ways: Sequence[str], turn: int, size: float
    ) -> Iterator[ReplicaRun]:
        """Run a trial of each way."""
        options = self.options
        draw = random.Random(f"{options.seed} {row} {shape} {turn}")
        for way in draw.sample(list(ways), len(ways)):
            if way not in self.pythons:
                continue
            request = kills.Request(
                way=way, shape=shape, python=self.pythons[way],
                seed=options.seed * 1000 + turn, kills=1 if row == r.JOINS else options.kills,
                freezes=row == r.FROZEN,
                seconds=options.kill_seconds if row == r.GOODPUT else 0.0, model_mb=size,
                **({"pace_ms": _LARGE_PACE_MS} if row == r.JOINS else {}),
            )  # fmt: skip
            group = f"{shape}, {1.1 + size:.0f} MB"
            load, found, reason = os.getloadavg()[0], [], ""
            try:
                found = kills.measure(request)
            except RuntimeError as error:
                reason = str(error)[:300]
            for values in found or [{}]:
                yield ReplicaRun(
                    row=row, group=group, way=way, turn=turn, values=values, load=load,
                    reason=reason,
                )  # fmt: skip


def simulated(found: Sequence[ReplicaRun]) -> Iterator[ReplicaRun]:
    """Give simulated worlds, with the costs that this run has measured."""
    worlds = {
        f"{replicas:,} replicas, {name} at 1,024 GPUs": (
            replicas, effective.mean_seconds(replicas, hours),
        )
        for hours, name in ((effective.META_HOURS, "7.9 h"), (effective.META_HOURS / 10, "0.79 h"))
        for replicas in (1_000, 10_000)
    }  # fmt: skip
    worlds["12,500 replicas, as FT-HSDP's 44 %"] = 12_500, effective.published_mean_seconds()
    for group, (replicas, mean_s) in worlds.items():
        for way, costs in costs_of(found).items():
            spent = dataclasses.asdict(effective.world(replicas, mean_s, costs))
            values = {"minutes between failures": mean_s / 60, **spent}
            yield ReplicaRun(row=r.SIMULATED, group=group, way=way, turn=0, values=values)


if __name__ == "__main__":
    sys.exit(main())

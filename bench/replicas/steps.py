"""Starts the ranks of a world whose ways take turns while nothing happens, and gathers the lines.

Belongs here: processes and their memory. Does not belong here: what a rank does (`step_rank`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench import ROOT
from bench.harness import launch
from bench.harness.launch import WorldError
from bench.replicas import results as r
from bench.replicas.results import ReplicaRun

LIMIT_SECONDS: Final = 1800.0
"""For one world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the ranks of a world do."""

    ways: Sequence[str]
    """`results.PLAIN` and `results.REPLICAS`, or one of them."""
    shards: int
    """Ranks of a replica."""
    turns: int
    """In each of them every way makes its steps, in a drawn order."""
    steps: int
    """Of a way in a turn."""
    seed: int
    """Of the order."""
    model_mb: float = 0.0
    """Of weights beyond the model's own 1.1 MB."""
    pace_ms: float = 0.0
    """Slept in each micro-batch; 0: all that is measured is work."""


_AT_ONCE: Final = {"MALLOC_MMAP_THRESHOLD_": str(256 << 10)}
"""Has glibc return each tensor's memory when it is freed. By default it keeps up to 0.9 GB here of
either way, more or less from run to run."""


def step_times(shape: str, plan: StepPlan) -> Iterator[ReplicaRun]:
    """Measure the ways in turns in one world."""
    for way, turn, values, load in _run(shape, plan):
        kept = {name: values[name] for name in (r.WALL, r.CPU)}
        group = f"{shape}, {1.1 + plan.model_mb:.0f} MB"
        yield ReplicaRun(row=r.STEPS, group=group, way=way, turn=turn, values=kept, load=load)


def memory(shape: str, plan: StepPlan, turn: int) -> Iterator[ReplicaRun]:
    """Measure the most memory of a rank in its steps, each way in a world of its own."""
    shards = r.SHAPES[shape][1]
    for way in plan.ways:
        alone = StepPlan(**{**asdict(plan), "ways": [way], "turns": 1})
        [(_, _, values, load)] = _run(shape, alone, _AT_ONCE)
        kept = {r.PEAK: values[r.PEAK], r.GRADIENT: (1.1 + plan.model_mb) / shards}
        group = f"{shape}, {1.1 + plan.model_mb:.0f} MB"
        yield ReplicaRun(row=r.MEMORY, group=group, way=way, turn=turn, values=kept, load=load)


def _run(
    shape: str, plan: StepPlan, more: Mapping[str, str] | None = None
) -> list[tuple[str, int, dict[str, float], float]]:
    """Run a world to its end; return way, turn, values and load of each of its lines.

    Args:
        shape: Of the world.
        plan: Of its ranks.
        more: Variables of their environment.

    Raises:
        WorldError: a rank failed, or the world took longer than `LIMIT_SECONDS`.
    """
    replicas, shards = r.SHAPES[shape]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=launch.in_memory())))
        (folder / "plan.json").write_text(json.dumps(asdict(plan)))
        port, ranks = launch.free_port(), []
        for rank in range(replicas * shards):
            errors = stack.enter_context((folder / f"errors_{rank}").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.replicas.step_rank", str(folder / "plan.json")],
                env=launch.variables(
                    RANK=str(rank), WORLD_SIZE=str(replicas * shards), MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", PYTHONWARNINGS="ignore",
                    **(more or {}),
                ),
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(process)
        for rank, process in enumerate(ranks):
            _wait(process, folder / f"errors_{rank}", f"{shape}, {list(plan.ways)}, rank {rank}")
        return [tuple(json.loads(line)) for line in (folder / "lines").read_text().splitlines()]


def _wait(process: subprocess.Popen[bytes], errors: Path, what: str) -> None:
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise WorldError(f"{what}: not over in {LIMIT_SECONDS:g} s") from error
    if code:
        raise WorldError(f"{what}: exit code {code}: {errors.read_text()[-3000:]}")

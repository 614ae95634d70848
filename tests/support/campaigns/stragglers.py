"""Makes one rank of real jobs slow, and compares the verdict with what was planted.

Run as a script: `stragglers.py --runs 50 --seed 7` starts that many jobs of four ranks on two
nodes, DDP and FSDP2 in turn, makes one rank 20 % slower, and prints how many steps later the event
named it. `--quiet-minutes 30` runs jobs without a slow rank instead: each verdict is a false one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from campaigns import slow_script
from holdfast_wire.reasons import EventReason
from jobs.local_job import RunningJob, elastic_job

SCRIPT = Path(slow_script.__file__)
THRESHOLDS = {"slowdownPercent": 10, "windowSteps": 5, "votes": 2, "votesOutOf": 3}
"""10 %: half of what is planted. Of 20 steps a verdict needs two whole windows of 5."""
WARM_STEPS = 42
"""Without a slow rank: the first window is not judged, and a level needs more of them."""
MOST_STEPS = 20
"""From the first slow step to the event."""
GIVE_UP_STEPS = 60
RANKS = 4
_POLL_SECONDS = 0.1
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Plant:
    """One job and its slow rank."""

    kind: str
    """ddp or fsdp."""
    rank: int
    seconds: float
    """Of a step."""
    factor: float


@dataclass(frozen=True)
class Outcome:
    """The verdicts of one job."""

    plant: Plant
    steps: int
    delay: int | None
    """Steps from the first slow one to the first verdict on a rank; None: there was none."""
    texts: tuple[str, ...]
    """Of the events StragglerFound."""
    false: int
    """Verdicts before the rank was slow."""

    @property
    def right(self) -> bool:
        """Whether the first verdict after the onset names the rank, in time."""
        named = self.texts[self.false :]
        rank, node = self.plant.rank, self.plant.rank // 2
        expected = f"rank {rank} on node {node} "
        return bool(
            not self.false
            and named
            and named[0].startswith(expected)
            and self.delay is not None
            and self.delay <= MOST_STEPS
        )


class Run:
    """One job in a folder of its own."""

    def __init__(self, plant: Plant, number: int, folder: Path) -> None:
        """Start it."""
        self.plant, self.folder = plant, folder
        job = elastic_job(
            f"slow-{number}",
            [str(SCRIPT), plant.kind, str(folder), str(plant.seconds)],
            flags=("--nproc-per-node=2",),
            health={"straggler": THRESHOLDS},
        )
        self.job = RunningJob(job, folder)

    def steps(self) -> int:
        """Return the steps of rank 0."""
        try:
            return int((self.folder / "steps").read_text())
        except FileNotFoundError:
            return 0

    def found(self) -> list[str]:
        """Return the texts of the verdicts so far, without those on the job: they name no node."""
        return [
            event.text
            for event in self.job.events()
            if event.reason == EventReason.STRAGGLER_FOUND and event.node
        ]

    def wait(self, steps: int) -> None:
        """Wait until so many steps are done."""
        until = time.monotonic() + _START_SECONDS + 10 * steps * self.plant.seconds
        while self.steps() < steps:
            if time.monotonic() > until or self.job.process.poll() is not None:
                raise RuntimeError(f"{self.plant}: no step {steps}\n{self.job.output}")
            time.sleep(_POLL_SECONDS)

    def outcome(self) -> Outcome:
        """Make the rank slow, wait for a verdict, end the job."""
        self.wait(WARM_STEPS)
        false = len(self.found())
        (self.folder / "slow.new").write_text(f"{self.plant.rank} {self.plant.factor}")
        (self.folder / "slow.new").rename(self.folder / "slow")
        onset = self.steps() + 1  # the rank is asleep in this step, and slow from the next one on
        while len(self.found()) == false and self.steps() < onset + GIVE_UP_STEPS:
            time.sleep(_POLL_SECONDS)
        texts, steps = tuple(self.found()), self.steps()
        delay = steps - onset if len(texts) > false else None
        return Outcome(self.plant, steps, delay, texts, false)

    def quiet(self, seconds: float) -> Outcome:
        """Train for so long without a slow rank."""
        self.wait(1)
        time.sleep(seconds)
        texts = tuple(self.found())
        return Outcome(self.plant, self.steps(), None, texts, len(texts))

    def end(self) -> None:
        """End the job, for certain."""
        (self.folder / "end").touch()
        try:
            self.job.finish(60.0)
        finally:
            self.job.__exit__()


def run(plant: Plant, number: int, quiet_seconds: float) -> Outcome:
    """Return the outcome of one job."""
    with tempfile.TemporaryDirectory(prefix="slow-") as folder:
        one = Run(plant, number, Path(folder))
        try:
            return one.quiet(quiet_seconds) if quiet_seconds else one.outcome()
        finally:
            one.end()


def plants(luck: random.Random, runs: int, seconds: float, factor: float) -> list[Plant]:
    """Return the jobs, DDP and FSDP2 in turn."""
    kinds = ("ddp", "fsdp")
    return [Plant(kinds[at % 2], luck.randrange(RANKS), seconds, factor) for at in range(runs)]


def _report(outcomes: list[Outcome], *, quiet: bool) -> int:
    steps = sum(one.steps for one in outcomes)
    if quiet:
        false = sum(one.false for one in outcomes)
        print(f"{false} verdicts in {steps} steps of {len(outcomes)} jobs without a slow rank")
        return 1 if false else 0
    right = [one for one in outcomes if one.right]
    delays = [one.delay for one in outcomes if one.delay is not None]
    print(f"{len(right)} of {len(outcomes)} right within {MOST_STEPS} steps, in {steps} steps")
    if delays:
        print(f"steps to the verdict: median {statistics.median(delays)}, at most {max(delays)}")
    return 1 if 50 * len(right) < 49 * len(outcomes) else 0


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--parallel", type=int, default=3)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--factor", type=float, default=1.2)
    parser.add_argument("--quiet-minutes", type=float, default=0.0)
    options = parser.parse_args()
    print(f"seed {options.seed}, load {os.getloadavg()[0]:.1f}", flush=True)
    luck = random.Random(options.seed)
    drawn = plants(luck, options.runs, options.step_seconds, options.factor)
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        tasks = [
            pool.submit(run, plant, number, 60 * options.quiet_minutes)
            for number, plant in enumerate(drawn)
        ]
        for task in concurrent.futures.as_completed(tasks):
            outcomes.append(one := task.result())
            mark = "right" if one.right else "quiet" if options.quiet_minutes else "WRONG"
            print(f"{mark}  {one.plant}  after {one.delay} steps  {one.texts[:3]}", flush=True)
    return _report(outcomes, quiet=options.quiet_minutes > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Plants hangs in worlds of real ranks, and compares the verdicts with what was planted.

Run as a script: `hangs.py --number 200 --seed 7` draws that many hangs over all kinds and prints a
table of right and wrong verdicts; it fails where one is wrong. The evidence is the agent's own
(`health/evidence`), the verdict the master's (`policies/hang`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from campaigns import hang_ranks
from campaigns.hang_ranks import HANGS, Plant
from holdfast_agent.health.evidence import LocalRank, collect
from holdfast_agent.health.stacks import StackQuestions
from holdfast_agent.health.worker_server import (
    WorkerServer,
    WorkerServerError,
    parse_flight_record,
)
from holdfast_master.policies.hang import classify
from holdfast_master.policies.hang_response import HangKind, HangVerdict
from holdfast_wire.messages import RankEvidence
from house.patience import patience

WAIT_SECONDS = 60.0 * patience()
"""For a world until it hangs."""
START_SECONDS = 300.0
"""For a world to be forked: the first one waits for an import of torch, on a busy machine too."""
_STILL_SECONDS = 0.3
"""A world whose newest collectives do not change for this long hangs: a step takes 0.02 s."""
_POLL_SECONDS = 0.05
_ASK_SECONDS = 0.2
EXPECTED: Mapping[str, HangKind] = {
    "sleep": HangKind.ABSENT,
    "other-operation": HangKind.MISMATCHED_COLLECTIVE,
    "other-order": HangKind.MISMATCHED_COLLECTIVE,
    "data-parallel": HangKind.ABSENT,
    "loop": HangKind.PYTHON_LOOP,
    "lock": HangKind.LOCK,
    "event": HangKind.LOCK,
    "gil": HangKind.NATIVE_GIL,
    "stop": HangKind.STOPPED,
    "exit": HangKind.PROCESS_GONE,
    "fifo": HangKind.PIPE,
    "load": HangKind.PIPE,
    "vfork": HangKind.UNINTERRUPTIBLE,
    "worker": HangKind.DATA_LOADER,
    "data-set": HangKind.DATA_LOADER,
    "compile": HangKind.COMPILATION,
    "no-send": HangKind.ABSENT,
    "lost-packets": HangKind.NETWORK,
    "new-group": HangKind.MISMATCHED_COLLECTIVE,
    "mesh": HangKind.MISMATCHED_COLLECTIVE,
    "store": HangKind.ABSENT,
    "read-pipe": HangKind.PIPE,
    "write-pipe": HangKind.PIPE,
    "helper": HangKind.PIPE,
    "thread": HangKind.OVER,
    "c-sleep": HangKind.ABSENT,
    "c-poll": HangKind.NATIVE_GIL,
    "c-semaphore": HangKind.LOCK,
    "start-up": HangKind.ABSENT,
}
"""The right verdict on each of `hang_ranks.HANGS`."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one planted hang."""

    plant: Plant
    verdict: HangVerdict
    evidence: tuple[RankEvidence, ...]
    collected_seconds: float

    @property
    def wrong(self) -> str:
        """What is wrong with the verdict; empty: nothing."""
        kind, named = self.verdict.kind, [one.rank for one in self.verdict.ranks]
        expected = EXPECTED[self.plant.name]
        right = [] if expected is HangKind.NETWORK else [self.plant.odd]
        if self.plant.ranks == 2 and expected is HangKind.MISMATCHED_COLLECTIVE:
            right = [0, 1]  # nobody knows which of two is right
        if (Path(self.plant.folder) / "woken").exists():
            return f"{self.plant}: the look woke what the rank slept in"
        if kind is expected and named == right:
            return ""
        return (
            f"{self.plant}: expected {expected.value} of {right}, got {kind.value} of {named}: "
            f"{self.verdict.reason}"
        )


class Worlds:
    """A process that forks worlds of ranks, one at a time."""

    def __init__(self, folder: Path) -> None:
        """Start it; `folder` takes the sockets, so its path must be short."""
        self._folder, self._number = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, hang_ranks.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate("{}\n", timeout=WAIT_SECONDS)

    async def hang(self, name: str, *, ranks: int, odd: int, step: int) -> Outcome:
        """Start a world, wait until it hangs, and judge it."""
        self._number += 1
        folder = self._folder / str(self._number)
        plant = Plant(name, ranks, odd, step, str(folder))
        pids = self._start(plant)
        local = [
            LocalRank(local_rank=at, rank=at, pid=pid, socket_path=folder / f"{at}.sock")
            for at, pid in enumerate(pids)
        ]
        await asyncio.to_thread(_wait, plant)

        started = time.monotonic()
        questions = StackQuestions()
        evidence = await collect(local, world_size=ranks, questions=questions)
        seconds = time.monotonic() - started
        questions.keep([])
        ended = [at for at in range(ranks) if name == "thread" and at != odd]
        verdict = classify(evidence, world_size=ranks, ended=ended)
        return Outcome(plant, verdict, evidence, seconds)

    def _start(self, plant: Plant) -> list[int]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asdict(plant)) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], START_SECONDS)[0]:
            raise TimeoutError(f"no world came for {plant}")
        pids: list[int] = json.loads(self._process.stdout.readline())
        return pids


def _wait(plant: Plant) -> None:
    """Return when the odd rank hangs and the newest collectives of the others do not change."""
    deadline = time.monotonic() + WAIT_SECONDS
    seen, since = _newest(plant), time.monotonic()
    while not (Path(plant.folder) / "hung").exists() or time.monotonic() - since < _STILL_SECONDS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{plant} does not hang; newest collectives: {seen}")
        time.sleep(_POLL_SECONDS)
        now = _newest(plant)
        if now != seen:
            seen, since = now, time.monotonic()


def _newest(plant: Plant) -> list[int]:
    numbers = []
    for at in range(plant.ranks):
        if at != plant.odd:
            server = WorkerServer(Path(plant.folder) / f"{at}.sock")
            try:
                entries = parse_flight_record(server.flight_trace(_ASK_SECONDS)).entries
            except WorkerServerError:
                entries = ()
            numbers.append(entries[-1].sequence if entries else 0)
    return numbers


async def campaign(number: int, seed: int) -> list[Outcome]:
    """Plant `number` hangs, each kind as often as any other, in random worlds."""
    source = random.Random(seed)
    names = [name for _ in range(-(-number // len(HANGS))) for name in sorted(HANGS)][:number]
    source.shuffle(names)
    folder = Path(tempfile.mkdtemp(prefix="hang"))
    outcomes = []
    try:
        with Worlds(folder) as worlds:
            for name in names:
                ranks = source.randint(2, 4)
                odd, step = source.randrange(ranks), source.randint(0, 20)
                outcomes.append(await worlds.hang(name, ranks=ranks, odd=odd, step=step))
    finally:
        shutil.rmtree(folder)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the right and wrong verdicts by kind of hang."""
    all_of = Counter(one.plant.name for one in outcomes)
    wrong = Counter(one.plant.name for one in outcomes if one.wrong)
    slowest = max(one.collected_seconds for one in outcomes)
    rows = [
        f"| {name} | {EXPECTED[name].value} | {all_of[name] - wrong[name]} | {wrong[name]} |"
        for name in sorted(all_of)
    ]
    return "\n".join(
        [
            "| planted | expected | right | wrong |",
            "|---|---|---|---|",
            *rows,
            f"| all | | {len(outcomes) - wrong.total()} | {wrong.total()} |",
            "",
            f"Longest collection: {slowest:.2f} s.",
            *(one.wrong for one in outcomes if one.wrong),
        ]
    )


def main() -> int:
    """Run a campaign, print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="hangs to plant")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    outcomes = asyncio.run(campaign(asked.number, asked.seed))
    print(table(outcomes))
    return any(one.wrong for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())

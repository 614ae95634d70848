"""Traces of real runs, as `recorder` wrote them: read, aligned, judged.

Belongs here: the way from a file to windows. Does not belong here: the alignment and the verdict,
which are the master's own.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.health.generator import Trace
from holdfast_master.policies.straggler.collectives import Issued, Step, align

FOLDER = Path(__file__).with_name("traces")
WINDOW_STEPS = 20
"""The runs are short."""
_LONGEST_PERIOD = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """One run of real ranks."""

    cause: str
    slow: tuple[int, ...]
    onset: int
    """First slow step."""
    samples: dict[int, list[Issued]]


def load(path: Path) -> Recorded:
    """Read a file."""
    found: dict[str, Any] = json.loads(path.read_text())
    samples = {}
    for rank, one in enumerate(found["ranks"]):
        times = [us / 1e6 for us in itertools.accumulate(one["issued_us"])]
        signatures = [found["table"][i] for i in one["signatures"]]
        samples[rank] = [
            Issued(one["first_sequence"] + i, signature, at)
            for i, (signature, at) in enumerate(zip(signatures, times, strict=True))
        ]
    return Recorded(found["cause"], tuple(found["slow"]), found["onset"], samples)


def load_all(folder: Path = FOLDER) -> Iterator[Recorded]:
    """Read every file, by name."""
    for path in sorted(folder.glob("*.json")):
        yield load(path)


def period(signatures: Sequence[int]) -> int:
    """Return the shortest period of the newest collectives; 0: there is none."""
    for length in range(1, min(_LONGEST_PERIOD, len(signatures) // 3) + 1):
        tail = signatures[-3 * length :]
        if tail[:length] == tail[length : 2 * length] == tail[2 * length :]:
            return length
    return 0


def steps_of(recorded: Recorded) -> Sequence[Step]:
    """Return the steps of a run."""
    return align(recorded.samples, period([one.signature for one in recorded.samples[0]]))


def trace_of(recorded: Recorded) -> Trace:
    """Return a run as a trace, for the rules. Each rank counts as a node."""
    steps, ranks = steps_of(recorded), sorted(recorded.samples)
    local = np.array([[step.local[rank] for rank in ranks] for step in steps], np.float32)
    wall = np.array([step.wall for step in steps], np.float32)
    return Trace(
        seed=0,
        kind=recorded.cause,
        node=np.arange(len(ranks)),
        local=local,
        transfer=wall - local.max(axis=1),
        reference=np.ones(len(ranks), np.float32),
        marked=np.zeros(len(steps), bool),
        slow=np.isin(ranks, recorded.slow),
        onset=recorded.onset if recorded.slow else len(steps),
    )

"""Recorded runs: ``python -m bench.health.recorder`` records real ones of 4 gloo ranks.

Belongs here: starting the ranks, the compact files in bench/health/traces, and the way from a file
to windows. Does not belong here: the script of a rank (`rank`), the alignment and the verdict,
which are the master's own.
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import machine
from bench.health.generator import Trace
from bench.health.rank import CAUSES, DEVICE_SECONDS, SLOW_FROM, SLOW_RANK
from holdfast_master.policies.straggler.collectives import IssuedRun, Step, aligning
from holdfast_master.policies.straggler.slices import finished

RANKS = 4
FOLDER = Path(__file__).with_name("traces")
SCRIPT = Path(__file__).with_name("rank.py")
TIMEOUT_SECONDS = 300.0
WINDOW_STEPS = 20
"""The runs are short."""
_LONGEST_PERIOD = 64


def record(cause: str, steps: int) -> dict[str, Any]:
    """Run the ranks; return the trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [_start(cause, steps, rank, folder) for rank in range(RANKS)]
        try:
            codes = [one.wait(TIMEOUT_SECONDS) for one in ranks]
        finally:
            for one in ranks:
                one.kill()
        if any(codes):
            raise RuntimeError(f"{cause}: exit codes of the ranks {codes}")
        entries = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    facts = machine.about("record", {})
    return {
        "cause": cause,
        "steps": steps,
        "device_seconds": DEVICE_SECONDS,
        "slow": [SLOW_RANK] if cause.startswith("slow") else [],
        "onset": SLOW_FROM,
        "machine": {name: facts[name] for name in ("date", "cpu", "cores", "torch")},
        **compact(entries),
    }


def _start(cause: str, steps: int, rank: int, folder: Path) -> subprocess.Popen[bytes]:
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29517")}
    env = os.environ | store | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    words = [cause, str(steps), str(folder / f"{rank}.sock"), str(folder / f"{rank}.json")]
    return subprocess.Popen([sys.executable, str(SCRIPT), *words], env=env)


def compact(entries: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the collectives of all ranks: CRC-32 of what each is, and times in microseconds."""
    table: list[int] = []
    ranks = []
    for mine in entries:
        chosen = [one for one in mine if not one["is_p2p"]]
        signatures = [signature(one) for one in chosen]
        table += [one for one in dict.fromkeys(signatures) if one not in table]
        times = [one["time_created_ns"] // 1000 for one in chosen]
        later = [after - before for before, after in itertools.pairwise(times)]
        ranks.append(
            {
                "first_sequence": chosen[0]["collective_seq_id"],
                "signatures": [table.index(one) for one in signatures],
                "issued_us": [times[0], *later],
            }
        )
    return {"table": table, "ranks": ranks}


def signature(entry: dict[str, Any]) -> int:
    """Return the CRC-32 of operation, sizes and dtypes."""
    text = f"{entry['profiling_name']} {entry['input_sizes']} {entry['input_dtypes']}"
    return zlib.crc32(text.encode())


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """One run of real ranks."""

    cause: str
    slow: tuple[int, ...]
    onset: int
    """First slow step."""
    samples: dict[int, tuple[IssuedRun]]


def load(path: Path) -> Recorded:
    """Read a file."""
    found: dict[str, Any] = json.loads(path.read_text())
    samples = {}
    for rank, one in enumerate(found["ranks"]):
        times = array.array("d", (us / 1e6 for us in itertools.accumulate(one["issued_us"])))
        signatures = array.array("I", (found["table"][i] for i in one["signatures"]))
        samples[rank] = (IssuedRun(one["first_sequence"], signatures, times),)
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
    return finished(aligning(recorded.samples, period(recorded.samples[0][0].signatures)))


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the causes that the command line names; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("causes", nargs="*", default=list(CAUSES), help="what to record")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    for cause in options.causes:
        trace = record(cause, options.steps)
        path = options.folder / f"{cause.replace(' ', '-')}.json"
        path.write_text(json.dumps(trace, separators=(",", ":")) + "\n")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())

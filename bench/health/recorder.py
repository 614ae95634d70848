"""``python -m bench.health.recorder``: record real runs of 4 gloo ranks for bench/health/traces.

Belongs here: starting the ranks, and the compact file. Does not belong here: the script of a rank
(`rank`), reading a file (`recorded`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.health.rank import CAUSES, DEVICE_SECONDS, SLOW_FROM, SLOW_RANK

RANKS = 4
FOLDER = Path(__file__).with_name("traces")
SCRIPT = Path(__file__).with_name("rank.py")
TIMEOUT_SECONDS = 300.0


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

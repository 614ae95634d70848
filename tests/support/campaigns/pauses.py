"""Runs a real job of many small steps with ordinary pauses; each hang that is found is a false one.

Run as a script: `pauses.py --steps 1000000 --seed 7` prints the steps, the pauses and the events
HangFound. `minSeconds` is 5, so that most pauses are longer than the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from campaigns import pause_script
from holdfast_wire.reasons import EventReason
from jobs.local_job import RunningJob, elastic_job

SCRIPT = Path(pause_script.__file__)
MIN_SECONDS = 5
_LOOK_SECONDS = 5.0
_SAID_SECONDS = 300.0


def _done(folder: Path) -> dict[str, Any]:
    try:
        done: dict[str, Any] = json.loads((folder / "steps").read_text())
    except FileNotFoundError:
        return {"steps": 0, "pauses": {}}
    return done


def run(steps: int, seed: int, ranks: int, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the steps and pauses, and the texts of the hangs that were found."""
    job = elastic_job(
        "pauses",
        [str(SCRIPT), str(folder), str(seed)],
        flags=(f"--nproc-per-node={ranks}",),
        replicas=1,
        health={"hang": {"minSeconds": MIN_SECONDS}},
    )
    with RunningJob(job, folder) as one:
        said = time.monotonic()
        while _done(folder)["steps"] < steps:
            if one.process.poll() is not None:
                raise RuntimeError(f"seed {seed}: the job ended\n{one.output}")
            time.sleep(_LOOK_SECONDS)
            if time.monotonic() > said + _SAID_SECONDS:
                said = time.monotonic()
                print(_done(folder), flush=True)
        found = [event.text for event in one.events() if event.reason == EventReason.HANG_FOUND]
        done = _done(folder)
        (folder / "end").touch()
        one.finish(120.0)
    return done, found


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pauses-") as folder:
        done, found = run(options.steps, options.seed, options.ranks, Path(folder))
    pauses = ", ".join(f"{count} {name}" for name, count in sorted(done["pauses"].items()))
    print(f"{len(found)} false hangs in {done['steps']} steps with {pauses}")
    for text in found:
        print(f"  {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

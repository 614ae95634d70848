"""DDP under `holdfast run` while a worker is killed again and again: what remains of its steps.

`measure` starts a trial in a sandbox; as a module, `python -m bench.local_sgd.ddp_kills REQUEST`,
this is that trial. Belongs here: the job, the kills and the figures. Does not belong here: elastic
replicas beside which it is put (`elastic`).
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.recovery import processes, sandbox
from bench.recovery.measure import completed_steps
from bench.recovery.steplog import Event, Follower
from bench.recovery.systems.contract import Setting
from bench.recovery.systems.holdfast import Holdfast

RANKS: Final = 4
_ROOT: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 300.0
"""Until all ranks train: a busy machine imports torch for a minute."""
_SETTLED: Final = 20
"""Steps before the first kill."""


def measure(seed: int, seconds: float, each: float, pace: float) -> dict[str, float]:
    """Return the figures of one run.

    Args:
        seed: Draws the ranks that are killed.
        seconds: The window of kills.
        each: Seconds from one kill to the next.
        pace: Seconds that the computation of a step takes, slept.

    Raises:
        RuntimeError: the job did not train; the text has the last words.
        SandboxError: no PID namespace can be made here.
    """
    sandbox.check()
    shared = Path("/dev/shm")  # noqa: S108 - a directory of its own in it
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        request = {"folder": name, "seed": seed, "seconds": seconds, "each": each, "pace": pace}
        command = [sys.executable, "-m", "bench.local_sgd.ddp_kills", json.dumps(request)]
        trial = subprocess.Popen(
            sandbox.enter(command),
            stdin=subprocess.PIPE,  # its end ends the sandbox
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": name},
            cwd=_ROOT,
        )
        with trial:
            assert trial.stdout is not None  # noqa: S101 - asked for above
            said = trial.stdout.read().strip()
        if trial.returncode:
            log = Path(name) / "runner.log"
            words = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise RuntimeError(f"DDP under kills ended with {trial.returncode}: {words}")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


class _FourWorkers(Holdfast):
    """`holdfast run` of four nodes with a worker each, whose deaths never use the budgets up."""

    def _job(self) -> dict[str, Any]:
        job = super()._job()
        budgets = {"failures": {"limit": 10_000}, "noProgressRestarts": {"limit": 1_000}}
        job["spec"] |= {"replicas": RANKS, "failurePolicy": {"budgets": budgets}}
        container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
        command = [one for one in container["command"] if one != "--sdk"]
        container["command"] = [*command, f"--step-ms={self.setting.variant}"]
        return job


def _trial(request: dict[str, Any]) -> dict[str, float]:
    """Kill a worker each `each` seconds for `seconds`."""
    setting = Setting(
        python=sys.executable,
        script=Path(__file__).with_name("ddp_script.py"),
        directory=Path(request["folder"]),
        variant=str(1000 * request["pace"]),
        restore="torch",
        collective_timeout_s=None,
    )
    system = _FourWorkers(setting)
    system.start()
    follower = Follower(setting.log_directory)
    if not follower.wait(_is_settled, time.monotonic() + _START_SECONDS):
        raise RuntimeError(f"no {RANKS} ranks train: {system.ended() or 'the runner is there'}")
    draw, kills = random.Random(request["seed"]), 0
    begin = time.monotonic()
    for number in itertools.count(1):
        due = begin + min(number * request["each"], request["seconds"])
        time.sleep(max(0.0, due - time.monotonic()))
        if due >= begin + request["seconds"]:
            break
        alive = [pid for pid in _newest(follower.events()) if processes.alive(pid)]
        processes.send([draw.choice(alive)] if alive else [], signal.SIGKILL)
        kills += bool(alive)
    return figures(follower.events(), begin, time.monotonic()) | {"kills": float(kills)}


def _is_settled(events: list[Event]) -> bool | None:
    done = completed_steps(events)
    return True if sum(one.world == RANKS for one in done) >= _SETTLED else None


def _newest(events: Sequence[Event]) -> list[int]:
    """Return each rank's newest process."""
    found: dict[int, int] = {event.rank: event.pid for event in events}
    return list(found.values())


def figures(events: Sequence[Event], begin: float, end: float) -> dict[str, float]:
    """Return what remained of the steps in a window.

    A step counts once, with as many ranks as made it: one that is repeated after a restart, or made
    by fewer ranks, is no gain. Goodput: those, as a share of what all ranks make at the pace of two
    steps in a row of one round, the median of this run.
    """
    done = completed_steps(events)
    first: dict[int, Any] = {}
    for one in done:
        first.setdefault(one.step, one)
    gained = sum(one.world for one in first.values() if begin < one.t <= end)
    pace = statistics.median(
        other.t - one.t
        for one, other in itertools.pairwise(done)
        if one.round == other.round and one.world == RANKS
    )
    fresh = sum(begin < one.t <= end for one in first.values())
    return {
        "seconds": end - begin,
        "steps made again": float(sum(begin < one.t <= end for one in done) - fresh),
        "processes begun again": float(len({event.pid for event in events}) - RANKS),
        "steps/s of all replicas": gained / (end - begin),
        "seconds a step without a change": pace,
        "goodput": gained * pace / (RANKS * (end - begin)),
    }


if __name__ == "__main__":
    print(json.dumps(_trial(json.loads(sys.argv[1]))), flush=True)

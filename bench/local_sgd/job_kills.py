"""Jobs under `holdfast run` while a worker is killed again and again: what remains of its steps.

DDP is one world, which restarts; replicas of EDiT are worlds of their own, under the same master
and agents. `measure` starts a trial in a sandbox; as a module, `python -m
bench.local_sgd.job_kills REQUEST`, this is that trial. Belongs here: the jobs, the kills and the
figures. Does not belong here: replicas under the tests' control plane (`elastic`).
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness import launch, sandbox
from bench.local_sgd.job_script import INTERVAL
from bench.recovery import processes
from bench.recovery.measure import completed_steps
from bench.recovery.steplog import Event, Follower
from bench.recovery.systems import Holdfast, Setting

RANKS: Final = 4
_START_SECONDS: Final = 300.0
"""Until all ranks train: a busy machine imports torch for a minute."""
_SPARE_SECONDS: Final = 60.0
"""On top, before it is ended from outside."""
_SETTLED: Final = 20
"""Steps before the first kill."""


def measure(
    seed: int, seconds: float, each: float, pace: float, *, replicas: bool = False
) -> dict[str, float]:
    """Return the figures of one run.

    Args:
        replicas: Of EDiT; else DDP.
        seed: Draws the ranks that are killed.
        seconds: The window of kills.
        each: Seconds from one kill to the next.
        pace: Seconds that the computation of a step takes, slept.

    Raises:
        RuntimeError: the job did not train; the text has the last words.
        SandboxError: no PID namespace can be made here.
    """
    sandbox.check()
    with tempfile.TemporaryDirectory(dir=launch.in_memory()) as name:
        request = {"seed": seed, "seconds": seconds, "each": each, "pace": pace}
        folder, limit = Path(name), seconds + _START_SECONDS + _SPARE_SECONDS
        request["replicas"] = replicas
        if failure := sandbox.trial(__name__, request, folder, limit, {"TMPDIR": name}):
            log = folder / "runner.log"
            words = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise RuntimeError(f"{request}: it {failure}: {words}")
        lines = (folder / "trial.log").read_text().splitlines()
        found: dict[str, float] = json.loads(lines[-1])
    return found


class _FourWorkers(Holdfast):
    """`holdfast run` of four nodes with a worker each, whose deaths never use the budgets up."""

    are_replicas = False
    """Each worker is a replica; else they are one world."""

    def _job(self) -> dict[str, Any]:
        job = super()._job()
        budgets = {"failures": {"limit": 10_000}, "noProgressRestarts": {"limit": 1_000}}
        job["spec"] |= {"replicas": RANKS, "failurePolicy": {"budgets": budgets}}
        if self.are_replicas:
            job["spec"]["replicaPolicy"] = {"nodesPerReplica": 1}
        container = job["spec"]["worker"]["template"]["spec"]["containers"][0]
        command = [one for one in container["command"] if one != "--sdk"]
        more = ["--replicas"] if self.are_replicas else []
        container["command"] = [*command, f"--step-ms={self.setting.variant}", *more]
        return job


def _trial(folder: Path, request: dict[str, Any]) -> dict[str, float]:
    """Kill a worker each `each` seconds for `seconds`."""
    replicas = bool(request["replicas"])
    setting = Setting(
        python=sys.executable,
        script=Path(__file__).with_name("job_script.py"),
        directory=folder,
        variant=str(1000 * request["pace"]),
        restore="torch",
        collective_timeout_s=None,
    )
    system = _FourWorkers(setting)
    system.are_replicas = replicas
    system.start()
    follower = Follower(setting.log_directory)
    is_settled = _are_settled if replicas else _is_settled
    if not follower.wait(is_settled, time.monotonic() + _START_SECONDS):
        raise RuntimeError(f"no {RANKS} ranks train: {system.ended() or 'the runner is there'}")
    draw, kills = random.Random(request["seed"]), 0
    begin = time.monotonic()
    for number in itertools.count(1):
        due = begin + min(number * request["each"], request["seconds"])
        time.sleep(max(0.0, due - time.monotonic()))
        if due >= begin + request["seconds"]:
            break
        events = follower.events()
        pids = {one.pid for one in events} if replicas else set(_newest(events))
        alive = [pid for pid in sorted(pids) if processes.alive(pid)]
        processes.send([draw.choice(alive)] if alive else [], signal.SIGKILL)
        kills += bool(alive)
    count = figures_of_replicas if replicas else figures
    return count(follower.events(), begin, time.monotonic()) | {"kills": float(kills)}


def _is_settled(events: list[Event]) -> bool | None:
    done = completed_steps(events)
    return True if sum(one.world == RANKS for one in done) >= _SETTLED else None


def _are_settled(events: list[Event]) -> bool | None:
    made = Counter(one.pid for one in events if one.event == "step")
    return True if sum(count >= _SETTLED for count in made.values()) == RANKS else None


def _newest(events: Sequence[Event]) -> list[int]:
    """Return each rank's newest process."""
    found: dict[int, int] = {event.rank: event.pid for event in events}
    return list(found.values())


def figures(events: Sequence[Event], begin: float, end: float) -> dict[str, float]:
    """Return the figures of the steps that remained in a window.

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


def figures_of_replicas(events: Sequence[Event], begin: float, end: float) -> dict[str, float]:
    """Return the figures of replicas in a window; each of their steps counts once.

    Goodput: those, as a share of what all make at the pace of rounds without a change, the median
    of this run. What a killed replica had not yet brought to the others counts too: it is at most a
    round's steps. Processes begun again: more than one for each kill is a survivor's.
    """
    steps = [one for one in events if one.event == "step"]
    gained = sum(begin < one.t <= end for one in steps)
    by_process: dict[int, list[Event]] = {}
    for one in steps:
        by_process.setdefault(one.pid, []).append(one)
    pace = statistics.median(
        (last.t - first.t) / INTERVAL
        for made in by_process.values()
        for first, last in zip(made, made[INTERVAL:], strict=False)
        if first.round == last.round and first.world == RANKS
    )
    return {
        "seconds": end - begin,
        "processes begun again": float(len(by_process) - RANKS),
        "steps/s of all replicas": gained / (end - begin),
        "seconds a step without a change": pace,
        "goodput": gained * pace / (RANKS * (end - begin)),
    }


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print(json.dumps(_trial(path.parent, json.loads(path.read_text()))), flush=True)

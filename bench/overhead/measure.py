"""CPU time of `job.step`, and the time that agent, master and SDK add to a training step.

The calls: CPU time of the calling thread in a training loop, so that other processes on the machine
do not count, with the loop's own cost taken off: for a rank under an agent (page and lease), for
one that has a barrier ahead (armed), and for a script that runs without an agent.

The step: the same busy script in turns under torchrun, without the SDK, and under `holdfast-run`
with its own master, with the SDK. Read from outside: the step's mean time, and the CPU time of what
runs beside the ranks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness.launch import HOLDFAST, LAUNCHERS
from bench.harness.record import Note
from holdfast.environment import Environment
from holdfast.job import Job
from holdfast.page import Page
from holdfast.page_slot import SlotWriter

CALLS = 20_000
REPEATS = 50
SCRIPT = Path(__file__).with_name("script.py")
RANKS = 2
TIMEOUT_SECONDS = 300.0
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: clock_getcpuclockid(3) makes a process's clock of it. /proc counts in
10 ms, a quarter of what is measured."""
SERVER = "pt_workerserver"
"""Beginning of the name that torch gives the threads of its worker server."""


@dataclass(frozen=True, slots=True)
class SdkCost:
    """CPU time of one call of `job.step`, nanoseconds, over the repeats."""

    case: str
    median: float
    p10: float
    p90: float
    greatest: float


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run under one launcher."""

    launcher: str
    pair: int
    step_us: float
    """Mean wall time of a step, microseconds."""
    launcher_us: float
    """CPU time per step of the launcher and its helpers (agent and zygote), without the ranks."""
    master_us: float
    """CPU time per step of the job master; 0 under torchrun."""
    cores: int
    load: float
    """Load average of the last minute, at the end."""
    sampling_us: float | None = None
    """CPU time per step of the threads that answer the agent's samples, in the rank with the most.
    The ranks answer at the same time and then wait for each other. None: not measured."""

    def share(self, cpu_us: float) -> float:
        """Return CPU time per step as a share of the step.

        Taken from one rank it delays all of them, so other cores do not make it less.
        """
        return cpu_us / self.step_us


def calls(note: Note) -> None:
    """Measure the three cases."""
    page = Page.create(1)
    try:
        note(_cost(page, "under an agent"))
        note(_cost(page, "under an agent, a barrier ahead", armed=True))
        note(_cost(page, "without an agent", agent=False))
    finally:
        os.close(page.fd)


def _cost(page: Page, case: str, *, agent: bool = True, armed: bool = False) -> SdkCost:
    page.reset(0, 1)
    job = Job(Environment(), SlotWriter(page, 0, 1) if agent else None)
    if armed:
        page.set_barrier(0, 1, 2**60)
    costs = []
    for repeat in range(REPEATS):
        page.begin_lease(time.monotonic_ns())
        costs.append(_loop_ns(job, 1 + repeat * CALLS) - _empty_ns())
    tenths = statistics.quantiles(costs, n=10)
    return SdkCost(case, statistics.median(costs), tenths[0], tenths[-1], max(costs))


def _loop_ns(job: Job, first: int) -> float:
    """Return CPU nanoseconds per call of `job.step` with everything given."""
    begun = time.thread_time_ns()
    for n in range(first, first + CALLS):
        job.step(n, samples=32, loss=0.5)
    return (time.thread_time_ns() - begun) / CALLS


def _empty_ns() -> float:
    """Return CPU nanoseconds per turn of the loop around it."""
    begun = time.thread_time_ns()
    for _n in range(CALLS):
        pass
    return (time.thread_time_ns() - begun) / CALLS


def steps(pairs: int, count: int, folder: Path, note: Note) -> None:
    """Run the pairs; they begin with each launcher in turn."""
    for pair in range(pairs):
        for name in sorted(LAUNCHERS, reverse=bool(pair % 2)):
            note(_trial(name, pair, count, folder))


def _trial(launcher: str, pair: int, steps: int, folder: Path) -> TrainingRun:
    log = folder / f"{launcher}.{pair}.jsonl"
    words = [str(SCRIPT), str(log), str(steps), *(["--sdk"] if launcher == HOLDFAST else [])]
    with log.with_suffix(".out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *LAUNCHERS[launcher], f"--nproc-per-node={RANKS}", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        before = _spent_at(process, log, "begun")
        after = _spent_at(process, log, "ended")
        log.with_suffix(".seen").touch()
        if process.wait(TIMEOUT_SECONDS) != 0:
            raise RuntimeError(f"{launcher} ended with {process.returncode}: see {out.name}")
    finally:
        process.kill()
        process.wait()
    spent = {
        name: sum(
            cpu - before.others.get(who, 0.0) for who, cpu in after.others.items() if who[1] == name
        )
        for name in ("launcher", "master")
    }
    sampling = [cpu - before.sampling[rank] for rank, cpu in after.sampling.items()]
    return TrainingRun(
        launcher=launcher,
        pair=pair,
        step_us=max(line["seconds"] for line in _lines(log) if line["what"] == "ended") * 1e6,
        launcher_us=spent["launcher"] / steps * 1e6,
        master_us=spent["master"] / steps * 1e6,
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        sampling_us=max(sampling) / steps * 1e6,
    )


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds so far of what is not training."""

    others: Mapping[tuple[int, str], float]
    """By process that is no rank, and its part."""
    sampling: Mapping[int, float]
    """Of the threads of a rank that answer the agent's samples, by process."""


def _spent_at(process: subprocess.Popen[bytes], log: Path, what: str) -> Spent:
    """Wait until every rank has written `what`; return what was spent until then."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        ranks = {line["pid"] for line in _lines(log) if line["what"] == what}
        if len(ranks) == RANKS:
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what!r} by all ranks (exit code {process.returncode})")
        time.sleep(0.2)
    return Spent(_others(process.pid, ranks), {rank: sampling(rank) for rank in ranks})


def sampling(rank: int) -> float:
    """Return the CPU time of a process's threads of torch's worker server, s."""
    found = 0
    for task in Path(f"/proc/{rank}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(SERVER):
                found += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # the thread has ended meanwhile
    return found * 1e-9


def _others(pid: int, ranks: Collection[int]) -> dict[tuple[int, str], float]:
    me = psutil.Process(pid)
    cpu: dict[tuple[int, str], float] = {}
    for one in (me, *me.children(recursive=True)):
        if one.pid not in ranks:
            try:
                seconds, line = cpu_seconds(one.pid), one.cmdline()
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
            name = "master" if "holdfast_master.main" in line else "launcher"
            cpu[one.pid, name] = seconds
    return cpu


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, also of those that have ended.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError as error:
        raise ProcessLookupError(f"process {pid}: {error}") from error

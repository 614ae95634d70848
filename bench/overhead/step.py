"""What an agent, a master and the SDK add to a training step, beside torchrun.

The same busy script in turns under torchrun, without the SDK, and under `holdfast-run` with its own
master, with the SDK. Read from outside: the step's mean time, and the CPU time of what runs beside
the ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.overhead.results import Trial

SCRIPT = Path(__file__).with_name("script.py")
HOLDFAST, TORCHRUN = "holdfast", "torchrun"
LAUNCHERS: Mapping[str, Sequence[str]] = {
    TORCHRUN: ("-m", "torch.distributed.run", "--standalone"),
    HOLDFAST: ("-c", "from holdfast_agent.main import main; main()"),
}
RANKS = 2
TIMEOUT_SECONDS = 300.0


def measure(pairs: int, steps: int, folder: Path, add: Callable[[Trial], None]) -> None:
    """Run the pairs; they begin with each launcher in turn."""
    for pair in range(pairs):
        for name in sorted(LAUNCHERS, reverse=bool(pair % 2)):
            add(_trial(name, pair, steps, folder))


def _trial(launcher: str, pair: int, steps: int, folder: Path) -> Trial:
    log = folder / f"{launcher}.{pair}.jsonl"
    words = [str(SCRIPT), str(log), str(steps), *(["--sdk"] if launcher == HOLDFAST else [])]
    with log.with_suffix(".out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *LAUNCHERS[launcher], f"--nproc-per-node={RANKS}", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        before = _others_at(process, log, "begun")
        after = _others_at(process, log, "ended")
        log.with_suffix(".seen").touch()
        if process.wait(TIMEOUT_SECONDS) != 0:
            raise RuntimeError(f"{launcher} ended with {process.returncode}: see {out.name}")
    finally:
        process.kill()
        process.wait()
    spent = {
        name: sum(cpu - before.get(who, 0.0) for who, cpu in after.items() if who[1] == name)
        for name in ("launcher", "master")
    }
    return Trial(
        launcher=launcher,
        pair=pair,
        step_us=max(line["seconds"] for line in _lines(log) if line["what"] == "ended") * 1e6,
        launcher_us=spent["launcher"] / steps * 1e6,
        master_us=spent["master"] / steps * 1e6,
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
    )


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _others_at(
    process: subprocess.Popen[bytes], log: Path, what: str
) -> dict[tuple[int, str], float]:
    """Wait until every rank has written `what`; return the others' CPU seconds so far."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        ranks = {line["pid"] for line in _lines(log) if line["what"] == what}
        if len(ranks) == RANKS:
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what!r} by all ranks (exit code {process.returncode})")
        time.sleep(0.2)
    me = psutil.Process(process.pid)
    cpu: dict[tuple[int, str], float] = {}
    for one in (me, *me.children(recursive=True)):
        if one.pid not in ranks:
            try:
                times, line = one.cpu_times(), one.cmdline()
            except psutil.NoSuchProcess:
                continue
            name = "master" if "holdfast_master.main" in line else "launcher"
            cpu[one.pid, name] = times.user + times.system
    return cpu

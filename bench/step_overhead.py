"""What an agent, a master and the SDK add to the time of a training step, beside torchrun.

`python -m bench.step_overhead` trains the same busy script (two ranks, gloo, DDP, steps of about
30 ms of arithmetic) in turns under torchrun and under `holdfast-run` with its own master, and
prints the ratio of the mean step times, pair by pair, and the CPU time of everything beside the
ranks. The ranks keep both cores of a small machine busy, so what the others use is taken from
them. The bar is 0.5 % of the step time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

BAR = 0.005
WARM_UP_STEPS = 30
LAUNCHERS: Mapping[str, Sequence[str]] = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    "holdfast": (
        "-c",
        "from holdfast_agent.main import main; main()",
        "--nproc-per-node=2",
    ),
}


def train(log: Path, steps: int) -> None:
    """Be one rank: warm up, take `steps` steps, rank 0 writes when they began and ended."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = holdfast.init()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(192, 384)
    begun = 0.0
    for step in range(1, WARM_UP_STEPS + steps + 1):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        job.step(step, samples=192, loss=float(loss.detach()))
        if step == WARM_UP_STEPS:
            dist.barrier()
            begun = _mark(log, "begun")
    dist.barrier()
    _mark(log, "ended", seconds=(time.monotonic() - begun) / steps)
    dist.destroy_process_group()


def _mark(log: Path, what: str, **more: float) -> float:
    now = time.monotonic()
    line = json.dumps({"what": what, "pid": os.getpid(), **more})
    with log.open("a") as file:
        file.write(line + "\n")
    return now


def run(launcher: str, steps: int, directory: Path) -> dict[str, float]:
    """Run the script under a launcher; return the mean step time and the others' CPU time, s."""
    log = directory / f"{launcher}.jsonl"
    log.unlink(missing_ok=True)
    rank = [str(Path(__file__).resolve()), "--rank", str(log), "--steps", str(steps)]
    with (directory / f"{launcher}.out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *LAUNCHERS[launcher], *rank],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    before = _others_at(process, log, "begun")
    after = _others_at(process, log, "ended")
    if process.wait(120) != 0:
        raise RuntimeError(f"{launcher} ended with {process.returncode}: see {out.name}")
    seconds = max(line["seconds"] for line in _lines(log) if line["what"] == "ended")
    spent = sum(after.values()) - sum(before.get(pid, 0.0) for pid in after)
    return {"step_seconds": seconds, "others_cpu_seconds": spent / steps}


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _others_at(process: subprocess.Popen[bytes], log: Path, what: str) -> dict[int, float]:
    """Wait until both ranks have written `what`; return CPU seconds of all others by pid."""
    deadline = time.monotonic() + 300
    while True:
        ranks = {line["pid"] for line in _lines(log) if line["what"] == what}
        if len(ranks) == 2:
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what!r} by both ranks (exit code {process.returncode})")
        time.sleep(0.2)
    me = psutil.Process(process.pid)
    cpu: dict[int, float] = {}
    for one in (me, *me.children(recursive=True)):
        if one.pid not in ranks:
            try:
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            cpu[one.pid] = times.user + times.system
    return cpu


def measure(pairs: int, steps: int) -> dict[str, Any]:
    """Run the pairs, which begin with each launcher in turn; return the figures."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in LAUNCHERS}
    with tempfile.TemporaryDirectory() as directory:
        for pair in range(pairs):
            for name in sorted(LAUNCHERS, reverse=bool(pair % 2)):
                results[name].append(run(name, steps, Path(directory)))
                print(json.dumps({"pair": pair, "launcher": name, **results[name][-1]}), flush=True)
    ratios = [
        ours["step_seconds"] / theirs["step_seconds"]
        for ours, theirs in zip(results["holdfast"], results["torchrun"], strict=True)
    ]
    shares = {
        name: statistics.median(r["others_cpu_seconds"] / r["step_seconds"] for r in rows)
        for name, rows in results.items()
    }
    cores = len(os.sched_getaffinity(0))
    return {
        "pairs": pairs,
        "steps": steps,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "others_cpu_share_of_machine": {k: round(v / cores, 5) for k, v in shares.items()},
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, or be a rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options.steps)
        return
    figures = measure(options.pairs, options.steps)
    print(json.dumps(figures))
    print(f"bar: ratio ≤ {1 + BAR}, measured median: {figures['ratio_median']}")


if __name__ == "__main__":
    main()

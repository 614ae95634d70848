"""What an agent, a master and the SDK add to the time of a training step, beside torchrun.

`python -m bench.step_overhead` trains the same busy script (two ranks, gloo, DDP, steps of about
30 ms of arithmetic) in turns under torchrun and under `holdfast-run` with its own master, and
prints the ratio of the mean step times, pair by pair, and the CPU time of what runs beside the
ranks: the launcher (agent and zygote) and the job master, which in a cluster runs elsewhere. The
ranks keep both cores of a small machine busy, so what the others use is taken from them: their
share of the machine is the figure to trust where the machine is noisy. The bar is 0.5 %.
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
    """Run the script under a launcher; return mean step time and CPU time per step beside it, s."""
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
    spent = {
        name: sum(cpu - before.get(who, 0.0) for who, cpu in after.items() if who[1] == name)
        for name in ("launcher", "master")
    }
    return {
        "step_seconds": seconds,
        "launcher_cpu_seconds": spent["launcher"] / steps,
        "master_cpu_seconds": spent["master"] / steps,
    }


def _lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _others_at(
    process: subprocess.Popen[bytes], log: Path, what: str
) -> dict[tuple[int, str], float]:
    """Wait until both ranks have written `what`; return the others' CPU seconds so far."""
    deadline = time.monotonic() + 300
    while True:
        ranks = {line["pid"] for line in _lines(log) if line["what"] == what}
        if len(ranks) == 2:
            break
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what!r} by both ranks (exit code {process.returncode})")
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
    cores = len(os.sched_getaffinity(0))
    shares = {
        f"{name}: {part}": round(
            statistics.median(row[f"{part}_cpu_seconds"] / row["step_seconds"] for row in rows)
            / cores,
            5,
        )
        for name, rows in results.items()
        for part in ("launcher", "master")
    }
    return {
        "pairs": pairs,
        "steps": steps,
        "ratio_median": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "cpu_share_of_machine": shares,
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
    share = figures["cpu_share_of_machine"]["holdfast: launcher"]
    print(f"bar: {BAR:.1%}; agent and zygote: {share:.2%}; ratio: {figures['ratio_median']}")


if __name__ == "__main__":
    main()

"""How long a checkpoint stops the training step: `python -m bench.flash [--mib N] [--repeats N]`.

Each system runs in a process of its own. Before every save the same bytes are copied once by one
thread; a save's × is its time over that neighbour's, so a busy machine disturbs both. Prints
medians, with the spread of ×, and × of CPU time, which other processes disturb less (of all threads
of this process; what a system leaves to others is not in it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

from bench.flash.state import gpt, many
from bench.flash.systems import SYSTEMS, Reference

CASES: Final[list[tuple[str, int]]] = [
    ("flash", 1),
    ("flash", 2),
    ("dcp.async_save, stager reused", 1),
    ("dcp.async_save", 1),
    ("dcp.save", 1),
    ("torch.save", 1),
]


def measure(name: str, threads: int, mib: int, repeats: int) -> dict[str, Any]:
    """Measure one system in this process; a count below 0 MiB means so many small tensors."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, optimizer = gpt(mib) if mib > 0 else many(-mib)
    reference = Reference(model, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        system = SYSTEMS[name](Path(folder), model, optimizer, threads)
        seconds, copies, effort = [], [], []
        for step in range(1, repeats + 1):
            before = time.process_time()
            copies.append(reference.seconds())
            begin, between = time.perf_counter(), time.process_time()
            system.save(step)
            seconds.append(time.perf_counter() - begin)
            effort.append((time.process_time() - between) / (between - before))
            system.settle()
        system.close()
    ratios = [one / other for one, other in zip(seconds, copies, strict=True)]
    return {
        "system": name,
        "threads": threads,
        "mib": round(reference.bytes / 2**20),
        "tensors": len(reference._sources),  # noqa: SLF001
        "first_x": round(ratios[0], 2),
        "x": round(statistics.median(ratios[1:]), 2),
        "x_low": round(min(ratios[1:]), 2),
        "x_high": round(max(ratios[1:]), 2),
        "cpu_x": round(statistics.median(effort[1:]), 2),
        "ms": round(1000 * statistics.median(seconds[1:]), 1),
        "copy_ms": round(1000 * statistics.median(copies[1:]), 1),
        "repeats": repeats - 1,
    }


def main() -> int:
    """Measure every system, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m bench.flash", description=__doc__)
    parser.add_argument(
        "--mib", type=int, default=512, help="of the state; the arena takes 3 of it"
    )
    parser.add_argument("--tensors", type=int, default=20_000, help="of the case of small ones")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="", help="systems whose name contains this")
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "THREADS", "MIB"))
    options = parser.parse_args()
    if options.one:
        name, threads, mib = options.one
        said = measure(name, int(threads), int(mib), options.repeats + 1)
        print(json.dumps(said))
        return 0
    cases = [(name, threads, options.mib) for name, threads in CASES if options.only in name]
    if options.tensors and options.only in "flash":
        cases.append(("flash", 1, -options.tensors))
    for name, threads, mib in cases:
        done = subprocess.run(
            [sys.executable, "-m", "bench.flash", "--repeats", str(options.repeats),
             "--one", name, str(threads), str(mib)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )  # fmt: skip
        print(done.stdout.strip().splitlines()[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

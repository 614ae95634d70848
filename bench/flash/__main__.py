"""Time that a checkpoint stops a training step: `python -m bench.flash [--mib N] [--publish]`.

With `--device cuda` the state is on a GPU.

Each system runs in processes of its own, on the same state. Before every save the same bytes are
copied once by one thread of each rank; a save's × is its time over that neighbour's, so that a
busy machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.flash import results
from bench.flash.page import page_of
from bench.flash.results import (
    CRASH,
    FLASH_1,
    PEERS,
    SMALL,
    SaveResult,
    Saves,
    chosen,
    estimate_s,
    ordered,
)
from bench.flash.worker import Order
from bench.harness import record, sandbox, venvs
from bench.recovery.measure import Recovery
from bench.recovery.results import Case
from bench.recovery.results import Result as RecoveryResult
from bench.recovery.trial import Conductor

LIMIT_SECONDS = 600.0
"""For one system in one case; then it is ended, and the page says so."""
BENCHES = {
    "cpu": record.Bench("flash", page_of, SaveResult),
    "cuda": record.Bench("flash-gpu", page_of, SaveResult, module="flash"),
}
"""By where the state is."""
MIB: Final = 256
"""Of the state on each rank that crashes; as `crash_script` has it."""
_FRESH: Final = ("imported", "joined", "built", "first step")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = BENCHES["cpu"].parser(__doc__)
    parser.add_argument("--device", choices=list(BENCHES), default="cpu", help="of the state")
    parser.add_argument("--mib", type=int, default=2048, help="of the state; needs six times that")
    parser.add_argument("--tensors", type=int, default=20_000, help="of the case of small ones")
    parser.add_argument("--repeats", type=int, default=5, help="in each of two rounds")
    parser.add_argument("--only", default="", help="what contains this, of 'case: system'")
    parser.add_argument("--crashes", type=int, default=5, help="runs of two crashes each")
    parser.add_argument("--no-peer", action="store_true", help="leave DLRover out")
    parser.add_argument("--list", action="store_true", help="show the runs and start nothing")
    options = parser.parse_args(arguments)
    wanted = chosen(options.only, options.device)
    rows = [row for row in wanted if not (options.no_peer and row.system in PEERS)]
    if not options.page_of:
        minutes = estimate_s(rows, options.mib, options.repeats) / 60
        print(f"{len(ordered(rows))} runs, about {minutes:.0f} min on an idle machine", flush=True)
    if options.list:
        print("\n".join(f"{row.case}: {row.system}" for row in ordered(rows)))
        return 0
    return BENCHES[options.device].main(options, lambda _: _run(options, rows))


def _run(options: argparse.Namespace, rows: list[Saves]) -> None:
    sandbox.check()
    left_out = list[str]()
    peer = venvs.dlrover(left_out) if any(row.system in PEERS for row in rows) else None
    begun = time.monotonic()
    gpu = {"gpu": _gpu_name()} if options.device == "cuda" else {}
    facts = {"mib": options.mib, "device": options.device, **gpu}
    with record.recording(options.out, left_out, plan="flash", **facts) as note:
        for result in _results(options, rows, peer):
            note(result, f"{time.monotonic() - begun:.0f} s  {_said(result)}")


def _results(
    options: argparse.Namespace, rows: list[Saves], peer: str | None
) -> Iterator[SaveResult]:
    for row in ordered(rows):
        if row.system not in PEERS:
            yield _one(row, options, sys.executable)
        elif peer is not None:
            yield _one(row, options, peer)
    if options.crashes and options.only in CRASH and options.device == "cpu":
        yield from _crashes(options.crashes, options.out.with_suffix(".logs"))


def _one(row: Saves, options: argparse.Namespace, python: str) -> SaveResult:
    """Measure one system in one case once, in a sandbox."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-flash-") as folder:
        request = Order(
            case=row.case,
            system=row.system,
            mib=options.tensors if row.case == SMALL else int(options.mib * row.share),
            repeats=row.repeats(options.repeats),
            device=options.device,
            folder=folder,
            out=f"{folder}/result.json",
        )
        home, variables = Path(folder), {"TMPDIR": folder}
        order = "bench.flash.stage", asdict(request), home, LIMIT_SECONDS, variables
        if failed := sandbox.trial(*order, [python]):
            said = (home / "trial.log").read_text(errors="replace")
            print(said.strip()[-4000:], file=sys.stderr)
        out = Path(request.out)
        if failed or not out.exists():
            why = failed or "no result"
            return SaveResult(case=row.case, system=row.system, load=load, failed=why)
        found = json.loads(out.read_text())
    return SaveResult(**(found | {"load": load}))


def _gpu_name() -> str:
    """Return the name of the GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def _crashes(runs: int, logs: Path) -> Iterator[SaveResult]:
    """Crash so many jobs, each twice."""
    conductor = Conductor(logs, {"holdfast": sys.executable}, seed=1)
    for number in range(runs):
        case = Case(
            scenario="crash",
            system="holdfast",
            variant="default",
            restore="flash",
            target=number % 2,
            repetition=number,
        )
        for found in conductor.run(case):
            yield _crash(found)


def _crash(found: RecoveryResult) -> SaveResult:
    recovery, copied = found.recovery, found.notes.get("compared")
    if recovery is None or copied is None:
        why = f"{found.outcome}: {found.reason or 'no copy was compared with'}"
        return SaveResult(case=CRASH, system=FLASH_1, load=found.load, failed=why)
    return SaveResult(
        case=CRASH,
        system=FLASH_1,
        ranks=recovery.world,
        bytes=MIB * 2**20,
        seconds=[recovery.total_s],
        copies=[copied],
        figures=_stages(recovery) | {"cold_copy_s": copied},
        load=found.load,
    )


def _stages(recovery: Recovery) -> dict[str, float]:
    stages = recovery.stages
    return {
        "started_s": stages["started"],
        "restored_s": stages["restored"],
        "fresh_s": sum(stages[name] for name in _FRESH),
    }


def _said(result: SaveResult) -> str:
    found = results.figures([result], result.case, result.system)
    if found is None:
        return f"{result.case}: {result.system}: {result.failed or 'nothing measured'}"
    return (
        f"{result.case}: {result.system}: {found.median:.2f}x "
        f"({min(found.x):.2f}-{max(found.x):.2f}), CPU "
        f"{sorted(found.cpu)[len(found.cpu) // 2] if found.cpu else 0:.2f}x, first "
        f"{max(found.first, default=0):.2f}x, {result.figures}"
    )


if __name__ == "__main__":
    sys.exit(main())

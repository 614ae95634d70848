"""Time that a checkpoint stops a training step: `python -m bench.flash [--mib N] [--publish]`.

With `--device cuda` the state is on a GPU.

Each system runs in processes of its own, on the same state. Before every save the same bytes are
copied once by one thread of each rank; a save's × is its time over that neighbour's, so that a
busy machine disturbs both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import machine, record
from bench.flash import crash, results
from bench.flash.page import page
from bench.flash.plan import Row, chosen, estimate_s, ordered
from bench.flash.results import PEERS, SMALL, Result
from bench.flash.worker import Request
from bench.recovery import sandbox, venvs

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 600.0
"""For one system in one case; then it is ended, and the page says so."""


def _page(lines: Iterable[str]) -> str:
    return page(*results.read(lines))


RECORDS = {"cpu": record.Record("flash", _page), "cuda": record.Record("flash-gpu", _page)}
"""By where the state is."""


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = RECORDS["cpu"].parser(__doc__)
    parser.add_argument("--device", choices=list(RECORDS), default="cpu", help="of the state")
    parser.add_argument("--mib", type=int, default=2048, help="of the state; needs six times that")
    parser.add_argument("--tensors", type=int, default=20_000, help="of the case of small ones")
    parser.add_argument("--repeats", type=int, default=5, help="in each of two rounds")
    parser.add_argument("--only", default="", help="what contains this, of 'case: system'")
    parser.add_argument("--crashes", type=int, default=5, help="runs of two crashes each")
    parser.add_argument("--no-peer", action="store_true", help="leave DLRover out")
    parser.add_argument("--list", action="store_true", help="show the runs and start nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    options = _arguments(arguments)
    kept = RECORDS[options.device]
    if options.page_of:
        return kept.show(options)
    wanted = chosen(options.only, options.device)
    rows = [row for row in wanted if not (options.no_peer and row.system in PEERS)]
    minutes = estimate_s(rows, options.mib, options.repeats) / 60
    print(f"{len(ordered(rows))} runs, about {minutes:.0f} min on an idle machine", flush=True)
    if options.list:
        print("\n".join(f"{row.case}: {row.system}" for row in ordered(rows)))
        return 0
    try:
        sandbox.check()
    except sandbox.SandboxError as error:
        print(f"bench.flash: {error}", file=sys.stderr)
        return 2
    return kept.make(options, lambda: _run(options, rows))


def _run(options: argparse.Namespace, rows: list[Row]) -> None:
    """Run everything; each result is in the file as soon as it is known."""
    left_out = list[str]()
    peer = None
    if any(row.system in PEERS for row in rows):
        try:
            peer = venvs.python_of("dlrover")
        except venvs.SetupError as error:
            left_out.append(f"DLRover: {error}")
    begun = time.monotonic()
    about = machine.about("flash", left_out) | {"mib": options.mib, "device": options.device}
    if options.device == "cuda":
        about["gpu"] = _gpu_name()
    with record.written(options.out, about) as add:
        for result in _results(options, rows, peer):
            add(record.to_line(result))
            print(f"{time.monotonic() - begun:.0f} s  {_said(result)}", flush=True)


def _results(options: argparse.Namespace, rows: list[Row], peer: str | None) -> Iterator[Result]:
    for row in ordered(rows):
        if row.system not in PEERS:
            yield _one(row, options, sys.executable)
        elif peer is not None:
            yield _one(row, options, peer)
    if options.crashes and options.only in results.CRASH and options.device == "cpu":
        yield from crash.run(options.crashes, options.out.with_suffix(".logs"))


def _one(row: Row, options: argparse.Namespace, python: str) -> Result:
    """Measure one system in one case once, in a sandbox."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-flash-") as folder:
        request = Request(
            case=row.case,
            system=row.system,
            mib=options.tensors if row.case == SMALL else int(options.mib * row.share),
            repeats=row.repeats(options.repeats),
            device=options.device,
            folder=folder,
            out=f"{folder}/result.json",
        )
        path = Path(folder, "request.json")
        path.write_text(json.dumps(asdict(request)))
        failed = _sandboxed(path, python)
        out = Path(request.out)
        if failed or not out.exists():
            return Result(case=row.case, system=row.system, load=load, failed=failed or "no result")
        found = json.loads(out.read_text())
    return Result(**(found | {"load": load}))


def _gpu_name() -> str:
    """Return the name of the GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def _sandboxed(path: Path, python: str) -> str:
    """Run the request; what went wrong, or an empty text."""
    command = [sys.executable, "-m", "bench.flash.stage", str(path), python]
    log = path.with_name("log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            sandbox.enter(command),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=venvs.environment() | {"TMPDIR": str(path.parent)},
            cwd=ROOT,
        )
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"ended after {LIMIT_SECONDS:.0f} s"
    finally:
        if process.stdin:  # its end ends the sandbox, and all that is in it
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
    said = log.read_text(errors="replace").strip()
    if code:
        print(said[-4000:], file=sys.stderr)
    return f"exited with {code}: {said.splitlines()[-1] if said else ''}" if code else ""


def _said(result: Result) -> str:
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

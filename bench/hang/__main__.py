"""``python -m bench.hang``: one hang under each system, all at once (31 minutes)."""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import machine, record
from bench.hang.page import page
from bench.hang.trial import START_SECONDS, SYSTEMS, Hung
from bench.recovery import sandbox
from bench.recovery.venvs import python_of

LIMIT_SECONDS = 2000.0
"""gloo's own time-out is 1,800 s."""


def _from_line(line: str) -> Hung:
    return Hung(**json.loads(line))


def _page(lines: Iterable[str]) -> str:
    return page(*record.read(lines, _from_line))


RECORD = record.Record("hang", _page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; the exit code."""
    parser = RECORD.parser(__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds to wait")
    options = parser.parse_args(arguments)
    if options.page_of:
        return RECORD.show(options)
    return RECORD.make(options, lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    sandbox.check()
    with (
        record.written(options.out, machine.about("record", {})) as add,
        tempfile.TemporaryDirectory(prefix="hang-") as folder,
        concurrent.futures.ThreadPoolExecutor(len(options.systems)) as pool,
    ):
        tasks = [
            pool.submit(_trial, system, Path(folder) / str(at), options.limit)
            for at, system in enumerate(options.systems)
        ]
        for task in concurrent.futures.as_completed(tasks):
            line = record.to_line(task.result())
            add(line)
            print(line, flush=True)


def _trial(system: str, folder: Path, limit: float) -> Hung:
    folder.mkdir()
    name = system.partition(",")[0]
    words = {"system": system, "python": python_of(name), "folder": str(folder), "limit": limit}
    request = folder / "request.json"
    request.write_text(json.dumps(words))
    command = sandbox.enter([sys.executable, "-m", "bench.hang.trial", str(request)])
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # held open: its end would end the sandbox
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=record.ROOT,
    ) as process:
        try:
            said, errors = _read(process, limit + START_SECONDS + 60)
        finally:
            process.kill()
    if not said.strip():
        raise RuntimeError(f"{system}: {errors[-2000:]}")
    return _from_line(said)


def _read(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Return what the trial said; the sandbox ends with it, and so does all that it started."""
    code = process.wait(timeout)
    said = process.stdout.read() if process.stdout else ""
    errors = process.stderr.read() if process.stderr else ""
    return said, f"ended with {code}: {errors}"


if __name__ == "__main__":
    sys.exit(main())

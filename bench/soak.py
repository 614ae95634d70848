"""`make soak-real`: real jobs under random faults until enough have struck; what they leave behind.

Each round is one `holdfast run --chaos` with the next seed, compared with one run in peace. After
each, nothing of the job may be left: no process, no shared memory, no temporary file, no listening
port. Prints a JSON line a round and a summary; ends with 1 at the first round that fails, with the
command that repeats it. Faults go by the clock, so a repeated round is alike, not the same.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
JOB = Path(__file__).with_suffix(".yaml")
ROUND_SECONDS = 1800
SETTLE_SECONDS = 5.0
"""After the runner's end, until the kernel has taken down what it killed."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written
_MAPPED = re.compile(rf"{SHARED_MEMORY}/([^\s/]+)")
_FAULTS = re.compile(r"chaos: (\d+) faults")


@dataclasses.dataclass(frozen=True, slots=True)
class Things:
    """What a job could leave behind on this machine."""

    processes: frozenset[int]
    shared_memory: frozenset[str]
    temporary: frozenset[str]
    ports: frozenset[int]


def things(home: Path) -> Things:
    """Return what is there now and could be of a job below `home`."""
    processes, ports = set(), set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOLDFAST_HOME") != str(home):
                continue
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            processes.add(process.pid)
            ports |= {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}
        except psutil.Error:
            continue
    shared = {path.name for path in SHARED_MEMORY.iterdir()}
    return Things(
        processes=frozenset(processes),
        shared_memory=frozenset(shared - _used_by_others(processes)),
        temporary=frozenset(path.name for path in temporary(home).glob("*")),
        ports=frozenset(ports),
    )


def temporary(home: Path) -> Path:
    """Return where everything of the jobs below `home` puts its temporary files."""
    return home / "tmp"


def _used_by_others(ours: Collection[int]) -> set[str]:
    """Return the shared memory that processes of other work on this machine have mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if int(maps.parent.name) in ours:
            continue
        with contextlib.suppress(OSError):  # it has ended
            found |= set(_MAPPED.findall(maps.read_text(errors="replace")))
    return found


def left_behind(before: Things, home: Path) -> list[str]:
    """Return what is there that was not; waits a little for ends that are under way."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        now = things(home)
        left = [
            f"{field.name}: {sorted(new)}"
            for field in dataclasses.fields(Things)
            if (new := getattr(now, field.name) - getattr(before, field.name))
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def run(arguments: list[str], environ: dict[str, str], log: Path) -> int:
    """Run `holdfast run JOB …`; return its exit code."""
    command = [sys.executable, "-m", "holdfast_cli.main", "run", str(JOB), *arguments]
    with log.open("wb") as output:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=ROUND_SECONDS,
            check=False,
        ).returncode


def soak(faults: int, seed: int, mtbf: float, home: Path) -> int:
    """Run rounds until `faults` have struck; return the exit code."""
    temporary(home).mkdir(mode=0o700, exist_ok=True)
    environ = {**os.environ, "HOLDFAST_HOME": str(home), "TMPDIR": str(temporary(home))}
    before, struck, rounds, peace = things(home), 0, 0, ""
    begun = time.monotonic()
    while struck < faults:
        option = f"seed={seed + rounds},mtbf={mtbf:g}{peace}"
        log = home / f"round-{rounds}.log"
        code = run(["--chaos", option], environ, log)
        text = log.read_text(errors="replace")
        found = _FAULTS.search(text)
        here = int(found[1]) if found else 0
        left = left_behind(before, home)
        struck += here
        verdict = [line for line in text.splitlines() if line.startswith("chaos: ")][-1:]
        print(
            json.dumps(
                {"option": option, "code": code, "faults": here, "left": left, "verdict": verdict}
            ),
            flush=True,
        )
        if code != 0 or left:
            print(f"soak: round {rounds} failed; its output: {log}\n{text[-4000:]}")
            print(f"soak: again with: holdfast run {JOB.relative_to(ROOT)} --chaos {option}")
            return 1
        rounds, peace = rounds + 1, ",peace=soak-peace"
    minutes = (time.monotonic() - begun) / 60
    print(
        f"soak: {struck} faults in {rounds} jobs and {minutes:.0f} min; no job lost, nothing left"
    )
    return 0


def main() -> None:
    """Parse the arguments and soak."""
    parser = argparse.ArgumentParser(description="Real jobs under random faults.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mtbf", type=float, default=4.0, help="mean seconds between faults")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "soak")
    options = parser.parse_args()
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    sys.exit(soak(options.faults, options.seed, options.mtbf, home))


if __name__ == "__main__":
    main()

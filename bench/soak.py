"""`make soak-real`: real jobs under random faults until enough have struck; what they leave behind.

Each round is one `holdfast run --chaos` with the next seed, compared with one run in peace. After
each, nothing of the job may be left: no process and no listening port at once; no shared memory and
no temporary file once the sweep ran with which every agent starts. Meanwhile runner and master may
not gather open descriptors: a process's count goes up and down with its connections, so the quiet
moments of its beginning are held against those of its end. Prints a JSON line a round and a
summary; ends with 1 at the first round that fails, with the command that repeats it. Faults go by
the clock, so a repeated round is alike, not the same.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench import ROOT
from bench.harness import machine
from bench.harness.launch import SHARED_MEMORY
from bench.harness.page import fill
from bench.harness.record import DOCS

JOB = Path(__file__).with_suffix(".yaml")
ROUND_SECONDS = 1800
COUNT_SECONDS = 1.0
"""Between two counts of open descriptors."""
SETTLE_SECONDS = 5.0
"""After the runner's end, until the kernel has taken down what it killed."""
_MAPPED = re.compile(rf"{SHARED_MEMORY}/([^\s/]+)")
_FAULTS = re.compile(r"chaos: (\d+) faults \(seed \d+\): (.*)")
_SWEEP = "from holdfast_agent import temporary_directories; temporary_directories.sweep()"
_KIND = re.compile(r"([a-z-]+) (\d+)")
PAGE = DOCS / "soak.md"
LEAST = 30
"""Counts of a process that lived too short for a verdict are left alone."""
SLACK = 16
"""More than this between quiet moments is growth: four agents that are away or back, with two
sockets each in the runner's proxies, and as many again."""
_MASTER = "holdfast_master.main"


Things = dict[str, set[Any]]
"""The things that a job could leave behind on this machine, by kind."""
ENDED_AT_ONCE = ("processes", "ports")
"""Leftovers that no sweep takes away: they are looked for before."""


def things(home: Path) -> Things:
    """Return the things that are there now and could belong to a job below `home`."""
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
    return {
        "processes": processes,
        "shared_memory": shared - _used_by_others(processes),
        "temporary": set(map(str, _temporary_files(home))),
        "ports": ports,
    }


def _temporary_files(home: Path) -> Iterator[Path]:
    """Yield the temporary files but for the output of killed agents, which is kept on purpose."""
    for path in temporary(home).glob("holdfast*"):
        if not (path / "logs").is_dir():
            yield path


def temporary(home: Path) -> Path:
    """Return the folder that all processes of the jobs below `home` put temporary files in."""
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


def left_behind(
    before: Things, home: Path, kinds: Collection[str] | None = None
) -> dict[str, list[Any]]:
    """Return the things that were not there before; wait a little for ends that are under way."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        now = things(home)
        left = {kind: sorted(now[kind] - before[kind]) for kind in kinds or now}
        left = {kind: new for kind, new in left.items() if new}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The open descriptors of one process in the first and the last third of its counts."""

    what: str
    pid: int
    counts: int
    first: int
    """Open descriptors in the quiet moments of its first third."""
    last: int
    """And of its last third."""

    @property
    def grew(self) -> bool:
        """Return True when the process gathers descriptors."""
        return self.counts >= LEAST and self.last - self.first > SLACK

    def text(self) -> str:
        """Return one line for people."""
        return f"{self.what} {self.pid}: {self.first} to {self.last} in {self.counts} counts"


class Descriptors:
    """Counts of one runner and of each master that it has had."""

    def __init__(self, runner: int) -> None:
        """Begin without counts; `runner` is the pid of `holdfast run`."""
        self._runner = runner
        self._counts: dict[tuple[str, int], list[int]] = collections.defaultdict(list)

    def count(self) -> None:
        """Count once; a process that is just ending is passed over."""
        try:
            runner = psutil.Process(self._runner)
            self._add("runner", runner)
            for child in runner.children():
                if _MASTER in child.cmdline():
                    self._add("master", child)
        except psutil.Error:
            return

    def _add(self, what: str, process: psutil.Process) -> None:
        self._counts[what, process.pid].append(process.num_fds())

    def kept(self) -> list[Kept]:
        """Judge each process, the one with the most counts first."""
        found = [kept(what, pid, counts) for (what, pid), counts in self._counts.items()]
        return sorted(found, key=lambda one: (-one.counts, one.pid))


def kept(what: str, pid: int, counts: Sequence[int]) -> Kept:
    """Judge a process's counts, in the order of time."""
    third = max(1, len(counts) // 3)
    return Kept(what, pid, len(counts), _quiet(counts[:third]), _quiet(counts[-third:]))


def _quiet(counts: Sequence[int]) -> int:
    """Return a low count, but not the lowest: a process has that only while it starts."""
    return sorted(counts)[len(counts) // 4]


def run(arguments: list[str], environ: dict[str, str], log: Path) -> tuple[int, list[Kept]]:
    """Run `holdfast run JOB …`; return its exit code and its descriptors, judged."""
    command = [sys.executable, "-m", "holdfast_cli.main", "run", str(JOB), *arguments]
    until = time.monotonic() + ROUND_SECONDS
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as runner,
    ):
        descriptors = Descriptors(runner.pid)
        while runner.poll() is None:
            descriptors.count()
            if time.monotonic() > until:
                runner.kill()
                raise TimeoutError(f"{' '.join(command)} runs for over {ROUND_SECONDS} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(COUNT_SECONDS)
        return runner.returncode, descriptors.kept()


def play(number: int, option: str, environ: dict[str, str], home: Path) -> dict[str, Any]:
    """Run one job under faults; return the record of the round."""
    before, log = things(home), home / f"round-{number}.log"
    code, kept = run(["--chaos", option], environ, log)
    left = left_behind(before, home, ENDED_AT_ONCE)
    unswept = left_behind(before, home)
    # What agents that were killed left goes at the next agent's start; this stands for it.
    subprocess.run([sys.executable, "-c", _SWEEP], env=environ, check=True, timeout=60)
    text = log.read_text(errors="replace")
    kinds = {}
    if found := _FAULTS.search(text):
        kinds = {kind: int(count) for kind, count in _KIND.findall(found[2])}
    verdict = [line for line in text.splitlines() if line.startswith("chaos: ")][-1:]
    return {
        "option": option,
        "code": code,
        "faults": sum(kinds.values()),
        "kinds": kinds,
        "unswept": unswept,
        "left": {**left, **left_behind(before, home)},
        "descriptors": [dataclasses.asdict(one) for one in kept],
        "grew": [one.text() for one in kept if one.grew],
        "verdict": " ".join(verdict).removeprefix("chaos: "),
    }


def soak(faults: int, seed: int, mtbf: float, home: Path, publish: Path | None) -> int:
    """Run rounds until `faults` have struck; return the exit code."""
    temporary(home).mkdir(mode=0o700, exist_ok=True)
    environ = {**os.environ, "HOLDFAST_HOME": str(home), "TMPDIR": str(temporary(home))}
    rounds: list[dict[str, Any]] = []
    begun, peace, about = time.monotonic(), "", machine.about("soak", [])
    while sum(each["faults"] for each in rounds) < faults:
        option = f"seed={seed + len(rounds)},mtbf={mtbf:g}{peace}"
        rounds.append(play(len(rounds), option, environ, home))
        print(json.dumps(rounds[-1]), flush=True)
        if rounds[-1]["code"] != 0 or rounds[-1]["left"] or rounds[-1]["grew"]:
            print(f"soak: a round failed; its output: {home / f'round-{len(rounds) - 1}.log'}")
            print(f"soak: again with: holdfast run {JOB.relative_to(ROOT)} --chaos {option}")
            return 1
        peace = ",peace=soak-peace"
    text = page(rounds, (time.monotonic() - begun) / 60, about)
    print(text)
    if publish is not None:
        publish.write_text(text)
    return 0


def page(rounds: Sequence[Mapping[str, Any]], minutes: float, about: Mapping[str, Any]) -> str:
    """Return the page of a whole run."""
    kinds = collections.Counter[str]()
    for each in rounds:
        kinds.update(each["kinds"])
    lines = [f"| {kind} | {count} |" for kind, count in sorted(kinds.items())]
    jobs = [f"| {n} | {r['faults']} | {r['verdict']} |" for n, r in enumerate(rounds, 1)]
    return fill(
        "soak",
        faults=str(kinds.total()),
        jobs=str(len(rounds)),
        minutes=f"{minutes:.0f}",
        kinds="\n".join(lines),
        rounds="\n".join(jobs),
        unswept="\n".join(f"- job {n}: {_unswept(r)}" for n, r in enumerate(rounds, 1)),
        descriptors="\n".join(f"- job {n}: {_kept(r)}" for n, r in enumerate(rounds, 1)),
        first=rounds[0]["option"],
        about=machine.sentence(about),
    )


def _unswept(each: Mapping[str, Any]) -> str:
    parts = [f"{len(found)} of {kind.replace('_', ' ')}" for kind, found in each["unswept"].items()]
    return ", ".join(parts) or "nothing"


def _kept(each: Mapping[str, Any]) -> str:
    longest = {kept["what"]: Kept(**kept) for kept in reversed(each["descriptors"])}
    return "; ".join(longest[what].text() for what in ("runner", "master") if what in longest)


def main() -> None:
    """Parse the arguments and soak."""
    parser = argparse.ArgumentParser(description="Real jobs under random faults.")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mtbf", type=float, default=4.0, help="mean seconds between faults")
    parser.add_argument("--home", type=Path, default=ROOT / "build" / "soak")
    parser.add_argument("--publish", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    publish = PAGE if options.publish else None
    sys.exit(soak(options.faults, options.seed, options.mtbf, home, publish))


if __name__ == "__main__":
    main()

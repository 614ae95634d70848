"""Runs the trials of a plan, each in a sandbox of its own, and keeps what they measured."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.recovery import sandbox, venvs
from bench.recovery.results import NOT_STARTED, RECOVERED, UNNOTICED, Case, Result, from_line
from bench.recovery.scenarios import START_LIMIT_SECONDS
from bench.recovery.trial import Request, to_json

_ROOT = Path(__file__).resolve().parents[2]
_SPARE_SECONDS = 60.0
"""On top of the limits inside a trial, before it is ended from outside."""


@dataclass(frozen=True, slots=True)
class Conductor:
    """Runs trials one after another."""

    kept: Path
    """Where the logs of trials that did not recover go."""
    pythons: dict[str, str]
    """The interpreter of each system's environment."""
    seed: int

    def run(self, case: Case) -> list[Result]:
        """Run one trial; always at least one result, and no process left."""
        with _scratch() as directory:
            results = directory / "results.jsonl"
            request = Request(
                case=case,
                python=self.pythons[case.system],
                directory=str(directory),
                results=str(results),
                seed=self.seed * 1000 + case.repetition,
            )
            (directory / "request.json").write_text(to_json(request))
            failure = self._sandboxed(
                directory, 2 * (START_LIMIT_SECONDS + case.limit_s) + _SPARE_SECONDS
            )
            lines = results.read_text().splitlines() if results.exists() else []
            found = [from_line(line) for line in lines]
            if failure:
                found.append(_failed(case, failure))
            if any(result.outcome not in (RECOVERED, UNNOTICED) for result in found):
                self._keep(case, directory)
            return found

    def _sandboxed(self, directory: Path, limit_s: float) -> str:
        """Run the trial; what went wrong with it as a whole, or an empty text."""
        command = [sys.executable, "-m", "bench.recovery.trial", str(directory / "request.json")]
        with (directory / "trial.log").open("wb") as log:
            trial = subprocess.Popen(
                sandbox.enter(command),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**venvs.environment(), "TMPDIR": str(directory)},
                cwd=_ROOT,
            )
        try:
            code = trial.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"the trial was ended after {limit_s:.0f} s"
        finally:
            # The namespace's first process leaves at this end of file, and all others with it.
            if trial.stdin:
                trial.stdin.close()
            trial.wait(30)
        said = (directory / "trial.log").read_text(errors="replace").strip().splitlines()
        return f"the trial failed: {said[-1] if said else code}" if code else ""

    def _keep(self, case: Case, directory: Path) -> None:
        name = f"{case.scenario}-{case.system}-{case.variant}-{case.restore}"
        target = self.kept / f"{name}-{case.target}-{case.repetition}"
        shutil.rmtree(target, ignore_errors=True)
        ignored = shutil.ignore_patterns("saves")
        shutil.copytree(directory, target, ignore=ignored, ignore_dangling_symlinks=True)


def prepare(systems: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Set up and warm what the systems need: (interpreter by system, why others are left out)."""
    pythons: dict[str, str] = {}
    missing: dict[str, str] = {}
    for system in systems:
        try:
            pythons[system] = venvs.python_of(system)
            venvs.warm_up(pythons[system])
        except (venvs.SetupError, subprocess.TimeoutExpired, OSError) as error:
            missing[system] = str(error)
    return pythons, missing


def _failed(case: Case, reason: str) -> Result:
    return Result(
        case=case, measured=case.scenario, target=case.target, outcome=NOT_STARTED, reason=reason
    )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Make an empty directory, in memory where there is a /dev/shm, and remove it afterwards."""
    memory = Path("/dev/shm")  # noqa: S108 - on purpose, with a fresh 0700 directory in it
    parent = memory if os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix=f"holdfast-bench-{os.getpid()}-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)

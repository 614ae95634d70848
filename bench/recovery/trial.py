"""One trial: start one system's job, do one scenario, append what was measured.

`Conductor` starts a trial in a sandbox of its own and keeps what it measured; as a module, ``python
-m bench.recovery.trial REQUEST``, this is the trial. REQUEST is a JSON file. It ends without
stopping anything: the sandbox does that.
"""

import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.harness import launch, sandbox
from bench.harness.record import to_line
from bench.recovery import results
from bench.recovery.results import NOT_STARTED, RECOVERED, UNNOTICED, Case, Result
from bench.recovery.scenarios import SCENARIOS, START_LIMIT_SECONDS, Trial
from bench.recovery.steplog import Follower
from bench.recovery.systems import Dlrover, Holdfast, Setting, System, Torchrun

SYSTEMS: dict[str, type[System]] = {
    "holdfast": Holdfast,
    "torchrun": Torchrun,
    "dlrover": Dlrover,
}
_HERE = Path(__file__).parent
SCRIPTS = {"flash": _HERE.parent / "flash" / "crash_script.py"}
"""Scripts of restores that not every system has; all others are `script`'s own."""
COLLECTIVE_TIMEOUT_SECONDS = 5.0
"""For tuned peers: as long as Holdfast's own detection of silence."""
_SPARE_SECONDS = 60.0
"""On top of the limits inside a trial, before it is ended from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The conductor's order for one trial."""

    case: Case
    python: str
    """The interpreter of the system's environment."""
    directory: str
    """An empty directory of this trial, on shared memory where there is any."""
    results: str
    """The file that each result is appended to as soon as it is known."""
    seed: int


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
            file = directory / "results.jsonl"
            request = Request(
                case=case,
                python=self.pythons[case.system],
                directory=str(directory),
                results=str(file),
                seed=self.seed * 1000 + case.repetition,
            )
            path = directory / "request.json"
            path.write_text(json.dumps(asdict(request)))
            failure = sandbox.run(
                [sys.executable, "-m", "bench.recovery.trial", str(path)],
                directory / "trial.log",
                2 * (START_LIMIT_SECONDS + case.limit_s) + _SPARE_SECONDS,
                {"TMPDIR": str(directory)},
            )
            lines = file.read_text().splitlines() if file.exists() else []
            found = [results.result(**json.loads(line)) for line in lines]
            if failure:
                found.append(
                    Result(
                        case=case,
                        measured=case.scenario,
                        target=case.target,
                        outcome=NOT_STARTED,
                        reason=f"the trial {failure}",
                    )
                )
            if any(result.outcome not in (RECOVERED, UNNOTICED) for result in found):
                self._keep(case, directory)
            return found

    def _keep(self, case: Case, directory: Path) -> None:
        name = f"{case.scenario}-{case.system}-{case.variant}-{case.restore}"
        target = self.kept / f"{name}-{case.target}-{case.repetition}"
        shutil.rmtree(target, ignore_errors=True)
        ignored = shutil.ignore_patterns("saves")
        shutil.copytree(directory, target, ignore=ignored, ignore_dangling_symlinks=True)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Make an empty directory, in memory where there is a /dev/shm, and remove it afterwards."""
    prefix, memory = f"holdfast-bench-{os.getpid()}-", launch.in_memory()
    with tempfile.TemporaryDirectory(prefix=prefix, dir=memory, ignore_cleanup_errors=True) as name:
        yield Path(name)


def build(request: Request) -> System:
    """Return the system of ``request``, not started."""
    case = request.case
    tuned_peer = case.variant == "tuned"
    setting = Setting(
        python=request.python,
        script=SCRIPTS.get(case.restore, _HERE / "script.py"),
        directory=Path(request.directory),
        variant=case.variant,
        restore=case.restore,
        collective_timeout_s=COLLECTIVE_TIMEOUT_SECONDS if tuned_peer else None,
    )
    return SYSTEMS[case.system](setting)


def run(request: Request) -> None:
    """Run the trial; every result is in the file before the next fault is done."""
    system = build(request)
    system.start()
    follower = Follower(system.setting.log_directory)
    trial = Trial(request.case, system, follower, random.Random(request.seed))
    for result in SCENARIOS[request.case.scenario](trial):
        with Path(request.results).open("a") as file:
            file.write(to_line(result) + "\n")


if __name__ == "__main__":
    order = json.loads(Path(sys.argv[1]).read_text())
    run(Request(**{**order, "case": Case(**order["case"])}))

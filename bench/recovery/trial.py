"""One trial: start one system's job, do one scenario, append what was measured.

`Conductor` starts a trial in a sandbox of its own and keeps what it measured; as a module, ``python
-m bench.recovery.trial REQUEST``, this is the trial. REQUEST is a JSON file, and what is measured
is appended to another one beside it. It ends without stopping anything: the sandbox does that.
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
from typing import Any

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
_RESULTS = "results.jsonl"
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
            request: dict[str, Any] = {"case": asdict(case), "python": self.pythons[case.system]}
            request["seed"] = self.seed * 1000 + case.repetition
            limit_s = 2 * (START_LIMIT_SECONDS + case.limit_s) + _SPARE_SECONDS
            variables = {"TMPDIR": str(directory)}
            failure = sandbox.trial(__name__, request, directory, limit_s, variables)
            file = directory / _RESULTS
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


def run(directory: Path, case: Case, python: str, seed: int) -> None:
    """Run the trial; every result is in the file before the next fault is done."""
    tuned_peer = case.variant == "tuned"
    setting = Setting(
        python=python,
        script=SCRIPTS.get(case.restore, _HERE / "script.py"),
        directory=directory,
        variant=case.variant,
        restore=case.restore,
        collective_timeout_s=COLLECTIVE_TIMEOUT_SECONDS if tuned_peer else None,
    )
    system = SYSTEMS[case.system](setting)
    system.start()
    trial = Trial(case, system, Follower(setting.log_directory), random.Random(seed))
    for result in SCENARIOS[case.scenario](trial):
        with (directory / _RESULTS).open("a") as file:
            file.write(to_line(result) + "\n")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    order = json.loads(path.read_text())
    run(path.parent, Case(**order.pop("case")), **order)

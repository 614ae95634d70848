"""One trial: start one system's job, do one scenario, append what was measured.

Runs as ``python -m bench.recovery.trial REQUEST`` inside a sandbox; REQUEST is a JSON file. It ends
without stopping anything: the sandbox does that.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import record
from bench.recovery.results import Case
from bench.recovery.scenarios import SCENARIOS, Trial
from bench.recovery.steplog import Follower
from bench.recovery.systems.contract import Setting, System
from bench.recovery.systems.dlrover import Dlrover
from bench.recovery.systems.holdfast import Holdfast
from bench.recovery.systems.torchrun import Torchrun

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


def to_json(request: Request) -> str:
    """Write ``request``."""
    return json.dumps(asdict(request))


def from_json(text: str) -> Request:
    """Read a request that `to_json` wrote."""
    raw = json.loads(text)
    return Request(**{**raw, "case": Case(**raw["case"])})


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
            file.write(record.to_line(result) + "\n")


if __name__ == "__main__":
    run(from_json(Path(sys.argv[1]).read_text()))

"""One hang under one system, in a sandbox: `python -m bench.hang.trial REQUEST`.

REQUEST is a JSON file. Prints one JSON line: when the hang was noticed, and by what. A system
notices a hang when it says so (Holdfast), or when anything happens to a rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import ROOT
from bench.recovery.systems import Dlrover, Holdfast, Setting, System, Torchrun

SCRIPT = Path(__file__).with_name("script.py")
START_SECONDS = 300.0
"""For a system to bring its ranks to the hang."""
_POLL_SECONDS = 0.25


class SoonHoldfast(Holdfast):
    """Holdfast with the shortest limit that it accepts."""

    def _job(self) -> dict[str, Any]:
        job = super()._job()
        job["spec"]["health"] = {"hang": {"minSeconds": 5}}
        return job


SYSTEMS: dict[str, type[System]] = {
    "holdfast": Holdfast,
    "holdfast, minSeconds 5": SoonHoldfast,
    "torchrun": Torchrun,
    "dlrover": Dlrover,
}


@dataclass(frozen=True, slots=True)
class Hung:
    """One hang under one system."""

    system: str
    seconds: float | None
    """From the hang until it was noticed; None: not within the limit."""
    limit: float
    """For how long it was watched, s."""
    by: str
    """The part that noticed it, in its own words."""
    named: bool
    """Whether those words name the rank that hangs."""


def run(system: str, python: str, folder: str, limit: float) -> Hung:
    """Start the system, wait for the hang, and for what follows."""
    setting = Setting(
        python=python,
        script=SCRIPT,
        directory=Path(folder),
        variant="default",
        restore="torch",
        collective_timeout_s=None,
    )
    job = SYSTEMS[system](setting)
    job.start()
    began = _wait(lambda: _noted(setting, "hangs"), START_SECONDS)
    if began is None:
        raise RuntimeError(f"{system}: no rank came to hang ({job.ended() or 'it runs'})")
    ours = isinstance(job, Holdfast)
    found = _wait(
        lambda: (_event(Path(folder)) if ours else None) or _noted(setting, "noticed"), limit
    )
    if found is None:
        return Hung(system, None, limit, "", named=False)
    text = str(found["text"]).replace(f"{ROOT}/", "")
    return Hung(system, found["unix"] - began["unix"], limit, text, named="rank 1" in text)


def _wait(look: Any, limit: float) -> dict[str, Any] | None:
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found: dict[str, Any] | None = look()
        if found is not None:
            return found
        time.sleep(_POLL_SECONDS)
    return None


def _noted(setting: Setting, what: str) -> dict[str, Any] | None:
    """Return the first note of that kind of any rank."""
    lines = [
        json.loads(line)
        for file in setting.log_directory.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    mine = [line for line in lines if line["what"] == what]
    return min(mine, key=lambda line: float(line["unix"]), default=None)


def _event(folder: Path) -> dict[str, Any] | None:
    """Return Holdfast's event about the hang."""
    from holdfast_cli.client import JobClient  # the peers' environments lack it
    from holdfast_cli.job_directory import job_home
    from holdfast_wire.messages import ListEventsRequest

    home = job_home({**os.environ, "HOLDFAST_HOME": str(folder / "home")}, "bench")
    with JobClient(home) as client:
        events = client.call(ListEventsRequest(limit=1000)).events
    found = next((one for one in events if one.reason == "HangFound"), None)
    return None if found is None else {"unix": found.unix_time, "text": found.text}


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps(asdict(run(**request))), flush=True)

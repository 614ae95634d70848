"""One job of one way that is killed: loss by loss, or again and again for a time.

`measure` starts a trial in a sandbox; as a module, `python -m bench.replicas.kills REQUEST`, this
is that trial. Belongs here: when a rank is killed. Does not belong here: how a way is started
(`systems`), and what its log means (`figures`).
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import ROOT
from bench.harness import launch, sandbox
from bench.recovery import processes
from bench.recovery.steplog import Event, Follower
from bench.replicas import figures
from bench.replicas import results as r
from bench.replicas.systems import RANKS, WAYS, Start

KEPT: Final = ROOT / "build/bench/replicas-logs"
"""Where the logs of the newest trial go that failed."""
_START_SECONDS: Final = 180.0
"""Until all ranks train: a busy machine imports torch for a minute."""
_LIMIT_SECONDS: Final = 120.0
"""For a recovery, and for the return of what was killed."""
_SPARE_SECONDS: Final = 60.0
"""On top, before a trial is ended from outside."""
_Look = Callable[[list[Event]], dict[str, float] | None]
_SETTLED: Final = 12
"""Whole steps before a kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a trial does."""

    way: str
    shape: str
    python: str
    seed: int
    kills: int = 1
    freezes: bool = False
    """Ranks are stopped, and go on once the others do."""
    seconds: float = 0.0
    """Of a window of kills; 0: each kill is measured alone."""
    each: float = 10.0
    """Seconds from one kill of the window to the next."""
    pace_ms: float = 4.0
    model_mb: float = 0.0


def measure(request: Request) -> list[dict[str, float]]:
    """Return the figures of each kill, or of the window.

    Raises:
        RuntimeError: the job did not train; the text has the last words.
    """
    with tempfile.TemporaryDirectory(dir=launch.in_memory()) as name:
        folder = Path(name)
        limit = _START_SECONDS + request.kills * 2 * _LIMIT_SECONDS + request.seconds
        words = asdict(request)
        if failure := sandbox.trial(
            __name__, words, folder, limit + _SPARE_SECONDS, {"TMPDIR": name}
        ):
            raise RuntimeError(f"{request.way}, {request.shape}: it {failure}: {_words(folder)}")
        lines = (folder / "trial.log").read_text().splitlines()
        found: list[dict[str, float]] = json.loads(lines[-1])
    return found


def _words(folder: Path) -> str:
    """Return the last words of the newest logs; all of them are kept in `KEPT`."""
    logs = sorted(folder.glob("*.log"), key=lambda one: one.stat().st_mtime)
    KEPT.mkdir(parents=True, exist_ok=True)
    for one in logs:
        shutil.copy(one, KEPT / one.name)
    return " | ".join(f"{one.name}: {one.read_text(errors='replace')[-600:]}" for one in logs[-2:])


class KillTrial:
    """A job that runs, and its log."""

    def __init__(self, folder: Path, request: Request) -> None:
        """Start the job."""
        way = WAYS[request.way]
        self.request, (self.replicas, self.shards) = request, r.SHAPES[request.shape]
        self.setting = Start(
            python=request.python,
            script=Path(__file__).with_name("script.py"),
            directory=folder,
            variant=way.variant,
            restore=way.restore,
            collective_timeout_s=way.collective_timeout_s,
            shards=self.shards,
            pace_ms=request.pace_ms,
            model_mb=request.model_mb,
            micro_batches=r.MICRO_BATCHES[request.shape],
            loop=way.loop,
        )
        self.system = way.system(self.setting)
        self.system.start()
        self.follower, self.draw = Follower(self.setting.log_directory), random.Random(request.seed)

    def settle(self, since: float, limit: float) -> None:
        """Wait until all ranks train, and have made some steps after a moment.

        Raises:
            RuntimeError: they do not.
        """

        def there(events: list[Event]) -> bool | None:
            return figures.settled(figures.whole_steps(events), RANKS, since, _SETTLED) or None

        if not self.follower.wait(there, time.monotonic() + limit):
            steps = figures.whole_steps(self.follower.events())[-3:]
            raise RuntimeError(f"no {RANKS} ranks train: {self.system.ended()}, {steps}")

    def kill(self) -> float:
        """Kill a rank of those that train; return when."""
        return processes.send(self._drawn(), signal.SIGKILL)

    def _drawn(self) -> list[int]:
        newest: dict[int, float] = {one.pid: one.t for one in self.follower.events()}
        alive = sorted(pid for pid in newest if processes.alive(pid))
        return [self.draw.choice(alive)] if alive else []

    def freezes(self) -> list[dict[str, float]]:
        """Stop a rank again and again, each time once all train."""
        found, since = [], 0.0
        for number in range(self.request.kills):
            self.settle(since, _LIMIT_SECONDS if number else _START_SECONDS)
            time.sleep(self.draw.uniform(0, 0.1))
            stopped = self._drawn()
            moment = processes.send(stopped, signal.SIGSTOP)
            found.append(self._gone_on(moment))
            processes.send(stopped, signal.SIGCONT)
            since = time.monotonic()
        return found

    def _gone_on(self, moment: float) -> dict[str, float]:
        def on(events: list[Event]) -> dict[str, float] | None:
            reached = figures.next_whole(figures.whole_steps(events), moment)
            return None if reached is None else {r.STOPPED: reached.t - moment}

        return self._seen(on, moment)

    def _seen(self, look: _Look, moment: float) -> dict[str, float]:
        """Return what the events show after a loss at a moment; raises RuntimeError."""
        found = self.follower.wait(look, moment + _LIMIT_SECONDS)
        if found is None:
            steps = figures.whole_steps(self.follower.events())[-3:]
            raise RuntimeError(f"no whole world after a loss at {moment}: {steps}")
        return found

    def losses(self) -> list[dict[str, float]]:
        """Kill again and again, each time once all train."""
        found, since = [], 0.0
        for number in range(self.request.kills):
            self.settle(since, _LIMIT_SECONDS if number else _START_SECONDS)
            time.sleep(self.draw.uniform(0, 0.1))
            moment = self.kill()
            found.append(self._followed(moment))
            since = time.monotonic()
        return found

    def _followed(self, moment: float) -> dict[str, float]:
        def lost(events: list[Event]) -> dict[str, float] | None:
            come = figures.join(events, moment, RANKS)
            victims = self.shards if self.setting.loop == "replicas" else 1
            cost = figures.loss(events, moment, victims, RANKS, self.replicas)
            return None if come is None or cost is None else cost | come

        return self._seen(lost, moment)

    def window(self) -> list[dict[str, float]]:
        """Kill a rank each so many seconds."""
        request, kills = self.request, 0
        self.settle(0.0, _START_SECONDS)
        begin = time.monotonic()
        for number in itertools.count(1):
            due = begin + min(number * request.each, request.seconds)
            time.sleep(max(0.0, due - time.monotonic()))
            if due >= begin + request.seconds:
                break
            self.kill()
            kills += 1
        is_torchft = self.setting.loop == "torchft"
        events = self.follower.events()
        found = figures.goodput(events, begin, time.monotonic(), RANKS, shares=is_torchft)
        begun = len({one.pid for one in events if one.event == "step"}) - RANKS
        return [{**found, "kills": float(kills), "processes begun again": float(begun)}]


def _trial(folder: Path, words: Mapping[str, Any]) -> list[dict[str, float]]:
    request = Request(**words)
    trial = KillTrial(folder, request)
    if request.freezes:
        return trial.freezes()
    return trial.window() if request.seconds else trial.losses()


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print(json.dumps(_trial(path.parent, json.loads(path.read_text()))), flush=True)

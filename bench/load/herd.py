"""The generator processes seen from the conductor: starts them, tells them what to do, adds up."""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bench import ROOT
from bench.harness import venvs
from holdfast_wire import channel
from holdfast_wire.authority import JobAuthority

AGENTS_EACH = 10_000
"""Agents of one generator process."""
NICER = 10
"""Steps of niceness below the master's: real agents are on machines of their own, and so where they
share two cores the master goes first."""
BUILD_SECONDS = 900.0
_BUILD = ROOT / "scripts" / "load_generator.sh"


class LoadError(RuntimeError):
    """A measurement that could not be made; the text names the thing that did not come."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that every generator is told once."""

    target: str
    job_uid: str
    key: str
    """Hex of the key that the job's CA is derived from."""
    ranks: int

    def line(self) -> dict[str, Any]:
        """Return the line for a generator: the settings, the job's CA and the channel's options."""
        authority = JobAuthority(bytes.fromhex(self.key), self.job_uid, dt.datetime.now(dt.UTC))
        return {
            "target": self.target,
            "job_uid": self.job_uid,
            "key": self.key,
            "ca": authority.ca_pem.decode(),
            "ranks": self.ranks,
            "options": dict(channel.agent_channel_options(self.job_uid)),
        }


def built() -> str:
    """Return the generator's path; build the generator first where that was not done yet.

    Raises:
        LoadError: it cannot be built; says why.
    """
    try:
        made = subprocess.run(
            [str(_BUILD)], capture_output=True, text=True, check=True, timeout=BUILD_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise LoadError(f"{_BUILD} failed with {error.returncode}: {error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"{_BUILD} took more than {BUILD_SECONDS:.0f} s") from error
    return made.stdout.strip()


class Herd:
    """All agents and watchers; each process has the agents of consecutive ranks."""

    def __init__(self, setup: Setup, agents: int, log: Path) -> None:
        """Start as many processes as ``agents`` need, and one for watchers."""
        count = -(-agents // AGENTS_EACH)
        each = -(-agents // count)
        self._ranges = [(at, min(at + each, agents)) for at in range(0, agents, each)]
        self._program = built()
        self._log = log.open("ab")
        self._processes = [self._start(setup) for _ in range(len(self._ranges) + 1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=30)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        self._log.close()

    def connect(self, *, held: int | None = None, slow: int | None = None) -> None:
        """Connect every agent; return once all were welcomed."""
        for number, (first, last) in enumerate(self._ranges):
            self._say(number, do="connect", first=first, last=last, held=held, slow=slow)
        for number in range(len(self._ranges)):
            self._hear(number)

    def tell(self, rank: int, do: str, **arguments: Any) -> dict[str, Any]:
        """Have one agent do something; return its answer."""
        number = next(at for at, (_, last) in enumerate(self._ranges) if rank < last)
        self._say(number, do=do, rank=rank, **arguments)
        answer: dict[str, Any] = self._hear(number)
        return answer

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have the first process do something that is no agent's; return its answer."""
        self._say(0, do=do, **arguments)
        return self._hear(0)

    def watch(self, count: int, interval: float, *, slow: bool = False) -> None:
        """Start watchers."""
        self._say(len(self._ranges), do="watch", count=count, interval=interval, deaf=slow)
        self._hear(len(self._ranges))

    def forget(self) -> None:
        """Begin all counts at 0 again."""
        self._all("forget")

    def state(self) -> dict[str, Any]:
        """Return the counts of all processes together."""
        return merged(self._all("state"))

    def wait(
        self, what: str, look: Callable[[dict[str, Any]], bool], seconds: float
    ) -> dict[str, Any]:
        """Return the counts once ``look`` is true of them.

        Raises:
            LoadError: it was not within ``seconds``; says ``what`` and the counts.
        """
        end = time.monotonic() + seconds
        while not look(state := self.state()):
            if time.monotonic() > end:
                raise LoadError(f"{what}: not within {seconds:.0f} s; {state}")
            time.sleep(0.05)
        return state

    def pids(self) -> Iterator[int]:
        """Yield the process ids."""
        for process in self._processes:
            yield process.pid

    def _start(self, setup: Setup) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["nice", "-n", str(NICER), self._program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=venvs.environment(),
        )
        _pipe(process.stdin).write(json.dumps(setup.line()).encode() + b"\n")
        return process

    def _all(self, do: str) -> list[dict[str, Any]]:
        for number in range(len(self._processes)):
            self._say(number, do=do)
        return [self._hear(number) for number in range(len(self._processes))]

    def _say(self, number: int, **line: Any) -> None:
        pipe = _pipe(self._processes[number].stdin)
        pipe.write(json.dumps(line).encode() + b"\n")
        pipe.flush()

    def _hear(self, number: int) -> Any:
        line = _pipe(self._processes[number].stdout).readline()
        if not line:
            raise LoadError(f"a generator ended; its log is {self._log.name}")
        return json.loads(line)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise LoadError("a generator has no pipe")
    return pipe


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts of several processes as one's: sums, and the latest of times."""
    total: dict[str, Any] = {}
    for name in states[0]:
        values = [state[name] for state in states]
        if name.endswith(("_at", "_max")):
            total[name] = max(values)
        elif name == "rounds":
            total[name] = _merged_rounds(values)
        elif isinstance(values[0], dict):
            total[name] = dict(sum((collections.Counter(v) for v in values), collections.Counter()))
        else:
            total[name] = sum(values)
    return total


def _merged_rounds(values: list[dict[str, list[float]]]) -> dict[int, tuple[int, float]]:
    rounds: dict[int, tuple[int, float]] = {}
    for one in values:
        for text, (count, at) in one.items():
            known = rounds.get(int(text), (0, 0.0))
            rounds[int(text)] = (known[0] + int(count), max(known[1], at))
    return rounds

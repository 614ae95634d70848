"""Drives a real agent process with a real zygote from a test: spawn, wait for events, look around.

Every process of one agent carries a mark in its environment, so that a test can see what is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.page import Page
from holdfast_agent.zygote import protocol
from holdfast_agent.zygote.protocol import (
    Command,
    Event,
    KillRound,
    Ready,
    RoundDead,
    Spawn,
    SpawnRank,
    WorkerExitedEvent,
    WorkerStarted,
)
from holdfast_wire.datagrams import encode
from house.patience import patience

AGENT = Path(__file__).with_name("zygote_agent.py")
MARK = "HOLDFAST_TEST_MARK"
PATIENCE_SECONDS = 100.0 * patience()
"""For one event; a busy machine needs half a minute to import torch in a helper."""
_SENTINEL = 10**9

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Output:
    """The exit and the output of a worker."""

    exited: WorkerExitedEvent
    out: str
    err: str

    @property
    def status(self) -> int:
        """Exit status; -N after signal N."""
        return self.exited.exit_code


class Driver:
    """A test's hold on an agent process."""

    def __init__(
        self, folder: Path, process: subprocess.Popen[bytes], page: Page, mark: str, events: int
    ) -> None:
        self.folder, self.process, self.page, self.mark = folder, process, page, mark
        self.unread: list[Event] = []
        """Events that have arrived and that no test has waited for."""
        self.round = 0
        """Number of the last round spawned."""
        self._events = events
        self._buffer = b""

    # --- what the agent does ----------------------------------------------------------------

    def send(self, command: Command | str) -> None:
        """Give the agent a command for its zygote, or a word of its own."""
        line = command.encode() if isinstance(command, str) else encode(command)
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def script(self, code: str, name: str = "script.py") -> str:
        """Write a script and return its path."""
        path = self.folder / name
        path.write_text(textwrap.dedent(code))
        return str(path)

    def rank(self, local_rank: int = 0, **fields: Any) -> SpawnRank:
        """Describe a rank whose streams go to files in the test's folder."""
        streams = {name: str(self.folder / f"{name}{local_rank}") for name in ("stdout", "stderr")}
        return SpawnRank(**({"local_rank": local_rank, "slot": local_rank} | streams | fields))

    def spawn(self, *ranks: SpawnRank) -> list[WorkerStarted]:
        """Reset the slots, spawn the next round, and wait until all workers have started."""
        self.round += 1
        for rank in ranks:
            self.page.reset(rank.slot, self.round)
        self.send(Spawn(round=self.round, ranks=ranks))
        return [self.wait(WorkerStarted, round=self.round) for _ in ranks]

    def start(self, code: str, **fields: Any) -> WorkerStarted:
        """Start a script as the only rank and wait for it to write a line `up`."""
        rank = self.rank(argv=(self.script(code),), **fields)
        (started,) = self.spawn(rank)
        out = Path(rank.stdout or "")
        self.until(lambda: out.exists() and "up\n" in out.read_text(), "the script to say up")
        return started

    def run(self, code: str, *arguments: str, **fields: Any) -> Output:
        """Run a script as the only rank of a round until the round is dead."""
        return self.run_rank(argv=(self.script(code), *arguments), **fields)

    def run_rank(self, **fields: Any) -> Output:
        """Run a rank alone until its round is dead."""
        rank = self.rank(**fields)
        self.spawn(rank)
        exited = self.wait(WorkerExitedEvent, round=self.round)
        self.wait(RoundDead, round=self.round)
        return Output(exited, _text(rank.stdout), _text(rank.stderr))

    def kill(self, sig: int = signal.SIGKILL, grace_s: float = 0.0) -> None:
        """End the last round."""
        self.send(KillRound(self.round, sig, grace_s))

    def settle(self) -> None:
        """End what a test has left running, and forget the events that it has not waited for."""
        for number in (self.round, _SENTINEL):
            self.send(KillRound(number, signal.SIGKILL, 0.0))
            self.wait(RoundDead, round=number)
        self.unread.clear()

    # --- what is seen -----------------------------------------------------------------------

    def wait(self, kind: type[E], timeout_s: float = PATIENCE_SECONDS, **fields: Any) -> E:
        """Return the first unread event of a kind whose fields have these values."""
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self.unread:
                if isinstance(event, kind) and fields.items() <= _fields(event).items():
                    self.unread.remove(event)
                    return event
            if not self.read(deadline - time.monotonic()):
                raise AssertionError(f"no {kind.__name__} with {fields} in time: {self.unread}")

    def read(self, timeout_s: float) -> bool:
        """Take in what the agent has written; False when nothing came, or nothing ever will."""
        if not select.select([self._events], [], [], max(0.0, timeout_s))[0]:
            return False
        part = os.read(self._events, 65536)
        *lines, self._buffer = (self._buffer + part).split(b"\n")
        self.unread += [protocol.decode(line) for line in lines]  # type: ignore[misc]
        return bool(part)

    def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_SECONDS
    ) -> float:
        """Poll until the condition holds; return the seconds it took."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > timeout_s:
                raise AssertionError(f"waited {timeout_s} s for {what}; {self.unread}")
            time.sleep(0.002)
        return time.monotonic() - begun

    def alive(self) -> list[int]:
        """Return the processes of this agent's family that are neither gone nor zombies."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def family(self) -> list[int]:
        """Return the living processes other than agent and zygote."""
        named = {pid: _comm(pid) for pid in self.alive()}
        return [
            pid
            for pid, comm in named.items()
            if pid != self.process.pid and comm != "hf-zygote" and comm
        ]

    def zygote(self) -> int:
        """Return the zygote's pid."""
        (pid,) = [pid for pid in self.alive() if _comm(pid) == "hf-zygote"]
        return pid


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _fields(event: Event) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__dataclass_fields__}


def _text(path: str | None) -> str:
    return Path(path).read_text() if path else ""


def _environment() -> dict[str, str]:
    """Return this process's environment without thread counts, which tests set themselves."""
    return {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}


@contextmanager
def agent(
    folder: Path,
    *,
    slots: int = 2,
    torch: bool = False,
    lease_limit_s: float = 60.0,
    environment: dict[str, str] | None = None,
    thread: bool = False,
    grpc: bool = False,
    **settings: Any,
) -> Iterator[Driver]:
    """Run an agent with a zygote; at the end nothing of it may be left.

    lease_limit_s: far longer than the product's, so that a machine that pauses for seconds (a busy
        virtual one does) kills nothing in tests that are not about the lease.
    torch: import it, with the default preload list; else the zygote is an ordinary small one.
    thread, grpc: start a thread, import grpc before the zygote.
    """
    mark = uuid.uuid4().hex
    page = Page.create(slots, round(lease_limit_s * 1e9))
    reader, writer = os.pipe()
    settings = {"local_world_size": 1} | ({} if torch else {"preload": ()}) | settings
    options = {"page": page.fd, "events": writer, "torch": torch, "thread": thread, "grpc": grpc}
    with (
        (folder / "agent.err").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, str(AGENT), json.dumps(options | {"settings": settings})],
            stdin=subprocess.PIPE,
            stderr=errors,
            pass_fds=[page.fd, writer],
            env=_environment() | (environment or {}) | {MARK: mark},
        ) as process,
    ):
        os.close(writer)
        driver = Driver(folder, process, page, mark, reader)
        try:
            yield driver
            _leave(driver)
        finally:
            for pid in driver.alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.close(page.fd)
            os.close(reader)


def _leave(driver: Driver) -> None:
    """End the agent by closing its input; its whole family must go."""
    assert driver.process.stdin is not None
    with suppress(BrokenPipeError):
        driver.process.stdin.close()
    driver.until(lambda: not driver.alive(), f"the end of {driver.alive()}")


def ready(driver: Driver) -> Driver:
    """Wait for the zygote."""
    event = driver.wait(Ready)
    assert not event.reason, event.reason
    return driver

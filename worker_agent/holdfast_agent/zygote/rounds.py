"""Processes of one round: their start, the living ones, the planned kill, the end of the last one.

A zygote has at most one round at a time. So every child that it did not fork itself (an orphan that
a worker left behind) belongs to that round.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from holdfast.page import Page
from holdfast_agent.zygote import import_time_variables, preload
from holdfast_agent.zygote.child import Worker, become, worker_environment
from holdfast_agent.zygote.process_tree import (
    children,
    command_line,
    die_with_parent,
    kill_below,
    signal_each,
)
from holdfast_agent.zygote.protocol import (
    Event,
    Failure,
    ForkDisabled,
    RoundDead,
    ScriptMode,
    Spawn,
    SpawnRank,
    WorkerExitedEvent,
    WorkerStarted,
)
from holdfast_agent.zygote.settings import ZygoteSettings

_LOOK_AGAIN_SECONDS = 0.003
"""Seconds between two looks at processes that are being killed; their exits wake the loop."""
_LAST_WORDS_SECONDS = 0.1
"""Seconds between the order to end a round that has succeeded and the first signal to processes
that its workers left behind. Most (resource trackers, servers of a pool) end by themselves in that
time."""
_MOST_SHOWN = 5
"""Processes left behind that a message names one by one."""
_HELD_BACK = (signal.SIGTERM, signal.SIGINT)
"""Signals that wait until a forked child has its own handlers."""


class InChild(BaseException):
    """Raised in a forked child, so that its task runs at the bottom of the stack.

    No `finally` clause may lie on the way: it would run in parent and child.
    """

    def __init__(self, task: Callable[[], NoReturn]) -> None:
        """`task` is the child's whole work."""
        super().__init__()
        self.task = task


def flush_streams() -> None:
    """Flush the streams: otherwise parent and child would both write their buffers later."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or without a reader
            stream.flush()


def fork(task: Callable[[], NoReturn]) -> int:
    """Fork; return the child's pid in the parent, raise `InChild` in the child.

    Signals that could end the child stay blocked until it has its own handlers and unblocks them.
    """
    flush_streams()
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
        raise
    if pid == 0:
        raise InChild(task)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)
    return pid


@dataclass(slots=True)
class LiveRound:
    """A round with living processes."""

    number: int
    workers: dict[int, SpawnRank] = field(default_factory=dict)
    """Living workers by pid."""
    kill_at: float | None = None
    """time.monotonic at which all get SIGKILL, repeated at each look; None: no kill is planned."""
    end_signal: int | None = None
    """Signal sent to the workers before SIGKILL; the processes that they leave get it too."""
    end_at: float = 0.0
    """time.monotonic at which the processes left behind get it."""
    signalled: set[int] = field(default_factory=set)
    """Processes left behind that have got it."""
    succeeded: bool = True
    """True: no worker has ended with another status than 0."""
    to_name: bool = False
    """True: all workers had succeeded at the order, so the processes left behind are named."""


class Rounds:
    """Current round of a zygote."""

    def __init__(
        self,
        send: Callable[[Event], None],
        spared: Callable[[], Collection[int]],
        log: Callable[[str], None],
    ) -> None:
        """`spared` returns the zygote's children that belong to no round (stores).

        `log` takes lines for a person.
        """
        self._send, self._log = send, log
        self._spared = spared
        self.current: LiveRound | None = None

    def begin(self, number: int) -> LiveRound:
        """Open a round; the one before must be dead."""
        self.current = LiveRound(number)
        return self.current

    def reaped(self, pid: int, status: int) -> SpawnRank | None:
        """Report the end of a worker; return its description, None for another process."""
        current = self.current
        rank = current.workers.pop(pid, None) if current else None
        if current is None or rank is None:
            return None
        current.succeeded = current.succeeded and status == 0
        code, now = os.waitstatus_to_exitcode(status), time.monotonic_ns()
        self._send(WorkerExitedEvent(current.number, rank.local_rank, pid, code, now))
        return rank

    def kill(self, number: int, sig: int, grace_s: float) -> None:
        """Signal a round, as for `Zygote.kill_round`."""
        current = self.current
        if current is None or current.number != number:
            self._send(RoundDead(number))
            return
        now = time.monotonic()
        begin = now
        if current.kill_at is None and not current.workers and current.succeeded:
            current.to_name = True
            begin += _LAST_WORDS_SECONDS
        deadline = begin + (0.0 if sig == signal.SIGKILL else max(grace_s, 0.0))
        current.kill_at = deadline if current.kill_at is None else min(deadline, current.kill_at)
        if sig != signal.SIGKILL:
            current.end_signal, current.end_at = sig, begin
            # Only the worker: its data loaders must live while it saves.
            signal_each(current.workers, sig)
        self.advance()

    def _orphans(self) -> list[int]:
        """Return the children that no command started: workers left them behind."""
        known = {*self._spared(), *(self.current.workers if self.current else ())}
        return [child for child in children(os.getpid()) if child not in known]

    def advance(self) -> None:
        """Continue a planned kill, and report a round whose last process is gone."""
        current = self.current
        if current is None:
            return
        now = time.monotonic()
        if current.kill_at is not None and now >= current.kill_at:
            self._name_the_left(current, "SIGKILL")
            kill_below(os.getpid(), self._spared())
        elif current.end_signal is not None and now >= current.end_at:
            self._name_the_left(current, signal.Signals(current.end_signal).name)
            self._end_the_left(current, current.end_signal)
        if not current.workers and not self._orphans():
            self.current = None
            self._send(RoundDead(current.number))

    def next_look_s(self) -> float | None:
        """Return seconds until `advance` has work, None if only events matter."""
        if self.current is None or self.current.kill_at is None:
            return None
        now, due = time.monotonic(), self.current.kill_at
        if self.current.end_at > now:
            due = min(due, self.current.end_at)
        return max(_LOOK_AGAIN_SECONDS, due - now)

    def _end_the_left(self, current: LiveRound, sig: int) -> None:
        """Signal the processes that ended workers left behind, each of them once.

        So the program behind a worker that was a shell gets the signal too: the shell ends first.
        """
        fresh = set(self._orphans()) - current.signalled
        current.signalled |= fresh
        signal_each(fresh, sig)

    def _name_the_left(self, current: LiveRound, sig: str) -> None:
        """Log the processes left behind by a round that succeeded, before they are ended."""
        if not current.to_name:
            return
        current.to_name = False
        left = [(pid, command_line(pid)) for pid in self._orphans()]
        for pid, command in left[:_MOST_SHOWN]:
            self._log(
                f"process {pid} ({command}) was left behind by a script that succeeded: {sig}"
            )
        if len(left) > _MOST_SHOWN:
            self._log(f"{len(left) - _MOST_SHOWN} more processes left behind get {sig}")


class Spawner:
    """Starts workers that share the zygote's imports."""

    def __init__(
        self,
        page: Page,
        settings: ZygoteSettings,
        send: Callable[[Event], None],
        log: Callable[[str], None],
    ) -> None:
        """`send` takes events for the agent, `log` lines for a person."""
        self._page, self._settings, self._send, self._log = page, settings, send, log
        self._pid = os.getpid()
        self._user_environment = dict(os.environ)
        for name, value in settings.user_variables.items():
            if value is None:
                self._user_environment.pop(name, None)
            else:
                self._user_environment[name] = value
        self._openblas: Callable[[int], object] | None = None
        self._cpus: dict[tuple[str, int], frozenset[int]] = {}
        self._modules: frozenset[str] = frozenset()
        self.no_fork = "not prepared"
        """Reason for not forking; empty: workers are forked."""

    def prepare(self, known_descriptors: Collection[int], problem: str) -> None:
        """Import the preload list, and judge whether forking is safe.

        problem: known reason against forking; then nothing is imported.
        """
        if not self._settings.fork:
            problem = "switched off by the settings"
        self.no_fork = problem or self._import(self._settings.preload, known_descriptors)
        self._modules = frozenset(sys.modules)

    def prepare_more(self, names: Collection[str], known_descriptors: Collection[int]) -> None:
        """Import modules between two rounds or during one; end forking if that made it unsafe."""
        if self.no_fork:
            return
        problem = self._import(names, known_descriptors)
        self._modules = frozenset(sys.modules)
        if problem:
            self.disable_fork(problem)

    def _import(self, names: Collection[str], known_descriptors: Collection[int]) -> str:
        """Import modules; return the reason why this process must not fork afterwards, or ""."""
        for line in preload.import_all(names):
            self._log(line)
        self._openblas = import_time_variables.openblas_setter()
        problem = preload.why_not_forkable(known_descriptors)
        preload.settle()
        return problem

    def disable_fork(self, reason: str) -> None:
        """Start fresh interpreters from now on."""
        if not self.no_fork:
            self.no_fork = reason
            self._log(f"forking ends: {reason}")
            self._send(ForkDisabled(reason))

    def spawn(self, wanted: Spawn, live: LiveRound) -> bool:
        """Start all workers into `live`; on a failure report it and return False."""
        try:
            cpus = {rank.local_rank: self._cpus_of(rank, wanted) for rank in wanted.ranks}
            for rank in wanted.ranks:
                self._start(rank, live, cpus[rank.local_rank])
        except (OSError, NumaError) as error:
            self._send(Failure(f"spawn of round {wanted.round}: {error}", wanted.round))
            return False
        return True

    def _start(self, rank: SpawnRank, live: LiveRound, cpus: frozenset[int] | None) -> None:
        base, ranks = self._user_environment, self._settings.local_world_size
        worker = Worker(
            round=live.number,
            rank=rank,
            page=self._page,
            environment=worker_environment(base, rank, live.number, self._page.fd, ranks),
            zygote_pid=self._pid,
            forked=self._may_fork(rank),
            agent_pid=os.getppid(),
            cpus=cpus,
            modules=self._modules,
            openblas=self._openblas,
        )
        pid = fork(lambda: become(worker))
        now = time.monotonic_ns()
        live.workers[pid] = rank
        self._send(WorkerStarted(live.number, rank.local_rank, pid, worker.forked, now))

    def _may_fork(self, rank: SpawnRank) -> bool:
        if self.no_fork or rank.mode is ScriptMode.BINARY:
            return False
        differing = import_time_variables.differing(rank.env, os.environ)
        if differing:
            names = ", ".join(differing)
            self._log(f"rank {rank.local_rank} is not forked: {names} differs from the agent's")
        return not differing

    def _cpus_of(self, rank: SpawnRank, wanted: Spawn) -> frozenset[int] | None:
        """Return the CPUs of a rank; torch is asked once for all ranks of the mode."""
        if rank.numa is None:
            return None
        key = rank.numa, rank.local_rank
        if key not in self._cpus:
            ranks = [other.local_rank for other in wanted.ranks if other.numa == rank.numa]
            for local_rank, cpus in cpu_sets(rank.numa, ranks).items():
                self._cpus[rank.numa, local_rank] = cpus
        return self._cpus[key]


_PATIENCE_SECONDS = 30.0
"""Deadline, s; initialising CUDA for eight devices takes a few seconds on a busy machine."""


class NumaError(Exception):
    """The CPUs to bind to cannot be found; the text says why."""


def cpu_sets(mode: str, local_ranks: Iterable[int]) -> dict[int, frozenset[int]]:
    """Return the CPUs of each local rank. Forks, and blocks for seconds: before workers exist."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    asker = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(asker)
        _answer(mode, list(local_ranks), writer)
    os.close(writer)
    try:
        return _collect(reader)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(mode: str, local_ranks: list[int], writer: int) -> None:
    """Write the sets, or the reason for none, as JSON; then exit."""
    try:
        from torch.numa import binding

        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        cpus_of: Any = binding._get_logical_cpus_to_bind_to  # noqa: SLF001 - the answer without the act
        names = inspect.signature(cpus_of).parameters
        device = "device_index" if "device_index" in names else "gpu_index"  # before torch 2.10
        found: object = {
            rank: sorted(cpus_of(**{device: rank, "numa_options": options})) for rank in local_ranks
        }
    except Exception as error:  # noqa: BLE001 - becomes the text of a NumaError
        found = f"{type(error).__name__}: {error}"
    os.write(writer, json.dumps(found).encode())
    os._exit(0)


def _collect(reader: int) -> dict[int, frozenset[int]]:
    body = b""
    while select.select([reader], [], [], _PATIENCE_SECONDS)[0]:
        part = os.read(reader, 65536)
        body += part
        if not part:
            break
    found = json.loads(body) if body else f"no answer from torch within {_PATIENCE_SECONDS:.0f} s"
    if isinstance(found, str):
        raise NumaError(found)
    return {int(rank): frozenset(cpus) for rank, cpus in found.items()}

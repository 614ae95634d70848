"""The zygote's own loop: handles commands, children and the agent's end; watches the lease.

It is single-threaded and never blocks on another process.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from holdfast.page import Page
from holdfast_agent.zygote import preload, protocol
from holdfast_agent.zygote.process_tree import (
    become_subreaper,
    die_with_parent,
    kill_and_reap,
    kill_below,
    name_process,
)
from holdfast_agent.zygote.rounds import InChild, Rounds, Spawner
from holdfast_agent.zygote.settings import ZygoteSettings
from holdfast_agent.zygote.store_processes import StoreProcesses
from holdfast_wire.keys import ENV_ROSTER

_NO_LEASE = "the agent's lease has expired"
_EXIT_DEFECT = 70  # EX_SOFTWARE
_LEASE_CHECK_SECONDS = 0.05
"""Least time between looks at the agent's lease: it adds ≤ 1.3 % to the 4 s of the lease. There is
no look while it cannot be stale yet. Workers read the limit in the page, too."""


def live(
    channel: protocol.Channel, page: Page, settings: ZygoteSettings, agent: int, problem: str
) -> NoReturn:
    """Be the zygote of the agent's process `agent`; never returns.

    problem: reason why forking is known to be unsafe already, or "".
    """
    started = time.monotonic()
    zygote = ZygoteLoop(channel, page, settings, agent)
    task: Callable[[], NoReturn] | None = None
    try:
        zygote.prepare(problem, started)
        zygote.run()
    except InChild as fork_:
        task = fork_.task
        channel.abandon()
    except Exception:  # noqa: BLE001 - a defect; nothing may outlive the loop
        zygote.log(traceback.format_exc())
        zygote.end()
        os._exit(_EXIT_DEFECT)
    del zygote
    if task is not None:
        _carry_out(task)
    os._exit(0)


def _carry_out(task: Callable[[], NoReturn]) -> NoReturn:
    """Run a child's task; no exception of it may reach the agent's frames below."""
    try:
        task()
    except BaseException:  # noqa: BLE001 - a defect, or an exit in an exit handler
        traceback.print_exc()
    os._exit(_EXIT_DEFECT)


class ZygoteLoop:
    """State of the loop, and one turn of it."""

    def __init__(
        self, channel: protocol.Channel, page: Page, settings: ZygoteSettings, agent: int
    ) -> None:
        """Tie this process to the agent, and adopt all its descendants."""
        die_with_parent(agent, signal.SIGTERM)
        become_subreaper()
        os.setsid()
        name_process("hf-zygote")
        self._channel, self._page, self._settings = channel, page, settings
        preload.close_unknown(known=(channel.fileno(),))
        self._agent, self._agent_pid = os.pidfd_open(agent), agent
        self._pid = os.getpid()
        self._stop = False
        self._lease_lost = False
        self._deferred = list(settings.deferred_preload)
        self._of_replicas = settings.replica_preload
        self._deferred_at: float | None = None
        """time.monotonic of the next deferred import; None: no round has begun."""
        self._wakeup, self._wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._take_signals()
        send = channel.send
        self.stores = StoreProcesses(send)
        self.rounds = Rounds(send, lambda: self.stores.live, self.log)
        self.spawner = Spawner(page, settings, send, self.log)

    def _take_signals(self) -> None:
        """Set the handlers: SIGTERM is the agent's death; a terminal's Ctrl-C is the agent's."""
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _on_sigterm(self, *_: object) -> None:
        """End if the agent is dead; else ignore it: the agent ends the ranks with a grace.

        The end does not wait for the turn, which may be an import of seconds: nobody would look
        after the ranks meanwhile.
        """
        if os.getppid() == self._agent_pid:
            self.log("SIGTERM is ignored: a zygote ends with its agent")
        elif os.getpid() == self._pid:  # no child that has no handlers of its own yet
            kill_and_reap((), math.inf)
            os._exit(0)

    def log(self, text: str) -> None:
        """Write a line to the agent's stderr."""
        with suppress(OSError):  # the reader may be gone: no reason to end
            os.write(2, f"holdfast zygote: {text}\n".encode())

    def prepare(self, problem: str, started: float) -> None:
        """Import the modules that workers need, and report `Ready`."""
        self.spawner.prepare(self._descriptors(), problem)
        reason = self.spawner.no_fork
        if reason:
            self.log(f"workers start as fresh interpreters: {reason}")
        self._channel.send(protocol.Ready(reason, time.monotonic() - started))

    def _descriptors(self) -> list[int]:
        """Return the descriptors that the loop itself has open."""
        own = (self._channel.fileno(), self._agent, self._wakeup, self._wakeup_writer)
        return [*own, *self.stores.reports()]

    # --- turns ------------------------------------------------------------------------------

    def run(self) -> None:
        """Turn until the agent is gone or orders the end; then end."""
        while not self._stop:
            self._wait()
            self._reap()
            self._watch_lease()
            self.stores.read_reports()
            for command in self._channel.receive():
                self._obey(command)
            self.rounds.advance()
            self._prepare_more()
            self._channel.flush()
            if self._channel.closed:
                self._stop = True
        self.end()

    def _wait(self) -> None:
        """Sleep until an event, or until something is due."""
        poll = select.poll()
        writing = select.POLLOUT if self._channel.waiting else 0
        poll.register(self._channel, select.POLLIN | writing)
        for fd in (self._wakeup, self._agent, *self.stores.reports()):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(self._patience_ms())]
        if self._agent in ready:
            self._stop = True
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)

    def _patience_ms(self) -> float | None:
        """Return the longest sleep, ms; None: without processes to watch only events matter."""
        if self.rounds.current is None and not self.stores.live:
            return None
        due = (self._deferred_left_s(), self.rounds.next_look_s(), self._lease_left_s())
        return 1000 * min(seconds for seconds in due if seconds is not None)

    def _deferred_left_s(self) -> float | None:
        """Return the time until a deferred import is due; None: none is, for now.

        A planned kill goes first: its looks must not wait. Without a round there is nobody to wait
        for, and the next order may be to spawn.
        """
        killing = self.rounds.next_look_s() is not None
        if not self._deferred or self._deferred_at is None or killing:
            return None
        if self.rounds.current is None:
            return None
        return max(0.0, self._deferred_at - time.monotonic())

    def _lease_left_s(self) -> float:
        """Return the time for which the lease cannot become stale: no check is needed before."""
        age_ns = self._page.lease_age_ns(time.monotonic_ns())
        if age_ns is None or self._lease_lost:
            return _LEASE_CHECK_SECONDS
        return max(_LEASE_CHECK_SECONDS, (self._page.lease_limit_ns - age_ns) * 1e-9)

    def _prepare_more(self) -> None:
        """Import the next deferred module when it is due; orders come between two of them."""
        if self._deferred_left_s() == 0:
            self._channel.flush()
            self.spawner.prepare_more([self._deferred.pop(0)], self._descriptors())

    def _reap(self) -> bool:
        """Reap ended children; return True if any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if not self.stores.reaped(pid):
                rank = self.rounds.reaped(pid, status)
                if rank is not None:
                    self._learn(rank)

    def _learn(self, rank: protocol.SpawnRank) -> None:
        """Start a script with a fresh interpreter next time, if it sets variables too late."""
        name = self._page.read(rank.slot).import_variable
        if name:
            self.spawner.disable_fork(f"the script sets {name}, which counts only at import")

    def _watch_lease(self) -> None:
        """Kill everything if the agent has been silent for too long."""
        now = time.monotonic_ns()
        if not self._page.lease_is_stale(now):
            self._lease_lost = False
            return
        if self._lease_lost:
            return
        self._lease_lost = True
        current = self.rounds.current
        age_s = (self._page.lease_age_ns(now) or 0) / 1e9
        rounds = (current.number,) if current else ()
        self._channel.send(protocol.LeaseExpired(age_s, rounds))
        if current is not None:
            self.rounds.kill(current.number, signal.SIGKILL, 0.0)
        self.stores.release_all(_NO_LEASE)

    def end(self) -> None:
        """Kill every descendant, until the kernel lists none."""
        self.stores.release_all("")
        while True:
            kill_below(os.getpid())
            if not self._reap():
                break
            time.sleep(0.001)
        self.rounds.advance()
        self._channel.flush()

    # --- commands ---------------------------------------------------------------------------

    def _obey(self, command: object) -> None:
        if isinstance(command, protocol.Spawn):
            self._spawn(command)
        elif isinstance(command, protocol.KillRound):
            self.rounds.kill(command.round, command.signal, command.grace_s)
        elif isinstance(command, protocol.PrepareStoreCommand):
            self._prepare_store(command)
        elif isinstance(command, protocol.ReleaseStore):
            self.stores.release(command.store_id)
        elif isinstance(command, protocol.EndZygote):
            self._stop = True

    def _spawn(self, wanted: protocol.Spawn) -> None:
        self._watch_lease()  # the agent may have renewed it since this turn's look
        current = self.rounds.current
        problem = _NO_LEASE if self._lease_lost else ""
        if current is not None:
            problem = f"round {current.number} still has processes"
        if problem:
            self._channel.send(
                protocol.Failure(f"spawn of round {wanted.round}: {problem}", wanted.round)
            )
            if current is None or current.number != wanted.round:
                self._channel.send(protocol.RoundDead(wanted.round))
            return
        started = self.rounds.begin(wanted.round)
        if not self.spawner.spawn(wanted, started):
            self.rounds.kill(wanted.round, signal.SIGKILL, 0.0)
        if any(ENV_ROSTER in rank.env for rank in wanted.ranks):
            self._deferred += self._of_replicas
            self._of_replicas = ()
        self._deferred_at = time.monotonic() + self._settings.deferred_preload_s

    def _prepare_store(self, command: protocol.PrepareStoreCommand) -> None:
        self._watch_lease()
        if self._lease_lost:
            self._channel.send(protocol.StoreExited(command.store_id, _NO_LEASE))
        else:
            self.stores.prepare(command.store_id, command.host)

"""The agent's handle on its zygote: start it, tell it what to do, hear what happened.

Nothing here waits: commands are one datagram each, events are read when `fileno()` is readable.
What the zygote does with a command is `loop`; what the values mean is `messages`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection
from typing import cast

from holdfast.page import Page
from holdfast_agent.zygote import channel, loop
from holdfast_agent.zygote.errors import ZygoteError
from holdfast_agent.zygote.forking import flush_streams
from holdfast_agent.zygote.messages import (
    Command,
    DumpStacks,
    Event,
    KillRound,
    PrepareStore,
    ReleaseStore,
    Shutdown,
    Spawn,
    SpawnRound,
    ZygoteExited,
)
from holdfast_agent.zygote.settings import ZygoteSettings
from holdfast_agent.zygote.tree import become_subreaper, kill_and_reap, task_count

_ORPHANS_DEADLINE_S = 5.0


class Zygote:
    """A process that has imported torch and forks workers on command.

    Life: `start` once, from the agent's main thread, before grpc is imported and before an event
    loop exists; then `loop.add_reader(zygote.fileno(), …)` and `receive()` in its callback;
    `shutdown()` at the end. Commands raise `ZygoteError` when the zygote is gone.
    """

    def __init__(self) -> None:
        """Make a handle without a process."""
        self.pid = 0
        """The zygote's process; 0 before `start`."""
        self._channel: channel.Channel | None = None
        self._exited = False

    def start(self, settings: ZygoteSettings, page: Page) -> None:
        """Fork the zygote. Returns at once; `Ready` follows when the preload list is imported.

        Makes this process a subreaper too. Raises `ZygoteError` when grpc is imported already (its
        threads and locks do not survive a fork) or this is not the main thread (the zygote dies
        with the thread that started it).
        """
        if self.pid:
            raise ZygoteError("the zygote has been started already")
        if "grpc" in sys.modules:
            raise ZygoteError("grpc is imported already: start the zygote before importing it")
        if threading.current_thread() is not threading.main_thread():
            raise ZygoteError("start the zygote from the main thread: it dies with its thread")
        tasks = task_count()
        problem = f"the agent had {tasks} threads when it forked the zygote" if tasks > 1 else ""
        become_subreaper()
        ours, theirs = channel.pair()
        agent = os.getpid()
        flush_streams()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                loop.live(theirs, page, settings, agent, problem)
            finally:  # nothing may return into the agent's frames
                os._exit(1)
        theirs.close()
        self.pid, self._channel = pid, ours

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something."""
        return self._open().fileno()

    def receive(self) -> list[Event]:
        """Return all events that have arrived, without waiting; `ZygoteExited` is the last ever.

        After `ZygoteExited` the descriptor is closed: remove it from the event loop first.
        """
        if self._channel is None or self._exited:
            return []
        events = cast("list[Event]", self._channel.receive())
        if self._channel.closed:
            self._exited = True
            events.append(self._reap())
        return events

    def _reap(self) -> ZygoteExited:
        """Wait for a process whose end of the channel is closed, so that it is all but gone."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # whoever reaps for PID 1 was faster
            return ZygoteExited(None, None)
        if os.WIFSIGNALED(status):
            return ZygoteExited(None, os.WTERMSIG(status))
        return ZygoteExited(os.WEXITSTATUS(status), None)

    def spawn(self, spawn_round: SpawnRound) -> None:
        """Start the workers of a round → `WorkerStarted` each (or `Failure` and `RoundDead`).

        The page's slots must have been reset for this round, and `RoundDead` of the round before
        received (or no round spawned yet). Without ranks: `RoundDead` at once.
        """
        self._send(Spawn(spawn_round))

    def kill_round(
        self, round_number: int, sig: int = signal.SIGKILL, grace_s: float = 0.0
    ) -> None:
        """End a round → `WorkerExited` each, then `RoundDead`.

        SIGKILL goes to every process of the round at once. Any other signal goes to the workers'
        process groups, and SIGKILL follows to what is left after `grace_s` seconds. May be repeated
        (a later SIGKILL cuts a grace short) and is right after all workers have exited too, when
        processes that they left behind must go. A round that is dead or unknown: `RoundDead`.
        """
        self._send(KillRound(round_number, int(sig), grace_s))

    def dump_stacks(self, round_number: int) -> None:
        """Make each worker append all its threads' stacks to its `stacks` file → `StacksDumped`.

        Works while a rank is blocked in a collective.
        """
        self._send(DumpStacks(round_number))

    def prepare_store(self, store_id: str, host: str) -> None:
        """Start a process whose TCPStore listens on the IP `host` → `StoreReady` | `StoreExited`.

        It belongs to no round and lives until `release_store`, `shutdown`, a stale lease or the
        zygote's end.
        """
        self._send(PrepareStore(store_id, host))

    def release_store(self, store_id: str) -> None:
        """End a store process → `StoreExited` (nothing for an unknown one)."""
        self._send(ReleaseStore(store_id))

    def shutdown(self) -> None:
        """Kill every descendant of the zygote and end it → … `ZygoteExited`. Idempotent."""
        if self._channel is not None and not self._channel.closed:
            self._channel.send(Shutdown())

    def kill_orphans(self, spare: Collection[int]) -> int:
        """After `ZygoteExited`: SIGKILL and reap children of this process but `spare`'s trees.

        Grandchildren of a zygote that was killed itself have become the agent's children, because
        the agent is a subreaper. Returns how many were found. Blocks for milliseconds.
        """
        return kill_and_reap({*spare, self.pid}, _ORPHANS_DEADLINE_S)

    def _open(self) -> channel.Channel:
        if self._channel is None:
            raise ZygoteError("the zygote has not been started")
        if self._channel.closed:
            raise ZygoteError(f"the zygote (pid {self.pid}) is gone")
        return self._channel

    def _send(self, command: Command) -> None:
        control = self._open()
        control.send(command)
        if control.waiting:
            raise ZygoteError(f"the zygote (pid {self.pid}) takes no commands: is it stopped?")

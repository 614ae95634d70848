"""The agent's handle on its zygote: start, commands, events. Nothing here waits."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from holdfast.page import Page
from holdfast_agent.zygote import loop, protocol
from holdfast_agent.zygote.preload import ZygoteError
from holdfast_agent.zygote.process_tree import become_subreaper, children, kill_and_reap, task_count
from holdfast_agent.zygote.protocol import Command, EndZygote, Event, ForkDisabled, ZygoteExited
from holdfast_agent.zygote.rounds import flush_streams
from holdfast_agent.zygote.settings import FreshZygote, ZygoteSettings, bootstrap_command
from holdfast_wire.datagrams import encode

log = logging.getLogger(__name__)

_ORPHANS_DEADLINE_SECONDS = 5.0


class Zygote:
    """A process that has imported torch and forks workers on command.

    Life: `start` once, from the agent's main thread, before grpc is imported and before an event
    loop exists; then `loop.add_reader(zygote.fileno(), …)` and `receive()` in its callback;
    `restart` after `ZygoteExited`, any number of times; `shutdown()` at the end.
    """

    def __init__(self) -> None:
        """Make a handle without a process."""
        self.pid = 0
        """The zygote's process; 0 before `start`."""
        self.older_children: set[int] = set()
        """Children from before `start`: those of a shell that became the agent by exec."""
        self._channel: protocol.Channel | None = None
        self._exited = False
        self._origin: FreshZygote | None = None
        """State of this process at its first fork: a fresh zygote gets the same."""
        self._environment: Mapping[str, str] = {}
        """Its environment then."""
        self._fresh: subprocess.Popen[bytes] | None = None
        """Process of a zygote that was not forked; None: it was forked."""
        self._no_fork = ""
        """Reason why an earlier zygote gave up forking; empty: none did."""

    def start(self, settings: ZygoteSettings, page: Page) -> None:
        """Fork the zygote. Returns at once; `Ready` follows when the preload list is imported.

        Makes this process a subreaper too. Raises `ZygoteError` if grpc is imported already (its
        threads and locks do not survive a fork), or this is not the main thread (the zygote dies
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
        self.older_children.update(children(os.getpid()))
        become_subreaper()
        agent, self._environment = os.getpid(), dict(os.environ)
        self._origin = FreshZygote(
            agent=agent,
            page=page.fd,
            path=tuple(sys.path),
            torch="torch" in sys.modules,
            settings=settings,
        )
        ours, theirs = protocol.pair()
        flush_streams()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                loop.live(theirs, page, settings, agent, problem)
            finally:  # no child may return into the agent's frames
                os._exit(1)
        theirs.close()
        self.pid, self._channel = pid, ours

    def restart(self) -> None:
        """Start another zygote after `ZygoteExited`, from the main thread; returns in milliseconds.

        It is a fresh interpreter, because this process cannot be forked once grpc is imported.
        It is `Ready` seconds later. `pid` and `fileno()` are new.

        Raises:
            ZygoteError: There is a zygote, or there was none before.
            OSError: No process can be started.
        """
        if self._origin is None or not self._exited:
            raise ZygoteError("only a zygote that has ended is started anew")
        ours, theirs = protocol.pair()
        try:
            self._fresh = self._start_fresh(theirs, self._origin)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid, self._channel, self._exited = self._fresh.pid, ours, False

    def _start_fresh(
        self, theirs: protocol.Channel, origin: FreshZygote
    ) -> subprocess.Popen[bytes]:
        fresh = replace(origin, channel=theirs.fileno(), problem=self._no_fork)
        with os.fdopen(os.memfd_create("holdfast-zygote"), "wb", buffering=0) as file:
            file.write(encode(fresh))
            # The agent's own arguments only tell a person in `ps` whose ranks are forked here.
            shown = sys.argv[1:]
            return subprocess.Popen(
                bootstrap_command("zygote", str(file.fileno()), *shown),
                env=self._environment,
                pass_fds=(file.fileno(), theirs.fileno(), origin.page),
            )

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something."""
        if self._channel is None or self._channel.closed:
            raise ZygoteError("there is no zygote")
        return self._channel.fileno()

    def receive(self) -> list[Event]:
        """Return all events that have arrived, without waiting; `ZygoteExited` is the last ever.

        After `ZygoteExited` the descriptor is closed: remove it from the event loop first.
        """
        if self._channel is None or self._exited:
            return []
        events = cast("list[Event]", self._channel.receive())
        for event in events:
            if isinstance(event, ForkDisabled):
                self._no_fork = event.reason
        if self._channel.closed:
            self._channel.close()
            self._exited = True
            events.append(self._reap())
        return events

    def _reap(self) -> ZygoteExited:
        """Wait for the zygote: its end of the channel is closed, so it is about to end."""
        if self._fresh is not None:
            return ZygoteExited(self._fresh.wait())
        try:
            return ZygoteExited(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
        except ChildProcessError:  # the reaper of PID 1 was faster
            return ZygoteExited(None)

    def send(self, command: Command) -> None:
        """Give a command; one that meets no living zygote is logged and dropped.

        The loss itself arrives as `ZygoteExited`, and another zygote follows.
        """
        channel = self._channel
        if channel is not None and not channel.closed:
            channel.send(command)
        if channel is None or channel.closed or channel.broken:
            log.warning("%s: the zygote (pid %d) is gone", type(command).__name__, self.pid)
        elif channel.waiting:
            log.warning("the zygote (pid %d) takes no commands: is it stopped?", self.pid)

    def shutdown(self) -> None:
        """Kill every descendant of the zygote and end it → … `ZygoteExited`. Idempotent."""
        if self._channel is not None and not self._channel.closed:
            self._channel.send(EndZygote())

    def kill_orphans(self, spare: Collection[int]) -> int:
        """After `ZygoteExited`: SIGKILL and reap children of this process except `spare`'s trees.

        The older children are spared too. The grandchildren of a killed zygote have become the
        agent's children, because the agent is a subreaper. Returns their number. Blocks for
        milliseconds.
        """
        return kill_and_reap({*spare, *self.older_children, self.pid}, _ORPHANS_DEADLINE_SECONDS)

"""Session of an unmodified torchrun: hello, assignments and stores, without zygote and page.

It runs in a thread of its own inside torchrun's process. Workers belong to torchrun: nothing is
killed here, and no lease is kept. Imports grpc.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import loop_errors
from holdfast_agent.config.settings import Settings
from holdfast_agent.errors import AgentRefusedError
from holdfast_agent.master_link.commands import MAX_DONE
from holdfast_agent.master_link.session import MasterSession, identity
from holdfast_agent.policies import schedules
from holdfast_wire import messages as wire

log = logging.getLogger(__name__)

FIRST_HEARTBEAT_SECONDS = 0.5
MakeStore = Callable[[str], int]
"""Starts the TCPStore with this id, keeps it, and returns its port; called in a thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundAssignment:
    """An assignment with its round."""

    round: int
    assignment: wire.WorldAssignment


class TorchrunNode:
    """State that torchrun's process and its session thread share. Guarded by `changed`."""

    def __init__(
        self, settings: Settings, agent_id: str, address: str, make_store: MakeStore
    ) -> None:
        """Start nothing before `start`. address: this node's IP."""
        self._settings = settings
        self._agent_id = agent_id
        self._address = address
        self._make_store = make_store
        self.changed = threading.Condition()
        self.place: RoundAssignment | None = None
        """Newest assignment."""
        self.left: wire.Leave | None = None
        self.fault = ""
        """Reason why no session is possible any more."""
        self._store: wire.StorePrepared | None = None
        self._done: list[int] = []
        self._interval = FIRST_HEARTBEAT_SECONDS
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: MasterSession | None = None
        self._thread = threading.Thread(target=self._live, name="holdfast", daemon=True)
        self._handlers: Mapping[type[Any], Callable[[Any], None]] = {
            wire.Welcome: self._on_welcome,
            wire.WorldAssignment: self._on_assignment,
            wire.PrepareStore: self._on_prepare,
            wire.StopRound: lambda order: self._done_with(order.command_id, ok=True),
            wire.DumpStacks: lambda order: self._done_with(order.command_id, ok=False),
            wire.Leave: self._on_leave,
        }

    # --- torchrun's thread ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin the session."""
        self._thread.start()

    def report(self, message: Any, round_number: int) -> None:
        """Send a message about a round; callable from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._report, message, round_number)

    def stop(self, timeout_seconds: float) -> bool:
        """Send the queued messages, end session and thread; return True if they ended in time."""
        loop, session = self._loop, self._session
        if loop is not None and session is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(session.close(timeout_seconds), loop)
        self._thread.join(timeout_seconds + 1.0)
        return not self._thread.is_alive()

    # --- the session's thread -------------------------------------------------------------------

    def _live(self) -> None:
        try:
            asyncio.run(self._run())
        except AgentRefusedError as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("the session failed (fault %d)", loop_errors.count(__name__))
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, text: str) -> None:
        with self.changed:
            self.fault = text
            self.changed.notify_all()

    async def _run(self) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._session = session = MasterSession(
            settings,
            lambda: settings.master,
            random.Random(),  # noqa: S311 - only jitter
        )
        beats = asyncio.create_task(self._beat())
        try:
            await session.run(self)
        finally:
            for task in (beats, *self._tasks):
                task.cancel()

    async def _beat(self) -> None:
        sequence = 0
        while True:
            rank, interval = self._settings.node_rank, self._interval
            pause = schedules.aligned_pause(rank, interval, interval, time.time())
            await asyncio.sleep(pause)
            sequence += 1
            self._report(wire.Heartbeat(sequence=sequence))

    def _report(self, message: Any, round_number: int | None = None) -> None:
        """Send a message about a round; None: the newest."""
        if self._session is not None:
            self._session.report(message, round_number)

    def hello(self) -> wire.Hello:
        """Return the first message of a stream."""
        place = self.place
        return dataclasses.replace(
            identity(self._settings, self._agent_id, self._address),
            warm=True,
            round=place.round if place else 0,
            done_command_ids=tuple(self._done),
            store=self._store,
            assignment=place.assignment if place else None,
            unmanaged=True,
        )

    def on_down(self, reason: str) -> None:
        """Note the end of the stream: torchrun's workers go on."""
        if self._session is not None and not self._session.closing:
            log.warning("lost the job master: %s", reason)

    def on_message(self, message: Any, _: int) -> None:
        """Act on a message of the master that its fence allows."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(message)

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        if welcome.heartbeat_seconds > 0:
            self._interval = welcome.heartbeat_seconds
        if self._session is not None:
            self._session.repeat()

    def _on_assignment(self, assignment: wire.WorldAssignment) -> None:
        if self._session is None:
            return
        number = self._session.accepted.round
        self._session.statements.forget_before(number - 1)
        if self._store is not None and self._store.store_id == assignment.store_id:
            self._store = None
        with self.changed:
            if self.place is None or number > self.place.round:
                self.place = RoundAssignment(number, assignment)
                self.changed.notify_all()

    def _on_leave(self, order: wire.Leave) -> None:
        with self.changed:
            self.left = order
            self.changed.notify_all()
        self._done_with(order.command_id, ok=True)

    def _done_with(self, command_id: int, *, ok: bool) -> None:
        self._done = [*self._done, command_id][-MAX_DONE:]
        text = "" if ok else "not under torchrun"
        self._report(wire.CommandDone(command_id=command_id, ok=ok, text=text))

    def _on_prepare(self, order: wire.PrepareStore) -> None:
        task = asyncio.create_task(self._prepare(order.store_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self, store_id: str) -> None:
        try:
            port = await asyncio.to_thread(self._make_store, store_id)
        except (OSError, RuntimeError) as error:  # torch raises subclasses of RuntimeError
            self._report(
                wire.StorePrepared(store_id=store_id, host=self._address, error=str(error)), 0
            )
            return
        self._store = wire.StorePrepared(store_id=store_id, host=self._address, port=port)
        self._report(self._store, 0)

"""Runs the checkpoint server of this node (`holdfast.flash`): on its own thread, behind a socket.

An agent whose ranks use no `Checkpointer` has a socket that no process opens, and no thread. Arenas
lie in memfds that only this process and its ranks hold: they end with them. A backend lets them
outlive a killed agent, so that the next agent finds them: files of a directory, or memfds that the
job's runner holds too. If this agent ends by itself, it removes them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast import loop_errors
from holdfast.flash.server.protocol import listen
from holdfast_agent import temporary_directories
from holdfast_agent.errors import ArenasError
from holdfast_agent.text_limits import cut
from holdfast_wire import messages as wire

if TYPE_CHECKING:
    from holdfast.flash.memory.recovery import ArenaBackend
    from holdfast.flash.memory.slots import Version
    from holdfast.flash.server.coordinated_commit import CoordinatedCommit
    from holdfast.flash.server.coordinated_restore import Report
    from holdfast.flash.server.peer_parts import Described, Peers
    from holdfast.flash.server.service import ServerState, Service
    from holdfast.flash.storage.writer import SlotWork

log = logging.getLogger(__name__)

HELD_SHARE = 0.2
"""Share of the heartbeat interval between two reports of memory. At 0.5 s that is 0.1 s."""
IMPORT_SECONDS = 0.3
"""Time from a first round to the import of the server's modules, which takes 0.1 s of a core: the
round's processes are started by then, and import torch for seconds."""
MOST_WORLDS = 32
"""Rounds whose worlds are remembered: memory holds the newest three versions at most."""
MOST_UNTOLD = 64
"""Messages of masters that wait for a first trainer: one grant for each step of dead agents."""

_T = TypeVar("_T")
Send = Callable[[Any, int | None], None]
"""Sends a message to the master, about a round where one is named."""
Word = Callable[["CoordinatedCommit"], None]
"""Work for the server's thread."""


class Arenas:
    """Checkpoint server of the node; the first trainer starts it. Methods: on the event loop.

    It is the server's `Coordinator`: `peers`, `attempt`, `world` and `send` are for its thread.
    """

    def __init__(self, folder: str = "", job: str = "", runner: int = -1) -> None:
        """Make the socket, and open the backend of the arenas, if there is one.

        folder: Directory for the arenas; empty: none.
        job: The job's uid.
        runner: Descriptor of the connection to the runner that holds arenas too; -1: none.

        Raises ArenasError: the directory cannot be used, or another agent has it.
        """
        self.job = job
        """The job's uid."""
        self._volume = place_of(folder, job, runner)
        self._home = temporary_directories.make("arena_")
        self.path = str(self._home / "keeper")
        self._listener = listen(self.path)
        self._service: Service | None = None
        self._commit: CoordinatedCommit | None = None
        self._node: ServerState | None = None
        self._untold: collections.deque[Word] = collections.deque(maxlen=MOST_UNTOLD)
        """Work that came before the first trainer."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Send = lambda *_: None
        self._make_peers: Callable[[], Peers] | None = None
        self.peers: Peers
        """Connection to other agents, once there is a trainer."""
        self._worlds: dict[int, str] = {}
        self._held: tuple[wire.MemoryCheckpoints, int | None] | None = None
        self._held_timer: asyncio.TimerHandle | None = None
        self._import_timer: asyncio.TimerHandle | None = None
        self._import: asyncio.Future[None] | None = None
        self.interval_seconds = 0.5
        """Time between heartbeats."""

    def open(self, report: Send, peers: Callable[[], Peers]) -> None:
        """Wait for trainers; report: sends to the master; peers: connects to other agents."""
        self._report, self._make_peers = report, peers
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._begin)
        if self._volume is not None and not self._volume.is_empty:
            self._begin()  # while torch is imported; also needed if no trainer ever comes

    def begin_round(self, number: int, world_hash: str) -> None:
        """Note an assigned round; the hash of its world names the attempts of its nodes."""
        newest = list(self._worlds.items())[-MOST_WORLDS:]
        self._worlds = {**dict(newest), number: world_hash[:16]}
        if self._service is not None:
            self.tell(lambda commit: commit.restore.look_ahead())
        elif self._loop is not None and self._import_timer is None:
            # The first trainer would wait for it, and so would the event loop.
            self._import_timer = self._loop.call_later(IMPORT_SECONDS, self._import_ahead)

    def _import_ahead(self) -> None:
        if self._loop is not None and self._service is None:
            self._import = self._loop.run_in_executor(None, _import_server)

    def _begin(self) -> None:
        assert self._loop is not None, "open was called"  # noqa: S101
        self._loop.remove_reader(self._listener.fileno())
        try:
            from holdfast.flash.server.arena_store import ArenaStore
            from holdfast.flash.server.coordinated_commit import CoordinatedCommit
            from holdfast.flash.server.service import ServerState, Service
        except ImportError:  # xxhash is missing, or the package was changed under the job
            log.exception("checkpoints cannot be kept")
            self._listener.close()  # trainers that wait there get an error
            return
        self._node = node = ServerState(ArenaStore(led=True, backend=self._volume))
        assert self._make_peers is not None, "open was called"  # noqa: S101
        self.peers = self._make_peers()
        self._commit = CoordinatedCommit(node, self)
        self._service = service = Service(node, self._commit, self._commit.restore, self._listener)
        while self._untold:
            self.tell(self._untold.popleft())
        self._thread = threading.Thread(
            target=_serve, args=(service,), name="holdfast-arenas", daemon=True
        )
        self._thread.start()

    def receive(self, message: Any, number: int) -> None:
        """Pass a master's message about a round to the server, once there is a trainer.

        It may be a grant for the parts of dead agents.
        """
        self.tell(lambda commit: act_on(message, number, commit))

    def tell(self, word: Word) -> None:
        """Run work on the server's thread, once there is a trainer."""
        service, commit = self._service, self._commit
        if service is None or commit is None:
            self._untold.append(word)
        else:
            service.post(lambda: word(commit))

    def restate(self) -> None:
        """Repeat to a master that has just welcomed this agent all that it may not know."""
        if self._service is not None:  # otherwise there is nothing, and grants need the queue
            self.tell(lambda commit: commit.restate())

    async def describe(self, version: Version, rank: int) -> Described | None:
        """Return the description of a part in memory here; None: it is not here."""
        from holdfast.flash.server.peer_parts import describe

        return await self._ask(
            lambda node, taken: describe(node.arenas, node.worker, version, rank, taken),
            lambda _: None,
        )

    async def lend(self, version: Version, rank: int) -> SlotWork | None:
        """Return a part in memory here, which stays until `take_back`; None: it is not here."""
        return await self._ask(
            lambda node, taken: taken(node.arenas.saved(rank, version)), self.take_back
        )

    def take_back(self, loan: SlotWork | None) -> None:
        """End the loan of a part."""
        if self._node is not None and loan is not None:
            self._node.worker.post(functools.partial(self._node.arenas.done, loan))

    async def _ask(
        self,
        word: Callable[[ServerState, Callable[[_T | None], None]], None],
        too_late: Callable[[_T | None], None],
    ) -> _T | None:
        """Ask the server on its own thread; too_late: called if the caller has stopped waiting."""
        node, loop = self._node, self._loop
        if node is None or loop is None:
            return None
        answer: asyncio.Future[_T | None] = loop.create_future()

        def end(value: _T | None) -> None:
            if answer.done():
                too_late(value)
            else:
                answer.set_result(value)

        def ask() -> None:
            try:
                word(node, lambda one: _soon(loop, end, one))
            except Exception:  # the top of the question: its caller must get the error
                number = loop_errors.count(__name__)
                log.exception("the checkpoint server gave an agent no answer (fault %d)", number)
                _soon(loop, end, None)

        node.worker.post(ask)
        return await answer

    def attempt(self, number: int) -> str:
        """Return the name of a round's attempts; from any thread."""
        return self._worlds.get(number) or f"r{number}"

    def world(self, number: int) -> str:
        """Return the name of a round's world; empty: not known. From any thread."""
        return self._worlds.get(number, "")

    def send(self, message: Report, round_number: int | None = None) -> None:
        """Send to the master, from any thread."""
        if self._loop is not None:
            _soon(self._loop, self._send, message, round_number)

    def _send(self, message: Report, number: int | None) -> None:
        """Send to the master; of several reports of memory within a moment only the newest."""
        if isinstance(message, wire.MemoryCheckpoints):
            self._held = (message, number)
            if self._held_timer is None:
                self._send_held()
            return
        if not isinstance(message, wire.RestoreRequest):
            message = dataclasses.replace(message, error=cut(message.error))
        self._report(message, number)

    def _send_held(self) -> None:
        self._held_timer = None
        if self._held is not None and self._loop is not None:
            self._report(*self._held)
            self._held = None
            pause = HELD_SHARE * self.interval_seconds
            self._held_timer = self._loop.call_later(pause, self._send_held)

    async def close(self, seconds: float, *, over: bool = False) -> None:
        """Wait for work in flight, `seconds` at most; afterwards the memory is free.

        over: the job is over: unfinished attempts on storage are deleted too.
        """
        for timer in (self._held_timer, self._import_timer):
            if timer is not None:
                timer.cancel()
        if self._import is not None:
            await self._import
        if self._service is None or self._thread is None:
            if self._loop is not None and self._listener.fileno() >= 0:
                self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        else:
            self._service.stop(over=over)
            await asyncio.to_thread(self._thread.join, seconds)
            if self._thread.is_alive():
                log.warning("a checkpoint was still being written after %.0f s: given up", seconds)
        if self._volume is not None:
            self._volume.close()  # even if the server's thread was given up
        temporary_directories.remove(self._home)


def _import_server() -> None:
    """Import what `Arenas._begin` needs, which reports a failure, if a trainer ever comes."""
    with contextlib.suppress(ImportError):
        importlib.import_module("holdfast.flash.server.coordinated_commit")
        importlib.import_module("holdfast.flash.memory.hashes")


_HANDLERS: Final[Mapping[type, Callable[[CoordinatedCommit, Any, int], None]]] = {
    wire.RestorePlan: lambda commit, message, number: commit.restore.start_from(number, message),
    wire.CommitGrant: lambda commit, message, _: commit.grant(message),
    wire.CommitAnnounced: lambda commit, message, _: commit.announce(message),
    wire.ReleaseCheckpoints: lambda commit, message, _: commit.release(message),
    wire.FlushToStorage: lambda commit, message, _: commit.flush_to_storage(message),
}


def act_on(message: Any, number: int, commit: CoordinatedCommit) -> None:
    """Have the server act on a master's message about a round; on the server's thread.

    Raises KeyError for a message that is not about checkpoints.
    """
    _HANDLERS[type(message)](commit, message, number)


def _serve(service: Service) -> None:
    try:
        for note in service.arenas.take_over():
            log.warning("of what a dead agent left: %s", note)
        service.run()
    except Exception:  # the top of the thread's loop
        number = loop_errors.count(__name__)
        log.exception("the checkpoint server failed; no checkpoint is kept now (fault %d)", number)
    finally:
        service.arenas.close()


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the agent has ended: the call has no effect any more
        log.debug("the event loop is closed")


def place_of(folder: str, job: str, runner: int) -> ArenaBackend | None:
    """Return the backend; None: arenas in memory that ends with this agent.

    Raises ArenasError: the directory cannot be used, or another agent has it.
    """
    if not folder and runner < 0:
        return None
    from holdfast.flash.memory.fdstore_backend import FdStoreBackend
    from holdfast.flash.memory.file_backend import FileBackend
    from holdfast.flash.memory.recovery import BackendError

    try:
        return FileBackend(folder, job) if folder else FdStoreBackend(runner, job)
    except BackendError as error:
        if folder:
            raise ArenasError(str(error)) from error
        # A wrapper around this agent may have closed it: the job can train without it.
        log.warning("checkpoints in memory are lost with this agent: %s", error)
        return None

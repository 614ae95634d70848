"""Keeps the flash checkpoints of this node: a keeper on a thread of its own, and where it listens.

Belongs here: its life within the agent's, and the way between it and the stream to the master. Does
not belong here: what it does (`holdfast.flash`), what a message looks like (`checkpoint_words`).

An agent whose ranks use no `Checkpointer` has a socket that nobody opens, and no thread. Memory is
in memfds that this process and its ranks alone hold, and is gone when they are; or, so that the
next agent finds it when this one is killed, in files of a directory, or in memfds that the job's
runner holds too. When this one ends by itself, it is gone.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import faults
from holdfast.flash.sockets import listen
from holdfast_agent import scratch
from holdfast_agent.arena_places import place_of

if TYPE_CHECKING:
    from holdfast.flash.decide.slots import Version
    from holdfast.flash.gathering import Described, Peers
    from holdfast.flash.lead import Answer, Question, Written
    from holdfast.flash.led import LedService
    from holdfast.flash.lending import Loan
    from holdfast.flash.persisting import Grant

log = logging.getLogger(__name__)

HELD_SHARE = 0.2
"""Of the heartbeat interval: what is in memory is told so often at most. At 0.5 s that is 0.1 s."""
MOST_WORLDS = 32
"""Rounds whose worlds are known by name: memory holds the newest three versions at most."""
MOST_UNTOLD = 64
"""Words of masters that wait for a first trainer: a grant for each step that dead agents left."""

_T = TypeVar("_T")
Report = Callable[[Any, int | None], None]
"""Sends a message to the master, about a round where one is named."""


class Arenas:
    """The node's keeper; started by the first trainer that connects. Methods: the event loop's."""

    def __init__(self, folder: str = "", job: str = "", runner: int = -1) -> None:
        """Make the socket, and take what outlives this agent, if there is anything.

        Args:
            folder: the directory that arenas are to lie in; empty: none.
            job: the job's uid.
            runner: a descriptor of the connection to who holds arenas too; -1: nobody does, or
                they lie in a directory.

        Raises:
            ArenasError: the directory cannot be used, or is another agent's.
        """
        self.job = job
        """Its uid."""
        self._volume = place_of(folder, job, runner)
        self._home = scratch.make("arena_")
        self.path = str(self._home / "keeper")
        self._listener = listen(self.path)
        self._service: LedService | None = None
        self._untold: collections.deque[Callable[[LedService], None]]
        self._untold = collections.deque(maxlen=MOST_UNTOLD)
        """Words that came before the first trainer."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: Report = lambda *_: None
        self._peers: Callable[[], Peers] | None = None
        self._worlds: dict[int, str] = {}
        self._held: tuple[int, frozenset[Version], bool] | None = None
        self._held_timer: asyncio.TimerHandle | None = None
        self.interval_seconds = 0.5
        """Between heartbeats."""

    def open(self, report: Report, peers: Callable[[], Peers]) -> None:
        """Begin to wait for trainers; report: sends to the master; peers: the way to others."""
        self._report, self._peers = report, peers
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._begin)
        if self._volume is not None and not self._volume.is_empty:
            self._begin()  # while torch is imported, and also where no trainer ever comes

    def begin_round(self, number: int, world_hash: str) -> None:
        """A round was assigned; its hash names what its nodes write together."""
        newest = list(self._worlds.items())[-MOST_WORLDS:]
        self._worlds = {**dict(newest), number: world_hash[:16]}

    def _begin(self) -> None:
        assert self._loop is not None, "open was called"  # noqa: S101
        self._loop.remove_reader(self._listener.fileno())
        try:
            from holdfast.flash.keeper import Keeper
            from holdfast.flash.led import LedService
        except ImportError:  # xxhash is missing, or the package was changed under the job
            log.exception("checkpoints cannot be kept")
            self._listener.close()  # who waits there is told
            return
        keeper = Keeper(led=True, volume=self._volume)
        assert self._peers is not None, "open was called"  # noqa: S101
        service = LedService(keeper, self._listener, _Lead(self, self._loop, self._peers()))
        self._service = service
        while self._untold:
            self.tell(self._untold.popleft())
        self._thread = threading.Thread(
            target=_serve, args=(service,), name="holdfast-arenas", daemon=True
        )
        self._thread.start()

    def tell(self, word: Callable[[LedService], None]) -> None:
        """Pass a master's word on, once there is a trainer: it may grant what dead agents wrote."""
        service = self._service
        if service is None:
            self._untold.append(word)
        else:
            service.post(lambda: word(service))

    def restate(self) -> None:
        """Tell a master that has just welcomed this agent what it may not know."""
        if self._service is not None:  # else there is nothing, and grants need the room
            self.tell(lambda service: service.restate())

    async def describe(self, version: Version, rank: int) -> Described | None:
        """Return what a part in memory here consists of; None: it is not here."""
        return await self._ask(
            lambda service, taken: service.lender.describe(version, rank, taken), lambda _: None
        )

    async def lend(self, version: Version, rank: int) -> Loan | None:
        """Return a part in memory here, which stays until `take_back`; None: it is not here."""
        return await self._ask(
            lambda service, taken: taken(service.lender.lend(version, rank)),
            lambda loan: None if loan is None else self.take_back(loan),
        )

    def take_back(self, loan: Loan) -> None:
        """Nobody reads a part any more."""
        self.tell(lambda service: service.lender.take_back(loan))

    async def _ask(
        self,
        word: Callable[[LedService, Callable[[_T | None], None]], None],
        too_late: Callable[[_T | None], None],
    ) -> _T | None:
        """Ask the keeper on its own thread; too_late: what if nobody waits for it any more."""
        loop = self._loop
        if self._service is None or loop is None:
            return None
        answer: asyncio.Future[_T | None] = loop.create_future()

        def end(value: _T | None) -> None:
            if answer.done():
                too_late(value)
            else:
                answer.set_result(value)

        def ask(service: LedService) -> None:
            try:
                word(service, lambda one: _soon(loop, end, one))
            except Exception:  # the top of the question: who asks must hear of it
                number = faults.count(__name__)
                log.exception("the keeper could not answer another agent (fault %d)", number)
                _soon(loop, end, None)

        self.tell(ask)
        return await answer

    def attempt(self, number: int) -> str:
        """Return the name of a round's attempts; from any thread."""
        return self._worlds.get(number) or f"r{number}"

    def world(self, number: int) -> str:
        """Return what names the world of a round; empty: not known. From any thread."""
        return self._worlds.get(number, "")

    def say(self, message: Any, number: int | None) -> None:
        """Send to the master."""
        self._report(message, number)

    def say_held(self, number: int, versions: frozenset[Version], *, whole: bool) -> None:
        """Send what is in memory, the newest word of several within a moment."""
        self._held = (number, versions, whole)
        if self._held_timer is None and self._loop is not None:
            pause = HELD_SHARE * self.interval_seconds
            self._send_held()
            self._held_timer = self._loop.call_later(pause, self._held_due)

    def _held_due(self) -> None:
        self._held_timer = None
        if self._held is not None:
            number, versions, whole = self._held
            self.say_held(number, versions, whole=whole)

    def _send_held(self) -> None:
        from holdfast_agent import checkpoint_words

        if self._held is not None:
            number, versions, whole = self._held
            self._held = None
            self.say(checkpoint_words.held(versions, whole=whole), number)

    async def close(self, seconds: float, *, over: bool = False) -> None:
        """Let work in flight end, for so long at most; afterwards the memory is free.

        over: the job is; what was begun on storage and cannot be committed any more goes too.
        """
        if self._held_timer is not None:
            self._held_timer.cancel()
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
            self._volume.close()  # also where the keeper's thread was given up
        scratch.remove(self._home)


def _serve(service: LedService) -> None:
    try:
        for note in service.keeper.take_over():
            log.warning("of what a dead agent left: %s", note)
        service.run()
    except Exception:  # the top of the thread's loop
        number = faults.count(__name__)
        log.exception("the keeper failed; nothing is kept from now on (fault %d)", number)
    finally:
        service.keeper.close()


class _Lead:
    """The way from the keeper's thread to the master; see `holdfast.flash.lead.Lead`."""

    def __init__(self, arenas: Arenas, loop: asyncio.AbstractEventLoop, peers: Peers) -> None:
        self._arenas, self._loop = arenas, loop
        self.job, self.peers = arenas.job, peers

    def attempt(self, round_number: int) -> str:
        return self._arenas.attempt(round_number)

    def world(self, round_number: int) -> str:
        return self._arenas.world(round_number)

    def held(self, round_number: int, versions: frozenset[Version], *, whole: bool) -> None:
        self._call(lambda: self._arenas.say_held(round_number, versions, whole=whole))

    def written(self, parts: Written) -> None:
        from holdfast_agent import checkpoint_words

        self._call(self._arenas.say, checkpoint_words.shard(parts), None)

    def committed(self, grant: Grant, error: str) -> None:
        from holdfast_agent import checkpoint_words

        self._call(self._arenas.say, checkpoint_words.committed(grant, error), None)

    def asks(self, question: Question) -> None:
        from holdfast_agent import checkpoint_words

        self._call(self._arenas.say, checkpoint_words.asked(question), question.round)

    def checked(self, round_number: int, answer: Answer, error: str) -> None:
        from holdfast_agent import checkpoint_words

        self._call(self._arenas.say, checkpoint_words.checked(answer, error), round_number)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        _soon(self._loop, function, *args)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the agent has ended: nobody is left to be told
        log.debug("the event loop is closed")

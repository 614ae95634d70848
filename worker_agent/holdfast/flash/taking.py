"""Takes the saves of one rank, one after another: each into a free slot, whole or given up.

Belongs here: the course of one save, from the free slot to the word to the keeper. Does not belong
here: when one is due (`pacing`), whether the plan still fits (`preparing`), the copy (`saving`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from time import monotonic_ns
from typing import Final

from holdfast.flash.arena import Slot
from holdfast.flash.beside import Overlap
from holdfast.flash.client import Client
from holdfast.flash.decide.slots import Version, choose
from holdfast.flash.pacing import Pacer
from holdfast.flash.preparing import Preparer
from holdfast.flash.saving import Saver

_SLOT_S: Final = 600.0
"""Seconds that a save which must not be skipped waits for a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A save that is to be made."""

    version: Version
    durable: bool
    """On storage too."""
    must: bool
    """Wait for a slot; else the save is left out where none is free."""
    awaited: bool = True
    """What `wait` waits for is it too, if it is to be durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A save that has its slot."""

    wish: Wish
    saver: Saver
    bodies: list[bytes]
    slot: Slot
    before: tuple[int, bool]
    """What `Taker.newest` was before it."""


class Taker:
    """The saves of one rank."""

    def __init__(self, preparer: Preparer, pacer: Pacer, *, threads: int, overlap: bool) -> None:
        """Take what has a saver ready, and what hears of the costs; the rest as `Checkpointer`."""
        self._preparer, self._pacer = preparer, pacer
        self._threads, self._overlap = threads, overlap
        self._beside = Overlap(pacer.waited)
        self.newest: tuple[int, bool] = (0, False)
        """The step that was saved last, and whether it was for storage."""
        self.skipped = 0
        """Saves that were left out: they found no free slot, or their memory was being made."""
        self._lock = RLock()
        """One save at a time; a signal's handler may save within another."""

    def take(self, client: Client, wish: Wish) -> bool:
        """Save; False when there is no slot for it, or no keeper."""
        with self._lock:
            self.join()
            began, planned = monotonic_ns(), self._preparer.saver
            client.listen()
            if self.newest[0] == wish.version.step:
                return self._promote(client, wish)
            begun = self._begin(client, wish)
            if begun is None:
                self.skipped += 1
                return False
            self._copy(client, begun)
            if begun.saver is planned and (wish.awaited or not wish.durable):
                # A layout's first save costs more: it is not counted.
                self._pacer.saved(began, storage=wish.durable)
            return True

    def _begin(self, client: Client, wish: Wish) -> _Begun | None:
        """Take a free slot for a save; None: there is none now."""
        prepared = self._preparer.ready(client, wait=wish.must)
        if prepared is None:
            return None
        saver, bodies = prepared
        if wish.must:
            client.wait_for_slot(saver.arena, _SLOT_S)
        index = choose(saver.arena.views()).slot
        if index is None or client.is_lost():
            return None
        before, self.newest = self.newest, (wish.version.step, wish.durable)
        if wish.durable and wish.awaited:
            client.expect_durable(wish.version.step)
        slot = saver.arena.slots[index]
        return _Begun(wish=wish, saver=saver, bodies=bodies, slot=slot, before=before)

    def _copy(self, client: Client, begun: _Begun) -> None:
        saver, slot, bodies = begun.saver, begun.slot, begun.bodies

        def finish() -> None:
            with self._whole_or_given_up(client, begun):
                saver.copy(slot, trained=True, threads=self._threads)
                slot.commit([len(body) for body in bodies])
            client.saved(begun.wish.version, durable=begun.wish.durable)

        with self._whole_or_given_up(client, begun):
            saver.begin(slot, begun.wish.version, bodies)
            saver.start(slot)
            saver.copy(slot, trained=False, threads=self._threads)
        if self._overlap:
            self._beside.begin(finish)
        else:
            finish()

    @contextmanager
    def _whole_or_given_up(self, client: Client, begun: _Begun) -> Iterator[None]:
        """Give up a slot whose copy is broken off, by a signal say: nobody waits for it.

        Takes no lock: it runs beside training too, and the next save waits for that with the lock.
        """
        version = begun.wish.version
        try:
            yield
        except BaseException:
            if begun.saver.give_up(begun.slot):
                self.newest = begun.before
                client.forget(version.step)
            else:  # it was whole before
                client.saved(version, durable=begun.wish.durable)
            raise

    def _promote(self, client: Client, wish: Wish) -> bool:
        """Have a step that is in memory written to storage too, unless it is already to be."""
        if wish.durable and not self.newest[1]:
            self.newest = (wish.version.step, True)
            client.expect_durable(wish.version.step)
            client.saved(wish.version, durable=True)
        return not client.is_lost()

    def join(self) -> None:
        """Wait for an overlapped copy, if one runs; raises what it raised."""
        self._beside.join()

    def close(self) -> None:
        """Watch the optimizers no longer."""
        self._beside.close()

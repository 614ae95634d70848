"""Gets a rank ready to save: a plan of its state, the arena for it, and a saver that knows both.

Belongs here: when a plan or an arena still fits, and that a large arena is made while training goes
on. Does not belong here: what a plan is (`planning`), the copy (`saving`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.flash.arena import BYTES_ROOM, SLOTS, Arena, ArenaError, geometry_of
from holdfast.flash.beside import Beside
from holdfast.flash.client import ANSWER_S, CheckpointError, Client
from holdfast.flash.images import mapped
from holdfast.flash.link import Layout, LinkError
from holdfast.flash.planning import Place, Plan, Planner
from holdfast.flash.saving import Changed, RoomNeeded, Saver, plain
from holdfast.flash.state import Leaves, Parts, collect
from holdfast.flash.table import encode

_MOST_PLANS: Final = 3
"""A first one, one with more room, and one for a state that changed meanwhile."""
QUICK_BYTES: Final = 256 * 2**20
"""An arena up to this is made in a third of a second: to wait for it costs less than to go on
without a checkpoint."""


@dataclass(eq=False, slots=True)
class _Coming:
    """An arena that was asked for."""

    plan: Plan
    leaves: Leaves
    arena: Arena | None = None
    """It is there, and being faulted in by `work`."""
    work: Beside | None = None


class Preparer:
    """Keeps the saver of one rank fitting."""

    def __init__(self, parts: Parts, place: Place) -> None:
        """Take what is saved, and whose it is."""
        self._parts, self._place = parts, place
        self._planner = Planner(place)
        self._mapped: dict[int, Arena] = {}
        self._room = BYTES_ROOM
        self._coming: _Coming | None = None
        self._began = False
        self.saver: Saver | None = None
        """The newest; None: nothing is planned yet, or its arena is being made."""

    def map(self, descriptors: tuple[int, ...]) -> Mapping[int, Arena]:
        """Map the arenas of a restore; the next save fills one of them.

        To map memory anew costs as much as to copy it.
        """
        self._mapped = mapped(descriptors)
        return self._mapped

    def let_go(self, ranks: Iterable[int]) -> None:
        """Let go of the arenas of these ranks: they are other nodes'."""
        foreign = set(ranks)
        own = self._mapped.items()
        self._mapped = {at: arena for at, arena in own if arena.table.rank not in foreign}

    def begin(self, client: Client) -> None:
        """Have a large arena made while training goes on, before a save needs it.

        Call it after steps: an optimizer has no state before its first.
        """
        if self.saver is None and self._coming is not None:
            self._has_come(client, self._coming, wait=False)
        elif self.saver is None and not self._began:
            self._began = True
            leaves = collect(self._parts, self._place.rank)
            size = sum(plain(leaf.tensor).nbytes for leaf in leaves.tensors)
            if SLOTS * size > QUICK_BYTES:
                self._plan(client, wait=False)

    def ready(self, client: Client, *, wait: bool) -> tuple[Saver, list[bytes]] | None:
        """Return a saver whose plan fits the state of this moment, and the small values.

        wait: for an arena that is being made; None: it still is. Raises `CheckpointError` when
        there is no room for it, it is no arena, or the state changes all the time.
        """
        for _ in range(_MOST_PLANS):
            try:
                if self.saver is not None:
                    self.saver.check()
                    return self.saver, self.saver.values()
            except RoomNeeded as error:
                self._room = 2 * error.size
            except Changed:
                pass
            if self._coming is not None:
                there = self._has_come(client, self._coming, wait=wait)
            else:
                there = self._plan(client, wait=wait)
            if not there:
                return None
        raise CheckpointError("the state changes while it is being saved")

    def _plan(self, client: Client, *, wait: bool) -> bool:
        """Plan anew; False: the arena for it is being made."""
        leaves = collect(self._parts, self._place.rank)
        plan = self._planner.plan(leaves, self._room)
        body = encode(plan.table)
        arena = self.saver.arena if self.saver is not None else None
        if arena and arena.body == body and arena.geometry.bytes_room >= self._room:
            self.saver = Saver(plan, leaves, arena, before=self.saver)
            return True
        self.saver = None
        layout = Layout(table=body.decode(), bytes_room=self._room, slots=SLOTS)
        self._coming = coming = _Coming(plan, leaves)
        client.ask_for_arena(layout)
        geometry = geometry_of(plan.table, len(body), SLOTS, self._room)
        return self._has_come(client, coming, wait=wait or geometry.total <= QUICK_BYTES)

    def _has_come(self, client: Client, coming: _Coming, *, wait: bool) -> bool:
        """Take an arena that was asked for, if it is there and faulted in; True: it is."""
        try:
            if coming.work is None:
                descriptors = client.arena(ANSWER_S if wait else 0.0)
                if not descriptors:
                    return False
                known, self._mapped = self._mapped, {}
                [(inode, fresh)] = mapped(descriptors).items()
                coming.arena = arena = known.get(inode, fresh)
                coming.work = Beside(lambda: arena.populate(write=True))
            if not wait and not coming.work.is_done:
                return False
            coming.work.join()
        except ArenaError as error:
            self._coming = None
            raise CheckpointError(f"the memory that the agent gave: {error}") from error
        except (CheckpointError, LinkError, OSError):
            self._coming = None  # the next save asks again
            raise
        assert coming.arena is not None, "it was mapped"  # noqa: S101
        self._coming = None
        self.saver = Saver(coming.plan, coming.leaves, coming.arena)
        return True

    def close(self) -> None:
        """Let go of everything."""
        self.saver = self._coming = None
        self._mapped = {}

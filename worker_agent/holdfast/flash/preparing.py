"""Gets a rank ready to save: a plan of its state, the arena for it, and a saver that knows both.

Belongs here: when a plan or an arena still fits. Does not belong here: what a plan is (`planning`),
the copy (`saving`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.flash.arena import BYTES_ROOM, SLOTS, Arena
from holdfast.flash.client import CheckpointError, Client
from holdfast.flash.images import mapped
from holdfast.flash.link import Granted, Layout
from holdfast.flash.planning import Place, Planner
from holdfast.flash.saving import Changed, RoomNeeded, Saver
from holdfast.flash.state import Parts, collect
from holdfast.flash.table import encode

_MOST_PLANS = 3
"""A first one, one with more room, and one for a state that changed meanwhile."""


class Preparer:
    """Keeps the saver of one rank fitting."""

    def __init__(self, parts: Parts, place: Place) -> None:
        """Take what is saved, and whose it is."""
        self._parts, self._place = parts, place
        self._planner = Planner(place)
        self._mapped: dict[int, Arena] = {}
        self._room = BYTES_ROOM
        self.saver: Saver | None = None
        """The newest; None: nothing is planned yet."""

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

    def ready(self, client: Client) -> tuple[Saver, list[bytes]]:
        """Return a saver whose plan fits the state of this moment, and the small values.

        Raises `CheckpointError` when there is no room for it, or it changes all the time.
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
            self._plan(client)
        raise CheckpointError("the state changes while it is being saved")

    def _plan(self, client: Client) -> None:
        leaves = collect(self._parts, self._place.rank)
        plan = self._planner.plan(leaves, self._room)
        body = encode(plan.table)
        arena = self.saver.arena if self.saver is not None else None
        if arena and arena.body == body and arena.geometry.bytes_room >= self._room:
            self.saver = Saver(plan, leaves, arena, before=self.saver)
            return
        self.saver = None
        known, self._mapped = self._mapped, {}
        layout = Layout(table=body.decode(), bytes_room=self._room, slots=SLOTS)
        _, descriptors = client.ask(layout, Granted)
        [(inode, fresh)] = mapped(descriptors).items()
        arena = known.get(inode, fresh)
        arena.populate(write=True)
        self.saver = Saver(plan, leaves, arena)

    def close(self) -> None:
        """Let go of everything."""
        self.saver = None
        self._mapped = {}

"""Saves of one rank, one after another: each goes into a free slot, and is whole or given up.

Belongs here: the refusal of a step below one that is there already; a save's preparation, which
binds a copier to a plan of the state and to an arena for the plan, and has a large arena made while
training goes on; the course of one save, from the free slot to the message to the server, also
where its copy overlaps with training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, Thread
from time import monotonic_ns
from typing import Any, Final

from holdfast.flash.memory.arena import (
    BYTES_ROOM,
    SLOTS,
    Arena,
    ArenaError,
    ArenaSlot,
    geometry_of,
    mapped,
)
from holdfast.flash.memory.slots import Version, choose
from holdfast.flash.server.protocol import LinkError, Restore
from holdfast.flash.storage.filesystem import Disk
from holdfast.flash.storage.manifest import newest_of
from holdfast.flash.trainer.client import ANSWER_SECONDS, CheckpointError, Client
from holdfast.flash.trainer.collectives import REFUSED, from_all
from holdfast.flash.trainer.copier import Changed, Copier, RoomNeeded, plain
from holdfast.flash.trainer.holders import Holders, describe, holders_of
from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.planner import ImagePlan, Planner, RankPosition, fits, parts_of_model
from holdfast.flash.trainer.restore import RestoreError
from holdfast.flash.trainer.save_policy import TierSchedule
from holdfast.flash.trainer.state_dict import Parts, collect

_SLOT_SECONDS: Final = 600.0
"""Seconds for which a save that must not be skipped waits for a slot."""
_MOST_PLANS: Final = 3
"""Plans per save: the first one, one with more room, one for a state that changed meanwhile."""
QUICK_BYTES: Final = 256 * 2**20
"""Bytes of an arena that is made in a third of a second: waiting for it costs less than going on
without a checkpoint."""
_BACKWARDS: Final = (
    "step {} is there already, and load() takes the greatest: what is saved below it would be "
    "lost. Go on counting from what load() returned, or give this run a directory of its own"
)
_NOT_LOADED: Final = (
    "{} has step {} of an earlier run, and the next load() would return that one: what is saved "
    "below it would be lost. Call load() before the first step to go on from there, or give this "
    "run a directory of its own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """Request for a save."""

    version: Version
    durable: bool
    """Save to storage too."""
    must: bool
    """Wait for a slot; otherwise the save is skipped if no slot is free."""
    awaited: bool = True
    """`wait` waits for this save too, if it is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A save that has a slot."""

    request: SaveRequest
    copier: Copier
    bodies: list[bytes]
    slot: ArenaSlot
    before: tuple[int, bool]
    """`Saver.newest` before this save."""


class CopyThread:
    """A copy on a thread of its own, during forward and backward."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="holdfast-copy")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error

    @property
    def is_done(self) -> bool:
        """True when `join` need not wait."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end of the copy; raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error


class Saver:
    """Saves of one rank."""

    def __init__(
        self, preparer: Preparer, schedule: TierSchedule, *, threads: int, overlap: bool
    ) -> None:
        self._preparer, self._schedule = preparer, schedule
        self._threads, self._overlap = threads, overlap
        self._copying: CopyThread | None = None
        """The overlapped copy; joined before the next step of any optimizer."""
        self._hook: Any = None
        self.newest: tuple[int, bool] = (0, False)
        """Step that was saved last; True if it was for storage."""
        self.skipped = 0
        """Skipped saves: they found no free slot, or their memory was being made."""
        self._lock = RLock()
        """Allows one save at a time; a signal's handler may save within another save."""

    def take(self, client: Client, request: SaveRequest) -> bool:
        """Save; False if there is no slot for it, or no server."""
        with self._lock:
            self.join()
            began, planned = monotonic_ns(), self._preparer.copier
            client.listen()
            if self.newest[0] == request.version.step:
                return self._promote(client, request)
            begun = self._begin(client, request)
            if begun is None:
                self.skipped += 1
                return False
            self._copy(client, begun)
            if begun.copier is planned and (request.awaited or not request.durable):
                # The first save of a layout costs more: it does not count.
                self._schedule.meter.saved(began, monotonic_ns(), storage=request.durable)
            return True

    def _begin(self, client: Client, request: SaveRequest) -> _Begun | None:
        """Take a free slot for a save; None: no slot is free."""
        prepared = self._preparer.ready(client, wait=request.must)
        if prepared is None:
            return None
        copier, bodies = prepared
        if request.must:
            client.wait_for_slot(copier.arena, _SLOT_SECONDS)
        index = choose(copier.arena.views())
        if index is None or client.is_lost():
            return None
        before, self.newest = self.newest, (request.version.step, request.durable)
        if request.durable and request.awaited:
            client.expect_durable(request.version.step)
        slot = copier.arena.slots[index]
        return _Begun(request=request, copier=copier, bodies=bodies, slot=slot, before=before)

    def _copy(self, client: Client, begun: _Begun) -> None:
        copier, slot, bodies = begun.copier, begun.slot, begun.bodies

        def finish() -> None:
            with self._whole_or_given_up(client, begun):
                copier.copy(slot, trained=True, threads=self._threads)
                slot.commit([len(body) for body in bodies])
            client.saved(begun.request.version, durable=begun.request.durable)

        with self._whole_or_given_up(client, begun):
            copier.begin(slot, begun.request.version, bodies)
            copier.start(slot)
            copier.copy(slot, trained=False, threads=self._threads)
        if self._overlap:
            self._watch_optimizers()
            self._copying = CopyThread(finish)
        else:
            finish()

    @contextmanager
    def _whole_or_given_up(self, client: Client, begun: _Begun) -> Iterator[None]:
        """Give up a slot if its copy is broken off, such as by a signal: no rank waits for it.

        It takes no lock: it runs beside training too, and the next save waits for it with the lock
        held.
        """
        version = begun.request.version
        try:
            yield
        except BaseException:
            if begun.copier.give_up(begun.slot):
                self.newest = begun.before
                client.forget(version.step)
            else:  # the slot was whole before
                client.saved(version, durable=begun.request.durable)
            raise

    def _promote(self, client: Client, request: SaveRequest) -> bool:
        """Have a step in memory written to storage too, unless that is under way already."""
        if request.durable and not self.newest[1]:
            self.newest = (request.version.step, True)
            client.expect_durable(request.version.step)
            client.saved(request.version, durable=True)
        return not client.is_lost()

    def join(self) -> None:
        """Wait for an overlapped copy, if one runs; raises its error."""
        copying, self._copying = self._copying, None
        if copying is not None:
            began = monotonic_ns()
            copying.join()
            self._schedule.meter.waited(monotonic_ns() - began)

    def _watch_optimizers(self) -> None:
        if self._hook is None:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            self._hook = register_optimizer_step_pre_hook(lambda *_: self.join())

    def close(self) -> None:
        """Stop watching the optimizers."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class SaveOrder:
    """The least step that this run may save: a load takes the greatest, so none may be below it."""

    def __init__(self, root: str) -> None:
        """root: directory of the checkpoints; empty: none."""
        self._root = root
        self._least: tuple[int, str] | None = None

    def begin_at(self, step: int) -> None:
        """Note the step that `load()` returned; 0: there was no checkpoint."""
        self._least = (step, _BACKWARDS.format(step))

    def refusal(self, step: int, newest: int) -> str:
        """Return the reason, with its remedy, not to save a step: a load takes a later one.

        newest: step that this run saved or loaded last; 0: none. Empty: the step may be saved.
        """
        if step < newest:
            return _BACKWARDS.format(newest)
        if self._least is None:
            found = newest_of(Disk(), self._root) if self._root else 0
            self._least = (found, _NOT_LOADED.format(self._root, found))
        least, reason = self._least
        return reason if step < least else ""


@dataclass(eq=False, slots=True)
class _Coming:
    """An arena that was requested."""

    plan: ImagePlan
    leaves: Leaves
    arena: Arena | None = None
    """The arena, once it is made; `work` faults it in."""
    work: CopyThread | None = None


class Preparer:
    """Keeps one rank's copier up to date with the state."""

    def __init__(self, parts: Parts, place: RankPosition) -> None:
        self._parts, self._place = parts, place
        self._planner = Planner(place)
        self._mapped: dict[int, Arena] = {}
        self._room = BYTES_ROOM
        self._coming: _Coming | None = None
        self._began = self._has_met = False
        self._listed: Leaves | None = None
        self._unlisted: int | None = None
        """First rank whose state could not be listed at the last meeting."""
        self.copier: Copier | None = None
        """Newest copier; None: there is no plan yet, or its arena is being made."""

    @property
    def holders(self) -> Holders:
        """Holders of each name, where the ranks have exchanged them."""
        return self._planner.holders

    def meet(self, *, again: bool) -> None:
        """Exchange the names of all ranks, unless that was done; a collective.

        again: even if it was done. Raises `StateError` if equal names have different tensors.
        """
        if again:
            self._listed = None
        if self._place.world == 1 or (self._has_met and not again):
            return
        self._has_met = True
        body = b""  # the next save reports a state that cannot be collected
        try:
            body = describe(self.listed() if again else collect(self._parts, self._place.rank))
        except StateError:
            pass
        finally:
            told = from_all(body, self._place.world)
        if told is not None:
            self._planner.holders = holders_of(told)
        self._unlisted = next((rank for rank, one in enumerate(told or ()) if not one), None)

    def listed(self) -> Leaves:
        """Return the list of the state since the last `meet(again=True)`; raises `StateError`."""
        if self._listed is None:
            self._listed = collect(self._parts, self._place.rank)
        return self._listed

    def listed_by_all(self) -> Leaves:
        """Return `listed()`, for a load: a comparison needs the names that all ranks have.

        Raises `RestoreError` if another rank could not list its state.
        """
        leaves = self.listed()
        if self._unlisted is not None:
            raise RestoreError(REFUSED.format(self._unlisted))
        return leaves

    def request(self, partial: bool) -> Restore:  # noqa: FBT001 - of `load`
        """Return the request for a start, with what this rank needs of the model.

        Nothing where all ranks are on one node, and where the script takes what fits.
        """
        if partial or self._place.world == self._place.local_world:
            return Restore()
        try:
            leaves = collect(self._parts, self._place.rank)
            return Restore(needs=parts_of_model(leaves, self._place))
        except StateError:
            return Restore()  # the start itself reports it

    def map(self, descriptors: tuple[int, ...]) -> Mapping[int, Arena]:
        """Map the arenas of a restore; the next save fills one of them.

        A new mapping would cost as much as the copy.
        """
        self._mapped = mapped(descriptors)
        return self._mapped

    def let_go(self, ranks: Iterable[int]) -> None:
        """Release the arenas of these ranks, which are other nodes', and the list of the state."""
        self._listed = None
        foreign = set(ranks)
        own = self._mapped.items()
        self._mapped = {at: arena for at, arena in own if arena.table.rank not in foreign}

    def begin(self, client: Client) -> None:
        """Request a large arena while training goes on, before a save needs it.

        Call it after a step: an optimizer has no state before its first step.
        """
        if self.copier is None and self._coming is not None:
            self._has_come(client, self._coming, wait=False)
        elif self.copier is None and not self._began:
            self._began = True
            leaves = collect(self._parts, self._place.rank)
            size = sum(plain(leaf.tensor).nbytes for leaf in leaves.tensors)
            if SLOTS * size > QUICK_BYTES:
                self._plan(client, wait=False)

    def ready(self, client: Client, *, wait: bool) -> tuple[Copier, list[bytes]] | None:
        """Return a copier whose plan fits the present state, and the encoded small values.

        Unless the ranks were compared before, sketches are among these, if there is storage: a step
        in memory may be written there later.

        wait: for an arena that is being made; otherwise return None meanwhile. Raises
        `CheckpointError` if there is no room for it, it is not valid, or the state keeps changing.
        """
        for _ in range(_MOST_PLANS):
            try:
                if self.copier is not None:
                    self.copier.check()
                    sketched = client.has_storage and not self.copier.is_compared(client.stored())
                    return self.copier, self.copier.values(sketched=sketched)
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
        """Plan anew; return False while the arena for the plan is being made."""
        leaves = collect(self._parts, self._place.rank)
        plan = self._planner.plan(leaves, self._room)
        layout = plan.layout()
        if self.copier is not None and fits(self.copier.arena, layout):
            self.copier = Copier(plan, leaves, self.copier.arena, before=self.copier)
            return True
        self.copier = None
        self._coming = coming = _Coming(plan, leaves)
        client.ask_for_arena(layout)
        geometry = geometry_of(plan.table, len(layout.table.encode()), SLOTS, plan.bytes_room)
        return self._has_come(client, coming, wait=wait or geometry.total <= QUICK_BYTES)

    def _has_come(self, client: Client, coming: _Coming, *, wait: bool) -> bool:
        """Take a requested arena, if it is made and faulted in; return True then."""
        try:
            if coming.work is None:
                descriptors = client.arena(ANSWER_SECONDS if wait else 0.0)
                if not descriptors:
                    return False
                known, self._mapped = self._mapped, {}
                [(inode, fresh)] = mapped(descriptors).items()
                coming.arena = arena = known.get(inode, fresh)
                coming.work = CopyThread(arena.fault_in)
            if not wait and not coming.work.is_done:
                return False
            coming.work.join()
        except ArenaError as error:
            self._coming = None
            raise CheckpointError(f"the memory that the agent gave: {error}") from error
        except (CheckpointError, LinkError, OSError):
            self._coming = None  # the next save requests it again
            raise
        assert coming.arena is not None, "it was mapped"  # noqa: S101
        self._coming = None
        self.copier = Copier(coming.plan, coming.leaves, coming.arena)
        return True

    def close(self) -> None:
        """Release everything."""
        self.copier = self._coming = None
        self._mapped = {}

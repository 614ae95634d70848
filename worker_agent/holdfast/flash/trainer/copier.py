"""Copies a state into slots, as planned: this is the cost of a save to a training step.

A save compares a signature, copies, and stores a few words. It does not plan, does not allocate,
pickles only small values that changed, and asks no other rank.

Belongs here too: which saves carry sketches (`Comparison`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.memory.arena import Arena, ArenaSlot, SlotWord
from holdfast.flash.memory.slots import Move, Party, SlotState, Version, after
from holdfast.flash.trainer.leaves import Leaves, StateError, ValueLeaf
from holdfast.flash.trainer.memcpy import CopyRange, CopyRanges
from holdfast.flash.trainer.planner import ImagePlan, ItemSource
from holdfast.flash.trainer.replica_sketches import Sketcher
from holdfast.flash.trainer.values import (
    encode_value,
    form_of,
    has_shards,
    is_seen_through,
    kinds_of,
)

if TYPE_CHECKING:
    import torch

    from holdfast.flash.trainer.cuda_copies import Gpus

_MOST_STEPS: Final = 10_000
"""Number of steps with sketches whose outcome is waited for."""
_SHARDS: Final = (
    "{} holds a DTensor, of which each rank has a part, and only one of them would be stored. Pass "
    "a module whose parameters these are in model=[...], or give full_tensor() of each"
)


class Changed(Exception):  # noqa: N818 - a finding, caught where it is raised
    """The state differs from the planned one: plan again."""


class RoomNeeded(Changed):
    """The values that are no tensors need more room than the plan gave them."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes of values")
        self.size = size


def plain(tensor: Any) -> torch.Tensor:
    """Return the tensor with the storage: a DTensor's local one."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies into one slot, for one of the two halves of an overlapped save."""

    pieces: CopyRanges
    others: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(to, from) of tensors that the helper cannot copy: other strides, or another device."""
    on_gpu: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(to, from) of tensors that CUDA copies on a side stream."""


class Comparison:
    """Steps of one layout whose saves carried sketches."""

    def __init__(self) -> None:
        self._steps: dict[int, None] = {}
        self._is_over = False

    def carried(self, step: int) -> None:
        """Note that a save carried sketches."""
        self._steps[step] = None
        if len(self._steps) > _MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def is_over(self, stored: Iterable[int]) -> bool:
        """Return True if the ranks were compared and alike; stored: steps that became durable."""
        if not self._is_over and any(step in self._steps for step in stored):
            self._is_over = True
            self._steps.clear()
        return self._is_over


class Copier:
    """A plan bound to an arena and to the tensors of this moment."""

    def __init__(
        self,
        plan: ImagePlan,
        leaves: Leaves,
        arena: Arena,
        *,
        before: Copier | None = None,
        slots: Sequence[ArenaSlot] | None = None,
    ) -> None:
        """Bind, and write the framing into every slot that may be written.

        before: copier whose encoded values are reused, and its framing if the arena is the same.
        slots: the slots that may be written; by default all of them.
        """
        self.arena = arena
        slots = arena.slots if slots is None else slots
        self._plan = plan
        self._leaves = leaves
        watched = [(leaf.holder, leaf.key, leaf.tensor) for leaf in leaves.tensors]
        self._signature = [
            (*one, local is not one[2], local.data_ptr(), local.nbytes, local.stride(), local.dtype)
            for one in (*watched, *leaves.watched)
            for local in (plain(one[2]),)
        ]
        self._encoded: dict[str, tuple[Any, bytes]] = {}
        self._proven: dict[str, set[type | str]] = {}
        """Value's name → kinds of data in it that were proved to be loadable."""
        self._framed: set[int] = set()
        self._gpus: Gpus | None = None
        self._comparison = Comparison()
        self._sketcher: Sketcher | None = None
        self._events: dict[bool, list[Any]] = {}
        """Half of the save → events at the end of its copies from GPUs."""
        if before is not None:
            self._take_over(before)
        self._copies = {
            slot.index: (self._half(slot, trained=False), self._half(slot, trained=True))
            for slot in slots
        }
        self._register()
        for slot in slots:
            if slot.state is SlotState.EMPTY and slot.index not in self._framed:
                self._frame(slot)

    def _register(self) -> None:
        """Register the arena's memory with CUDA, once, if a tensor is copied from a GPU."""
        halves = [half for both in self._copies.values() for half in both]
        if self._gpus is None and any(half.on_gpu for half in halves):
            self._gpus = _gpus(self.arena)

    def check(self) -> None:
        """Raise `Changed` unless every tensor is the planned one.

        The check covers object, address, size, strides and dtype: `t_()` and `resize_` change them.
        """
        for container, count in self._leaves.counts:
            if len(container) != count:
                raise Changed("an entry came or went")
        for holder, key, thing in self._leaves.links:
            if holder.get(key) is not thing:
                raise Changed("a part was replaced as a whole")
        for holder, key, tensor, sharded, pointer, size, strides, dtype in self._signature:
            local = plain(tensor) if sharded else tensor
            if (
                holder.get(key) is not tensor
                or local.data_ptr() != pointer
                or local.nbytes != size
                or local.stride() != strides
                or local.dtype is not dtype
            ):
                raise Changed(f"{key} is another tensor")

    def is_compared(self, stored: Iterable[int]) -> bool:
        """Return True if ranks were compared in this layout; stored: steps that became durable."""
        if not self._comparison.is_over(stored):
            return False
        self._sketcher = None
        return True

    def values(self, *, sketched: bool = False) -> list[bytes]:
        """Return the values that are no tensors, encoded; raises `RoomNeeded`.

        sketched: with sketches of data that ranks should have equal.
        """
        read: dict[str, Any] = {}
        bodies = [self._encode(leaf, read) for leaf in self._plan.values]
        if self.arena.table.byte_items[len(bodies) :]:
            bodies.append(self._sketches(read) if sketched else b"")
        total = sum(map(len, bodies))
        if total > self.arena.geometry.bytes_room:
            raise RoomNeeded(total)
        return bodies

    def begin(self, slot: ArenaSlot, version: Version, bodies: list[bytes]) -> None:
        """Take the slot, and write the values of this very moment into it."""
        table = self.arena.table
        if len(bodies) > len(self._plan.values) and bodies[-1]:
            self._comparison.carried(version.step)
        slot.begin_write(version)
        if slot.index not in self._framed:
            self._frame(slot)
        at = table.tensor_bytes
        for body in bodies:
            slot.image[at : at + len(body)] = body
            at += len(body)

    def start(self, slot: ArenaSlot) -> None:
        """Begin to copy from GPUs, on the thread whose streams compute the values.

        Later work on those streams cannot change the copy of a tensor that may change at any time.
        For a tensor that changes in `optimizer.step()` only, the caller must see to that.
        """
        for trained, copies in enumerate(self._copies[slot.index]):
            if copies.on_gpu and self._gpus is not None:
                events = self._gpus.start(copies.on_gpu, before_more=not trained)
                self._events[bool(trained)] = events

    def copy(self, slot: ArenaSlot, *, trained: bool, threads: int) -> None:
        """Copy the tensors that change in `optimizer.step()` only, or all others.

        Call it after `start`; when it returns, the copies that `start` began are done too.
        """
        copies = self._copies[slot.index][trained]
        for to, source in copies.others:
            to.copy_(source)
        copies.pieces.copy(threads)
        for event in self._events.pop(trained, ()):
            event.synchronize()

    def _take_over(self, before: Copier) -> None:
        self._encoded, self._proven = before._encoded, before._proven
        if before.arena is self.arena:
            self._framed, self._comparison = before._framed, before._comparison
            self._gpus = before._gpus

    def give_up(self, slot: ArenaSlot) -> bool:
        """Empty a slot whose copy was broken off; False: it is whole, and the agent's already."""
        self._events.clear()
        if slot.state is SlotState.WRITING:
            slot.words[SlotWord.STATE] = after(slot.state, Move.GIVE_UP, Party.TRAINER)
        return slot.state is not SlotState.VALID

    def let_go(self) -> None:
        """Release tensors and values; the copier is then only good as `before` of another one."""
        self._leaves, self._signature, self._copies = Leaves(), [], {}
        self._sketcher = None
        self._plan = replace(self._plan, sources=(), values=(), compared=(), compared_values=())

    def _frame(self, slot: ArenaSlot) -> None:
        for source in self._plan.sources:
            item, frame = source.item, source.frame
            if frame is not None:
                slot.image[item.at : item.payload] = frame.before
                after = item.payload + item.size
                slot.image[after : after + len(frame.after)] = frame.after
        self._framed.add(slot.index)

    def _half(self, slot: ArenaSlot, *, trained: bool) -> _Copies:
        base = self.arena.address + slot.image_begin
        pieces, others, on_gpu, done = [], [], [], set[int]()
        for source in self._plan.sources:
            item = source.item
            if source.leaf.trained is not trained or item.payload in done:
                continue
            done.add(item.payload)
            values = _rows(source)
            if not item.size:
                continue
            if is_on_gpu(values):
                on_gpu.append((_view(slot, item.payload, values), values))
            elif values.device.type == "cpu" and values.is_contiguous() and not is_lazy(values):
                pieces.append(CopyRange(base + item.payload, values.data_ptr(), item.size))
            else:
                others.append((_view(slot, item.payload, values), values))
        return _Copies(CopyRanges(pieces), tuple(others), tuple(on_gpu))

    def _sketches(self, read: dict[str, Any]) -> bytes:
        for leaf in self._plan.compared_values:
            if leaf.name not in read:
                with suppress(Exception):  # of its own code: this rank does not store the value
                    read[leaf.name] = leaf.read()
        names = [leaf.name for leaf in self._plan.compared_values if leaf.name in read]
        if self._sketcher is None:
            self._sketcher = Sketcher(self._plan.compared)
        return self._sketcher.sketch({name: read[name] for name in names})

    def _encode(self, leaf: ValueLeaf, read: dict[str, Any]) -> bytes:
        value = read[leaf.name] = leaf.read()
        form, known = form_of(value), self._encoded.get(leaf.name)
        if known is not None and known[0] == form:
            return known[1]
        kinds, proven = kinds_of(value), self._proven.setdefault(leaf.name, set())
        if not leaf.own and has_shards(kinds):
            raise StateError(_SHARDS.format(leaf.name))
        body = encode_value(leaf.name, value, check=not kinds <= proven)
        # The content of an object of another kind is unknown, so it is proved each time.
        proven |= {kind for kind in kinds if is_seen_through(kind)}
        self._encoded[leaf.name] = form, body
        return body


def is_on_gpu(values: torch.Tensor) -> bool:
    """Return True if CUDA copies this tensor."""
    return values.device.type == "cuda"


def _gpus(arena: Arena) -> Gpus:
    """Return the copier from GPUs into an arena; no other function here touches CUDA."""
    import torch

    from holdfast.flash.trainer.cuda_copies import Gpus

    return Gpus(torch.cuda, arena)


def _rows(source: ItemSource) -> torch.Tensor:
    values = plain(source.leaf.tensor).detach()
    return values if source.rows is None else values.narrow(0, source.begin, source.rows)


def is_lazy(values: torch.Tensor) -> bool:
    """Return True if a tensor's bytes differ from its values: conjugate and negative views."""
    return values.is_conj() or values.is_neg()


def _view(slot: ArenaSlot, at: int, values: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.frombuffer(slot.image, dtype=values.dtype, count=values.numel(), offset=at).view(
        values.shape
    )

"""Copies a state into slots, as planned: what a save costs a training step.

A save compares a signature, copies, and stores a few words. Nothing is planned, pickled (but small
values that changed) or allocated, and no other rank is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.flash.arena import Arena, Slot
from holdfast.flash.copying import Piece, Pieces
from holdfast.flash.decide.slots import Move, Party, SlotState, Version, after
from holdfast.flash.header import SlotWord
from holdfast.flash.planning import Plan, Source
from holdfast.flash.state import Leaves, StateError, ValueLeaf
from holdfast.flash.values import encode_value, frozen, has_shards, is_seen_through, kinds_of, same

if TYPE_CHECKING:
    import torch

    from holdfast.flash.device import Gpus


_SHARDS: Final = (
    "{} holds a DTensor, of which each rank has a part, and only one of them would be stored. Pass "
    "a module whose parameters these are in model=[...], or give full_tensor() of each"
)


class Changed(Exception):  # noqa: N818 - a finding, caught where it is raised
    """The state is no longer what was planned for: plan again."""


class RoomNeeded(Changed):
    """The values that are no tensors have outgrown their room."""

    def __init__(self, size: int) -> None:
        """Take the bytes that they need."""
        super().__init__(f"{size} bytes of values")
        self.size = size


def plain(tensor: Any) -> torch.Tensor:
    """Return the tensor that has the storage."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


@dataclass(frozen=True, slots=True)
class _Copies:
    """What goes into one slot, in one of the two halves of an overlapped save."""

    pieces: Pieces
    others: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(to, from) of what the helper cannot copy: other strides, or another device."""
    on_gpu: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """(to, from) of what CUDA copies beside."""


class Saver:
    """A plan bound to an arena and to the tensors of this moment."""

    def __init__(
        self,
        plan: Plan,
        leaves: Leaves,
        arena: Arena,
        *,
        before: Saver | None = None,
        slots: Sequence[Slot] | None = None,
    ) -> None:
        """Bind, and write the framing into every slot that may be written.

        before: what it takes over from another saver: encoded values, and the framing if the arena
            is the same. slots: those that may be written at all; by default every one.
        """
        self.arena = arena
        slots = arena.slots if slots is None else slots
        self._plan = plan
        self._leaves = leaves
        self._signature = [
            (leaf.holder, leaf.key, leaf.tensor, at.data_ptr(), at.nbytes, at.stride(), at.dtype)
            for leaf in leaves.tensors
            for at in (plain(leaf.tensor),)
        ]
        self._encoded: dict[str, tuple[Any, bytes]] = {}
        self._proven: dict[str, set[type | str]] = {}
        """Of each value the kinds of data in it that were proved to be loadable."""
        self._framed: set[int] = set()
        self._gpus: Gpus | None = None
        self._events: dict[bool, list[Any]] = {}
        """What the copies from GPUs end with, of each half."""
        if before is not None:
            self._take_over(before)
        self._copies = {slot.index: self._bind(slot) for slot in slots}
        self._register()
        for slot in slots:
            if slot.state is SlotState.EMPTY and slot.index not in self._framed:
                self._frame(slot)

    def _register(self) -> None:
        """Have the arena's memory known to CUDA, once, if anything is copied from a GPU."""
        halves = [half for both in self._copies.values() for half in both]
        if self._gpus is None and any(half.on_gpu for half in halves):
            self._gpus = _gpus(self.arena)

    def check(self) -> None:
        """Raise `Changed` unless every tensor is the one that was planned for.

        By object, address, size, strides and type, which `t_()` and `resize_` change too.
        """
        for container, count in self._leaves.counts:
            if len(container) != count:
                raise Changed("an entry came or went")
        for holder, key, thing in self._leaves.links:
            if holder.get(key) is not thing:
                raise Changed("a part was replaced as a whole")
        for holder, key, tensor, pointer, size, strides, dtype in self._signature:
            local = plain(tensor)
            if (
                holder.get(key) is not tensor
                or local.data_ptr() != pointer
                or local.nbytes != size
                or local.stride() != strides
                or local.dtype is not dtype
            ):
                raise Changed(f"{key} is another tensor")

    def values(self) -> list[bytes]:
        """Return the values that are no tensors, encoded; raises `RoomNeeded`."""
        bodies = [self._encode(leaf) for leaf in self._plan.values]
        total = sum(map(len, bodies))
        if total > self.arena.geometry.bytes_room:
            raise RoomNeeded(total)
        return bodies

    def begin(self, slot: Slot, version: Version, bodies: list[bytes]) -> None:
        """Take the slot and put into it what must be of this very moment."""
        table = self.arena.table
        slot.begin_write(version, rank=table.rank, world=table.world, layout=self.arena.layout)
        if slot.index not in self._framed:
            self._frame(slot)
        at = table.tensor_bytes
        for body in bodies:
            slot.image[at : at + len(body)] = body
            at += len(body)

    def start(self, slot: Slot) -> None:
        """Begin to copy what is on GPUs, by the thread whose streams compute it.

        What they compute later cannot change what is copied of tensors that change at any time;
        of those that change in `optimizer.step()` only, that is for who calls it.
        """
        for trained, copies in enumerate(self._copies[slot.index]):
            if copies.on_gpu and self._gpus is not None:
                events = self._gpus.start(copies.on_gpu, before_more=not trained)
                self._events[bool(trained)] = events

    def copy(self, slot: Slot, *, trained: bool, threads: int) -> None:
        """Copy the tensors that change in `optimizer.step()` only, or all others.

        After `start`; also what that began is in the slot when this returns.
        """
        copies = self._copies[slot.index][trained]
        for to, source in copies.others:
            to.copy_(source)
        copies.pieces.copy(threads)
        for event in self._events.pop(trained, ()):
            event.synchronize()

    def _take_over(self, before: Saver) -> None:
        self._encoded, self._proven = before._encoded, before._proven
        if before.arena is self.arena:
            self._framed = before._framed
            self._gpus = before._gpus

    def give_up(self, slot: Slot) -> bool:
        """Empty a slot whose copy was broken off; False: it is whole, and the agent's already."""
        self._events.clear()
        if slot.state is SlotState.WRITING:
            slot.words[SlotWord.STATE] = after(slot.state, Move.GIVE_UP, Party.TRAINER)
        return slot.state is not SlotState.VALID

    def let_go(self) -> None:
        """Forget the tensors, so that they can be freed; only `before` of another is left."""
        self._leaves, self._signature, self._copies = Leaves(), [], {}

    def _frame(self, slot: Slot) -> None:
        for source in self._plan.sources:
            item, frame = source.item, source.frame
            if frame is not None:
                slot.image[item.at : item.payload] = frame.before
                after = item.payload + item.size
                slot.image[after : after + len(frame.after)] = frame.after
        self._framed.add(slot.index)

    def _bind(self, slot: Slot) -> tuple[_Copies, _Copies]:
        return self._half(slot, trained=False), self._half(slot, trained=True)

    def _half(self, slot: Slot, *, trained: bool) -> _Copies:
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
                pieces.append(Piece(base + item.payload, values.data_ptr(), item.size))
            else:
                others.append((_view(slot, item.payload, values), values))
        return _Copies(Pieces(pieces), tuple(others), tuple(on_gpu))

    def _encode(self, leaf: ValueLeaf) -> bytes:
        value = leaf.read()
        known = self._encoded.get(leaf.name)
        if known is not None and same(known[0], value):
            return known[1]
        kinds, proven = kinds_of(value), self._proven.setdefault(leaf.name, set())
        if not leaf.own and has_shards(kinds):
            raise StateError(_SHARDS.format(leaf.name))
        body = encode_value(leaf.name, value, check=not kinds <= proven)
        # What is inside an object of another kind nobody sees: it is proved each time.
        proven |= {kind for kind in kinds if is_seen_through(kind)}
        self._encoded[leaf.name] = (frozen(value), body)
        return body


def is_on_gpu(values: torch.Tensor) -> bool:
    """Tell whether CUDA copies this tensor."""
    return values.device.type == "cuda"


def _gpus(arena: Arena) -> Gpus:
    """Return the way from GPUs into an arena; only here anything of CUDA is touched."""
    import torch

    from holdfast.flash.device import Gpus

    return Gpus(torch.cuda, arena)


def _rows(source: Source) -> torch.Tensor:
    values = plain(source.leaf.tensor).detach()
    return values if source.rows is None else values.narrow(0, source.begin, source.rows)


def is_lazy(values: torch.Tensor) -> bool:
    """Tell whether the bytes of a tensor are not what it reads: conjugate and negative views."""
    return values.is_conj() or values.is_neg()


def _view(slot: Slot, at: int, values: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.frombuffer(slot.image, dtype=values.dtype, count=values.numel(), offset=at).view(
        values.shape
    )

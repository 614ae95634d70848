"""Reduction of a batch's deltas over the sync group: the one large transfer of a sync.

Belongs here: which bytes go where, and what a codec loses. Does not belong here: the arithmetic
(`merging`), the bytes of a value (`codecs`), weights and anomalies (`unit_sync`).

A linear merging without a codec is an all-reduce of wᵢδᵢ. Everything else goes in two stages, as a
reduce-scatter and an all-gather do: each rank sends each other one its chunk, merges the chunks
that it has received in the order of ranks, in fp32, and sends the result to all. All ranks decode
the same bytes, so their results are bitwise equal. GTA costs as many bytes as a mean this way. Of P
values, with b bytes for each, a rank sends 2·(n-1)/n·P·b in both cases.

With error feedback (arXiv 1901.09847; in both stages: arXiv 1905.05957) each stage adds to its
input what it lost the time before:

    c = Q(δ + e),  e ← δ + e - c            on the rank whose δ it is
    c' = Q(Σ wᵢcᵢ + e'),  e' ← Σ wᵢcᵢ + e' - c'    on the rank whose chunk it is
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.local_sgd.sync.codecs import BLOCK, Codec, codec_of
from holdfast.local_sgd.sync.group import Group
from holdfast.local_sgd.sync.merging import Merging

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Lost:
    """The error of a codec in one unit, on this rank, for error feedback."""

    sent: torch.Tensor
    """e, of this rank's own delta, flat."""
    begin: int
    """Where in the unit's flat values the chunk begins that this rank merges."""
    merged: torch.Tensor
    """e', of that chunk, flat."""


@dataclass(frozen=True, slots=True)
class Deltas:
    """Deltas of a batch of units on this rank, one behind the other."""

    flat: torch.Tensor
    """Theirs alone: a reduction changes it."""
    sizes: Sequence[int]
    """Values of each unit."""
    weights: Sequence[Sequence[float]]
    """By unit: the weight of each rank of the sync group."""
    seeds: Sequence[int]
    """By unit: decides what a random sparsification keeps."""
    lost: Sequence[Lost | None]
    """By unit: what the codec lost the time before; None: nothing."""

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Give each unit's number, begin and end."""
        at = 0
        for number, size in enumerate(self.sizes):
            yield number, at, at + size
            at += size


Reduction = Callable[[], "tuple[torch.Tensor, Sequence[Lost | None]]"]
"""Waits for one large reduction; returns the merged deltas and what was lost; raises SyncError."""


class Reducer:
    """A merging and a codec."""

    def __init__(
        self, merging: Merging, *, codec: str = "none", error_feedback: bool = False
    ) -> None:
        """Take them.

        Raises:
            ValueError: the codec has an unknown name, or error feedback has no codec.
        """
        import torch

        codec_of(codec, torch.float32)
        if error_feedback and codec == "none":
            raise ValueError(
                'error_feedback=True with codec="none", which loses nothing: choose a codec, or '
                "leave error feedback off"
            )
        self.merging, self.codec, self.feedback = merging, codec, error_feedback

    @property
    def _in_place(self) -> bool:
        return self.codec == "none" and self.merging.is_linear

    def dtype(self, own: Sequence[torch.dtype]) -> torch.dtype:
        """Return the dtype of a batch's deltas: its tensors' own, if they are summed as they are.

        Codecs and GTA calculate in fp32; GTA in fp64 where a tensor has it.
        """
        import torch

        if not own:
            return torch.float32
        widest = functools.reduce(torch.promote_types, own)
        if self._in_place:
            return widest
        if self.codec != "none":
            return torch.float32
        return torch.promote_types(widest, torch.float32)

    def start(self, group: Group, deltas: Deltas) -> Reduction:
        """Start a reduction; all ranks of the group start theirs in the same order."""
        for number, begin, end in deltas.spans():
            self.merging.sparsify(deltas.flat[begin:end], deltas.seeds[number])
        if group.size == 1 or not deltas.flat.numel():
            return functools.partial(_alone, self.merging, deltas)
        if self._in_place:
            return _all_reduce(self.merging, group, deltas)
        codec = codec_of(self.codec, deltas.flat.dtype)
        return _TwoStages(self.merging, codec, group, deltas, feedback=self.feedback).wait


def _alone(merging: Merging, deltas: Deltas) -> tuple[torch.Tensor, Sequence[Lost | None]]:
    """Merge the deltas of a group of one."""
    for number, begin, end in deltas.spans():
        part = deltas.flat[begin:end]
        part.copy_(merging.merge(part.unsqueeze(0).clone(), deltas.weights[number][:1]))
    return deltas.flat, deltas.lost


def _all_reduce(merging: Merging, group: Group, deltas: Deltas) -> Reduction:
    """Start an all-reduce of weighted deltas, in their own dtype."""
    for number, begin, end in deltas.spans():
        weights = merging.scaled(deltas.weights[number])
        deltas.flat[begin:end].mul_(weights[group.rank])
    work = group.begin_sum(deltas.flat)

    def wait() -> tuple[torch.Tensor, Sequence[Lost | None]]:
        work.wait()
        return deltas.flat, deltas.lost

    return wait


class _TwoStages:
    """Chunks to their ranks, merged there, and back to all."""

    def __init__(
        self, merging: Merging, codec: Codec, group: Group, deltas: Deltas, *, feedback: bool
    ) -> None:
        self._merging, self._codec, self._group = merging, codec, group
        self._deltas, self._feedback = deltas, feedback
        blocks = -(-deltas.flat.numel() // (group.size * BLOCK))
        self._chunk = blocks * BLOCK
        rows = self._rows()
        codes = codec.encode(rows)
        self._own = self._lost_by_sending(rows, codes) if feedback else None
        self._received = codes.new_empty(codes.shape)
        self._codes = codes  # in flight: kept until the exchange is over
        self._work = group.begin_exchange(self._received, codes)

    def wait(self) -> tuple[torch.Tensor, Sequence[Lost | None]]:
        """Merge what has come, give it to all, and return everybody's."""
        self._work.wait()
        parts = self._codec.decode(self._received)
        merged = parts.new_zeros(self._chunk)
        for number, begin, end in self._own_spans():
            mine = slice(begin - self._first, end - self._first)
            merged[mine] = self._merging.merge(parts[:, mine], self._deltas.weights[number])
        if self._feedback:
            self._add_lost_by_merging(merged)
        code = self._codec.encode(merged.unsqueeze(0))
        gathered = code.new_empty((self._group.size, code.shape[1]))
        self._group.begin_gather(gathered.view(-1), code.view(-1)).wait()
        total = self._codec.decode(gathered).view(-1)[: self._deltas.flat.numel()]
        if self._own is None:
            return total, self._deltas.lost
        merged -= self._codec.decode(code)[0]
        return total, self._lost(self._own, merged)

    @property
    def _first(self) -> int:
        """Where the chunk begins that this rank merges."""
        return self._group.rank * self._chunk

    def _own_spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of this rank's chunk: unit, begin and end in the batch."""
        for number, begin, end in self._deltas.spans():
            low, high = max(begin, self._first), min(end, self._first + self._chunk)
            if low < high:
                yield number, low, high

    def _takes_part(self, number: int) -> bool:
        """Return True if this rank's delta counts; else its zeros are no measure of the error."""
        return self._deltas.weights[number][self._group.rank] != 0

    def _rows(self) -> torch.Tensor:
        """Return this rank's deltas with what was lost, a row for each rank."""
        flat = self._deltas.flat
        rows = flat.new_zeros(self._group.size * self._chunk)
        rows[: flat.numel()] = flat
        for number, begin, end in self._deltas.spans():
            lost = self._deltas.lost[number]
            if self._feedback and lost is not None and self._takes_part(number):
                rows[begin:end] += lost.sent.to(rows.device)
        return rows.view(self._group.size, self._chunk)

    def _lost_by_sending(self, rows: torch.Tensor, codes: torch.Tensor) -> list[torch.Tensor]:
        """Return, by unit, what the first stage loses; kept where this rank does not count."""
        difference = (rows - self._codec.decode(codes)).view(-1)
        found = []
        for number, begin, end in self._deltas.spans():
            lost = self._deltas.lost[number]
            if self._takes_part(number) or lost is None:
                found.append(difference[begin:end].clone())
            else:
                found.append(lost.sent)
        return found

    def _add_lost_by_merging(self, merged: torch.Tensor) -> None:
        """Add what this rank lost of the chunk, where the chunk is the same."""
        starts = {number: begin for number, begin, _ in self._deltas.spans()}
        for number, begin, end in self._own_spans():
            lost = self._deltas.lost[number]
            if lost is None:
                continue
            known = starts[number] + lost.begin
            low, high = max(begin, known), min(end, known + lost.merged.numel())
            if low < high:
                part = lost.merged[low - known : high - known].to(merged.device)
                merged[low - self._first : high - self._first] += part

    def _lost(self, sent: Sequence[torch.Tensor], merged: torch.Tensor) -> list[Lost]:
        found = [Lost(one, 0, merged.new_zeros(0)) for one in sent]
        starts = {number: begin for number, begin, _ in self._deltas.spans()}
        for number, begin, end in self._own_spans():
            found[number].begin = begin - starts[number]
            found[number].merged = merged[begin - self._first : end - self._first].clone()
        return found

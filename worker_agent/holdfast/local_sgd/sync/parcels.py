"""State of an inner optimizer and of buffers as bytes that say what they are.

Belongs here: the form of the bytes. Does not belong here: who sends what to whom (`regroup`), and
where a framework keeps the state (`inner_state`).

A joiner's optimizer has made no step yet, so it knows neither names nor shapes of the state: they
come along, as JSON. No pickle: bytes of another replica run nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import torch

_LENGTH: Final = 8
"""Bytes of the length of the JSON, which comes first."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One value of the state."""

    owner: int | str
    """Number of the parameter in its unit, or name of the buffer."""
    key: str
    """Name of the value in the optimizer's state; "": the buffer itself."""
    value: Any
    """A tensor, a number, or None."""
    is_cut: bool = False
    """The tensor is cut among ranks as its parameter is."""
    on_cpu: bool = True
    """The giver has it on its CPU, as torch has counts of steps beside a GPU's parameters."""


class InnerState(Protocol):
    """What a replica has of its own beside its units."""

    def give(self, number: int) -> list[StateEntry]:
        """Return the state of a unit's inner optimizer; behind the last unit, the buffers."""

    def take(self, number: int, entries: Sequence[StateEntry]) -> None:
        """Take what another replica has given."""


def pack(entries: Sequence[StateEntry]) -> torch.Tensor:
    """Return the values as bytes on the CPU."""
    import torch

    told, parts = [], list[torch.Tensor]()
    for one in entries:
        value, form = one.value, None
        if torch.is_tensor(value):
            form = [str(value.dtype).removeprefix("torch."), list(value.shape), value.is_cpu]
            parts.append(value.detach().to("cpu").contiguous().view(-1).view(torch.uint8))
            value = None
        told.append([one.owner, one.key, one.is_cut, form, value])
    head = json.dumps(told).encode()
    length = len(head).to_bytes(_LENGTH, "little")
    return torch.cat([torch.frombuffer(bytearray(length + head), dtype=torch.uint8), *parts])


def unpack(parcel: torch.Tensor) -> list[StateEntry]:
    """Return the values of `pack`, all on the CPU."""
    import torch

    parcel = parcel.to("cpu")
    end = _LENGTH + int.from_bytes(bytes(parcel[:_LENGTH].tolist()), "little")
    found = list[StateEntry]()
    for owner, key, is_cut, form, number in json.loads(bytes(parcel[_LENGTH:end].tolist())):
        if form is None:
            found.append(StateEntry(owner, key, number, is_cut))
            continue
        value = torch.empty(form[1], dtype=getattr(torch, form[0]))
        begin, end = end, end + value.nbytes
        value.view(-1).view(torch.uint8).copy_(parcel[begin:end])
        found.append(StateEntry(owner, key, value, is_cut, on_cpu=form[2]))
    return found

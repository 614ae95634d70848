"""Units and inner state as bytes, from one replica to another.

Belongs here: the order of the bytes. Does not belong here: who sends what to whom (`regroup`), and
where a framework keeps inner state (`inner_state`).

Of a unit both sides know the form: the same parameters, cut alike, and the same outer optimizer. So
the bytes are values only. They are the anchors, the tensors that the outer optimizer keeps for
each, by the names of its state, and the numbers of its settings, which a script may change.

A joiner's inner optimizer has made no step yet, so it knows neither names nor shapes of its state:
they come along, as JSON. No pickle: bytes of another replica run nothing.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.sync.units import Anchors

if TYPE_CHECKING:
    import torch

    from holdfast.local_sgd.sync.units import Unit

_HEAD_BYTES: Final = 8
"""Bytes of the length of the JSON, which comes first."""
_NUMBERS: Final = (int, float, bool)


def form_of(units: list[Unit]) -> int:
    """Return a number that two replicas share only if their units have one form."""
    said = [
        [unit.name, *([tuple(one.shape), str(one.dtype)] for one in unit.tensors())]
        for unit in units
    ]
    return zlib.crc32(repr(said).encode())


def has_outer_state(unit: Unit) -> bool:
    """Return True if the unit's outer optimizer has a state: it has after its first step."""
    optimizer = unit.anchors.optimizer if unit.has_anchors else None
    return optimizer is not None and any(optimizer.state.values())


def bytes_of(unit: Unit) -> torch.Tensor:
    """Return a unit's anchors and outer state, one behind the other."""
    import torch

    parts = [_as_bytes(one) for one in _tensors(unit.anchors)]
    numbers = torch.tensor(_numbers(unit.anchors), dtype=torch.float64)
    return torch.cat([*(one.to("cpu") for one in parts), _as_bytes(numbers)])


def count_of(unit: Unit, *, outer_state: bool) -> int:
    """Return how many bytes a unit has on a replica whose outer optimizer has, or has not, begun.

    The unit's own outer optimizer gets a state of that form.
    """
    if outer_state and not has_outer_state(unit):
        _begin_outer(unit.anchors)
    return sum(one.nbytes for one in _tensors(unit.anchors)) + 8 * len(_numbers(unit.anchors))


def fill(unit: Unit, received: torch.Tensor) -> None:
    """Write what `bytes_of` has made into a unit's anchors and outer state."""
    at = 0
    for one in _tensors(unit.anchors):
        part = received[at : at + one.nbytes].clone()  # aligned, wherever it began
        one.copy_(part.view(one.dtype).view(one.shape))
        at += one.nbytes
    import torch

    _set_numbers(unit.anchors, received[at:].clone().view(torch.float64).tolist())


def _tensors(anchors: Anchors) -> Iterator[torch.Tensor]:
    """Give anchors and what is kept for each, in the same order on all replicas."""
    yield from anchors.values
    for _, _, value in _state(anchors):
        if hasattr(value, "shape"):
            yield value


def _state(anchors: Anchors) -> Iterator[tuple[dict[str, Any], str, Any]]:
    if anchors.optimizer is None:
        return
    for anchor in anchors.values:
        kept = anchors.optimizer.state.get(anchor, {})
        for key in sorted(kept):
            value = kept[key]
            if not (hasattr(value, "shape") or value is None or isinstance(value, _NUMBERS)):
                raise LocalSGDError(
                    f"outer_optim_class={type(anchors.optimizer).__name__}: its state {key!r} is a "
                    f"{type(value).__name__}, which no other replica can be given; use an "
                    "optimizer that keeps tensors and numbers"
                )
            yield kept, key, value


def _numbers(anchors: Anchors) -> list[float]:
    """Return the settings of the outer optimizer, and numbers in its state; NaN: no number."""
    if anchors.optimizer is None:
        return []
    group = anchors.optimizer.param_groups[0]
    found = [group[key] for key in sorted(group) if key != "params"]
    found += [value for _, _, value in _state(anchors) if not hasattr(value, "shape")]
    return [float(one) if isinstance(one, _NUMBERS) else math.nan for one in found]


def _set_numbers(anchors: Anchors, numbers: list[float]) -> None:
    if anchors.optimizer is None:
        return
    group = anchors.optimizer.param_groups[0]
    keys: list[tuple[dict[str, Any], str]] = [
        (group, key) for key in sorted(group) if key != "params"
    ]
    keys += [(kept, key) for kept, key, value in _state(anchors) if not hasattr(value, "shape")]
    for (holder, key), number in zip(keys, numbers, strict=True):
        if isinstance(holder[key], _NUMBERS) and not math.isnan(number):
            holder[key] = type(holder[key])(number)


def _begin_outer(anchors: Anchors) -> None:
    """Give the outer optimizer the state that it has after a step, by one on copies."""
    import torch

    assert anchors.optimizer is not None  # noqa: S101 - both sides have one, or none
    settings = anchors.optimizer.param_groups[0]
    kind: Any = type(anchors.optimizer)
    spare = [torch.zeros_like(one) for one in anchors.values]
    known = {key: one for key, one in settings.items() if key in anchors.optimizer.defaults}
    trial = kind(spare, **known)
    for one in spare:
        one.grad = torch.zeros_like(one)
    trial.step()
    for anchor, one in zip(anchors.values, spare, strict=True):
        anchors.optimizer.state[anchor] = dict(trial.state.get(one, {}))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8)


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
    length = len(head).to_bytes(_HEAD_BYTES, "little")
    return torch.cat([torch.frombuffer(bytearray(length + head), dtype=torch.uint8), *parts])


def unpack(parcel: torch.Tensor) -> list[StateEntry]:
    """Return the values of `pack`, all on the CPU."""
    import torch

    parcel = parcel.to("cpu")
    end = _HEAD_BYTES + int.from_bytes(bytes(parcel[:_HEAD_BYTES].tolist()), "little")
    found = list[StateEntry]()
    for owner, key, is_cut, form, number in json.loads(bytes(parcel[_HEAD_BYTES:end].tolist())):
        if form is None:
            found.append(StateEntry(owner, key, number, is_cut))
            continue
        value = torch.empty(form[1], dtype=getattr(torch, form[0]))
        begin, end = end, end + value.nbytes
        value.view(-1).view(torch.uint8).copy_(parcel[begin:end])
        found.append(StateEntry(owner, key, value, is_cut, on_cpu=form[2]))
    return found

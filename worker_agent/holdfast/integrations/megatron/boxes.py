"""Model and optimizer of one rank as boxes: listed, allocated, filled.

Belongs here: what is done with one range of a parameter, or one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from holdfast.flash.trainer.leaves import Leaves, StateError
from holdfast.flash.trainer.reshard import Filling
from holdfast.integrations.megatron.global_tensors import (
    GlobalTensors,
    ModelTensor,
    Piece,
    PieceBox,
)
from holdfast.integrations.megatron.owned_ranges import Owned, OwnedRange

if TYPE_CHECKING:
    import torch

STATE: Final = ("optimizer", "state")


@dataclass(frozen=True, slots=True)
class ModelView:
    """Model and optimizer as they are now."""

    model: GlobalTensors
    owned: Owned

    def tensor(self, one: OwnedRange) -> ModelTensor:
        """Return the model's tensor of an owned range."""
        found = self.model.tensors.get(id(one.parameter))
        if found is None:
            raise StateError(
                f"the optimizer updates a parameter of shape {tuple(one.parameter.shape)} that is "
                "not in the model's sharded_state_dict(): pass all model chunks"
            )
        return found

    def keys(self) -> dict[int, list[str]]:
        """Return the global tensors of each of the optimizer's parameters, by id."""
        return {
            id(one.slot): [
                piece.key
                for piece in self.tensor(one).pieces
                if max(piece.begin, one.begin) < min(piece.end, one.end)
            ]
            for one in self.owned.ranges
        }

    def boxes(self, one: OwnedRange) -> Iterator[tuple[Piece, PieceBox]]:
        """Yield the boxes of an owned range, each with its piece."""
        return self.tensor(one).boxes(one.begin, one.end)

    def others(self) -> list[ModelTensor]:
        """Return buffers and frozen parameters: what no optimizer updates."""
        own = self.owned.parameters
        return [one for key, one in self.model.tensors.items() if key not in own]


def part(flat: torch.Tensor, box: PieceBox, begin: int) -> torch.Tensor:
    """Return a box as a view of the flat elements of a tensor from `begin` on."""
    at = box.begin - begin
    return flat[at : at + prod(box.sizes)].view(box.sizes)


def moments(one: OwnedRange) -> list[tuple[str, torch.Tensor]]:
    """Return the state of a range that has its size."""
    import torch

    found = []
    for key, value in sorted(one.state.items()):
        if isinstance(value, torch.Tensor) and value.numel() == one.slot.numel() and value.dim():
            found.append((key, value.detach()))
        elif key != "step" and value is not None:
            raise StateError(
                f"the optimizer's state has {key!r}, a {type(value).__name__} that is no tensor of "
                "the parameter's size: it cannot be saved in boxes"
            )
    return found


def add_range(leaves: Leaves, one: OwnedRange, tensor: ModelTensor) -> None:
    """List the boxes of an owned range: its master, and what the optimizer keeps for it."""
    states = moments(one)
    for piece, box in tensor.boxes(one.begin, one.end):
        stored = not piece.copy and not one.spare if one.sharded else piece.first
        leaves.add_box(
            ("model", piece.key),
            part(one.master, box, one.begin),
            piece.shape,
            box.offsets,
            stored=stored,
        )
        for key, values in states:
            leaves.add_box(
                (*STATE, piece.key, key),
                part(values.view(-1), box, one.begin),
                piece.shape,
                box.offsets,
                stored=stored,
            )


def watch(leaves: Leaves, one: OwnedRange, tensor: ModelTensor) -> None:
    """Have a new plan made once the framework keeps other memory for a range."""
    leaves.watch(tensor.holder, tensor.name)
    held = vars(one.parameter)
    if held.get("main_param") is one.slot:
        leaves.watch(held, "main_param")
    state = one.inner.state.get(one.slot)
    if state is None:
        return
    leaves.counts.append((state, len(state)))
    leaves.links.append((one.inner.state, one.slot, state))
    for key, _ in moments(one):
        leaves.watch(state, key)


def allocated(one: OwnedRange, kinds: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the state of a range by kind; what a fresh optimizer lacks is made."""
    import torch

    state = one.inner.state[one.slot]
    for kind in kinds:
        if kind not in state:
            state[kind] = torch.zeros_like(one.slot.detach())
    if isinstance(one.inner, torch.optim.Adam) and "step" not in state:
        group = next(
            group
            for group in one.inner.param_groups
            if any(parameter is one.slot for parameter in group["params"])
        )
        on_device = group.get("capturable") or group.get("fused")
        device = one.slot.device if on_device else torch.device("cpu")
        state["step"] = torch.zeros((), dtype=torch.float32, device=device)
    return dict(moments(one))


def fill(
    filling: Filling, path: tuple[str, ...], values: torch.Tensor, piece: Piece, box: PieceBox
) -> bool:
    """Plan the copies into a box; of a padded vocabulary, into the part that both have."""
    name = ".".join(path)
    form = filling.form(name)
    if form is None or not piece.padded or len(form[1]) != len(piece.shape):
        return filling.fill_box(name, values, piece.shape, box.offsets)
    shape = (form[1][0], *piece.shape[1:])
    rows = min(shape[0] - box.offsets[0], box.sizes[0])
    if rows <= 0:
        return True
    return filling.fill_box(name, values[:rows], shape, box.offsets)

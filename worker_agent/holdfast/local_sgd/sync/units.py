"""Unit of a sync: local tensors, anchors, round, detectors, and what a codec lost.

Belongs here: the state that lasts from one round to the next, as a checkpoint has it, and the step
from the anchors A to the next ones. Does not belong here: the course of a round (`unit_sync`).

Any torch optimizer takes the mean pseudo-gradient Δ̂ for the gradient of A. With
`torch.optim.SGD(lr=η, momentum=μ, nesterov=True)`, as in DiLoCo (arXiv 2311.08105) and EDiT (arXiv
2412.07210), a round is

    v ← μv + Δ̂,   A ← A - η(Δ̂ + μv)

torch's first step has v = Δ̂. Without an optimizer A ← A - Δ̂, the plain mean of the weights.
Anchors have the dtype of their parameters. With `offload` A and v are on the CPU, in pinned memory
where there is a GPU; Δ is computed on the device of the parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.local_sgd.policies.anomaly import Ewma
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.local_sgd.sync.reducers import Lost

if TYPE_CHECKING:
    import torch

Tensors = Callable[[], Sequence["torch.Tensor"]]
"""The local tensors of a unit as they are now: a framework may put others in their place."""
OuterFactory = Callable[[Sequence["torch.Tensor"]], "torch.optim.Optimizer"]
"""Makes the outer optimizer of some anchors: `lambda anchors: torch.optim.SGD(anchors, lr=0.7)`."""


class AnchorsDifferError(SyncError):
    """Replicas that should start from equal weights do not."""


@dataclass(frozen=True, slots=True)
class Outer:
    """Outer optimizers of all units of a model."""

    factory: OuterFactory | None = None
    """Makes one for the anchors of a unit; None: plain averaging."""
    offload: bool = False
    """Keep anchors and momentum on the CPU."""


class Anchors:
    """The weights of a unit after its last outer step."""

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        factory: OuterFactory | None = None,
        *,
        offload: bool = False,
    ) -> None:
        """Copy the weights.

        Args:
            weights: Local tensors of the unit; an empty list, or empty tensors, are a unit too.
            factory: Makes the outer optimizer; None: plain averaging.
            offload: Keep anchors and momentum in the CPU's memory.
        """
        self.values = [_copied(one, offload=offload) for one in weights]
        """A, in the order of the weights."""
        self.optimizer = factory(self.values) if factory is not None and self.values else None
        """The outer optimizer; None: averaging, or nothing to step."""

    def write_delta(self, flat: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
        """Write Δ = A - θ of all weights into `flat`, one behind the other, in its dtype."""
        at = 0
        for anchor, weight in zip(self.values, weights, strict=True):
            part = flat[at : at + weight.numel()].view(weight.shape)
            part.copy_(anchor)
            part.sub_(weight.detach())
            at += weight.numel()

    def step(self, flat: torch.Tensor) -> None:
        """Make the outer step along a mean pseudo-gradient, laid out as `write_delta` does."""
        at = 0
        for anchor in self.values:
            mean = flat[at : at + anchor.numel()].view(anchor.shape)
            at += anchor.numel()
            if self.optimizer is None:
                anchor.sub_(mean.to(anchor.device, anchor.dtype))
            else:
                anchor.grad = mean.to(anchor.device, anchor.dtype)
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def write_weights(self, weights: Sequence[torch.Tensor]) -> None:
        """Write θ := A."""
        for anchor, weight in zip(self.values, weights, strict=True):
            weight.detach().copy_(anchor)

    def state_dict(self) -> dict[str, Any]:
        """Return anchors and momentum: references, as torch's optimizers give them."""
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else None
        return {"anchors": list(self.values), "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of anchors and momentum.

        Raises:
            ValueError: the anchors have other shapes, or only one side has an outer optimizer.
        """
        given = [tuple(one.shape) for one in state["anchors"]]
        if given != (own := [tuple(one.shape) for one in self.values]):
            raise ValueError(
                f"anchors: shapes {given} do not fit those of this unit, {own}; load the state of "
                "the same model on the same shards"
            )
        if (state["optimizer"] is None) != (self.optimizer is None):
            raise ValueError(
                f"optimizer: the state has {'none' if state['optimizer'] is None else 'one'}, this "
                "unit does not agree; resume with the outer optimizer of the run"
            )
        for anchor, value in zip(self.values, state["anchors"], strict=True):
            anchor.copy_(value)
        if self.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


def _copied(weight: torch.Tensor, *, offload: bool) -> torch.Tensor:
    import torch

    device = torch.device("cpu") if offload else weight.device
    pinned = offload and weight.is_cuda
    value = torch.empty(weight.shape, dtype=weight.dtype, device=device, pin_memory=pinned)
    return value.copy_(weight.detach())


class Unit:
    """Local tensors that synchronise together.

    It has no anchors until `take_anchors`, which is called where all replicas are equal: before
    the first local step, after the last step of the warm-up.
    """

    def __init__(
        self, name: str, tensors: Tensors, outer: Outer | None = None, *, is_copy: bool = False
    ) -> None:
        """Take the tensors.

        Args:
            name: The same on all ranks; checkpoints and errors use it.
            tensors: Returns the local tensors, always as many and of the same shapes. None, and
                tensors without elements, are allowed: such a unit joins every collective.
            outer: Its outer optimizer; None: plain averaging, anchors beside the tensors.
            is_copy: Another rank of the replica has the same values, and counts them in its norm.
        """
        self.name = name
        self.is_copy = is_copy
        """The values count in another rank's norm."""
        self.tensors = tensors
        self.round = 0
        """Outer steps so far."""
        self.detectors: dict[int, Ewma] = {}
        """Norms of each replica so far, by its rank in the sync group: its own word of each."""
        self.lost: Lost | None = None
        """The error of a codec here; None: nothing yet."""
        self.outer = outer if outer is not None else Outer()
        """Maker of its outer optimizer."""
        self._anchors: Anchors | None = None

    @property
    def anchors(self) -> Anchors:
        """A and v; raises SyncError where nobody has taken them."""
        if self._anchors is None:
            raise SyncError(
                f"unit {self.name} has no anchors: call take_anchors() where all replicas are "
                "equal, before the first local step"
            )
        return self._anchors

    @property
    def has_anchors(self) -> bool:
        """Anchors have been taken, or loaded."""
        return self._anchors is not None

    def take_anchors(self) -> None:
        """Set A := θ, and begin with fresh momentum."""
        self._anchors = Anchors(self.tensors(), self.outer.factory, offload=self.outer.offload)
        self.lost = None

    def drop_anchors(self) -> None:
        """Forget A and v, where gradients are averaged from now on: nothing starts from them."""
        self._anchors = self.lost = None

    def adopt(self, other: Unit) -> None:
        """Take over anchors, momentum and what the codec lost, as they are in another unit.

        A checkpoint fills a unit of its own first; one without anchors leaves this one without.
        """
        self._anchors, self.lost = other._anchors, other.lost

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs; it synchronises nothing and changes nothing."""
        lost = None
        if self.lost is not None:
            lost = {"sent": self.lost.sent, "begin": self.lost.begin, "merged": self.lost.merged}
        return {
            "round": self.round,
            "outer": self._anchors.state_dict() if self._anchors is not None else None,
            "detectors": {rank: ewma.state() for rank, ewma in self.detectors.items()},
            "lost": lost,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, own: bool = True) -> None:
        """Take a state, copied.

        Args:
            state: What `state_dict` returned.
            own: The state is of this very replica; else what its codec lost is not taken over.
        """
        self.round = int(state["round"])
        self.detectors = {int(rank): Ewma.of(values) for rank, values in state["detectors"].items()}
        if state["outer"] is None:
            self._anchors = None
        else:
            self.take_anchors()
            self.anchors.load_state_dict(state["outer"])
        self.lost = None
        if own and (lost := state["lost"]) is not None:
            self.lost = Lost(lost["sent"].clone(), int(lost["begin"]), lost["merged"].clone())


def check_equal(units: Sequence[Unit], group: Group, hint: str = "") -> None:
    """Compare the anchors of all replicas, by an exact sum of their bits; one small all-gather.

    Args:
        units: All of them have anchors.
        group: The replicas.
        hint: What else the error is to say.

    Raises:
        AnchorsDifferError: names the units and replicas that differ from the first.
    """
    mine = [float(number) for unit in units for number in _fingerprint(unit.anchors.values)]
    first, *others = group.gather_scalars(mine)
    for rank, one in enumerate(others, start=1):
        wrong = [
            unit.name
            for at, unit in enumerate(units)
            if one[2 * at : 2 * at + 2] != first[2 * at : 2 * at + 2]
        ]
        if wrong:
            raise AnchorsDifferError(
                f"replicas 0 and {rank} start from different weights in {len(wrong)} of "
                f"{len(units)} units ({', '.join(wrong[:3])}): broadcast the weights before the "
                f"first local step, or load the same checkpoint everywhere{hint}"
            )


def _fingerprint(tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    total = 0
    for one in tensors:
        bits = one.detach().contiguous().view(kinds[one.element_size()])
        total += int(bits.sum(dtype=torch.int64).item())
    return (total & 0xFFFFFFFF, (total >> 32) & 0xFFFFFFFF)

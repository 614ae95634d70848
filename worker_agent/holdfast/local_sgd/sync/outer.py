"""Anchors of a unit, and the outer optimizer that moves them.

Belongs here: A, v and the step from A to the next A. Does not belong here: how the replicas agree
on the delta (`unit_sync`).

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

OuterFactory = Callable[[Sequence["torch.Tensor"]], "torch.optim.Optimizer"]
"""Makes the outer optimizer of some anchors: `lambda anchors: torch.optim.SGD(anchors, lr=0.7)`."""


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

    def step_along_nothing(self) -> None:
        """Have the outer optimizer make its state, by a step of zeros; A may change."""
        import torch

        for anchor in self.values:
            anchor.grad = torch.zeros_like(anchor)
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

"""An Adam that keeps its step count in the groups, as the fused ones of Apex and of TE do.

Those need CUDA, and every training on GPUs has one of them. Only the place of the count and the
lazy state are theirs; the arithmetic is plain.
"""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(self, params: Any, lr: float, weight_decay: float, **more: Any) -> None:
        """Take the arguments of Apex's class."""
        kept = {"betas": more["betas"], "eps": more["eps"], "bias_correction": True}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **kept})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # as Apex has it
        """Update all parameters; groups without any keep no count."""
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] = count = group.get("step", 0) + 1
            first, second = group["betas"]
            for one in group["params"]:
                state, gradient = self.state[one], one.grad
                if not state:
                    state["exp_avg"] = torch.zeros_like(one)
                    state["exp_avg_sq"] = torch.zeros_like(one)
                one.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(gradient, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
                root = state["exp_avg_sq"].sqrt().div_((1 - second**count) ** 0.5)
                rate = group["lr"] / (1 - first**count)
                one.addcdiv_(state["exp_avg"], root.add_(group["eps"]), value=-rate)


def use() -> None:
    """Have Megatron take it, as if Apex were installed."""
    import megatron.core.optimizer as package
    import megatron.core.optimizer.distrib_optimizer as distributed

    names: dict[str, Any] = {"Adam": FusedAdam, "USING_PYTORCH_OPTIMIZER": False}
    more = {"Adam": FusedAdam, "HAVE_APEX_OR_TE": True, "USING_APEX_OPTIMIZER": True}
    vars(package).update(names)
    vars(distributed).update(more)

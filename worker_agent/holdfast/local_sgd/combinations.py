"""AllSettings of local SGD that contradict each other across their classes.

Belongs here: rules about two or three of the classes. Does not belong here: rules about one class
(`config`).

A class that is absent (None) is a choice of its own: no `GTAConfig` is the weighted mean, with
clipping, weights and anomalies as the other settings say; no `OuterOptimizerConfig` is an outer
step along the mean, A := A - Δ̂. A class that is given and says None refuses what ATorch ignores
beside it, because the same settings have trained without it there.

Three of ATorch's surprises are no contradiction, and are left as they are: FSDP clips, weighs and
judges by unit, DDP and Megatron clip the whole model, and weigh and judge by tensor; `cpu_offload`
works with all of them here; `gradient_accumulation_steps` changes nothing, since all counts are of
steps of the optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.local_sgd.config import (
    GTAConfig,
    LocalSGDConfig,
    OuterOptimizerConfig,
    Rule,
    check_rules,
)


@dataclass(frozen=True, slots=True)
class AllSettings:
    """All settings of one training."""

    local: LocalSGDConfig
    outer: OuterOptimizerConfig | None
    gta: GTAConfig | None

    @property
    def has_no_reducer(self) -> bool:
        """True: the settings name no reducer, in a class that could."""
        return self.gta is not None and self.gta.reducer is None

    @property
    def has_no_outer(self) -> bool:
        """True: the settings name no outer optimizer, in a class that could."""
        return self.outer is not None and self.outer.outer_optim_class is None

    @property
    def has_momentum(self) -> bool:
        """True: the outer optimizer goes on in the direction of past rounds."""
        if self.outer is None or self.outer.outer_optim_class is None:
            return False
        made, given = self.outer.outer_optim_class, self.outer.outer_optim_kwargs
        momentum, betas = _argument(made, given, "momentum"), _argument(made, given, "betas")
        return bool(momentum) or (isinstance(betas, Sequence) and any(betas[:1]))


def check_together(
    local: LocalSGDConfig, outer: OuterOptimizerConfig | None, gta: GTAConfig | None
) -> None:
    """Refuse settings that contradict each other; every framework calls it before it trains.

    Raises:
        LocalSGDConfigError: names the fields, their values, and what to do.
    """
    check_rules(AllSettings(local, outer, gta), TOGETHER_RULES)


def _argument(made: Callable[..., object], given: Mapping[str, object], name: str) -> object:
    """Return an argument of a call, or the function's own default, or None."""
    if name in given:
        return given[name]
    try:
        parameters = inspect.signature(made).parameters
    except (TypeError, ValueError):  # a class in C tells nothing of its arguments
        return None
    default = parameters[name].default if name in parameters else None
    return None if default is inspect.Parameter.empty else default


_NAMED: Final = (
    'set reducer="linear" and an outer_optim_class, or give neither GTAConfig nor '
    "OuterOptimizerConfig"
)
TOGETHER_RULES: Final[tuple[Rule[AllSettings], ...]] = (
    Rule(
        name="plain-averaging-with-clipping",
        fields=("gta.reducer", "outer.outer_optim_class", "local.clip_pseudo_grad"),
        breaks=lambda one: (
            one.has_no_reducer and one.has_no_outer and one.local.clip_pseudo_grad is not None
        ),
        why="plain averaging of the weights has no pseudo-gradient to clip",
        remedy=f"{_NAMED}, or set clip_pseudo_grad=None",
    ),
    Rule(
        name="plain-averaging-with-anomalies",
        fields=("gta.reducer", "outer.outer_optim_class", "local.skip_anomaly"),
        breaks=lambda one: one.has_no_reducer and one.has_no_outer and one.local.skip_anomaly,
        why="plain averaging of the weights has no pseudo-gradient to judge",
        remedy=f"{_NAMED}, or set skip_anomaly=False",
    ),
    Rule(
        name="norm-weight-without-reducer",
        fields=("gta.reducer", "local.pseudo_gradnorm_reduce"),
        breaks=lambda one: one.has_no_reducer and one.local.pseudo_gradnorm_reduce,
        why="without a reducer the mean is uniform, and weights by norm have no effect",
        remedy='set reducer="linear" or "gta", give no GTAConfig, or set '
        "pseudo_gradnorm_reduce=False",
    ),
    Rule(
        name="step-weight-without-reducer-and-outer",
        fields=("gta.reducer", "outer.outer_optim_class", "local.use_step_weight"),
        breaks=lambda one: one.has_no_reducer and one.has_no_outer and one.local.use_step_weight,
        why="plain averaging of the weights weighs all replicas alike",
        remedy=f"{_NAMED}, or set use_step_weight=False",
    ),
    Rule(
        name="reducer-without-outer",
        fields=("gta.reducer", "outer.outer_optim_class"),
        breaks=lambda one: one.gta is not None and one.gta.reducer is not None and one.has_no_outer,
        why="an outer optimizer without a class is a step of length 1 along the merged delta",
        remedy='say so: outer_optim_class=torch.optim.SGD, outer_optim_kwargs={"lr": 1.0}; or give '
        "no OuterOptimizerConfig",
    ),
    Rule(
        name="clipping-without-outer",
        fields=("outer.outer_optim_class", "local.clip_pseudo_grad"),
        breaks=lambda one: one.has_no_outer and one.local.clip_pseudo_grad is not None,
        why="with DDP and Megatron only an outer optimizer takes a clipped delta",
        remedy='set outer_optim_class=torch.optim.SGD and outer_optim_kwargs={"lr": 1.0}, give no '
        "OuterOptimizerConfig, or set clip_pseudo_grad=None",
    ),
    Rule(
        name="sum-of-replicas",
        fields=("gta.normalize", "local.pseudo_gradnorm_reduce", "local.use_step_weight"),
        breaks=lambda one: (
            one.gta is not None
            and not one.gta.normalize
            and not (one.local.pseudo_gradnorm_reduce or one.local.use_step_weight)
        ),
        why="deltas that are not normalised by weights or afterwards add up to a SUM, N times too "
        "large",
        remedy="set normalize=True, or pseudo_gradnorm_reduce=True, whose weights add up to 1",
    ),
    Rule(
        name="feedback-with-momentum",
        fields=("local.error_feedback", "outer.outer_optim_kwargs"),
        breaks=lambda one: (
            one.local.error_feedback
            and one.has_momentum
            and not one.local.error_feedback_with_momentum
        ),
        why="what a codec lost comes a round late, when the momentum has gone on without it",
        remedy="set error_feedback_with_momentum=True if you want that, or error_feedback=False",
    ),
)

"""Parts of a sync, made from a user's settings.

Belongs here: which setting becomes which part, and the settings of EDiT's paper. Does not belong
here: which settings contradict each other (`holdfast.local_sgd.config`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.sync.merging import Merging
from holdfast.local_sgd.sync.reducers import Reducer
from holdfast.local_sgd.sync.units import Outer

if TYPE_CHECKING:
    import torch

_EDIT: Final = {
    "local_sgd_sync_interval": 128,
    "local_sgd_warmup_steps": 1000,
    "pseudo_gradnorm_reduce": True,
    "skip_anomaly": True,
    "clip_pseudo_grad": 10.0,
}
_OUTER: Final = {"lr": 0.8, "momentum": 0.85, "nesterov": True}


def reducer_of(config: LocalSGDConfig, gta: GTAConfig | None) -> Reducer:
    """Return what makes one of the replicas' deltas.

    Settings without an effect are refused: a reducer that is not "gta" has no methods here.
    """
    merging = Merging()
    if gta is not None:
        merging = Merging(
            consensus=gta.consensus_method,
            sparsification=gta.sparsification_method,
            density=gta.density,
            normalize=gta.normalize,
        )
    return Reducer(merging, codec=config.codec, error_feedback=config.error_feedback)


def outer_of(config: LocalSGDConfig, outer: OuterOptimizerConfig | None) -> Outer:
    """Return the maker of outer optimizers.

    Raises:
        LocalSGDConfigError: the class does not take its arguments.
    """
    if outer is None or outer.outer_optim_class is None:
        return Outer(offload=config.cpu_offload)
    optim_class, options = outer.outer_optim_class, dict(outer.outer_optim_kwargs)

    def factory(anchors: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = optim_class(anchors, **options)
        return made

    _refuse_unfit(factory, outer)
    return Outer(factory, offload=config.cpu_offload)


def _refuse_unfit(
    factory: Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer], outer: OuterOptimizerConfig
) -> None:
    """Make one, since the first real one comes with the first anchors, after the warm-up."""
    import torch

    try:
        factory([torch.zeros(1, 1)])  # Muon takes matrices only
    except (TypeError, ValueError) as error:
        name = getattr(outer.outer_optim_class, "__name__", str(outer.outer_optim_class))
        raise LocalSGDConfigError(
            f"outer_optim_kwargs={dict(outer.outer_optim_kwargs)}: {name} does not take them "
            f"({error}); give what {name} takes beside the parameters"
        ) from error


def edit_settings(**changes: Any) -> tuple[LocalSGDConfig, OuterOptimizerConfig]:
    """Return the settings of EDiT's paper (arXiv 2412.07210, section 4).

    `LocalSGDConfig()` alone is plain averaging after each step. Here replicas weigh by their norms,
    anomalies are left out, the mean is clipped at 10, and SGD with Nesterov's momentum steps along
    it; 1000 steps of warm-up, then a round each 128.

    Args:
        changes: Fields of `LocalSGDConfig` that are to have other values.

    Raises:
        LocalSGDConfigError: a value is not valid.
    """
    import torch

    config = LocalSGDConfig(**{**_EDIT, **changes})
    return config, OuterOptimizerConfig(torch.optim.SGD, dict(_OUTER))

"""EDiT with the paper's settings.

Belongs here: what a script would else look up in a paper. Does not belong here: the fields
(`config`).
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.local_sgd.config import LocalSGDConfig, OuterOptimizerConfig

_EDIT: Final = {
    "local_sgd_sync_interval": 128,
    "local_sgd_warmup_steps": 1000,
    "pseudo_gradnorm_reduce": True,
    "skip_anomaly": True,
    "clip_pseudo_grad": 10.0,
}
_OUTER: Final = {"lr": 0.8, "momentum": 0.85, "nesterov": True}


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

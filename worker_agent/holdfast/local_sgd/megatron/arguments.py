"""Flags of local SGD for Megatron-LM's command line, and the settings that they describe.

Belongs here: names and defaults of the flags, which are ATorch's, and what of them is refused. Does
not belong here: the settings' own rules (`config`, `combinations`), and who reads the command line.

Two defaults differ from those of the settings: anchors are on the CPU, and the detector's threshold
is 4. Without --local-sgd-pseudo-grad-normalize ATorch adds the replicas' deltas up to a SUM, N
times too large; that is refused here.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, Final

from holdfast.local_sgd.combinations import check_together
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.errors import LocalSGDConfigError

_THRESHOLD: Final = 4.0
_LR, _MOMENTUM = 0.7, 0.9
_FLAGS: Final = {
    "local_sgd_sync_interval": "--local-sgd-sync-interval",
    "local_sgd_warmup_steps": "--local-sgd-warmup-steps",
    "cpu_offload": "--on-device-local-sgd",
    "skip_anomaly": "--local-sgd-skip-anomaly",
    "ewma_alpha": "--local-sgd-ewma-alpha",
    "ewma_warmup_steps": "--local-sgd-ewma-warmup-steps",
    "ewma_threshold": "--local-sgd-ewma-threshold",
    "pseudo_gradnorm_reduce": "--local-sgd-pseudo-gradnorm-reduce",
    "weight_softmax_temperature": "--local-sgd-weight-softmax-temperature",
    "clip_pseudo_grad": "--local-sgd-clip-pseudo-grad",
    "reducer": "--local-sgd-pseudo-grad-reducer",
    "normalize": "--local-sgd-pseudo-grad-normalize",
    "codec": "--local-sgd-codec",
    "outer_optim_class": "--outer-optimizer",
}
"""Field of a setting → the flag that sets it."""


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings that the flags of one run describe."""

    config: LocalSGDConfig
    outer: OuterOptimizerConfig | None
    gta: GTAConfig | None


def local_sgd_args_provider(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags: `pretrain(..., extra_args_provider=local_sgd_args_provider)`."""
    group = parser.add_argument_group(title="local_sgd")
    _add_schedule(group)
    _add_detector(group)
    _add_reduction(group)
    _add_outer(group)
    return parser


def settings_of(args: Any) -> Flags | None:
    """Return the settings that Megatron's arguments describe; None: no local SGD.

    Raises:
        LocalSGDConfigError: a flag has no valid value, or contradicts another; it names the flags.
    """
    if not getattr(args, "use_local_sgd", False):
        return None
    try:
        flags = Flags(_local(args), _outer(args), _gta(args))
        check_together(flags.config, flags.outer, flags.gta)
    except LocalSGDConfigError as error:
        named = [f"{flag} sets {field}" for field, flag in _FLAGS.items() if field in str(error)]
        raise LocalSGDConfigError("; ".join([str(error), *named])) from error
    return flags


def replicas_of(args: Any) -> int | None:
    """Return the number of replicas that the flags ask for; None: one for each data parallel rank.

    Raises:
        LocalSGDConfigError: the number is below 1.
    """
    count: int | None = getattr(args, "local_sgd_replicas", None)
    if count is not None and count < 1:
        raise LocalSGDConfigError(f"--local-sgd-replicas={count}: expected a number, at least 1")
    return count


def _add_schedule(group: Any) -> None:
    group.add_argument("--use-local-sgd", action="store_true", help="Train with local SGD (EDiT).")
    group.add_argument(
        "--local-sgd-replicas",
        type=int,
        help="Replicas, as blocks of the data parallel ranks. Default: one for each such rank.",
    )
    group.add_argument(
        "--local-sgd-sync-interval",
        type=int,
        default=1,
        help="Steps between two rounds. Default: 1, which averages at each step.",
    )
    group.add_argument(
        "--local-sgd-warmup-steps",
        type=int,
        default=0,
        help="Steps in which gradients are averaged over all replicas. Default: 0.",
    )
    group.add_argument(
        "--on-device-local-sgd",
        action="store_true",
        help="Keep anchors and outer optimizer on the device, not in host memory.",
    )


def _add_detector(group: Any) -> None:
    group.add_argument(
        "--local-sgd-skip-anomaly",
        action="store_true",
        help="Leave out a replica whose norm stands out from its own past.",
    )
    group.add_argument(
        "--local-sgd-ewma-alpha",
        type=float,
        help="Weight of the newest norm. Default: 0.02.",
    )
    group.add_argument(
        "--local-sgd-ewma-warmup-steps",
        type=int,
        help="Rounds that a detector learns before it judges. Default: 120.",
    )
    group.add_argument(
        "--local-sgd-ewma-threshold",
        type=float,
        help=f"Standard deviations from which on a norm is an anomaly. Default: {_THRESHOLD:g}.",
    )


def _add_reduction(group: Any) -> None:
    group.add_argument(
        "--local-sgd-pseudo-gradnorm-reduce",
        action="store_true",
        help="Weigh replicas by softmax(-norm / temperature).",
    )
    group.add_argument(
        "--local-sgd-weight-softmax-temperature",
        type=float,
        help="Temperature of these weights. Default: 1.",
    )
    group.add_argument(
        "--local-sgd-clip-pseudo-grad",
        type=float,
        help="Greatest norm of the whole model's mean pseudo-gradient. Default: no limit.",
    )
    group.add_argument(
        "--local-sgd-pseudo-grad-reducer",
        help="linear or gta. Default: the weighted mean.",
    )
    group.add_argument(
        "--local-sgd-pseudo-grad-normalize",
        action="store_true",
        help="Divide by the sum of the weights; needed with a reducer and no weights by norm.",
    )
    group.add_argument(
        "--local-sgd-codec",
        default="none",
        help="Form in which pseudo-gradients travel: none, bf16, int8 or int4. Default: none.",
    )


def _add_outer(group: Any) -> None:
    group.add_argument(
        "--outer-optimizer",
        default="sgd",
        help="sgd, or none for plain averaging. Default: sgd.",
    )
    group.add_argument("--outer-optimizer-lr", type=float, help=f"Default: {_LR:g}.")
    group.add_argument("--outer-optimizer-momentum", type=float, help=f"Default: {_MOMENTUM:g}.")
    group.add_argument(
        "--outer-optimizer-nesterov", action="store_true", help="Step with Nesterov's momentum."
    )


def _given(args: Any, name: str, default: Any) -> Any:
    """Return an argument; its default if it was not given, or set by a script without a parser."""
    value = getattr(args, name, None)
    return default if value is None else value


def _local(args: Any) -> LocalSGDConfig:
    detector = {
        name: value
        for name in ("ewma_alpha", "ewma_warmup_steps", "ewma_threshold")
        if (value := getattr(args, f"local_sgd_{name}", None)) is not None
    }
    skips = _given(args, "local_sgd_skip_anomaly", default=False)
    if skips:
        detector.setdefault("ewma_threshold", _THRESHOLD)
    return LocalSGDConfig(
        local_sgd_sync_interval=_given(args, "local_sgd_sync_interval", 1),
        local_sgd_warmup_steps=_given(args, "local_sgd_warmup_steps", 0),
        cpu_offload=not _given(args, "on_device_local_sgd", default=False),
        skip_anomaly=skips,
        pseudo_gradnorm_reduce=_given(args, "local_sgd_pseudo_gradnorm_reduce", default=False),
        weight_softmax_temperature=getattr(args, "local_sgd_weight_softmax_temperature", None),
        clip_pseudo_grad=getattr(args, "local_sgd_clip_pseudo_grad", None),
        codec=_given(args, "local_sgd_codec", "none"),
        **detector,
    )


def _gta(args: Any) -> GTAConfig | None:
    reducer = getattr(args, "local_sgd_pseudo_grad_reducer", None)
    normalize = _given(args, "local_sgd_pseudo_grad_normalize", default=False)
    if reducer is None:
        if normalize:
            raise LocalSGDConfigError(
                "--local-sgd-pseudo-grad-normalize: without a reducer the mean is normalised as it "
                "is; set --local-sgd-pseudo-grad-reducer, or leave this flag"
            )
        return None
    return GTAConfig(reducer=reducer, normalize=normalize)


def _outer(args: Any) -> OuterOptimizerConfig | None:
    name = _given(args, "outer_optimizer", "sgd").lower()
    lr, momentum = (getattr(args, f"outer_optimizer_{one}", None) for one in ("lr", "momentum"))
    nesterov = _given(args, "outer_optimizer_nesterov", default=False)
    if name == "none":
        if nesterov or lr is not None or momentum is not None:
            raise LocalSGDConfigError(
                "--outer-optimizer=none: --outer-optimizer-lr, -momentum and -nesterov have no "
                "effect without an outer optimizer; set --outer-optimizer=sgd, or leave them"
            )
        return None
    if name != "sgd":
        raise LocalSGDConfigError(
            f"--outer-optimizer={name}: expected sgd or none; pass any other as "
            "patch_megatron_for_local_sgd(outer=OuterOptimizerConfig(...))"
        )
    options = {
        "lr": _LR if lr is None else lr,
        "momentum": _MOMENTUM if momentum is None else momentum,
        "nesterov": nesterov,
    }
    if nesterov and options["momentum"] <= 0:
        raise LocalSGDConfigError(
            f"--outer-optimizer-momentum={momentum}: --outer-optimizer-nesterov needs a momentum "
            "above 0; set one, or leave the flag"
        )
    import torch

    return OuterOptimizerConfig(torch.optim.SGD, options)

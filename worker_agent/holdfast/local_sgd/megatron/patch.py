"""Patch of Megatron-LM: its own training script, without a change, trains with local SGD.

Belongs here: the three functions of Megatron that are wrapped. Does not belong here: what a script
with a loop of its own calls (`groups`, `training`).

| wrapped | to |
|---|---|
| `parallel_state.initialize_model_parallel` | make the groups of the replicas |
| `DistributedDataParallel.__init__` | reduce gradients inside a replica |
| `get_megatron_optimizer` | attach a `MegatronLocalSGD` |

Without --use-local-sgd they do what they did before.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final

from holdfast.integrations.megatron.arguments import megatron_args
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.errors import LocalSGDError
from holdfast.local_sgd.megatron.arguments import Flags, replicas_of, settings_of
from holdfast.local_sgd.megatron.groups import replica_groups
from holdfast.local_sgd.members.members import are_named, members_if_named

_TRAINING: Final = "megatron.training.training"
_PATCHED: Final = "_holdfast_local_sgd_patch"
_INSTANCES: Final = "num_distributed_optimizer_instances"


@dataclasses.dataclass(slots=True)
class _Given:
    """Settings that a script has passed; None: the command line's flags."""

    flags: Flags | None
    replicas: int | None


def patch_megatron_for_local_sgd(
    config: LocalSGDConfig | None = None,
    outer: OuterOptimizerConfig | None = None,
    gta: GTAConfig | None = None,
    *,
    replicas: int | None = None,
) -> None:
    """Have Megatron train with local SGD; call it before Megatron is initialised.

    Args:
        config: When replicas synchronise, and how; None: all settings are those of the command
            line (`local_sgd_args_provider`), and without --use-local-sgd nothing changes.
        outer: The outer optimizer, beside a config.
        gta: How deltas become one, beside a config.
        replicas: Blocks of the data parallel ranks; None: --local-sgd-replicas, or one replica for
            each data parallel rank.

    Raises:
        LocalSGDError: Megatron is initialised or patched, or this version is not known.
    """
    from megatron.core import parallel_state

    if config is None and (outer is not None or gta is not None):
        raise LocalSGDError(
            "config=None: outer and gta have no effect beside the command line's flags; pass a "
            "LocalSGDConfig too, or leave them"
        )
    if getattr(parallel_state.initialize_model_parallel, _PATCHED, False):
        raise LocalSGDError("Megatron is patched already: call this once, before it is initialised")
    if parallel_state.is_initialized():
        raise LocalSGDError(
            "Megatron's parallel state is initialised, so the replicas' groups would be missing: "
            "call patch_megatron_for_local_sgd() before"
        )
    given = _Given(None if config is None else Flags(config, outer, gta), replicas)
    _patch_groups(given)
    _patch_model(given)
    _patch_optimizer(given)


def _flags(given: _Given) -> Flags | None:
    """Return the settings; None: no local SGD in this run."""
    return given.flags if given.flags is not None else settings_of(megatron_args())


def _replicas(given: _Given) -> int | None:
    found = given.replicas
    if found is None and given.flags is None:
        found = replicas_of(megatron_args())
    return 1 if found is None and are_named() else found  # the agent's members are the others


def _patch_groups(given: _Given) -> None:
    from megatron.core import parallel_state

    original = parallel_state.initialize_model_parallel
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        if _flags(given) is None:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments[_INSTANCES] = _instances(bound.arguments, _replicas(given))
        return original(*bound.args, **bound.kwargs)

    setattr(initialize, _PATCHED, True)
    _replace(original, initialize)


def _instances(sizes: dict[str, Any], wanted: int | None) -> int:
    """Return the number of replicas, which divides the data parallel ranks."""
    import torch.distributed as dist

    model = sizes["tensor_model_parallel_size"] * sizes["pipeline_model_parallel_size"]
    ranks = dist.get_world_size() // (model * sizes["context_parallel_size"])
    asked = sizes[_INSTANCES] if sizes[_INSTANCES] > 1 else None
    if wanted is not None and asked is not None and wanted != asked:
        raise LocalSGDError(
            f"{_INSTANCES}={asked}: replicas={wanted} are asked for too, and both number the same "
            "groups; give one of them"
        )
    count = int(wanted or asked or ranks)
    if ranks % count:
        raise LocalSGDError(
            f"replicas={count}: {ranks} data parallel ranks cannot be cut into that many equal "
            "blocks; give a divisor (--local-sgd-replicas)"
        )
    return count


def _patch_model(given: _Given) -> None:
    from megatron.core.distributed import DistributedDataParallel

    kept: Any = DistributedDataParallel
    original = kept.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def build(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if _flags(given) is not None and bound.arguments["pg_collection"] is None:
            bound.arguments["pg_collection"] = replica_groups()
            bound.arguments["ddp_config"] = dataclasses.replace(
                bound.arguments["ddp_config"], **{_INSTANCES: 1}
            )
        original(*bound.args, **bound.kwargs)

    kept.__init__ = build


def _patch_optimizer(given: _Given) -> None:
    import megatron.core.optimizer as package

    original = package.get_megatron_optimizer
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        from holdfast.local_sgd.megatron.training import MegatronLocalSGD

        optimizer, flags = original(*args, **kwargs), _flags(given)
        if flags is not None:
            members = members_if_named()
            if flags.config.use_async and members is None:
                _refuse_own_loop()
            chunks = signature.bind(*args, **kwargs).arguments["model_chunks"]
            MegatronLocalSGD(
                chunks,
                optimizer,
                flags.config,
                flags.outer,
                flags.gta,
                sync_ranks=members,
            )
        return optimizer

    _replace(original, make)


def _refuse_own_loop() -> None:
    """Have Megatron-LM's own training step refuse to run, if its script has loaded it.

    Between two rounds by time no rank may wait for another replica: one that has entered a round
    waits in it for all others, and one of these that waited for the first elsewhere would never
    come. Megatron-LM's `train_step` averages the loss over the default group.
    """
    training: Any = sys.modules.get(_TRAINING)
    original = getattr(training, "train_step", None)
    if original is None:
        return

    @functools.wraps(original)
    def refuse(*_: Any, **__: Any) -> Any:
        raise LocalSGDError(
            "use_async=True: Megatron-LM's train_step averages the loss over all replicas, so one "
            "of them would wait there for another that waits in a round: write a loop of your own, "
            "without a collective over replicas, or set use_async=False"
        )

    training.train_step = refuse


def _replace(original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
    """Put a wrapper in a function's place, also where a module has imported it by name."""
    for module in list(sys.modules.values()):
        held = vars(module) if hasattr(module, "__dict__") else {}
        for name in [key for key, value in list(held.items()) if value is original]:
            held[name] = wrapper

"""Megatron's global arguments (`get_args()`): what a checkpoint has of them, what a load sets.

Belongs here: which arguments count, and how a start changes them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

_HOMES: Final = ("megatron.training.global_vars", "megatron.training", "megatron.global_vars")
"""Modules that have had `get_args`, the newest first."""
_MODEL: Final = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups",
    "add_position_embedding", "position_embedding_type", "normalization", "swiglu",
    "tokenizer_type",
)  # fmt: skip
"""Arguments that a checkpoint must have alike."""
_SAMPLES: Final = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
_RNG_PREFIX: Final = "rng_state_key_prefix"
_OF_BOTH: Final = frozenset((
    "checkpointing_context", "tp_group", "pp_group", "dp_cp_group", "dp_group", "expt_dp_group",
    _RNG_PREFIX,
))  # fmt: skip
OF_LOAD: Final = _OF_BOTH | {"skip_load_to_model_and_opt"}
"""Parameters of Megatron's `load_checkpoint` that are not named here."""
OF_SAVE: Final = _OF_BOTH | {
    "pipeline_rank", "expert_rank", "tensor_rank", "pipeline_parallel", "expert_parallel",
    "train_data_iterator", "preprocess_common_state_dict_fn",
}  # fmt: skip
"""Parameters of Megatron's `save_checkpoint` that have no meaning here."""


def refuse_unknown(function: str, given: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Refuse a parameter that Megatron's function does not have, and one that changes the state.

    What the installed Megatron's function has besides is passed over: a newer one calls with it.
    """
    unknown = set(given) - known
    for name in sorted(unknown - (_parameters(function) if unknown else set())):
        memory = ": pass non_persistent_ckpt=True for memory" if name == "storage_type" else ""
        raise TypeError(f"{function}() has no parameter {name!r}{memory or ': leave it out'}")
    if prefix := given.get(_RNG_PREFIX):
        raise ValueError(
            f"{_RNG_PREFIX}={prefix!r}: modules in grids of their own would save random generators "
            "under one name: save with Megatron's own function"
        )


def refuse_arguments(args: Any) -> None:
    """Refuse an argument with which the next start would end before it calls anything here."""
    if getattr(args, "use_checkpoint_args", False):
        raise ValueError(
            "--use-checkpoint-args: Megatron reads the arguments from a checkpoint of its own "
            "format before it calls load_checkpoint, and finds none here: leave it out, and give "
            "the arguments"
        )


def _parameters(function: str) -> AbstractSet[str]:
    """Return the parameters of the installed Megatron's function; none where there is none."""
    try:
        module = importlib.import_module("megatron.training.checkpointing")
    except ImportError:
        return frozenset()
    own = getattr(module, function, None)
    return frozenset() if own is None else inspect.signature(own).parameters.keys()


def megatron_args() -> Any:
    """Return Megatron's global arguments; raises RuntimeError without Megatron's training."""
    for name in _HOMES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "get_args"):
            return module.get_args()
    raise RuntimeError(
        "save_checkpoint and load_checkpoint read Megatron's arguments, and none of "
        f"{', '.join(_HOMES)} has get_args: put Megatron-LM on PYTHONPATH, or pass "
        "MegatronShards(model, optimizer) to holdfast.Checkpointer(path, shards=...)"
    )


def model_arguments(args: Any) -> dict[str, Any]:
    """Return the arguments that a checkpoint must have alike."""
    return {name: getattr(args, name) for name in _MODEL if hasattr(args, name)}


class TrainingPosition:
    """Position of a training: what the data loader and the logs go on from."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self.iteration = 0
        self.operations: float = 0
        """Floating point operations so far."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        samples = {name: getattr(self._args, name, 0) for name in _SAMPLES}
        return {"iteration": self.iteration, "operations": self.operations, **samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a position, and set the arguments that follow from it."""
        from megatron.core.num_microbatches_calculator import update_num_microbatches

        self.iteration, self.operations = state["iteration"], state["operations"]
        for name in _SAMPLES:
            setattr(self._args, name, state.get(name, 0))
        update_num_microbatches(consumed_samples=state.get(_SAMPLES[0], 0), verbose=True)

"""Megatron's random generators: the trackers of tensor and expert parallelism, and the default.

A checkpoint keeps each rank's under its place in the layout. The same layout gets them back as they
were. Another one is seeded anew by Megatron's own rule, from one number that all ranks derive from
the checkpoint: ranks of a tensor parallel group must draw equal numbers outside parallel regions.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.flash.trainer.leaves import Leaves
from holdfast.flash.trainer.reshard import Filling
from holdfast.flash.trainer.rng import Rng

_PLACES: Final = ("megatron", "rng")
_LAYOUT: Final = ("megatron", "layout")
_OF_A_STAGE: Final = 100
"""Distance between the seeds of two pipeline stages, as in Megatron's training."""


class RandomStates:
    """The generators of one rank."""

    def __init__(self) -> None:
        self._same: Mapping[str, Any] | None = None
        self._seed: int | None = None

    def collect(self, leaves: Leaves) -> None:
        """List the generators' states, if Megatron has its trackers."""
        if _tracker() is None:
            return
        layout = _layout()
        leaves.add_value(_LAYOUT, lambda: layout)
        leaves.add_value((*_PLACES, _place()), _states)

    def accept(self, filling: Filling) -> None:
        """Take the states of this place, or a seed for another layout."""
        self._same = self._seed = None
        if _tracker() is None:
            return
        names = {
            str(path[2]): name
            for name, path in filling.paths.items()
            if path[:2] == _PLACES and name in filling.values
        }
        if not names:
            return
        own = names.get(_place())
        if own is not None and filling.values.get(".".join(_LAYOUT)) == _layout():
            self._same = filling.values[own]
        else:
            self._seed = _seed(filling.values[names[min(names)]])

    def freeze(self) -> Callable[[], None]:
        """Return the function that restores the present states."""
        if _tracker() is None:
            return lambda: None
        states = _states()
        return lambda: _restore(states)

    def finish(self) -> None:
        """Restore the states, or seed all generators."""
        if self._same is not None:
            _restore(self._same)
        elif self._seed is not None:
            _seed_all(self._seed)


def _tracker() -> Any:
    """Return the tracker; None: Megatron is not initialized."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    if not parallel_state.model_parallel_is_initialized():
        return None
    tracker = get_cuda_rng_tracker()
    return tracker if tracker.is_initialized() else None


def _layout() -> dict[str, int]:
    from megatron.core import parallel_state as mpu

    return {
        "tensor": mpu.get_tensor_model_parallel_world_size(),
        "pipeline": mpu.get_pipeline_model_parallel_world_size(),
        "data": mpu.get_data_parallel_world_size(),
        "context": mpu.get_context_parallel_world_size(),
        "expert": mpu.get_expert_model_parallel_world_size(),
        "expert_tensor": mpu.get_expert_tensor_parallel_world_size(),
    }


def _place() -> str:
    """Return the rank's place; no other rank has it."""
    from megatron.core import parallel_state as mpu

    tensor = mpu.get_tensor_model_parallel_rank()
    pipeline = mpu.get_pipeline_model_parallel_rank()
    data = mpu.get_data_parallel_rank(with_context_parallel=True)
    return f"tensor{tensor}_pipeline{pipeline}_data{data}"


def _states() -> dict[str, Any]:
    import torch
    from megatron.core.tensor_parallel import convert_cuda_rng_state

    trackers = {
        name: convert_cuda_rng_state(state) for name, state in _tracker().get_states().items()
    }
    return {**Rng().state_dict(), "default": torch.cuda.get_rng_state(), "trackers": trackers}


def _restore(states: Mapping[str, Any]) -> None:
    import torch
    from megatron.core.tensor_parallel import convert_cuda_rng_state, is_graph_safe_cuda_rng_tracker

    tracker = _tracker()
    graphs = is_graph_safe_cuda_rng_tracker(tracker)
    Rng().load_state_dict({key: value for key, value in states.items() if key != "cuda"})
    torch.cuda.set_rng_state(states["default"])
    tracker.set_states(
        {
            name: convert_cuda_rng_state(state, to_graphable=graphs)
            for name, state in states["trackers"].items()
        }
    )


def _seed(states: Mapping[str, Any]) -> int:
    """Return 31 bits of a saved place's generators."""
    version, numbers, _ = states["python"]
    text = repr((states["torch"].tolist(), version, numbers.tolist()))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1


def _seed_all(seed: int) -> None:
    """Seed all generators as Megatron's training does at its start."""
    import torch
    from megatron.core import parallel_state as mpu
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    seed += _OF_A_STAGE * mpu.get_pipeline_model_parallel_rank()
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)

"""The random generators of one rank, as plain data."""

from __future__ import annotations

import random
import sys
from typing import Any


class Rng:
    """State of torch's, Python's and, where it is in use, numpy's and CUDA's generators."""

    def state_dict(self) -> dict[str, Any]:
        """Return all states."""
        import torch

        version, numbers, gauss = random.getstate()
        state: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": (version, torch.tensor(numbers, dtype=torch.int64), gauss),
        }
        if "numpy" in sys.modules:
            kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
            keys = torch.tensor(keys.tolist(), dtype=torch.int64)
            state["numpy"] = (kind, keys, position, has_gauss, cached)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the states back; a generator that is not there any more is left out."""
        import torch

        torch.set_rng_state(state["torch"])
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers.tolist()), gauss))
        if "numpy" in state and "numpy" in sys.modules:
            kind, keys, *rest = state["numpy"]
            numpy = sys.modules["numpy"]
            numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
        if "cuda" in state and torch.cuda.is_available():
            for device, values in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(values, device)

"""Random generators of one rank, as plain data."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any


class Rng:
    """State of the generators of torch and Python, and of numpy and CUDA if they are in use."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all generators."""
        import torch

        state = {"torch": torch.get_rng_state(), "python": _plain(random.getstate())}
        if "numpy" in sys.modules:
            state["numpy"] = _plain(sys.modules["numpy"].random.get_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def reshard(self, states: Sequence[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
        """Return a state for a rank of another world: new seeds, different on all ranks.

        They follow from rank 0's state, so a world that starts again from the same step draws the
        same numbers.
        """
        import torch

        seed = _seed(states[0], rank, world)
        python = random.Random(seed)  # noqa: S311 - what the training had
        state: dict[str, Any] = {
            "torch": torch.Generator().manual_seed(seed).get_state(),
            "python": _plain(python.getstate()),
        }
        if "numpy" in sys.modules:
            fresh = sys.modules["numpy"].random.RandomState(seed % 2**32)
            state["numpy"] = _plain(fresh.get_state())
        if torch.cuda.is_available() and ("cuda" in states[0] or torch.cuda.is_initialized()):
            state["cuda"] = [
                torch.Generator(f"cuda:{device}").manual_seed(seed + device).get_state()
                for device in range(torch.cuda.device_count())
            ]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states; a generator that does not exist any more is left out."""
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


def _plain(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a state of Python's or numpy's generator with its numbers in a tensor."""
    import torch

    first, numbers, *rest = state
    plain = numbers if isinstance(numbers, tuple) else numbers.tolist()
    return (first, torch.tensor(plain, dtype=torch.int64, device="cpu"), *rest)


def _seed(state: dict[str, Any], rank: int, world: int) -> int:
    """Return 63 bits from the saved states, the rank and the size of the new world."""
    version, numbers, gauss = state["python"]
    text = repr((state["torch"].tolist(), version, numbers.tolist(), gauss, rank, world))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

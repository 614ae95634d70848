"""Weights of the tiny GPT that no result depends on, so that rounding decides them.

Does not belong here: the model (`gpt`). A test reads this without importing torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEADS: Final = 8
"""Attention heads of the model."""
GROUPS: Final = 4
"""Groups of them that share keys and values."""


def without_key_biases(values: Mapping[str, list[float]], hidden: int) -> dict[str, list[float]]:
    """Return a rank's weights without the biases of attention's keys, which rounding decides.

    Such a bias adds the same to all scores of a query, and softmax takes no notice: its gradient is
    0, and what is computed is the rounding of a sum that cancels, another one in each order of
    addition. Adam divides it by its own size and epsilon, so these biases reach about 1e-6, which
    is what tests compare to, and all others 1e-2. No result depends on them.
    """
    size = hidden // HEADS
    queries = HEADS // GROUPS * size
    wide, keys = queries + 2 * size, range(queries, queries + size)

    def kept(name: str, row: list[float]) -> list[float]:
        is_bias = name.endswith("linear_qkv.bias")
        return [one for at, one in enumerate(row) if not (is_bias and at % wide in keys)]

    return {name: kept(name, row) for name, row in values.items()}

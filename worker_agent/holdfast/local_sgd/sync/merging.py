"""Merging of weighted deltas into one: the linear mean, and GTA.

Belongs here: the arithmetic on values that are all here. Does not belong here: how they come here
(`reducers`).

Linear: Σ wᵢδᵢ / Σ wᵢ, or Σ wᵢδᵢ without `normalize`.

GTA (generalised task arithmetic), for each element, with uᵢ = wᵢδ̃ᵢ of the sparsified δ̃ᵢ:

    M = +1 if S ≥ 0 else -1, with S = Σ uᵢ ("sum") or Σ sign(uᵢ) ("count")
    mᵢ = 1 if sign(uᵢ) = M else 0 (a zero never agrees); without consensus 1
    out = Σ mᵢuᵢ / Σ mᵢwᵢ with `normalize` (a divisor under 1e-8 counts as 1), else Σ mᵢuᵢ

| sparsification | keeps of n values with density ρ | source |
|---|---|---|
| magnitude | the ⌊ρn⌋ greatest by absolute value, at least one | TIES, arXiv 2306.01708, trim |
| random | each with probability ρ | DARE, arXiv 2311.03099, not rescaled |
| rescaled_random | each with probability ρ, divided by ρ | DARE |

"sum" is the sign election of TIES, "count" a vote; with `normalize` the result is its disjoint
mean. TIES trims a whole tensor. Here a unit is trimmed on each shard by itself, so the result
depends on the number of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import torch

Consensus = Literal["sum", "count"]
Sparsification = Literal["magnitude", "random", "rescaled_random"]
_NO_DIVISOR: Final = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """A rule that merges the replicas' deltas; the default is the weighted mean."""

    consensus: Consensus | None = None
    """Keep only what agrees with the elected sign; None: everything."""
    sparsification: Sparsification | None = None
    """How a replica thins out its own delta; None: not."""
    density: float = 1.0
    """Share of the values that stay, 0 < ρ ≤ 1; 1: all."""
    normalize: bool = True
    """Divide by the weights that took part."""

    def __post_init__(self) -> None:
        """Refuse a density outside its range."""
        if not 0 < self.density <= 1:
            raise ValueError(f"density={self.density}: give the share that stays, 0 < ρ ≤ 1")

    @property
    def is_linear(self) -> bool:
        """The result is a weighted sum of what the replicas have."""
        return self.consensus is None

    def scaled(self, weights: Sequence[float]) -> list[float]:
        """Return the weights of a linear sum, divided by their own sum where that is wanted."""
        total = sum(weights)
        if not self.normalize or total < _NO_DIVISOR:
            return list(weights)
        return [weight / total for weight in weights]

    def sparsify(self, delta: torch.Tensor, seed: int) -> None:
        """Thin out a flat delta in place; the seed decides for the two random methods."""
        import torch

        if self.sparsification is None or self.density >= 1 or not delta.numel():
            return
        if self.sparsification == "magnitude":
            kept = max(1, int(self.density * delta.numel()))
            keep = torch.zeros_like(delta, dtype=torch.bool)
            keep[delta.abs().topk(kept, sorted=False).indices] = True
        else:
            source = torch.Generator(delta.device).manual_seed(seed)
            chances = torch.rand(delta.shape, generator=source, device=delta.device)
            keep = chances < self.density
        delta.masked_fill_(~keep, 0)
        if self.sparsification == "rescaled_random":
            delta.div_(self.density)

    def merge(self, parts: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
        """Return the merged values; row i of `parts` is replica i's, `weights[i]` its weight."""
        if self.consensus is None:
            return _weighted_sum(parts, self.scaled(weights))
        return self._agreed(parts, weights)

    def _agreed(self, parts: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
        import torch

        weighed = parts * parts.new_tensor(weights).unsqueeze(1)
        signs = weighed.sign()
        votes = signs if self.consensus == "count" else weighed
        elected = torch.where(_in_order(votes) >= 0, 1, -1).to(parts.dtype)
        agrees = (signs == elected).to(parts.dtype)
        total = _in_order(weighed * agrees)
        if not self.normalize:
            return total
        divisor = _in_order(agrees * parts.new_tensor(weights).unsqueeze(1))
        return total / torch.where(divisor < _NO_DIVISOR, 1.0, divisor)


def _weighted_sum(parts: torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.add_(part, alpha=weight)
    return total


def _in_order(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of the rows, one after another: the same on every machine."""
    total = rows[0].clone()
    for row in rows[1:]:
        total.add_(row)
    return total

"""Merging of deltas against the formulas on plain floats: the linear mean, and GTA."""

from __future__ import annotations

import random

import pytest
import torch

from holdfast.local_sgd.sync.merging import Consensus, Merging, Sparsification
from local_sgd.scalar_edit import gta


def _drawn(seed: int, replicas: int, values: int) -> tuple[list[list[float]], list[float]]:
    """Return deltas with zeros, ties and both signs, and weights of which one is 0."""
    draw = random.Random(seed)
    deltas = [
        [draw.choice([0.0, 0.25, -0.25, draw.uniform(-1, 1)]) for _ in range(values)]
        for _ in range(replicas)
    ]
    weights = [draw.uniform(0.1, 1) for _ in range(replicas)]
    if replicas > 2:
        weights[1] = 0.0
    return deltas, [one / sum(weights) for one in weights]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("consensus", [None, "sum", "count"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_a_merge_is_the_formula(
    replicas: int, consensus: Consensus | None, *, normalize: bool
) -> None:
    """Each element is what the formula gives on plain floats, for every method."""
    for seed in range(20):
        deltas, weights = _drawn(seed, replicas, 40)
        rule = Merging(consensus=consensus, normalize=normalize)
        merged = rule.merge(torch.tensor(deltas, dtype=torch.float64), weights).tolist()
        wanted = gta(deltas, weights, consensus, normalize=normalize)
        assert merged == pytest.approx(wanted, abs=1e-12), f"seed {seed}"


def test_equal_votes_elect_plus() -> None:
    """A tie goes to +, and zeros agree with nobody."""
    deltas = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    merged = Merging(consensus="count").merge(deltas, [0.5, 0.5])
    assert merged.tolist() == [1.0, 0.0]


def test_a_mean_without_normalize_is_no_sum_of_replicas() -> None:
    """Weights that add up to 1 give a mean, however `normalize` is set."""
    deltas = torch.ones(4, 3)
    for normalize in (True, False):
        assert Merging(normalize=normalize).merge(deltas, [0.25] * 4).tolist() == [1.0] * 3


@pytest.mark.parametrize(("density", "kept"), [(0.1, 10), (0.5, 50), (0.999, 99), (0.001, 1)])
def test_magnitude_keeps_the_greatest(density: float, kept: int) -> None:
    """Of 100 values the ⌊ρn⌋ greatest by absolute value stay, at least one."""
    delta = torch.randn(100, generator=torch.Generator().manual_seed(5))
    whole = delta.clone()
    Merging(sparsification="magnitude", density=density).sparsify(delta, 0)
    left = delta.nonzero().flatten()
    assert len(left) == kept
    assert set(left.tolist()) == set(whole.abs().topk(kept).indices.tolist())
    assert torch.equal(delta[left], whole[left])


@pytest.mark.parametrize("method", ["random", "rescaled_random"])
def test_random_methods_keep_a_share(method: Sparsification) -> None:
    """Each value stays with probability ρ; rescaled, the sum is right in the mean."""
    delta = torch.ones(100_000)
    Merging(sparsification=method, density=0.3).sparsify(delta, 42)
    assert (delta > 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    wanted = 1.0 if method == "rescaled_random" else 0.3
    assert delta.mean().item() == pytest.approx(wanted, abs=0.02)
    again = torch.ones(100_000)
    Merging(sparsification=method, density=0.3).sparsify(again, 42)
    assert torch.equal(delta, again)


def test_density_one_and_empty_deltas_stay() -> None:
    """Nothing is thinned out where nothing is to be."""
    delta = torch.randn(10)
    whole = delta.clone()
    Merging(sparsification="magnitude").sparsify(delta, 0)
    assert torch.equal(delta, whole)
    Merging(sparsification="magnitude", density=0.5).sparsify(torch.zeros(0), 0)


@pytest.mark.parametrize("density", [0.0, -1.0, 1.5, float("nan")])
def test_a_density_outside_its_range_is_refused(density: float) -> None:
    """The error names the value and the range."""
    with pytest.raises(ValueError, match="give the share that stays"):
        Merging(density=density)

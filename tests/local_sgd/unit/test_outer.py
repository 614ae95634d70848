"""Anchors and outer optimizers: the formulas, the copies, what a wrong state is told."""

from __future__ import annotations

import random

import pytest
import torch

from holdfast.local_sgd.sync.units import Anchors, Outer, Unit


def _sgd(**options: float | bool) -> Outer:
    return Outer(lambda anchors: torch.optim.SGD(anchors, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("nesterov", [True, False])
def test_outer_sgd_is_the_formula(*, nesterov: bool) -> None:
    """With v ← μv + Δ̂ and A ← A - η(Δ̂ + μv), over several rounds, in plain floats."""
    draw, rate, mu = random.Random(3), 0.7, 0.8
    anchor, momentum = [draw.uniform(-1, 1) for _ in range(9)], [0.0] * 9
    weights = torch.tensor(anchor, dtype=torch.float64)
    outer = _sgd(lr=rate, momentum=mu, nesterov=nesterov)
    anchors = Anchors([weights], outer.factory)
    for _ in range(5):
        delta = [draw.uniform(-0.1, 0.1) for _ in range(9)]
        anchors.step(torch.tensor(delta, dtype=torch.float64))
        for at, one in enumerate(delta):
            momentum[at] = mu * momentum[at] + one
            anchor[at] -= rate * (one + mu * momentum[at] if nesterov else momentum[at])
    anchors.write_weights([weights])
    assert weights.tolist() == pytest.approx(anchor, abs=1e-14)


def test_averaging_is_a_step_of_length_one() -> None:
    """Without an optimizer A ← A - Δ̂, as SGD with lr=1 and no momentum does; each has its part."""
    weights = [torch.ones(1), torch.ones(2)]
    plain, sgd = Anchors(weights), Anchors(weights, _sgd(lr=1.0).factory)
    delta = torch.tensor([0.5, -0.25, 0.0])
    for one in (plain, sgd):
        one.step(delta.clone())
        assert [anchor.tolist() for anchor in one.values] == [[0.5], [1.25, 1.0]]


def test_any_optimizer_of_torch_steps_the_anchors() -> None:
    """Adam on anchors moves them by its learning rate in the first round."""
    anchors = Anchors([torch.zeros(2, 3)], lambda some: torch.optim.Adam(some, lr=0.1))
    anchors.step(torch.tensor([1.0, -1, 2, -2, 3, -3]))
    assert anchors.values[0].flatten().tolist() == pytest.approx([-0.1, 0.1] * 3)


def test_anchors_are_copies() -> None:
    """Neither the weights move the anchors, nor a step the weights."""
    weights = torch.ones(4)
    anchors = Anchors([weights])
    weights.add_(1)
    assert anchors.values[0].tolist() == [1.0] * 4
    flat = torch.empty(4)
    anchors.write_delta(flat, [weights])
    assert flat.tolist() == [-1.0] * 4
    anchors.step(flat)
    assert weights.tolist() == [2.0] * 4


def test_deltas_of_half_floats_are_exact_in_fp32() -> None:
    """A - θ of bf16 tensors in a flat fp32 vector does not round to bf16."""
    anchors = Anchors([torch.full((2,), 1.0, dtype=torch.bfloat16)])
    flat = torch.empty(2)
    anchors.write_delta(flat, [torch.full((2,), 2**-9, dtype=torch.bfloat16)])
    assert flat.tolist() == [1 - 2**-9] * 2


def test_a_state_is_taken_over_as_a_copy() -> None:
    """Anchors, momentum, round, detectors: all come back, and no tensor is shared."""
    weights = torch.ones(3)
    unit = Unit("one", lambda: (weights,), _sgd(lr=0.5, momentum=0.9))
    unit.take_anchors()
    unit.anchors.step(torch.ones(3))
    unit.round = 7
    other = Unit("one", lambda: (torch.zeros(3),), _sgd(lr=0.5, momentum=0.9))
    other.load_state_dict(state := unit.state_dict())
    unit.anchors.step(torch.ones(3))
    assert other.round == 7
    assert other.anchors.values[0].tolist() == [0.5] * 3
    other.anchors.step(torch.ones(3))
    assert torch.equal(other.anchors.values[0], unit.anchors.values[0])
    assert state["outer"]["anchors"][0] is unit.anchors.values[0]  # as torch's own: a reference


def test_a_state_that_does_not_fit_is_refused() -> None:
    """The error names shapes, or that one side has no outer optimizer."""
    state = Anchors([torch.ones(3)]).state_dict()
    with pytest.raises(ValueError, match=r"shapes \[\(3,\)\] do not fit .* \[\(4,\)\]"):
        Anchors([torch.ones(4)]).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has none"):
        Anchors([torch.ones(3)], _sgd(lr=1.0).factory).load_state_dict(state)


def test_a_unit_without_anchors_names_the_remedy() -> None:
    """A sync that begins too early is told to take anchors."""
    unit = Unit("block 3", lambda: (torch.ones(1),))
    with pytest.raises(RuntimeError, match="unit block 3 has no anchors: call take_anchors"):
        _ = unit.anchors

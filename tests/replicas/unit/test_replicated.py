"""One replica alone, in this process: what a script may do, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from holdfast.local_sgd.members.members import Membership
from holdfast.local_sgd.sync.group import Group
from holdfast.replicas.errors import ContentError, ModelError, ReplicasError
from holdfast.replicas.replicated import Replicated


class Alone:
    """Members of a job with one replica."""

    changes = False
    timeout = 1.0

    def __init__(self) -> None:
        self.shard_group = Group.of_one()
        self._first: Membership | None = Membership(1, (0,), Group.of_one())

    def has_changed(self) -> bool:
        """Return False."""
        return False

    def refresh(self) -> Membership | None:
        """Return the only membership, once."""
        first, self._first = self._first, None
        return first

    def recover(self) -> Membership:
        """Never needed."""
        raise AssertionError


def linear() -> nn.Linear:
    """Return a model of known weights."""
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def replicated(model: Any, *, micro_batches: int = 4, **settings: Any) -> Replicated:
    """Return a model that one replica has."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Replicated(model, optimizer, Alone(), micro_batches=micro_batches, **settings)


def train(made: Replicated, model: Any) -> None:
    """Make a step."""
    for number in made.dealt():
        model(rows()[number]).mean().backward()


def rows() -> list[torch.Tensor]:
    """Return the inputs of four micro-batches."""
    return [torch.full((2, 3), float(number)) for number in range(4)]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_gradient_is_the_mean_over_micro_batches(*, overlap: bool) -> None:
    """Also in the second step, which begins with zeros whatever the script has left."""
    model = linear()
    made = replicated(model, overlap=overlap)
    for _ in range(2):
        train(made, model)
        assert model.weight.grad is not None
        assert torch.equal(model.weight.grad, torch.full((1, 3), 1.5))
    assert made.steps == 2


def test_sums_are_divided_by_the_weight_of_the_whole_step() -> None:
    """Losses that are sums over unlike numbers of tokens."""
    model = linear()
    made = replicated(model)
    for number in made.dealt():
        made.weigh(number + 1)
        (model(rows()[number]).mean() * (number + 1)).backward()
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, torch.full((1, 3), (2 + 6 + 12) / 10))


def test_a_loop_that_is_left_early_is_refused_in_the_next_step() -> None:
    """The others wait for the rest of its micro-batches."""
    made = replicated(model := linear())
    for number in made.dealt():
        model(rows()[number]).mean().backward()
        break
    with pytest.raises(ReplicasError, match="step 0: the loop over its micro-batches was left"):
        next(made.dealt())


def test_a_parameter_that_no_loss_reaches_is_named() -> None:
    """With other micro-batches one might: replicas would step it unlike."""
    model = nn.Sequential(linear(), nn.Linear(1, 1))
    made = replicated(model)
    with pytest.raises(ModelError, match=r"^1\.weight: no loss of this step reached it"):
        train(made, model[0])


def test_a_second_gradient_of_a_parameter_is_named() -> None:
    """Its bucket was reduced with the first: `overlap=False` waits for both."""
    made = replicated(model := linear(), micro_batches=1)
    next(made.dealt())
    model(rows()[1]).mean().backward()
    with pytest.raises(ModelError, match="weight: it has more than one gradient"):
        model(rows()[2]).mean().backward()


def test_a_parameter_that_came_later_is_named() -> None:
    """It would be stepped by each replica with its own gradient."""
    model = nn.Sequential(linear())
    made = replicated(model)
    model.append(nn.Linear(1, 1))
    with pytest.raises(ModelError, match=r"^1\.weight: it was added"):
        train(made, model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), "^1: SyncBatchNorm"),
        (nn.Embedding(3, 2, sparse=True), "^Embedding: its gradient is sparse"),
        (nn.Linear(2, 2).requires_grad_(requires_grad=False), "no parameter that needs"),
        (nn.Linear(2, 2, dtype=torch.complex64), "^weight: torch.complex64 is no real"),
    ],
    ids=["sync-batch-norm", "sparse", "frozen", "complex"],
)
def test_models_that_no_sum_fits_are_refused_by_name(model: nn.Module, said: str) -> None:
    """Before the first step."""
    with pytest.raises(ModelError, match=said):
        replicated(model)


@pytest.mark.parametrize("times", [0.0, 2.0], ids=["missing", "doubled"])
def test_a_micro_batch_that_is_not_once_in_a_sum_is_never_applied(times: float) -> None:
    """As a fault in dealing or in a reduction would leave it: the error names it."""
    made = replicated(model := linear())
    steps = made.dealt()
    for _ in range(4):
        model(rows()[next(steps)]).mean().backward()
    made._sum.buckets[-1].tail[2] = times
    with pytest.raises(ContentError, match=rf"\{{2: {times:.0f}\}}"):
        next(steps)


def test_settings_that_are_not_valid_are_refused() -> None:
    """A step without micro-batches, and a word that is no way to go on."""
    with pytest.raises(ValueError, match="micro_batches=0: expected 1 or more"):
        replicated(linear(), micro_batches=0)
    with pytest.raises(ValueError, match="'less' is not a valid OnLoss"):
        replicated(linear(), on_loss="less")

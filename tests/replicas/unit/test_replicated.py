"""One replica alone, in this process: what a script may do, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from holdfast.data.shards import ShardReader
from holdfast.local_sgd.members.members import Membership
from holdfast.local_sgd.sync.group import Group, SyncError
from holdfast.replicas.errors import ContentError, ModelError, ReplicasError
from holdfast.replicas.meeting import Agreement
from holdfast.replicas.reader_place import ReaderPlace
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


def test_a_step_in_which_nobody_has_samples_is_seen_by_all() -> None:
    """The end of a stream: its gradient is zero, and its weight says so."""
    made = replicated(model := linear(), micro_batches=2)
    for number in made.dealt():
        made.weigh(3)
        (model(rows()[number]).mean() * 3).backward()
    assert made.weight == 6
    for _ in made.dealt():
        made.weigh(0)
    assert made.weight == 0
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.zeros(1, 3))


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


def test_a_parameter_that_the_optimizer_alone_has_is_named() -> None:
    """No sum has its gradient: replicas would step it unlike."""
    model, scale = linear(), nn.Parameter(torch.ones(2))
    groups: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": [scale]}]
    optimizer = torch.optim.SGD(groups, lr=0.5)
    with pytest.raises(ModelError, match=r"param_groups\[1\]\['params'\]\[0\] of SGD, of shape"):
        Replicated(model, optimizer, Alone(), micro_batches=4)


def test_a_loss_that_reaches_less_later_gives_zeros() -> None:
    """An expert that no sample of this replica's needs: the others' may."""
    expert = nn.Linear(1, 1)
    model = nn.Sequential(linear(), expert)
    made = replicated(model)
    train(made, model)
    made._sum.check_again()
    train(made, model[0])
    assert expert.weight.grad is not None
    assert expert.weight.grad.abs().sum().item() == 0


def test_gradients_of_any_memory_layout_are_summed() -> None:
    """As those of convolutions in channels_last."""
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    images = torch.randn(4, 2, 3, 5, 5).to(memory_format=torch.preserve_format)
    made = replicated(model)
    for number in made.dealt():
        model(images[number].contiguous(memory_format=torch.channels_last)).mean().backward()
    found = model.weight.grad
    assert found is not None
    model.weight.grad = None
    sum(model(one).mean() / 4 for one in images).backward()
    torch.testing.assert_close(found, model.weight.grad)


def test_a_joiner_steps_a_scaler_that_has_scaled_nothing() -> None:
    """It takes its first step with the others' gradient, and had no loss of its own."""
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    made = Replicated(model, optimizer, Alone(), micro_batches=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    made.carry("scaler", scaler)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0})
    model.weight.grad = torch.full((1, 3), 3.0)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, torch.full((1, 3), 1 - 0.5 * 3 / 2))


def test_all_ranks_of_fixed_replicas_save_a_checkpoint() -> None:
    """They are one world, whose commit waits for each rank's part."""
    made = replicated(linear())
    made._group = RankOne()  # type: ignore[assignment]
    assert made.saves


def test_fixed_replicas_begin_as_the_world_that_they_are() -> None:
    """Their roster has one number at each start: records of samples tell starts apart by others."""
    made = replicated(model := linear())
    train(made, model)
    assert made.began == (0, 0)


def test_a_stream_is_not_read_on_where_its_records_are_in_no_gradient() -> None:
    """A replica thaws in the middle of a step that the others have made without it."""
    made = replicated(model := linear(), on_loss="fewer")
    dealt = made.dealt()
    model(rows()[next(dealt)]).mean().backward()
    next(dealt)
    plan = Agreement(step=5, heals=((0, 1),), dealt={0: ()}, reason="")
    with pytest.raises(ReplicasError, match="replica 0 was out of the roster for a while"):
        made._follow(plan)


def test_a_stream_is_not_read_on_where_others_have_made_its_step_without_it() -> None:
    """It comes back one step behind: their gradient has nothing of what it had read for it."""
    made = replicated(model := linear(), on_loss="fewer")
    train(made, model)
    dealt = made.dealt()
    model(rows()[next(dealt)]).mean().backward()
    next(dealt)
    plan = Agreement(step=2, behind=(0,), gradient_from=0, dealt={0: ()}, reason="")
    made._follow(plan)
    assert made.steps == 2, "theirs has it"
    made._sum.held = {0}
    made._sum.buckets[-1].tail.zero_()
    with pytest.raises(ReplicasError, match="replica 0 was out of the roster for a while"):
        made._follow(plan)


def test_the_place_of_a_reader_of_shards_travels_with_the_sum() -> None:
    """That of the records that are in its gradient; so readers come before the first step."""
    made = replicated(model := linear())

    def read(_: str, start: int) -> range:
        return range(start, 5)

    shards = ShardReader(["a", "b"], read, replicated=made)
    for at in (ReaderPlace(0, 4), ReaderPlace(1, 3)):
        for number in made.dealt():
            assert next(shards).value < 5
            model(rows()[number]).mean().backward()
        assert made._sum.places._known == {0: (made.steps, [at])}
    with pytest.raises(ReplicasError, match="before the first step"):
        ShardReader(["a"], read, replicated=made)


class RankOne:
    """A group in which this is the second."""

    rank = 1


class Losing:
    """The ranks of a replica, the other of which has seen a collective fail."""

    rank, size = 0, 2

    def max_scalars(self, values: Any) -> list[float]:
        """Return what the other says."""
        return [1.0]


def test_a_gradient_that_another_rank_was_not_given_is_not_counted() -> None:
    """Else the ranks of a replica would be in unlike steps, and plan unlike."""
    made = replicated(model := linear())
    train(made, model)
    plan = Agreement(step=2, behind=(0,), gradient_from=0, dealt={0: ()}, reason="")
    made.own, made._members.changes = Losing(), True  # type: ignore[assignment,misc]
    with pytest.raises(SyncError):
        made._follow(plan)
    assert (made.steps, made._is_given) == (1, False)
    made.own = Group.of_one()
    made._follow(plan)
    assert (made.steps, made._is_given) == (2, True)


def test_an_optimizer_whose_state_no_joiner_can_be_given_is_refused() -> None:
    """In the second step, before anybody joins: LBFGS keeps lists."""
    made = replicated(model := linear())
    made._members.changes = True  # type: ignore[misc]
    train(made, model)
    made._optimizers[0].state[model.weight]["history"] = [torch.zeros(1)]
    with pytest.raises(ReplicasError, match="'history' of a SGD is a list"):
        train(made, model)


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

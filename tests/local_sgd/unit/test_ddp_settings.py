"""Settings that the DDP averager refuses, and an optimizer around it without other ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.local_sgd import OuterOptimPeriodicModelAverager, StatefulPostLocalSGDOptimizer
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig
from holdfast.local_sgd.errors import LocalSGDConfigError, LocalSGDError


def alone(
    size: int = 1, lr: float = 0.1, outer: float | None = None, **config: Any
) -> tuple[torch.nn.Parameter, StatefulPostLocalSGDOptimizer]:
    """Return a weight of ones, and the optimizer of a replica that has it, without others."""
    weight = torch.nn.Parameter(torch.ones(size))
    averager = OuterOptimPeriodicModelAverager(
        local_sgd_config=LocalSGDConfig(**config),
        outer_optim_config=OuterOptimizerConfig(torch.optim.SGD, {"lr": outer}) if outer else None,
    )
    return weight, StatefulPostLocalSGDOptimizer(torch.optim.SGD([weight], lr=lr), averager)


def test_what_ddp_has_not_is_refused_by_name() -> None:
    """A setting that would have no effect names itself and what to do."""
    config = LocalSGDConfig(use_step_weight=True, step_weight_by="tokens")
    said = "step_weight_by='tokens': with DDP and Megatron nobody tells the tokens"
    with pytest.raises(LocalSGDConfigError, match=said):
        OuterOptimPeriodicModelAverager(local_sgd_config=config)


def test_settings_that_contradict_each_other_are_refused() -> None:
    """The rules of all three classes together hold here, too."""
    with pytest.raises(LocalSGDConfigError, match="without a reducer the mean is uniform"):
        OuterOptimPeriodicModelAverager(
            local_sgd_config=LocalSGDConfig(pseudo_gradnorm_reduce=True), gta_config=GTAConfig()
        )


@pytest.mark.parametrize("options", [{"learning_rate": 0.7}, {"lr": -1.0}])
def test_an_outer_optimizer_that_cannot_be_made_is_refused_at_once(
    options: dict[str, float],
) -> None:
    """Not after the warm-up, by an error that names no setting."""
    with pytest.raises(LocalSGDConfigError, match=r"^outer_optim_kwargs=.*SGD does not take them"):
        OuterOptimPeriodicModelAverager(
            outer_optim_config=OuterOptimizerConfig(torch.optim.SGD, options)
        )


def test_an_outer_optimizer_of_matrices_alone_is_taken() -> None:
    """It is tried with a matrix, which every optimizer takes."""
    muon = OuterOptimizerConfig(torch.optim.Muon, {"lr": 0.02})
    assert OuterOptimPeriodicModelAverager(outer_optim_config=muon).step == 0


def test_a_replica_alone_takes_outer_steps() -> None:
    """Without a process group one replica moves its anchor by the outer optimizer."""
    weight, optim = alone(outer=0.5, local_sgd_sync_interval=2)
    for _ in range(2):
        weight.grad = torch.tensor([1.0])
        optim.step()
    assert weight.item() == pytest.approx(1.0 - 0.5 * 0.2)
    assert optim.state_dict()["step"] == 2


def test_a_parameter_that_is_added_later_gets_its_anchor_then() -> None:
    """Its first local step begins from its own anchor; the others keep theirs."""
    first, optim = alone(local_sgd_sync_interval=4)
    second = torch.nn.Parameter(torch.ones(1))
    for step in range(4):
        if step == 2:
            second.data.fill_(5.0)
            optim.add_param_group({"params": [second]})
        first.grad, second.grad = torch.ones(1), torch.ones(1)
        optim.step()
    units = optim.averager.state_dict()["units"]
    assert [one["round"] for one in units] == [1, 1]
    assert first.item() == pytest.approx(0.6)
    assert second.item() == pytest.approx(4.8)


def test_a_model_without_the_optimizer_s_parameters_has_no_shards() -> None:
    """The error gives the shape of one that is missing."""
    _, optim = alone(size=3)
    with pytest.raises(LocalSGDError, match=r"1 parameters .* such as one of shape \(3,\)"):
        optim.shards(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("call", ["finish", "step"])
def test_a_round_that_a_checkpoint_had_before_it_is_made_first(call: str) -> None:
    """Before the next step, or at the end of the data where there is none."""
    weight, optim = alone(outer=0.5, local_sgd_sync_interval=2)
    averager = optim.averager
    averager.before_step(optim.param_groups)
    weight.data.fill_(0.0)
    averager.set_clock({"steps": 2, "alone": 2, "tokens": 0, "due": True, "rounds": 1})
    weight.grad = torch.zeros(1)
    getattr(averager if call == "finish" else optim, call)()
    assert weight.item() == pytest.approx(0.5)
    assert averager.rounds == 1


def test_a_replica_that_is_left_out_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Its step was not finite: the round says so, loudly, and that nobody's delta counts."""
    weight, optim = alone(lr=1.0)
    weight.grad = torch.tensor([float("nan")])
    optim.step()
    (line,) = caplog.messages
    assert "round 1: 1 of 1 parameters stand out; parameter 0: anomalous (True,)" in line
    assert weight.item() == 1.0


def test_parameters_may_come_from_a_generator() -> None:
    """As torch's own averagers take `model.parameters()`: each look at them has all."""
    model = torch.nn.Linear(2, 1)
    averager = OuterOptimPeriodicModelAverager()
    for number in (1, 2):
        averager.before_step(model.parameters())
        averager.average_parameters(model.parameters())
        assert averager.rounds == number
        assert len(averager.outcomes) == 2

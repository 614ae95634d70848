"""Flags of local SGD on Megatron's command line, and the settings that they describe."""

from __future__ import annotations

import argparse

import pytest

from holdfast.local_sgd import local_sgd_args_provider
from holdfast.local_sgd.errors import LocalSGDConfigError
from holdfast.local_sgd.megatron.arguments import Flags, replicas_of, settings_of
from holdfast.local_sgd.policies.schedule import Boundary, boundary, is_warm_up


def _parsed(line: str) -> argparse.Namespace:
    return local_sgd_args_provider(argparse.ArgumentParser()).parse_args(line.split())


def _settings(line: str) -> Flags:
    found = settings_of(_parsed(f"--use-local-sgd {line}"))
    assert found is not None
    return found


def test_without_its_flag_there_is_no_local_sgd() -> None:
    """Other flags alone, or a script that knows none of them, change nothing."""
    assert settings_of(_parsed("--local-sgd-sync-interval 32")) is None
    assert settings_of(argparse.Namespace()) is None


def test_defaults_are_those_of_atorch() -> None:
    """SGD with momentum 0.9 on anchors in host memory, and a detector's threshold of 4."""
    found = _settings("--local-sgd-skip-anomaly")
    assert found.outer is not None
    assert dict(found.outer.outer_optim_kwargs) == {"lr": 0.7, "momentum": 0.9, "nesterov": False}
    assert found.config.cpu_offload
    assert (found.config.ewma_threshold, found.config.ewma_warmup_steps) == (4.0, 120)
    assert found.gta is None
    assert replicas_of(_parsed("")) is None


def test_each_flag_sets_its_field() -> None:
    """What is given arrives."""
    found = _settings(
        "--local-sgd-sync-interval 8 --local-sgd-warmup-steps 3 --on-device-local-sgd "
        "--local-sgd-skip-anomaly --local-sgd-ewma-alpha 0.1 --local-sgd-ewma-warmup-steps 5 "
        "--local-sgd-ewma-threshold 2.5 --local-sgd-pseudo-gradnorm-reduce "
        "--local-sgd-weight-softmax-temperature 0.5 --local-sgd-clip-pseudo-grad 10 "
        "--local-sgd-pseudo-grad-reducer linear --local-sgd-pseudo-grad-normalize "
        "--local-sgd-codec int8 --outer-optimizer-lr 0.8 --outer-optimizer-momentum 0.85 "
        "--outer-optimizer-nesterov"
    )
    config = found.config
    assert (config.local_sgd_sync_interval, config.local_sgd_warmup_steps) == (8, 3)
    assert (config.cpu_offload, config.codec, config.clip_pseudo_grad) == (False, "int8", 10)
    assert (config.ewma_alpha, config.ewma_warmup_steps, config.ewma_threshold) == (0.1, 5, 2.5)
    assert config.temperature == 0.5
    assert found.gta is not None
    assert (found.gta.reducer, found.gta.normalize) == ("linear", True)
    assert found.outer is not None
    assert dict(found.outer.outer_optim_kwargs) == {"lr": 0.8, "momentum": 0.85, "nesterov": True}
    assert replicas_of(_parsed("--local-sgd-replicas 4")) == 4


def test_values_that_a_trainer_sets_need_no_parser() -> None:
    """The warm-up of 256 steps ends at 256, though the interval of 32 is over long before."""
    given = argparse.Namespace(
        use_local_sgd=True, local_sgd_sync_interval=32, local_sgd_warmup_steps=256
    )
    found = settings_of(given)
    assert found is not None
    assert all(is_warm_up(step, found.config) for step in range(256))
    ends = [step for step in range(1, 321) if boundary(step, found.config) is not Boundary.NOTHING]
    assert ends == [256, 288, 320]


def test_no_outer_optimizer_is_plain_averaging() -> None:
    """The name "none" stands for it."""
    assert _settings("--outer-optimizer none").outer is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--local-sgd-pseudo-grad-reducer linear", "--local-sgd-pseudo-grad-normalize sets normal"),
        ("--local-sgd-pseudo-grad-normalize", "without a reducer"),
        ("--local-sgd-ewma-threshold 2", "--local-sgd-skip-anomaly sets skip_anomaly"),
        ("--outer-optimizer none --outer-optimizer-lr 1", "--outer-optimizer=none"),
        ("--outer-optimizer lion", "--outer-optimizer=lion: expected sgd or none"),
        ("--outer-optimizer-nesterov --outer-optimizer-momentum 0", "needs a momentum above 0"),
        ("--local-sgd-sync-interval 0", "--local-sgd-sync-interval sets"),
        ("--local-sgd-codec int3", "--local-sgd-codec sets codec"),
    ],
)
def test_flags_without_an_effect_are_refused_by_name(line: str, said: str) -> None:
    """A refusal names the flag beside the setting."""
    with pytest.raises(LocalSGDConfigError, match=said):
        _settings(line)


def test_a_number_of_replicas_below_one_is_refused() -> None:
    """No replica would train."""
    with pytest.raises(LocalSGDConfigError, match="--local-sgd-replicas=0: expected a number"):
        replicas_of(_parsed("--local-sgd-replicas 0"))

"""Settings of local SGD: ATorch's names and defaults, valid values, contradictions by name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from holdfast.local_sgd import combinations, config
from holdfast.local_sgd.combinations import check_together
from holdfast.local_sgd.config import GTAConfig, LocalSGDConfig, OuterOptimizerConfig, Rule
from holdfast.local_sgd.errors import LocalSGDConfigError


def optimizer(params: Any, **_: Any) -> Any:
    """Stand for an optimizer's class; nothing calls it here."""
    return params


SGD = OuterOptimizerConfig(optimizer, {"lr": 0.7, "momentum": 0.8, "nesterov": True})
SEED_FIELDS: dict[Any, dict[str, object]] = {
    LocalSGDConfig: {
        "use_async": False,
        "local_sgd_sync_interval": 1,
        "local_sgd_sync_time": 600,
        "min_total_global_steps": 100,
        "use_step_weight": False,
        "step_weight_ratio": 0.5,
        "local_sgd_warmup_steps": 0,
        "gradient_accumulation_steps": 1,
        "clip_pseudo_grad": None,
        "pseudo_gradnorm_reduce": False,
        "weight_softmax_temperature": None,
        "skip_anomaly": False,
        "ewma_alpha": 0.02,
        "ewma_warmup_steps": 120,
        "ewma_threshold": 3,
        "cpu_offload": False,
        "is_debug": False,
    },
    OuterOptimizerConfig: {"outer_optim_class": None, "outer_optim_kwargs": {}},
    GTAConfig: {
        "reducer": None,
        "consensus_method": None,
        "sparsification_method": None,
        "normalize": True,
        "density": 1.0,
        "int8_mask": False,
    },
}


@pytest.mark.parametrize("made", SEED_FIELDS, ids=lambda made: made.__name__)
def test_the_fields_and_defaults_are_those_of_atorch(made: Any) -> None:
    """A script keeps its settings: names, order and defaults; our own fields come by name only."""
    by_position = [one.name for one in dataclasses.fields(made) if not one.kw_only]
    assert by_position == list(SEED_FIELDS[made])
    defaults = made()
    assert {name: getattr(defaults, name) for name in by_position} == SEED_FIELDS[made]


EXAMPLES = {
    "fsdp": (
        LocalSGDConfig(
            local_sgd_sync_interval=10,
            local_sgd_warmup_steps=100,
            clip_pseudo_grad=10.0,
            pseudo_gradnorm_reduce=True,
            skip_anomaly=True,
            ewma_warmup_steps=10,
        ),
        SGD,
        GTAConfig(reducer="gta"),
    ),
    "ddp": (
        LocalSGDConfig(
            local_sgd_sync_interval=5,
            local_sgd_warmup_steps=10,
            clip_pseudo_grad=10,
            pseudo_gradnorm_reduce=True,
            skip_anomaly=True,
            ewma_warmup_steps=10,
        ),
        SGD,
        None,
    ),
    "megatron": (
        LocalSGDConfig(local_sgd_sync_interval=32, local_sgd_warmup_steps=256),
        None,
        None,
    ),
    "defaults": (LocalSGDConfig(), OuterOptimizerConfig(), GTAConfig()),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_atorch_are_accepted(example: str) -> None:
    """Settings that ATorch's page shows train here without a change."""
    check_together(*EXAMPLES[example])


INVALID = [
    *((LocalSGDConfig, "ewma_alpha", value) for value in (0, 1, -0.1, float("nan"))),
    *((LocalSGDConfig, "ewma_warmup_steps", value) for value in (0, 1, 2.0)),
    *((LocalSGDConfig, "ewma_threshold", value) for value in (0, -1, float("inf"), "3")),
    *((LocalSGDConfig, "weight_softmax_temperature", value) for value in (0, -1.0)),
    *((LocalSGDConfig, "clip_pseudo_grad", value) for value in (0, -1, True)),
    *((LocalSGDConfig, "step_weight_ratio", value) for value in (-0.1, 1.1)),
    *((LocalSGDConfig, "local_sgd_sync_interval", value) for value in (0, -1, 1.5, True)),
    (LocalSGDConfig, "local_sgd_sync_time", -1),
    (LocalSGDConfig, "min_total_global_steps", 0),
    (LocalSGDConfig, "local_sgd_warmup_steps", -1),
    (LocalSGDConfig, "gradient_accumulation_steps", 0),
    (LocalSGDConfig, "use_async", 1),
    (LocalSGDConfig, "codec", "fp8"),
    (LocalSGDConfig, "step_weight_by", "samples"),
    (LocalSGDConfig, "switching", "on"),
    (LocalSGDConfig, "switching_tolerated", 0),
    (LocalSGDConfig, "late_discount", 2),
    (LocalSGDConfig, "ewma_floor", -1),
    (LocalSGDConfig, "ewma_restart_after", -1),
    (OuterOptimizerConfig, "outer_optim_class", "SGD"),
    (OuterOptimizerConfig, "outer_optim_kwargs", None),
    *((GTAConfig, "density", value) for value in (0, 1.1, float("nan"))),
    (GTAConfig, "reducer", "mean"),
    (GTAConfig, "consensus_method", "vote"),
    (GTAConfig, "sparsification_method", "topk"),
    (GTAConfig, "normalize", None),
]


@pytest.mark.parametrize(
    ("made", "field", "value"), INVALID, ids=lambda one: str(getattr(one, "__name__", one))
)
def test_a_value_that_is_not_valid_is_refused(made: type, field: str, value: object) -> None:
    """The refusal names the field, the value, and what is expected."""
    with pytest.raises(LocalSGDConfigError) as refusal:
        made(**{field: value})
    assert str(refusal.value).startswith(f"{field}={value!r}: expected ")


NONE = GTAConfig()
LINEAR = GTAConfig(reducer="linear")
NO_OUTER = OuterOptimizerConfig()
# For each rule: settings that break it. A class and its arguments, or settings of all classes.
BREAKS: dict[str, Any] = {
    "interval-without-edit": (LocalSGDConfig, {"use_async": True, "local_sgd_sync_interval": 8}),
    "time-without-a-edit": (LocalSGDConfig, {"local_sgd_sync_time": 60}),
    "step-weight-without-a-edit": (LocalSGDConfig, {"use_step_weight": True}),
    "step-unit-without-step-weight": (LocalSGDConfig, {"step_weight_by": "tokens"}),
    "step-ratio-without-both-weights": (
        LocalSGDConfig,
        {"use_async": True, "use_step_weight": True, "step_weight_ratio": 0.2},
    ),
    "temperature-without-norm-weight": (LocalSGDConfig, {"weight_softmax_temperature": 0.5}),
    "ewma-without-skip-anomaly": (LocalSGDConfig, {"ewma_threshold": 4}),
    "feedback-without-codec": (LocalSGDConfig, {"error_feedback": True}),
    "momentum-consent-without-feedback": (LocalSGDConfig, {"error_feedback_with_momentum": True}),
    "switching-of-a-edit": (LocalSGDConfig, {"use_async": True, "switching": "act"}),
    "tolerance-without-switching": (LocalSGDConfig, {"switching_tolerated": 0.2}),
    "outer-arguments-without-class": (OuterOptimizerConfig, {"outer_optim_kwargs": {"lr": 1.0}}),
    "gta-settings-without-gta": (GTAConfig, {"reducer": "linear", "consensus_method": "sum"}),
    "density-without-sparsification": (GTAConfig, {"reducer": "gta", "density": 0.5}),
    "sparsification-of-nothing": (
        GTAConfig,
        {"reducer": "gta", "sparsification_method": "magnitude"},
    ),
    "mask-of-nothing": (GTAConfig, {"reducer": "gta", "int8_mask": True}),
    "sum-without-reducer": (GTAConfig, {"normalize": False}),
    "plain-averaging-with-clipping": (LocalSGDConfig(clip_pseudo_grad=1.0), NO_OUTER, NONE),
    "plain-averaging-with-anomalies": (LocalSGDConfig(skip_anomaly=True), NO_OUTER, NONE),
    "norm-weight-without-reducer": (LocalSGDConfig(pseudo_gradnorm_reduce=True), SGD, NONE),
    "step-weight-without-reducer-and-outer": (
        LocalSGDConfig(use_async=True, use_step_weight=True),
        NO_OUTER,
        NONE,
    ),
    "reducer-without-outer": (LocalSGDConfig(), NO_OUTER, LINEAR),
    "clipping-without-outer": (LocalSGDConfig(clip_pseudo_grad=1.0), NO_OUTER, None),
    "sum-of-replicas": (LocalSGDConfig(), SGD, GTAConfig(reducer="linear", normalize=False)),
    "feedback-with-momentum": (LocalSGDConfig(codec="int8", error_feedback=True), SGD, None),
}
TABLES: list[tuple[Rule[Any], ...]] = [
    *(config.LOCAL_RULES, config.OUTER_RULES, config.GTA_RULES),
    combinations.TOGETHER_RULES,
]
RULES = {rule.name: rule for table in TABLES for rule in table}


def _break(given: Any) -> None:
    if isinstance(given[0], type):
        given[0](**given[1])
    else:
        check_together(*given)


@pytest.mark.parametrize("name", RULES)
def test_settings_without_effect_are_refused_by_name(name: str) -> None:
    """Each rule refuses settings that ATorch ignores; it shows the fields, and what to do."""
    with pytest.raises(LocalSGDConfigError) as refusal:
        _break(BREAKS[name])
    text = str(refusal.value)
    assert text.endswith(f"(rule {name})")
    assert RULES[name].remedy in text
    for field in RULES[name].fields:
        assert f"{field.rpartition('.')[2]}=" in text


def test_every_refusal_is_shown() -> None:
    """A rule that is added gets settings here that break it."""
    assert BREAKS.keys() == RULES.keys()


MENDED: dict[str, tuple[LocalSGDConfig, OuterOptimizerConfig | None, GTAConfig | None]] = {
    "clipping with a reducer and an outer optimizer": (
        LocalSGDConfig(clip_pseudo_grad=1.0),
        SGD,
        LINEAR,
    ),
    "everything without a GTAConfig": (
        LocalSGDConfig(clip_pseudo_grad=1.0, pseudo_gradnorm_reduce=True, skip_anomaly=True),
        None,
        None,
    ),
    "a sum whose weights add up to 1": (
        LocalSGDConfig(pseudo_gradnorm_reduce=True),
        SGD,
        GTAConfig(reducer="linear", normalize=False),
    ),
    "feedback without momentum": (
        LocalSGDConfig(codec="int8", error_feedback=True),
        OuterOptimizerConfig(optimizer, {"lr": 0.7}),
        None,
    ),
    "feedback with momentum, asked for": (
        LocalSGDConfig(codec="int8", error_feedback=True, error_feedback_with_momentum=True),
        SGD,
        None,
    ),
    "shares of tokens in EDiT": (
        LocalSGDConfig(use_step_weight=True, step_weight_by="tokens"),
        SGD,
        LINEAR,
    ),
    "sparse deltas with a vote": (
        LocalSGDConfig(),
        SGD,
        GTAConfig("gta", "count", "magnitude", density=0.1, int8_mask=True),
    ),
}


@pytest.mark.parametrize("case", MENDED)
def test_what_a_remedy_leads_to_is_accepted(case: str) -> None:
    """No rule refuses what another one recommends."""
    check_together(*MENDED[case])


def adam(params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999)) -> Any:
    """Have the arguments of torch's Adam."""
    return params, lr, betas


def sgd(params: Any, lr: float = 1e-3, momentum: float = 0) -> Any:
    """Have the arguments of torch's SGD."""
    return params, lr, momentum


@pytest.mark.parametrize(
    ("made", "options", "verdict"),
    [
        (adam, {"lr": 1e-3}, "refused"),
        (functools.partial(adam, lr=1e-3), {}, "refused"),
        (adam, {"betas": (0.0, 0.99)}, "accepted"),
        (sgd, {"momentum": 0.9}, "refused"),
        (sgd, {"momentum": 0.0}, "accepted"),
        (sgd, {}, "accepted"),
        (optimizer, {}, "accepted"),
        (dict, {}, "accepted"),
        (None, {}, "accepted"),
    ],
)
def test_momentum_is_seen_in_an_optimizers_defaults_too(
    made: Any, options: dict[str, Any], verdict: str
) -> None:
    """Error feedback beside Adam's first moment is as late as beside SGD's momentum."""
    outer = OuterOptimizerConfig(made, options)
    local = LocalSGDConfig(codec="int4", error_feedback=True)
    if verdict == "accepted":
        check_together(local, outer, None)
        return
    with pytest.raises(LocalSGDConfigError, match="momentum has gone on"):
        check_together(local, outer, None)


def test_a_temperature_that_is_not_given_is_1() -> None:
    """Weights by norm without a temperature take ATorch's."""
    assert LocalSGDConfig(pseudo_gradnorm_reduce=True).temperature == 1
    assert LocalSGDConfig().temperature is None

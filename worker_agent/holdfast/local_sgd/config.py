"""Settings of EDiT and A-EDiT: the fields and defaults of ATorch's three classes, and ours.

Belongs here: each field, its valid values, and fields of one class that contradict each other. Does
not belong here: contradictions between the classes (`combinations`).

ATorch's fields may be given by position; ours, after them, by name only. ATorch ignores a setting
without effect in silence. Here it is refused, because the run that it describes would be another.

ATorch's example settings are accepted. Three of them do not mean what they seem to:

- `GTAConfig(reducer="gta")` alone neither sparsifies nor seeks a consensus. It is the weighted
  mean, as "linear" is.
- `pseudo_gradnorm_reduce=True` without a temperature has T = 1. The softmax is not free of scale:
  norms that differ by much more than 1 leave one replica all the weight, and norms that differ by
  much less leave all replicas the same.
- `ewma_warmup_steps=10` counts rounds: with H = 10 these are 100 steps.

The Megatron example, 32 steps between rounds and 256 steps of warm-up, has its first round after
step 288 here, with anchors of step 256. ATorch compares the warm-up with the 32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final, Generic, Literal, TypeVar

from holdfast.local_sgd.errors import LocalSGDConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Value:
    """The valid values of one field."""

    field: str
    is_valid: Callable[[object], bool]
    expected: str
    """To follow "expected" in the refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[T]):
    """Settings that contradict each other, by a name that tests and users can refer to."""

    name: str
    fields: tuple[str, ...]
    """Those to show with their values; "outer.outer_optim_class" is a field of a part."""
    breaks: Callable[[T], bool]
    why: str
    """The effect, or the need of the setting."""
    remedy: str


def check_values(settings: object, table: Iterable[Value]) -> None:
    """Raise LocalSGDConfigError for the first field with a value that is not valid."""
    for one in table:
        value = getattr(settings, one.field)
        if not one.is_valid(value):
            raise LocalSGDConfigError(f"{one.field}={value!r}: expected {one.expected}")


def check_rules(settings: T, table: Iterable[Rule[T]]) -> None:
    """Raise LocalSGDConfigError for the first rule that the settings break."""
    for rule in table:
        if rule.breaks(settings):
            shown = ", ".join(
                f"{field.rpartition('.')[2]}={operator.attrgetter(field)(settings)!r}"
                for field in rule.fields
            )
            raise LocalSGDConfigError(f"{shown}: {rule.why}; {rule.remedy} (rule {rule.name})")


def is_flag(value: object) -> bool:
    """Return True if a value is True or False."""
    return isinstance(value, bool)


def whole(least: int) -> Callable[[object], bool]:
    """Return the check of an integer."""
    return lambda value: isinstance(value, int) and not is_flag(value) and value >= least


def real(is_inside: Callable[[float], bool]) -> Callable[[object], bool]:
    """Return the check of a finite number."""

    def check(value: object) -> bool:
        if not isinstance(value, int | float) or is_flag(value):
            return False
        return math.isfinite(value) and is_inside(value)

    return check


def optional(check: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the check that lets None pass."""
    return lambda value: value is None or check(value)


def one_of(*names: str) -> Callable[[object], bool]:
    """Return the check of a name."""
    return lambda value: isinstance(value, str) and value in names


@dataclass(frozen=True, slots=True)
class LocalSGDConfig:
    """Rounds, weights, anomalies, and what travels.

    Raises:
        LocalSGDConfigError: a value is not valid, or a setting would have no effect.
    """

    use_async: bool = False
    """A-EDiT: rounds end by time, not by steps. Default False."""
    local_sgd_sync_interval: int = 1
    """H: steps of the inner optimizer between rounds, EDiT only. Default 1, which averages at each
    step; 16 to 128 are usual."""
    local_sgd_sync_time: float = 600.0
    """τ: seconds between rounds, A-EDiT only. Default 600."""
    min_total_global_steps: int = 100
    """Steps of all replicas together, under which a round is left out and the time starts again,
    A-EDiT only. Default 100."""
    use_step_weight: bool = False
    """Weigh a replica by its share of the steps since the last round. Default False: in EDiT all
    replicas have made the same number."""
    step_weight_ratio: float = 0.5
    """r of w = (1 - r)·(weight by norm) + r·(share of the steps), 0 to 1. Default 0.5."""
    local_sgd_warmup_steps: int = 0
    """W: steps in which gradients are reduced as ever, before the first local step. Default 0; the
    loss falls fastest at the beginning, where replicas part most."""
    gradient_accumulation_steps: int = 1
    """Micro-batches of one step of the inner optimizer. Default 1. It changes nothing: all other
    settings count steps of the optimizer, however many micro-batches these have."""
    clip_pseudo_grad: float | None = None
    """φ: greatest norm of the mean pseudo-gradient, in the units of the weights. With FSDP of each
    unit, with DDP and Megatron of the whole model. Default None: no clipping; 1 or 10 are usual."""
    pseudo_gradnorm_reduce: bool = False
    """Weigh replicas by softmax(-norm / T). Default False: all alike."""
    weight_softmax_temperature: float | None = None
    """T, in the units of the norms. Default None: 1."""
    skip_anomaly: bool = False
    """Leave out a replica whose norm stands out from its own past. With FSDP by unit, with DDP and
    Megatron by tensor. Default False: only a norm that is not finite is left out."""
    ewma_alpha: float = 0.02
    """α: weight of the newest norm, between 0 and 1. Default 0.02, a memory of about 50 rounds."""
    ewma_warmup_steps: int = 120
    """Rounds whose norms a detector learns before it judges, at least 2. Default 120."""
    ewma_threshold: float = 3.0
    """δ: standard deviations above the mean from which on a norm is an anomaly. Default 3."""
    cpu_offload: bool = False
    """Keep anchors and outer optimizer in host memory, for two copies of the shard less on the
    device. Default False."""
    is_debug: bool = False
    """Log clipping and anomalies. Default False."""

    _: KW_ONLY
    ewma_bias_correction: bool = True
    """Weigh the norms of the first rounds so that their mean has no bias. Default True; False: the
    detector starts at 0 as ATorch's does, and misses anomalies while it forgets that."""
    ewma_spread_factor: bool = False
    """Multiply δ by the standard deviation of the last z-scores, if that is above 1. Default False;
    ATorch does it. It lowers the number of false anomalies among uneven norms, and finds less."""
    ewma_floor: float = 0.01
    """Least standard deviation, as a share of the mean. Default 0.01: norms that agree to three per
    cent are no anomalies, however equal the norms before were."""
    ewma_restart_after: int = 10
    """Rounds in a row that a detector finds anomalous before it learns anew. Default 10: norms that
    stay high are a new level, such as after a change of the learning rate; without a limit no
    replica would ever count again. 0: no limit."""
    step_weight_by: Literal["steps", "tokens"] = "steps"
    """Unit of a replica's share. Default "steps"; "tokens" for batches of uneven size."""
    codec: Literal["none", "bf16", "int8", "int4"] = "none"
    """Form in which pseudo-gradients travel. Default "none": the parameters' dtype."""
    error_feedback: bool = False
    """Add what the codec lost to the next pseudo-gradient. Default False: it needs memory of the
    size of a shard, and an outer optimizer with momentum takes it late."""
    error_feedback_with_momentum: bool = False
    """Allow error feedback beside an outer optimizer with momentum. Default False: an error comes
    one round late, when the momentum has gone on without it, and is then multiplied by 1/(1 - μ)
    like any other delta. So ask for it by name."""
    late_discount: float = 0.5
    """Factor of a delta for each round that its replica missed while it was out, 0 to 1. Default
    0.5: what was computed against an older anchor is worth less. 0 throws it away."""

    switching: Literal["off", "propose", "act"] = "off"
    """Choose between a sync of gradients in each step and local steps, and the interval, from what
    steps and reductions take; EDiT under FSDP2 and DDP only. Under DDP, and with members that come
    and go, the interval is 2 or longer. Default "off"; "propose" logs the choice, "act" makes
    it."""
    switching_tolerated: float = 0.1
    """Share of a step's time that agreement of the replicas may cost, above 0. Default 0.1."""

    def __post_init__(self) -> None:
        """Check the values, then the contradictions."""
        check_values(self, _LOCAL_VALUES)
        check_rules(self, LOCAL_RULES)

    @property
    def temperature(self) -> float | None:
        """T of the weights by norm; None: there are none."""
        if not self.pseudo_gradnorm_reduce:
            return None
        return 1.0 if self.weight_softmax_temperature is None else self.weight_softmax_temperature


@dataclass(frozen=True, slots=True)
class OuterOptimizerConfig:
    """The optimizer that steps the anchors along the mean pseudo-gradient.

    Raises:
        LocalSGDConfigError: a value is not valid, or a setting would have no effect.
    """

    outer_optim_class: Callable[..., Any] | None = None
    """A `torch.optim.Optimizer` class, or any function of parameters and keyword arguments that
    returns one. Default None: the anchors take the mean, as SGD with lr=1 does."""
    outer_optim_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its keyword arguments. Default: none; lr=0.7, momentum=0.8, nesterov=True are usual."""

    def __post_init__(self) -> None:
        """Check the values, then the contradictions."""
        check_values(self, _OUTER_VALUES)
        check_rules(self, OUTER_RULES)


@dataclass(frozen=True, slots=True)
class GTAConfig:
    """Merging of the pseudo-gradients.

    Raises:
        LocalSGDConfigError: a value is not valid, or a setting would have no effect.
    """

    reducer: Literal["linear", "gta"] | None = None
    """Default None: the plain mean of the replicas, without weights. "linear": the weighted mean.
    "gta": generalised task arithmetic, by the fields below."""
    consensus_method: Literal["sum", "count"] | None = None
    """Vote on the sign of each element, by mass or by number of replicas. Those against it are
    left out. Default None: no vote."""
    sparsification_method: Literal["magnitude", "random", "rescaled_random"] | None = None
    """Elements that a replica keeps: the largest of its shard, any, or any divided by the density.
    Default None: all. It changes the result and saves no bytes on the wire."""
    normalize: bool = True
    """Divide by the sum of the weights that took part. Default True."""
    density: float = 1.0
    """Share of the elements that a replica keeps, above 0, at most 1. Default 1."""
    int8_mask: bool = False
    """Hold masks in a byte for each element. Default False. It saves memory, no bytes on the
    wire, and does not change the result."""

    def __post_init__(self) -> None:
        """Check the values, then the contradictions."""
        check_values(self, _GTA_VALUES)
        check_rules(self, GTA_RULES)


positive: Final = real(lambda value: value > 0)
_share: Final = real(lambda value: 0 <= value <= 1)
_LOCAL_VALUES: Final = (
    *(
        Value(name, is_flag, "True or False")
        for name in (
            *("use_async", "use_step_weight", "pseudo_gradnorm_reduce", "skip_anomaly"),
            *("cpu_offload", "is_debug", "ewma_bias_correction", "ewma_spread_factor"),
            *("error_feedback", "error_feedback_with_momentum"),
        )
    ),
    Value("local_sgd_sync_interval", whole(1), "a number of steps, at least 1"),
    Value("local_sgd_sync_time", real(lambda value: value >= 0), "seconds, at least 0"),
    Value("min_total_global_steps", whole(1), "a number of steps, at least 1"),
    Value("step_weight_ratio", _share, "a share, from 0 to 1"),
    Value("local_sgd_warmup_steps", whole(0), "a number of steps, at least 0"),
    Value("gradient_accumulation_steps", whole(1), "a number of micro-batches, at least 1"),
    Value("clip_pseudo_grad", optional(positive), "a norm above 0, or None for no clipping"),
    Value("weight_softmax_temperature", optional(positive), "a temperature above 0, or None for 1"),
    Value("ewma_alpha", real(lambda value: 0 < value < 1), "a weight above 0 and below 1"),
    Value(
        "ewma_warmup_steps",
        whole(2),
        "a number of rounds, at least 2: one norm has no spread to compare with",
    ),
    Value("ewma_threshold", positive, "standard deviations, above 0"),
    Value("ewma_floor", _share, "a share of the mean, from 0 to 1"),
    Value("ewma_restart_after", whole(0), "a number of rounds, or 0 for no limit"),
    Value("step_weight_by", one_of("steps", "tokens"), '"steps" or "tokens"'),
    Value("codec", one_of("none", "bf16", "int8", "int4"), '"none", "bf16", "int8" or "int4"'),
    Value("switching", one_of("off", "propose", "act"), '"off", "propose" or "act"'),
    Value("switching_tolerated", positive, "a share of a step, above 0"),
    Value("late_discount", _share, "a factor, from 0 to 1"),
)
_OUTER_VALUES: Final = (
    Value(
        "outer_optim_class",
        optional(callable),
        "an optimizer class such as torch.optim.SGD, or None for plain averaging",
    ),
    Value(
        "outer_optim_kwargs",
        lambda value: isinstance(value, Mapping) and all(isinstance(one, str) for one in value),
        'keyword arguments by name, such as {"lr": 0.7}',
    ),
)
_GTA_VALUES: Final = (
    Value("reducer", optional(one_of("linear", "gta")), '"linear", "gta" or None'),
    Value("consensus_method", optional(one_of("sum", "count")), '"sum", "count" or None'),
    Value(
        "sparsification_method",
        optional(one_of("magnitude", "random", "rescaled_random")),
        '"magnitude", "random", "rescaled_random" or None',
    ),
    Value("normalize", is_flag, "True or False"),
    Value("density", real(lambda value: 0 < value <= 1), "a share above 0 and at most 1"),
    Value("int8_mask", is_flag, "True or False"),
)


def _is_set(settings: Any, *names: str) -> bool:
    """Return True if one of the fields differs from its default."""
    defaults = {one.name: one.default for one in fields(settings)}
    return any(getattr(settings, name) != defaults[name] for name in names)


_EWMA: Final = (
    *("ewma_alpha", "ewma_warmup_steps", "ewma_threshold", "ewma_bias_correction"),
    *("ewma_spread_factor", "ewma_floor", "ewma_restart_after"),
)
LOCAL_RULES: Final[tuple[Rule[LocalSGDConfig], ...]] = (
    Rule(
        name="interval-without-edit",
        fields=("use_async", "local_sgd_sync_interval"),
        breaks=lambda one: one.use_async and _is_set(one, "local_sgd_sync_interval"),
        why="A-EDiT ends rounds by time, so the interval in steps has no effect",
        remedy="set local_sgd_sync_time, or use_async=False",
    ),
    Rule(
        name="time-without-a-edit",
        fields=("use_async", "local_sgd_sync_time", "min_total_global_steps"),
        breaks=lambda one: (
            not one.use_async and _is_set(one, "local_sgd_sync_time", "min_total_global_steps")
        ),
        why="EDiT ends rounds by steps, so neither time nor least number of steps has an effect",
        remedy="set local_sgd_sync_interval, or use_async=True",
    ),
    Rule(
        name="step-weight-without-a-edit",
        fields=("use_step_weight", "use_async", "step_weight_by"),
        breaks=lambda one: (
            one.use_step_weight and not one.use_async and one.step_weight_by == "steps"
        ),
        why="in EDiT all replicas make the same number of steps, so their shares are equal",
        remedy='leave use_step_weight off, or set use_async=True or step_weight_by="tokens"',
    ),
    Rule(
        name="step-unit-without-step-weight",
        fields=("step_weight_by", "use_step_weight"),
        breaks=lambda one: _is_set(one, "step_weight_by") and not one.use_step_weight,
        why="no weight depends on the unit of the steps",
        remedy="set use_step_weight=True, or leave step_weight_by at its default",
    ),
    Rule(
        name="step-ratio-without-both-weights",
        fields=("step_weight_ratio", "use_step_weight", "pseudo_gradnorm_reduce"),
        breaks=lambda one: (
            _is_set(one, "step_weight_ratio")
            and not (one.use_step_weight and one.pseudo_gradnorm_reduce)
        ),
        why="the ratio mixes weights by norm with weights by steps, and one of the two is off",
        remedy="set both use_step_weight=True and pseudo_gradnorm_reduce=True, or leave the ratio",
    ),
    Rule(
        name="temperature-without-norm-weight",
        fields=("weight_softmax_temperature", "pseudo_gradnorm_reduce"),
        breaks=lambda one: (
            one.weight_softmax_temperature is not None and not one.pseudo_gradnorm_reduce
        ),
        why="without weights by norm the temperature is applied to equal values, which stay equal",
        remedy="set pseudo_gradnorm_reduce=True, or leave the temperature at None",
    ),
    Rule(
        name="ewma-without-skip-anomaly",
        fields=("skip_anomaly", *_EWMA),
        breaks=lambda one: not one.skip_anomaly and _is_set(one, *_EWMA),
        why="no detector runs, so its settings have no effect",
        remedy="set skip_anomaly=True, or leave the settings of the detector",
    ),
    Rule(
        name="feedback-without-codec",
        fields=("error_feedback", "codec"),
        breaks=lambda one: one.error_feedback and one.codec == "none",
        why='codec "none" loses nothing that could be fed back',
        remedy='choose "bf16", "int8" or "int4", or error_feedback=False',
    ),
    Rule(
        name="momentum-consent-without-feedback",
        fields=("error_feedback_with_momentum", "error_feedback"),
        breaks=lambda one: one.error_feedback_with_momentum and not one.error_feedback,
        why="there is no error feedback to allow",
        remedy="set error_feedback=True, or error_feedback_with_momentum=False",
    ),
    Rule(
        name="switching-of-a-edit",
        fields=("switching", "use_async"),
        breaks=lambda one: one.use_async and one.switching != "off",
        why="A-EDiT ends rounds by time, so there is no interval to choose",
        remedy='set use_async=False, or switching="off"',
    ),
    Rule(
        name="tolerance-without-switching",
        fields=("switching_tolerated", "switching"),
        breaks=lambda one: one.switching == "off" and _is_set(one, "switching_tolerated"),
        why="nothing is measured",
        remedy='set switching="propose" or "act", or leave the tolerance',
    ),
)
OUTER_RULES: Final[tuple[Rule[OuterOptimizerConfig], ...]] = (
    Rule(
        name="outer-arguments-without-class",
        fields=("outer_optim_class", "outer_optim_kwargs"),
        breaks=lambda one: one.outer_optim_class is None and bool(one.outer_optim_kwargs),
        why="there is no optimizer to take the arguments",
        remedy="set outer_optim_class, such as torch.optim.SGD, or leave out the arguments",
    ),
)
GTA_RULES: Final[tuple[Rule[GTAConfig], ...]] = (
    Rule(
        name="gta-settings-without-gta",
        fields=("reducer", "consensus_method", "sparsification_method", "density", "int8_mask"),
        breaks=lambda one: (
            one.reducer != "gta"
            and _is_set(one, "consensus_method", "sparsification_method", "density", "int8_mask")
        ),
        why='only reducer "gta" looks at the signs and sizes of elements',
        remedy='set reducer="gta", or leave these settings',
    ),
    Rule(
        name="density-without-sparsification",
        fields=("density", "sparsification_method"),
        breaks=lambda one: one.density < 1 and one.sparsification_method is None,
        why="no method says which elements to keep, so all are kept",
        remedy='set sparsification_method, such as "magnitude", or density=1.0',
    ),
    Rule(
        name="sparsification-of-nothing",
        fields=("sparsification_method", "density"),
        breaks=lambda one: one.sparsification_method is not None and one.density == 1,
        why="density 1 keeps all elements",
        remedy="set a density below 1, or sparsification_method=None",
    ),
    Rule(
        name="mask-of-nothing",
        fields=("int8_mask", "consensus_method", "sparsification_method"),
        breaks=lambda one: (
            one.int8_mask and one.consensus_method is None and one.sparsification_method is None
        ),
        why="neither a vote nor a sparsification makes a mask",
        remedy="set consensus_method or sparsification_method, or int8_mask=False",
    ),
    Rule(
        name="sum-without-reducer",
        fields=("reducer", "normalize"),
        breaks=lambda one: one.reducer is None and not one.normalize,
        why="without a reducer there is nothing but the mean",
        remedy='set reducer="gta", or normalize=True',
    ),
)

"""Weights of replicas against a reference in plain floats."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.weights import Report, clip_factor, softmax_of_norms, weigh

PLAIN = LocalSGDConfig()
NORMS = LocalSGDConfig(pseudo_gradnorm_reduce=True)
STEPS = LocalSGDConfig(use_async=True, use_step_weight=True)
BOTH = LocalSGDConfig(
    use_async=True, use_step_weight=True, pseudo_gradnorm_reduce=True, step_weight_ratio=0.25
)


def reports(*norms: float) -> list[Report]:
    """Return reports of these norms with one step each."""
    return [Report(norm) for norm in norms]


def reference(norms: list[float], temperature: float) -> list[float]:
    """Return softmax(-norm / T) as the formula stands; for small norms only."""
    raw = [math.exp(-norm / temperature) for norm in norms]
    return [one / sum(raw) for one in raw]


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(
    "norms", [[1.0], [1.0, 1.0], [0.0, 1.0, 2.0], [0.3, 0.1, 5.0, 0.2], [0.0, 0.0]]
)
def test_weights_by_norm_are_the_softmax(norms: list[float], temperature: float) -> None:
    """They equal the formula of the paper."""
    settings = LocalSGDConfig(pseudo_gradnorm_reduce=True, weight_softmax_temperature=temperature)
    verdict = weigh(reports(*norms), settings)
    assert verdict.weights == pytest.approx(reference(norms, temperature), rel=1e-12)
    assert not verdict.rollback


@pytest.mark.parametrize(
    ("norms", "weights"),
    [
        pytest.param([1e6] * 4, [0.25] * 4, id="huge and equal"),
        pytest.param([1e308, 1e308], [0.5, 0.5], id="nearly the greatest number"),
        pytest.param([1e6, 1e6 + 1], reference([0, 1], 1.0), id="huge, one apart"),
        pytest.param([0.0, 0.0, 0.0], [1 / 3] * 3, id="zero"),
        pytest.param([0.0, 1e300], [1.0, 0.0], id="far apart"),
        pytest.param([1.0, math.inf, 1.0], [0.5, 0.0, 0.5], id="one infinite"),
        pytest.param([1.0, math.nan], [1.0, 0.0], id="one not a number"),
    ],
)
def test_norms_of_any_size_give_weights(norms: list[float], weights: list[float]) -> None:
    """Nothing overflows, divides by 0, or leaves everybody without a weight."""
    assert weigh(reports(*norms), NORMS).weights == pytest.approx(weights, rel=1e-9)


def test_without_weights_all_replicas_count_alike() -> None:
    """Norms and steps do not matter."""
    verdict = weigh([Report(1, steps=5), Report(9, steps=1), Report(0)], PLAIN)
    assert verdict.weights == pytest.approx([1 / 3] * 3)
    assert verdict.reason == "all 3 replicas, equal weights"


def test_an_anomalous_replica_weighs_nothing() -> None:
    """The others share its weight, whatever the rule."""
    given_reports = [Report(1, steps=3), Report(0.01, anomalous=True, steps=90), Report(1)]
    assert weigh(given_reports, PLAIN).weights == (0.5, 0.0, 0.5)
    assert weigh(given_reports, NORMS).weights == (0.5, 0.0, 0.5)
    assert weigh(given_reports, STEPS).weights == (0.75, 0.0, 0.25)
    assert "anomalous: 1" in weigh(given_reports, NORMS).reason


def test_shares_are_of_the_steps_of_this_round() -> None:
    """The share is of steps since the last round; ATorch's is of all steps ever."""
    verdict = weigh([Report(1, steps=30), Report(1, steps=10)], STEPS)
    assert verdict.weights == (0.75, 0.25)


def test_tokens_weigh_as_steps_do() -> None:
    """The unit is the caller's; large counts keep their shares."""
    tokens = LocalSGDConfig(use_step_weight=True, step_weight_by="tokens")
    verdict = weigh([Report(1, steps=3e9), Report(1, steps=1e9)], tokens)
    assert verdict.weights == (0.75, 0.25)


def test_both_weights_are_mixed_by_the_ratio() -> None:
    """A weight is 0.75·(by norm) + 0.25·(by steps)."""
    verdict = weigh([Report(0.0, steps=1), Report(1.0, steps=3)], BOTH)
    by_norm = reference([0.0, 1.0], 1.0)
    wanted = [0.75 * by_norm[0] + 0.25 * 0.25, 0.75 * by_norm[1] + 0.25 * 0.75]
    assert verdict.weights == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("settings", [PLAIN, NORMS, STEPS, BOTH])
def test_a_replica_without_a_step_only_takes_the_result(settings: LocalSGDConfig) -> None:
    """At the end of its data, or just joined, it weighs nothing, though its norm is the least."""
    verdict = weigh([Report(0.0, steps=0), Report(2.0, steps=4)], settings)
    assert verdict.weights == (0.0, 1.0)
    assert "without a step: 0" in verdict.reason


@pytest.mark.parametrize("settings", [PLAIN, NORMS, STEPS, BOTH])
def test_all_anomalous_is_a_rollback(settings: LocalSGDConfig) -> None:
    """Flags decide, never the size of the mean."""
    verdict = weigh([Report(1, anomalous=True), Report(math.inf), Report(math.nan)], settings)
    assert verdict.weights == (0.0, 0.0, 0.0)
    assert verdict.rollback
    assert verdict.reason == "all 3 replicas are anomalous: back to the anchors"


def test_atorch_bug_9_a_mean_of_zero_is_no_rollback() -> None:
    """Replicas whose deltas cancel out, or that have no shard of a unit, are not anomalous."""
    assert not weigh(reports(0.0, 0.0), NORMS).rollback


def test_replicas_without_steps_change_nothing() -> None:
    """A round in which nobody has made a step leaves the anchors."""
    verdict = weigh([Report(0.0, steps=0)] * 2, PLAIN)
    assert (verdict.weights, verdict.rollback) == ((0.0, 0.0), True)
    assert verdict.reason == "no replica that is not anomalous has made a step"
    assert weigh([], PLAIN).reason == "no replica has reported"


@pytest.mark.parametrize("steps", [-1.0, math.nan, math.inf])
def test_a_count_of_steps_that_is_none_is_refused(steps: float) -> None:
    """A weight of it would be no number for all replicas."""
    with pytest.raises(ValueError, match=r"reports\[1\]\.steps"):
        weigh([Report(1.0), Report(1.0, steps=steps)], STEPS)


A_REPORT = st.builds(
    Report,
    norm=st.floats(0, 1e300) | st.sampled_from([math.inf, math.nan, 0.0]),
    anomalous=st.booleans(),
    steps=st.floats(0, 1e15),
)


@given(st.lists(A_REPORT, min_size=1, max_size=6), st.sampled_from([PLAIN, NORMS, STEPS, BOTH]))
def test_the_order_of_the_replicas_changes_no_weight(
    given_reports: list[Report], settings: LocalSGDConfig
) -> None:
    """Each replica has the same weight, to the last bit, in whatever order they report."""
    first = weigh(given_reports, settings)
    for order in itertools.islice(itertools.permutations(range(len(given_reports))), 24):
        other = weigh([given_reports[at] for at in order], settings)
        assert [first.weights[at] for at in order] == list(other.weights)
        assert first.rollback == other.rollback


@given(st.lists(A_REPORT, min_size=1, max_size=6), st.sampled_from([PLAIN, NORMS, STEPS, BOTH]))
def test_weights_add_up_to_1_or_are_all_0(
    given_reports: list[Report], settings: LocalSGDConfig
) -> None:
    """A rollback has none; nobody who is anomalous has one."""
    verdict = weigh(given_reports, settings)
    assert math.fsum(verdict.weights) == pytest.approx(0 if verdict.rollback else 1)
    for report, weight in zip(given_reports, verdict.weights, strict=True):
        assert weight >= 0
        assert weight == 0 or (not report.anomalous and math.isfinite(report.norm))


def test_a_high_temperature_makes_weights_alike_and_a_low_one_takes_the_least() -> None:
    """The softmax is not free of scale, as its documentation says."""
    assert softmax_of_norms([1.0, 2.0], 1e6) == pytest.approx((0.5, 0.5), abs=1e-6)
    assert softmax_of_norms([1.0, 2.0], 1e-3) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("norm", "threshold", "factor"),
    [(0.5, 1.0, 1.0), (10.0, 1.0, 1 / 10.000001), (0.0, 1.0, 1.0), (1e300, 1.0, 1e-300)],
)
def test_clipping_brings_a_norm_to_the_threshold(
    norm: float, threshold: float, factor: float
) -> None:
    """min(1, φ / (‖Δ̄‖ + 1e-6))."""
    assert clip_factor(norm, threshold) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_merged_delta_that_is_not_finite_is_not_clipped_in_silence(norm: float) -> None:
    """A factor of 0 or NaN would hide it."""
    with pytest.raises(ValueError, match="leave out what is not finite"):
        clip_factor(norm, 1.0)

"""Detector of anomalous norms against a reference in plain floats, and against ATorch's faults."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from holdfast.local_sgd.config import LocalSGDConfig
from holdfast.local_sgd.policies.anomaly import Ewma, deviation, judge, threshold, z_score

FEW = LocalSGDConfig(skip_anomaly=True, ewma_warmup_steps=10)
BIASED = LocalSGDConfig(skip_anomaly=True, ewma_warmup_steps=10, ewma_bias_correction=False)


def fed(norms: list[float], settings: LocalSGDConfig = FEW, ewma: Ewma | None = None) -> Ewma:
    """Return the detector after these norms."""
    ewma = ewma if ewma is not None else Ewma()
    for norm in norms:
        ewma = judge(ewma, norm, settings)[1]
    return ewma


def noisy(count: int, seed: int = 1) -> list[float]:
    """Return norms of about 1 with a deviation of 0.1."""
    chance = random.Random(seed)
    return [chance.gauss(1, 0.1) for _ in range(count)]


def test_the_biased_detector_follows_the_recurrence_of_the_paper() -> None:
    """Mean and variance equal those of the recurrence, written out once more."""
    mean = variance = 0.0
    ewma = Ewma()
    for norm in noisy(60):
        flagged, ewma = judge(ewma, norm, BIASED)
        assert not flagged
        difference = norm - mean
        mean += 0.02 * difference
        variance = 0.98 * (variance + 0.02 * difference * (norm - mean))
        assert (ewma.mean, ewma.variance) == (mean, variance)


def test_the_biased_detector_is_far_off_at_first() -> None:
    """Eleven norms of 1 give it a mean of 0.20 and a deviation of 0.40."""
    ewma = fed([1.0] * 11, BIASED)
    assert round(ewma.mean, 2) == 0.20
    assert round(deviation(ewma, BIASED), 2) == 0.40


@pytest.mark.parametrize("count", [1, 2, 3, 10, 200])
def test_the_unbiased_detector_has_the_weighted_mean_and_deviation(count: int) -> None:
    """They equal sums over all norms with the weights α(1 - α)ᵏ."""
    norms = noisy(count)
    raw = [0.02 * 0.98 ** (count - 1 - at) for at in range(count)]
    weights = [one / math.fsum(raw) for one in raw]
    mean = math.fsum(weight * norm for weight, norm in zip(weights, norms, strict=True))
    spread = math.fsum(
        weight * (norm - mean) ** 2 for weight, norm in zip(weights, norms, strict=True)
    )
    few = 1 - math.fsum(weight * weight for weight in weights)
    ewma = fed(norms)
    assert ewma.mean == pytest.approx(mean, rel=1e-12)
    assert deviation(ewma, FEW) == pytest.approx(
        math.sqrt(spread / few) if count > 1 else 0, rel=1e-9
    )


def test_few_norms_give_nearly_the_plain_deviation() -> None:
    """With a small α the first norms count nearly alike."""
    norms = noisy(10)
    assert deviation(fed(norms), FEW) == pytest.approx(statistics.stdev(norms), rel=0.1)


def test_nothing_is_an_anomaly_in_the_warm_up() -> None:
    """The first norms are learned, whatever they are."""
    ewma = Ewma()
    for at, norm in enumerate([1.0, 1.1, 50.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]):
        flagged, ewma = judge(ewma, norm, FEW)
        assert not flagged
        assert ewma.count == at + 1


def test_a_spike_is_an_anomaly_and_a_small_norm_is_not() -> None:
    """The verdict is one-sided."""
    ewma = fed(noisy(50))
    assert judge(ewma, 10.0, FEW)[0]
    assert not judge(ewma, 1e-9, FEW)[0]


def test_the_threshold_is_the_border() -> None:
    """A score of δ is no anomaly, anything above is one."""
    ewma = fed(noisy(50))
    border = ewma.mean + 3 * deviation(ewma, FEW)
    assert not judge(ewma, border - 1e-9, FEW)[0]
    assert judge(ewma, border + 1e-9, FEW)[0]


def test_atorch_bug_1_a_detector_is_not_poisoned_by_what_it_finds() -> None:
    """Five spikes among ordinary norms are all found; ATorch's found one, and learned it + 1e6."""
    ewma, found = Ewma(), 0
    norms = noisy(200)
    for at in (60, 80, 100, 101, 150):
        norms[at] = 30.0
    for norm in norms:
        flagged, after = judge(ewma, norm, FEW)
        found += flagged and norm == 30.0
        if flagged:
            assert after.mean == ewma.mean
            assert after.variance == ewma.variance
        ewma = after
    assert found == 5
    assert ewma.mean == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("before", [0, 5, 50])
def test_atorch_bug_6_a_norm_that_is_not_finite_is_an_anomaly(norm: float, before: int) -> None:
    """It is one in the warm-up as well, and changes nothing of the detector."""
    ewma = fed(noisy(before))
    assert judge(ewma, norm, FEW) == (True, ewma)


def test_a_norm_of_0_is_neither_an_anomaly_nor_learned() -> None:
    """Round 0, before any step, would pull mean and deviation away; frozen units never count."""
    assert judge(Ewma(), 0.0, FEW) == (False, Ewma())
    ewma = fed(noisy(50))
    assert judge(ewma, 0.0, FEW) == (False, ewma)


def test_a_negative_norm_is_refused() -> None:
    """It shows a sum where a norm belongs."""
    with pytest.raises(ValueError, match=r"norm=-1\.0: .* give ‖Δ‖"):
        judge(Ewma(), -1.0, FEW)


def test_atorch_bug_11_a_detector_goes_on_from_its_saved_numbers() -> None:
    """A resume in the warm-up, or after it, judges as the detector that was never saved."""
    norms = noisy(80)
    for cut in (3, 9, 40):
        saved = fed(norms[:cut]).state()
        assert all(type(value) is float for value in saved)
        assert fed(norms[cut:], ewma=Ewma.of(saved)) == fed(norms)


def test_equal_norms_do_not_make_rounding_an_anomaly() -> None:
    """With a deviation of 0 the floor decides: three per cent pass, more does not."""
    ewma = fed([1.0] * 50)
    assert deviation(ewma, FEW) < 1e-6
    assert not judge(ewma, 1.0 + 1e-12, FEW)[0]
    assert not judge(ewma, 1.029, FEW)[0]
    assert judge(ewma, 1.031, FEW)[0]


def test_without_a_floor_the_z_score_is_infinite() -> None:
    """A floor of 0 is the formula as it stands; no division by 0 comes of it."""
    bare = LocalSGDConfig(skip_anomaly=True, ewma_warmup_steps=2, ewma_floor=0)
    ewma = Ewma(mean=1.0, variance=0.0, count=5)
    assert z_score(ewma, 1.5, bare) == math.inf
    assert z_score(ewma, 1.0, bare) == 0
    assert z_score(ewma, 0.5, bare) == -math.inf


def test_the_spread_of_past_scores_raises_the_threshold() -> None:
    """The factor f is at least 1, and is the deviation of the z-scores where that is larger."""
    wide = LocalSGDConfig(skip_anomaly=True, ewma_warmup_steps=10, ewma_spread_factor=True)
    assert threshold(Ewma(count=50, z_variance=4.0, z_count=10), wide) == 6
    assert threshold(Ewma(count=50, z_variance=0.25, z_count=10), wide) == 3
    assert threshold(Ewma(count=50, z_variance=4.0, z_count=10), FEW) == 3


def test_the_spread_follows_the_scores_of_the_last_rounds() -> None:
    """The moving deviation of z-scores comes near that of the scores themselves."""
    ewma, scores = Ewma(), []
    for norm in noisy(400):
        if ewma.count >= 10:
            scores.append(z_score(ewma, norm, FEW))
        ewma = judge(ewma, norm, FEW)[1]
    assert ewma.z_count == len([one for one in scores if one <= 3])
    assert math.sqrt(ewma.z_variance) == pytest.approx(statistics.stdev(scores[-20:]), rel=0.3)


def test_a_new_level_is_learned_after_ten_rounds() -> None:
    """Norms that stay high would otherwise shut a replica out for ever."""
    ewma, verdicts = fed(noisy(50)), []
    for norm in [one * 5 for one in noisy(20)]:
        flagged, ewma = judge(ewma, norm, FEW)
        verdicts.append(flagged)
    assert verdicts == [True] * 10 + [False] * 10
    assert ewma.mean == pytest.approx(5, abs=0.5)


def test_an_ordinary_norm_ends_the_streak() -> None:
    """Nine anomalies, then an ordinary norm, then nine more: the old level stays."""
    ewma = fed(noisy(50))
    after = fed([*[9.0] * 9, 1.0, *[9.0] * 9], ewma=ewma)
    assert after.mean == pytest.approx(1, abs=0.1)
    assert after.streak == 9


def test_without_a_limit_a_replica_stays_out() -> None:
    """ewma_restart_after=0 never accepts a new level."""
    never = LocalSGDConfig(skip_anomaly=True, ewma_warmup_steps=10, ewma_restart_after=0)
    ewma = fed(noisy(50), never)
    for _ in range(100):
        flagged, ewma = judge(ewma, 9.0, never)
        assert flagged

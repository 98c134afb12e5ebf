from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from pth_tracker import stats

ITEMS = 1319
NAN = math.nan


def _curve(rng: np.random.Generator, n: int, *, collapses: bool) -> npt.NDArray[np.float64]:
    """A learning curve of greedy accuracies on 1319 items: the generator of the rates below.

    The true accuracy rises from 0.35 towards 0.75 with a time constant of a fifth of the run and wanders by a normal
    0.01 between checkpoints; a collapse at a uniform 40 to 80% of the run takes it to a uniform 0.05 to 0.30 within
    a few per cent of the run.
    """
    t = np.arange(n) / (n - 1)
    p = 0.35 + 0.4 * (1 - np.exp(-t / 0.2))
    if collapses:
        at, low = rng.uniform(0.4, 0.8), rng.uniform(0.05, 0.3)
        p = np.where(t > at, low + (p - low) * np.exp(-(t - at) / 0.03), p)
    p = np.clip(p + rng.normal(0, 0.01, n), 0, 1)
    return rng.binomial(ITEMS, p) / ITEMS


def _found(n: int, collapses: bool, items: int | None, repeats: int = 1000) -> float:
    rng = np.random.default_rng(n)
    curves = (_curve(rng, n, collapses=collapses) for _ in range(repeats))
    return float(np.mean([stats.detect_collapse(curve, items=items).collapsed for curve in curves]))


@pytest.mark.parametrize("items", [ITEMS, None])
def test_collapses_are_found_on_the_stated_generator(items: int | None) -> None:
    assert _found(10, True, items) >= 0.9
    assert _found(50, True, items) >= 0.99


@pytest.mark.parametrize("items", [ITEMS, None])
@pytest.mark.parametrize("n", [5, 10, 50])
def test_healthy_curves_do_not_collapse(n: int, items: int | None) -> None:
    assert _found(n, False, items) <= 0.02


@pytest.mark.parametrize("n", [5, 10, 20, 100])
def test_flat_noise_does_not_collapse(n: int) -> None:
    rng = np.random.default_rng(n)
    curves = rng.binomial(ITEMS, 0.7, (1000, n)) / ITEMS
    assert np.mean([stats.detect_collapse(curve, items=ITEMS).collapsed for curve in curves]) <= 0.02


def test_every_number_by_hand() -> None:
    curve = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.3, 0.1, 0.1]
    # Differences .1 .1 .1 .1 .1 .0 -.4 -.2 .0: median .1 and deviations 0 0 0 0 0 .1 .5 .3 .1, whose median is 0.
    found = stats.detect_collapse(curve)
    assert (found.width, found.evaluations, found.weak, found.judged) == (2, 10, False, True)
    assert found.sigma == pytest.approx(0.0, abs=1e-12)
    assert found.peak == pytest.approx(0.7) and found.peak_at == 5
    assert found.gain == pytest.approx(0.7 - 0.25)
    assert found.threshold == pytest.approx(0.25 * 0.45)
    assert found.final == pytest.approx(0.1)
    assert found.collapsed and not found.nonfinite_end
    floor = math.sqrt(0.35 * 0.65 / 100)
    assert stats.detect_collapse(curve, items=100).sigma == pytest.approx(floor)  # the median score is 0.35
    assert stats.detect_collapse(curve, items=100).threshold == pytest.approx(3 * floor)


def test_sigma_by_hand_and_in_simulation() -> None:
    # Differences 1 -2 4: median 1, deviations 0 3 3, MAD 3.
    assert stats.evaluation_noise([0, 1, -1, 3]) == pytest.approx(1.4826 * 3 / math.sqrt(2))
    noise = np.random.default_rng(0).normal(0, 0.02, 20_000)
    assert stats.evaluation_noise(noise) == pytest.approx(0.02, rel=0.03)
    assert stats.evaluation_noise([0.5]) == 0.0
    assert stats.evaluation_noise([0.5], items=100) == pytest.approx(0.05)
    for scores, items in (([45.0], 100), ([0.5], 0), ([-0.1], 10)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            stats.evaluation_noise(scores, items=items)


def test_every_one_of_the_last_w_values_must_lie_below() -> None:
    rising = np.linspace(0.1, 0.8, 10)
    assert stats.detect_collapse([*rising, 0.1, 0.1]).collapsed
    assert not stats.detect_collapse([*rising, 0.1, 0.1, 0.8]).collapsed
    assert not stats.detect_collapse([*rising, 0.1]).collapsed  # w = 2, one low value is not enough


@pytest.mark.parametrize("n", range(5))
def test_fewer_than_five_evaluations_are_not_judged(n: int) -> None:
    found = stats.detect_collapse([0.1, 0.9, 0.0, 0.0][:n])
    assert not found.judged and not found.collapsed and found.evaluations == n


def test_five_to_nine_evaluations_are_weak() -> None:
    for n, weak in ((5, True), (9, True), (10, False)):
        found = stats.detect_collapse(np.linspace(0, 1, n))
        assert found.judged and found.weak is weak


def test_a_declared_drop_replaces_the_threshold_and_needs_no_gain() -> None:
    sagging = [0.7, 0.71, 0.7, 0.69, 0.7, 0.66, 0.65, 0.64, 0.64, 0.63]
    assert not stats.detect_collapse(sagging).collapsed
    declared = stats.detect_collapse(sagging, max_drop=0.05)
    assert declared.collapsed and declared.threshold == pytest.approx(0.05)
    assert not stats.detect_collapse(sagging, max_drop=0.1).collapsed
    for bad in (0.0, -0.05, NAN):
        with pytest.raises(ValueError, match="max_drop"):
            stats.detect_collapse(sagging, max_drop=bad)


def test_scores_that_are_not_finite() -> None:
    rising = list(np.linspace(0.1, 0.8, 8))
    ended = stats.detect_collapse([*rising, NAN, math.inf])
    assert ended.collapsed and ended.nonfinite_end and math.isnan(ended.final) and ended.evaluations == 8
    assert ended.peak == pytest.approx(0.75)
    passing = stats.detect_collapse([*rising[:4], NAN, *rising[4:]])
    assert not passing.collapsed and passing.peak_at == 8  # counted on the curve as it was given
    early = stats.detect_collapse([0.1, 0.2, NAN, NAN, NAN])
    assert early.judged and early.collapsed and early.weak
    assert not stats.detect_collapse([NAN] * 8).judged
    assert not stats.detect_collapse([0.1, 0.2, NAN, NAN]).judged
    assert not stats.detect_collapse([NAN, NAN, NAN, 0.1, 0.2]).judged


def test_lower_is_better() -> None:
    loss = [9.0, 7.0, 5.0, 4.0, 3.0, 2.0, 2.0, 8.0, 9.0, 9.0]
    found = stats.detect_collapse(loss, higher_is_better=False)
    assert found.collapsed and found.peak == 2.0 and found.final == 9.0 and found.gain == 6.0
    assert loss[found.peak_at] == 2.0
    assert not stats.detect_collapse(loss).collapsed


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1.7e308])
def test_the_detector_scales(scale: float) -> None:
    curve = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.3, 0.1, 0.1])
    plain, other = stats.detect_collapse(curve), stats.detect_collapse(curve * scale)
    assert other.collapsed and other.peak == pytest.approx(plain.peak * scale, rel=1e-2)
    assert other.threshold == pytest.approx(plain.threshold * scale, rel=1e-2)
    signed = stats.detect_collapse((curve - 0.4) * scale)
    assert signed.collapsed
    constant = stats.detect_collapse(np.full(10, scale))
    assert constant.judged and not constant.collapsed and constant.gain == 0


def test_float32_curves() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        curve = _curve(rng, 20, collapses=True)
        single = stats.detect_collapse(curve.astype(np.float32), items=ITEMS)
        assert single.collapsed == stats.detect_collapse(curve, items=ITEMS).collapsed


def test_stable_settings() -> None:
    assert stats.stable_settings([0, 0, 2, 3], [3, 3, 3, 3]) == 2
    assert stats.stable_settings([0, 0, 0], [3, 1, 3]) == 1  # one run says nothing, and a hole ends the range
    assert stats.stable_settings([0, 1, 0], [2, 2, 2]) == 1  # nothing is interpolated
    assert stats.stable_settings([1], [5]) == 0
    assert stats.stable_settings([0, 0], [2, 2]) == 2
    assert stats.stable_settings([], []) == 0
    with pytest.raises(ValueError, match="2 and 1 counts"):
        stats.stable_settings([0, 0], [1])
    with pytest.raises(ValueError, match="counted among"):
        stats.stable_settings([3], [2])


def test_mean_of_the_last_tenth() -> None:
    assert stats.last_tenth_mean(np.arange(100.0)) == pytest.approx(94.5)
    assert stats.last_tenth_mean(np.arange(11.0)) == pytest.approx(9.5)
    assert stats.last_tenth_mean([0.3]) == 0.3

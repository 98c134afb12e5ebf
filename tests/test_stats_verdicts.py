from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.power import TTestPower

from pth_tracker import stats
from pth_tracker.stats import Verdict
from pth_tracker.stats.verdicts import SEEDS_MOST

REFERENCE = [2.0, 0.7, 3.1]


def _enumerated(d: npt.NDArray[np.float64]) -> float:
    """The sign-flip p by brute force over the sign vectors."""
    sums = [abs(sum(s * x for s, x in zip(signs, d))) for signs in itertools.product((1, -1), repeat=len(d))]
    return sum(bool(total >= abs(d.sum()) - 1e-9) for total in sums) / len(sums)


def test_reference_table_is_undecided() -> None:
    flip = stats.sign_flip(REFERENCE)
    assert (flip.p, flip.smallest_p, flip.zeros, flip.draws) == (0.25, 0.25, 0, None)
    p = stats.t_interval(REFERENCE).p
    assert p is not None
    assert stats.verdict(float(stats.holm([p])[0])) is Verdict.UNDECIDED
    assert stats.verdict(p, stats.equivalence(REFERENCE, 1.0)) == "undecided"


def test_sign_flip_by_hand() -> None:
    # 1, 2, 3: |sum| of 6 is reached by two of eight assignments. With -1: |4| by +-(-1+2+3) and +-(1+2+3).
    assert stats.sign_flip([1, 2, 3]).p == 2 / 8
    assert stats.sign_flip([-1, 2, 3]).p == 4 / 8
    assert stats.sign_flip([5]).p == 1.0 and stats.sign_flip([5]).smallest_p == 1.0
    assert stats.sign_flip([1, -1]).p == 1.0
    zeros = stats.sign_flip([0, 1, 2, 0])
    assert (zeros.p, zeros.smallest_p, zeros.zeros) == (0.5, 0.5, 2)
    nothing = stats.sign_flip([0.0, 0.0])
    assert (nothing.p, nothing.smallest_p) == (1.0, 1.0)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_sign_flip_against_enumeration_and_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(5):
        d = rng.normal(0.5, 1, n).round(1)
        assert stats.sign_flip(d).p == pytest.approx(_enumerated(d))
        theirs = scipy_stats.permutation_test(
            (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", vectorized=True, n_resamples=10_000
        )
        assert stats.sign_flip(d).p == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-300, 1e307])
def test_ties_are_counted_whatever_the_rounding(scale: float) -> None:
    # 0.1 + 0.2 + 0.3 - 0.4 = 0.2 in exact arithmetic. Of the sixteen |sums| (1.0 0.8 0.6 0.4 0.4 0.2 0.2 0.0, twice
    # each) all but the two of 0.0 reach it, four of them as exact ties that rounding blurs.
    d = np.array([0.1, 0.2, 0.3, -0.4]) * scale
    assert stats.sign_flip(d).p == 14 / 16
    single = np.array([0.7, 0.8, 0.9], np.float32) - np.array([0.6, 0.7, 1.0], np.float32)
    assert stats.sign_flip(single).p == 1.0


def test_smallest_p_is_reached() -> None:
    for n, zeros in ((3, 0), (6, 2), (16, 0), (16, 15)):
        d = np.concatenate((np.arange(1.0, n - zeros + 1), np.zeros(zeros)))
        flip = stats.sign_flip(d)
        assert flip.p == flip.smallest_p == 2.0 ** (1 - n + zeros) and flip.draws is None


def test_sign_flip_draws_beyond_sixteen() -> None:
    d = np.random.default_rng(0).normal(0.4, 1, 20)
    flip = stats.sign_flip(d, rng=np.random.default_rng(1))
    assert flip == stats.sign_flip(d, rng=np.random.default_rng(1)) and flip.draws == 100_000
    reached = round(flip.p * 100_001 - 1)
    assert flip.p == (reached + 1) / 100_001
    # The exact p over all 2^20 assignments, by doubling.
    sums = np.zeros(1)
    for x in d:
        sums = np.concatenate((sums + x, sums - x))
    exact = np.mean(np.abs(sums) >= abs(d.sum()) - 1e-9)
    assert flip.p == pytest.approx(exact, abs=4 * math.sqrt(exact / 100_000))
    assert stats.sign_flip(np.arange(1.0, 41.0), rng=np.random.default_rng(1)).p == 1 / 100_001
    with pytest.raises(ValueError, match="give rng"):
        stats.sign_flip(d)


def test_sign_flip_holds_its_level() -> None:
    rng = np.random.default_rng(7)
    p = np.array([stats.sign_flip(rng.normal(size=8)).p for _ in range(2000)])
    assert np.mean(p <= 0.05) == pytest.approx(12 / 256, abs=0.015)  # the attainable level below 0.05


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04 times 4 3 2 1 is .04 .06 .06 .04; monotone: .04 .06 .06 .06.
    assert stats.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert stats.holm([0.7, 0.9]) == pytest.approx([1.0, 1.0])
    assert stats.holm([0.03]) == pytest.approx([0.03])
    assert stats.holm([]).shape == (0,)
    for bad in ([-0.1], [1.1], [math.nan]):
        with pytest.raises(ValueError, match="p.values"):
            stats.holm(bad)


def test_equivalence_is_the_90_percent_interval_inside_the_margin() -> None:
    rng = np.random.default_rng(2)
    seen = set()
    for _ in range(60):
        d = rng.normal(0.1, 0.5, int(rng.integers(2, 9)))
        tost = stats.equivalence(d, 0.5)
        interval = stats.t_interval(d, level=0.9)
        assert tost is not None and interval.low is not None and interval.high is not None
        assert (tost.low, tost.high) == pytest.approx((interval.low, interval.high))
        assert tost.equivalent == (-0.5 < interval.low and interval.high < 0.5)
        s, mean = float(np.std(d, ddof=1)), float(d.mean())
        t = (0.5 - abs(mean)) / (s / math.sqrt(len(d)))
        assert tost.p == pytest.approx(scipy_stats.t.sf(t, len(d) - 1))
        seen.add(tost.equivalent)
    assert seen == {True, False}


def test_equivalence_of_too_little_is_none() -> None:
    assert stats.equivalence([0.1], 1.0) is None
    assert stats.equivalence([0.1, 0.1, 0.1], 1.0) is None
    for margin in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin"):
            stats.equivalence([0.1, 0.2], margin)


@pytest.mark.parametrize(("scale", "margin", "tie"), [(1e-320, 1.0, True), (1e307, 1e-10, False), (1e307, 1e308, True)])
def test_equivalence_at_extremes(scale: float, margin: float, tie: bool) -> None:
    tost = stats.equivalence(np.array([1.0, 1.1, 0.8, 1.2, 0.9]) * scale, margin)
    assert tost is not None and tost.equivalent is tie


def test_the_three_words() -> None:
    wide, tight = [0.5, 3.0, -2.0], [0.1, -0.1, 0.05, 0.0]
    tost = stats.equivalence(tight, 1.0)
    assert stats.verdict(0.049) is Verdict.BETTER
    assert stats.verdict(0.05) is Verdict.UNDECIDED
    assert stats.verdict(0.8) is Verdict.UNDECIDED  # no significance is no tie
    assert stats.verdict(None) is Verdict.UNDECIDED
    assert stats.verdict(0.8, tost) is Verdict.TIE
    assert stats.verdict(0.01, tost) is Verdict.BETTER
    assert stats.verdict(0.8, stats.equivalence(wide, 1.0)) is Verdict.UNDECIDED
    with pytest.raises(ValueError, match="p value"):
        stats.verdict(math.nan)


def test_seeds_needed_against_the_power_function() -> None:
    d = np.array([2.0, 0.7, 3.1, 1.5, -0.2])
    plan = stats.seeds_needed(d, 1.0)
    assert plan is not None
    s = float(np.std(d, ddof=1))
    # The 10% and 90% points of chi-square with 4 degrees of freedom, from tables.
    assert plan.s_low == pytest.approx(s * math.sqrt(4 / 7.779440)) and plan.s_low < s < plan.s_high
    assert plan.s_high == pytest.approx(s * math.sqrt(4 / 1.063623))
    for n, bound in ((plan.low, plan.s_low), (plan.high, plan.s_high)):
        power = [TTestPower().power(1.0 / bound, m, 0.05, alternative="two-sided") for m in (n - 1, n)]
        assert power[0] < 0.8 <= power[1]
    assert stats.seeds_needed(-d, -1.0) is not None


def test_seeds_needed_in_simulation() -> None:
    plan = stats.seeds_needed([1.0, -1.0, 1.0, -1.0], 1.0)
    assert plan is not None
    x = np.random.default_rng(0).normal(1.0, plan.s_high, (20_000, plan.high))
    t = x.mean(axis=1) / (x.std(axis=1, ddof=1) / math.sqrt(plan.high))
    found = np.mean(np.abs(t) > scipy_stats.t.ppf(0.975, plan.high - 1))
    assert 0.79 < found < 0.82


def test_seeds_needed_at_the_ends() -> None:
    d = [2.0, 0.7, 3.1, 1.5]
    assert stats.seeds_needed(d[:3], 1.0) is None
    assert stats.seeds_needed([1.0] * 6, 1.0) is None
    large = stats.seeds_needed(d, 1e6)
    small = stats.seeds_needed(d, 1e-9)
    assert large is not None and (large.low, large.high) == (2, 2)
    assert small is not None and (small.low, small.high) == (SEEDS_MOST, SEEDS_MOST)
    for effect in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="effect"):
            stats.seeds_needed(d, effect)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0, 5.0, 10.0, 13.0, 20.0])
def test_seeds_needed_is_the_first_that_suffices_even_for_large_effects(ratio: float) -> None:
    from pth_tracker.stats.verdicts import _seeds_for

    n = _seeds_for(ratio, 0.8)
    # P(|T| > t) of the noncentral t by simulation, which has no numerical corners.
    rng = np.random.default_rng(1)
    found = {}
    for m in {max(2, n - 1), n}:
        x = rng.normal(ratio, 1, (40_000, m))
        t = x.mean(axis=1) / (x.std(axis=1, ddof=1) / math.sqrt(m))
        found[m] = float(np.mean(np.abs(t) > scipy_stats.t.ppf(0.975, m - 1)))
    assert found[n] > 0.79
    assert n == 2 or found[n - 1] < 0.81

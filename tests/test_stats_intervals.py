from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pth
import pytest
from scipy import stats as scipy_stats

from pth_tracker import stats
from pth_tracker.stats.intervals import percentile_bootstrap

# Reference results at N = 64, by data seed (default, 43, 44), as shares.
GRPO = {"default": 0.743, "43": 0.778, "44": 0.777}
TIS = {"default": 0.763, "43": 0.785, "44": 0.808}
T_975 = {1: 12.706204736432095, 2: 4.302652729911275, 4: 2.7764451051977987}
HUGE = np.finfo(np.float64).max
TINY = 5e-324


def _table() -> npt.NDArray[np.float64]:
    return 100 * stats.differences(list(TIS.values()), list(GRPO.values()))


def test_reference_table_interval_and_p() -> None:
    interval = stats.t_interval(_table())
    assert interval.mean == pytest.approx(5.8 / 3)
    assert (interval.n, interval.df) == (3, 2)
    assert interval.low == pytest.approx(-1.05, abs=0.005)
    assert interval.high == pytest.approx(4.92, abs=0.005)
    assert interval.holds_zero
    # With two degrees of freedom the t distribution is algebraic: p = 1 - t / sqrt(2 + t^2).
    s = math.sqrt(sum((d - 5.8 / 3) ** 2 for d in (2.0, 0.7, 3.1)) / 2)
    t = 5.8 / 3 / (s / math.sqrt(3))
    assert interval.s == pytest.approx(s)
    assert interval.p == pytest.approx(1 - t / math.sqrt(2 + t * t))


def test_agrees_with_probe_the_harness_on_the_reference_table() -> None:
    theirs = pth.paired_differences({"tis": TIS, "grpo": GRPO}, "tis", "grpo", scale=100).stats
    pairing = stats.pair_by_seed(list(TIS), list(TIS.values()), list(GRPO), list(GRPO.values()))
    d = 100 * stats.differences(pairing.a, pairing.b)
    assert theirs["pairs"] == len(pairing.seeds)
    assert theirs["mean"] == pytest.approx(stats.t_interval(d).mean)
    assert (theirs["min"], theirs["max"]) == (pytest.approx(d.min()), pytest.approx(d.max()))
    assert (theirs["a_ahead"], theirs["b_ahead"]) == (np.count_nonzero(d > 0), np.count_nonzero(d < 0))
    assert theirs["pooled_separation"] is None and stats.pooled_order(list(TIS.values()), list(GRPO.values())) == 0


def test_t_interval_with_one_degree_of_freedom() -> None:
    interval = stats.t_interval([1.0, 3.0])
    half = T_975[1] * math.sqrt(2) / math.sqrt(2)
    assert interval.df == 1 and interval.s == pytest.approx(math.sqrt(2))
    assert interval.low == pytest.approx(2 - half) and interval.high == pytest.approx(2 + half)
    # One degree of freedom is the Cauchy distribution, t = 2 here.
    assert interval.p == pytest.approx(1 - 2 / math.pi * math.atan(2))


def test_t_interval_of_one_difference_is_none() -> None:
    interval = stats.t_interval([0.4])
    assert (interval.mean, interval.df, interval.s, interval.low, interval.high, interval.p) == (0.4, 0, *[None] * 4)
    assert interval.holds_zero


@pytest.mark.parametrize(
    "equal",
    [
        [0.1, 0.1, 0.1],
        [0.0, 0.0],
        [0.763 - 0.743, 0.785 - 0.765, 0.808 - 0.788],
        np.array([0.7, 0.8, 0.9], np.float32) - np.array([0.6, 0.7, 0.8], np.float32),
    ],
)
def test_equal_differences_have_no_interval(equal: npt.ArrayLike) -> None:
    interval = stats.t_interval(equal)
    assert (interval.s, interval.low, interval.high, interval.p) == (0.0, None, None, None)
    assert interval.mean == pytest.approx(float(np.asarray(equal)[0]), rel=1e-6)


def test_mean_of_equal_values_is_that_value() -> None:
    assert np.mean([0.1, 0.1, 0.1]) != 0.1  # what rounding does otherwise
    assert stats.t_interval([0.1, 0.1, 0.1]).mean == 0.1


@pytest.mark.parametrize("scale", [1e-300, 1e-10, 1e10, 1e307])
def test_t_interval_scales(scale: float) -> None:
    plain, large = stats.t_interval([2.0, 0.7, 3.1]), stats.t_interval(np.array([2.0, 0.7, 3.1]) * scale)
    assert large.p == pytest.approx(plain.p)
    for field in ("mean", "s", "low", "high"):
        assert getattr(large, field) == pytest.approx(getattr(plain, field) * scale)


def test_extreme_values_neither_overflow_nor_vanish() -> None:
    huge = stats.t_interval([HUGE, HUGE, HUGE / 2])
    assert huge.mean == pytest.approx(HUGE / 6 * 5) and huge.high == math.inf
    tiny = stats.t_interval([TINY, 3 * TINY])
    assert tiny.mean == 2 * TINY and tiny.p == pytest.approx(1 - 2 / math.pi * math.atan(2))
    welch = stats.welch_interval([HUGE, HUGE / 2], [-HUGE, -HUGE / 2])
    assert welch.mean == math.inf and welch.p is not None and 0 < welch.p < 1


def test_float32_is_computed_in_double() -> None:
    single = np.array([2.0, 0.7, 3.1], np.float32)
    assert stats.t_interval(single) == stats.t_interval(single.astype(np.float64))


FUNCTIONS_OF_A_VECTOR: list[Callable[[npt.ArrayLike], object]] = [
    stats.t_interval,
    stats.sign_flip,
    lambda d: stats.equivalence(d, 1.0),
    lambda d: stats.seeds_needed(d, 1.0),
    lambda d: stats.bootstrap_interval(d, rng=np.random.default_rng(0)),
    lambda d: stats.welch_interval(d, [1.0, 2.0]),
    lambda d: stats.welch_interval([1.0, 2.0], d),
    lambda d: stats.pooled_order(d, [1.0]),
    lambda d: stats.differences(d, d),
    stats.items_from_scores,
    stats.last_tenth_mean,
    stats.evaluation_noise,
    stats.progressed,
]


@pytest.mark.parametrize("function", FUNCTIONS_OF_A_VECTOR)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([0.5, math.nan], r"nan at index 1"),
        ([0.5, -math.inf, 0.1], r"-inf at index 1"),
        ([], r"at least 1 value"),
        ([[0.5, 0.6]], r"1 dimension"),
        (["0.5"], r"must be numbers"),
        ([None, 0.5], r"must be numbers"),
        ([[0.5], [0.5, 0.1]], r"must be numbers"),
    ],
)
def test_bad_vectors_are_one_clear_sentence(
    function: Callable[[npt.ArrayLike], object], bad: npt.ArrayLike, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        function(bad)
    assert "\n" not in str(caught.value)


def test_differences_refuse_unequal_lengths_and_overflow() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        stats.differences([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="largest float64"):
        stats.differences([HUGE], [-HUGE])


def test_welch_against_its_formula_and_scipy() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 9.0]
    welch = stats.welch_interval(a, b)
    va, vb = (5 / 3) / 4, (15.25 - 0) / 3  # the variances 5/3 and 15.25 by hand
    assert welch.mean == pytest.approx(2.5 - 4.5)
    assert welch.error == pytest.approx(math.sqrt(va + vb))
    assert welch.df == pytest.approx((va + vb) ** 2 / (va**2 / 3 + vb**2 / 2))
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False)
    assert welch.p == pytest.approx(theirs.pvalue)
    assert (welch.low, welch.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))


def test_welch_without_an_interval() -> None:
    one = stats.welch_interval([1.0], [2.0, 3.0])
    assert one.mean == -1.5 and one.error is None and one.low is None
    flat = stats.welch_interval([1.0, 1.0], [0.5, 0.5, 0.5])
    assert flat.mean == 0.5 and flat.error == 0.0 and flat.p is None
    half_flat = stats.welch_interval([1.0, 1.0, 1.0], [0.0, 0.2])
    assert half_flat.df == pytest.approx(1.0)
    assert half_flat.high == pytest.approx(0.9 + T_975[1] * 0.1)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_interval_covers_95_percent(n: int) -> None:
    x = np.random.default_rng(n).normal(0.3, 2.0, (1500, n))
    covered = 0
    for row in x:
        interval = stats.t_interval(row)
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 0.3 <= interval.high
    assert covered / 1500 == pytest.approx(0.95, abs=0.02)


def test_bootstrap_of_three_seeds_would_cover_three_quarters() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 1, 3))
    ends = [percentile_bootstrap(row, lambda v: v[0].mean(axis=-1), rng=rng, draws=1000) for row in x]
    # The interval is the range of the three, which misses the median in 2 of 2^3 orderings of signs.
    assert np.mean([low <= 0 <= high for low, high in ends]) == pytest.approx(0.75, abs=0.05)


def test_bootstrap_is_refused_below_ten_seeds() -> None:
    assert stats.bootstrap_interval(np.arange(9.0), rng=np.random.default_rng(0)) is None
    assert stats.bootstrap_interval(np.arange(10.0), rng=np.random.default_rng(0)) is not None


def test_bootstrap_against_a_plain_resampling_and_its_generator() -> None:
    d = np.random.default_rng(1).gamma(2.0, size=12)
    ours = stats.bootstrap_interval(d, rng=np.random.default_rng(2))
    again = stats.bootstrap_interval(d, rng=np.random.default_rng(2))
    assert ours is not None and ours == again and (ours.n, ours.draws) == (12, 10_000)
    means = d[np.random.default_rng(9).integers(0, 12, (40_000, 12))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert ours.low == pytest.approx(low, abs=0.03) and ours.high == pytest.approx(high, abs=0.03)


def test_bootstrap_of_huge_values_is_finite() -> None:
    d = np.linspace(0.5, 1.0, 10)
    plain = stats.bootstrap_interval(d, rng=np.random.default_rng(0))
    huge = stats.bootstrap_interval(d * HUGE, rng=np.random.default_rng(0))
    assert plain is not None and huge is not None
    assert (huge.low / HUGE, huge.high / HUGE) == pytest.approx((plain.low, plain.high))
    assert stats.bootstrap_interval(np.full(10, HUGE), rng=np.random.default_rng(0)) is None


def test_clopper_pearson_by_hand() -> None:
    none = stats.clopper_pearson(0, 3)
    assert none.low == 0.0 and none.rate == 0.0
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 3))
    assert none.still_allowed == pytest.approx(1 - 0.05 ** (1 / 3)) and round(none.still_allowed, 2) == 0.63
    every = stats.clopper_pearson(3, 3)
    assert (every.high, every.still_allowed) == (1.0, 1.0) and every.low == pytest.approx(0.025 ** (1 / 3))
    some = stats.clopper_pearson(2, 7)
    assert some.low == pytest.approx(scipy_stats.beta.ppf(0.025, 2, 6))
    assert some.high == pytest.approx(scipy_stats.beta.ppf(0.975, 3, 5))


@pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_clopper_pearson_refuses_impossible_counts(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no count"):
        stats.clopper_pearson(k, n)


def test_evaluation_error() -> None:
    assert stats.rate_error(0.75, 1319) == pytest.approx(0.0119, abs=5e-5)
    assert 0.07 < stats.rate_error(0.75, 30) < 0.09
    assert stats.difference_error(0.5, 100, seeds=2) == pytest.approx(0.05)
    rng = np.random.default_rng(0)
    scores = rng.binomial(200, 0.3, (20_000, 2, 3)) / 200
    spread = (scores[:, 0] - scores[:, 1]).mean(axis=1).std()
    assert stats.difference_error(0.3, 200, seeds=3) == pytest.approx(spread, rel=0.02)
    for rate, items, seeds in ((1.1, 10, 1), (math.nan, 10, 1), (0.5, 0, 1), (0.5, 10, 0)):
        with pytest.raises(ValueError, match="rate|positive"):
            stats.rate_error(rate, items, seeds=seeds)


def test_items_are_read_off_the_grid() -> None:
    counts = np.array([900, 950, 1000, 1001, 1007])
    assert stats.items_from_scores(counts / 1319) == 1319
    assert stats.items_from_scores((counts / 1319).astype(np.float32)) == 1319
    thirty = np.round(np.array([3, 7, 11, 12, 17, 20, 22]) / 30, 3)
    assert stats.items_from_scores(thirty, decimals=3) == 30
    assert stats.items_from_scores([0.0, 1.0, 1.0]) is None
    assert stats.items_from_scores(np.round(counts / 1319, 3), decimals=3) is None  # many denominators would do


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_a_grid_of_rounded_scores_is_no_number_of_items(digits: int, dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(digits)
    for _ in range(30):
        returns = rng.uniform(0.2, 0.9, 40).round(digits).astype(dtype)
        assert stats.items_from_scores(returns) is None
    few = np.array([0.7, 0.72, 0.74, 0.76])  # 50 items would do, and so would any scores of two decimals
    assert stats.items_from_scores(few.astype(dtype)) is None
    assert stats.items_from_scores(few.astype(dtype), decimals=4) is None


def test_items_that_divide_a_power_of_ten_are_told_by_many_scores_only() -> None:
    even = np.arange(300, 380, 4) / 500  # 20 scores of three decimals, all multiples of 0.008: 8^-20 by rounding
    assert stats.items_from_scores(even) == 125
    assert stats.items_from_scores(np.arange(300, 330) / 500) == 500
    assert stats.items_from_scores(np.array([301, 307, 310]) / 500) is None
    assert stats.items_from_scores(np.array([3, 7, 11, 12, 17, 20, 22]) / 30) == 30


def test_items_are_not_read_into_arbitrary_scores() -> None:
    rng = np.random.default_rng(5)
    assert [stats.items_from_scores(rng.random(3)) for _ in range(100)] == [None] * 100
    assert [stats.items_from_scores(rng.random(4).round(3), decimals=3) for _ in range(100)] == [None] * 100
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.items_from_scores([45.0, 55.0])


def test_pooled_order() -> None:
    assert stats.pooled_order([3, 4], [1, 2]) == 1
    assert stats.pooled_order([1], [2, 3]) == -1
    assert stats.pooled_order([2, 3], [1, 2]) == 0


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, math.nan])
def test_levels_are_shares(level: float) -> None:
    with pytest.raises(ValueError, match="confidence level"):
        stats.t_interval([1.0, 2.0], level=level)


def test_importing_stats_loads_no_statistics_library() -> None:
    code = (
        "import sys, pth_tracker.stats; "
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'scipy', 'statsmodels', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_global_random_state_is_not_touched() -> None:
    np.random.seed(4)
    expected = np.random.random()
    np.random.seed(4)
    stats.bootstrap_interval(np.arange(10.0), rng=np.random.default_rng(0))
    stats.sign_flip(np.arange(1.0, 18.0), rng=np.random.default_rng(0))
    assert np.random.random() == expected

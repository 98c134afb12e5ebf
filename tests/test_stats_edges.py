"""Statistics at the edge of what numbers can be, against exact fractions and plain SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
import statsmodels.stats.multitest

from pth_tracker import stats

Vector = npt.ArrayLike


def exact_mean(values: Vector) -> float:
    """The mean by exact fractions."""
    listed = [Fraction(float(value)) for value in np.asarray(values).ravel()]
    return float(sum(listed, Fraction(0)) / len(listed))


def exact_median(values: Vector) -> float:
    listed = sorted(Fraction(float(value)) for value in np.asarray(values).ravel())
    middle = len(listed) // 2
    return float(listed[middle]) if len(listed) % 2 else float((listed[middle - 1] + listed[middle]) / 2)


def bfloat16(values: list[float]) -> npt.NDArray[np.float64]:
    """What is left of the values after they were stored as bfloat16 (the upper half of float32)."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


VECTORS: dict[str, Vector] = {
    "float32": np.array([0.1, 0.7, 0.4, 0.2, 0.9, 0.3], dtype=np.float32),
    "float16": np.array([0.1, 0.7, 0.4, 0.2, 0.9, 0.3], dtype=np.float16),
    "bfloat16": bfloat16([0.1, 0.7, 0.4, 0.2, 0.9, 0.3]),
    "integers": np.array([3, -1, 4, 1, -5, 9], dtype=np.int8),
    "booleans": np.array([True, False, True, True, False, True]),
    "subnormal": [5e-324, 1.5e-323, 1e-323, 5e-324, 2e-323],
    "largest": [1.7e308, 1.6e308, -1.7e308, 1.5e308, 1.7e308],
    "wide": [1e308, 1e-308, -1e308, 1.0, 1e-320],
    "two": [0.25, 0.75],
}


@pytest.mark.parametrize("kind", VECTORS)
def test_means_and_medians_are_exact(kind: str) -> None:
    values = VECTORS[kind]
    n = len(np.asarray(values))
    least = max(1e-323, 1e-15 * float(np.abs(np.asarray(values, dtype=np.float64)).max()))
    assert stats.window_means(values, n)[-1] == pytest.approx(exact_mean(values), rel=1e-14, abs=least)
    assert stats.window_medians(values, n)[-1] == pytest.approx(exact_median(values), rel=1e-14, abs=least)
    assert stats.task_means(np.asarray(values)[:, None])[0] == pytest.approx(exact_mean(values), rel=1e-14, abs=least)
    assert stats.benchmark_means(np.asarray(values)[None])[0] == pytest.approx(exact_mean(values), rel=1e-14, abs=least)
    assert stats.mean_per_seed([1] * n, values)[1][0] == pytest.approx(exact_mean(values), rel=1e-14, abs=least)
    steps = np.arange(n)
    mean = stats.score_of(steps, values, at="mean", window=n)
    assert mean == pytest.approx(exact_mean(values), rel=1e-14, abs=least)
    assert stats.score_of(steps, values, at="best") == float(np.max(np.asarray(values, dtype=np.float64)))
    assert stats.score_of(steps, values, at="last") == float(np.asarray(values)[-1])


@pytest.mark.parametrize("kind", [kind for kind in VECTORS if kind != "wide"])
def test_the_t_interval_is_scipys_on_scaled_values(kind: str) -> None:
    values = np.asarray(VECTORS[kind], dtype=np.float64)
    exponent = int(np.frexp(np.abs(values).max())[1])
    unit = np.ldexp(values, -exponent)
    reference = scipy.stats.ttest_1samp(unit, 0.0)
    bounds = reference.confidence_interval(0.95)
    found = stats.t_interval(VECTORS[kind])
    assert found is not None
    assert found.p == pytest.approx(reference.pvalue, rel=1e-9)
    with np.errstate(over="ignore", under="ignore"):
        low, high = (float(np.ldexp(bound, exponent)) for bound in (bounds.low, bounds.high))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=5e-324)


@pytest.mark.parametrize("kind", [kind for kind in VECTORS if kind != "wide"])
def test_the_sign_flip_is_an_exact_count(kind: str) -> None:
    values = [Fraction(float(value)) for value in np.asarray(VECTORS[kind])]
    observed = abs(sum(values, Fraction(0)))
    slack = Fraction(1, 10**6) * sum(map(abs, values), Fraction(0))
    sums = [Fraction(0)]
    for value in values:
        sums = [total + sign * value for total in sums for sign in (1, -1)]
    reached = sum(abs(total) >= observed - slack for total in sums)
    assert stats.sign_flip(VECTORS[kind]).p == reached / len(sums)


def test_an_iqm_is_that_of_the_middle_half_by_fractions() -> None:
    for scale in (1.0, 1e308, 1e-310):
        table = np.array([[0.1, 0.9, 0.5], [0.2, 0.3, 0.7], [0.8, 0.4, 0.6]]) * scale
        listed = sorted(table.ravel())
        cut = len(listed) // 4
        assert stats.iqm(table) == pytest.approx(exact_mean(listed[cut:-cut]), rel=1e-9)


@pytest.mark.parametrize("p", [[5e-324, 1.0], [0.0, 0.0], [1.0], [1e-308, 0.5, 0.04], []])
def test_holm_at_the_ends(p: list[float]) -> None:
    reference = list(statsmodels.stats.multitest.multipletests(p, method="holm")[1]) if p else []
    assert list(stats.holm(np.array(p, dtype=float))) == pytest.approx(reference, abs=0)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 10**9), (10**9, 10**9), (1, 10**9), (3, 7)])
def test_clopper_pearson_is_the_beta_quantile(k: int, n: int) -> None:
    found = stats.clopper_pearson(k, n)
    low = 0.0 if k == 0 else float(scipy.stats.beta.ppf(0.025, k, n - k + 1))
    high = 1.0 if k == n else float(scipy.stats.beta.ppf(0.975, k + 1, n - k))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


ONE: dict[str, Callable[[Vector], object]] = {
    "t_interval": stats.t_interval,
    "equivalence": lambda x: stats.equivalence(x, 1.0),
    "seeds_needed": lambda x: stats.seeds_needed(x, 1.0),
    "bootstrap_interval": lambda x: stats.bootstrap_interval(x, rng=np.random.default_rng(0)),
    "welch_interval": lambda x: stats.welch_interval(x, x),
}


@pytest.mark.parametrize("value", [0.0, -0.0, 0.7, 1.7e308, 5e-324])
@pytest.mark.parametrize("name", ONE)
def test_one_value_and_equal_values_have_no_interval(name: str, value: float) -> None:
    for n in (1, 5):
        assert getattr(ONE[name]([value] * n), "low", None) is None
    assert getattr(ONE[name](np.full(5, value)), "p", None) is None


EMPTY: dict[str, Callable[[], object]] = {
    **{name: lambda call=call: call([]) for name, call in ONE.items()},  # type: ignore[misc]
    "differences": lambda: stats.differences([], []),
    "sign_flip": lambda: stats.sign_flip([]),
    "iqm": lambda: stats.iqm(np.empty((0, 0))),
    "task_means": lambda: stats.task_means(np.empty((0, 3))),
    "score_of": lambda: stats.score_of([], []),
    "score_of until": lambda: stats.score_of([5], [1.0], until=1),
    "progressed": lambda: stats.progressed([]),
    "mean_per_seed": lambda: stats.mean_per_seed([], []),
    "clopper_pearson": lambda: stats.clopper_pearson(0, 0),
    "unequal": lambda: stats.differences([1.0, 2.0], [1.0]),
    "unequal labels": lambda: stats.mean_per_seed([1], [1.0, 2.0]),
    "ragged": lambda: stats.task_means([[1.0], [1.0, 2.0]]),
    "text": lambda: stats.t_interval(["1", "2"]),
    "objects": lambda: stats.t_interval([1 << 2000, 1]),
    "complex": lambda: stats.t_interval([1j, 2.0]),
    "NaN": lambda: stats.t_interval([1.0, math.nan]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_left_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(ValueError) as refused:
        EMPTY[name]()
    assert "\n" not in str(refused.value)


def test_the_bootstrap_resamples_all_draws_at_once() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 40)
    found = stats.bootstrap_interval(values, rng=np.random.default_rng(2), draws=20_000)
    reference = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert found is not None
    error = 4 * values.std() / math.sqrt(40) * math.sqrt(0.025 * 0.975 / 20_000) / scipy.stats.norm.pdf(1.96)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=2 * error)


@pytest.mark.parametrize("kind", VECTORS)
def test_counting_ties_is_exact_at_every_size(kind: str) -> None:
    listed = [float(value) for value in np.asarray(VECTORS[kind])]
    pairs = [(i, j) for i in range(len(listed)) for j in range(i)]
    ties = sum(listed[i] == listed[j] for i, j in pairs)
    assert stats.tie_share(VECTORS[kind]) == pytest.approx(ties / len(pairs), rel=1e-12)
    assert stats.count_repeats([VECTORS[kind]]) == len(listed) - len(set(listed))


@pytest.mark.parametrize("kind", ["subnormal", "largest", "wide"])
def test_growth_and_lag_of_extremes_are_numbers_or_nothing(kind: str) -> None:
    long = np.tile(np.asarray(VECTORS[kind]), 12)
    for found in (stats.growth(long), stats.tooth_growth(long)):
        assert found is None or not math.isnan(found.ratio)
    assert stats.refresh_interval(long) is None or stats.refresh_interval(long)
    assert stats.equal_series(long, long)

"""Intervals of means, rates and evaluation noise.

An interval over seeds covers the randomness of training on the one test set that was used, and nothing else: neither
other test sets nor other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import RELATIVE_TOLERANCE, as_vector, mean_of, no_spread, scaled, unscaled

BOOTSTRAP_LEAST: Final = 10
"""Seeds below which no bootstrap interval is given.

At n = 3 the nominal 95% interval runs from the smallest to the largest difference (each end is drawn with probability
1/27 > 2.5%), which covers a symmetric mean in 1 - 2/2^3 = 75% of cases.
"""
BOOTSTRAP_DRAWS: Final = 10_000
_BOOTSTRAP_CELLS: Final = 2_000_000
_MOST_DECIMALS: Final = 6
"""Decimals up to which scores that share them may be rounded ones."""
_LEAST_CHANCE: Final = 1e-3
"""The probability from which on a grid may be one of chance."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """The mean of paired differences with its t interval; in the unit of the differences."""

    n: int
    """Units, that is pairs (one seed of one separately trained task)."""
    mean: float
    s: float | None
    """Sample standard deviation over n - 1; None at n = 1, 0.0 where all differences are equal up to rounding."""
    df: int
    """n - 1."""
    low: float | None
    """None where there is no interval: n = 1, or no spread."""
    high: float | None
    p: float | None
    """Two-sided p of the t test against 0; None where there is no interval."""
    level: float = 0.95

    @property
    def missing(self) -> str:
        """Why there is no interval, as words in a sentence; ``""``: there is one."""
        if self.low is not None:
            return ""
        return "no interval from one seed" if self.n == 1 else "no interval, as the difference is the same on all seeds"

    @property
    def holds_zero(self) -> bool:
        """Whether the interval holds 0; a missing interval excludes nothing, so it does."""
        return self.low is None or self.high is None or self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class WelchInterval:
    """The difference of two independent means with Welch's interval; in the scores' unit."""

    n_a: int
    n_b: int
    mean: float
    """Mean of ``a`` minus mean of ``b``."""
    error: float | None
    """Standard error, sqrt(s_a^2 / n_a + s_b^2 / n_b); None where an arm has one run."""
    df: float | None
    """Welch-Satterthwaite degrees of freedom."""
    low: float | None
    high: float | None
    p: float | None
    level: float = 0.95

    @property
    def missing(self) -> str:
        """Why there is no interval, as words in a sentence; ``""``: there is one."""
        if self.low is not None:
            return ""
        alone = min(self.n_a, self.n_b) == 1
        return "no interval, as an arm has one run" if alone else "no interval, as the runs of each arm score the same"


@dataclass(frozen=True, slots=True)
class BootstrapInterval:
    """A percentile interval; beside the t interval, never instead of it."""

    n: int
    """Seeds resampled."""
    low: float
    high: float
    draws: int
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Proportion:
    """k of n with its Clopper-Pearson interval."""

    k: int
    n: int
    low: float
    """Two-sided."""
    high: float
    """Two-sided."""
    still_allowed: float
    """One-sided upper bound: the largest rate that k of n does not exclude (0 of 3 still allows 63%)."""
    level: float = 0.95

    @property
    def rate(self) -> float:
        """The share k / n."""
        return self.k / self.n


def check_level(level: float) -> None:
    """Raises ValueError where a confidence level is not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"the confidence level must lie between 0 and 1, not {level}")


def t_interval(differences: npt.ArrayLike, *, level: float = 0.95) -> MeanInterval:
    """The interval mean +- t(.5 + level / 2, n - 1) s / sqrt(n) of paired differences ``(n,)`` (Student 1908).

    At n = 2 it rests on a single degree of freedom; at n = 1 there is none. Differences that are all equal give none
    either: scores are granular, and equal differences come from coarse scores or from runs that are one run under
    several labels, for which p = 0 would be the opposite of the truth.

    Raises:
        ValueError: no differences, or one that is not finite.
    """
    check_level(level)
    d = as_vector(differences, "differences")
    n = len(d)
    mean = mean_of(d)
    if n == 1:
        return MeanInterval(n, mean, None, 0, None, None, None, level)
    if no_spread(d):
        return MeanInterval(n, mean, 0.0, n - 1, None, None, None, level)
    from scipy import stats

    (unit,), exponent = scaled(d)
    test = stats.ttest_1samp(unit, 0.0)
    interval = test.confidence_interval(level)
    low, high = unscaled(float(interval.low), exponent), unscaled(float(interval.high), exponent)
    s = unscaled(float(np.std(unit, ddof=1)), exponent)
    return MeanInterval(n, mean, s, n - 1, low, high, float(test.pvalue), level)


def welch_interval(a: npt.ArrayLike, b: npt.ArrayLike, *, level: float = 0.95) -> WelchInterval:
    """Welch's interval of the difference of the means of two independent arms ``(n_a,)`` and ``(n_b,)``.

    None where an arm has a single run or neither has spread (Welch 1947, the degrees of freedom of Satterthwaite).

    Raises:
        ValueError: an arm is empty or holds a value that is not finite.
    """
    check_level(level)
    left, right = as_vector(a, "a"), as_vector(b, "b")
    (x, y), exponent = scaled(left, right)
    mean = unscaled(mean_of(x) - mean_of(y), exponent)
    n_a, n_b = len(x), len(y)
    if min(n_a, n_b) < 2:
        return WelchInterval(n_a, n_b, mean, None, None, None, None, None, level)
    if max(np.ptp(x), np.ptp(y)) <= RELATIVE_TOLERANCE:
        return WelchInterval(n_a, n_b, mean, 0.0, None, None, None, None, level)
    from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

    arms = CompareMeans(DescrStatsW(x), DescrStatsW(y))
    _, p, df = arms.ttest_ind(usevar="unequal")
    low, high = (unscaled(float(b), exponent) for b in arms.tconfint_diff(1 - level, usevar="unequal"))
    error = unscaled(float(arms.std_meandiff_separatevar), exponent)
    return WelchInterval(n_a, n_b, mean, error, float(df), low, high, float(p), level)


def percentile_bootstrap(
    samples: Floats,
    statistic: Callable[[Floats], Floats],
    *,
    rng: np.random.Generator,
    draws: int = BOOTSTRAP_DRAWS,
    level: float = 0.95,
) -> tuple[float, float]:
    """The percentile interval of a statistic of ``samples`` ``(rows, seeds)``, the seeds resampled jointly.

    ``statistic`` takes ``(rows, ..., seeds)`` and reduces rows and seeds to ``(...)``. The sizes are not judged here;
    `bootstrap_interval` and `pth_tracker.stats.iqm_interval` do that.
    """
    check_level(level)
    from scipy import stats

    def of_rows(*rows: Floats, axis: int = -1) -> Floats:
        return statistic(np.stack([np.moveaxis(np.asarray(row), axis, -1) for row in rows]))

    result = stats.bootstrap(
        tuple(samples),
        of_rows,
        n_resamples=draws,
        batch=max(1, _BOOTSTRAP_CELLS // samples.size),
        vectorized=True,
        paired=True,
        confidence_level=level,
        method="percentile",
        rng=rng,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def bootstrap_interval(
    differences: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    draws: int = BOOTSTRAP_DRAWS,
    level: float = 0.95,
) -> BootstrapInterval | None:
    """The percentile interval of the mean paired difference, seeds resampled jointly, or None.

    A resampled seed takes its difference along, so that both arms move together (Efron 1979). It never decides. None
    below 10 seeds, and without spread as in `t_interval`.

    Raises:
        ValueError: no differences, or one that is not finite.
    """
    d = as_vector(differences, "differences")
    if len(d) < BOOTSTRAP_LEAST or no_spread(d):
        return None
    (unit,), exponent = scaled(d)
    low, high = percentile_bootstrap(unit[None], lambda x: np.mean(x[0], axis=-1), rng=rng, draws=draws, level=level)
    return BootstrapInterval(len(d), unscaled(low, exponent), unscaled(high, exponent), draws, level)


def clopper_pearson(k: int, n: int, *, level: float = 0.95) -> Proportion:
    """The share k of n with its exact binomial interval (Clopper and Pearson 1934).

    Raises:
        ValueError: n is not positive, or k is not between 0 and n.
    """
    check_level(level)
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no count: n must be positive and k between 0 and n")
    from scipy import stats

    two_sided = stats.binomtest(k, n).proportion_ci(level, method="exact")
    above = stats.binomtest(k, n, alternative="less").proportion_ci(level, method="exact")
    return Proportion(k, n, float(two_sided.low), float(two_sided.high), float(above.high), level)


def rate_error(rate: float, items: int, *, seeds: int = 1) -> float:
    """The binomial standard error sqrt(p (1 - p) / (N n)) of a mean accuracy over ``seeds`` runs on N items each.

    Raises:
        ValueError: the rate is no rate, or a count is not positive.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"a rate lies between 0 and 1, not {rate}")
    if items < 1 or seeds < 1:
        raise ValueError(f"items and seeds must be positive, not {items} and {seeds}")
    return math.sqrt(rate * (1 - rate) / (items * seeds))


def difference_error(rate: float, items: int, *, seeds: int) -> float:
    """The evaluation error sqrt(2 p (1 - p) / (N n)) of a mean difference over n seeds, each arm scored on N items.

    It takes the two arms' evaluations as independent; on the same items they are positively correlated, so it errs
    on the side of more noise. ``rate`` is the mean score of both arms, as a share. ValueError as in `rate_error`.
    """
    return math.sqrt(2) * rate_error(rate, items, seeds=seeds)


def items_from_scores(scores: npt.ArrayLike, *, decimals: int | None = None, largest: int = 20_000) -> int | None:
    """The number N of evaluation items read off the grid k / N on which accuracies ``(m,)`` lie, or None.

    N is the smallest common denominator of all scores up to rounding (float64, else float32, else half a unit of the
    last of ``decimals``). It is given only where chance would hardly produce one: over all N' <= N, the probability
    that scores off any grid would fit, (2 N' tolerance)^(distinct scores), must sum to less than 0.001. Where all
    scores have d decimals and N divides 10^d, the rounding alone may have made the grid: then the probability that
    rounded scores would fit, (N / 10^d)^(distinct scores), must be below 0.001 too, which no N = 10^d can be. Items
    of which only a divisor can be seen give that divisor, which overstates the error.

    Raises:
        ValueError: no scores, one that is not finite, or one outside [0, 1].
    """
    x = as_vector(scores, "scores")
    if x.min() < 0 or x.max() > 1:
        raise ValueError("accuracies lie between 0 and 1: divide percentages by 100")
    distinct = np.unique(x[(x > 0) & (x < 1)])[:64]
    if len(distinct) == 0:
        return None
    grid = np.arange(2, largest + 1, dtype=np.float64)
    tolerances = (4 * 2.0**-53, 2 * 2.0**-24) if decimals is None else (0.5 * 10.0**-decimals * (1 + 1e-9),)
    for tolerance in tolerances:
        fits = grid
        for score in distinct:
            counts = fits * score
            fits = fits[np.abs(counts - np.rint(counts)) <= tolerance * fits]
        if len(fits):
            chance = np.minimum(1.0, 2 * tolerance * grid[grid <= fits[0]]) ** len(distinct)
            if chance.sum() < _LEAST_CHANCE:
                return None if _from_rounding(distinct, int(fits[0])) else int(fits[0])
    return None


def _from_rounding(scores: Floats, items: int) -> bool:
    """Whether distinct scores ``(m,)`` may lie on the grid of ``items`` only because they were rounded to decimals."""
    for decimals in range(1, _MOST_DECIMALS + 1):
        if (np.abs(scores - np.round(scores, decimals)) <= 2.0**-24 * scores).all():
            steps: int = 10**decimals
            return steps % items == 0 and (items / steps) ** len(scores) >= _LEAST_CHANCE
    return False


def pooled_order(a: npt.ArrayLike, b: npt.ArrayLike) -> int:
    """1 where every run of ``a`` scores above every run of ``b``, -1 the other way round, else 0.

    Raises:
        ValueError: an arm is empty or holds a value that is not finite.
    """
    left, right = as_vector(a, "a"), as_vector(b, "b")
    return int(left.min() > right.max()) - int(right.min() > left.max())

"""What a paired comparison may say: tests, equivalence, the three words, and the seeds it would take."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import RELATIVE_TOLERANCE, as_vector, no_spread, scaled, unscaled

ALPHA: Final = 0.05
SIGN_FLIP_EXACT: Final = 16
"""Seeds up to which all 2^n sign assignments are counted."""
SIGN_FLIP_DRAWS: Final = 100_000
_SIGN_FLIP_CELLS: Final = 2_000_000
SEEDS_LEAST: Final = 4
"""Seeds below which s is too uncertain to plan with."""
SEEDS_MOST: Final = 1_000_000


class Verdict(StrEnum):
    """The only three words for a comparison."""

    BETTER = "better"
    """The Holm-adjusted p of the t test is below 0.05; which arm, the sign of the mean says."""
    TIE = "tie"
    """The 90% interval lies inside the margin that was declared."""
    UNDECIDED = "undecided"
    """Neither: no significance is never a tie."""


@dataclass(frozen=True, slots=True)
class SignFlip:
    """The sign-flip test of paired differences against symmetry around 0."""

    p: float
    """Two-sided: the share of sign assignments with |sum s d| at least as large as observed."""
    smallest_p: float
    """The smallest two-sided p that n differences with z zeros can reach, 2^(1 - n + z)."""
    n: int
    zeros: int
    draws: int | None
    """Random assignments drawn; None where all 2^n were counted."""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Two one-sided tests of the mean difference against a declared margin."""

    margin: float
    p: float
    """The larger of the two one-sided p values."""
    low: float
    """Of the 90% interval."""
    high: float
    equivalent: bool
    """p < 0.05, which is to say that the 90% interval lies inside the margin."""


@dataclass(frozen=True, slots=True)
class SeedsNeeded:
    """How many paired seeds would show an effect with power 0.8 at two-sided 0.05."""

    effect: float
    """In the unit of the differences."""
    low: int
    """For the smaller bound of s; `SEEDS_MOST` stands for that many or more."""
    high: int
    """For the larger bound of s."""
    s_low: float
    """80% chi-square bounds of the standard deviation of the differences."""
    s_high: float


def sign_flip(differences: npt.ArrayLike, *, rng: np.random.Generator | None = None) -> SignFlip:
    """The sign-flip test of paired differences ``(n,)`` (Fisher's randomisation test, 1935).

    All 2^n assignments up to n = 16, beyond that 100,000 draws with p = (k + 1) / (B + 1) (Phipson and Smyth 2010).
    A sum within `RELATIVE_TOLERANCE` of the observed one counts as equal to it, and a difference within it of 0 as 0.

    Raises:
        ValueError: no differences, one that is not finite, or more than 16 without ``rng``.
    """
    d = as_vector(differences, "differences")
    (unit,), _ = scaled(d)
    n = len(unit)
    zeros = int(np.count_nonzero(np.abs(unit) <= RELATIVE_TOLERANCE * np.abs(unit).max()))
    smallest = min(1.0, 2.0 ** (1 - n + zeros))
    least = abs(float(unit.sum())) - RELATIVE_TOLERANCE * float(np.abs(unit).sum())
    if n <= SIGN_FLIP_EXACT:
        sums = np.zeros(1)
        for value in unit:
            sums = np.concatenate((sums + value, sums - value))
        return SignFlip(float(np.mean(np.abs(sums) >= least)), smallest, n, zeros, None)
    if rng is None:
        raise ValueError(f"{n} differences have too many sign assignments to count: give rng to draw from them")
    reached = 0
    chunk = max(1, _SIGN_FLIP_CELLS // n)
    for start in range(0, SIGN_FLIP_DRAWS, chunk):
        size = min(chunk, SIGN_FLIP_DRAWS - start)
        signs = 2.0 * rng.integers(0, 2, size=(size, n), dtype=np.int8) - 1.0
        reached += int(np.count_nonzero(np.abs(signs @ unit) >= least))
    return SignFlip((reached + 1) / (SIGN_FLIP_DRAWS + 1), smallest, n, zeros, SIGN_FLIP_DRAWS)


def holm(p_values: npt.ArrayLike) -> Floats:
    """Holm's (1979) adjusted p values ``(m,)`` of a family of comparisons, in the order given; of none, none.

    A comparison of the family that has no p value (n = 1, no spread) is to be given as 1, not left out.

    Raises:
        ValueError: a value that is no p value.
    """
    p = as_vector(p_values, "p_values", least=0)
    if len(p) == 0:
        return p
    if p.min() < 0 or p.max() > 1:
        raise ValueError("p values lie between 0 and 1")
    from statsmodels.stats.multitest import multipletests

    # It collects garbage at every call, which takes a third of a second in a large process; frozen objects are skipped.
    gc.freeze()
    try:
        return np.asarray(multipletests(p, method="holm")[1], dtype=np.float64)
    finally:
        gc.unfreeze()


def equivalence(differences: npt.ArrayLike, margin: float) -> Equivalence | None:
    """Two one-sided t tests of paired differences ``(n,)`` within +-margin (Schuirmann 1987), or None.

    None at n = 1 and where the differences have no spread, as in `pth_tracker.stats.t_interval`.

    Raises:
        ValueError: no differences, one that is not finite, or a margin that is not positive.
    """
    d = as_vector(differences, "differences")
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"a margin is positive, in the unit of the scores, not {margin}")
    if len(d) < 2 or no_spread(d):
        return None
    from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

    (unit,), exponent = scaled(d)
    # Far beyond any t quantile, and still safe to divide by the standard error.
    bound = min(unscaled(margin, -exponent), 2.0**500)
    p = float(ttost_paired(unit, np.zeros_like(unit), -bound, bound)[0])
    low, high = DescrStatsW(unit).tconfint_mean(2 * ALPHA)
    return Equivalence(margin, p, unscaled(float(low), exponent), unscaled(float(high), exponent), p < ALPHA)


def verdict(adjusted_p: float | None, equivalence: Equivalence | None = None) -> Verdict:
    """The word for a comparison, from the Holm-adjusted p of its t test and the test of its declared margin, if any.

    Raises:
        ValueError: ``adjusted_p`` is no p value (None: there is none).
    """
    if adjusted_p is not None and not 0 <= adjusted_p <= 1:
        raise ValueError(f"an adjusted p value lies between 0 and 1, not {adjusted_p}")
    if adjusted_p is not None and adjusted_p < ALPHA:
        return Verdict.BETTER
    return Verdict.TIE if equivalence is not None and equivalence.equivalent else Verdict.UNDECIDED


def seeds_needed(differences: npt.ArrayLike, effect: float, *, power: float = 0.8) -> SeedsNeeded | None:
    """The paired seeds that would show a declared margin or effect, as a range over the 80% bounds of s; or None.

    s of the differences ``(n,)`` has the bounds s sqrt((n - 1) / chi2(.9 and .1, n - 1)); for each, the smallest n
    whose two-sided paired t test at 0.05 has the power. None below 4 differences and where they have no spread.

    Raises:
        ValueError: no differences, one that is not finite, an effect that is not finite or 0, or an impossible power.
    """
    d = as_vector(differences, "differences")
    if not math.isfinite(effect) or effect == 0:
        raise ValueError(f"the effect to show must be finite and not 0, not {effect}")
    if not ALPHA < power < 1:
        raise ValueError(f"the power must lie between {ALPHA} and 1, not {power}")
    if len(d) < SEEDS_LEAST or no_spread(d):
        return None
    from scipy import stats

    (unit,), exponent = scaled(d)
    df = len(d) - 1
    s = float(np.std(unit, ddof=1))
    bounds = [s * math.sqrt(df / float(stats.chi2.ppf(q, df))) for q in (0.9, 0.1)]
    size = unscaled(abs(effect), -exponent)
    low, high = (_seeds_for(size / bound, power) for bound in bounds)
    return SeedsNeeded(effect, low, high, unscaled(bounds[0], exponent), unscaled(bounds[1], exponent))


def _seeds_for(standardised: float, power: float) -> int:
    # TTestPower.solve_power stops at its starting bracket for large effects (2.0 where 3 are needed), so the whole
    # numbers are searched; the power grows with n.
    low, high = 1, 2
    while high < SEEDS_MOST and _power(standardised, high) < power:
        low, high = high, 2 * high
    if high >= SEEDS_MOST and _power(standardised, SEEDS_MOST) < power:
        return SEEDS_MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(standardised, middle) >= power else (middle, high)
    return min(high, SEEDS_MOST)


def _power(standardised: float, n: int) -> float:
    from statsmodels.stats.power import TTestPower

    # Past a non-centrality of 100 the power is 1 to the last digit even on one degree of freedom and alpha 0.05
    # (the critical value is 12.7), and the far tail underflows to NaN somewhat later.
    noncentrality = standardised * math.sqrt(n)
    if noncentrality > 100:
        return 1.0
    value = float(TTestPower().power(standardised, n, ALPHA, alternative="two-sided"))
    if math.isnan(value):
        value = float(TTestPower().power(standardised, n, ALPHA / 2, alternative="larger"))
    return 1.0 if math.isnan(value) else value

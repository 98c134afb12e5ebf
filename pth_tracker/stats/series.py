"""Series of one run, update by update: window medians, sampler lag and divergence, equality as printed.

Where a function here takes *logged* values, the caller leaves out updates at which nothing was logged: an entry that
is not finite is then a NaN or infinity that the trainer really logged, which is evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import as_vector, same_length, scaled, unscaled

WINDOW: Final = 5
"""Updates in a window for medians and means of sampler lag."""
SORTED_AT_ONCE: Final = 1 << 20
"""Values of all windows together up to which sorting each is quickest."""
KL_TOLERANCE: Final = 0.05
"""Nats per token."""
GROWTH: Final = 5.0
"""Largest over smallest window median from which a series is said to grow."""
DIVERGED_GROWTH: Final = 10.0
DIVERGED_START: Final = 1e-4
"""The first quarter's level counts as at least this: bf16 noise alone is 1e-4 to 1e-3."""
DIVERGED_LEVEL: Final = 0.01
NONFINITE_UPDATES: Final = 2
LEAST_TEETH: Final = 4
"""Refreshes from which a saw-tooth is told to be regular."""

Estimator: TypeAlias = Literal["k1", "k2", "k3", "exact", "abs"]


@dataclass(frozen=True, slots=True)
class Growth:
    """The smallest and the largest window median of a series."""

    smallest: float
    largest: float
    ratio: float
    """largest / smallest; infinite from 0 or to infinity, 1 where both are equal."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the learner's policy was from the sampler's, and whether that is lag."""

    updates: int
    """Values judged."""
    above: int
    """Values above the tolerance, those that are not finite included."""
    needed: float
    """max(3, 5% of the values)."""
    nonfinite: int
    growth: Growth | None
    """None below 5 values."""
    measured: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """The level of a sampler-learner divergence in the last quarter of a run against the first."""

    first: float | None
    """Smallest window median of the first quarter; None where a quarter holds no window."""
    last: float | None
    ratio: float | None
    """last / max(first, 1e-4)."""
    nonfinite: int
    judged: bool
    """Whether both quarters hold a complete refresh interval, or two values were not finite."""
    diverged: bool


def window_medians(values: npt.ArrayLike, width: int = WINDOW) -> Floats:
    """Running medians over ``width`` neighbours, ``(n - width + 1,)``, of ``values`` ``(n,)``; empty if n < width.

    Raises:
        ValueError: a width below 1, or NaN (give infinity for what was logged as not finite).
    """
    x = as_vector(values, "values", least=0, finite=False)
    if np.isnan(x).any():
        raise ValueError("values hold NaN, which has no place in an order: leave it out or give infinity")
    low, high = _middle(x, width)
    # Halved before they are added, or two values near the largest float64 overflow; equal ones stay exact.
    medians: Floats = np.where(low == high, low, low / 2 + high / 2)
    return medians


def _middle(x: Floats, width: int) -> tuple[Floats, Floats]:
    """The two middle values of each window (one twice, where the width is odd)."""
    windows = _windows(x, width)
    ranks = (width - 1) // 2, width // 2
    if windows.size <= SORTED_AT_ONCE:
        ordered = np.sort(windows, axis=-1)
        return ordered[:, ranks[0]], ordered[:, ranks[1]]
    from scipy import ndimage  # which keeps one window in order from place to place, and takes a while to import

    inner = slice(width // 2, width // 2 + len(windows))
    low, high = (ndimage.rank_filter(x, rank, size=width)[inner] for rank in ranks)
    return low, high


def window_means(values: npt.ArrayLike, width: int = WINDOW) -> Floats:
    """Running means over ``width`` neighbours, ``(n - width + 1,)``; empty if n < width.

    A window that holds a value that is not finite is NaN. ValueError for a width below 1.
    """
    x = as_vector(values, "values", least=0, finite=False)
    with np.errstate(invalid="ignore"):
        means: Floats = (_windows(x, width) / width).sum(axis=-1)
    means[~np.isfinite(means)] = np.nan
    return means


def _windows(x: Floats, width: int) -> Floats:
    if width < 1:
        raise ValueError(f"a window holds at least one value, not {width}")
    if len(x) < width:
        return np.empty((0, width))
    windows: Floats = np.lib.stride_tricks.sliding_window_view(x, width)
    return windows


def growth(values: npt.ArrayLike, width: int = WINDOW) -> Growth | None:
    """The growth of the magnitude of logged ``values`` ``(n,)`` between any two windows; None if n < width.

    First and last are no guide, because a weight refresh every N updates makes a saw-tooth. A value that is not
    finite counts as infinite.
    """
    medians = window_medians(_magnitudes(values), width)
    if len(medians) == 0:
        return None
    smallest, largest = float(medians.min()), float(medians.max())
    return Growth(smallest, largest, _ratio(largest, smallest))


def _magnitudes(values: npt.ArrayLike) -> Floats:
    x = np.abs(as_vector(values, "values", least=0, finite=False))
    return np.where(np.isfinite(x), x, np.inf)


def _ratio(top: float, bottom: float) -> float:
    if top == bottom:
        return 1.0
    if bottom == 0 or math.isinf(top):
        return math.inf
    return top / bottom if bottom > 1e-300 or top < 1 else math.inf


def lag_in_nats(values: npt.ArrayLike, estimator: Estimator) -> Floats:
    """A logged sampler-learner divergence ``(n,)`` as nats per token, to be held against one tolerance.

    k2, k3 and exact KL stand as they are; signed k1 becomes the magnitude of its 5-update window means ``(n - 4,)``,
    since single values of it are noise of either sign; a mean |log p - log q| of m becomes m * m / 2 (the second-order
    expansion of the KL, Schulman's k2). Values that are not finite stay so.

    Raises:
        ValueError: another estimator.
    """
    x = as_vector(values, "values", least=0, finite=False)
    if estimator in ("k2", "k3", "exact"):
        return x
    if estimator == "k1":
        return np.abs(window_means(x))
    if estimator == "abs":
        with np.errstate(over="ignore", under="ignore"):
            return x * x / 2
    raise ValueError(f"there is no conversion from the estimator {estimator!r} to nats per token")


def lag_measured(
    values: npt.ArrayLike,
    *,
    tolerance: float | None = KL_TOLERANCE,
    declared: bool = False,
    estimator: Estimator = "k3",
) -> Lag:
    """Whether logged values ``(n,)`` of a sampler-learner divergence show lag.

    Above ``tolerance`` (nats per token) on at least max(3, 5%) of the values, or not finite on two; and either the
    lag is ``declared`` or a window median grew 5-fold (in a saw-tooth too short for windows, its teeth; see
    `tooth_growth`). ``tolerance=None`` is for a quantity without a conversion (``rollout_probs_diff``), where the
    growth of windows alone decides. Weights logged after truncation never measure lag.

    Raises:
        ValueError: a tolerance that is not positive, or an estimator that cannot be converted.
    """
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"a tolerance is positive, in nats per token, not {tolerance}")
    logged = as_vector(values, "values", least=0, finite=False)
    nonfinite = int(np.count_nonzero(~np.isfinite(logged)))
    grown = growth(logged)
    grows = grown is not None and grown.ratio >= GROWTH
    if tolerance is None:
        return Lag(len(logged), 0, 0.0, nonfinite, grown, grows)
    nats = lag_in_nats(logged, estimator)
    if not grows and estimator != "k1" and (teeth := tooth_growth(nats)) is not None:
        grown, grows = teeth, True
    above = int(np.count_nonzero(~(nats <= tolerance)))
    needed = max(3.0, 0.05 * len(nats))
    far = above >= needed or nonfinite >= NONFINITE_UPDATES
    return Lag(len(nats), above, needed, nonfinite, grown, far and (declared or grows))


def tooth_growth(values: npt.ArrayLike) -> Growth | None:
    """The growth within the teeth of a regular saw-tooth of logged ``values`` ``(n,)``; None where they are none.

    A refresh every few updates is shorter than a window, whose median then hides it. Regular is a 5-fold fall from one
    value to the next at least four times, always the same number of updates apart (give or take one, for an update
    that logged nothing), from the start of the series to its end. Stationary noise does not come to that: 11 of
    40,000 log-normal series of 20 to 200 values with a spread of 0.3 to 1.5 did.
    """
    x = _magnitudes(values)
    if not np.isfinite(x).all():
        return None
    falls = np.flatnonzero(x[1:] <= x[:-1] / GROWTH) + 1
    if len(falls) < LEAST_TEETH:
        return None
    apart = np.diff(falls)
    longest = int(apart.max())
    if longest - int(apart.min()) > 1 or falls[0] > longest or len(x) - falls[-1] > longest:
        return None
    (units,), exponent = scaled(x)
    bottom, top = (unscaled(float(np.median(units[places])), exponent) for places in (falls, falls - 1))
    return Growth(bottom, top, _ratio(top, bottom))


def refresh_interval(values: npt.ArrayLike) -> int | None:
    """The refresh interval read off a saw-tooth of logged ``values`` ``(n,)``, in updates; None where nothing drops.

    A drop is where the median of three values is at most half of that of the three before. The interval is the
    longest stretch without one, the start and the end of the run included, so that it is never understated.
    """
    medians = window_medians(_magnitudes(values), 3)
    if len(medians) < 4:
        return None
    before, after = medians[:-3], medians[3:]
    drops = np.isfinite(after) & (after <= before / 2) & (before > 0)
    starts = np.flatnonzero(drops & ~np.concatenate(([False], drops[:-1]))) + 3
    if len(starts) == 0:
        return None
    return int(np.diff(np.concatenate(([0], starts, [len(medians) + 2]))).max())


def sampler_divergence(values: npt.ArrayLike, *, interval: int | None = None) -> Divergence:
    """Whether the floor of logged values ``(n,)`` (nats per token) rose from the first quarter to the last.

    Diverged: two values not finite, or the smallest 5-update window median of the last quarter is 10 times that of
    the first (at least 1e-4) and above 0.01. A saw-tooth that returns to its floor is lag, so both quarters must hold
    a complete refresh ``interval`` (updates; None: read off the series), which takes interval + 4 updates each.
    """
    x = _magnitudes(values)
    nonfinite = int(np.count_nonzero(np.isinf(x)))
    period = interval if interval is not None else (refresh_interval(x) or 1)
    quarter = len(x) // 4
    broken = nonfinite >= NONFINITE_UPDATES
    if quarter < WINDOW:
        return Divergence(None, None, None, nonfinite, broken, broken)
    first = float(window_medians(x[:quarter]).min())
    last = float(window_medians(x[-quarter:]).min())
    ratio = _ratio(last, max(first, DIVERGED_START))
    complete = quarter >= period + WINDOW - 1
    risen = complete and ratio >= DIVERGED_GROWTH and last > DIVERGED_LEVEL
    return Divergence(first, last, ratio, nonfinite, complete or broken, risen or broken)


def equal_points(
    a: npt.ArrayLike, b: npt.ArrayLike, *, decimals_a: int | None = None, decimals_b: int | None = None
) -> npt.NDArray[np.bool_]:
    """Where two series ``(n,)`` are one within what was printed, ``(n,)``.

    Equal within the larger of half a unit in the last printed place and 2 float32 ulp of the largest value of both.
    Series printed with different numbers of decimals may be apart by half a unit of either together. ``None`` decimals
    means full precision. NaN equals NaN, and an infinity equals itself.

    Raises:
        ValueError: unequal lengths, or no values (nothing would be equal to nothing).
    """
    left, right = as_vector(a, "a", finite=False), as_vector(b, "b", finite=False)
    same_length(left, right, ("a", "b"))
    places = {decimals_a, decimals_b} - {None}
    printed = sum(0.5 * 10.0**-place for place in places if place is not None)
    finite = np.isfinite(left) & np.isfinite(right)
    magnitude = np.where(finite, np.maximum(np.abs(left), np.abs(right)), 0.0).max()
    # A float32 in [2**(e-1), 2**e) has neighbours 2**(e-24) away, the subnormal ones 2**-149.
    ulp = math.ldexp(1.0, max(int(np.frexp(magnitude)[1]) - 24, -149))
    rounding = printed * 1e-9 + 4 * float(np.spacing(magnitude)) if printed else 0.0
    tolerance = max(printed + rounding, 2 * ulp)
    with np.errstate(over="ignore", invalid="ignore"):
        close = np.abs(left - right) <= tolerance
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.asarray(np.where(finite, close, same))


def equal_series(
    a: npt.ArrayLike, b: npt.ArrayLike, *, decimals_a: int | None = None, decimals_b: int | None = None
) -> bool:
    """Whether two series ``(n,)`` are equal at every point, as `equal_points` says."""
    return bool(equal_points(a, b, decimals_a=decimals_a, decimals_b=decimals_b).all())


def falls_and_stays(lengths: npt.ArrayLike, *, share: float = 0.8) -> bool | None:
    """Whether a positive quantity (response length, tokens) fell by ``share`` of its early median and stayed there.

    Early is the first and late the last tenth of the values ``(n,)``, at least 5 each; every late value must lie below
    (1 - share) times the early median. None below 10 values, where the two would overlap.

    Raises:
        ValueError: a value that is not finite, or a share outside 0 to 1.
    """
    x = as_vector(lengths, "lengths", least=0)
    if not 0 < share < 1:
        raise ValueError(f"a share lies between 0 and 1, not {share}")
    width = max(WINDOW, math.ceil(len(x) / 10))
    if len(x) < 2 * width:
        return None
    return bool(np.all(x[-width:] < (1 - share) * float(window_medians(x[:width], width)[0])))

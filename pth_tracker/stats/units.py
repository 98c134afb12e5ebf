"""What counts as one unit, and how scores are averaged before seeds are compared.

A *unit* is one trained pair: a task that was separately trained, and a seed. Several benchmarks of one checkpoint are
one unit; counting them as several turns a nominal 5% of false positives into about 41%. A seed that was run twice
counts once, as the mean of its progressed runs, never as the best or the last.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import as_labels, as_table, as_vector, mean_of, same_length, scaled, unscaled
from pth_tracker.stats.intervals import BOOTSTRAP_DRAWS, BOOTSTRAP_LEAST, percentile_bootstrap

IQM_TASKS: Final = 5
IQM_SEEDS: Final = 3
PROGRESSED_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two arms' scores on their common seeds, and the seeds of one arm only."""

    seeds: tuple[Hashable, ...]
    """Common, in the order of the first arm."""
    a: Floats
    """``(n,)``."""
    b: Floats
    """``(n,)``."""
    only_a: tuple[Hashable, ...]
    only_b: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Iqm:
    """An interquartile mean over tasks and seeds, with a joint bootstrap interval from 10 seeds."""

    value: float
    tasks: int
    seeds: int
    low: float | None
    high: float | None
    draws: int | None
    level: float = 0.95


def benchmark_means(scores: npt.ArrayLike, scale: npt.ArrayLike | None = None) -> Floats:
    """One score a run, ``(runs,)``: the mean over the benchmarks of ``scores`` ``(runs, benchmarks)``.

    ``scale`` ``(benchmarks,)`` divides each benchmark first, to bring them to the declared common scale (100 for one
    in per cent).

    Raises:
        ValueError: a table that is empty, ragged or not finite, or a scale that does not fit it or is not positive.
    """
    table = as_table(scores, "scores")
    if scale is not None:
        divisor = as_vector(scale, "scale")
        if divisor.shape != table.shape[1:] or divisor.min() <= 0:
            raise ValueError(f"scale must be one positive number for each of the {table.shape[1]} benchmarks")
        table = table / divisor
    return np.array([mean_of(row) for row in table])


def mean_per_seed(seeds: Sequence[Hashable], scores: npt.ArrayLike) -> tuple[tuple[Hashable, ...], Floats]:
    """Each seed once, in the order of first appearance, with the mean of its runs' scores ``(seeds,)``.

    Raises:
        ValueError: no runs, not one seed a score, or a score that is not finite.
    """
    x = as_vector(scores, "scores")
    groups: dict[Hashable, list[float]] = {}
    for seed, score in zip(as_labels(seeds, x, "seeds"), x):
        groups.setdefault(seed, []).append(float(score))
    return tuple(groups), np.array([mean_of(np.array(group)) for group in groups.values()])


def pair_by_seed(
    seeds_a: Sequence[Hashable], scores_a: npt.ArrayLike, seeds_b: Sequence[Hashable], scores_b: npt.ArrayLike
) -> Pairing:
    """Two arms paired by seed, repeated seeds averaged first; ValueError as in `mean_per_seed`."""
    names_a, means_a = mean_per_seed(seeds_a, scores_a)
    names_b, means_b = mean_per_seed(seeds_b, scores_b)
    in_a, in_b = dict(zip(names_a, means_a)), dict(zip(names_b, means_b))
    common = tuple(seed for seed in names_a if seed in in_b)
    return Pairing(
        common,
        np.array([in_a[seed] for seed in common], dtype=np.float64),
        np.array([in_b[seed] for seed in common], dtype=np.float64),
        tuple(seed for seed in names_a if seed not in in_b),
        tuple(seed for seed in names_b if seed not in in_a),
    )


def progressed(last_updates: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which runs of an arm, ``(runs,)``, reached 90% of the arm's median last update; ValueError for no runs."""
    last = as_vector(last_updates, "last_updates")
    return np.asarray(last >= PROGRESSED_SHARE * np.median(last))


def score_of(
    updates: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    at: Literal["last", "best", "mean"] = "last",
    window: int = 0,
    until: float | None = None,
    higher_is_better: bool = True,
) -> float:
    """A run's score from its curve ``(n,)`` at increasing ``updates`` ``(n,)``.

    ``last`` is the value at the last update, ``mean`` the mean over the last ``window`` updates (not values), ``best``
    the best value: the larger, the more evaluations there are (+0.71 sd for 20 against 5), so only equally many may
    be compared. ``until`` cuts the curve, so that two arms are scored on one grid.

    Raises:
        ValueError: unequal lengths, values that are not finite, updates not increasing, nothing left, or no window.
    """
    x, y = as_vector(updates, "updates"), as_vector(values, "values")
    same_length(x, y, ("updates", "values"))
    if np.any(np.diff(x) <= 0):
        raise ValueError("updates must increase")
    if until is not None:
        x, y = x[x <= until], y[x <= until]
        if len(y) == 0:
            raise ValueError(f"there is no value up to update {until}")
    if at == "best":
        return float(y.max() if higher_is_better else y.min())
    if at == "last":
        return float(y[-1])
    if window < 1:
        raise ValueError(f"a mean needs a window of at least one update, not {window}")
    return mean_of(y[x > x[-1] - window])


def task_means(scores: npt.ArrayLike) -> Floats:
    """The mean over tasks per seed, ``(seeds,)``, of ``scores`` ``(tasks, seeds)``; its mean is the mean over both.

    Raises:
        ValueError: a table that is empty, ragged (a seed missing in a task) or not finite.
    """
    return np.array([mean_of(column) for column in as_table(scores, "scores").T])


def iqm(scores: npt.ArrayLike) -> float:
    """The interquartile mean of ``scores`` ``(tasks, seeds)``, that of the middle half of all (Agarwal et al. 2021).

    A quarter of the values, rounded down, is left out on either side. ValueError as in `task_means`.
    """
    (unit,), exponent = scaled(as_table(scores, "scores"))
    return unscaled(float(_iqm(unit)), exponent)


def _iqm(stacked: Floats) -> Floats:
    from scipy import stats

    flat = np.moveaxis(stacked, 0, -1)
    flat = flat.reshape(*flat.shape[:-2], -1)
    return np.asarray(stats.trim_mean(flat, 0.25, axis=-1), dtype=np.float64)


def iqm_interval(
    a: npt.ArrayLike,
    b: npt.ArrayLike | None = None,
    *,
    rng: np.random.Generator,
    draws: int = BOOTSTRAP_DRAWS,
    level: float = 0.95,
) -> Iqm | None:
    """The IQM of ``a`` ``(tasks, seeds)``, or its IQM minus that of ``b``; None below 5 tasks or 3 seeds.

    Seeds are resampled jointly over tasks and arms, since column j of every row is one seed. As for any bootstrap
    here, the interval is given from 10 seeds on, and never decides.

    Raises:
        ValueError: a table that is empty, ragged or not finite, or two of different shapes.
    """
    tables = [as_table(a, "a")] if b is None else [as_table(a, "a"), as_table(b, "b")]
    same_length(tables[0], tables[-1], ("a", "b"))
    tasks, seeds = tables[0].shape
    if tasks < IQM_TASKS or seeds < IQM_SEEDS:
        return None
    units, exponent = scaled(*tables)
    statistic: Callable[[Floats], Floats] = _iqm if b is None else lambda x: _iqm(x[:tasks]) - _iqm(x[tasks:])
    rows = np.concatenate(units)
    value = unscaled(float(statistic(rows)), exponent)
    if seeds < BOOTSTRAP_LEAST:
        return Iqm(value, tasks, seeds, None, None, None, level)
    low, high = percentile_bootstrap(rows, statistic, rng=rng, draws=draws, level=level)
    return Iqm(value, tasks, seeds, unscaled(low, exponent), unscaled(high, exponent), draws, level)

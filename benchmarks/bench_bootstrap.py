"""How long a bootstrap interval takes, ours against a plain `scipy.stats.bootstrap` call, by size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.stats
from table import Row

from pth_tracker import stats

DRAWS = 10_000
FULL = (10, 30, 100, 300)
QUICK = (10, 30)


Interval = Callable[[np.ndarray, int], tuple[float, float]]


def best_of(times: int, interval: Interval, values: np.ndarray, draws: int) -> float:
    """The shortest of several times, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        interval(values, draws)
        taken.append(time.perf_counter() - start)
    return min(taken)


def ours(values: np.ndarray, draws: int) -> tuple[float, float]:
    found = stats.bootstrap_interval(values, rng=np.random.default_rng(0), draws=draws)
    assert found is not None
    return found.low, found.high


def plain(values: np.ndarray, draws: int) -> tuple[float, float]:
    found = scipy.stats.bootstrap((values,), np.mean, n_resamples=draws, rng=np.random.default_rng(1))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def rows(quick: bool) -> Iterator[Row]:
    """One row a number of seeds."""
    draws = DRAWS // 5 if quick else DRAWS
    for n in QUICK if quick else FULL:
        values = np.random.default_rng(n).normal(0.02, 0.05, n)
        apart = np.abs(np.subtract(ours(values, draws), plain(values, draws))).max() / (values.std() / np.sqrt(n))
        mine, theirs = (1e3 * best_of(2 if quick else 5, interval, values, draws) for interval in (ours, plain))
        size = f"{n} seeds, {draws} draws"
        note = f"bounds apart by {apart:.3f} standard errors"
        yield Row("bootstrap interval", size, mine, "ms", "scipy.stats.bootstrap", theirs, note=note)

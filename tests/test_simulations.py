"""What the statistics promise, kept in simulation: fixed generators, sizes stated, bounds by the Monte-Carlo error.

The coverage of the bootstrap and the rates of collapse detection are simulated beside their functions.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from pth_tracker import stats
from pth_tracker.checks.paired_results import adjust, compare_scores
from pth_tracker.stats import Verdict

REPEATS = 4000
CALLED = 300
"""Of these, the product's own functions are called on so many, one by one; all are worked out here at once."""
ALPHA = 0.05
CRITICAL = {3: 4.302653, 5: 2.776445, 10: 2.262157}
"""t(.975, n - 1)."""


def at_most(rate: float, repeats: int) -> float:
    """``rate`` and two Monte-Carlo standard errors."""
    return rate + 2 * math.sqrt(rate * (1 - rate) / repeats)


def benchmark_differences(
    rng: np.random.Generator, repeats: int, seeds: int, benchmarks: int = 5
) -> npt.NDArray[np.float64]:
    """``(repeats, seeds, benchmarks)`` differences of two arms that are equal: the generator of the rates below.

    The benchmarks of one checkpoint share what the checkpoint is (a normal of variance 0.9), beside noise of their own
    (0.1): correlated by 0.9, as accuracies of one model are. The third is in points of 100.
    """
    checkpoint = math.sqrt(0.9) * rng.normal(size=(repeats, seeds, 1))
    own = math.sqrt(0.1) * rng.normal(size=(repeats, seeds, benchmarks))
    return np.asarray((checkpoint + own) * np.array([1.0, 1.0, 100.0, 1.0, 1.0]), dtype=np.float64)


SCALE = [1.0, 1.0, 100.0, 1.0, 1.0]


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_better_is_said_of_equal_arms_in_five_percent_at_most(seeds: int) -> None:
    d = benchmark_differences(np.random.default_rng(seeds), REPEATS, seeds)
    means = (d / np.array(SCALE)).mean(axis=2)
    t = means.mean(axis=1) / (means.std(axis=1, ddof=1) / math.sqrt(seeds))
    better = np.abs(t) > CRITICAL[seeds]
    assert better.mean() <= at_most(ALPHA, REPEATS)
    words = [stats.verdict(stats.t_interval(stats.benchmark_means(one, scale=SCALE)).p, None) for one in d[:CALLED]]
    assert better[:CALLED].tolist() == [word is Verdict.BETTER for word in words]
    # Benchmarks as units of their own would say it far more often.
    pooled = (d / np.array(SCALE)).reshape(REPEATS, -1)
    wrong = pooled.mean(axis=1) / (pooled.std(axis=1, ddof=1) / math.sqrt(pooled.shape[1]))
    assert np.mean(np.abs(wrong) > 2.0) > 0.3


def test_better_is_said_of_any_of_three_equal_arms_in_five_percent_at_most() -> None:
    repeats, seeds = 400, 5
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(repeats):
        # Three arms against one baseline: the family of a design without claims, its tests correlated by the baseline.
        baseline, *arms = rng.normal(size=(4, seeds))
        scores = [{str(seed): float(value) for seed, value in enumerate(one)} for one in (baseline, *arms)]
        raw = {
            (str(place), "baseline", ""): compare_scores(one, scores[0], (), (), None)
            for place, one in enumerate(scores[1:])
        }
        results = adjust({key: one for key, one in raw.items() if one is not None}, ())
        assert len(results) == 3 and {one.family for one in results.values()} == {3}
        wrong += any(one.verdict is Verdict.BETTER for one in results.values())
    assert wrong / repeats <= at_most(ALPHA, repeats)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_interval_of_correlated_benchmarks_covers_95_percent(seeds: int) -> None:
    d = benchmark_differences(np.random.default_rng(100 + seeds), REPEATS, seeds) + 0.7 * np.array(SCALE)
    means = (d / np.array(SCALE)).mean(axis=2)
    half = CRITICAL[seeds] * means.std(axis=1, ddof=1) / math.sqrt(seeds)
    covered = np.abs(means.mean(axis=1) - 0.7) <= half
    assert covered.mean() == pytest.approx(0.95, abs=0.02)
    for place, one in enumerate(d[:CALLED]):
        interval = stats.t_interval(stats.benchmark_means(one, scale=SCALE))
        assert interval.low is not None and interval.high is not None
        assert (interval.low <= 0.7 <= interval.high) == covered[place]

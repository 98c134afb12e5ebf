from __future__ import annotations

import math

import numpy as np
import pytest

from pth_tracker import stats

HUGE = np.finfo(np.float64).max


def test_repeated_seeds_count_once_as_their_mean() -> None:
    seeds, means = stats.mean_per_seed([3, 1, 3, 2], [0.5, 0.1, 0.7, 0.2])
    assert seeds == (3, 1, 2)
    assert means == pytest.approx([0.6, 0.1, 0.2])
    assert stats.mean_per_seed(["a", "a"], [HUGE, HUGE])[1][0] == HUGE
    with pytest.raises(ValueError, match="3 for 2"):
        stats.mean_per_seed([1, 2, 3], [0.1, 0.2])


def test_pairing_by_seed() -> None:
    pairing = stats.pair_by_seed(["1", "2", "1", "4"], [1, 2, 3, 9], ["2", "5", "1"], [20, 50, 10])
    assert pairing.seeds == ("1", "2")
    assert pairing.a.tolist() == [2, 2] and pairing.b.tolist() == [10, 20]
    assert pairing.only_a == ("4",) and pairing.only_b == ("5",)
    apart = stats.pair_by_seed([1], [0.1], [2], [0.2])
    assert apart.seeds == () and apart.a.shape == (0,)


def test_benchmarks_of_one_checkpoint_are_averaged_on_one_scale() -> None:
    assert stats.benchmark_means([[0.5, 0.7], [0.1, 0.3]]) == pytest.approx([0.6, 0.2])
    assert stats.benchmark_means([[0.5, 70.0]], scale=[1, 100]) == pytest.approx([0.6])
    for scale in ([1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="scale"):
            stats.benchmark_means([[0.5, 0.7]], scale=scale)


def test_pooling_benchmarks_as_units_would_raise_false_positives() -> None:
    rng = np.random.default_rng(0)
    pooled = united = 0
    for _ in range(400):
        checkpoint = rng.normal(size=(3, 1))
        d = checkpoint + 0.3 * rng.normal(size=(3, 6))
        own, all_as_units = stats.t_interval(stats.benchmark_means(d)), stats.t_interval(d.ravel())
        united += not own.holds_zero
        pooled += not all_as_units.holds_zero
    assert united / 400 < 0.09
    assert pooled / 400 > 0.3


def test_progressed_by_what_a_run_did() -> None:
    assert stats.progressed([100, 100, 90, 89, 0]).tolist() == [True, True, True, True, False]  # the median is 90
    assert stats.progressed([100, 100, 100, 90, 89]).tolist() == [True, True, True, True, False]


def test_score_of_a_curve() -> None:
    updates, values = [0, 10, 20, 30], [0.1, 0.5, 0.9, 0.3]
    assert stats.score_of(updates, values) == 0.3
    assert stats.score_of(updates, values, until=25) == 0.9
    assert stats.score_of(updates, values, at="best") == 0.9
    assert stats.score_of(updates, values, at="best", higher_is_better=False) == 0.1
    assert stats.score_of(updates, values, at="mean", window=20) == pytest.approx(0.6)
    assert stats.score_of(updates, values, at="mean", window=1) == 0.3
    assert stats.score_of(updates, values, at="mean", window=1000) == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("updates", "values", "keywords", "message"),
    [
        ([0, 1], [0.1], {}, "one shape"),
        ([1, 0], [0.1, 0.2], {}, "increase"),
        ([0, 1], [0.1, math.nan], {}, "nan"),
        ([5, 6], [0.1, 0.2], {"until": 4}, "up to update 4"),
        ([5, 6], [0.1, 0.2], {"at": "mean"}, "window"),
    ],
)
def test_score_of_refuses(updates: list[float], values: list[float], keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stats.score_of(updates, values, **keywords)  # type: ignore[arg-type]


def test_tasks_are_averaged_per_seed_then_over_seeds() -> None:
    scores = np.array([[0.1, 0.3], [0.5, 0.9]])
    assert stats.task_means(scores) == pytest.approx([0.3, 0.6])
    with pytest.raises(ValueError, match="rows of equal length"):
        stats.task_means([[0.1, 0.2], [0.3]])


def test_iqm_by_hand() -> None:
    # Twelve values: three cut on either side, the mean of the six in the middle.
    scores = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 1200]])
    assert stats.iqm(scores) == pytest.approx((4 + 5 + 6 + 7 + 8 + 9) / 6)
    assert stats.iqm([[5.0]]) == 5.0
    assert stats.iqm(np.full((2, 2), HUGE)) == HUGE


def test_iqm_needs_five_tasks_and_three_seeds_and_ten_for_an_interval() -> None:
    rng = np.random.default_rng(0)
    assert stats.iqm_interval(np.ones((4, 3)), rng=rng) is None
    assert stats.iqm_interval(np.ones((5, 2)), rng=rng) is None
    three = stats.iqm_interval(rng.random((5, 3)), rng=rng)
    assert three is not None and three.low is None and (three.tasks, three.seeds) == (5, 3)
    with pytest.raises(ValueError, match="one shape"):
        stats.iqm_interval(np.ones((5, 3)), np.ones((5, 4)), rng=rng)


def test_iqm_interval_resamples_seeds_jointly() -> None:
    rng = np.random.default_rng(1)
    # All tasks move with the seed, so that resampling tasks apart would average the seed effect away.
    scores = rng.normal(size=(1, 12)) + 0.01 * rng.normal(size=(5, 12))
    ours = stats.iqm_interval(scores, rng=np.random.default_rng(2), draws=4000)
    assert ours is not None and ours.low is not None and ours.high is not None
    index = np.random.default_rng(3).integers(0, 12, (4000, 12))
    plain = np.sort(scores[:, index].transpose(1, 0, 2).reshape(4000, 60), axis=1)[:, 15:45].mean(axis=1)
    low, high = np.quantile(plain, [0.025, 0.975])
    assert ours.low == pytest.approx(low, abs=0.06) and ours.high == pytest.approx(high, abs=0.06)
    assert ours.value == pytest.approx(np.sort(scores.ravel())[15:45].mean())


def test_iqm_difference_keeps_the_arms_together() -> None:
    rng = np.random.default_rng(4)
    a = rng.normal(size=(1, 10)) + np.zeros((6, 10))
    shifted = stats.iqm_interval(a + 0.5, a, rng=rng, draws=500)
    assert shifted is not None and shifted.low is not None and shifted.high is not None
    assert (shifted.low, shifted.value, shifted.high) == pytest.approx((0.5, 0.5, 0.5))

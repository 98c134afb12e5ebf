import math
from dataclasses import replace

import numpy as np
import pytest

from pth_tracker.demo.losses import group_advantages, importance_weights, ppo_clip, token_shares
from pth_tracker.demo.metrics import off_policy_metrics, probability_metrics
from pth_tracker.demo.settings import Settings, default_config, read_settings


@pytest.fixture(scope="module")
def settings() -> Settings:
    return read_settings(default_config())


MASK = np.array([[True, True], [True, False]])


def test_advantages_by_hand() -> None:
    # Scores 1 0 0 0: mean 1/4, sample deviation sqrt((9/16 + 3/16) / 3) = 1/2.
    got = group_advantages(np.array([1.0, 0, 0, 0, 1, 1, 1, 1]), 4, by_std=True)
    assert got == pytest.approx([1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0], rel=1e-5)
    plain = group_advantages(np.array([1.0, 0, 0, 0]), 4, by_std=False)
    assert plain.tolist() == [0.75, -0.25, -0.25, -0.25]
    assert group_advantages(np.array([1.0, 0.0]), 1, by_std=False).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [
        ("token-mean", [[1 / 3, 1 / 3], [1 / 3, 0]]),
        ("seq-mean-token-mean", [[1 / 4, 1 / 4], [1 / 2, 0]]),
        ("seq-mean-token-sum", [[1 / 2, 1 / 2], [1 / 2, 0]]),
    ],
)
def test_the_share_of_each_token(aggregation: str, shares: list[list[float]]) -> None:
    assert token_shares(MASK, aggregation) == pytest.approx(np.array(shares))


def test_the_clipped_loss_by_hand(settings: Settings) -> None:
    # One response each: ratios 1.5, 0.5, 1.5, 0.5, 4 with advantages +1, +1, -1, -1, -1; range 0.8 to 1.2, dual clip 3.
    ratios = np.array([[1.5], [0.5], [1.5], [0.5], [4.0]])
    advantages = np.array([1.0, 1.0, -1.0, -1.0, -1.0])
    mask = np.ones((5, 1), dtype=bool)
    loss = ppo_clip(np.zeros((5, 1)), np.log(ratios), advantages, mask, None, settings)
    # max(-1.5, -1.2) = -1.2; max(-.5, -.8) = -.5; max(1.5, 1.2) = 1.5; max(.5, .8) = .8; min(max(4, 1.2), 3) = 3
    assert loss.value == pytest.approx((-1.2 - 0.5 + 1.5 + 0.8 + 3.0) / 5)
    assert loss.slope[:, 0] == pytest.approx(np.array([0, -0.5, 1.5, 0, 0]) / 5)
    assert loss.metrics["actor/pg_clipfrac"] == pytest.approx(2 / 5)
    assert loss.metrics["actor/pg_clipfrac_lower"] == pytest.approx(1 / 5)
    assert loss.metrics["actor/ppo_kl"] == pytest.approx(-np.log(ratios).mean())


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_slope_of_the_loss_is_its_finite_difference(settings: Settings, aggregation: str, weighted: bool) -> None:
    rng = np.random.default_rng(5)
    chosen = replace(settings, aggregation=aggregation, clip_low=0.1, clip_high=0.3)
    mask = np.arange(4) < rng.integers(1, 5, size=(6, 1))
    old, new = rng.normal(-1.5, 0.6, (6, 4)), rng.normal(-1.5, 0.6, (6, 4))
    advantages = rng.normal(size=6)
    weights = rng.uniform(0.1, 2, (6, 4)) if weighted else None
    slope = ppo_clip(old, new, advantages, mask, weights, chosen).slope
    assert np.any(slope != 0) and not np.any(slope[~mask])
    h = 1e-6
    for place in np.argwhere(mask):
        step = np.zeros_like(new)
        step[tuple(place)] = h
        up = ppo_clip(old, new + step, advantages, mask, weights, chosen).value
        down = ppo_clip(old, new - step, advantages, mask, weights, chosen).value
        assert (up - down) / (2 * h) == pytest.approx(slope[tuple(place)], abs=1e-7)


def test_truncated_importance_weights_by_hand(settings: Settings) -> None:
    # Token ratios 4, 1/4 in the first response and 1 in the second; the threshold is 2.
    gap = np.array([[math.log(4), math.log(1 / 4)], [0.0, 9.0]])
    weights, metrics = importance_weights(gap, MASK, replace(settings, importance="token"))
    assert weights == pytest.approx(np.array([[2, 0.25], [1, 0]]))
    at = {key.removeprefix("rollout_corr/rollout_is_"): value for key, value in metrics.items()}
    assert (at["max"], at["min"], at["mean"]) == pytest.approx((4, 0.25, 5.25 / 3))
    assert (at["ratio_fraction_high"], at["ratio_fraction_low"]) == pytest.approx((1 / 3, 1 / 3))
    # Weights held within [1/2, 2]: 2, 1/2, 1, of mean 7/6 and mean square 5.25/3.
    assert at["eff_sample_size"] == pytest.approx((7 / 6) ** 2 / (5.25 / 3))
    assert at["std"] == pytest.approx(math.sqrt(5.25 / 3 - (7 / 6) ** 2))
    assert (at["seq_mean"], at["seq_max"]) == pytest.approx(((4.25 / 2 + 1) / 2, 4.25 / 2))
    by_sequence, _ = importance_weights(gap, MASK, replace(settings, importance="sequence"))
    assert by_sequence == pytest.approx(np.array([[1, 1], [1, 0]]))
    normalised, more = importance_weights(gap, MASK, replace(settings, importance="token", importance_normalise=True))
    assert normalised[MASK].mean() == pytest.approx(1)
    assert more["rollout_corr/rollout_is_batch_norm_factor"] == pytest.approx(3.25 / 3)


def test_kl_estimators_by_hand() -> None:
    # The learner's log-probability less the sampler's: ln 2, -ln 2 and 0 over three tokens.
    rollout = np.array([[-1.0, -1.0], [-2.0, 0.0]])
    train = rollout + np.array([[math.log(2), -math.log(2)], [0.0, 5.0]])
    got = off_policy_metrics(train, rollout, MASK)
    assert got["rollout_corr/kl"] == pytest.approx(0, abs=1e-15)
    # exp(d) - d - 1 is 1 - ln 2, ln 2 - 1/2 and 0.
    assert got["rollout_corr/k3_kl"] == pytest.approx(0.5 / 3)
    assert got["rollout_corr/chi2_token"] == pytest.approx((4 + 0.25 + 1) / 3 - 1)
    assert got["rollout_corr/training_log_ppl"] == pytest.approx((1 + 2) / 2)
    same = off_policy_metrics(rollout, rollout, MASK)
    assert same["rollout_corr/kl"] == same["rollout_corr/k3_kl"] == 0.0


def test_probability_differences_by_hand() -> None:
    ours, theirs = np.array([[0.5, 0.2], [0.9, 1.0]]), np.array([[0.4, 0.4], [0.9, 0.1]])
    got = probability_metrics(np.log(ours), np.log(theirs), MASK)
    assert got["training/rollout_probs_diff_max"] == pytest.approx(0.2)
    assert got["training/rollout_probs_diff_mean"] == pytest.approx(0.1)
    assert got["training/rollout_probs_diff_std"] == pytest.approx(0.1)


def test_no_correlation_is_nan_and_no_warning() -> None:
    flat = np.full((2, 2), -1.0)
    assert math.isnan(probability_metrics(flat, flat, MASK)["training/rollout_actor_probs_pearson_corr"])

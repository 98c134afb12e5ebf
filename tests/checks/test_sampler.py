"""The rules on the sampler: what they flag, what they leave alone and what they cannot judge."""

from __future__ import annotations

import numpy as np
import pytest

from pth_tracker.model import Level
from single_run import examined, findings, missing

K3, K1, ABS = "harness/sampler_k3_kl", "harness/sampler_kl", "harness/sampler_abs_dlogp"
ON_POLICY = {"trainer.sync_interval": 1}
STALE = {"trainer.sync_interval": 32}


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def saw_tooth(updates: int, interval: int, slope: float = 0.02) -> np.ndarray:
    """k3 that grows by ``slope`` an update and returns to its floor of 0.001 at every refresh."""
    return 0.001 + slope * (np.arange(updates) % interval)


# sampler-mismatch


def test_a_level_above_tolerance_without_lag_is_a_mismatch_of_two_named_causes() -> None:
    values = rng().uniform(0.1, 0.2, 100)
    (found,) = findings(examined({K3: values}, "sampler-mismatch", config=ON_POLICY), "sampler-mismatch")
    assert found.level is Level.WARN and found.blames == ("run-1",)
    assert "inference engine" in found.detail and "never arrive" in found.detail and "7495" in found.detail
    assert found.evidence["above_tolerance"] == 100
    assert found.evidence["median"] == np.sort(values)[49]


@pytest.mark.parametrize("count, flagged", [(4, False), (5, True)])
def test_a_mismatch_takes_five_percent_of_the_updates(count: int, flagged: bool) -> None:
    # 0.06 against 0.04: above the tolerance and no growth of 5.
    values = np.where(np.arange(100) < count, 0.06, 0.04)
    assert bool(findings(examined({K3: values}, "sampler-mismatch"), "sampler-mismatch")) is flagged


@pytest.mark.parametrize("count, flagged", [(2, False), (3, True)])
def test_a_mismatch_takes_three_updates_of_a_short_run(count: int, flagged: bool) -> None:
    values = np.where(np.arange(20) < count, 0.06, 0.04)
    assert bool(findings(examined({K3: values}, "sampler-mismatch"), "sampler-mismatch")) is flagged


@pytest.mark.parametrize(
    "values, config",
    [
        (rng().uniform(1e-4, 1e-3, 200), {}),  # the noise of bf16
        (np.zeros(200), {}),
        (rng().uniform(0.1, 0.2, 200), STALE),  # a declared lag
        (saw_tooth(128, 32), {}),  # growth: lag, whether declared or not
        (np.linspace(0.001, 3, 100), {}),
        ([np.nan, *[0.01] * 50], {}),
    ],
)
def test_noise_lag_and_growth_are_no_mismatch(values: np.ndarray, config: dict[str, object]) -> None:
    assert not findings(examined({K3: values}, "sampler-mismatch", config=config), "sampler-mismatch")


def test_a_lag_declared_by_the_designs_stress_key_is_no_mismatch() -> None:
    values = rng().uniform(0.1, 0.2, 100)
    for lag, expected in ((16, 0), (1, 1)):
        result = examined({K3: values}, "sampler-mismatch", config={"my.lag": lag}, stress="my.lag")
        assert len(findings(result, "sampler-mismatch")) == expected


def test_signed_k1_is_judged_by_window_means_and_a_log_difference_by_half_its_square() -> None:
    noise = 0.3 * np.tile([1.0, -1.0], 50)  # 5-update means: 0.06 at most
    quiet = 0.2 * np.tile([1.0, -1.0], 50)  # 0.04 at most
    steady = np.full(100, 0.1)
    assert findings(examined({K1: noise}, "sampler-mismatch"), "sampler-mismatch")
    assert not findings(examined({K1: quiet}, "sampler-mismatch"), "sampler-mismatch")
    assert findings(examined({K1: -steady}, "sampler-mismatch"), "sampler-mismatch")
    # 0.3^2 / 2 = 0.045 and 0.35^2 / 2 = 0.061 about the tolerance of 0.05.
    assert not findings(examined({ABS: np.full(100, 0.3)}, "sampler-mismatch"), "sampler-mismatch")
    assert findings(examined({ABS: np.full(100, 0.35)}, "sampler-mismatch"), "sampler-mismatch")


def test_differences_of_probabilities_count_by_growth_alone_and_not_from_rounded_zeros() -> None:
    key = "harness/sampler_prob_error"
    assert not findings(examined({key: np.full(60, 0.3)}, "sampler-mismatch"), "sampler-mismatch")
    assert findings(examined({key: np.linspace(0.004, 0.04, 60)}, "sampler-mismatch"), "sampler-mismatch")
    assert not findings(examined({key: np.linspace(0.004, 0.015, 60)}, "sampler-mismatch"), "sampler-mismatch")
    printed = np.round(np.linspace(0, 0.009, 60), 3)  # three decimals: from 0.000 to 0.009
    assert not findings(examined({key: printed}, "sampler-mismatch", decimals={key: 3}), "sampler-mismatch")
    grown = {key: np.linspace(0.004, 0.04, 60)}
    assert not findings(examined(grown, "sampler-mismatch", config=STALE), "sampler-mismatch")


def test_a_mismatch_is_not_judged_without_a_sampler_or_on_four_updates() -> None:
    assert (
        "sampler_k3_kl" in missing(examined({"clip_fraction": [0.0] * 30}, "sampler-mismatch"), "sampler-mismatch")[0]
    )
    assert missing(examined({K3: [0.2] * 4}, "sampler-mismatch"), "sampler-mismatch") == ("sampler_windows",)
    # Weights logged after truncation measure nothing.
    weights = {"harness/is_weight_mean": [0.2] * 50}
    assert missing(examined(weights, "sampler-mismatch"), "sampler-mismatch")


# sampler-diverged


def diverged(values: object, key: str = K3, **facts: object) -> bool:
    return bool(findings(examined({key: values}, "sampler-diverged", **facts), "sampler-diverged"))  # type: ignore[arg-type, dict-item]


def test_a_floor_that_rises_tenfold_diverges() -> None:
    values = np.concatenate([np.full(50, 0.002), np.full(50, 0.03)])
    (found,) = findings(examined({K3: values}, "sampler-diverged", config=ON_POLICY), "sampler-diverged")
    assert found.level is Level.WARN
    assert found.evidence["first_quarter"] == pytest.approx(0.002)
    assert found.evidence["last_quarter"] == pytest.approx(0.03)
    assert "never arrives" in found.detail
    assert not diverged(np.concatenate([np.full(50, 0.002), np.full(50, 0.019)]), config=ON_POLICY)
    # A first quarter of 1e-9 counts as 1e-4, and a last one has to be above 0.01.
    assert not diverged(np.concatenate([np.full(50, 1e-9), np.full(50, 0.009)]), config=ON_POLICY)
    assert diverged(np.concatenate([np.full(50, 1e-9), np.full(50, 0.011)]), config=ON_POLICY)


def test_a_declared_lag_is_not_told_to_look_for_a_lost_sync() -> None:
    values = np.concatenate([saw_tooth(100, 8), 1 + saw_tooth(100, 8)])
    result = examined({K3: values}, "sampler-diverged", config={"sync_interval": 8})
    (found,) = findings(result, "sampler-diverged")
    assert "never arrives" not in found.detail and found.evidence["designed_lag"] == 8


@pytest.mark.parametrize("config", [{"sync_interval": 16}, {}])
def test_a_saw_tooth_that_returns_to_its_floor_is_no_divergence(config: dict[str, object]) -> None:
    slopes = np.repeat(np.linspace(0.01, 0.09, 10), 16)  # the teeth grow 9-fold, the floor does not
    assert not diverged(0.001 + slopes * (np.arange(160) % 16), config=config)


def test_quarters_without_a_whole_refresh_are_not_judged() -> None:
    for config in ({"sync_interval": 32}, {}):  # declared, or read off the series
        result = examined({K3: saw_tooth(100, 32)}, "sampler-diverged", config=config)
        assert missing(result, "sampler-diverged") == ("refresh_in_quarters",)
    assert not diverged(saw_tooth(160, 32), config={"sync_interval": 32})  # quarters of 40 hold 36
    assert missing(examined({K3: [0.1] * 15}, "sampler-diverged"), "sampler-diverged") == ("refresh_in_quarters",)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_two_updates_that_are_not_finite_diverge_and_one_does_not(bad: float) -> None:
    for key in (K3, K1, ABS):
        values = np.full(100, 0.001)
        values[30] = bad
        assert not diverged(values, key)
        values[70] = bad
        (found,) = findings(examined({key: values}, "sampler-diverged"), "sampler-diverged")
        assert found.evidence == {"sampler": key, "nonfinite": 2, "first": 31, "designed_lag": None}
    # Two in a run too short for quarters are judged all the same.
    assert diverged([0.1, bad, bad])


def test_signed_noise_of_any_size_is_no_divergence() -> None:
    for seed in range(20):
        noise = rng(seed).normal(0, np.linspace(0.001, 0.02, 200))
        assert not diverged(noise, K1, config=ON_POLICY)
    drift = np.concatenate([rng().normal(0, 0.001, 100), 0.3 + rng(8).normal(0, 0.01, 100)])
    assert diverged(drift, K1, config=ON_POLICY)


def test_the_noise_of_bf16_is_judged_and_no_divergence() -> None:
    judged = 0
    for seed in range(40):
        values = np.exp(rng(seed).uniform(np.log(1e-4), np.log(1e-3), 100))
        result = examined({K3: values}, "sampler-diverged", "sampler-mismatch", config=ON_POLICY)
        assert not result.findings
        judged += sum(bool(outcome.met) for outcome in result.outcomes)
    assert judged == 80


# clip-misses-lag


CLIP, OUTSIDE = "harness/clip_fraction", "harness/outside_sampler_range"


def misses(clip: object, outside: object, **facts: object) -> bool:
    result = examined({CLIP: clip, OUTSIDE: outside}, "clip-misses-lag", **facts)  # type: ignore[arg-type, dict-item]
    return bool(findings(result, "clip-misses-lag"))


def test_a_clip_on_less_than_a_tenth_of_the_tokens_outside_misses_them() -> None:
    result = examined({CLIP: [0.004] * 50, OUTSIDE: [0.3] * 50}, "clip-misses-lag")
    (found,) = findings(result, "clip-misses-lag")
    assert found.level is Level.WARN and found.evidence["outside"] == pytest.approx(0.3)
    assert misses([0.029] * 50, [0.3] * 50) and not misses([0.031] * 50, [0.3] * 50)


def test_on_policy_training_with_an_idle_clip_misses_nothing() -> None:
    noise = np.abs(rng().normal(0, 0.01, 200))  # engine noise: under 5% of the tokens outside
    assert not misses(np.zeros(200), noise)


def test_only_updates_under_lag_count_and_three_are_needed() -> None:
    share = np.where(np.arange(100) % 20 < 18, 0.0, 0.4)  # 10 of 100 updates lag
    assert misses(np.zeros(100), share)
    assert not misses(np.where(share > 0, 0.1, 0.0), share)
    assert not misses(np.zeros(100), np.where(np.arange(100) < 2, 0.4, 0.0))


def test_a_corrected_run_and_one_whose_ratio_is_the_samplers_miss_nothing() -> None:
    actor = {"actor_rollout_ref": {"actor": {"ppo_epochs": 1, "loss_agg_mode": "token-mean"}, "rollout": {"n": 8}}}
    assert misses([0.0] * 50, [0.4] * 50, config=actor)
    for correction in ({"rollout_is": "token", "rollout_is_threshold": 2.0}, {"bypass_mode": True}):
        config = {**actor, "algorithm": {"rollout_correction": correction}, "data": {"train_batch_size": 16}}
        assert not misses([0.0] * 50, [0.4] * 50, config=config)


def test_updates_at_a_learning_rate_of_zero_do_not_count() -> None:
    points = {CLIP: [0.0] * 10 + [0.2] * 40, OUTSIDE: [0.4] * 50, "lr": [0.0] * 10 + [1e-6] * 40}
    assert not findings(examined(points, "clip-misses-lag"), "clip-misses-lag")
    assert not misses([0.0] * 4 + [0.05] * 46, [0.4] * 50)


def test_a_missed_lag_is_not_judged_without_the_share_in_the_same_range() -> None:
    points = {CLIP: [0.0] * 50, "rollout_corr/rollout_is_ratio_fraction_high": [0.4] * 50}
    assert missing(examined(points, "clip-misses-lag"), "clip-misses-lag") == (
        "outside_sampler_range",
        "common_updates",
    )
    apart = {CLIP: ([1, 2, 3], [0.0, 0.0, 0.0]), OUTSIDE: ([4, 5, 6], [0.4, 0.4, 0.4])}
    assert missing(examined(apart, "clip-misses-lag"), "clip-misses-lag") == ("common_updates",)
    gpg = {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "gpg"}}, "rollout": {"n": 8}}}
    untestable = {CLIP: [0.0] * 50, OUTSIDE: [0.4] * 50}
    assert missing(examined(untestable, "clip-misses-lag", config=gpg), "clip-misses-lag") == ("testable_clip",)

from dataclasses import fields
from typing import Any

import pytest

from pth_tracker.demo import MemorySink, train
from pth_tracker.demo.settings import BOOKKEEPING, FIXED, Settings, default_config, leaves, read_settings, resolve
from pth_tracker.errors import UsageError

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
SHORT = {"trainer.total_training_steps": 6, "data.train_max_samples": 128, "data.val_max_samples": 50}

CHANGES: dict[str, dict[str, Any]] = {
    "data.seed": {"data.seed": 43},
    "data.shuffle": {"data.shuffle": False},
    "data.train_max_samples": {"data.train_max_samples": 160},
    "data.val_max_samples": {"data.val_max_samples": 60},
    "data.train_batch_size": {"data.train_batch_size": 48},
    "data.max_prompt_length": {"data.max_prompt_length": 12, "actor_rollout_ref.rollout.prompt_length": 12},
    "data.max_response_length": {"data.max_response_length": 4, "actor_rollout_ref.rollout.response_length": 4},
    "actor_rollout_ref.rollout.n": {"actor_rollout_ref.rollout.n": 4},
    "actor_rollout_ref.rollout.temperature": {"actor_rollout_ref.rollout.temperature": 0.8},
    "actor_rollout_ref.rollout.seed": {"actor_rollout_ref.rollout.seed": 9},
    f"{ACTOR}.ppo_mini_batch_size": {f"{ACTOR}.ppo_mini_batch_size": 16},
    f"{ACTOR}.ppo_epochs": {f"{ACTOR}.ppo_epochs": 2},
    f"{ACTOR}.clip_ratio": {f"{ACTOR}.clip_ratio": 0.01, f"{ACTOR}.clip_ratio_low": None},
    f"{ACTOR}.clip_ratio_low": {f"{ACTOR}.clip_ratio_low": 0.01},
    f"{ACTOR}.clip_ratio_high": {f"{ACTOR}.clip_ratio_high": 0.01},
    f"{ACTOR}.clip_ratio_c": {f"{ACTOR}.clip_ratio_c": 1.01},
    f"{ACTOR}.loss_agg_mode": {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"},
    f"{ACTOR}.use_rollout_log_probs": {f"+{ACTOR}.use_rollout_log_probs": True, f"{CORRECTION}.bypass_mode": True},
    f"{ACTOR}.optim.optimizer": {f"{ACTOR}.optim.optimizer": "SGD"},
    f"{ACTOR}.optim.lr": {f"{ACTOR}.optim.lr": 0.02},
    f"{ACTOR}.optim.lr_warmup_steps": {f"{ACTOR}.optim.lr_warmup_steps": 4},
    f"{ACTOR}.optim.lr_warmup_steps_ratio": {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.5},
    f"{ACTOR}.optim.weight_decay": {f"{ACTOR}.optim.weight_decay": 0.1},
    f"{ACTOR}.optim.betas": {f"{ACTOR}.optim.betas": [0.5, 0.9]},
    f"{ACTOR}.optim.clip_grad": {f"{ACTOR}.optim.clip_grad": 0.001},
    "algorithm.norm_adv_by_std_in_grpo": {"algorithm.norm_adv_by_std_in_grpo": False},
    f"{CORRECTION}.rollout_is": {f"{CORRECTION}.rollout_is": "token"},
    f"{CORRECTION}.rollout_is_threshold": {f"{CORRECTION}.rollout_is_threshold": 1.01},
    f"{CORRECTION}.rollout_is_batch_normalize": {f"{CORRECTION}.rollout_is_batch_normalize": True},
    f"{CORRECTION}.bypass_mode": {f"{CORRECTION}.bypass_mode": True},
    "trainer.sync_interval": {"trainer.sync_interval": 2},
    "trainer.replay_delay": {"+trainer.replay_delay": 2},
    "trainer.test_freq": {"trainer.test_freq": 2},
    "trainer.total_epochs": {"trainer.total_epochs": 1},
    "trainer.total_training_steps": {"trainer.total_training_steps": 5},
}
"""Each acting setting with another value of it."""
NEEDS: dict[str, dict[str, Any]] = {
    # A clip range acts only where the ratio is not 1 by construction, the threshold only with importance weights.
    **{f"{ACTOR}.{name}": {f"{ACTOR}.ppo_epochs": 4} for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")},
    f"{ACTOR}.clip_ratio_c": {f"{ACTOR}.ppo_epochs": 4, f"{ACTOR}.clip_ratio_high": 0.5},
    f"{CORRECTION}.rollout_is_threshold": {f"{CORRECTION}.rollout_is": "token"},
    f"{CORRECTION}.rollout_is_batch_normalize": {f"{CORRECTION}.rollout_is": "token"},
    f"{ACTOR}.optim.optimizer": {},
}


def history(overrides: dict[str, Any]) -> dict[int, dict[str, float]]:
    sink = MemorySink()
    train(resolve(SHORT | overrides), sink)
    return sink.history


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_every_setting_that_is_logged_acts_on_the_training(key: str) -> None:
    needs = NEEDS.get(key, {})
    assert history(needs) != history(needs | CHANGES[key])


def test_every_key_of_the_configuration_acts_or_is_fixed_or_names_something() -> None:
    keys = {key for key, _ in leaves(default_config())}
    acting = {f.metadata["key"] for f in fields(Settings)}
    optional = {f.metadata["key"] for f in fields(Settings) if "absent" in f.metadata}
    assert keys == (acting - optional) | set(FIXED) | BOOKKEEPING
    twins = {"actor_rollout_ref.rollout.prompt_length", "actor_rollout_ref.rollout.response_length"}
    assert acting - twins - {"trainer.experiment_name"} == set(CHANGES)


def test_the_configuration_has_the_marks_of_verl_0_7_1_and_of_no_other_release() -> None:
    config = default_config()
    flat = dict(leaves(config))
    assert {"reward", "sandbox_fusion"} <= set(config)
    assert {"trainer.use_legacy_worker_impl", f"{CORRECTION}.loss_type", "data.seed"} <= set(flat)
    assert flat["trainer.use_legacy_worker_impl"] != "disable"
    assert not {"distillation", "skip"} & set(config)
    assert not {"trainer.use_v1", f"{CORRECTION}.use_policy_gradient", f"{CORRECTION}.rollout_token_veto_threshold"} & (
        set(flat)
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trainer.sync_intervall": 2}, r"no setting 'trainer\.sync_intervall'"),
        ({"trainer": 2}, "no setting 'trainer'"),
        ({"data.seed.x": 2}, r"no setting 'data\.seed\.x'"),
        ({"+trainer.unheard_of": 2}, r"trainer\.unheard_of: the demo has no such setting"),
        ({f"{ACTOR}.use_kl_loss": True}, r"use_kl_loss: the demo builds only False, not True"),
        ({"algorithm.adv_estimator": "gae"}, "adv_estimator: the demo builds only grpo"),
        ({"+trainer.replay_delay": -1}, r"replay_delay: -1 is not at least 0"),
        ({"trainer.sync_interval": 0}, r"sync_interval: 0 is not at least 1"),
        ({f"{ACTOR}.optim.lr": float("nan")}, "lr: nan is not at least 0"),
        ({f"{ACTOR}.clip_ratio_c": 1.0}, r"clip_ratio_c: 1\.0 is not above 1"),
        ({f"{CORRECTION}.rollout_is": "batch"}, "rollout_is: batch is none of None, token, sequence"),
        ({"data.seed": "43"}, r"data\.seed: 43 is not of the type"),
        ({"data.shuffle": 1}, r"data\.shuffle: 1 is not of the type"),
        ({f"{ACTOR}.optim.betas": [0.9]}, "betas: must be two numbers"),
        ({"data.train_batch_size": 2000}, r"data\.train_batch_size: larger than"),
        ({f"{ACTOR}.ppo_mini_batch_size": 64}, "ppo_mini_batch_size: larger than"),
        ({"data.max_response_length": 8}, r"response_length: differs from data\.max_response_length"),
        ({"data.max_prompt_length": 4}, r"data\.max_prompt_length: prompts have up to 12 tokens"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_name(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings(resolve(overrides))


def test_a_missing_key_is_named() -> None:
    config = default_config()
    del config["trainer"]["sync_interval"]
    with pytest.raises(UsageError, match=r"trainer\.sync_interval: missing"):
        read_settings(config)


def test_overrides_leave_the_defaults_alone() -> None:
    betas = [0.5, 0.5]
    changed = resolve({f"{ACTOR}.optim.betas": betas})
    betas.append(1.0)
    assert changed["actor_rollout_ref"]["actor"]["optim"]["betas"] == [0.5, 0.5]
    assert resolve({}) == default_config()

"""The vocabularies of TRL's GRPO, Stable-Baselines3 and CleanRL, on runs in the forms in which trackers hold them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pth_tracker.design.stitch import recognise
from pth_tracker.errors import UsageError
from pth_tracker.expressions import FUNCTIONS as ARITHMETIC
from pth_tracker.model import LOST_SEED
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.values import MISSING, canonical_value, is_secret
from pth_tracker.vocabulary.canonicalise import Reading, Series
from pth_tracker.vocabulary.detect import GENERIC, detect_framework
from pth_tracker.vocabulary.lens import EffectiveSeed
from pth_tracker.vocabulary.load import Vocabulary, load_vocabulary
from synthetic import FakeRun, Values, audit_of, findings, labels, loud, make_run, not_judged, only

UPDATES = 40
TRL: dict[str, Any] = {
    "output_dir": "out",
    "run_name": "grpo",
    "report_to": ["wandb"],
    "hub_token": "<HUB_TOKEN>",
    "seed": 42,
    "data_seed": None,
    "learning_rate": 1e-6,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 256,
    "num_generations": 8,
    "num_iterations": 1,
    "steps_per_generation": 4,
    "generation_batch_size": 256,
    "shuffle_dataset": True,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "epsilon_high": None,
    "beta": 0.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "mask_truncated_completions": False,
    "reward_weights": None,
    "model_type": "qwen2",
    "_name_or_path": "Qwen/Qwen2.5-1.5B",
    "model/num_parameters": 1543714304,
}
SB3: dict[str, Any] = {
    "algo": "PPO",
    "policy_class": "<class 'stable_baselines3.common.policies.ActorCriticPolicy'>",
    "env_id": "CartPole-v1",
    "seed": 1,
    "n_steps": 128,
    "n_envs": 4,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "clip_range": "<function get_schedule_fn.<locals>.<lambda> at 0x7f3a1c0b5e50>",
    "ep_info_buffer": "None",
    "tensorboard_log": "runs/1",
    "_n_updates": 0,
    "start_time": 1700000000000000000,
}
CLEANRL: dict[str, Any] = {
    "exp_name": "ppo",
    "seed": 1,
    "torch_deterministic": True,
    "cuda": True,
    "track": True,
    "wandb_project_name": "cleanRL",
    "wandb_entity": None,
    "capture_video": False,
    "env_id": "CartPole-v1",
    "total_timesteps": 500000,
    "learning_rate": 2.5e-4,
    "num_envs": 4,
    "num_steps": 128,
    "num_minibatches": 4,
    "update_epochs": 4,
    "norm_adv": True,
    "clip_coef": 0.2,
    "clip_vloss": True,
    "batch_size": 512,
    "minibatch_size": 128,
}


def noise(name: str, low: float, high: float) -> list[float]:
    seed = int.from_bytes(name.encode()[-8:], "big")
    return list(np.random.default_rng(seed).uniform(low, high, UPDATES))


def rising(name: str) -> dict[int, float]:
    """A score at every fifth update, from about 0.2 to about 0.8."""
    wobble = noise(name, -0.01, 0.01)
    return {step: 0.2 + 0.6 * step / UPDATES + wobble[step - 1] for step in range(5, UPDATES + 1, 5)}


def trl_metrics(name: str) -> dict[str, Values]:
    return {
        "loss": noise(f"l{name}", -0.01, 0.01),
        "grad_norm": noise(f"g{name}", 0.1, 0.6),
        "learning_rate": 1e-6,
        "entropy": noise(f"e{name}", 0.3, 0.32),
        "reward": noise(f"r{name}", 0.4, 0.5),
        "reward_std": noise(f"s{name}", 0.2, 0.3),
        "rewards/accuracy/mean": noise(f"r{name}", 0.4, 0.5),
        "frac_reward_zero_std": 0.1,
        "completions/mean_length": noise(f"c{name}", 150, 160),
        "completions/max_length": 256,
        "completions/min_length": noise(f"m{name}", 20, 40),
        "completions/clipped_ratio": 0.01,
        "clip_ratio/region_mean": noise(f"p{name}", 0.001, 0.01),
        "clip_ratio/low_mean": noise(f"w{name}", 0.0005, 0.005),
        "eval_reward": rising(name),
    }


def sb3_metrics(name: str) -> dict[str, Values]:
    return {
        "train/clip_fraction": noise(f"p{name}", 0.05, 0.2),
        "train/approx_kl": noise(f"k{name}", 0.005, 0.02),
        "train/entropy_loss": noise(f"e{name}", -0.69, -0.5),
        "train/policy_gradient_loss": noise(f"l{name}", -0.02, 0),
        "train/loss": noise(f"t{name}", 0, 10),
        "train/clip_range": 0.2,
        "train/learning_rate": 3e-4,
        "rollout/ep_len_mean": list(np.linspace(400, 20, UPDATES)),
        "rollout/ep_rew_mean": rising(f"r{name}"),
        "eval/mean_reward": rising(name),
        "time/fps": 900,
    }


def cleanrl_metrics(name: str) -> dict[str, Values]:
    return {
        "losses/clipfrac": noise(f"p{name}", 0.05, 0.2),
        "losses/approx_kl": noise(f"k{name}", 0.005, 0.02),
        "losses/old_approx_kl": noise(f"o{name}", -0.01, 0.01),
        "losses/policy_loss": noise(f"l{name}", -0.02, 0),
        "losses/value_loss": noise(f"v{name}", 1, 2),
        "losses/entropy": noise(f"e{name}", 0.5, 0.69),
        "charts/learning_rate": 2.5e-4,
        "charts/SPS": 900,
        "charts/episodic_length": list(np.linspace(400, 20, UPDATES)),
        "charts/episodic_return": rising(name),
    }


@dataclass(frozen=True)
class Trained:
    """One framework as the tests run it."""

    config: Mapping[str, Any]
    metrics: Callable[[str], dict[str, Values]]
    treatment: str
    """A setting by which two arms differ."""
    values: tuple[Any, Any]


FRAMEWORKS = {
    "trl_grpo": Trained(TRL, trl_metrics, "scale_rewards", ("group", "none")),
    "stable_baselines3": Trained(SB3, sb3_metrics, "gamma", (0.99, 0.95)),
    "cleanrl": Trained(CLEANRL, cleanrl_metrics, "norm_adv", (True, False)),
}
BY_FORM: dict[str, tuple[str, Mapping[str, Any], frozenset[str]]] = {
    "trl in W&B": (
        "trl_grpo",
        TRL,
        frozenset("eval/reward" if key == "eval_reward" else f"train/{key}" for key in trl_metrics("x")),
    ),
    "trl in MLflow": ("trl_grpo", {k: str(v) for k, v in TRL.items()}, frozenset(trl_metrics("x"))),
    "trl in trainer_state.json": ("trl_grpo", {"max_steps": 100}, frozenset(trl_metrics("x"))),
    "trl 0.14 in trainer_state.json": (
        "trl_grpo",
        {},
        frozenset({"completion_length", "kl", "reward", "reward_std", "rewards/r1", "loss"}),
    ),
    "sb3 with WandbCallback": ("stable_baselines3", SB3, frozenset(sb3_metrics("x"))),
    "sb3 in TensorBoard": ("stable_baselines3", {}, frozenset(sb3_metrics("x"))),
    "sac in TensorBoard": (
        "stable_baselines3",
        {},
        frozenset({"train/actor_loss", "train/critic_loss", "train/ent_coef", "rollout/ep_rew_mean"}),
    ),
    "zoo": (
        "stable_baselines3",
        {"algo": "ppo", "env": "CartPole-v1", "saved_hyperparams": {"n_steps": 32}, "optimize_hyperparameters": False},
        frozenset(),
    ),
    "cleanrl in W&B": ("cleanrl", CLEANRL, frozenset(cleanrl_metrics("x"))),
    "cleanrl in TensorBoard": ("cleanrl", {}, frozenset(cleanrl_metrics("x"))),
    "cleanrl's dqn": (
        "cleanrl",
        {},
        frozenset({"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/td_loss"}),
    ),
}
OTHERS: dict[str, tuple[Mapping[str, Any], frozenset[str]]] = {
    "RLOO": ({**TRL, "normalize_advantages": False}, frozenset()),
    "async GRPO": ({**TRL, "max_staleness": 4, "weight_sync_steps": 1}, frozenset()),
    "async GRPO by metrics": ({}, frozenset({*trl_metrics("x"), "ratio", "weight_sync_time_s"})),
    "Unsloth": ({**TRL, "unsloth_num_chunks": -1}, frozenset({"train/completion_length"})),
    "ms-swift": ({**TRL, "rlhf_type": "grpo"}, frozenset()),
    "ms-swift by metrics": ({}, frozenset({*(f"train/{k}" for k in trl_metrics("x")), "train/rollout_correction/kl"})),
    "axolotl": ({**TRL, "use_data_producer": False, "prefetch_depth": 1}, frozenset()),
    "PufferLib": (
        {"train.update_epochs": 1, "train.prio_alpha": 0.8},
        frozenset({"losses/clipfrac", "losses/old_approx_kl", "losses/policy_loss", "losses/importance"}),
    ),
    "open-instruct": (
        {"exp_name": "grpo", "num_unique_prompts_rollout": 8},
        frozenset({"policy/clipfrac_avg", "val/ratio"}),
    ),
    "a supervised Trainer": ({"seed": 1, "gradient_accumulation_steps": 4}, frozenset({"train/loss", "eval/loss"})),
}


def reading(
    config: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, keys: frozenset[str] = frozenset()
) -> Reading:
    history = None
    if metrics is not None:
        points = {key: ([1, 2, 3], value if isinstance(value, list) else [value] * 3) for key, value in metrics.items()}
        history = History.from_points(points)
        keys = frozenset(points)
    source = SourceRun(RunRef("p", "a"), "a", config=dict(config), metric_keys=keys)
    vocabulary = load_vocabulary()
    return Reading(vocabulary, recognise(vocabulary, [source]), history)


def series(own: Reading, quantity: str) -> Series:
    found = own.series(quantity)
    assert found is not None, quantity
    return found


# recognition


@pytest.mark.parametrize("form", BY_FORM)
def test_a_framework_is_recognised_in_every_form(form: str) -> None:
    framework, config, keys = BY_FORM[form]
    assert reading(config, keys=keys).run.framework == framework


@pytest.mark.parametrize("form", BY_FORM)
def test_no_other_vocabulary_claims_a_frameworks_run(form: str) -> None:
    framework, config, keys = BY_FORM[form]
    full = load_vocabulary()
    rest = {name: one for name, one in full.frameworks.items() if name != framework}
    flat = reading(config, keys=keys).run.config
    assert detect_framework(Vocabulary(full.quantities, full.roles, rest, ""), flat, keys) == GENERIC


@pytest.mark.parametrize("other", OTHERS)
def test_what_only_looks_alike_is_not_taken_for_one(other: str) -> None:
    config, keys = OTHERS[other]
    assert reading(config, keys=keys).run.framework not in FRAMEWORKS


def test_public_grpo_runs_are_trls(shared_data: Path) -> None:
    from pth_tracker_files import trainer_state
    from pth_tracker_files.sources import LoadedRun

    loaded = list(trainer_state.load(sorted((shared_data / "trl").glob("*/*/trainer_state.json"))))
    assert len(loaded) == 3
    for one in loaded:
        assert isinstance(one, LoadedRun)
        vocabulary = load_vocabulary()
        own = Reading(vocabulary, recognise(vocabulary, [one.run]), one.history)
        assert own.run.framework == "trl_grpo" and own.seed.order is None
        assert series(own, "response_length_mean").key == "completion_length"
        assert len(series(own, "train_score_mean")) == len(series(own, "grad_norm")) == 10
        assert all(own.series(name) is None for name in ("clip_fraction", "learner_kl", "sampler_kl", "sampler_k3_kl"))
        assert "ratio_is_one" not in own.roles and own.raw_keys("eval_score") == ("reward",)


def test_public_tensorboard_runs_are_of_another_trainer(shared_data: Path) -> None:
    from pth_tracker_files import tensorboard
    from pth_tracker_files.sources import LoadedRun

    loaded = list(tensorboard.load(sorted((shared_data / "tensorboard").glob("*/events*"))))
    assert len(loaded) == 12
    for one in loaded:
        assert isinstance(one, LoadedRun)
        own = reading(one.run.config, keys=one.run.metric_keys or frozenset())
        assert own.run.framework == GENERIC and len(own.raw_keys("eval_score")) == 1


# quantities


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_trls_quantities_mean_what_trl_logs(prefix: str) -> None:
    logged = {
        "clip_ratio/region_mean": 0.01,
        "clip_ratio/low_mean": 0.02,
        "completions/clipped_ratio": 0.3,
        "kl": 0.5,
        "sampling/sampling_logp_difference/mean": 0.04,
        "sampling/sampling_logp_difference/max": 4.0,
        "sampling/importance_sampling_ratio/mean": 0.9,
        "loss": 0.0,
        "reward": 0.6,
    }
    own = reading(TRL, {f"{prefix}{key}": value for key, value in logged.items()})
    clip = series(own, "clip_fraction")
    assert (clip.key, clip.meaning.clip, clip.exact_zeros) == (f"{prefix}clip_ratio/region_mean", "sign_aware", True)
    gap = series(own, "sampler_abs_dlogp")
    assert (gap.meaning.estimator, gap.values.tolist()) == ("abs", [0.04] * 3)
    assert series(own, "is_weight_mean").meaning.weights == "post"
    assert not series(own, "loss").exact_zeros  # the Trainer rounds it
    assert series(own, "response_truncated_fraction").values.tolist() == [0.3] * 3
    assert series(own, "train_score_mean").key == series(own, "train_reward_mean").key == f"{prefix}reward"
    # The KL to the reference model is neither the learner's nor the sampler's.
    assert all(own.series(name) is None for name in ("learner_kl", "sampler_kl", "sampler_k3_kl", "sampler_prob_error"))


@pytest.mark.parametrize(
    ("logged", "key", "clip"),
    [
        ({"train/clip_ratio": 0.1}, "train/clip_ratio", "active_branch"),
        ({"clip_ratio": 0.1, "clip_ratio/region_mean": 0.2}, "clip_ratio/region_mean", "sign_aware"),
        ({"train/cispo_clip_ratio": 0.0}, "train/cispo_clip_ratio", "not_testable"),
    ],
)
def test_trls_clip_fractions_by_release_and_loss(logged: dict[str, float], key: str, clip: str) -> None:
    found = series(reading(TRL, logged), "clip_fraction")
    assert (found.key, found.meaning.clip) == (key, clip)


def test_trls_response_length_was_renamed() -> None:
    assert series(reading(TRL, {"train/completion_length": 9.0}), "response_length_mean").key == (
        "train/completion_length"
    )
    both = {"train/completion_length": 9.0, "train/completions/mean_length": 8.0}
    assert series(reading(TRL, both), "response_length_mean").values.tolist() == [8.0] * 3


def test_a_probe_that_logs_through_the_trainer_is_found() -> None:
    logged = {"train/harness/batch_id": [1.0, 2.0, 3.0], "train/harness/sampler_k3_kl": 0.1}
    own = reading(TRL, logged)
    assert series(own, "batch_id").values.tolist() == [1, 2, 3]
    assert series(own, "sampler_k3_kl").meaning.estimator == "k3"


def test_stable_baselines3_quantities_mean_what_it_logs() -> None:
    logged = {
        "train/clip_fraction": 0.1,
        "train/approx_kl": 0.02,
        "train/entropy_loss": -0.6,
        "train/loss": 9.0,
        "train/policy_gradient_loss": -0.01,
        "rollout/ep_len_mean": 200.0,
        "rollout/ep_rew_mean": 200.0,
    }
    own = reading(SB3, logged)
    assert series(own, "clip_fraction").meaning.clip == "outside_band"
    assert series(own, "learner_kl").meaning.estimator == "k3"
    assert series(own, "entropy").values.tolist() == [0.6] * 3  # entropy_loss is the negative entropy
    assert series(own, "loss").key == "train/policy_gradient_loss"
    # An update's own KL against the rollout says nothing about a sampler that lags; an episode is no response.
    assert all(own.series(name) is None for name in ("sampler_k3_kl", "sampler_kl", "response_length_mean"))


def test_cleanrls_quantities_mean_what_it_logs() -> None:
    logged = {
        "losses/clipfrac": 0.1,
        "losses/approx_kl": 0.02,
        "losses/old_approx_kl": -0.01,
        "losses/entropy": 0.6,
        "charts/episodic_return": 200.0,
        "charts/episodic_length": 200.0,
    }
    own = reading(CLEANRL, logged)
    assert series(own, "clip_fraction").meaning.clip == "outside_band"
    kl = series(own, "learner_kl")
    assert (kl.key, kl.meaning.estimator) == ("losses/approx_kl", "k3")
    assert series(own, "entropy").values.tolist() == [0.6] * 3
    assert own.series("response_length_mean") is None
    k1 = reading(CLEANRL, {"losses/old_approx_kl": -0.01})
    assert (series(k1, "learner_kl").meaning.estimator, series(k1, "learner_kl").values[0]) == ("k1", -0.01)


@pytest.mark.parametrize(
    ("config", "keys", "first"),
    [
        (TRL, {"train/reward", "eval/reward", "eval/rewards/acc/mean"}, "eval/reward"),
        (TRL, {"reward", "eval_rewards/acc/mean"}, "eval_rewards/acc/mean"),
        (TRL, {"train/reward"}, "train/reward"),
        (SB3, {"rollout/ep_rew_mean", "eval/mean_reward"}, "eval/mean_reward"),
        (SB3, {"rollout/ep_rew_mean"}, "rollout/ep_rew_mean"),
        # The evaluation after training is logged against its own episodes.
        (CLEANRL, {"charts/episodic_return", "eval/episodic_return"}, "charts/episodic_return"),
    ],
)
def test_the_score_that_is_preferred(config: Mapping[str, Any], keys: set[str], first: str) -> None:
    assert reading(config, keys=frozenset(keys)).raw_keys("eval_score")[0] == first


# roles


@pytest.mark.parametrize(
    ("settings", "one", "updates"),
    [
        ({}, True, 1),
        ({"num_iterations": 2}, False, 2),
        ({"steps_per_generation": 8}, False, 2),
        ({"steps_per_generation": 2}, True, 1),
        ({"steps_per_generation": 2, "num_iterations": 2}, True, 1),
        ({"steps_per_generation": 3}, False, 1),  # 4 % 3: a batch straddles two steps
        ({"use_vllm": True}, False, 1),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, True, 1),
        ({"steps_per_generation": None}, True, 1),
        ({"steps_per_generation": None, "num_iterations": 4}, False, 4),
        ({"gradient_accumulation_steps": None}, MISSING, MISSING),
        ({"num_iterations": "many"}, MISSING, MISSING),
        ({"num_iterations": float("inf")}, False, MISSING),
        ({"steps_per_generation": 0}, MISSING, 1),
    ],
)
def test_trls_ratio(settings: dict[str, Any], one: Any, updates: Any) -> None:
    own = reading({**TRL, **settings})
    assert own.role("ratio_is_one") == one and own.role("updates_per_batch") == updates
    text = reading({key: str(value) for key, value in {**TRL, **settings}.items()})
    assert text.role("ratio_is_one") == one and text.role("updates_per_batch") == updates


def test_trls_ratio_before_there_were_such_keys() -> None:
    old = {k: v for k, v in TRL.items() if k not in ("steps_per_generation", "generation_batch_size", "num_iterations")}
    assert reading(old).role("ratio_is_one") is True
    assert reading({**old, "num_iterations": 2}).role("ratio_is_one") is False


@pytest.mark.parametrize(
    ("settings", "normaliser"),
    [
        ({"loss_type": "grpo"}, "seq-mean-token-mean"),
        ({"loss_type": "sapo"}, "seq-mean-token-mean"),
        ({"loss_type": "bnpo"}, "token-mean within each micro-batch of 8 responses"),
        ({"loss_type": "dr_grpo"}, "token sum over 256 and the batch"),
        ({"loss_type": "dapo"}, "token-mean"),
        ({"loss_type": "cispo"}, "token-mean"),
        ({"loss_type": "vespo"}, "token-mean"),
        ({"loss_type": "dapo", "steps_per_generation": 8}, "token-mean over 8 micro-batches of 4 a step"),
        ({"loss_type": "luspo"}, "seq-mean-token-sum"),
        ({"loss_type": "new"}, "that of loss_type new"),
    ],
)
def test_trls_normaliser(settings: dict[str, Any], normaliser: str) -> None:
    assert reading({**TRL, **settings}).role("normaliser") == normaliser


def test_trls_normaliser_before_loss_type() -> None:
    v16 = {key: value for key, value in TRL.items() if key != "loss_type"}
    assert reading(v16).role("normaliser") == "token-mean within each micro-batch of 8 responses"
    v15 = {key: value for key, value in v16.items() if key != "num_iterations"}
    assert reading(v15).role("normaliser") == "seq-mean-token-mean"


@pytest.mark.parametrize(
    ("settings", "correction"),
    [
        ({}, "none"),
        ({"use_vllm": True}, "sequence_mask against vLLM"),
        ({"use_vllm": True, "vllm_importance_sampling_mode": None}, "token_truncate against vLLM"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, "none"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": None}, "none"),
        ({"off_policy_mask_threshold": 0.5}, "off-policy sequence mask"),
    ],
)
def test_trls_correction(settings: dict[str, Any], correction: str) -> None:
    assert reading({**TRL, **settings}).role("correction") == correction


@pytest.mark.parametrize(
    ("loss", "untestable"),
    [("dapo", False), ("grpo", False), ("cispo", "cispo"), ("sapo", "sapo"), ("vespo", "vespo"), (None, False)],
)
def test_trls_losses_without_a_clip(loss: str | None, untestable: Any) -> None:
    assert reading({**TRL, "loss_type": loss}).role("clip_not_testable") == untestable


def test_trls_other_roles() -> None:
    own = reading(TRL)
    expected = {
        "group_size": 8,
        "group_advantage": True,
        "pi_old": "learner",
        "staleness": 0,
        "batch_size": 32,
        "reward_penalty": "none",
    }
    assert {name: own.role(name) for name in expected} == expected
    assert set(reading({}, keys=frozenset(trl_metrics("x"))).roles) == {"shuffled"}  # nothing from metrics alone


@pytest.mark.parametrize(
    ("settings", "one", "updates"),
    [
        ({}, False, 80),
        ({"n_epochs": 1}, False, 8),
        ({"n_epochs": 1, "batch_size": 512}, True, 1),
        ({"n_epochs": 2, "batch_size": 512}, False, 2),
        ({"batch_size": 500, "n_epochs": 1}, False, 2),
        ({"n_epochs": None}, MISSING, MISSING),
        ({"n_envs": None}, MISSING, MISSING),
        ({"batch_size": 0}, MISSING, MISSING),
    ],
)
def test_stable_baselines3_ratio(settings: dict[str, Any], one: Any, updates: Any) -> None:
    own = reading({**SB3, **settings})
    assert own.role("ratio_is_one") == one and own.role("updates_per_batch") == updates
    assert own.role("pi_old") == (MISSING if updates is MISSING else "sampler")
    assert own.role("staleness") == (MISSING if updates is MISSING else 0)


def test_the_zoos_hyperparameters_are_read_where_they_lie() -> None:
    saved = {"n_steps": 32, "n_envs": 8, "batch_size": 256, "n_epochs": 1}
    own = reading({"algo": "ppo", "env": "CartPole-v1", "seed": 3, "saved_hyperparams": saved})
    assert own.role("ratio_is_one") is True and own.seed.order == "3"


@pytest.mark.parametrize(
    ("settings", "one", "updates"),
    [
        ({}, False, 16),
        ({"update_epochs": 1}, False, 4),
        ({"num_minibatches": 1}, False, 4),
        ({"update_epochs": 1, "num_minibatches": 1}, True, 1),
        ({"update_epochs": None}, MISSING, MISSING),
    ],
)
def test_cleanrls_ratio(settings: dict[str, Any], one: Any, updates: Any) -> None:
    own = reading({**CLEANRL, **settings})
    assert own.role("ratio_is_one") == one and own.role("updates_per_batch") == updates
    assert own.role("pi_old") == (MISSING if updates is MISSING else "sampler")


def test_cleanrls_asynchronous_scripts_are_told_by_their_names() -> None:
    assert reading(CLEANRL).role("asynchronous") is False and reading(CLEANRL).role("staleness") == 0
    own = reading({**CLEANRL, "exp_name": "ppo_atari_envpool_async_jax_scan_impalanet_machado"})
    assert own.role("asynchronous") is True and own.role("staleness") == 1


@pytest.mark.parametrize("name", ["stable_baselines3", "cleanrl"])
def test_metrics_alone_tell_no_role(name: str) -> None:
    own = reading({}, keys=frozenset(FRAMEWORKS[name].metrics("x")))
    assert own.run.framework == name and not own.roles and own.seed.why == "no configuration is logged"


# data orders


@pytest.mark.parametrize(
    ("config", "settings", "expected"),
    [
        (TRL, {}, EffectiveSeed("42", True, 42, "seed")),
        (TRL, {"seed": 7, "data_seed": 9}, EffectiveSeed("7", True, 7, "seed")),  # data_seed is ignored
        (TRL, {"seed": "7"}, EffectiveSeed("7", True, 7, "seed")),
        (
            TRL,
            {"shuffle_dataset": False},
            EffectiveSeed("the file's order", False, 42, "seed", "shuffle_dataset is False"),
        ),
        (
            TRL,
            {"shuffle_dataset": "False"},
            EffectiveSeed("the file's order", False, 42, "seed", "shuffle_dataset is False"),
        ),
        (TRL, {"shuffle_dataset": None}, EffectiveSeed("42", True, 42, "seed")),  # before 0.17
        (SB3, {}, EffectiveSeed("1", True, 1, "seed")),
        (
            SB3,
            {"seed": None},
            EffectiveSeed(
                None,
                False,
                None,
                "seed",
                "a null seed leaves the environments, the actions and the minibatches unseeded",
                True,
            ),
        ),
        (CLEANRL, {}, EffectiveSeed("1", True, 1, "seed")),
    ],
)
def test_what_orders_the_data(config: Mapping[str, Any], settings: dict[str, Any], expected: EffectiveSeed) -> None:
    assert reading({**config, **settings}).seed == expected


# the files themselves


def framework_text(name: str) -> str:
    return files("pth_tracker.vocabulary").joinpath("frameworks", f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("quantities", "clip_fractoin", [{"key": "x"}]),
        ("roles", "ratio_is_won", {"expr": "1"}),
        ("roles", "correction", {"python": "no_such_function"}),
        ("remedies", "no_such_quantity", "log it"),
    ],
)
def test_a_name_that_the_code_does_not_know_is_an_error(
    tmp_path: Path, name: str, section: str, key: str, value: Any
) -> None:
    data = yaml.safe_load(framework_text(name))
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    assert load_vocabulary((path,)).frameworks[name] == load_vocabulary().frameworks[name]
    data[section][key] = value
    bad = tmp_path / f"bad-{name}.yaml"
    bad.write_text(yaml.safe_dump(data))
    unknown = value["python"] if isinstance(value, dict) and "python" in value else key
    with pytest.raises(UsageError, match=f"bad-{name}.yaml: unknown name '{unknown}'"):
        load_vocabulary((bad,))


def names_in(expression: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", load_vocabulary().frameworks)
def test_expressions_name_only_roles_that_are_read_before_them(name: str) -> None:
    framework = load_vocabulary().frameworks[name]
    known = {"cfg", "has", *ARITHMETIC}
    for role, rule in framework.roles.items():
        assert not rule.expr or names_in(rule.expr) <= known, (role, names_in(rule.expr) - known)
        known.add(role)
    conditions = [switch.when for switch in framework.switches]
    conditions += [inert.when for inert in framework.data_seed.inert]
    conditions += [one.when for candidates in framework.quantities.values() for one in candidates if one.when]
    for condition in conditions:
        assert names_in(condition) <= known, condition


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_configuration_is_reduced_to_what_matters(name: str) -> None:
    own = reading(FRAMEWORKS[name].config)
    aside = {"output_dir", "run_name", "report_to", "hub_token", "data_seed", "tensorboard_log", "ep_info_buffer"}
    aside |= {"_n_updates", "start_time", "track", "wandb_project_name", "wandb_entity", "capture_video"}
    later = {"cuda", "total_timesteps"}
    derived = {"batch_size", "minibatch_size"} if name == "cleanrl" else set()
    for key in own.run.config:
        assert own.is_bookkeeping(key) is (key in aside), key
        assert own.is_soft(key) is (key in later), key
        assert own.is_derived(key) is (key in derived), key
        assert own.is_seed(key) is (key == "seed"), key
    assert not own.run.config.keys() & {"hub_token"} or is_secret("hub_token", own.framework.secrets)


def test_trls_bookkeeping_covers_the_trainers_own_arguments() -> None:
    own = reading(TRL)
    for key in ("logging_steps", "save_strategy", "push_to_hub_model_id", "hub_private_repo", "push_to_hub_token"):
        assert own.is_bookkeeping(key)
    assert own.is_soft("dataloader_num_workers") and own.is_soft("gradient_checkpointing_kwargs.use_reentrant")
    for key in ("_name_or_path", "epsilon", "learning_rate", "warmup_ratio", "num_generations", "peft_config.r"):
        assert not own.is_bookkeeping(key) and not own.is_soft(key)


def test_an_objects_place_in_memory_is_no_setting() -> None:
    here, there = (
        "<function get_schedule_fn.<locals>.f at 0x7f3a1c0b5e50>",
        "<function get_schedule_fn.<locals>.f at 0x7f9>",
    )
    assert canonical_value(here) == canonical_value(there) == "<function get_schedule_fn.<locals>.f>"
    assert canonical_value("mail at 0x7f") == "mail at 0x7f"  # only objects
    assert canonical_value("<ConstantSchedule(val=0.2)>") != canonical_value("<ConstantSchedule(val=0.3)>")


# audits


def runs_of(name: str, seeds: Callable[[str, int], Any] = lambda arm, seed: seed, **settings: Any) -> list[FakeRun]:
    """Two arms over seeds 1, 2 and 3, named after them; ``seeds`` gives the one in the configuration."""
    own = FRAMEWORKS[name]
    nothing = dict.fromkeys(make_run("x").points)
    made: list[FakeRun] = []
    for arm, value in zip(("base", "other"), own.values):
        for seed in (1, 2, 3):
            label = f"{arm}-seed{seed}"
            config = {**own.config, own.treatment: value, "seed": seeds(arm, seed), **settings}
            logged: dict[str, Values | None] = {**nothing, **own.metrics(label)}
            made.append(make_run(label, config=config, metrics=logged, updates=UPDATES, number=len(made)))
    return made


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_clean_comparison_stays_clean(name: str) -> None:
    report = audit_of(runs_of(name))
    assert {entry.framework for entry in report.runs.values()} == {name}
    assert set(report.design.arms) == {"base", "other"}
    assert loud(report) == []


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_seed_that_one_arm_lost_is_found(name: str) -> None:
    report = audit_of(runs_of(name, lambda arm, seed: seed if arm == "base" else 42))
    found = only(report, "lost-seed")
    assert (str(found.level), found.tag) == ("fail", LOST_SEED)
    assert labels(report, found.blames) == ["other-seed1", "other-seed2", "other-seed3"]
    assert "named seed2, trained on '42'" in found.detail


def test_a_data_seed_that_trl_ignores_is_a_lost_seed() -> None:
    runs = [
        run
        for number in (1, 2, 3)
        for run in runs_of("trl_grpo", lambda arm, seed: 42, data_seed=number)
        if run.name.endswith(f"seed{number}")
    ]
    report = audit_of(runs)
    assert {label for one in findings(report, "lost-seed") for label in labels(report, one.blames)} == {
        run.name for run in runs
    }


def test_a_prompt_order_that_no_seed_changes_is_found() -> None:
    report = audit_of(runs_of("trl_grpo", shuffle_dataset=False))
    assert all("the file's order" in one.detail for one in findings(report, "lost-seed"))
    assert {label for one in findings(report, "lost-seed") for label in labels(report, one.blames)} == {
        f"{arm}-seed{seed}" for arm in ("base", "other") for seed in (1, 2, 3)
    }


def test_clip_ranges_are_not_compared_where_trls_ratio_is_one() -> None:
    arms = {"low": 0.2, "high": 0.3}
    runs = [
        make_run(
            f"{arm}-seed{seed}",
            config={**TRL, "seed": seed, "epsilon": epsilon},
            metrics={
                **dict.fromkeys(make_run("x").points),
                **trl_metrics(f"{arm}-seed{seed}"),
                "clip_ratio/region_mean": 0.0,
            },
            updates=UPDATES,
            number=seed,
        )
        for arm, epsilon in arms.items()
        for seed in (1, 2)
    ]
    report = audit_of(runs)
    assert [one.evidence["key"] for one in findings(report, "clip-range-cannot-act")] == ["epsilon"]
    assert findings(report, "idle-clip") == []


def test_what_is_missing_is_answered_with_the_frameworks_own_option() -> None:
    report = audit_of(runs_of("trl_grpo"))
    assert any(
        "vllm_importance_sampling_correction=True" in one.remedy for one in not_judged(report, "sampler-mismatch")
    )

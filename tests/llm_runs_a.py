"""Fixtures of TRL's other trainers, of what wraps TRL, of OpenRLHF, NeMo-RL, SkyRL and slime: what each logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pth_tracker.values import MISSING

UPDATES = 40
HF: dict[str, Any] = {
    "output_dir": "out",
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
    "epsilon": 0.2,
    "epsilon_high": None,
    "beta": 0.0,
    "use_vllm": False,
    "model_type": "qwen2",
    "_name_or_path": "Qwen/Qwen2.5-1.5B",
    "model/num_parameters": 1543714304,
}
GRPO = {**HF, "loss_type": "dapo", "scale_rewards": "group", "vllm_importance_sampling_correction": True}
OPENRLHF: dict[str, dict[str, Any]] = {
    "actor": {"eps_clip": 0.2, "eps_clip_low_high": (0.2, 0.2), "dual_clip": None, "policy_loss_type": "ppo"},
    "rollout": {"batch_size": 16, "n_samples_per_prompt": 8, "top_p": 1.0, "temperature": 1.0, "max_new_tokens": 1024},
    "train": {"batch_size": 128, "micro_batch_size": 4, "max_epochs": 1, "seed": 42, "async_enable": False},
    "algo": {
        "advantage": {"estimator": "group_norm", "is_correction_enable": False, "is_correction_type": "tis"},
        "kl": {"init_coef": 0.01, "use_loss": False, "estimator": "k1"},
        "dynamic_filtering_enable": False,
    },
    "ds": {"zero_stage": 2, "lora": {"rank": 0}},
    "vllm": {"num_engines": 2},
    "data": {"prompt_dataset": "gsm8k"},
    "logger": {"wandb": {"key": "0123456789abcdef", "project": "openrlhf_train_ppo"}, "logging_steps": 1},
    "ckpt": {"path": "./ckpt"},
}

OPENRLHF_FLAT: dict[str, Any] = {
    "eps_clip_low_high": None,
    "eps_clip": 0.2,
    "n_samples_per_prompt": 8,
    "micro_rollout_batch_size": 4,
    "colocate_all_models": True,
    "rollout_batch_size": 16,
    "train_batch_size": 128,
    "max_epochs": 1,
    "seed": 7,
    "enable_vllm_is_correction": True,
    "advantage_estimator": "rloo",
    "use_wandb": "0123456789",
    "async_train": False,
}
"""OpenRLHF's arguments up to 0.10.1."""


def printed(nested: Mapping[str, Any]) -> str:
    """A group of OpenRLHF's arguments as W&B keeps it."""

    def build(value: Any) -> Any:
        return SimpleNamespace(**{k: build(v) for k, v in value.items()}) if isinstance(value, dict) else value

    return repr(build(dict(nested)))


def with_dotted(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """OpenRLHF's printed groups, or a nested configuration, with other dotted settings."""
    copied: dict[str, Any] = {k: with_dotted(v, {}) if isinstance(v, dict) else v for k, v in config.items()}
    for key, value in settings.items():
        *path, leaf = key.split(".")
        place = copied
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return copied


@dataclass(frozen=True)
class Case:
    """One framework's fixture: a configuration, what it logs, and what must be read from both."""

    config: Mapping[str, Any]
    seed_key: str
    metrics: Mapping[str, tuple[float, float]]
    """Raw metric to the range of its values."""
    quantities: Mapping[str, str]
    """Quantity to the raw metric that holds it; all others of check 1 have none."""
    roles: Mapping[str, Any]
    treatment: tuple[str, Any]
    clean: frozenset[str] = frozenset()
    """Rules that are loud on a clean comparison with the runs named after their seeds."""
    aside: tuple[str, ...] = ()
    """Keys of the configuration that are bookkeeping."""
    dotted: bool = False
    """Whether settings are of nested groups."""
    printed: bool = False

    def settings(self, **settings: Any) -> dict[str, Any]:
        own = with_dotted(self.config, settings) if self.dotted else {**self.config, **settings}
        return {key: printed(value) for key, value in own.items()} if self.printed else own


def hf(**metrics: tuple[float, float]) -> dict[str, tuple[float, float]]:
    common = {
        "loss": (-0.01, 0.01),
        "grad_norm": (0.1, 0.6),
        "learning_rate": (1e-6, 1e-6),
        "reward": (0.4, 0.5),
        "reward_std": (0.2, 0.3),
        "rewards/accuracy/mean": (0.4, 0.5),
        "frac_reward_zero_std": (0.1, 0.1),
        "completions/mean_length": (150, 160),
        "completions/clipped_ratio": (0.01, 0.01),
        "clip_ratio/region_mean": (0.01, 0.02),
        "kl": (0.1, 0.2),
    }
    return {f"train/{key}": value for key, value in {**common, **metrics}.items()}


TRL_ROLES = {"group_size": 8, "batch_size": 32, "updates_per_batch": 1, "pi_old": "learner", "staleness": 0}
CLIP = {"clip_fraction": "train/clip_ratio/region_mean", "train_score_mean": "train/reward"}
CASES: dict[str, Case] = {
    "trl_rloo": Case(
        {**HF, "beta": 0.05, "normalize_advantages": False, "reward_clip_range": None},
        "seed",
        hf(),
        CLIP,
        {
            **TRL_ROLES,
            "ratio_is_one": True,
            "correction": "none",
            "reward_penalty": "k1 KL to the reference, coefficient 0.05",
            "normaliser": "mean over completions within each micro-batch",
        },
        ("beta", 0.1),
        aside=("output_dir", "report_to", "hub_token", "data_seed"),
    ),
    "trl_async_grpo": Case(
        {
            **{k: v for k, v in HF.items() if k not in ("steps_per_generation", "generation_batch_size", "beta")},
            "max_staleness": 4,
            "weight_sync_steps": 2,
            "max_inflight_tasks": -1,
            "queue_maxsize": 1024,
        },
        "seed",
        hf(kl=(0.001, 0.002), ratio=(0.99, 1.01), **{"sample/staleness_mean": (1.0, 2.0)}),
        {**CLIP, "sampler_k3_kl": "train/kl", "data_age": "train/sample/staleness_mean"},
        {"pi_old": "sampler", "ratio_is_one": False, "staleness": 8, "asynchronous": True, "updates_per_batch": 1},
        ("epsilon", 0.3),
        clean=frozenset({"lost-seed"}),  # the prompts are read in the data set's order
        aside=("output_dir", "report_to", "hub_token", "data_seed"),
    ),
    "trl_ppo": Case(
        {
            **{k: v for k, v in HF.items() if "generation" not in k and k not in ("num_iterations", "epsilon", "beta")},
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "cliprange": 0.2,
            "cliprange_value": 0.2,
            "whiten_rewards": False,
            "kl_coef": 0.05,
            "kl_estimator": "k1",
            "batch_size": 64,
            "reward_model_path": "rm",
            "exp_name": "ppo_config",
        },
        "seed",
        {
            "train/policy/clipfrac_avg": (0.01, 0.02),
            "train/policy/approxkl_avg": (0.001, 0.002),
            "train/policy/entropy_avg": (0.3, 0.32),
            "train/val/ratio": (0.99, 1.01),
            "train/val/clipfrac_avg": (0.2, 0.3),
            "train/objective/kl": (5, 6),
            "train/objective/scores": (0.4, 0.5),
            "train/objective/rlhf_reward": (0.1, 0.2),
            "train/loss/policy_avg": (-0.01, 0.01),
            "train/lr": (1e-6, 1e-6),
        },
        {
            "clip_fraction": "train/policy/clipfrac_avg",
            "learner_kl": "train/policy/approxkl_avg",
            "train_score_mean": "train/objective/scores",
            "train_reward_mean": "train/objective/rlhf_reward",
            "loss": "train/loss/policy_avg",
            "lr": "train/lr",
        },
        {"updates_per_batch": 1, "ratio_is_one": True, "pi_old": "learner", "batch_size": 64, "group_advantage": False},
        ("kl_coef", 0.1),
        aside=("output_dir", "report_to", "hub_token", "data_seed", "exp_name"),
    ),
    "trl_ppo_legacy": Case(
        {
            "trl_ppo_trainer_config": {
                "exp_name": "ppo",
                "seed": 0,
                "ppo_epochs": 1,
                "batch_size": 128,
                "mini_batch_size": 64,
                "gradient_accumulation_steps": 2,
                "cliprange": 0.2,
                "init_kl_coef": 0.2,
                "log_with": "wandb",
            },
        },
        "trl_ppo_trainer_config.seed",
        {
            "ppo/policy/clipfrac": (0.01, 0.02),
            "ppo/policy/approxkl": (0.001, 0.002),
            "ppo/policy/policykl": (-0.001, 0.001),
            "ppo/policy/entropy": (0.3, 0.32),
            "ppo/loss/policy": (-0.01, 0.01),
            "ppo/mean_scores": (0.4, 0.5),
            "env/reward_mean": (0.4, 0.5),
            "objective/kl": (5, 6),
        },
        {
            "clip_fraction": "ppo/policy/clipfrac",
            "learner_kl": "ppo/policy/approxkl",
            "train_score_mean": "env/reward_mean",
        },
        {
            "updates_per_batch": 1,
            "ratio_is_one": True,
            "pi_old": "learner",
            "correction": "none",
            "group_advantage": False,
        },
        ("trl_ppo_trainer_config.init_kl_coef", 0.1),
        aside=("trl_ppo_trainer_config.exp_name", "trl_ppo_trainer_config.log_with"),
        dotted=True,
    ),
    "unsloth_grpo": Case(
        {
            **GRPO,
            "loss_type": "bnpo",
            "use_vllm": True,
            "vllm_importance_sampling_correction": False,
            "unsloth_num_chunks": -1,
            "vllm_sampling_params": None,
        },
        "seed",
        hf(completion_length=(150, 160), kl=(0.0, 0.0)),
        CLIP,
        {**TRL_ROLES, "ratio_is_one": True, "correction": "none"},
        ("beta", 0.04),
        aside=("output_dir", "report_to", "hub_token", "data_seed"),
    ),
    "ms_swift_grpo": Case(
        {
            **{k: v for k, v in GRPO.items() if k != "vllm_importance_sampling_correction"},
            "use_vllm": True,
            "data_seed": 42,
            "rollout_importance_sampling_mode": None,
            "log_rollout_offpolicy_metrics": True,
            "advantage_estimator": "grpo",
            "dynamic_sample": False,
            "dataset_shuffle": True,
            "async_generate": False,
        },
        "seed",
        hf(
            **{
                "rollout_correction/k3_kl": (1e-4, 2e-4),
                "rollout_correction/kl": (-1e-4, 1e-4),
                "entropy/mean": (0.3, 0.4),
            }
        ),
        {
            **CLIP,
            "sampler_k3_kl": "train/rollout_correction/k3_kl",
            "sampler_kl": "train/rollout_correction/kl",
            "entropy": "train/entropy/mean",
        },
        {**TRL_ROLES, "ratio_is_one": True, "correction": "none", "normaliser": "token-mean"},
        ("beta", 0.04),
        aside=("output_dir", "report_to", "hub_token"),
    ),
    "axolotl_grpo": Case(
        {**GRPO, "use_vllm": True, "use_data_producer": True, "async_prefetch": True, "prefetch_depth": 1}
        | {
            "vllm_sync_interval": 2,
            "replay_buffer_size": 0,
            "reroll_start_fraction": 1.0,
            "dataset_prepared_path": "x",
        },
        "seed",
        hf(
            **{
                "sampling/sampling_logp_difference/mean": (0.01, 0.02),
                "sampling/importance_sampling_ratio/mean": (0.9, 1),
            }
        ),
        {
            **CLIP,
            "sampler_abs_dlogp": "train/sampling/sampling_logp_difference/mean",
            "is_weight_mean": "train/sampling/importance_sampling_ratio/mean",
        },
        {**TRL_ROLES, "staleness": 2, "ratio_is_one": False, "correction": "token_truncate against vLLM"},
        ("epsilon", 0.3),
        aside=("output_dir", "report_to", "hub_token", "data_seed", "dataset_prepared_path"),
    ),
    "openrlhf": Case(
        OPENRLHF,
        "train.seed",
        {
            "train/ppo_clip_ratio": (0.01, 0.02),
            "train/ppo_kl": (-0.001, 0.001),
            "train/kl": (0.5, 0.6),
            "train/logprobs_diff": (0.5, 0.6),
            "train/policy_loss": (-0.01, 0.01),
            "train/actor_grad_norm": (0.1, 0.6),
            "train/actor_lr": (1e-6, 1e-6),
            "train/reward": (0.4, 0.5),
            "train/rollout/reward_mean": (0.4, 0.5),
            "train/response_length": (150, 160),
        },
        {
            "clip_fraction": "train/ppo_clip_ratio",
            "learner_kl": "train/ppo_kl",
            "grad_norm": "train/actor_grad_norm",
            "train_score_mean": "train/rollout/reward_mean",
        },
        {
            "group_size": 8,
            "batch_size": 16,
            "updates_per_batch": 1,
            "ratio_is_one": True,
            "pi_old": "learner",
            "correction": "none",
            "staleness": 0,
            "group_advantage": True,
            "reward_penalty": "k1 KL to the reference, coefficient 0.01",
            "normaliser": "token-mean",
        },
        ("algo.kl.init_coef", 0.05),
        aside=("logger.wandb.key", "logger.wandb.project", "logger.logging_steps", "ckpt.path"),
        dotted=True,
        printed=True,
    ),
    "nemo_rl": Case(
        {
            "grpo": {
                "num_prompts_per_step": 32,
                "num_generations_per_prompt": 16,
                "seed": 42,
                "use_dynamic_sampling": False,
                "seq_logprob_error_threshold": None,
                "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
                "adv_estimator": {"name": "grpo", "minus_baseline": True},
            },
            "loss_fn": {
                "ratio_clip_min": 0.2,
                "ratio_clip_max": 0.2,
                "reference_policy_kl_type": "k3",
                "reference_policy_kl_penalty": 0.01,
                "use_importance_sampling_correction": False,
                "token_level_loss": True,
                "force_on_policy_ratio": False,
            },
            "policy": {"train_global_batch_size": 512, "model_name": "m", "generation": {"temperature": 1.0}},
            "data": {"shuffle": True, "train": {"dataset_name": "d", "seed": 42}},
            "logger": {"log_dir": "logs"},
        },
        "grpo.seed",
        {
            "train/probs_ratio": (1.0, 1.0),
            "train/probs_ratio_clamped": (1.0, 1.0),
            "train/token_mult_prob_error": (1.01, 1.02),
            "train/gen_kl_error": (1e-4, 2e-4),
            "train/sampling_importance_ratio": (0.99, 1.01),
            "train/loss": (-0.01, 0.01),
            "train/grad_norm": (0.1, 0.6),
            "train/reward": (0.4, 0.5),
            "train/lr": (1e-6, 1e-6),
        },
        {"sampler_k3_kl": "train/gen_kl_error", "is_weight_mean": "train/sampling_importance_ratio"},
        {"group_size": 16, "updates_per_batch": 1, "ratio_is_one": True, "correction": "none", "staleness": 0}
        | {"group_advantage": True, "reward_penalty": "none", "normaliser": "token-mean", "shuffled": True},
        ("loss_fn.reference_policy_kl_penalty", 0.0),
        aside=("logger.log_dir",),
        dotted=True,
    ),
    "skyrl": Case(
        {
            "trainer": {
                "seed": 42,
                "train_batch_size": 64,
                "policy_mini_batch_size": 64,
                "update_epochs_per_batch": 1,
                "run_name": "r",
                "fully_async": {"enabled": False, "max_staleness_steps": 4},
                "algorithm": {
                    "policy_loss_type": "regular",
                    "advantage_estimator": "grpo",
                    "eps_clip_low": 0.2,
                    "eps_clip_high": 0.2,
                    "loss_reduction": "token_mean",
                    "use_kl_in_reward": False,
                    "kl_loss_coef": 0.001,
                    "off_policy_correction": {"tis_ratio_type": None, "sequence_mask_metric": None},
                },
            },
            "generator": {"n_samples_per_prompt": 5},
            "data": {"train_data": ["t"]},
        },
        "trainer.seed",
        {
            "policy/loss_metrics/clip_ratio": (0.01, 0.02),
            "policy/rollout_train_logprobs_abs_diff_mean": (0.01, 0.02),
            "policy/policy_kl": (0.5, 0.6),
            "policy/policy_loss": (-0.01, 0.01),
            "policy/policy_lr": (1e-6, 1e-6),
            "policy/grad_norm": (0.1, 0.6),
            "reward/avg_raw_reward": (0.4, 0.5),
            "generate/avg_num_tokens": (150, 160),
        },
        {
            "clip_fraction": "policy/loss_metrics/clip_ratio",
            "sampler_abs_dlogp": "policy/rollout_train_logprobs_abs_diff_mean",
            "response_length_mean": "generate/avg_num_tokens",
        },
        {"group_size": 5, "updates_per_batch": 1, "ratio_is_one": True, "pi_old": "learner", "correction": "none"}
        | {"staleness": 0, "clip_not_testable": False, "normaliser": "token-mean", "batch_size": 64},
        ("trainer.algorithm.kl_loss_coef", 0.01),
        aside=("trainer.run_name",),
        dotted=True,
    ),
    "slime": Case(
        {
            "seed": 1234,
            "rollout_seed": 42,
            "rollout_shuffle": True,
            "hf_checkpoint": "m",
            "prompt_data": "d",
            "rollout_batch_size": 32,
            "n_samples_per_prompt": 8,
            "global_batch_size": 256,
            "num_steps_per_rollout": None,
            "advantage_estimator": "grpo",
            "eps_clip": 0.2,
            "use_tis": False,
            "use_rollout_logprobs": False,
            "keep_old_actor": False,
            "update_weights_interval": 1,
            "kl_coef": 0.0,
            "calculate_per_token_loss": False,
            "wandb_key": "0123456789abcdef",
            "save": "ckpt",
        },
        "rollout_seed",
        {
            "train/pg_clipfrac": (0.01, 0.02),
            "train/ppo_kl": (-0.001, 0.001),
            "train/train_rollout_logprob_abs_diff": (0.01, 0.02),
            "train/pg_loss": (-0.01, 0.01),
            "train/grad_norm": (0.1, 0.6),
            "train/entropy_loss": (0.3, 0.32),
            "rollout/raw_reward": (0.4, 0.5),
            "rollout/rewards": (0.0, 0.0),
            "rollout/response_len/mean": (150, 160),
        },
        {
            "clip_fraction": "train/pg_clipfrac",
            "learner_kl": "train/ppo_kl",
            "sampler_abs_dlogp": "train/train_rollout_logprob_abs_diff",
            "train_score_mean": "rollout/raw_reward",
        },
        {"group_size": 8, "updates_per_batch": 1, "ratio_is_one": True, "pi_old": "learner", "correction": "none"}
        | {"staleness": MISSING, "normaliser": "seq-mean-token-mean", "reward_penalty": "none", "batch_size": 32},
        ("kl_coef", 0.01),
        aside=("wandb_key", "save"),
    ),
}
CHECK_1 = (
    "clip_fraction",
    "learner_kl",
    "sampler_kl",
    "sampler_k3_kl",
    "sampler_abs_dlogp",
    "is_weight_mean",
    "data_age",
)

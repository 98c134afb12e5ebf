"""The vocabularies of RLlib, skrl, rl_games, RSL-RL, Sample Factory and PufferLib, on runs as they log them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pth_tracker.design.stitch import recognise
from pth_tracker.errors import UsageError
from pth_tracker.model import LOST_SEED
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import GENERIC, detect_framework
from pth_tracker.vocabulary.load import Vocabulary, load_vocabulary
from synthetic import ABSENT, FakeRun, Values, audit_of, findings, labels, loud, make_run, only, set_dotted

UPDATES = 40


@dataclass(frozen=True)
class Trained:
    """One framework as it is logged, and what its vocabulary has to make of that."""

    config: Mapping[str, Any]
    metrics: Mapping[str, tuple[float, float]]
    """Metric to the range of its values."""
    quantities: Mapping[str, tuple[str, str]]
    """Quantity to the metric that holds it and its estimator, clip or weights."""
    absent: tuple[str, ...]
    """Quantities that it does not log."""
    seed: str
    one: Mapping[str, Any]
    """Settings that make the ratio 1 by the framework's own rule."""
    many: tuple[Mapping[str, Any], ...]
    """Settings that each break one part of that rule, on top of `one`."""
    treatment: tuple[str, Any, Any]
    clip_range: str
    secret_free: tuple[str, ...]
    """Keys that set no arms apart."""
    score: str
    roles: Mapping[str, Any] = field(default_factory=dict)


COMMON = {"pi_old": "sampler", "correction": "none", "staleness": 0, "asynchronous": False, "reward_penalty": "none"}
FRAMEWORKS = {
    "rllib": Trained(
        config={
            "num_env_runners": 2, "clip_param": 0.3, "vf_clip_param": 10.0, "use_kl_loss": True, "kl_coeff": 0.2,
            "kl_target": 0.01, "train_batch_size": 4000, "train_batch_size_per_learner": None, "num_epochs": 30,
            "minibatch_size": 128, "vf_loss_coeff": 1.0, "entropy_coeff": 0.0, "seed": 1, "env": "CartPole-v1",
            "env_config": {}, "trial_id": "ab_0", "experiment_tag": "0", "node_ip": "10.0.0.1", "hostname": "h",
            "pid": 7, "date": "2026-03-01", "num_gpus_per_learner": 0, "log_level": "WARN",
            "_disable_preprocessor_api": False,
        },
        metrics={
            "learners/default_policy/mean_kl_loss": (0.005, 0.02),
            "learners/default_policy/policy_loss": (-0.02, 0.02),
            "learners/default_policy/total_loss": (1, 9),
            "learners/default_policy/entropy": (0.5, 0.69),
            "learners/default_policy/vf_loss": (1, 9),
            "learners/default_policy/gradients_default_optimizer_global_norm": (0.1, 2),
            "env_runners/episode_return_mean": (20, 200),
            "env_runners/episode_len_mean": (20, 200),
            "evaluation/env_runners/episode_return_mean": (20, 200),
        },
        quantities={
            "learner_kl": ("learners/default_policy/mean_kl_loss", "exact"),
            "loss": ("learners/default_policy/policy_loss", ""),
            "grad_norm": ("learners/default_policy/gradients_default_optimizer_global_norm", ""),
            "entropy": ("learners/default_policy/entropy", ""),
            "train_score_mean": ("env_runners/episode_return_mean", ""),
        },
        absent=("clip_fraction", "sampler_kl", "sampler_k3_kl", "response_length_mean"),
        seed="seed",
        one={"num_epochs": 1, "minibatch_size": 4000},
        many=({"num_epochs": 2}, {"minibatch_size": 2000}, {"broadcast_interval": 1}),
        treatment=("entropy_coeff", 0.0, 0.01),
        clip_range="clip_param",
        secret_free=("trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date", "num_gpus_per_learner",
                     "log_level"),
        score="evaluation/env_runners/episode_return_mean",
    ),
    "skrl": Trained(
        config={
            "rollouts": 16, "learning_epochs": 8, "mini_batches": 2, "ratio_clip": 0.2, "value_clip": 0.2,
            "entropy_loss_scale": 0.01, "value_loss_scale": 1.0, "grad_norm_clip": 0.5, "kl_threshold": 0,
            "learning_rate_scheduler": "<class 'skrl.resources.schedulers.torch.kl_adaptive.KLAdaptiveLR'>",
            "experiment": {"directory": "runs/a", "experiment_name": "a", "write_interval": 250, "wandb": True},
            "seed": 1,
        },
        metrics={
            "Reward / Total reward (mean)": (20, 200),
            "Reward / Instantaneous reward (mean)": (0.5, 1),
            "Episode / Total timesteps (mean)": (20, 200),
            "Loss / Policy loss": (-0.02, 0.02),
            "Loss / Value loss": (1, 9),
            "Loss / Entropy loss": (-0.007, -0.005),
            "Learning / Learning rate": (1e-4, 1e-3),
        },
        quantities={
            "loss": ("Loss / Policy loss", ""),
            "train_score_mean": ("Reward / Total reward (mean)", ""),
        },
        absent=("clip_fraction", "learner_kl", "entropy", "grad_norm", "lr", "response_length_mean"),
        seed="seed",
        one={"learning_epochs": 1, "mini_batches": 1},
        many=({"learning_epochs": 2}, {"mini_batches": 2}),
        treatment=("entropy_loss_scale", 0.01, 0.0),
        clip_range="ratio_clip",
        secret_free=("experiment.directory", "experiment.experiment_name", "experiment.write_interval",
                     "experiment.wandb"),
        score="Reward / Total reward (mean)",
    ),
    "rl_games": Trained(
        config={
            "params": {
                "seed": 1,
                "algo": {"name": "a2c_continuous"},
                "config": {
                    "e_clip": 0.2, "mini_epochs": 4, "minibatch_size": 512, "horizon_length": 16, "num_actors": 64,
                    "normalize_advantage": True, "lr_schedule": "adaptive", "kl_threshold": 0.008,
                    "bounds_loss_coef": 0.0001, "name": "ant", "full_experiment_name": "ant_1", "train_dir": "runs",
                    "save_frequency": 50, "env_name": "ant",
                },
            }
        },
        metrics={
            "diagnostics/clip_frac/0": (0.01, 0.1),
            "diagnostics/clip_frac/1": (0.05, 0.2),
            "info/kl": (0.004, 0.012),
            "info/last_lr": (1e-4, 3e-4),
            "info/e_clip": (0.2, 0.2),
            "losses/a_loss": (-0.02, 0.02),
            "losses/c_loss": (1, 9),
            "losses/entropy": (2, 3),
            "rewards/step": (20, 200),
            "rewards/iter": (20, 200),
            "rewards/time": (20, 200),
        },
        quantities={
            "clip_fraction": ("diagnostics/clip_frac/1", "outside_band"),
            "learner_kl": ("info/kl", "exact"),
            "loss": ("losses/a_loss", ""),
            "entropy": ("losses/entropy", ""),
            "train_score_mean": ("rewards/step", ""),
        },
        absent=("lr", "grad_norm", "sampler_k3_kl", "response_length_mean"),
        seed="params.seed",
        one={"params.config.mini_epochs": 1, "params.config.minibatch_size": 1024},
        many=({"params.config.mini_epochs": 2}, {"params.config.minibatch_size": 512}),
        treatment=("params.config.normalize_advantage", True, False),
        clip_range="params.config.e_clip",
        secret_free=("params.config.name", "params.config.full_experiment_name", "params.config.train_dir",
                     "params.config.save_frequency"),
        score="rewards/step",
    ),
    "rsl_rl": Trained(
        config={
            "log_dir": "logs/a",
            "train_cfg": {
                "seed": 1, "num_steps_per_env": 24, "save_interval": 50, "experiment_name": "ant", "run_name": "a",
                "logger": "wandb", "wandb_project": "p", "resume": False, "load_run": ".*", "load_checkpoint": ".*",
                "algorithm": {
                    "clip_param": 0.2, "num_learning_epochs": 5, "num_mini_batches": 4, "schedule": "adaptive",
                    "desired_kl": 0.01, "normalize_advantage_per_mini_batch": False,
                },
            },
            "env_cfg": {"scene": {"num_envs": 4096}},
        },
        metrics={
            "Loss/surrogate": (-0.02, 0.02),
            "Loss/value": (1, 9),
            "Loss/entropy": (2, 3),
            "Loss/learning_rate": (1e-4, 1e-3),
            "Policy/mean_std": (0.5, 1),
            "Perf/total_fps": (900, 1000),
            "Train/mean_reward": (20, 200),
            "Train/mean_episode_length": (20, 200),
            "Train/mean_reward/time": (20, 200),
        },
        quantities={
            "loss": ("Loss/surrogate", ""),
            "entropy": ("Loss/entropy", ""),
            "train_score_mean": ("Train/mean_reward", ""),
        },
        absent=("clip_fraction", "learner_kl", "lr", "grad_norm", "response_length_mean"),
        seed="train_cfg.seed",
        one={"train_cfg.algorithm.num_learning_epochs": 1, "train_cfg.algorithm.num_mini_batches": 1},
        many=({"train_cfg.algorithm.num_learning_epochs": 2}, {"train_cfg.algorithm.num_mini_batches": 2}),
        treatment=("train_cfg.algorithm.normalize_advantage_per_mini_batch", False, True),
        clip_range="train_cfg.algorithm.clip_param",
        secret_free=("log_dir", "train_cfg.save_interval", "train_cfg.run_name", "train_cfg.logger",
                     "train_cfg.wandb_project", "train_cfg.resume", "train_cfg.load_run", "train_cfg.load_checkpoint"),
        score="Train/mean_reward",
    ),
    "sample_factory": Trained(
        config={
            "env": "doom", "experiment": "a", "train_dir": "runs", "seed": 1, "ppo_clip_ratio": 0.1,
            "ppo_clip_value": 1.0, "num_epochs": 1, "num_batches_per_epoch": 1, "batch_size": 1024, "rollout": 32,
            "num_workers": 4, "num_envs_per_worker": 2, "with_vtrace": False, "async_rl": False, "serial_mode": True,
            "max_policy_lag": 1000, "num_batches_to_accumulate": 2, "normalize_returns": True, "with_wandb": True,
            "wandb_user": "u", "git_hash": "abc", "git_repo_name": "r", "command_line": "--env=doom", "device": "gpu",
            "cli_args": {"env": "doom"},
        },
        metrics={
            "train/fraction_clipped": (0.05, 0.2),
            "train/ratio_mean": (0.01, 0.1),
            "train/kl_divergence": (0.001, 0.01),
            "train/version_diff_avg": (1, 9),
            "train/entropy": (0.5, 0.69),
            "train/loss": (1, 9),
            "train/policy_loss": (-0.02, 0.02),
            "train/grad_norm": (0.1, 2),
            "train/lr": (1e-4, 1e-4),
            "reward/reward": (20, 200),
            "len/len": (20, 200),
        },
        quantities={
            "clip_fraction": ("train/fraction_clipped", "outside_band"),
            "learner_kl": ("train/kl_divergence", "exact"),
            "data_age": ("train/version_diff_avg", ""),
            "loss": ("train/policy_loss", ""),
            "grad_norm": ("train/grad_norm", ""),
            "lr": ("train/lr", ""),
            "train_score_mean": ("reward/reward", ""),
        },
        absent=("sampler_kl", "is_weight_mean", "response_length_mean"),
        seed="seed",
        one={},
        many=({"num_epochs": 2}, {"num_batches_per_epoch": 2}, {"async_rl": True}, {"serial_mode": False}),
        treatment=("normalize_returns", True, False),
        clip_range="ppo_clip_ratio",
        secret_free=("experiment", "train_dir", "with_wandb", "wandb_user", "git_hash", "git_repo_name",
                     "command_line", "cli_args.env", "device"),
        score="reward/reward",
    ),
    "pufferlib": Trained(
        config={
            "env_name": "breakout", "tag": None, "rnn_name": "Recurrent", "wandb": True, "wandb_project": "p",
            "neptune": False, "no_model_upload": False, "load_model_path": None,
            "train": {
                "seed": 1, "update_epochs": 1, "batch_size": 8192, "minibatch_size": 1024, "bptt_horizon": 64,
                "clip_coef": 0.2, "vf_clip_coef": 0.2, "ent_coef": 0.001, "vf_coef": 2.0, "device": "cuda",
                "data_dir": "experiments",
            },
            "env": {"num_envs": 128},
            "vec": {"backend": "Serial", "num_envs": 8},
        },
        metrics={
            "losses/clipfrac": (0.05, 0.2),
            "losses/approx_kl": (0.005, 0.02),
            "losses/old_approx_kl": (-0.01, 0.01),
            "losses/importance": (0.98, 1.02),
            "losses/policy_loss": (-0.02, 0.02),
            "losses/value_loss": (1, 9),
            "losses/entropy": (0.5, 0.69),
            "learning_rate": (1e-4, 1e-4),
            "environment/score": (20, 200),
            "environment/episode_return": (20, 200),
            "agent_steps": (1000, 2000),
            "SPS": (900, 1000),
        },
        quantities={
            "clip_fraction": ("losses/clipfrac", "outside_band"),
            "learner_kl": ("losses/approx_kl", "k3"),
            "is_weight_mean": ("losses/importance", "pre"),
            "loss": ("losses/policy_loss", ""),
            "lr": ("learning_rate", ""),
            "entropy": ("losses/entropy", ""),
            "train_score_mean": ("environment/score", ""),
        },
        absent=("grad_norm", "sampler_k3_kl", "response_length_mean"),
        seed="train.seed",
        one={"train.minibatch_size": 8192},
        many=({"train.update_epochs": 2}, {"train.minibatch_size": 4096}),
        treatment=("train.ent_coef", 0.001, 0.01),
        clip_range="train.clip_coef",
        secret_free=("wandb", "wandb_project", "neptune", "tag", "no_model_upload", "load_model_path",
                     "train.data_dir", "train.device"),
        score="environment/score",
    ),
}  # fmt: skip
OLDER: dict[str, tuple[str, Mapping[str, Any], frozenset[str]]] = {
    "RLlib's old stack": (
        "rllib",
        {"clip_param": 0.3, "vf_clip_param": 10.0, "num_sgd_iter": 30, "sgd_minibatch_size": 128,
         "train_batch_size": 4000},
        frozenset({"info/learner/default_policy/learner_stats/kl", "episode_reward_mean"}),
    ),
    "RLlib in TensorBoard": (
        "rllib",
        {},
        frozenset({"ray/tune/env_runners/episode_return_mean", "ray/tune/learners/default_policy/mean_kl_loss"}),
    ),
    "RLlib's old stack in TensorBoard": (
        "rllib",
        {},
        frozenset({"ray/tune/episode_reward_mean", "ray/tune/info/learner/default_policy/learner_stats/entropy"}),
    ),
    "RSL-RL 3": (
        "rsl_rl",
        {"runner_cfg": {"seed": 1}, "policy_cfg": {}, "env_cfg": {},
         "alg_cfg": {"num_learning_epochs": 5, "num_mini_batches": 4, "clip_param": 0.2}},
        frozenset({"Loss/value_function", "Policy/mean_noise_std"}),
    ),
    "PufferLib 1.0": (
        "pufferlib",
        {"rnn_name": "Recurrent", "train": {"seed": 1, "update_epochs": 4, "batch_size": 512, "minibatch_size": 128}},
        frozenset({"losses/clipfrac", "0verview/SPS"}),
    ),
    "PufferLib 1.0 in TensorBoard": (
        "pufferlib", {}, frozenset({"losses/clipfrac", "losses/old_approx_kl", "0verview/SPS"}),
    ),
}  # fmt: skip
for _name, _one in FRAMEWORKS.items():
    OLDER[f"{_name} with its configuration"] = (_name, _one.config, frozenset(_one.metrics))
    OLDER[f"{_name} without its configuration"] = (_name, {}, frozenset(_one.metrics))


def nested(config: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A copy of a nested configuration with dotted settings on top."""
    copied: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(config)))
    set_dotted(copied, settings or {})
    return copied


def reading(
    config: Mapping[str, Any], metrics: Mapping[str, float] | None = None, keys: frozenset[str] = frozenset()
) -> Reading:
    history = None
    if metrics is not None:
        history = History.from_points({key: ([1, 2, 3], [value] * 3) for key, value in metrics.items()})
        keys = frozenset(metrics)
    source = SourceRun(RunRef("p", "a"), "a", config=dict(config), metric_keys=keys)
    return Reading(load_vocabulary(), recognise(load_vocabulary(), [source]), history)


def of(name: str, settings: Mapping[str, Any] | None = None) -> Reading:
    return reading(nested(FRAMEWORKS[name].config, settings), keys=frozenset(FRAMEWORKS[name].metrics))


# recognition


@pytest.mark.parametrize("form", OLDER)
def test_a_framework_is_recognised_in_every_form(form: str) -> None:
    framework, config, keys = OLDER[form]
    assert reading(config, keys=keys).run.framework == framework


@pytest.mark.parametrize("form", OLDER)
def test_no_other_vocabulary_claims_a_frameworks_run(form: str) -> None:
    framework, config, keys = OLDER[form]
    full = load_vocabulary()
    heads = {name: head for name, head in full.heads.items() if name != framework}
    flat = reading(config, keys=keys).run.config
    rest = Vocabulary(full.quantities, full.roles, full.frameworks, "", heads)
    assert detect_framework(rest, flat, keys) == GENERIC


# quantities


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_quantities_mean_what_the_framework_logs(name: str) -> None:
    own = FRAMEWORKS[name]
    middle = {key: (low + high) / 2 for key, (low, high) in own.metrics.items()}
    read = reading(own.config, middle)
    for quantity, (key, meaning) in own.quantities.items():
        found = read.series(quantity)
        assert found is not None, quantity
        assert found.key == key and found.values.tolist() == pytest.approx([middle[key]] * 3)
        assert meaning in (found.meaning.estimator, found.meaning.clip, found.meaning.weights), quantity
    assert not [quantity for quantity in own.absent if read.series(quantity) is not None]
    assert read.raw_keys("eval_score")[0] == own.score
    assert read.framework.witness == ()


def test_a_kl_that_rllib_did_not_compute_is_none() -> None:
    key = "learners/default_policy/mean_kl_loss"
    assert reading(FRAMEWORKS["rllib"].config, {key: 0.0}).series("learner_kl") is None
    old = reading(OLDER["RLlib's old stack"][1], {"info/learner/default_policy/learner_stats/kl": 0.01})
    found = old.series("learner_kl")
    assert found is not None and found.meaning.estimator == "exact"
    prefixed = reading({}, {f"ray/tune/{key}": 0.01, "ray/tune/env_runners/episode_return_mean": 1.0})
    assert prefixed.series("learner_kl") is not None


def test_only_a_mini_epoch_that_can_clip_tells_whether_rl_games_clips() -> None:
    first = {"diagnostics/clip_frac/0": 0.0, "losses/a_loss": 0.1}
    assert reading(FRAMEWORKS["rl_games"].config, first).series("clip_fraction") is None
    single = nested(FRAMEWORKS["rl_games"].config, {"params.config.mini_epochs": 1})
    found = reading(single, first).series("clip_fraction")
    assert found is not None and found.key == "diagnostics/clip_frac/0"


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("skrl", {"learning_rate_scheduler": "<class 'torch.optim.lr_scheduler.StepLR'>"}, "Learning / Learning rate"),
        ("rl_games", {"params.config.lr_schedule": "linear"}, "info/last_lr"),
        ("rsl_rl", {"train_cfg.algorithm.schedule": "fixed"}, "Loss/learning_rate"),
        ("sample_factory", {"lr_schedule": "constant"}, "train/lr"),
    ],
)
def test_a_learning_rate_is_a_schedule_where_it_does_not_follow_the_kl(
    name: str, settings: dict[str, Any], key: str
) -> None:
    found = reading(nested(FRAMEWORKS[name].config, settings), {key: 1e-3}).series("lr")
    assert found is not None and found.key == key
    followed = {"lr_schedule": "kl_adaptive_epoch"} if name == "sample_factory" else {}
    assert reading(nested(FRAMEWORKS[name].config, followed), {key: 1e-3}).series("lr") is None


# roles


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_ratio_is_one_by_the_frameworks_own_rule(name: str) -> None:
    own = FRAMEWORKS[name]
    one = of(name, own.one)
    assert one.role("ratio_is_one") is True and one.role("updates_per_batch") == 1
    for settings in own.many:
        assert of(name, {**own.one, **settings}).role("ratio_is_one") is False, settings
    assert {role: one.role(role) for role in COMMON} == COMMON
    assert one.role("group_advantage") is False


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_text_as_mlflow_keeps_it_is_read_alike(name: str) -> None:
    own = FRAMEWORKS[name]
    flat = {key: str(value) for key, value in of(name, own.one).run.config.items()}
    text = reading(flat, keys=frozenset(own.metrics))
    assert text.roles == of(name, own.one).roles and text.seed == of(name, own.one).seed


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_metrics_alone_tell_no_role(name: str) -> None:
    own = reading({}, keys=frozenset(FRAMEWORKS[name].metrics))
    assert own.run.framework == name and not own.roles and own.seed.why == "no configuration is logged"


@pytest.mark.parametrize(
    ("name", "settings", "roles"),
    [
        ("rllib", {}, {"updates_per_batch": 30 * 32, "ratio_is_one": False}),
        ("rllib", {"train_batch_size_per_learner": 512}, {"updates_per_batch": 30 * 4}),
        ("rllib", {"minibatch_size": None}, {"updates_per_batch": MISSING, "ratio_is_one": MISSING}),
        ("rllib", {"broadcast_interval": 3, "vtrace": True}, {"staleness": 3, "correction": "v-trace"}),
        ("skrl", {}, {"updates_per_batch": 16}),
        ("rl_games", {}, {"updates_per_batch": 8}),
        ("rl_games", {"params.config.num_actors": ABSENT}, {"updates_per_batch": MISSING}),
        ("rsl_rl", {}, {"updates_per_batch": 20}),
        ("sample_factory", {"async_rl": True}, {"staleness": 1, "asynchronous": True}),
        ("sample_factory", {"serial_mode": False}, {"staleness": 1, "asynchronous": False}),
        ("sample_factory", {"with_vtrace": True}, {"correction": "v-trace"}),
        ("pufferlib", {}, {"updates_per_batch": 8}),
        ("pufferlib", {"train.vtrace_rho_clip": 1.0}, {"correction": "v-trace"}),
        ("pufferlib", {"train.batch_size": "auto"}, {"updates_per_batch": MISSING, "pi_old": "sampler"}),
    ],
)
def test_roles(name: str, settings: dict[str, Any], roles: dict[str, Any]) -> None:
    own = of(name, settings)
    assert {role: own.role(role) for role in roles} == roles


def test_roles_of_older_releases() -> None:
    def old(form: str) -> Reading:
        _, config, keys = OLDER[form]
        return reading(config, keys=keys)

    assert old("RLlib's old stack").role("updates_per_batch") == 30 * 32
    assert old("RSL-RL 3").role("updates_per_batch") == 20 and old("RSL-RL 3").seed.order == "1"
    assert old("PufferLib 1.0").role("updates_per_batch") == 16 and old("PufferLib 1.0").seed.acts


# data orders


@pytest.mark.parametrize(
    ("name", "settings", "order", "acts", "uncontrolled"),
    [
        ("rllib", {}, "1", True, False),
        ("rllib", {"seed": None}, None, False, True),
        ("skrl", {}, "1", True, False),
        ("skrl", {"seed": ABSENT}, None, False, False),  # W&B's configuration does not hold it
        ("rl_games", {}, "1", True, False),
        ("rl_games", {"params.seed": None}, None, False, True),
        ("rl_games", {"params.seed": ABSENT}, None, False, False),
        ("rsl_rl", {}, "1", True, False),
        ("rsl_rl", {"train_cfg.seed": None}, None, False, True),
        ("sample_factory", {}, "1", True, False),
        ("sample_factory", {"async_rl": True}, None, False, True),
        ("sample_factory", {"seed": None}, None, False, True),
        ("pufferlib", {}, "1", True, False),
        ("pufferlib", {"train.prio_alpha": 0.8}, None, False, True),
    ],
)
def test_what_orders_the_data(
    name: str, settings: dict[str, Any], order: str | None, acts: bool, uncontrolled: bool
) -> None:
    seed = of(name, settings).seed
    assert (seed.order, seed.acts, seed.uncontrolled) == (order, acts, uncontrolled)
    assert seed.key == FRAMEWORKS[name].seed


# the files themselves


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_configuration_is_reduced_to_what_matters(name: str) -> None:
    own = of(name)
    aside = {key for key in own.run.config if own.is_bookkeeping(key) or own.is_soft(key) or own.is_derived(key)}
    assert aside == set(FRAMEWORKS[name].secret_free)
    assert {key for key in own.run.config if own.is_seed(key)} == {FRAMEWORKS[name].seed}
    assert set(own.framework.clip_range) & own.run.config.keys() == {FRAMEWORKS[name].clip_range}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize(("section", "key"), [("quantities", "clip_fractoin"), ("roles", "ratio_is_won")])
def test_a_name_that_the_code_does_not_know_is_an_error(tmp_path: Path, name: str, section: str, key: str) -> None:
    from importlib.resources import files

    data = yaml.safe_load(files("pth_tracker.vocabulary").joinpath("frameworks", f"{name}.yaml").read_text())
    data[section][key] = [{"key": "x"}] if section == "quantities" else {"expr": "1"}
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UsageError, match=f"bad.yaml: unknown name '{key}'"):
        load_vocabulary((path,))


# audits


def series(name: str, label: str, low: float, high: float) -> list[float]:
    generator = np.random.default_rng(int.from_bytes(f"{name}{label}".encode()[-12:], "big"))
    return list(generator.uniform(low, high, UPDATES))


def rising(label: str) -> dict[int, float]:
    wobble = series("score", label, -2, 2)
    return {step: 20 + 180 * step / UPDATES + wobble[step - 1] for step in range(5, UPDATES + 1, 5)}


def runs_of(
    name: str,
    settings: Mapping[str, Any] | None = None,
    seeds: Callable[[str, int], Any] = lambda arm, seed: seed,
    metrics: Mapping[str, Values | None] | None = None,
    treatment: tuple[str, Any, Any] | None = None,
) -> list[FakeRun]:
    """Two arms over the seeds 1, 2 and 3, named after them; ``seeds`` gives the one in the configuration."""
    own = FRAMEWORKS[name]
    key, *values = treatment or own.treatment
    made: list[FakeRun] = []
    for arm, value in zip(("base", "other"), values):
        for seed in (1, 2, 3):
            label = f"{arm}-seed{seed}"
            config = nested(own.config, {**(settings or {}), key: value, own.seed: seeds(arm, seed)})
            logged: dict[str, Values | None] = {one: None for one in make_run("x").points}
            for metric, (low, high) in own.metrics.items():
                scored = metric in (own.score, own.quantities["train_score_mean"][0])
                logged[metric] = rising(label) if scored else series(metric, label, low, high)
            made.append(make_run(label, config=config, metrics={**logged, **(metrics or {})}, number=len(made)))
    return made


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_clean_comparison_stays_clean(name: str) -> None:
    report = audit_of(runs_of(name))
    assert {run.framework for run in report.runs.values()} == {name}
    assert set(report.design.arms) == {"base", "other"} and report.design.metric == FRAMEWORKS[name].score
    assert loud(report) == [] and all(run.counted for run in report.runs.values())


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_seed_that_one_arm_lost_is_found(name: str) -> None:
    found = only(audit_of(runs_of(name, seeds=lambda arm, seed: seed if arm == "base" else 7)), "lost-seed")
    assert (str(found.level), found.tag) == ("fail", LOST_SEED) and len(found.blames) == 3
    assert "named seed2, trained on '7'" in found.detail


@pytest.mark.parametrize("name", ["rllib", "rl_games", "rsl_rl", "sample_factory"])
def test_a_null_seed_in_runs_that_are_named_after_seeds_is_lost(name: str) -> None:
    report = audit_of(runs_of(name, seeds=lambda arm, seed: seed if arm == "base" else None))
    found = only(report, "lost-seed")
    assert labels(report, found.blames) == ["other-seed1", "other-seed2", "other-seed3"]


@pytest.mark.parametrize(
    ("name", "settings"), [("sample_factory", {"async_rl": True}), ("pufferlib", {"train.prio_alpha": 0.8})]
)
def test_a_seed_that_was_passed_on_and_orders_nothing_is_no_lost_seed(name: str, settings: dict[str, Any]) -> None:
    report = audit_of(runs_of(name, settings))
    assert loud(report) == []


def test_skrls_missing_seed_is_no_lost_one_and_pairs_by_name() -> None:
    runs = runs_of("skrl", seeds=lambda arm, seed: ABSENT)
    report = audit_of(runs)
    assert loud(report) == [] and {run.seed for run in report.runs.values()} == {"1", "2", "3"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_clip_ranges_are_not_compared_where_the_ratio_is_one(name: str) -> None:
    own = FRAMEWORKS[name]
    zero: dict[str, Values | None] = {key: 0.0 for key, meaning in own.quantities.values() if meaning == "outside_band"}
    report = audit_of(runs_of(name, own.one, metrics=zero, treatment=(own.clip_range, 0.1, 0.3)))
    assert [one.evidence["key"] for one in findings(report, "clip-range-cannot-act")] == [own.clip_range]
    assert len(findings(report, "ratio-one-by-construction")) >= 1
    assert findings(report, "idle-clip") == []  # the policy that samples is the one that learns
    several = audit_of(runs_of(name, {**own.one, **own.many[0]}, treatment=(own.clip_range, 0.1, 0.3)))
    assert findings(several, "clip-range-cannot-act") == []


def test_scores_against_seconds_are_not_read() -> None:
    only_time: dict[str, Values | None] = {"rewards/step": None, "rewards/iter": None}
    runs = runs_of("rl_games", metrics=only_time)
    assert all("rewards/time" in run.points and "rewards/step" not in run.points for run in runs)
    assert audit_of(runs).design.metric == ""
    seconds: dict[str, Values | None] = {"Train/mean_reward": None}
    assert audit_of(runs_of("rsl_rl", metrics=seconds)).design.metric == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_is_missing_is_answered_with_the_frameworks_own_option(name: str) -> None:
    own = load_vocabulary().frameworks[name]
    for quantity in FRAMEWORKS[name].absent:
        assert quantity in own.remedies, quantity
    logged = set(own.quantities)
    needed = {"clip_fraction", "learner_kl", "grad_norm", "batch_id", "sampler_k3_kl", "data_seed", "ratio_is_one"}
    assert needed - logged <= set(own.remedies)

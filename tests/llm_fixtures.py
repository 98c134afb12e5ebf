"""Runs of trainers of language models as their loggers leave them: configurations, metrics, and how faults look.

Written from what the frameworks log at the releases named in their vocabularies. Every series follows from the run's
name, the prompts from the order of the data.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from llm_configurations import (
    AREAL,
    EASYR1,
    OPEN_INSTRUCT,
    PRIME_ORCHESTRATOR,
    PRIME_TRAINER,
    RLLM,
    ROLL,
    SEARCH_R1,
    TINKER,
    TORCHFORGE,
)
from synthetic import FakeRun, Values, make_run, sawtooth, set_dotted

UPDATES: Final = 40
Metrics = dict[str, Values]
NOTHING: Final = dict.fromkeys(make_run("x").points)
"""Takes away the metrics that `make_run` gives a run of verl."""


def noise(name: str, low: float, high: float) -> list[float]:
    return list(np.random.default_rng(zlib.crc32(name.encode())).uniform(low, high, UPDATES))


def rising(name: str, low: float = 0.3, high: float = 0.7) -> dict[int, float]:
    """A score at every fifth update."""
    wobble = noise(name, -0.01, 0.01)
    return {step: low + (high - low) * step / UPDATES + wobble[step - 1] for step in range(5, UPDATES + 1, 5)}


def prompts(order: object, mean: str, largest: str, smallest: str) -> Metrics:
    """Prompt lengths of the batches in a data order."""
    drawn = np.random.default_rng(zlib.crc32(f"order|{order}".encode())).integers(40, 400, size=(UPDATES, 64))
    return {mean: drawn.mean(axis=1), largest: drawn.max(axis=1), smallest: drawn.min(axis=1)}


@dataclass(frozen=True)
class Trained:
    """One framework as the tests run it."""

    config: Mapping[str, Any]
    metrics: Callable[[str, object], Metrics]
    """From a run's name and the order of its data."""
    seed: str
    """The key that orders the data, or that people take for it; ``""``: there is none."""
    treatment: tuple[str, Any, Any]
    """A setting by which two arms differ, with its values."""
    clip: str = ""
    """The metric of the clip fraction."""
    idle: Mapping[str, Any] = field(default_factory=dict)
    """Settings under which the clip never acts while the sampler lags, and nothing corrects for it."""
    idle_metrics: Metrics = field(default_factory=dict)
    corrected: Mapping[str, Any] = field(default_factory=dict)
    """Settings on top of `idle` that correct for the lag."""
    score: str = ""
    """The metric that is compared."""


def areal(name: str, order: object) -> Metrics:
    actor = "ppo_actor/update"
    return {
        f"{actor}/clip_ratio/avg": noise(f"c{name}", 0.001, 0.02),
        f"{actor}/approx_kl/avg": noise(f"k{name}", -0.004, 0.002),
        f"{actor}/importance_weight/avg": noise(f"i{name}", 0.99, 1.01),
        f"{actor}/behave_imp_weight/avg": noise(f"b{name}", 0.98, 1.02),
        f"{actor}/behave_approx_kl/avg": noise(f"a{name}", -0.01, 0.0),
        f"{actor}/compute_logp/kl_div_dual/avg": noise(f"d{name}", 0.001, 0.004),
        f"{actor}/version_stats/sample_staleness_theta_avg": noise(f"v{name}", 0.5, 1.5),
        f"{actor}/actor_loss/avg": noise(f"l{name}", -0.02, 0.02),
        f"{actor}/grad_norm": noise(f"g{name}", 0.1, 0.5),
        f"{actor}/lr": 1.7e-5,
        f"{actor}/entropy/avg": noise(f"e{name}", 0.3, 0.32),
        **prompts(order, "ppo_actor/prompt_len/avg", "ppo_actor/prompt_len/max", "ppo_actor/prompt_len/min"),
        "ppo_actor/seq_len/avg": noise(f"q{name}", 400, 420),
        "ppo_actor/no_eos_ratios/avg": noise(f"n{name}", 0.02, 0.04),
        "ppo_actor/task_reward/avg": noise(f"r{name}", 0.4, 0.5),
        "rollout/reward": noise(f"r{name}", 0.4, 0.5),
        "eval-rollout/reward": rising(name),
    }


def open_instruct(name: str, order: object) -> Metrics:
    return {
        "policy/clipfrac_avg": noise(f"c{name}", 0.001, 0.02),
        "val/ratio": noise(f"i{name}", 0.99, 1.01),
        "val/rho_weight": noise(f"w{name}", 0.97, 1.0),
        "debug/vllm_vs_local_logprob_diff_mean": noise(f"d{name}", 0.01, 0.02),
        "debug/vllm_local_reverse_kl": noise(f"v{name}", 0.001, 0.002),
        "num_steps_off_policy": noise(f"o{name}", 1, 3),
        "objective/kl1_avg": noise(f"k{name}", 0.1, 0.2),
        "loss/policy_avg": noise(f"l{name}", -0.02, 0.02),
        "optim/grad_norm": noise(f"g{name}", 0.1, 0.5),
        "lr": 1e-6,
        "scores": noise(f"r{name}", 4, 5),
        "objective/verifiable_correct_rate": noise(f"r{name}", 0.4, 0.5),
        "val/sequence_lengths": noise(f"s{name}", 300, 320),
        "val/stop_rate": noise(f"t{name}", 0.95, 0.97),
        "val/advantages_max": noise(f"a{name}", 4, 5),
        "val/advantages_min": noise(f"b{name}", -5, -4),
        "training_step": list(np.arange(1.0, UPDATES + 1)),
        "eval/scores": rising(name, 3, 7),
    }


def roll(name: str, order: object) -> Metrics:
    return {
        "actor/clipfrac": noise(f"c{name}", 0.001, 0.02),
        "actor/ppo_ratio_clipfrac": noise(f"b{name}", 0.002, 0.04),
        "actor/approxkl": noise(f"k{name}", 0.0001, 0.001),
        "actor/policykl": noise(f"p{name}", -0.001, 0.001),
        "actor/train_infer_ratio_token_mean": noise(f"w{name}", 0.99, 1.01),
        "actor/train_infer_diff_token_mean": noise(f"d{name}", -0.001, 0.001),
        "actor/pg_loss": noise(f"l{name}", -0.02, 0.02),
        "actor/grad_norm": noise(f"g{name}", 0.1, 0.5),
        "actor/lr": 1e-6,
        "critic/entropy/mean": noise(f"e{name}", 0.3, 0.32),
        "critic/score/mean": noise(f"r{name}", 0.4, 0.5),
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": noise(f"r{name}", 0.4, 0.5),
        "critic/advantages/max": noise(f"a{name}", 1.5, 2.4),
        "critic/advantages/min": noise(f"n{name}", -2.4, -1.5),
        **prompts(order, "token/prompt_length/mean", "token/prompt_length/max", "token/prompt_length/min"),
        "token/response_length/mean": noise(f"s{name}", 300, 320),
        "scheduler/off_policy_ratio": noise(f"o{name}", 0.5, 1.0),
        "system/step": list(np.arange(1.0, UPDATES + 1)),
        "val_correct/all/mean": rising(name),
    }


def verl_like(clip: str) -> Callable[[str, object], Metrics]:
    def metrics(name: str, order: object) -> Metrics:
        return {
            clip: noise(f"c{name}", 0.001, 0.02),
            "actor/ppo_kl": noise(f"k{name}", -0.002, 0.004),
            "actor/pg_loss": noise(f"l{name}", -0.02, 0.02),
            "actor/grad_norm": noise(f"g{name}", 0.1, 0.5),
            "actor/entropy_loss": noise(f"e{name}", 0.3, 0.32),
            "actor/lr": 1e-6,
            **prompts(order, "prompt_length/mean", "prompt_length/max", "prompt_length/min"),
            "response_length/mean": noise(f"s{name}", 300, 320),
            "response_length/clip_ratio": noise(f"t{name}", 0.01, 0.03),
            "critic/score/mean": noise(f"r{name}", 0.4, 0.5),
            "critic/score/max": 1.0,
            "critic/score/min": 0.0,
            "critic/advantages/max": noise(f"a{name}", 1.5, 2.4),
            "critic/advantages/min": noise(f"n{name}", -2.4, -1.5),
        }

    return metrics


def easyr1(name: str, order: object) -> Metrics:
    own = verl_like("actor/pg_clipfrac_higher")(name, order)
    return {**own, "actor/pg_clipfrac_lower": 0.0, "reward/overall": own["critic/score/mean"],
            "val/reward_score": rising(name)}  # fmt: skip


def search_r1(name: str, order: object) -> Metrics:
    own = verl_like("actor/pg_clipfrac")(name, f"{order}|{name}")  # every launch has an order of its own
    return {**own, "env/number_of_valid_search": noise(f"v{name}", 1, 2), "env/finish_ratio": 0.9,
            "val/test_score/nq": rising(name)}  # fmt: skip


def rllm(name: str, order: object) -> Metrics:
    own = verl_like("actor/pg_clipfrac")(name, order)
    return {
        **own,
        "offpolicy/kl": noise(f"f{name}", -0.001, 0.002),
        "offpolicy/k3_kl": noise(f"h{name}", 0.0005, 0.002),
        "actor/num_updates_per_epoch": 4.0,
        "episode/num_turns": noise(f"m{name}", 2, 3),
        "groups/num_groups": 32.0,
        "reward/solver/mean": noise(f"r{name}", 0.4, 0.5),
        "training/global_step": list(np.arange(1.0, UPDATES + 1)),
        "val/math/pass@1": rising(name),
    }


def tinker(name: str, order: object) -> Metrics:
    return {
        "optim/kl_sample_train_v1": noise(f"k{name}", -0.001, 0.003),
        "optim/kl_sample_train_v2": noise(f"v{name}", 0.0005, 0.002),
        "optim/entropy": noise(f"e{name}", 0.3, 0.32),
        "optim/lr": 1e-5,
        "env/all/reward/total": noise(f"r{name}", 0.4, 0.5),
        "env/all/ac_tokens_per_turn": noise(f"s{name}", 300, 320),
        "env/all/by_group/frac_mixed": noise(f"m{name}", 0.5, 0.6),
        "progress/done_frac": list(np.arange(1.0, UPDATES + 1) / UPDATES),
        "test/env/all/reward/total": rising(name),
    }


def torchforge(name: str, order: object) -> Metrics:
    return {
        "rl_trainer/avg_loss": noise(f"l{name}", -0.02, 0.02),
        "rl_trainer/learning_rate": 1e-5,
        "buffer/sample/avg_sampled_policy_age": noise(f"o{name}", 0.4, 0.9),
        "buffer/sample/max_sampled_policy_age": 1.0,
        "reward/evaluate_response/avg_total_reward": noise(f"r{name}", 0.4, 0.5),
        "generator/generate/avg_tokens_generated": noise(f"s{name}", 300, 320),
    }


def prime_trainer(name: str, order: object) -> Metrics:
    return {
        "mismatch_kl/mean": noise(f"k{name}", 0.001, 0.004),
        "is_masked/mean": noise(f"c{name}", 0.0, 0.002),
        "loss/mean": noise(f"l{name}", -0.02, 0.02),
        "entropy/mean": noise(f"e{name}", 0.3, 0.32),
        "optim/grad_norm": noise(f"g{name}", 0.1, 0.5),
        "optim/lr": 1e-6,
        "perf/throughput": noise(f"t{name}", 9000, 9100),
    }


def prime_orchestrator(name: str, order: object) -> Metrics:
    return {
        "reward/mean": noise(f"r{name}", 0.4, 0.5),
        "completion_len/mean": noise(f"s{name}", 300, 320),
        "is_truncated/mean": noise(f"u{name}", 0.01, 0.03),
        "batch/async_level": 1.0,
        "batch/off_policy_level/mean": noise(f"o{name}", 0.5, 1.0),
        "progress/ckpt_step": list(np.arange(0.0, UPDATES)),
        "perf/throughput": noise(f"p{name}", 100, 110),
        "eval/aime/avg@16": rising(name),
    }


LAG: Final = sawtooth(16, 2.0, UPDATES)
FRAMEWORKS: Final[Mapping[str, Trained]] = {
    "areal": Trained(
        AREAL,
        areal,
        "seed",
        ("actor.reward_norm.std_level", "group", "batch"),
        "ppo_actor/update/clip_ratio/avg",
        {"actor.ppo_n_minibatches": 1, "actor.rejection_sampling": None},
        {"ppo_actor/update/clip_ratio/avg": 0.0, "ppo_actor/update/compute_logp/kl_div_dual/avg": LAG},
        {"actor.rejection_sampling": {"action": "clamp", "upper": 2.0}},
        "eval-rollout/reward",
    ),
    "open_instruct": Trained(
        OPEN_INSTRUCT,
        open_instruct,
        "seed",
        ("beta", 0.05, 0.0),
        "policy/clipfrac_avg",
        {"num_mini_batches": 1, "use_rho_correction": False},
        {"policy/clipfrac_avg": 0.0, "val/rho_weight": 0.0},
        {"use_rho_correction": True},
        "eval/scores",
    ),
    "roll": Trained(
        ROLL,
        roll,
        "seed",
        ("norm_mean_type", "group", "batch"),
        "actor/clipfrac",
        {"enable_old_logprobs_recompute": False, "train_infer_correction.is_weight.enabled": False},
        {"actor/clipfrac": 0.0, "actor/ppo_ratio_clipfrac": 0.0},
        {"train_infer_correction.is_weight.enabled": True},
        "val_correct/all/mean",
    ),
    "easyr1": Trained(
        EASYR1,
        easyr1,
        "data.seed",
        ("algorithm.kl_coef", 0.01, 0.001),
        "actor/pg_clipfrac_higher",
        {"worker.actor.global_batch_size": 512},
        {"actor/pg_clipfrac_higher": 0.0, "harness/sampler_k3_kl": LAG},
        score="val/reward_score",
    ),
    "search_r1": Trained(
        SEARCH_R1,
        search_r1,
        "",
        ("actor_rollout_ref.actor.kl_loss_coef", 0.001, 0.01),
        "actor/pg_clipfrac",
        {"data.train_batch_size": 256, "actor_rollout_ref.rollout.n_agent": 1},
        {"actor/pg_clipfrac": 0.0, "harness/sampler_k3_kl": LAG},
        score="val/test_score/nq",
    ),
    "rllm": Trained(
        RLLM,
        rllm,
        "rllm.data.seed",
        ("rllm.algorithm.eps_clip_high", None, 0.28),
        "actor/pg_clipfrac",
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 64},
        {"actor/pg_clipfrac": 0.0, "offpolicy/k3_kl": LAG},
        {"rllm.algorithm.rollout_correction.tis_mode": "token"},
        "val/math/pass@1",
    ),
    "tinker_cookbook": Trained(
        TINKER, tinker, "dataset_builder.seed", ("kl_penalty_coef", 0.0, 0.01), score="test/env/all/reward/total"
    ),
    "torchforge": Trained(
        TORCHFORGE,
        torchforge,
        "",
        ("trainer.optimizer.lr", 1e-5, 2e-5),
        score="reward/evaluate_response/avg_total_reward",
    ),
}

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{name: own.config for name, own in FRAMEWORKS.items()},
    "prime_rl": PRIME_ORCHESTRATOR,
}
UNSEEDED: Final = ("areal", "search_r1", "torchforge")
"""No seed orders their data."""


def configured(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with dotted settings on top."""
    own: dict[str, Any] = copy.deepcopy(dict(config))
    set_dotted(own, settings)
    return own


def trained_run(framework: str, name: str, seed: int, settings: Mapping[str, Any] | None = None,
                metrics: Mapping[str, Values | None] | None = None, **attributes: Any) -> FakeRun:  # fmt: skip
    """A healthy run of a framework, its data ordered by ``seed`` as far as the framework's seed orders them."""
    own = FRAMEWORKS[framework]
    order = "fixed" if framework == "areal" else seed
    config = configured(own.config, {**({own.seed: seed} if own.seed else {}), **(settings or {})})
    logged: dict[str, Values | None] = {**NOTHING, **own.metrics(name, order), **(metrics or {})}
    return make_run(name, config=config, metrics=logged, updates=UPDATES, **attributes)


def prime_runs(name: str, seed: int | None, orchestrator: Mapping[str, Any] | None = None,
               trainer: Mapping[str, Any] | None = None, **attributes: Any) -> list[FakeRun]:  # fmt: skip
    """One training of prime-rl 0.4 as the two runs that it logs."""
    sides = (
        ("orchestrator", PRIME_ORCHESTRATOR, prime_orchestrator, {"buffer.seed": seed, **(orchestrator or {})}),
        ("trainer", PRIME_TRAINER, prime_trainer, trainer or {}),
    )
    return [
        make_run(
            f"{name}-{side}",
            config=configured(config, {"wandb.name": f"{name}-{side}", **settings}),
            metrics={**NOTHING, **metrics(name, seed)},
            updates=UPDATES,
            **attributes,
        )
        for side, config, metrics, settings in sides
    ]

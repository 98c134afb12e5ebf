"""The trainers of the precision projects: what one launch of each leaves in a tracker."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

import llm_fixtures
from llm_configurations import PRIME_TRAINER
from llm_fixtures import NOTHING, UPDATES, configured, noise, prime_runs, rising
from llm_runs_a import CASES, GRPO
from synthetic import ACTOR, CLIP, ONE_STEP, SCORE, FakeRun, Values, clean_metrics, make_run, verl_config

Metrics = dict[str, Values | None]


@dataclass(frozen=True)
class Launch:
    """One launch as somebody meant it, and what became of it."""

    name: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Values | None] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reached: int | None = None
    """The seed that reached the configuration; None: the one that was meant."""
    order: object = None
    """What really ordered the data; None: the seed that reached the configuration."""
    like: str = ""
    """The run whose learner this one repeats."""


@dataclass(frozen=True)
class Trainer:
    """One framework as it trains."""

    framework: str
    build: Callable[[Launch], list[FakeRun]]
    treatment: tuple[str, Any, Any]
    seed: str = ""
    """The key that orders the data; ``""``: none does."""
    rate: tuple[str, float] = ("", 0.0)
    """The key of the learning rate, with its value."""
    clip: str = ""
    """The metric of the clip fraction, where its 0 can be judged and nothing corrects for a lag."""
    idle: Mapping[str, Any] = field(default_factory=dict)
    """Settings under which a lag stays uncorrected."""
    score: str = ""
    length: str = ""
    """The metric of the response length."""
    witness: str = ""
    """The prefix of the prompt lengths, where they witness the order."""
    stress: tuple[str, tuple[Any, ...]] = ("", ())
    """The key of the designed lag, with milder and harsher values."""
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Rules that warn of any comparison of it, with the reason why rules want it."""


def _own(
    framework: str,
    rate: tuple[str, float],
    length: str = "",
    witness: str = "",
    stress: tuple[str, tuple[Any, ...]] = ("", ()),
    wanted: Mapping[str, str] | None = None,
) -> Trainer:
    own = llm_fixtures.FRAMEWORKS[framework]

    def build(launch: Launch) -> list[FakeRun]:
        reached = launch.seed if launch.reached is None else launch.reached
        order = "fixed" if framework == "areal" else launch.order or reached
        settings = {**({own.seed: reached} if own.seed and framework != "areal" else {}), **launch.settings}
        if framework == "areal":
            settings = {"seed": reached, **settings}
        return [_run(launch, configured(own.config, settings), own.metrics(launch.like or launch.name, order))]

    idle = {key: value for key, value in own.idle.items()}
    return Trainer(framework, build, own.treatment, "" if framework in llm_fixtures.UNSEEDED else own.seed, rate,
                   own.clip, idle, own.score, length, witness, stress, wanted or {})  # fmt: skip


def _run(launch: Launch, config: Mapping[str, Any], metrics: Mapping[str, Values | None]) -> FakeRun:
    logged = {**NOTHING, **metrics, **launch.metrics}
    return make_run(launch.name, config=config, metrics=logged, updates=UPDATES, **launch.attributes)


def _case(framework: str, rate: tuple[str, float], clip: bool = True) -> Trainer:
    case = CASES[framework]

    def build(launch: Launch) -> list[FakeRun]:
        reached = launch.seed if launch.reached is None else launch.reached
        config = case.settings(**{case.seed_key: reached, **launch.settings})
        name = launch.like or launch.name
        drawn: Metrics = {key: noise(f"{key}|{name}", low, high) for key, (low, high) in case.metrics.items()}
        score = case.quantities.get("train_score_mean", "")
        if score:
            drawn[score] = list(np.linspace(0.3, 0.6, UPDATES) + np.asarray(noise(f"s{name}", -0.02, 0.02)))
        return [_run(launch, config, drawn)]

    key, value = case.treatment
    clipped = case.quantities.get("clip_fraction", "") if clip else ""
    length = case.quantities.get("response_length_mean", "")
    return Trainer(
        framework, build, (key, _default(case.config, key), value), case.seed_key, rate, clipped, length=length
    )


def _default(config: Mapping[str, Any], key: str) -> Any:
    """What the configuration, nested or not, has at a dotted key."""
    if key in config:
        return config[key]
    place: Any = config
    for part in key.split("."):
        place = place.get(part) if isinstance(place, Mapping) else None
    return place


def _verl(launch: Launch) -> list[FakeRun]:
    reached = launch.seed if launch.reached is None else launch.reached
    config = verl_config({"data.seed": reached, **launch.settings})
    metrics = {**clean_metrics(launch.like or launch.name, launch.order or reached), **launch.metrics}
    return [make_run(launch.name, config=config, metrics=metrics, **launch.attributes)]


def _prime(launch: Launch) -> list[FakeRun]:
    reached = launch.seed if launch.reached is None else launch.reached
    trainer = {key: value for key, value in launch.settings.items() if key.split(".")[0] in PRIME_TRAINER}
    orchestrator = {key: value for key, value in launch.settings.items() if key not in trainer}
    runs = prime_runs(launch.name, reached, orchestrator, trainer, **launch.attributes)
    name = launch.like or launch.name
    sides = {"trainer": llm_fixtures.prime_trainer, "orchestrator": llm_fixtures.prime_orchestrator}
    kept = []
    for run in runs:
        side = run.name.rsplit("-", 1)[-1]
        metrics = {**NOTHING, **sides[side](name, reached)}
        own = {key: value for key, value in launch.metrics.items() if key in metrics or side == "trainer"}
        kept.append(make_run(run.name, config=run.source.config, metrics={**metrics, **own}, updates=UPDATES,
                             **launch.attributes))  # fmt: skip
    return kept


def _trl(launch: Launch) -> list[FakeRun]:
    name = launch.like or launch.name
    config = {**GRPO, "seed": launch.seed if launch.reached is None else launch.reached, **launch.settings}
    return [_run(launch, config, {
        "train/loss": noise(f"l{name}", -0.01, 0.01), "train/grad_norm": noise(f"g{name}", 0.1, 0.6),
        "train/learning_rate": 1e-6, "train/entropy": noise(f"e{name}", 0.3, 0.32),
        "train/reward": noise(f"r{name}", 0.4, 0.5), "train/reward_std": noise(f"s{name}", 0.2, 0.3),
        "train/rewards/accuracy/mean": noise(f"r{name}", 0.4, 0.5), "train/frac_reward_zero_std": 0.1,
        "train/completions/mean_length": noise(f"c{name}", 150, 160), "train/completions/clipped_ratio": 0.01,
        "train/clip_ratio/region_mean": noise(f"p{name}", 0.001, 0.01), "eval/reward": rising(name),
    })]  # fmt: skip


SB3: Final[Mapping[str, Any]] = {
    "policy_class": "<class 'stable_baselines3.common.policies.ActorCriticPolicy'>", "env_id": "CartPole-v1", "seed": 1,
    "n_steps": 128, "n_envs": 4, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "learning_rate": 3e-4,
    "clip_range": "<function get_schedule_fn.<locals>.<lambda> at 0x7f3a1c0b5e50>", "ep_info_buffer": "None",
}  # fmt: skip
CLEANRL: Final[Mapping[str, Any]] = {
    "exp_name": "ppo", "seed": 1, "torch_deterministic": True, "cuda": True, "track": True,
    "wandb_project_name": "cleanRL", "env_id": "CartPole-v1", "total_timesteps": 500000, "learning_rate": 2.5e-4,
    "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True, "clip_coef": 0.2,
}  # fmt: skip


def _classic(config: Mapping[str, Any], names: Mapping[str, tuple[float, float]], score: str, rate: str) -> Any:
    def build(launch: Launch) -> list[FakeRun]:
        name = launch.like or launch.name
        own = {**config, "seed": launch.seed if launch.reached is None else launch.reached, **launch.settings}
        drawn: Metrics = {key: noise(f"{key}|{name}", low, high) for key, (low, high) in names.items()}
        curve = {step: 400 * value for step, value in rising(name).items()}
        return [_run(launch, own, {**drawn, score: curve, rate: own["learning_rate"]})]

    return build


def words(*parts: object) -> str:
    """A name as W&B makes it up."""
    drawn = np.random.default_rng(zlib.crc32("|".join(map(str, parts)).encode()))
    first, second = ("happy brisk calm misty royal polar".split(), "river field moon tree comet haze".split())
    return f"{drawn.choice(first)}-{drawn.choice(second)}-{int(drawn.integers(10, 99))}"


ONE_ORDER: Final = {
    "one-data-order": "no seed orders the data: all runs read one order",
}
TRAINERS: Final[Mapping[str, Trainer]] = {
    "verl": Trainer("verl", _verl, (f"{ACTOR}.clip_ratio_high", None, 0.28), "data.seed", (f"{ACTOR}.optim.lr", 2e-6),
                    CLIP, ONE_STEP, SCORE, "response_length/mean", "prompt_length/"),
    "areal": _own("areal", ("actor.optimizer.lr", 1.7e-5), stress=("rollout.max_head_offpolicyness", (0, 2, 8)),
                  wanted=ONE_ORDER),
    "open_instruct": _own("open_instruct", ("learning_rate", 1e-6), "val/sequence_lengths",
                          stress=("async_steps", (1, 4))),
    "roll": _own("roll", ("actor_train.training_args.learning_rate", 1e-6), "token/response_length/mean",
                 stress=("async_generation_ratio", (0, 1))),
    "easyr1": _own("easyr1", ("worker.actor.optim.lr", 1e-6), "response_length/mean", "prompt_length/"),
    "search_r1": _own("search_r1", ("actor_rollout_ref.actor.optim.lr", 1e-6), "response_length/mean"),
    "rllm": _own("rllm", ("actor_rollout_ref.actor.optim.lr", 1e-6), "response_length/mean", "prompt_length/"),
    "tinker_cookbook": _own("tinker_cookbook", ("learning_rate", 1e-5), "env/all/ac_tokens_per_turn"),
    "torchforge": _own("torchforge", ("trainer.optimizer.lr", 1e-5), "generator/generate/avg_tokens_generated"),
    "prime_rl": Trainer("prime_rl", _prime, ("loss.token_mask_low", 0.125, 0.25), "buffer.seed", ("optim.lr", 1e-6),
                        score="eval/aime/avg@16", length="completion_len/mean"),
    "trl_grpo": Trainer("trl_grpo", _trl, ("scale_rewards", "group", "none"), "seed", ("learning_rate", 1e-6),
                        "train/clip_ratio/region_mean", {}, "eval/reward", "train/completions/mean_length"),
    "unsloth_grpo": _case("unsloth_grpo", ("learning_rate", 1e-6)),
    "ms_swift_grpo": _case("ms_swift_grpo", ("learning_rate", 1e-6)),
    "axolotl_grpo": _case("axolotl_grpo", ("learning_rate", 1e-6), clip=False),
    "openrlhf": _case("openrlhf", ("", 0.0)),
    "nemo_rl": _case("nemo_rl", ("", 0.0)),
    "skyrl": _case("skyrl", ("", 0.0)),
    "slime": _case("slime", ("", 0.0)),
    "stable_baselines3": Trainer(
        "stable_baselines3",
        _classic(SB3, {"train/clip_fraction": (0.05, 0.2), "train/approx_kl": (0.005, 0.02),
                       "train/entropy_loss": (-0.69, -0.5), "train/policy_gradient_loss": (-0.02, 0.0),
                       "rollout/ep_len_mean": (20, 400), "time/fps": (900, 910)}, "rollout/ep_rew_mean",
                 "train/learning_rate"),
        ("gamma", 0.99, 0.95), "seed", ("learning_rate", 3e-4), score="rollout/ep_rew_mean"),
    "cleanrl": Trainer(
        "cleanrl",
        _classic(CLEANRL, {"losses/clipfrac": (0.05, 0.2), "losses/approx_kl": (0.005, 0.02),
                           "losses/policy_loss": (-0.02, 0.0), "losses/value_loss": (1, 2),
                           "losses/entropy": (0.5, 0.69), "charts/SPS": (900, 910)}, "charts/episodic_return",
                 "charts/learning_rate"),
        ("norm_adv", True, False), "seed", ("learning_rate", 2.5e-4), score="charts/episodic_return"),
}  # fmt: skip

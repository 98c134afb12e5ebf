"""A demo run's configuration: verl's nested form with overrides applied, and the typed settings the trainer reads.

The resolved configuration is what really runs. Each of its keys is read into a `Settings` field, names something
(`BOOKKEEPING`), or has the one value that is built (`FIXED`); another value of a fixed key, or a key that does not
exist, is refused, so that no logged setting is without effect.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any, Final, get_args, get_type_hints

import yaml

from pth_tracker.demo.tasks import LONGEST_PROMPT
from pth_tracker.errors import UsageError
from pth_tracker.values import same_value, show_value

BOOKKEEPING: Final = frozenset({"trainer.project_name", "trainer.logger", "trainer.device"})
"""Keys that name or describe a run and act on nothing."""

FIXED: Final[Mapping[str, Any]] = {
    "actor_rollout_ref.model.path": "builtin/digits-base",
    "actor_rollout_ref.model.lora_rank": 0,
    "actor_rollout_ref.actor.strategy": "fsdp",
    "actor_rollout_ref.actor.shuffle": False,
    "actor_rollout_ref.actor.loss_scale_factor": None,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.calculate_entropy": False,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": None,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.ref.strategy": "fsdp",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": None,
    "actor_rollout_ref.rollout.name": "numpy",
    "actor_rollout_ref.rollout.mode": "sync",
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.rollout.top_p": 1.0,
    "actor_rollout_ref.rollout.do_sample": True,
    "actor_rollout_ref.rollout.ignore_eos": False,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.val_kwargs.n": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "actor_rollout_ref.rollout.val_kwargs.top_k": -1,
    "actor_rollout_ref.rollout.val_kwargs.top_p": 1.0,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": False,
    "actor_rollout_ref.hybrid_engine": True,
    "algorithm.adv_estimator": "grpo",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.rollout_rs": None,
    "algorithm.rollout_correction.rollout_rs_threshold": None,
    "algorithm.rollout_correction.loss_type": "ppo_clip",
    "critic.enable": None,
    "custom_reward_function.path": None,
    "custom_reward_function.name": None,
    "data.train_files": "builtin/digits/train",
    "data.val_files": "builtin/digits/test",
    "data.reward_fn_key": "data_source",
    "data.val_batch_size": None,
    "data.validation_shuffle": False,
    "reward.num_workers": 1,
    "reward.custom_reward_function.path": None,
    "reward.custom_reward_function.name": "compute_score",
    "reward.reward_manager.source": "register",
    "reward.reward_manager.name": "naive",
    "reward_model.enable": None,
    "sandbox_fusion.url": None,
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.val_before_train": True,
    "trainer.val_only": False,
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
    "trainer.critic_warmup": 0,
    "trainer.balance_batch": False,
    "trainer.use_legacy_worker_impl": "auto",
}
"""Keys of which only this one value is built."""


def _key(path: str, **extra: Any) -> Any:
    return field(metadata={"key": path, **extra})


_ACTOR: Final = "actor_rollout_ref.actor"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_CORRECTION: Final = "algorithm.rollout_correction"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the trainer does, read from a resolved configuration; each field's metadata names its key."""

    name: str = _key("trainer.experiment_name")
    data_seed: int | None = _key("data.seed", least=0)
    shuffle: bool = _key("data.shuffle")
    train_size: int = _key("data.train_max_samples", least=1)
    val_size: int = _key("data.val_max_samples", least=1)
    prompts_per_batch: int = _key("data.train_batch_size", least=1)
    max_prompt_length: int = _key("data.max_prompt_length", least=1)
    max_response_length: int = _key("data.max_response_length", least=1)
    rollout_prompt_length: int = _key(f"{_ROLLOUT}.prompt_length", least=1)
    rollout_response_length: int = _key(f"{_ROLLOUT}.response_length", least=1)
    group_size: int = _key(f"{_ROLLOUT}.n", least=1)
    temperature: float = _key(f"{_ROLLOUT}.temperature", above=0)
    sampling_seed: int = _key(f"{_ROLLOUT}.seed", least=0)
    prompts_per_minibatch: int = _key(f"{_ACTOR}.ppo_mini_batch_size", least=1)
    ppo_epochs: int = _key(f"{_ACTOR}.ppo_epochs", least=1)
    clip_ratio: float = _key(f"{_ACTOR}.clip_ratio", above=0)
    clip_low: float | None = _key(f"{_ACTOR}.clip_ratio_low", above=0)
    clip_high: float | None = _key(f"{_ACTOR}.clip_ratio_high", above=0)
    dual_clip: float = _key(f"{_ACTOR}.clip_ratio_c", above=1)
    aggregation: str = _key(
        f"{_ACTOR}.loss_agg_mode", choices=("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
    )
    use_rollout_log_probs: bool = _key(f"{_ACTOR}.use_rollout_log_probs", absent=False)
    optimizer: str = _key(f"{_ACTOR}.optim.optimizer", choices=("AdamW", "SGD"))
    lr: float = _key(f"{_ACTOR}.optim.lr", least=0)
    warmup_steps: int = _key(f"{_ACTOR}.optim.lr_warmup_steps")
    warmup_ratio: float = _key(f"{_ACTOR}.optim.lr_warmup_steps_ratio", least=0)
    weight_decay: float = _key(f"{_ACTOR}.optim.weight_decay", least=0)
    betas: list[float] = _key(f"{_ACTOR}.optim.betas")
    clip_grad: float = _key(f"{_ACTOR}.optim.clip_grad", above=0)
    norm_by_std: bool = _key("algorithm.norm_adv_by_std_in_grpo")
    importance: str | None = _key(f"{_CORRECTION}.rollout_is", choices=(None, "token", "sequence"))
    importance_threshold: float = _key(f"{_CORRECTION}.rollout_is_threshold", above=0)
    importance_normalise: bool = _key(f"{_CORRECTION}.rollout_is_batch_normalize")
    bypass: bool = _key(f"{_CORRECTION}.bypass_mode")
    sync_interval: int = _key("trainer.sync_interval", least=1)
    replay_delay: int = _key("trainer.replay_delay", absent=0, least=0)
    test_freq: int = _key("trainer.test_freq", least=1)
    epochs: int = _key("trainer.total_epochs", least=1)
    max_updates: int | None = _key("trainer.total_training_steps", least=1)

    @property
    def updates(self) -> int:
        """How many batches the run trains on."""
        available = self.epochs * (self.train_size // self.prompts_per_batch)
        return available if self.max_updates is None else min(available, self.max_updates)

    @property
    def minibatches(self) -> int:
        """How many optimiser steps one pass over a batch takes."""
        return -(-self.prompts_per_batch // self.prompts_per_minibatch)


def default_config() -> dict[str, Any]:
    """The demo's configuration before any override, nested."""
    text = resources.files("pth_tracker.demo").joinpath("config.yaml").read_text(encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def resolve(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved nested configuration: the defaults with dotted ``overrides`` applied.

    As with Hydra, a key that the defaults do not have is refused unless it is written ``+key``.

    Raises:
        UsageError: An override names an unknown key or one that holds further keys.
    """
    config = default_config()
    for dotted, value in overrides.items():
        *path, leaf = dotted.removeprefix("+").split(".")
        place: Any = config
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        known = isinstance(place, dict) and (leaf in place or dotted.startswith("+"))
        if not known or isinstance(place[leaf] if leaf in place else None, dict):
            raise UsageError(f"the demo has no setting {dotted!r}; its settings are in pth_tracker/demo/config.yaml")
        place[leaf] = copy.deepcopy(value)
    return config


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a nested configuration with its value."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings that a resolved configuration stands for.

    Raises:
        UsageError: A key is missing, unknown, or has a value that the demo does not build.
    """
    flat = dict(leaves(config))
    own = {f.metadata["key"]: f for f in fields(Settings)}
    for key, value in flat.items():
        if key in FIXED and not same_value(value, FIXED[key]):
            raise UsageError(f"{key}: the demo builds only {show_value(FIXED[key])}, not {show_value(value)}")
        if key not in FIXED and key not in own and key not in BOOKKEEPING:
            raise UsageError(f"{key}: the demo has no such setting")
    hints = get_type_hints(Settings)
    values: dict[str, Any] = {}
    for key, spec in own.items():
        if key not in flat and "absent" not in spec.metadata:
            raise UsageError(f"{key}: missing from the demo's configuration")
        value = flat.get(key, spec.metadata.get("absent"))
        _refuse_unfit(key, value, hints[spec.name], spec.metadata)
        values[spec.name] = value
    return _consistent(Settings(**values))


def _refuse_unfit(key: str, value: Any, hint: Any, bounds: Mapping[str, Any]) -> None:
    """Refuse a value of the wrong type or out of its bounds."""
    kinds = get_args(hint) or (hint,)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = (
        (value is None and type(None) in kinds)
        or (isinstance(value, bool) and bool in kinds)
        or (isinstance(value, str) and str in kinds)
        or (isinstance(value, list) and hint == list[float] and all(isinstance(item, int | float) for item in value))
        or (number and (float in kinds or (int in kinds and isinstance(value, int))))
    )
    if not fits:
        raise UsageError(f"{key}: {show_value(value)} is not of the type this setting has")
    if "choices" in bounds and value not in bounds["choices"]:
        raise UsageError(f"{key}: {show_value(value)} is none of {', '.join(map(str, bounds['choices']))}")
    if number and "least" in bounds and not value >= bounds["least"]:
        raise UsageError(f"{key}: {show_value(value)} is not at least {bounds['least']}")
    if number and "above" in bounds and not value > bounds["above"]:
        raise UsageError(f"{key}: {show_value(value)} is not above {bounds['above']}")


def _consistent(settings: Settings) -> Settings:
    if settings.prompts_per_batch > settings.train_size:
        raise UsageError("data.train_batch_size: larger than data.train_max_samples")
    if settings.prompts_per_minibatch > settings.prompts_per_batch:
        raise UsageError("actor_rollout_ref.actor.ppo_mini_batch_size: larger than data.train_batch_size")
    if settings.max_prompt_length < LONGEST_PROMPT:
        raise UsageError(f"data.max_prompt_length: prompts have up to {LONGEST_PROMPT} tokens")
    if len(settings.betas) != 2 or not all(0 <= beta < 1 for beta in settings.betas):
        raise UsageError("actor_rollout_ref.actor.optim.betas: must be two numbers from 0 to below 1")
    for side in ("prompt", "response"):
        if getattr(settings, f"max_{side}_length") != getattr(settings, f"rollout_{side}_length"):
            raise UsageError(f"{_ROLLOUT}.{side}_length: differs from data.max_{side}_length")
    return settings

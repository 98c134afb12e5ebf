"""Roles of ROLL that its pipelines derive from several settings: who recomputes, how often, and what is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pth_tracker.values import MISSING, Maybe
from pth_tracker.vocabulary.lens import Lens

_RANGE: Final = re.compile(r"range\(\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)")


def recomputes(lens: Lens) -> bool:
    """Whether the old log-probabilities come from a forward pass of their own; releases without the key always do."""
    if lens.cfg("force_disable_old_logprobs_recompute") is True:
        return False
    return lens.cfg("enable_old_logprobs_recompute", True) is not False


def roll_updates_per_batch(lens: Lens) -> Maybe:
    """``ppo_epochs`` times the optimiser steps of one pass, which divide a rank's share of the responses.

    Where the pipeline dropped the recomputation by itself, there is one step a pass: that is its condition.
    """
    epochs = lens.number("ppo_epochs", 1.0)
    if epochs is None or not lens.has("actor_train"):
        return MISSING
    if not recomputes(lens) and lens.cfg("force_disable_old_logprobs_recompute") is not True:
        return max(1, round(epochs))
    prompts = lens.number("rollout_batch_size")
    group = lens.number(
        "num_return_sequences_in_group", lens.number("actor_infer.generating_args.num_return_sequences")
    )
    micro = lens.number("actor_train.training_args.per_device_train_batch_size")
    accumulated = lens.number("actor_train.training_args.gradient_accumulation_steps", 1.0)
    ranks = _data_parallel_ranks(lens)
    if not prompts or not group or not micro or not accumulated or ranks is None:
        return MISSING
    steps = math.floor(prompts * group / ranks / (micro * accumulated))
    return max(1, round(epochs * max(1, steps)))


def _data_parallel_ranks(lens: Lens) -> float | None:
    """How many ranks share a batch: the devices over those that one model takes."""
    devices = lens.get("actor_train.device_mapping")
    count: float
    if isinstance(devices, list):
        count = len(devices)
    elif isinstance(devices, str) and (found := _RANGE.search(devices)):
        count = int(found[2]) - int(found[1])
    else:
        return None
    strategy = "actor_train.strategy_args.strategy_config"
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        count /= lens.number(f"{strategy}.{name}", 1.0) or 1
    count /= lens.number("actor_train.model_args.ulysses_size", 1.0) or 1
    return count if count >= 1 else None


def roll_clip_not_testable(lens: Lens) -> Maybe:
    """The loss in use where it has no clip whose fraction could be tested for zero, else False."""
    if not lens.has("actor_train"):
        return MISSING
    variant = lens.cfg("actor_train.pg_variant")
    if variant is not None and "pg_worker" in str(lens.cfg("actor_train.worker_cls", "")):
        return False if variant == "ppo" else str(variant)
    return "PG" if lens.cfg("use_policy_loss_type") == "PG" else False


def roll_correction(lens: Lens) -> Maybe:
    """The weight or the filters against the inference engine that are on, in words; ``none``."""
    if not lens.has("actor_train"):
        return MISSING
    block = "train_infer_correction"
    active = []
    if lens.cfg(f"{block}.is_weight.enabled") is True:
        kind, bound = lens.cfg(f"{block}.is_weight.weight_type", "token"), lens.cfg(f"{block}.is_weight.upper_bound")
        active.append(f"{kind} weights" + ("" if bound is None else f" up to {bound}"))
    filters = lens.get(f"{block}.filters")
    for one in filters if isinstance(filters, list) else ():
        if isinstance(one, Mapping) and one.get("enabled") is True:
            active.append(f"{one.get('agg_type', 'token')} filter")
    if lens.cfg("use_topr_loss") is True:
        active.append("TOPR")
    return ", ".join(active) or "none"


def roll_filtered_batches(lens: Lens) -> Maybe:
    """Whether prompts are left out of batches by what the policy makes of them."""
    if not lens.has("actor_train"):
        return MISSING
    kinds = [value for key, value in lens.config.items() if key.endswith(".query_filter_config.type")]
    return any(kind != "no_filter" for kind in kinds) or lens.cfg("is_use_additional_prompts") is True


def roll_rollout_replay(lens: Lens) -> Maybe:
    """The switch by which rollouts are read from a dump, where it is on."""
    replays = lens.get("rollout_mock.enable") is True and lens.cfg("rollout_mock.mode") == "mock"
    return "rollout_mock.enable" if replays else MISSING


FUNCTIONS: Final[tuple[Callable[[Lens], Any], ...]] = (
    roll_updates_per_batch,
    roll_clip_not_testable,
    roll_correction,
    roll_filtered_batches,
    roll_rollout_replay,
)

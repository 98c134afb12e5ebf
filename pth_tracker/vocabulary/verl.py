"""What needs more than an expression of verl: its releases, and arithmetic over its configuration."""

from __future__ import annotations

import math
from typing import Final

from pth_tracker.values import MISSING, Maybe
from pth_tracker.vocabulary.lens import EffectiveSeed, Lens, seed_text


def _section(lens: Lens, *names: str) -> bool:
    return any(lens.has(name) for name in names)


def verl_version(lens: Lens) -> str | None:
    """The earliest release whose configuration has these keys; between releases of git it is the nearest."""
    if not _section(lens, "actor_rollout_ref"):
        return None
    correction = "algorithm.rollout_correction"
    signs: tuple[tuple[str, bool], ...] = (
        ("0.9.0", _section(lens, "trainer.use_v1", "skip")),
        ("0.8.0", _section(lens, "distillation")),
        ("0.7.1", _section(lens, "reward", "sandbox_fusion")),
        ("0.6.1", lens.has(f"{correction}.use_policy_gradient")),
        ("0.7.0", lens.has(f"{correction}.loss_type")),
        ("0.6.1", lens.has(correction)),
        ("0.6.0", lens.has("algorithm.rollout_is_threshold")),
        ("0.5.0", lens.has("trainer.use_legacy_worker_impl")),
        ("0.4.1", lens.has("actor_rollout_ref.rollout.calculate_log_probs")),
        ("0.4.0", lens.has("actor_rollout_ref.actor.loss_agg_mode")),
    )
    return next((version for version, seen in signs if seen), "0.3.0")


def verl_data_order(lens: Lens) -> EffectiveSeed:
    """What orders the prompts: ``data.seed`` where shuffling is on and no sampler of the user's own replaces it.

    Up to 0.6.0 an absent seed counts as 1; from 0.6.1 on a null one leaves the generator at its default, which is a
    fixed order and no random one.
    """
    key = "data.seed"
    given = lens.get(key)
    if not lens.has("data"):
        return EffectiveSeed(key=key, why="the configuration has no section data")
    if lens.get("data.shuffle") is False:
        return EffectiveSeed("the file's order", False, given, key, "data.shuffle is False")
    sampler = lens.get("data.sampler.class_path")
    if isinstance(sampler, str) and sampler:
        return EffectiveSeed(None, False, given, key, f"the sampler {sampler} decides the order")
    if given is not MISSING and given is not None:
        return EffectiveSeed(seed_text(given), True, given, key)
    if lens.at_least("0.6.1"):
        return EffectiveSeed(
            "the default order", False, given, key, f"{key} is {'absent' if given is MISSING else 'null'}"
        )
    return EffectiveSeed("1", False, given, key, f"{key} is absent and counts as 1")


def verl_pi_old(lens: Lens) -> Maybe:
    """``sampler`` where the ratio's denominator is the rollout's log-probability, else ``learner``.

    The FSDP actor of 0.6.1 to 0.7.1 replaces the old log-probability by its own, detached, where a batch takes one
    step, bypass mode or not, unless ``actor.use_rollout_log_probs`` is set.
    """
    actor = "actor_rollout_ref.actor"
    legacy = lens.at_least("0.6.1") and not lens.at_least("0.8.0")
    if legacy and lens.cfg(f"{actor}.use_rollout_log_probs") is True:
        return "sampler"
    if lens.cfg("algorithm.rollout_correction.bypass_mode") is True:
        detached = (
            legacy
            and lens.cfg("trainer.use_legacy_worker_impl", "auto") != "disable"
            and str(lens.cfg(f"{actor}.strategy", "fsdp")).startswith("fsdp")
            and verl_updates_per_batch(lens) == 1
        )
        return "learner" if detached else "sampler"
    if lens.cfg("trainer.v1.trainer_mode") == "separate_async":
        return "learner at the start of a cycle"
    return "learner" if lens.has(actor) else MISSING


def verl_updates_per_batch(lens: Lens) -> Maybe:
    """``ppo_epochs * ceil(train_batch_size / ppo_mini_batch_size)``, both in prompts.

    Fully asynchronous trainers take ``ppo_epochs * async_training.require_batches``.
    """
    actor = "actor_rollout_ref.actor"
    epochs = lens.number(f"{actor}.ppo_epochs", 1.0)
    required = lens.number("async_training.require_batches")
    batch = lens.number("data.train_batch_size")
    mini = lens.number(f"{actor}.ppo_mini_batch_size")
    if epochs is None:
        return MISSING
    if required is not None and not batch:
        return round(epochs * required)
    if not batch or not mini or not (math.isfinite(batch) and math.isfinite(mini)) or mini <= 0:
        return MISSING
    return round(epochs * math.ceil(batch / mini))


def verl_clip_not_testable(lens: Lens) -> Maybe:
    """The loss in use where a clip fraction of 0 says nothing by its definition, else False."""
    mode = lens.cfg("actor_rollout_ref.actor.policy_loss.loss_mode", "vanilla")
    if mode in ("sapo", "gpg", "kl_cov", "dro"):
        return str(mode)
    correction = "algorithm.rollout_correction"
    if lens.cfg(f"{correction}.loss_type") == "reinforce" and lens.cfg(f"{correction}.bypass_mode") is True:
        return "reinforce"
    if lens.cfg("algorithm.rollout_correction.use_policy_gradient") is True:
        return "policy gradient without a ratio"
    return False


def verl_correction(lens: Lens) -> Maybe:
    """The importance weight or rejection against the sampler that is active, in words; ``none``."""
    block = "algorithm.rollout_correction"
    active = [
        f"{name}={lens.cfg(f'{block}.{name}')}" for name in ("rollout_is", "rollout_rs") if _on(lens, block, name)
    ]
    if lens.cfg("algorithm.rollout_is") is True and lens.get("algorithm.rollout_is_threshold") not in (None, MISSING):
        active.append("rollout_is")
    for key in ("actor_rollout_ref.actor.tis_imp_ratio_cap", "actor_rollout_ref.actor.imp_ratio_cap"):
        cap = lens.number(key)
        if cap is not None and cap > 0:
            active.append(f"{key.rsplit('.', 1)[1]}={cap:g}")
    if active and lens.cfg("actor_rollout_ref.rollout.calculate_log_probs", True) is False:
        return "none"  # without the rollout's log-probabilities the correction silently does nothing
    return ", ".join(active) or "none"


def _on(lens: Lens, block: str, name: str) -> bool:
    return lens.get(f"{block}.{name}") not in (None, MISSING, False, "")


def verl_staleness(lens: Lens) -> Maybe:
    """By how many updates the sampler may lag by design; released verl's synchronous trainer has no such key."""
    interval = lens.number("trainer.sync_interval")
    if interval is not None:
        return int(interval) if interval > 1 else 0
    mode = lens.cfg("trainer.v1.trainer_mode")
    if mode in ("separate_async", "colocate_async"):
        return int(lens.number("trainer.v1.sampler.max_off_policy_threshold", 8.0) or 0)
    if lens.has("async_training"):
        threshold = lens.number("async_training.staleness_threshold", 0.0) or 0.0
        sync = lens.number("async_training.trigger_parameter_sync_step", 1.0) or 1.0
        return max(1, math.ceil(threshold)) if threshold > 0 else (int(sync) if sync > 1 else 0)
    return MISSING


def verl_rollout_replay(lens: Lens) -> Maybe:
    """The switch by which rollouts are read from a dump, where one is on: its name moved in 0.8 and again in 0.9."""
    rollout = "actor_rollout_ref.rollout"
    switches = [f"{rollout}.skip_rollout", f"{rollout}.skip.enable"]
    switches += [f"skip.{kind}.enable" for kind in ("rollout", "rollout_tq", "async_rollout")]
    return next((key for key in switches if lens.get(key) is True), MISSING)


def verl_batches_per_epoch(lens: Lens) -> Maybe:
    """Total updates over epochs, where the total is the epochs' own and was computed (a console prints -1)."""
    if lens.number("trainer.total_training_steps"):
        return MISSING  # the user's own limit
    total = lens.number("actor_rollout_ref.actor.optim.total_training_steps")
    epochs = lens.number("trainer.total_epochs")
    return total / epochs if total and epochs and total > 0 and epochs > 0 else MISSING


def verl_asynchronous(lens: Lens) -> Maybe:
    """Whether batches are assembled by completion: the fully asynchronous trainers; one step off keeps the order."""
    if lens.has("async_training"):
        return True
    return lens.cfg("trainer.v1.trainer_mode", "sync") in ("separate_async", "colocate_async")


def verl_batch_size(lens: Lens) -> Maybe:
    """Prompts that the data loader yields at a time: ``data.gen_batch_size``, else ``data.train_batch_size``."""
    size = lens.number("data.gen_batch_size") or lens.number("data.train_batch_size")
    return int(size) if size and size >= 1 else MISSING


def verl_reward_penalty(lens: Lens) -> Maybe:
    """The KL penalty in the training reward, in words: by ``use_kl_in_reward``, up to 0.3 without a KL loss."""
    if not lens.has("algorithm"):
        return MISSING
    if lens.has("algorithm.use_kl_in_reward"):
        on = lens.cfg("algorithm.use_kl_in_reward") is True
    else:
        on = lens.cfg("actor_rollout_ref.actor.use_kl_loss") is not True
    kind = lens.cfg("algorithm.kl_ctrl.type", "fixed")
    return f"{kind} KL, coefficient {lens.cfg('algorithm.kl_ctrl.kl_coef', 0.001)}" if on else "none"


def verl_normaliser(lens: Lens) -> Maybe:
    """The effective normaliser of the policy loss, which is not always the declared one.

    ``sapo`` and ``geo_mean``, and ``gspo`` up to 0.9.0, ignore ``loss_agg_mode``. Up to 0.7.1 (unless 0.7 runs without
    the legacy workers) the loss is normalised within each micro-batch, so that a token mean, and a token sum over a
    constant, depend on the micro-batch; means over sequences do not.
    """
    actor = "actor_rollout_ref.actor"
    if not lens.has(actor):
        return MISSING
    mode = lens.cfg(f"{actor}.policy_loss.loss_mode", "vanilla")
    declared = str(lens.cfg(f"{actor}.loss_agg_mode", "token-mean"))
    if mode == "geo_mean":
        return "seq-mean"
    if mode == "sapo" or (mode == "gspo" and not lens.at_least("0.9.0")):
        return "seq-mean-token-mean"
    if mode == "gspo" and not lens.at_least("0.9.1") and declared != "seq-mean-token-mean":
        return MISSING  # 0.9.0 ignores it and 0.9.1 does not; their configurations have the same keys
    within = f" within each {_micro_batch(lens)}" if _legacy_workers(lens) else ""
    if declared == "seq-mean-token-sum-norm":
        scale = lens.cfg(f"{actor}.loss_scale_factor") if lens.at_least("0.7.0") else None
        over = "the response's width" if scale is None else f"{scale}"
        if not lens.at_least("0.7.1"):
            return f"token sum over {over}, not over the batch{within}"
        return f"token sum over {over} and the batch"
    return f"{declared}{within}" if declared == "token-mean" else declared


def _legacy_workers(lens: Lens) -> bool:
    if lens.at_least("0.8.0"):
        return False
    return not (lens.at_least("0.7.0") and lens.cfg("trainer.use_legacy_worker_impl") == "disable")


def _micro_batch(lens: Lens) -> str:
    """The micro-batch of the actor's update in words, no larger than a GPU's share of the mini-batch."""
    actor = "actor_rollout_ref.actor"
    if lens.cfg(f"{actor}.use_dynamic_bsz") is True:
        tokens = lens.number(f"{actor}.ppo_max_token_len_per_gpu")
        return "dynamic micro-batch" + (f" of at most {tokens:g} tokens" if tokens else "")
    gpus = (lens.number("trainer.n_gpus_per_node") or 0) * (lens.number("trainer.nnodes", 1.0) or 0)
    workers = gpus / (lens.number(f"{actor}.ulysses_sequence_parallel_size", 1.0) or 1)
    size = lens.number(f"{actor}.ppo_micro_batch_size_per_gpu")
    if not size and workers:
        size = (lens.number(f"{actor}.ppo_micro_batch_size") or 0) / workers
    mini = lens.number(f"{actor}.ppo_mini_batch_size")
    if size and mini and workers and lens.cfg(f"{actor}.strategy", "fsdp") != "megatron":
        size = min(size, mini * (lens.number("actor_rollout_ref.rollout.n", 1.0) or 1) / workers)
    return f"micro-batch of {size:g} responses" if size else "micro-batch"


GROUP_ESTIMATORS: Final = ("grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline")
"""Beginnings of the names of verl's advantage estimators that compare the responses to one prompt."""


def verl_group_advantage(lens: Lens) -> Maybe:
    """Whether the advantage estimator compares the responses to one prompt."""
    if not lens.has("algorithm"):
        return MISSING
    name = str(lens.cfg("algorithm.adv_estimator", "gae")).rpartition(".")[2].lower()
    if name.startswith(GROUP_ESTIMATORS):
        return True
    return False if name in ("gae", "remax", "reinforce_plus_plus") else MISSING


def verl_group_size(lens: Lens) -> Maybe:
    """``rollout.n``, times ``rollout.n_agent`` in forks that repeat each prompt so often before generation."""
    size = lens.number("actor_rollout_ref.rollout.n", 1.0) or 1
    agents = lens.number("actor_rollout_ref.rollout.n_agent", 1.0) or 1
    return round(size * agents) if lens.has("actor_rollout_ref.rollout") and math.isfinite(size * agents) else MISSING


FUNCTIONS: Final = (
    verl_version,
    verl_data_order,
    verl_pi_old,
    verl_updates_per_batch,
    verl_clip_not_testable,
    verl_correction,
    verl_staleness,
    verl_rollout_replay,
    verl_batches_per_epoch,
    verl_asynchronous,
    verl_batch_size,
    verl_reward_penalty,
    verl_normaliser,
    verl_group_advantage,
    verl_group_size,
)

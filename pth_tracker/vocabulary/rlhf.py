"""What needs more than an expression of ms-swift, OpenRLHF, SkyRL and slime."""

from __future__ import annotations

import math
from typing import Final

from pth_tracker.values import MISSING, Maybe
from pth_tracker.vocabulary.lens import EffectiveSeed, Lens, seed_text

SWIFT_SEED: Final = 42
"""ms-swift's default of both ``seed`` and ``data_seed``."""


def swift_data_order(lens: Lens) -> EffectiveSeed:
    """What orders ms-swift's prompts: the data set is shuffled by ``data_seed``, the sampler by ``seed``.

    An order is named by ``seed`` while ``data_seed`` has its default, by ``data_seed`` while ``seed`` has, else by
    both.
    """
    seed, data_seed = lens.get("seed"), lens.get("data_seed")
    if lens.cfg("shuffle_dataset", True) is False:
        if lens.cfg("dataset_shuffle", True) is False:
            return EffectiveSeed("the file's order", False, seed, "seed", "dataset_shuffle is False")
        if data_seed is MISSING or data_seed is None:
            return EffectiveSeed(key="data_seed", given=data_seed, why="data_seed is absent")
        return EffectiveSeed(seed_text(data_seed), True, data_seed, "data_seed")
    if seed is MISSING or seed is None:
        return EffectiveSeed(key="seed", given=seed, why=f"seed is {'absent' if seed is MISSING else 'null'}")
    moved = data_seed not in (MISSING, None, SWIFT_SEED) and lens.cfg("dataset_shuffle", True) is not False
    if not moved:
        return EffectiveSeed(seed_text(seed), True, seed, "seed")
    if seed == SWIFT_SEED:
        return EffectiveSeed(seed_text(data_seed), True, data_seed, "data_seed")
    order = seed_text(seed) if seed == data_seed else f"{seed_text(seed)} after data_seed {seed_text(data_seed)}"
    return EffectiveSeed(order, True, seed, "seed")


def openrlhf_updates_per_batch(lens: Lens) -> Maybe:
    """``max_epochs`` passes over ``rollout.batch_size * n_samples_per_prompt`` responses by ``train.batch_size``."""
    return _steps(
        lens.number("train.max_epochs", 1.0),
        lens.number("rollout.batch_size"),
        lens.number("rollout.n_samples_per_prompt", 1.0),
        lens.number("train.batch_size"),
    )


def _steps(epochs: float | None, prompts: float | None, responses: float | None, batch: float | None) -> Maybe:
    if not (epochs and prompts and responses and batch) or min(epochs, prompts, responses, batch) <= 0:
        return MISSING
    return round(epochs * math.ceil(prompts * responses / batch))


def nemo_updates_per_batch(lens: Lens) -> Maybe:
    """Responses of a step over ``policy.train_global_batch_size``, times ``ppo.ppo_epochs`` where PPO is run."""
    return _steps(
        lens.number("ppo.ppo_epochs", 1.0),
        lens.number("grpo.num_prompts_per_step"),
        lens.number("grpo.num_generations_per_prompt", 1.0),
        lens.number("policy.train_global_batch_size"),
    )


def nemo_correction(lens: Lens) -> Maybe:
    """The importance weight or rejection against the sampler that is active, in words; ``none``."""
    if not lens.has("loss_fn"):
        return MISSING
    active = []
    if lens.cfg("loss_fn.use_importance_sampling_correction") is True:
        kind = lens.cfg("loss_fn.truncated_importance_sampling_type", "importance weight")
        bound = lens.cfg("loss_fn.truncated_importance_sampling_ratio")
        active.append(f"{kind} up to {bound}" if bound is not None else str(kind))
    threshold = lens.cfg("grpo.seq_logprob_error_threshold")
    if threshold is not None:
        active.append(f"sequences beyond {threshold} left out")
    return ", ".join(active) or "none"


def nemo_staleness(lens: Lens) -> Maybe:
    """The largest age of a trajectory with asynchronous training, else 0."""
    for block in ("grpo.async_grpo", "ppo.async_ppo"):
        if lens.cfg(f"{block}.enabled") is True:
            return int(lens.number(f"{block}.max_trajectory_age_steps", 1.0) or 0)
    return 0 if lens.has("grpo") or lens.has("ppo") else MISSING


def skyrl_updates_per_batch(lens: Lens) -> Maybe:
    """``update_epochs_per_batch`` passes over ``train_batch_size`` prompts by ``policy_mini_batch_size`` prompts.

    The fully asynchronous trainer takes one mini-batch at a time.
    """
    mini = lens.number("trainer.policy_mini_batch_size")
    batch = mini if lens.cfg("trainer.fully_async.enabled") is True else lens.number("trainer.train_batch_size")
    return _steps(lens.number("trainer.update_epochs_per_batch", 1.0), batch, 1.0, mini)


SKYRL_CLIPPED: Final = ("regular", "dual_clip", "gspo")
"""SkyRL's losses in which ``clip_ratio`` is the share of tokens that PPO's clip acts on."""
SKYRL_SAMPLER: Final = ("rollout_is", "dppo")
"""SkyRL's losses whose ratio is the one against the rollout."""


def skyrl_pi_old(lens: Lens) -> Maybe:
    """``sampler`` for losses against the rollout's log-probabilities, else ``learner``."""
    if not lens.has("trainer.algorithm"):
        return MISSING
    loss = lens.cfg("trainer.algorithm.policy_loss_type", "regular")
    anchored = loss == "cispo" and lens.cfg("trainer.algorithm.cispo.cispo_anchor") == "rollout"
    return "sampler" if anchored or loss in SKYRL_SAMPLER else "learner"


def skyrl_clip_not_testable(lens: Lens) -> Maybe:
    """The loss in use where a clip fraction of 0 says nothing by its definition, else False."""
    if not lens.has("trainer.algorithm"):
        return MISSING
    loss = str(lens.cfg("trainer.algorithm.policy_loss_type", "regular"))
    return False if loss in SKYRL_CLIPPED else loss


def skyrl_correction(lens: Lens) -> Maybe:
    """The importance weight or mask against the rollout that is active, in words; ``none``."""
    if not lens.has("trainer.algorithm"):
        return MISSING
    block = "trainer.algorithm.off_policy_correction"
    keys = ("tis_ratio_type", "sequence_mask_metric")
    active = [f"{key}={value}" for key in keys if (value := lens.cfg(f"{block}.{key}"))]
    # A single bound leaves out outliers; the mask of tokens acts with both alone.
    for name, enough in (("outlier_token_is_threshold", any), ("token_mask_is_threshold", all)):
        given = [lens.cfg(f"{block}.{name}_{side}") is not None for side in ("low", "high")]
        active += [name] if enough(given) else []
    if lens.cfg("trainer.algorithm.use_tis") is True:
        active.append("use_tis")
    return ", ".join(active) or "none"


def skyrl_staleness(lens: Lens) -> Maybe:
    """``max_staleness_steps`` of the fully asynchronous trainer, 0 where that is off, missing where nothing says."""
    block = "trainer.fully_async"
    if lens.cfg(f"{block}.enabled") is True:
        return int(lens.number(f"{block}.max_staleness_steps", 4.0) or 0)
    if not lens.has("trainer"):
        return MISSING
    # Before there was the switch, the script alone told which trainer ran.
    return 0 if lens.has(f"{block}.enabled") or not lens.has(block) else MISSING


def skyrl_normaliser(lens: Lens) -> Maybe:
    """The loss's reduction within a mini-batch, in words."""
    if not lens.has("trainer.algorithm"):
        return MISSING
    kind = str(lens.cfg("trainer.algorithm.loss_reduction", "token_mean"))
    if kind == "token_mean_legacy":
        return (
            f"token-mean within each micro-batch of {lens.cfg('trainer.micro_train_batch_size_per_gpu', 1)} responses"
        )
    if kind == "seq_mean_token_sum_norm":
        return f"token sum over {lens.cfg('trainer.algorithm.max_seq_len', 'max_seq_len')} and the batch"
    words = {
        "token_mean": "token-mean",
        "sequence_mean": "seq-mean-token-mean",
        "prompt_mean": "prompt-mean-token-mean",
    }
    return words.get(kind, kind)


def slime_updates_per_batch(lens: Lens) -> Maybe:
    """``num_steps_per_rollout``, or the responses of a rollout over ``global_batch_size``."""
    steps = lens.number("num_steps_per_rollout")
    if steps and steps >= 1:
        return round(steps)
    return _steps(
        1.0,
        lens.number("rollout_batch_size"),
        lens.number("n_samples_per_prompt", 1.0),
        lens.number("global_batch_size"),
    )


def slime_correction(lens: Lens) -> Maybe:
    """The importance weight or mask against the rollout that is active, in words; ``none``."""
    if lens.get("rollout_batch_size") is MISSING:
        return MISSING
    active = []
    if lens.cfg("use_tis") is True:
        own = lens.cfg("custom_tis_function_path")
        active.append(f"tis by {own}" if own else f"tis up to {lens.cfg('tis_clip', 2.0)}")
    if lens.cfg("use_rs") is True and True in (lens.cfg("use_tis"), lens.cfg("get_mismatch_metrics")):
        active.append("rejection by the custom function")
    if lens.cfg("use_opsm") is True:
        active.append("off-policy sequence mask")
    return ", ".join(active) or "none"


def slime_staleness(lens: Lens) -> Maybe:
    """``update_weights_interval`` where it is above 1; else missing, since ``train_async.py`` leaves no trace."""
    interval = lens.number("update_weights_interval")
    return int(interval) if interval is not None and interval > 1 else MISSING


FUNCTIONS: Final = (
    swift_data_order,
    openrlhf_updates_per_batch,
    nemo_updates_per_batch,
    nemo_correction,
    nemo_staleness,
    skyrl_updates_per_batch,
    skyrl_pi_old,
    skyrl_clip_not_testable,
    skyrl_correction,
    skyrl_staleness,
    skyrl_normaliser,
    slime_updates_per_batch,
    slime_correction,
    slime_staleness,
)

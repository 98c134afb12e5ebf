"""What a run logs at each update, under the names and with the estimators of verl 0.7.1."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.demo.losses import LOG_RATIO_BOUND, masked_mean
from pth_tracker.demo.policy import Rollouts
from pth_tracker.demo.tasks import SOURCE, Bools

Floats = npt.NDArray[np.float64]

ACCURACY: Final = f"val-core/{SOURCE}/acc/mean@1"
"""The held-out accuracy's metric key."""
DATA_AGE: Final = "training/off_policy/trajectory_staleness/mean"
"""Updates made between a batch's sampling and its training, under verl 0.9's name; logged where a queue delays it."""


def off_policy_metrics(train: Floats, rollout: Floats, mask: Bools) -> dict[str, float]:
    """``rollout_corr/*``: how far the learner is from the sampler, on the sampler's responses.

    Args:
        train: ``(n, T)``, the learner's log-probabilities, nats.
        rollout: ``(n, T)``, the sampler's own record.
        mask: ``(n, T)``.
    """
    gap = np.where(mask, train - rollout, 0.0)
    lengths = mask.sum(axis=1)
    train_mean = np.where(mask, train, 0.0).sum(axis=1) / lengths
    rollout_mean = np.where(mask, rollout, 0.0).sum(axis=1) / lengths
    difference = rollout_mean - train_mean
    by_token = np.exp(2 * np.clip(gap, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    by_sequence = np.exp(2 * np.clip(gap.sum(axis=1), -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    values = {
        "training_ppl": np.exp(-train_mean).mean(),
        "training_log_ppl": (-train_mean).mean(),
        "kl": masked_mean(-gap, mask),
        # exp(d) - d - 1, which loses all digits near 0 unless exp(d) - 1 is taken in one go.
        "k3_kl": masked_mean(np.expm1(gap) - gap, mask),
        "rollout_ppl": np.exp(-rollout_mean).mean(),
        "rollout_log_ppl": (-rollout_mean).mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": np.abs(difference).mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": np.exp(difference).mean(),
        "chi2_token": masked_mean(by_token, mask) - 1.0,
        "chi2_seq": by_sequence.mean() - 1.0,
    }
    return {f"rollout_corr/{name}": float(value) for name, value in values.items()}


def probability_metrics(train: Floats, rollout: Floats, mask: Bools) -> dict[str, float]:
    """``training/rollout_probs_diff_*``: differences of the two policies' probabilities of the sampled tokens."""
    ours, theirs = np.exp(train[mask]), np.exp(rollout[mask])
    gap = np.abs(ours - theirs)
    with np.errstate(invalid="ignore"):
        # No correlation where one side does not vary: verl logs NaN there as well.
        correlation = np.corrcoef(ours, theirs)[0, 1]
    return {
        "training/rollout_probs_diff_valid": 1,
        "training/rollout_probs_diff_max": float(gap.max()),
        "training/rollout_probs_diff_mean": float(gap.mean()),
        "training/rollout_probs_diff_std": float(gap.std(ddof=1)),
        "training/rollout_actor_probs_pearson_corr": float(correlation),
    }


def data_metrics(rollouts: Rollouts, scores: Floats, advantages: Floats, limits: tuple[int, int]) -> dict[str, float]:
    """Scores, rewards, advantages and lengths of a batch.

    Args:
        rollouts: The batch.
        scores: ``(n,)``.
        advantages: ``(n,)``.
        limits: The longest prompt and the longest response allowed, in tokens.
    """
    prompts = rollouts.problems.prompt_length.astype(np.float64)
    responses = rollouts.mask.sum(axis=1).astype(np.float64)
    by_token = np.broadcast_to(advantages[:, None], rollouts.mask.shape)[rollouts.mask]
    series = {
        "critic/score": scores,
        "critic/rewards": scores,
        "critic/advantages": by_token,
        "critic/returns": by_token,
        "response_length": responses,
        "prompt_length": prompts,
    }
    metrics: dict[str, float] = {}
    for name, values in series.items():
        metrics |= {f"{name}/mean": values.mean(), f"{name}/max": values.max(), f"{name}/min": values.min()}
    metrics["response_length/clip_ratio"] = (responses == limits[1]).mean()
    metrics["prompt_length/clip_ratio"] = (prompts == limits[0]).mean()
    metrics["response/aborted_ratio"] = (responses == 0).mean()
    metrics["perf/total_num_tokens"] = prompts.sum() + responses.sum()
    return {name: float(value) for name, value in metrics.items()}


def evaluation_metrics(scores: Floats) -> dict[str, float]:
    """The held-out accuracy of greedy responses, one to each problem, from their ``(n,)`` scores."""
    return {
        ACCURACY: float(scores.mean()),
        f"val-aux/{SOURCE}/reward/mean@1": float(scores.mean()),
    }

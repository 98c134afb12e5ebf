"""Advantages, importance weights and policy losses, each with its slope in the learner's log-probabilities.

The formulas are those of verl 0.7.1 (``core_algos.py``, ``rollout_corr_helper.py``), in NumPy and with the
derivatives written out, so that what the demo logs under verl's names is what verl would have logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.demo.settings import Settings
from pth_tracker.demo.tasks import Bools

Floats = npt.NDArray[np.float64]

LOG_RATIO_BOUND: Final = 20.0
"""Log-ratios beyond this many nats are cut off before they are exponentiated."""


@dataclass(frozen=True)
class Loss:
    """A loss, its slope and what is logged of it."""

    value: float
    slope: Floats
    """``(n, T)``, derivative in the learner's log-probability of each token; 0 outside the mask."""
    metrics: dict[str, float]


PolicyLoss = Callable[[Floats, Floats, Floats, Bools, Floats | None, Settings], Loss]
"""Of the signature of `ppo_clip`."""


def masked_mean(values: Floats, mask: Bools) -> float:
    """The mean of ``(n, T)`` values over the tokens of the mask."""
    return float(values[mask].mean())


def group_advantages(scores: Floats, group: int, by_std: bool) -> Floats:
    """``(n,)``, GRPO's advantages: score minus the mean over the responses to its prompt, over their deviation.

    The deviation is the sample's (n - 1), with 1e-6 added; a group of one keeps its score.

    Args:
        scores: ``(n,)``, the responses of a prompt side by side.
        group: Responses to a prompt.
        by_std: Whether to divide by the deviation (Dr. GRPO does not).
    """
    if group == 1:
        return scores / (1 + 1e-6) if by_std else scores
    table = scores.reshape(-1, group)
    centred = table - table.mean(axis=1, keepdims=True)
    if by_std:
        centred = centred / (table.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    return np.asarray(centred.reshape(-1))


def token_shares(mask: Bools, aggregation: str) -> Floats:
    """``(n, T)``, the weight of each token's loss in the batch's loss, by verl's ``loss_agg_mode``.

    Args:
        mask: ``(n, T)``.
        aggregation: ``token-mean``, ``seq-mean-token-mean`` or ``seq-mean-token-sum``.
    """
    inside = mask.astype(np.float64)
    if aggregation == "token-mean":
        return np.asarray(inside / mask.sum())
    if aggregation == "seq-mean-token-mean":
        return np.asarray(inside / mask.sum(axis=1, keepdims=True) / len(mask))
    return np.asarray(inside / len(mask))


def importance_weights(log_ratio: Floats, mask: Bools, settings: Settings) -> tuple[Floats, dict[str, float]]:
    """``(n, T)`` truncated importance weights min(pi / q, threshold) without slope, and what is logged of them.

    Args:
        log_ratio: ``(n, T)``, learner's minus sampler's log-probability, nats.
        mask: ``(n, T)``.
        settings: Level (token or sequence), threshold and normalisation.
    """
    by_token = settings.importance == "token"
    levels = log_ratio if by_token else np.where(mask, log_ratio, 0.0).sum(axis=1, keepdims=True)
    raw = np.exp(np.clip(levels, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)) * mask
    metrics = _weight_metrics(raw, mask, settings.importance_threshold)
    weights = np.minimum(raw, settings.importance_threshold)
    if settings.importance_normalise:
        mean = masked_mean(weights, mask) if by_token else float(weights[:, 0].mean())
        factor = mean if mean > 1e-8 else 1.0
        weights = weights / factor
        metrics["rollout_corr/rollout_is_batch_norm_factor"] = factor
    return weights, metrics


def _weight_metrics(raw: Floats, mask: Bools, threshold: float) -> dict[str, float]:
    low = 1.0 / threshold
    inside = raw[mask]
    bounded = np.clip(inside, low, threshold)
    by_sequence = raw.sum(axis=1) / mask.sum(axis=1)
    values = {
        "mean": inside.mean(),
        "max": inside.max(),
        "min": inside.min(),
        "std": np.sqrt(max(np.square(bounded).mean() - bounded.mean() ** 2, 0.0)),
        "eff_sample_size": 1.0 / np.square(bounded / (bounded.mean() + 1e-8)).mean(),
        "ratio_fraction_high": (inside > threshold).mean(),
        "ratio_fraction_low": (inside < low).mean(),
        "seq_mean": by_sequence.mean(),
        "seq_std": by_sequence.std(ddof=1) if len(by_sequence) > 1 else 0.0,
        "seq_max": by_sequence.max(),
        "seq_min": by_sequence.min(),
        "seq_max_deviation": np.abs(by_sequence - 1.0).max(),
        "seq_fraction_high": (by_sequence > threshold).mean(),
        "seq_fraction_low": (by_sequence < low).mean(),
    }
    return {f"rollout_corr/rollout_is_{name}": float(value) for name, value in values.items()}


def ppo_clip(
    old: Floats, new: Floats, advantages: Floats, mask: Bools, weights: Floats | None, settings: Settings
) -> Loss:
    """PPO's clipped loss with the dual clip, as verl's ``vanilla`` policy loss.

    With r = exp(new - old) and A the advantage, the token's loss is max(-A r, -A clip(r, 1 - low, 1 + high)), and no
    more than -A c where A is negative; each times its importance weight where there are any. The clip fraction counts
    tokens whose clipped loss is the greater.

    Args:
        old: ``(n, T)``, log-probabilities of the policy in the ratio's denominator.
        new: ``(n, T)``, the learner's, in which the slope is taken.
        advantages: ``(n,)``, one for all tokens of a response.
        mask: ``(n, T)``.
        weights: ``(n, T)`` importance weights that take no part in the slope, or None.
        settings: Clip ranges and aggregation.
    """
    low = settings.clip_ratio if settings.clip_low is None else settings.clip_low
    high = settings.clip_ratio if settings.clip_high is None else settings.clip_high
    advantage = np.broadcast_to(advantages[:, None], mask.shape)
    log_ratio = new - old
    bounded = np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = np.exp(bounded)
    plain = -advantage * ratio
    clipped = -advantage * np.clip(ratio, 1 - low, 1 + high)
    worse = np.maximum(plain, clipped)
    floor = -advantage * settings.dual_clip
    dual = (advantage < 0) & (worse > floor)
    loss = np.where(dual, floor, worse)
    slope = np.where((clipped > plain) | dual | (bounded != log_ratio), 0.0, plain)
    share = token_shares(mask, settings.aggregation) * (1.0 if weights is None else weights)
    metrics = {
        "actor/pg_clipfrac": masked_mean((clipped > plain).astype(np.float64), mask),
        "actor/ppo_kl": masked_mean(-bounded, mask),
        "actor/pg_clipfrac_lower": masked_mean(dual.astype(np.float64), mask),
    }
    return Loss(float((loss * share).sum()), slope * share, metrics)


def anchored_clip(
    old: Floats, new: Floats, advantages: Floats, mask: Bools, weights: Floats | None, settings: Settings
) -> Loss:
    """The clipped loss as it was written anew for the variant that differs in its anchor alone.

    The bug, as it was found in a real comparison: the tokens of a response are averaged over the response before the
    batch is, whatever ``loss_agg_mode`` says. Every token weighs 1 / (n |o_i|), where the other arms' weigh
    1 / (|o_1| + ... + |o_n|).
    """
    return ppo_clip(old, new, advantages, mask, weights, replace(settings, aggregation="seq-mean-token-mean"))

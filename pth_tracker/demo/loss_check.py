"""The loss test of the demo's trainer: the implemented loss against its written equation, before a run trains.

The equation is written for numbers, token by token, and its slopes are taken by central differences, so that it shares
nothing with the arrays of `pth_tracker.demo.losses`. No PyTorch is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.demo.losses import PolicyLoss, importance_weights
from pth_tracker.demo.settings import Settings
from pth_tracker.losses.compare import LossReport, compare_losses
from pth_tracker.losses.evaluate import Evaluation
from pth_tracker.losses.inputs import random_arrays

Floats = npt.NDArray[np.float64]

STEP: Final = 1e-5
"""Half the distance, in nats, over which a slope is taken; the ratios of the input lie further from every bound."""


def token_loss(logp: float, logp_old: float, advantage: float, settings: Settings) -> float:
    """The clipped loss of one token: -min(r A, clip(r, 1 - low, 1 + high) A), and at most -c A where A < 0."""
    low = settings.clip_ratio if settings.clip_low is None else settings.clip_low
    high = settings.clip_ratio if settings.clip_high is None else settings.clip_high
    ratio = math.exp(logp - logp_old)
    loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -settings.dual_clip * advantage) if advantage < 0 else loss


def divisors(lengths: list[int], aggregation: str) -> list[float]:
    """What each response's sum of token losses is divided by, as ``loss_agg_mode`` says.

    ``token-mean``: by all tokens of the batch; ``seq-mean-token-mean``: by the response's own tokens and the number of
    responses; ``seq-mean-token-sum``: by the number of responses.
    """
    count = len(lengths)
    return {
        "token-mean": [float(sum(lengths))] * count,
        "seq-mean-token-mean": [float(length * count) for length in lengths],
        "seq-mean-token-sum": [float(count)] * count,
    }[aggregation]


def written_weights(inputs: Mapping[str, Floats], settings: Settings) -> Floats:
    """``(n, T)``, the importance weight of every token: min(pi_old / q, threshold), of the token or of its response.

    Normalised, they have the mean 1 over the tokens, or over the responses; without a correction all are 1.
    """
    mask = inputs["mask"] > 0
    weights = np.ones(mask.shape)
    if settings.importance is None:
        return weights
    by_token = settings.importance == "token"
    for row, inside, old, sampler in zip(weights, mask, inputs["logp_old"], inputs["logp_sampler"]):
        logs = [float(old[t] - sampler[t]) for t in np.flatnonzero(inside)]
        levels = logs if by_token else [sum(logs)] * len(logs)
        row[inside] = [min(math.exp(level), settings.importance_threshold) for level in levels]
    if settings.importance_normalise:
        counted = weights[mask] if by_token else weights[:, 0]
        weights /= sum(counted) / len(counted)
    return weights


def written_loss(inputs: Mapping[str, Floats], settings: Settings) -> Evaluation:
    """Value and slopes of the equation that the configuration names, on ``random_arrays``."""
    logp, old, mask = inputs["logp"], inputs["logp_old"], inputs["mask"] > 0
    divisor = divisors([int(row.sum()) for row in mask], settings.aggregation)
    weights = written_weights(inputs, settings)
    value, slope = 0.0, np.zeros(logp.shape)
    for i, t in zip(*np.nonzero(mask)):
        at = [
            token_loss(float(logp[i, t]) + shift, float(old[i, t]), float(inputs["advantages"][i]), settings)
            for shift in (-STEP, 0.0, STEP)
        ]
        value += at[1] * weights[i, t] / divisor[i]
        slope[i, t] = (at[2] - at[0]) / (2 * STEP) * weights[i, t] / divisor[i]
    return Evaluation(float(value), {"logp": slope}, frozenset({"logp"}), (), "float64")


def check(loss: PolicyLoss, settings: Settings) -> LossReport:
    """The report of the loss as implemented against the equation that the configuration names."""
    inputs = random_arrays()
    old, mask, weights = inputs["logp_old"], inputs["mask"] > 0, None
    if settings.importance is not None:
        weights, _ = importance_weights(old - inputs["logp_sampler"], mask, settings)
    result = loss(old, inputs["logp"], inputs["advantages"], mask, weights, settings)
    ours = Evaluation(result.value, {"logp": result.slope}, frozenset({"logp"}), (), "float64")
    return compare_losses(ours, written_loss(inputs, settings), inputs)

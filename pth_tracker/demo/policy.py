"""The demo's policy: a softmax over eleven tokens, linear in sparse features of problem and response so far.

At response position t the logits are the sum of six rows of one weight table, picked by: operation and the input digit
at t; operation and the input digit t places from the end; key and the input digit at t; operation and the previous
token; digits still to come; a constant. The gradient is written out by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.demo.tasks import BLANK, EOS, LONGEST, OPERATIONS, VOCABULARY, Bools, Ints, Problems, load_problems

Floats = npt.NDArray[np.float64]

_START: Final = 11
"""Stands for the previous token at the first position."""
_NEAR: Final = 3
"""Distances from the end beyond this many digits are not told apart."""
_SIZES: Final = (len(OPERATIONS) * 11, len(OPERATIONS) * 11, 11 * 11, len(OPERATIONS) * 12, 2 * _NEAR + 1, 1)
_OFFSETS: Final = np.cumsum((0, *_SIZES[:-1]))
FEATURES: Final = sum(_SIZES)
"""Rows of the weight table; it is ``(FEATURES, VOCABULARY)``."""


@dataclass(frozen=True)
class Rollouts:
    """Responses to the prompts of one batch, with the sampler's own record of how probable they were."""

    epoch: int
    problems: Problems
    """``(n,)``, each prompt once for each of its responses, the responses of a prompt side by side."""
    responses: Ints
    """``(n, T)`` tokens; what lies beyond a response's end is `EOS`."""
    mask: Bools
    """``(n, T)``, true at the tokens of a response, its `EOS` included."""
    log_probs: Floats
    """``(n, T)``, nats, by the sampler at the time of sampling; 0 beyond the end."""
    born: int
    """Updates made when they were sampled."""


def active_features(problems: Problems, position: Ints, previous: Ints) -> Ints:
    """``(n, 6)`` or ``(n, T, 6)``, the rows of the weight table that make the logits.

    Args:
        problems: The ``n`` problems.
        position: ``(n,)`` or ``(n, T)``, the response position, from 0.
        previous: Like ``position``: the token before it, any value at position 0.
    """
    inside = np.minimum(position, LONGEST - 1)
    rows = np.arange(len(problems)).reshape(-1, *[1] * (position.ndim - 1))
    beyond = position >= LONGEST
    ahead = np.where(beyond, BLANK, problems.digits[rows, inside])
    behind = np.where(beyond, BLANK, problems.reversed_digits()[rows, inside])
    operation, key = problems.operation[rows], problems.key[rows]
    left = np.clip(problems.length[rows] - position, -_NEAR, _NEAR) + _NEAR
    before = np.where(position == 0, _START, previous)
    groups = (operation * 11 + ahead, operation * 11 + behind, key * 11 + ahead, operation * 12 + before, left)
    return np.asarray(np.stack([*groups, np.zeros_like(left)], axis=-1) + _OFFSETS)


def log_softmax(weights: Floats, features: Ints, temperature: float) -> Floats:
    """``(..., VOCABULARY)``, log-probability of every token, in nats.

    Args:
        weights: ``(FEATURES, VOCABULARY)``.
        features: ``(..., 6)``, from `active_features`.
        temperature: Divides the logits.
    """
    logits = weights[features].sum(axis=-2) / temperature
    logits -= logits.max(axis=-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


def sample(
    weights: Floats, problems: Problems, rng: np.random.Generator | None, temperature: float, limit: int
) -> tuple[Ints, Bools, Floats]:
    """Responses ``(n, T)``, mask ``(n, T)`` and log-probabilities ``(n, T)`` by autoregressive sampling.

    Args:
        weights: ``(FEATURES, VOCABULARY)``.
        problems: The ``n`` problems.
        rng: Draws the tokens; None takes the most probable token each time.
        temperature: Divides the logits.
        limit: Tokens after which a response is cut off.
    """
    n = len(problems)
    tokens, log_probs, masks = [], [], []
    alive = np.ones(n, dtype=bool)
    previous = np.zeros(n, dtype=np.int64)
    for position in range(limit):
        spread = log_softmax(weights, active_features(problems, np.full(n, position), previous), temperature)
        if rng is None:
            token = spread.argmax(axis=1)
        else:
            token = (np.cumsum(np.exp(spread), axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=VOCABULARY - 1)
        token = np.where(alive, token, EOS)
        tokens.append(token)
        masks.append(alive)
        log_probs.append(np.where(alive, spread[np.arange(n), token], 0.0))
        alive = alive & (token != EOS)
        previous = token
        if not alive.any():
            break
    return np.stack(tokens, axis=1), np.stack(masks, axis=1), np.stack(log_probs, axis=1)


def response_features(problems: Problems, responses: Ints) -> Ints:
    """``(n, T, 6)``, the features at every position of given ``(n, T)`` responses."""
    n, width = responses.shape
    previous = np.pad(responses[:, :-1], ((0, 0), (1, 0)))
    return active_features(problems, np.broadcast_to(np.arange(width), (n, width)), previous)


def chosen(spread: Floats, responses: Ints, mask: Bools) -> Floats:
    """``(n, T)``, the log-probabilities of the given tokens out of ``(n, T, VOCABULARY)``; 0 outside the mask."""
    return np.where(mask, np.take_along_axis(spread, responses[..., None], axis=-1)[..., 0], 0.0)


def gradient(features: Ints, spread: Floats, responses: Ints, slope: Floats, temperature: float) -> Floats:
    """``(FEATURES, VOCABULARY)``, the gradient in the weights of a loss whose slope in each log-probability is given.

    With z the logits and p the softmax of z / temperature, d log p[a] / d z = (onehot(a) - p) / temperature, and z is
    the sum of the active rows.

    Args:
        features: ``(n, T, 6)``.
        spread: ``(n, T, VOCABULARY)``, log-probabilities at the current weights.
        responses: ``(n, T)`` tokens.
        slope: ``(n, T)``, derivative of the loss in the token's log-probability; 0 outside the mask.
        temperature: Divides the logits.
    """
    used = slope != 0
    in_logits = -np.exp(spread[used]) * slope[used][:, None]
    in_logits[np.arange(len(in_logits)), responses[used]] += slope[used]
    in_logits /= temperature
    rows = features[used]
    total = np.zeros((FEATURES, VOCABULARY))
    for group in range(rows.shape[1]):
        np.add.at(total, rows[:, group], in_logits)
    return total


@cache
def _base(examples: int, steps: int, lr: float) -> Floats:
    _, _, problems = load_problems(0, 0)
    problems = problems[:examples]
    answers = problems.answers()
    mask = np.arange(answers.shape[1]) <= problems.length[:, None]
    features = response_features(problems, answers)
    weights = np.zeros((FEATURES, VOCABULARY))
    slope = np.where(mask, -1.0 / mask.sum(), 0.0)
    for _ in range(steps):
        weights = weights - lr * gradient(features, log_softmax(weights, features, 1.0), answers, slope, 1.0)
    return weights


def base_weights() -> Floats:
    """``(FEATURES, VOCABULARY)``, the weights every run starts from: fitted to 32 worked examples, always equal."""
    return _base(32, 300, 3.0).copy()

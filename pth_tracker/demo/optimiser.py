"""The learner's optimiser: AdamW or plain gradient descent, gradient clipping, and a constant rate after warm-up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pth_tracker.demo.settings import Settings

Floats = npt.NDArray[np.float64]
Step = Callable[[Floats, Floats, float], Floats]
"""``(weights, gradient, rate)`` to the new weights."""


def learning_rate(update: int, settings: Settings) -> float:
    """The rate of an update (from 0): rising linearly from 0 over the warm-up, constant after it."""
    warmup = settings.warmup_steps if settings.warmup_steps >= 0 else int(settings.warmup_ratio * settings.updates)
    return settings.lr * min(1.0, update / max(1, warmup)) if warmup else settings.lr


def clip_gradient(gradient: Floats, limit: float) -> tuple[Floats, float]:
    """The gradient scaled down to the norm ``limit`` where it exceeds it, and its norm before that."""
    norm = float(np.sqrt(np.square(gradient).sum()))
    return gradient * min(1.0, limit / (norm + 1e-6)), norm


def make_optimiser(settings: Settings) -> Step:
    """The optimiser's step; it carries its own moments from call to call."""
    if settings.optimizer == "SGD":
        return lambda weights, gradient, rate: weights * (1 - rate * settings.weight_decay) - rate * gradient
    first, second = settings.betas
    count = 0
    mean: Floats = np.zeros(())
    square: Floats = np.zeros(())

    def adamw(weights: Floats, gradient: Floats, rate: float) -> Floats:
        nonlocal count, mean, square
        count += 1
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * np.square(gradient)
        direction = mean / (1 - first**count) / (np.sqrt(square / (1 - second**count)) + 1e-8)
        return np.asarray(weights * (1 - rate * settings.weight_decay) - rate * direction)

    return adamw

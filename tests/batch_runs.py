"""Synthetic runs in verl's names: healthy ones by a stated generator, and such that train on one batch again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Metrics = dict[str, np.ndarray]
CAP = 512
"""The length limit of responses, in tokens."""


@dataclass(frozen=True)
class Healthy:
    """A run without repeats.

    Each update draws `prompts` prompts of a data set in a fresh random order every epoch, samples `group` responses a
    prompt and scores each 0 or 1. Prompt lengths are 20 tokens and more, log-normal over the data set. A response's
    length is log-normal about a level that moves from 250 tokens towards ``end``, cut at 512; a prompt is solved with
    a probability that its own difficulty and the run's progress set, towards ``skill``. ``collapse`` is the update
    from which the policy answers everything with one response of 9 tokens, all of them right or all wrong.
    """

    prompts: int
    updates: int
    group: int = 1
    items: int = 7473
    end: float = 250.0
    skill: float = 2.0
    collapse: int | None = None
    decimals: int | None = None

    def sample(self, rng: np.random.Generator) -> Metrics:
        """The metrics, ``(updates,)`` each."""
        lengths = 20 + np.round(np.exp(rng.normal(4.0, 0.5, self.items)))
        difficulty = rng.normal(0, 1.5, self.items)
        per_epoch = self.items // self.prompts
        epochs = -(-self.updates // per_epoch)
        orders = [rng.permutation(self.items)[: per_epoch * self.prompts] for _ in range(epochs)]
        order = np.concatenate(orders).reshape(-1, self.prompts)[: self.updates]
        progress = 1 - np.exp(-3 * np.arange(self.updates) / self.updates)
        rows = np.repeat(order, self.group, axis=1)
        level = 250 * (self.end / 250) ** progress
        responses = np.minimum(np.ceil(np.exp(rng.normal(np.log(level)[:, None], 0.4, rows.shape))), CAP)
        odds = difficulty[rows] - 1 + (self.skill + 1) * progress[:, None]
        scores = (rng.random(rows.shape) < 1 / (1 + np.exp(-odds))).astype(np.float64)
        if self.collapse is not None:
            responses[self.collapse :] = 9
            scores[self.collapse :] = float(rng.integers(2))
        found: Metrics = {"training/epoch": np.repeat(np.arange(epochs), per_epoch)[: self.updates].astype(float)}
        for name, values in (
            ("prompt_length", lengths[rows]),
            ("response_length", responses),
            ("critic/score", scores),
        ):
            found |= {f"{name}/mean": values.mean(1), f"{name}/max": values.max(1), f"{name}/min": values.min(1)}
        found["actor/grad_norm"] = np.exp(rng.normal(-1.5, 0.4, self.updates))
        found["actor/pg_loss"] = rng.normal(0, 0.02, self.updates)
        return printed(found, self.decimals)


def printed(metrics: Metrics, decimals: int | None) -> Metrics:
    """The metrics with the decimals of a console."""
    return metrics if decimals is None else {key: np.round(values, decimals) for key, values in metrics.items()}


def replay(metrics: Metrics, source: np.ndarray) -> Metrics:
    """The run whose update i trains on the batch of update ``source[i]``; the learner's own metrics stay."""
    fixed = ("prompt_length/", "response_length/", "critic/score/")
    return {key: values[source] if key.startswith(fixed) else values for key, values in metrics.items()}


def filling_queue(updates: int, size: int = 33) -> np.ndarray:
    """The batches that a replay queue serves which repeats batch 0 until it holds ``size`` of them."""
    return np.maximum(np.arange(updates) - size + 1, 0)


def random_healthy(rng: np.random.Generator) -> Healthy:
    """A healthy run of any size: 2 to 128 prompts, 100 to 1000 updates, three decimals or all, some collapsing."""
    updates = int(rng.integers(100, 1001))
    prompts = int(2 ** rng.integers(1, 8))
    return Healthy(
        prompts=prompts,
        updates=updates,
        group=int(rng.choice([1, 4, 8])),
        items=int(rng.choice([max(4 * prompts, 200), 1000, 7473])),
        end=float(rng.choice([12.0, 100.0, 250.0, 700.0])),
        skill=float(rng.choice([-1.0, 2.0, 9.0])),
        collapse=int(rng.integers(updates // 3, updates)) if rng.random() < 0.25 else None,
        decimals=3 if rng.random() < 0.5 else None,
    )

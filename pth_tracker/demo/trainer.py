"""The training loop: a sampler that lags, a learner that updates, and a log of both.

The weights that sample are the learner's as they were at the last multiple of ``trainer.sync_interval`` updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pth_tracker.demo import loss_check
from pth_tracker.demo import metrics as measure
from pth_tracker.demo.losses import PolicyLoss, group_advantages, importance_weights, masked_mean, ppo_clip
from pth_tracker.demo.optimiser import Step, clip_gradient, learning_rate, make_optimiser
from pth_tracker.demo.policy import (
    Rollouts,
    base_weights,
    chosen,
    gradient,
    log_softmax,
    response_features,
    sample,
)
from pth_tracker.demo.replay import BatchSource, delayed
from pth_tracker.demo.settings import Settings, read_settings
from pth_tracker.demo.sinks import Sink
from pth_tracker.demo.tasks import Ints, Problems, load_problems, reading_order, score

Floats = npt.NDArray[np.float64]


@dataclass
class _Policies:
    """The two sets of weights, ``(FEATURES, VOCABULARY)`` each, and the number of updates made."""

    learner: Floats
    sampler: Floats
    updates: int = 0


@dataclass(frozen=True)
class _Batch:
    """A batch ready for the learner."""

    rollouts: Rollouts
    features: Ints
    scores: Floats
    advantages: Floats
    old: Floats
    """``(n, T)``, log-probabilities in the denominator of the ratio."""
    weights: Floats | None
    """``(n, T)``, importance weights, or None."""

    def rows(self, part: slice) -> _Batch:
        """The batch's responses in ``part``."""
        r = self.rollouts
        cut = Rollouts(r.epoch, r.problems[part], r.responses[part], r.mask[part], r.log_probs[part], r.born)
        weights = None if self.weights is None else self.weights[part]
        return _Batch(cut, self.features[part], self.scores[part], self.advantages[part], self.old[part], weights)


def train(
    config: Mapping[str, Any], sink: Sink, *, source: BatchSource = delayed, loss: PolicyLoss = ppo_clip
) -> float:
    """The final held-out accuracy of one run, trained as its resolved configuration says and logged to the sink.

    The same configuration gives the same numbers: every draw comes from a generator seeded by the configuration.

    Args:
        config: The resolved nested configuration.
        sink: Where the run is logged.
        source: Chooses the batches out of the stream of fresh ones.
        loss: The policy loss.

    Raises:
        UsageError: The configuration is not one the demo builds.
    """
    settings = read_settings(config)
    problems, held_out, _ = load_problems(settings.train_size, settings.val_size)
    policies = _Policies(base_weights(), base_weights())
    step = make_optimiser(settings)
    batches = source(_fresh(policies, problems, settings), settings.replay_delay)
    sink.start(settings.name, config)
    try:
        evaluation = _evaluate(policies.learner, held_out, settings)
        sink.log(0, loss_check.check(loss, settings).metrics() | evaluation)
        for update in range(1, settings.updates + 1):
            logged = _update(policies, next(batches), step, update, settings, loss)
            policies.updates = update
            if update % settings.sync_interval == 0:
                policies.sampler = policies.learner
            if update % settings.test_freq == 0 or update == settings.updates:
                evaluation = _evaluate(policies.learner, held_out, settings)
                logged |= evaluation
            sink.log(update, logged)
    except BaseException:
        sink.finish(failed=True)
        raise
    sink.finish()
    return evaluation[measure.ACCURACY]


def _fresh(policies: _Policies, problems: Problems, settings: Settings) -> Iterator[Rollouts]:
    """The stream of rollouts, each sampled when it is asked for, by the sampler as it then is."""
    rng = np.random.default_rng(settings.sampling_seed)
    order = reading_order(len(problems), settings.prompts_per_batch, settings.data_seed, settings.shuffle)
    for epoch, indices in order:
        asked = problems[np.repeat(indices, settings.group_size)]
        drawn = sample(policies.sampler, asked, rng, settings.temperature, settings.max_response_length)
        yield Rollouts(epoch, asked, *drawn, born=policies.updates)


def _evaluate(weights: Floats, held_out: Problems, settings: Settings) -> dict[str, float]:
    responses, mask, _ = sample(weights, held_out, None, 1.0, settings.max_response_length)
    return measure.evaluation_metrics(score(held_out, responses, mask))


def _prepare(policies: _Policies, rollouts: Rollouts, settings: Settings) -> tuple[_Batch, dict[str, float]]:
    """The batch with scores, advantages, pi_old and importance weights, and what is logged before the update."""
    features = response_features(rollouts.problems, rollouts.responses)
    scores = score(rollouts.problems, rollouts.responses, rollouts.mask)
    advantages = group_advantages(scores, settings.group_size, settings.norm_by_std)
    logged: dict[str, float] = {}
    old, weights = rollouts.log_probs, None
    if not settings.bypass:
        spread = log_softmax(policies.learner, features, settings.temperature)
        old = chosen(spread, rollouts.responses, rollouts.mask)
        logged["actor/entropy"] = masked_mean(-(np.exp(spread) * spread).sum(axis=-1), rollouts.mask)
        logged |= measure.probability_metrics(old, rollouts.log_probs, rollouts.mask)
        if settings.importance is not None:
            weights, weight_metrics = importance_weights(old - rollouts.log_probs, rollouts.mask, settings)
            logged |= weight_metrics
    return _Batch(rollouts, features, scores, advantages, old, weights), logged


def _update(
    policies: _Policies, rollouts: Rollouts, step: Step, update: int, settings: Settings, loss: PolicyLoss
) -> dict[str, float]:
    """Train on one batch, and yield what is logged of it."""
    batch, logged = _prepare(policies, rollouts, settings)
    rate = learning_rate(update - 1, settings)
    minibatch = settings.prompts_per_minibatch * settings.group_size
    parts = [slice(start, start + minibatch) for start in range(0, len(rollouts.problems), minibatch)]
    taken: list[dict[str, float]] = []
    for part in parts * settings.ppo_epochs:
        policies.learner, of_step = _optimise(policies.learner, batch.rows(part), step, rate, settings, loss)
        taken.append(of_step)
    # verl reduces the steps of an update by the metric's name.
    reduce = {"max": np.max, "min": np.min}
    for name in taken[0]:
        how = next((reduce[word] for word in reduce if word in name), np.mean)
        logged[name] = float(how([of_step[name] for of_step in taken]))
    logged |= {"actor/lr": rate, "training/global_step": update, "training/epoch": rollouts.epoch}
    if settings.replay_delay:
        logged[measure.DATA_AGE] = policies.updates - rollouts.born
    limits = (settings.max_prompt_length, settings.max_response_length)
    return logged | measure.data_metrics(rollouts, batch.scores, batch.advantages, limits)


def _optimise(
    weights: Floats, batch: _Batch, step: Step, rate: float, settings: Settings, loss: PolicyLoss
) -> tuple[Floats, dict[str, float]]:
    """The weights after one optimiser step, and what is logged of it."""
    rollouts = batch.rollouts
    spread = log_softmax(weights, batch.features, settings.temperature)
    new = chosen(spread, rollouts.responses, rollouts.mask)
    old = batch.old
    if settings.minibatches == 1 and settings.ppo_epochs == 1 and not settings.use_rollout_log_probs:
        # verl 0.6.0 to 0.7.1 takes a batch's only step as on-policy, whatever pi_old the trainer handed down.
        old = new
    result = loss(old, new, batch.advantages, rollouts.mask, batch.weights, settings)
    slope = gradient(batch.features, spread, rollouts.responses, result.slope, settings.temperature)
    clipped, norm = clip_gradient(slope, settings.clip_grad)
    logged = {"actor/pg_loss": result.value, "actor/kl_loss": 0.0, "actor/grad_norm": norm} | result.metrics
    logged |= measure.off_policy_metrics(new, rollouts.log_probs, rollouts.mask)
    return step(weights, clipped, rate), logged

"""What a history tells of the batches that a run trained on: identities, ordinary metrics, the loader's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pth_tracker.checks.subjects import RunView
from pth_tracker.runs import Floats, Ints
from pth_tracker.stats.chance import REPEATS_BY_CHANCE, floored_tie_share, longest_run_by_chance, tie_share
from pth_tracker.stats.repeats import Repeats, equal_levels, find_repeats, joint_labels, latest_equal, occurrence, ranks
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Series

BATCH_QUANTITIES: Final = ("prompt_length", "response_length", "train_score")
"""What a batch of responses fixes, whatever the learner's weights: each as mean, max and min."""
LEARNER: Final = ("grad_norm", "loss")
"""What changes from update to update on one and the same batch, the surest first."""
REPEATS_THAT_FAIL: Final = 3
"""Improbable repeats from which a run fails; fewer warn."""
STEPS_SHARE: Final = 0.9
"""Share of stretches of one batch with the length of its optimiser steps from which each step is a logged update."""
FLOAT32_IDS: Final = 2.0**24
"""From here on not every whole number is a float32."""


@dataclass(frozen=True)
class BatchTuples:
    """What the logs say of each update's batch, as labels that equal measurements share; all ``(n,)``."""

    step: Ints
    quantities: tuple[Ints, ...]
    """Prompts, response lengths and scores."""
    full: Ints
    """Labels of the whole tuple."""
    learner: Floats
    keys: tuple[str, ...]
    """Raw names of the metrics used."""

    def __len__(self) -> int:
        return len(self.step)


def batch_tuples(view: RunView) -> BatchTuples | None:
    """The run's batch tuples at the updates that log all of them; None where a quantity or the learner is missing."""
    means = [view.series(f"{name}_mean") for name in BATCH_QUANTITIES]
    learner = _learner(view)
    if learner is None or any(mean is None for mean in means):
        return None
    step = _common_steps(learner, *means)
    labels: list[Ints] = []
    keys: list[str] = []
    for name, mean in zip(BATCH_QUANTITIES, means):
        ends = [view.series(f"{name}_{end}") for end in ("max", "min")]
        used = [s for s in (mean, *ends) if s is not None and _holds(s, step)]
        labels.append(_tuple_labels(used, step))
        keys += [series.key for series in used]
    full = joint_labels(labels)
    kept = one_a_batch(full, view.role("updates_per_batch"))
    quantities = tuple(column[kept] for column in labels)
    return BatchTuples(step[kept], quantities, ranks(full[kept]), _at(learner, step)[kept], tuple(keys))


@dataclass(frozen=True)
class PromptTuples:
    """The prompt lengths of each update's batch, ``(n,)``, at the updates between which the learner changes."""

    step: Ints
    labels: Ints
    """Equal where mean, max and min are; a batch whose prompts are all equally long equals no other."""
    by_chance: int
    """The longest stretch of equal tuples, in updates, that their own ties predict."""
    keys: tuple[str, ...]


@lru_cache(maxsize=1)
def prompt_tuples(view: RunView) -> PromptTuples | None:
    """The run's prompt tuples; None where mean, max, min or the learner is missing."""
    used = [view.series(f"{BATCH_QUANTITIES[0]}_{name}") for name in ("mean", "max", "min")]
    learner = _learner(view)
    series = [one for one in used if one is not None]
    if learner is None or len(series) < len(used):
        return None
    step = _common_steps(learner, *series)
    own = _at(learner, step)
    step = step[np.concatenate(([True], own[1:] != own[:-1]))[: len(step)]]
    labels = _tuple_labels(series, step)
    alike = _at(series[1], step) == _at(series[2], step)
    labels[alike] = len(labels) + np.arange(np.count_nonzero(alike))
    kept = one_a_batch(labels, view.role("updates_per_batch"))
    step, labels = step[kept], labels[kept]
    moved = labels[np.concatenate(([True], labels[1:] != labels[:-1]))[: len(labels)]]
    # Few different stretches tell little of ties: what stands still throughout predicts itself.
    tie = floored_tie_share(tie_share(moved.astype(np.float64)), len(moved))
    by_chance = longest_run_by_chance(len(labels), tie)
    return PromptTuples(step, labels, by_chance, tuple(one.key for one in series))


def _learner(view: RunView) -> Series | None:
    return next((series for name in LEARNER if (series := view.series(name)) is not None), None)


def _tuple_labels(series: Sequence[Series], step: Ints) -> Ints:
    return joint_labels([equal_levels(_at(one, step), one.decimals) for one in series])


def _common_steps(*series: Series | None) -> Ints:
    """The updates at which all of them are finite."""
    steps = [one.step[np.isfinite(one.values)] for one in series if one is not None]
    common = steps[0]
    for other in steps[1:]:
        if not np.array_equal(common, other):
            common = np.intersect1d(common, other, assume_unique=True)
    return common


def _holds(series: Series, step: Ints) -> bool:
    """Whether the series is finite at each of the updates."""
    finite = _common_steps(series)
    return np.array_equal(finite, step) or bool(np.isin(step, finite).all())


def _at(series: Series, step: Ints) -> Floats:
    return series.values[np.searchsorted(series.step, step)]


def one_a_batch(labels: Ints, steps: object) -> npt.NDArray[np.bool_]:
    """``(n,)``: which updates begin a batch, where each of its ``steps`` optimiser steps is logged as an update.

    All of them, unless 90% of the stretches of equal labels have exactly that length and none is longer.
    """
    every = np.ones(len(labels), dtype=bool)
    if not isinstance(steps, int) or steps < 2 or len(labels) < 2 * steps:
        return every
    begins = np.concatenate(([True], labels[1:] != labels[:-1]))
    lengths = np.diff(np.concatenate((np.flatnonzero(begins), [len(labels)])))
    regular = np.mean(lengths == steps) >= STEPS_SHARE and lengths.max() <= steps
    return begins if regular else every


def reused_batches(ids: Floats, uses: int = 1) -> npt.NDArray[np.bool_]:
    """``(n,)``: which updates train on a batch that earlier ones have used up; a batch lasts for ``uses`` updates.

    Identities that a tracker rounded to float32 collide by chance: unless there are many more than that, only
    neighbouring updates are then held against each other.
    """
    labels = np.unique(ids, return_inverse=True)[1].reshape(-1).astype(np.int64)
    reused: npt.NDArray[np.bool_] = occurrence(labels) > uses
    with np.errstate(over="ignore"):
        rounded = len(ids) > 0 and np.abs(ids).max() >= FLOAT32_IDS and np.array_equal(ids, ids.astype(np.float32))
    collisions = len(ids) * (len(ids) - 1) / 2 / (FLOAT32_IDS / 2) if rounded else 0.0
    if collisions >= REPEATS_BY_CHANCE and np.count_nonzero(reused) < max(REPEATS_THAT_FAIL, 10 * collisions):
        reused &= latest_equal(labels) == np.arange(len(ids)) - 1
    return reused


def replay_switch(view: RunView) -> str:
    """The setting or the log line by which rollouts are read from a dump instead of sampled, in words; ``""``: none."""
    marker = next((line for part in view.run.parts for line in part.log_markers), "")
    role = view.role("rollout_replay")
    said = [] if role is MISSING else [f"{role} is on"]
    return " and ".join([*said, *([f"the log says {marker[:120]!r}"] if marker else [])])


def batches_per_epoch(view: RunView) -> float | None:
    """The loader's length in updates, from the logged epoch or the configuration; infinite if above the run's length.

    None where nothing tells.
    """
    epoch = view.series("epoch")
    if epoch is not None and len(epoch) > 1 and np.all(np.isfinite(epoch.values)):
        values = epoch.values
        if np.all(values == np.floor(values)):
            edges = np.flatnonzero(values[1:] != values[:-1]) + 1
            if not len(edges):
                return float("inf")
            whole = np.diff(edges)
            return float(np.median(whole)) if len(whole) else float(max(edges[0], len(values) - edges[0]))
        with np.errstate(over="ignore"):
            slope = float(np.quantile(np.diff(values) / np.diff(epoch.step), 0.5, method="lower"))
        return 1 / slope if 1e-9 < slope < 1 else None
    length = view.role("batches_per_epoch")
    return None if length is MISSING else float(length)


def starts_over(distance: npt.NDArray[Any] | int, length: float | None) -> Any:
    """Whether batches that lie so many updates apart may be equal, since the loader starts over between them."""
    if length is None or not np.isfinite(length) or length < 2:
        return np.zeros(np.shape(distance), dtype=bool)
    return np.abs(distance - length * np.round(np.asarray(distance) / length)) < 0.5


@dataclass(frozen=True)
class RepeatedTuples:
    """What the ordinary metrics tell of repeats."""

    tuples: BatchTuples
    repeats: Repeats
    at: Ints
    """Indices of the updates that improbably repeat an earlier one while the learner moves on."""
    distance: int | None
    """How many updates back they all lie, or a multiple of it, where that is above 1; None: at several distances."""
    loader: float | None
    """The loader's length in updates, see `batches_per_epoch`."""
    still: int
    """The longest stretch of equal tuples through which the learner moves on, improbable or not, in updates."""


@lru_cache(maxsize=1)
def repeated_tuples(view: RunView) -> RepeatedTuples | None:
    """The repeats that the ordinary metrics show; None where they are not logged.

    Left out are repeats that the design allows and those at a distance at which the loader starts over.
    """
    tuples = batch_tuples(view)
    if tuples is None or not len(tuples):
        return None
    full, repeats, loader = tuples.full, find_repeats(tuples.quantities, full=tuples.full), batches_per_epoch(view)
    distance = np.arange(len(tuples)) - repeats.earlier
    counted = (repeats.earlier >= 0) & (tuples.learner != tuples.learner[repeats.earlier])
    counted &= (occurrence(full) > view.plan.batch_uses) & ~starts_over(distance, loader)
    same = (full[1:] == full[:-1]) & (tuples.learner[1:] != tuples.learner[:-1])
    edges = np.flatnonzero(np.concatenate(([True], ~same, [True])))
    still = int(np.diff(edges).max())
    return RepeatedTuples(tuples, repeats, np.flatnonzero(counted), common_distance(distance[counted]), loader, still)


def common_distance(distances: Ints) -> int | None:
    """The distance above 1 of which 90% of ``distances`` ``(k,)`` are multiples, as where a loader starts over."""
    if not len(distances):
        return None
    middle = int(np.median(distances))
    return middle if middle > 1 and np.mean(distances % middle == 0) >= STEPS_SHARE else None


def longest_stretch(step: Ints, labels: Ints) -> tuple[int, int, int]:
    """The longest stretch of equal ``labels`` ``(n,)``: its length, its first and its last update."""
    begins = np.flatnonzero(np.concatenate(([True], labels[1:] != labels[:-1])))
    lengths = np.diff(np.concatenate((begins, [len(labels)])))
    at = int(lengths.argmax())
    return int(lengths[at]), int(step[begins[at]]), int(step[begins[at] + lengths[at] - 1])

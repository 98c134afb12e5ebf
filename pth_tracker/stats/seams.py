"""What changes where a run was resumed: the learning rate's jump, and batches that are read a second time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from pth_tracker.runs import Floats, Ints
from pth_tracker.stats.chance import Witness
from pth_tracker.stats.orders import BatchSeries, align, same_order, voted_lag

LR_CHANGE: Final = 0.05
"""The share by which learning rates differ that counts as a difference."""
JUMP: Final = 3.0
"""How many times the changes next to it a change of the learning rate has to be to be none of its schedule."""
LEAST_REPLAYED: Final = 8
"""Updates that have to be compared before batches are said to be read again."""


@dataclass(frozen=True)
class Seam:
    """Where one segment of a resumed run follows another."""

    last: int
    """The earlier segment's last update."""
    first: int
    """The later segment's first update."""
    lr: tuple[float, float] | None = None
    """The learning rates on both sides, where they do not continue one schedule."""
    replay: Witness | None = None
    """The evidence that the later segment reads batches of an earlier one again; None: it does not, or is unknown."""
    replay_lag: int = 0
    """How many updates earlier these batches were read."""


def lr_jump(earlier: tuple[Ints, Floats], later: tuple[Ints, Floats]) -> tuple[float, float] | None:
    """The two learning rates where a later segment does not go on with the earlier one's schedule, or None.

    Segments that overlap are compared at their common updates; others at their neighbouring ends, where a change of
    more than 5% is a jump if it is 3 times the changes in its direction right before and after it.
    """
    (step_a, a), (step_b, b) = earlier, later
    _, left, right = np.intersect1d(step_a, step_b, assume_unique=True, return_indices=True)
    if len(left):
        apart = _apart(a[left], b[right]) > LR_CHANGE
        place = int(np.argmax(apart))
        return (float(a[left][place]), float(b[right][place])) if apart.mean() > LR_CHANGE else None
    before, after = a[step_a < step_b[0]], b
    if not len(before) or not len(after):
        return None
    change = float(_apart(before[-1:], after[:1])[0])
    falls = bool(after[0] < before[-1])
    # A warm-up that starts again falls at the boundary and rises behind it: only changes of one direction compare.
    around = [
        float((_apart(one[:-1], one[1:]) * ((one[1:] < one[:-1]) == falls)).max())
        for one in (before[-3:], after[:3])
        if len(one) > 1
    ]
    jumps = change > LR_CHANGE and change > JUMP * max(around, default=0.0)
    return (float(before[-1]), float(after[0])) if jumps else None


def _apart(a: Floats, b: Floats) -> Floats:
    """By which share of the larger two rates differ, ``(n,)``; 0 where both are 0."""
    largest = np.maximum(np.abs(a), np.abs(b))
    return np.asarray(np.abs(a - b) / np.where(largest > 0, largest, 1.0))


def lr_difference(a: Floats, b: Floats) -> tuple[float, float]:
    """The share of updates at which learning rates ``(n,)`` differ by more than 5%, and the largest factor (n >= 1)."""
    low, high = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
    both = low > 0
    with np.errstate(over="ignore"):
        factor = float((high[both] / low[both]).max()) if both.any() else math.inf
    return float((_apart(a, b) > LR_CHANGE).mean()), factor


def replayed(earlier: BatchSeries, later: BatchSeries) -> tuple[int, Witness] | None:
    """By how many updates a later segment's batches repeat an earlier one's, with the evidence; None: they do not.

    Batches that both segments read at the same update are no repetition: the run went back to a checkpoint.
    """
    lag = voted_lag(later, earlier)
    if not lag:
        return None
    found = align(later, earlier, lag=lag, hypotheses=len(earlier) + len(later))
    if found.witness.updates < LEAST_REPLAYED or not same_order(found):
        return None
    return lag, found.witness

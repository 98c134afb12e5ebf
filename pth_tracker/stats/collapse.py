"""When a learning curve has collapsed, and over which settings an arm is stable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import as_vector, mean_of, scaled, unscaled
from pth_tracker.stats.series import window_medians

EVALUATIONS_LEAST: Final = 5
EVALUATIONS_STRONG: Final = 10
DROP_SHARE: Final = 0.25
"""Share of the gain whose loss is a collapse."""
NOISE_FACTOR: Final = 3.0


@dataclass(frozen=True, slots=True)
class Collapse:
    """What became of one curve of scores; scores in the curve's own unit and direction."""

    evaluations: int
    """Finite ones."""
    judged: bool
    """False below 5 evaluations, where nothing else here is to be read."""
    collapsed: bool = False
    weak: bool = False
    """Judged on 5 to 9 evaluations, where about a third of collapses would be missed."""
    peak: float = math.nan
    """The best running median."""
    peak_at: int = -1
    """Index into the curve of the best value within the best window."""
    final: float = math.nan
    """The median of the last w values; NaN where the curve is not finite to the end."""
    threshold: float = math.nan
    """The drop from the peak that counts."""
    gain: float = math.nan
    """The best running median minus the first, positive for the better."""
    sigma: float = math.nan
    """Noise of one evaluation."""
    width: int = 0
    """w, in evaluations."""
    nonfinite_end: bool = False


def evaluation_noise(scores: npt.ArrayLike, *, items: int | None = None) -> float:
    """The noise of one evaluation of a curve ``(n,)``: 1.4826 MAD(differences) / sqrt(2), in the scores' unit.

    With ``items`` (N, for scores that are shares of N items) at least the binomial sqrt(p (1 - p) / N) at the median
    score p. One value has no differences: its noise is that floor, or 0.

    Raises:
        ValueError: no scores, one that is not finite, items that are not positive, or scores that are no shares.
    """
    x = as_vector(scores, "scores")
    (unit,), exponent = scaled(x)
    steps = np.diff(unit)
    noise = 0.0
    if len(steps):
        noise = unscaled(1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2), exponent)
    if items is None:
        return noise
    if items < 1 or x.min() < 0 or x.max() > 1:
        raise ValueError("items is for scores between 0 and 1 on a positive number of items")
    p = float(np.median(x))
    return max(noise, math.sqrt(p * (1 - p) / items))


def detect_collapse(
    scores: npt.ArrayLike,
    *,
    items: int | None = None,
    max_drop: float | None = None,
    higher_is_better: bool = True,
) -> Collapse:
    """Whether a curve of scores ``(n,)``, one an evaluation and in their order, rose and then lost what it had gained.

    w = max(2, ceil(n / 10)); m are the running medians over w; sigma is `evaluation_noise`;
    threshold = max((max m - first m) / 4, 3 sigma). Collapsed: the gain max m - first m exceeds 3 sigma and each of
    the last w values lies below max m - threshold, or the scores are not finite from some evaluation to the end.
    A declared ``max_drop`` replaces the threshold, and then no gain is asked for: a curve that only falls breaks a
    claim to be stable. Scores that are not finite but followed by finite ones are left out.

    Raises:
        ValueError: ``max_drop`` not positive, or what `evaluation_noise` refuses.
    """
    if max_drop is not None and not (math.isfinite(max_drop) and max_drop > 0):
        raise ValueError(f"max_drop is a positive drop in the unit of the score, not {max_drop}")
    logged = as_vector(scores, "scores", least=0, finite=False)
    finite = np.isfinite(logged)
    places = np.flatnonzero(finite)
    n = len(places)
    ends_badly = n > 0 and not finite[-1]
    if n == 0 or (n if not ends_badly else len(logged)) < EVALUATIONS_LEAST:
        return Collapse(n, judged=False)
    x = logged[places]
    sigma = evaluation_noise(x, items=items)
    (unit,), exponent = scaled(x)
    upward = unit if higher_is_better else -unit
    width = min(n, max(2, math.ceil(n / 10)))
    medians = window_medians(upward, width)
    best = int(np.argmax(medians))
    peak, gain = float(medians[best]), float(medians[best] - medians[0])
    noise = NOISE_FACTOR * unscaled(sigma, -exponent)
    threshold = max(DROP_SHARE * gain, noise) if max_drop is None else unscaled(max_drop, -exponent)
    dropped = bool(np.all(upward[-width:] < peak - threshold))
    lost = n >= EVALUATIONS_LEAST and dropped and (gain > noise or max_drop is not None)
    sign = 1 if higher_is_better else -1
    return Collapse(
        evaluations=n,
        judged=True,
        collapsed=lost or ends_badly,
        weak=len(logged) < EVALUATIONS_STRONG,
        peak=sign * unscaled(peak, exponent),
        peak_at=int(places[best + int(np.argmax(upward[best : best + width]))]),
        final=math.nan if ends_badly else sign * unscaled(float(medians[-1]), exponent),
        threshold=unscaled(threshold, exponent),
        gain=unscaled(gain, exponent),
        sigma=sigma,
        width=width,
        nonfinite_end=ends_badly,
    )


def stable_settings(collapsed: Sequence[int], runs: Sequence[int]) -> int:
    """How many settings, counted from the mildest, form the stable range: consecutive ones with 0 collapsed of n >= 2.

    ``collapsed`` and ``runs`` hold one count a tested setting, the mildest first. A setting with one run or with any
    collapse ends the range; nothing is interpolated.

    Raises:
        ValueError: unequal lengths, or counts that are impossible.
    """
    if len(collapsed) != len(runs):
        raise ValueError(f"one count of runs a setting: {len(collapsed)} and {len(runs)} counts were given")
    if any(not 0 <= k <= n for k, n in zip(collapsed, runs)):
        raise ValueError("collapsed runs are counted among the runs of their setting")
    for settings, (k, n) in enumerate(zip(collapsed, runs)):
        if k > 0 or n < 2:
            return settings
    return len(runs)


def last_tenth_mean(values: npt.ArrayLike) -> float:
    """The mean of the last tenth (rounded up) of a run's values ``(n,)``; ValueError where there is none."""
    x: Floats = as_vector(values, "values")
    return mean_of(x[-math.ceil(len(x) / 10) :])

"""What check 6 computes before anything is judged: the scores of both arms by common seed, and their comparison.

The unit is one trained pair: one seed of one separately trained task. Several runs of one seed count by their mean,
never the best or the last; with several tasks, their mean for each seed is taken first. The interval over seeds is
Student's t; it covers training randomness on this test set only. See `pth_tracker.stats` for the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pth_tracker import stats
from pth_tracker.design.comparison import Comparison, Member, Pair, by_pair_key
from pth_tracker.runs import Floats


@dataclass(frozen=True)
class PairedResult:
    """Everything that a comparison of two arms says, in the score's own unit and sign (``a`` minus ``b``)."""

    seeds: tuple[str, ...]
    """The common seeds."""
    differences: Floats
    """``(n,)``, ``a`` minus ``b``, the tasks averaged for each seed."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    interval: stats.MeanInterval
    welch: stats.WelchInterval
    signs: stats.SignFlip
    adjusted_p: float | None
    """The t test's p, adjusted by Holm over the family of comparisons; None where there is none."""
    family: int
    """Comparisons in the family."""
    equivalence: stats.Equivalence | None
    verdict: stats.Verdict


def unit_scores(members: Sequence[Member]) -> dict[tuple[str, str], float]:
    """(task, replicate) to the mean score of its counted runs."""
    found: dict[tuple[str, str], float] = {}
    for replicate, group in by_pair_key(members).items():
        tasks: dict[str, list[float]] = {}
        for member in group:
            if member.score is not None and math.isfinite(member.score):
                tasks.setdefault("\x1f".join(member.cell.task), []).append(member.score)
        for task, scores in tasks.items():
            found[task, replicate] = math.fsum(scores) / len(scores)
    return found


def _by_seed(scores: dict[tuple[str, str], float], units: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Replicate to the mean over the tasks among ``units``."""
    found: dict[str, list[float]] = {}
    for unit in units:
        found.setdefault(unit[1], []).append(scores[unit])
    return {seed: math.fsum(values) / len(values) for seed, values in found.items()}


def seed_order(seed: str) -> tuple[int, float, str]:
    """A key that sorts seeds as numbers, those that are none after them as text."""
    return (0, float(seed), seed) if seed.lstrip("-").isdigit() else (1, 0.0, seed)


def paired_scores(pair: Pair) -> tuple[dict[str, float], dict[str, float], tuple[str, ...], tuple[str, ...]]:
    """Seed to score for both arms over their common units, and the seeds that only one arm has."""
    a, b = (unit_scores(pair.side(first)) for first in (True, False))
    units = [unit for unit in a if unit in b]
    seeds_a, seeds_b = ({seed for _, seed in scores} for scores in (a, b))
    only_a, only_b = (tuple(sorted(one - two, key=seed_order)) for one, two in ((seeds_a, seeds_b), (seeds_b, seeds_a)))
    return _by_seed(a, units), _by_seed(b, units), only_a, only_b


def compare_scores(
    a: dict[str, float], b: dict[str, float], only_a: tuple[str, ...], only_b: tuple[str, ...], margin: float | None
) -> PairedResult | None:
    """The comparison of two arms' scores by common seed, a family of one; None without a common seed."""
    seeds = tuple(sorted(a.keys() & b.keys(), key=seed_order))
    if not seeds:
        return None
    left, right = np.array([a[seed] for seed in seeds]), np.array([b[seed] for seed in seeds])
    differences = left - right
    interval = stats.t_interval(differences)
    equivalence = stats.equivalence(differences, margin) if margin is not None else None
    return PairedResult(
        seeds,
        differences,
        only_a,
        only_b,
        interval,
        stats.welch_interval(left, right),
        stats.sign_flip(differences, rng=np.random.default_rng(0)),
        interval.p,
        1,
        equivalence,
        stats.verdict(interval.p, equivalence),
    )


Key = tuple[str, str, str]
"""The arms of a pair and its stress value."""


def paired_results(comparison: Comparison) -> dict[Key, PairedResult]:
    """(arm, arm, stress) to the comparison of both, p adjusted by Holm; computed once.

    The family are the comparisons that claims name; without claims, and for any other comparison, it is all of them.
    """
    if "paired" not in comparison.memo:
        margin = comparison.design.tie_margin
        raw = {(pair.a, pair.b, pair.stress): compare_scores(*paired_scores(pair), margin) for pair in comparison.pairs}
        comparison.memo["paired"] = adjust({key: r for key, r in raw.items() if r is not None}, comparison.claimed)
    results: dict[Key, PairedResult] = comparison.memo["paired"]
    return results


def result_of(pair: Pair) -> PairedResult | None:
    """What the comparison of the pair says; None without a common seed."""
    return paired_results(pair.comparison).get((pair.a, pair.b, pair.stress))


def adjust(found: Mapping[Key, PairedResult], claimed: Collection[tuple[str, str]]) -> dict[Key, PairedResult]:
    """The results with p adjusted over their family, and the word that follows from it."""
    named = [key for key in found if (key[0], key[1]) in claimed or (key[1], key[0]) in claimed]
    p_values: dict[Key, tuple[float, int]] = {}
    for family in (list(found), named):  # what is named is adjusted anew among its own
        own = [found[key].interval.p for key in family]
        adjusted = stats.holm([1.0 if p is None else p for p in own])
        p_values |= {key: (float(p), len(family)) for key, p in zip(family, adjusted)}
    settled = {}
    for key, result in found.items():
        p = None if result.interval.p is None else p_values[key][0]
        word = stats.verdict(p, result.equivalence)
        settled[key] = replace(result, adjusted_p=p, family=p_values[key][1], verdict=word)
    return settled


def paired_by(pair: Pair) -> tuple[set[str], set[str]]:
    """The seeds of both arms: of their scored runs, or of all that count where an arm has no score."""
    sides = [{seed for _, seed in unit_scores(pair.side(first))} for first in (True, False)]
    if not all(sides):
        sides = [set(by_pair_key(pair.side(first))) for first in (True, False)]
    return sides[0], sides[1]


def shown_unit(pair: Pair) -> tuple[float, str]:
    """The factor and the unit in which differences are shown: rates in points of 100."""
    scores = [member.score for member in (*pair.side(True), *pair.side(False)) if member.score is not None]
    rate = bool(scores) and all(0 <= score <= 1 for score in scores) and any(score % 1 for score in scores)
    return (100.0, " points") if rate else (1.0, "")


def pair_keys(pair: Pair) -> tuple[str, ...]:
    """Keys of the runs of both arms that the comparison counts."""
    return tuple(member.key for member in (*pair.side(True), *pair.side(False)))


def shown_interval(interval: stats.MeanInterval | stats.WelchInterval, scale: float, name: str = "95% interval") -> str:
    """The interval as text, its bounds times ``scale``; where there is none, why."""
    if interval.low is None or interval.high is None:
        return interval.missing
    return f"{name} {interval.low * scale:+.2f} to {interval.high * scale:+.2f}"

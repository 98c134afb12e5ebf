"""Check 5: over which settings runs are stable, before anything is compared there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.subjects import RunView
from pth_tracker.design.comparison import Comparison, Member, Pair, keys_of
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats, Ints

TRAINING_SCORES: Final = ("train_score_mean", "train_reward_mean")
LEAST_TRAINING: Final = 10
"""Updates below which a training score is not judged."""
TRUNCATED_POINTS: Final = 0.05
TRUNCATED_ERRORS: Final = 3.0
LEAST_RUNS: Final = 2
"""Runs of the baseline that make a setting a tested one."""


@dataclass(frozen=True)
class Curve:
    """A run's scores over its updates, judged for collapse."""

    key: str
    """The raw metric."""
    step: Ints
    training: bool
    """Whether it is the training score and not an evaluation."""
    found: stats.Collapse


def score_items(scores: Floats, decimals: int | None, configured: int | None = None) -> int | None:
    """The number of evaluated items, as configured or told by the scores' grid; None: no rates, or it is not told."""
    finite = scores[np.isfinite(scores)]
    if not len(finite) or finite.min() < 0 or finite.max() > 1:
        return None
    return configured or stats.items_from_scores(finite, decimals=decimals)


def judge_curve(
    values: Floats, decimals: int | None, higher_is_better: bool = True, max_drop: float | None = None
) -> stats.Collapse:
    """Whether a curve of scores ``(n,)`` collapsed, with the evaluation's own error where its items can be told."""
    items = score_items(values, decimals)
    return stats.detect_collapse(values, items=items, max_drop=max_drop, higher_is_better=higher_is_better)


@lru_cache(maxsize=1)  # a run is judged three times over: for the rule's facts, by the rule, and for its digest
def curves(view: RunView) -> tuple[Curve, ...]:
    """The run's judged curves: that of the evaluation, then that of the training score.

    In a project of several frameworks, runs that do not log the score in force are judged by their own.
    """
    found: list[Curve] = []
    key, step, values = view.own_score
    if len(step):
        printed = view.reading.history.decimals.get(key) if view.reading.history else None
        judged = judge_curve(values, printed, view.plan.higher_is_better)
        found += [Curve(key, step, False, judged)] if judged.judged else []
    series = next((one for name in TRAINING_SCORES if (one := view.series(name)) is not None), None)
    if series is not None and series.key != key and len(series) >= LEAST_TRAINING:
        judged = judge_curve(series.values, series.decimals)
        found += [Curve(series.key, series.step, True, judged)] if judged.judged else []
    return tuple(found)


def has_collapsed(view: RunView) -> bool | None:
    """Whether any of the run's curves collapsed; None where none can be judged."""
    judged = curves(view)
    return any(curve.found.collapsed for curve in judged) if judged else None


def _curve_facts(view: RunView) -> tuple[str, ...]:
    judged = curves(view)
    evaluated = any(not curve.training for curve in judged)
    return (("evaluations",) if evaluated else ()) + (("training_curve",) if any(c.training for c in judged) else ())


def judge_collapsed(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """A run learned, and then lost what it had learned.

    What it does: looks at the whole curve of the score, where comparisons take its end alone.

    Why it matters: a baseline that collapses loses to anything; the comparison is then one of stability, at a setting
    where the baseline does not work, and not one of methods.

    How it decides: w = max(2, ceil(n / 10)) of n evaluations; m are the running medians over w, m0 the first; sigma
    is 1.4826 MAD(differences) / sqrt(2), and at least the binomial error of one evaluation where the number of items
    can be read off the scores. Collapsed: max m - m0 exceeds 3 sigma, and every one of the last w values lies below
    max m by more than a quarter of that gain and 3 sigma; or the score is not finite to the end. A spike that
    recovers is none. Fewer than 5 evaluations are not judged; 5 to 9 are said to be weak, since they miss a third of
    all collapses. The training score is judged likewise, from 10 updates on.

    Example: accuracy rises to 0.74 and ends at 0.10.

    Remedy: compare at settings where the baseline is stable, or give it its correction; look at the sampler's KL.

    Configuration: ``metric`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 5.
    """
    bad = next((curve for curve in curves(view) if curve.found.collapsed), None)
    if bad is None:
        return
    found, kind = bad.found, "training score" if bad.training else "score"
    evidence: dict[str, Any] = {
        "metric": bad.key,
        "evaluations": found.evaluations,
        "weak": found.weak,
        "peak": found.peak,
        "peak_at": int(bad.step[found.peak_at]),
        "last_at": int(bad.step[-1]),
        "final": found.final,
        "drop_that_counts": found.threshold,
        "sigma": found.sigma,
    }
    ending = "is not finite to the end" if found.nonfinite_end else f"ended at {found.final:.3g}"
    detail = f"{bad.key} reached {found.peak:.3g} at update {evidence['peak_at']} and {ending}."
    if found.weak:
        detail += f" Weak evidence: {found.evaluations} evaluations."
    if bad.training and "evaluated" in met:
        detail += " The evaluations do not show it."
    yield Finding(
        5,
        Level.WARN,
        f"the {kind} is not finite to the end" if found.nonfinite_end else f"the {kind} collapsed",
        detail,
        evidence,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="compare at settings where the baseline is stable; look for what ran away before the score fell",
    )


def _lengths(comparison: Comparison) -> list[Member]:
    found = (m for m in comparison.members if m.result and "response_length_mean" in m.result.reduced)
    return [m for m in found if m.result and m.result.reduced["response_length_mean"].fell is not None]


def _truncated(members: Sequence[Member]) -> list[float]:
    """The share of truncated responses in the last tenth of each run."""
    reduced = [m.result.reduced.get("response_truncated_fraction") for m in members if m.result]
    return [one.late for one in reduced if one is not None and np.isfinite(one.late)]


def _truncation_pairs(comparison: Comparison) -> list[tuple[Pair, list[float], list[float]]]:
    found = ((pair, _truncated(pair.side(True)), _truncated(pair.side(False))) for pair in comparison.pairs)
    return [(pair, a, b) for pair, a, b in found if min(len(a), len(b)) >= LEAST_RUNS]


def _output_facts(comparison: Comparison) -> tuple[str, ...]:
    lengths = ("length_curve",) if _lengths(comparison) else ()
    return lengths + (("truncation_seeds",) if _truncation_pairs(comparison) else ())


def judge_degenerate_output(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """The policy stopped writing, or one arm's responses run into the length limit more than the other's.

    What it does: follows the mean response length of every run, and the share of truncated responses of arms.

    Why it matters: a policy that answers with a few tokens may keep its validation score for long; and responses that
    are cut off count as wrong, so that a comparison becomes one of lengths.

    How it decides: every mean length of the last tenth of the updates lies below a fifth of the median of the first
    tenth (5 updates or more each); or the share of truncated responses in the last tenth differs between two arms by
    more than 5 points and by more than 3 standard errors over their runs. A length that stands at its limit is no
    fall.

    Example: the mean response length falls from 970 to 9 tokens.

    Remedy: read some responses; raise the length limit in both arms where they are cut off.

    Configuration: ``arms`` and ``baseline`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 5; Welch (1947).
    """
    for member in _lengths(comparison) if "length" in met else ():
        reduced = member.result.reduced["response_length_mean"] if member.result else None
        if reduced is None or not reduced.fell:
            continue
        yield Finding(
            5,
            Level.WARN,
            "the responses shrank to a fifth of their length or less",
            f"The mean response length fell from {reduced.early:.4g} to {reduced.late:.4g} tokens and stayed there.",
            {"early": reduced.early, "late": reduced.late, "updates": reduced.count},
            basis=Basis.CONTRADICTION,
            runs=(member.key,),
            blames=(member.key,),
            remedy="read some of the responses of the last updates: an answer cut short, empty or repeated shows "
            "what broke",
        )
    for pair, a, b in _truncation_pairs(comparison) if "truncation" in met else ():
        welch = stats.welch_interval(a, b)
        apart = abs(welch.mean)
        if welch.error is None or apart <= TRUNCATED_POINTS or apart <= TRUNCATED_ERRORS * welch.error:
            continue
        more = pair.a if welch.mean > 0 else pair.b
        yield Finding(
            5,
            Level.WARN,
            f"{pair.subject}: {more} has {100 * apart:.1f} points more truncated responses at its end",
            f"Truncated in the last tenth of the updates: {pair.a} {100 * float(np.mean(a)):.1f}%, {pair.b} "
            f"{100 * float(np.mean(b)):.1f}% (standard error over runs {100 * welch.error:.1f} points).",
            {pair.a: a, pair.b: b, "difference": welch.mean, "error": welch.error},
            basis=pair.comparison.basis,
            runs=keys_of((*pair.side(True), *pair.side(False))),
            blames=keys_of(pair.side(welch.mean > 0)),
            arms=(pair.a, pair.b),
            remedy="raise the length limit in both arms, or score without the truncated responses",
        )


@dataclass(frozen=True)
class Setting:
    """What became of the baseline at one value of the stress axis."""

    value: str
    runs: tuple[Member, ...]
    """Those that collapsed, and those that count and did not."""

    @property
    def collapsed(self) -> int:
        """How many collapsed."""
        return sum(1 for member in self.runs if member.result and member.result.collapsed)


def baseline_settings(pair: Pair) -> list[Setting]:
    """The baseline at each tested setting on the pair's tasks, the mildest first; empty where values are no numbers."""
    places = {(b.key.framework, b.key.task) for _, b in pair.cells}
    found: dict[str, list[Member]] = {}
    for member in pair.comparison.members:
        place = (member.cell.framework, member.cell.task)
        judged = member.result.collapsed if member.result else None
        if member.arm == pair.b and place in places and judged is not None and (judged or member.counted):
            found.setdefault(member.cell.stress, []).append(member)
    try:
        values = sorted(found, key=float)
    except ValueError:
        return []
    return [Setting(value, tuple(found[value])) for value in values]


def _stress_facts(pair: Pair) -> tuple[str, ...]:
    tested = [setting for setting in baseline_settings(pair) if len(setting.runs) >= LEAST_RUNS]
    return ("stress_values",) if len(tested) > 1 else ()


def judge_outside_stable_range(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms are compared at a setting where the baseline itself is not stable.

    What it does: finds the range of settings of the stress axis over which the baseline does not collapse, and names
    the comparisons that lie outside it.

    Why it matters: a method that wins where the baseline has collapsed wins against a broken run.

    How it decides: the settings are taken from the mildest (the smallest value) on. A setting is stable where none of
    at least two runs of the baseline collapsed; the range ends at the first that is not, a hole ends it, and nothing
    is interpolated. k of n collapsed runs come with their Clopper-Pearson interval (0 of 3 still allows 63%).
    Runs that stopped early count only where they collapsed. At least two settings with two runs each are needed.

    Example: stable at a refresh interval of 64 (0 of 3), compared at 96 where 3 of 3 collapsed.

    Remedy: compare inside the stable range, or give the baseline its correction first.

    Configuration: ``stress``, ``baseline``, ``metric`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 5; Clopper and Pearson (1934).
    """
    settings = baseline_settings(pair)
    place = next((place for place, setting in enumerate(settings) if setting.value == pair.stress), None)
    stable = stats.stable_settings([s.collapsed for s in settings], [len(s.runs) for s in settings])
    if place is not None and place < stable:
        return
    key = pair.comparison.stress_key
    if place is None:  # the baseline's runs at this setting could not be judged: is it beyond all that could?
        here = None
        if stable and float(pair.stress) <= float(settings[stable - 1].value):
            return
    else:
        here = settings[place]
    shown = [f"{s.value}: {_proportion(s)}" for s in settings]
    limit = f"stable up to {key}={settings[stable - 1].value}" if stable else "stable at no tested setting"
    why = f"{here.collapsed} of its {len(here.runs)} runs collapsed" if here and here.collapsed else limit
    counted = here.runs if here else tuple(m for _, cell in pair.cells for m in cell.counted)
    blamed = [m for m in counted if m.result and m.result.collapsed] or counted
    yield Finding(
        5,
        Level.WARN,
        f"{pair.subject}: {pair.b} is outside its stable range, {why}",
        f"Collapsed runs of {pair.b} by {key}: {'; '.join(shown)}. It is {limit}.",
        {
            "stress": key,
            "setting": pair.stress,
            "stable_up_to": settings[stable - 1].value if stable else None,
            "settings": {s.value: _evidence(s) for s in settings},
        },
        basis=pair.comparison.basis,
        runs=keys_of((*pair.side(True), *(m for m in counted))),
        blames=keys_of(blamed),
        arms=(pair.a, pair.b),
        remedy=f"compare where {pair.b} is stable, or stabilise {pair.b} first",
    )


def _proportion(setting: Setting) -> str:
    found = stats.clopper_pearson(setting.collapsed, len(setting.runs))
    return f"{found.k} of {found.n} (95% interval {found.low:.0%} to {found.high:.0%})"


def _evidence(setting: Setting) -> dict[str, Any]:
    found = stats.clopper_pearson(setting.collapsed, len(setting.runs))
    return {
        "collapsed": found.k,
        "runs": found.n,
        "interval": [found.low, found.high],
        "still_allowed": found.still_allowed,
    }


RULES: Final = (
    Rule(
        "collapsed",
        5,
        Level.WARN,
        Scope.RUN,
        (
            branch("evaluated", "score", "evaluations"),
            branch("trained", TRAINING_SCORES, "training_curve"),
        ),
        judge_collapsed,
        facts=_curve_facts,
    ),
    Rule(
        "degenerate-output",
        5,
        Level.WARN,
        Scope.PROJECT,
        (
            branch("length", "response_length_mean", "length_curve"),
            branch("truncation", "response_truncated_fraction", "comparable_pairs", "truncation_seeds"),
        ),
        judge_degenerate_output,
        figures=("response_length_mean", "response_truncated_fraction"),
        facts=_output_facts,
    ),
    Rule(
        "outside-stable-range",
        5,
        Level.WARN,
        Scope.PAIR,
        (
            branch("evaluated", "score", "stress_values"),
            branch("trained", TRAINING_SCORES, "stress_values"),
        ),
        judge_outside_stable_range,
        facts=_stress_facts,
    ),
)

"""Check 1, the sampler: how far the policy that generated the data is from the one that learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.ratio import (
    PROBED_WEIGHT,
    SAMPLER_QUANTITIES,
    corrected,
    lag_declared,
    measured_lag,
    sampler_series,
    trained,
)
from pth_tracker.checks.subjects import RunView
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats
from pth_tracker.stats.series import GROWTH, NONFINITE_UPDATES, WINDOW
from pth_tracker.vocabulary.canonicalise import Series

PROBABILITY_FLOOR: Final = 0.002
"""A mean difference of probabilities counts as at least this before its growth is judged: kernels alone make it."""
OUTSIDE_SHARE: Final = 0.05
"""Share of tokens outside the clip range from which an update's data count as off-policy; bf16 noise stays below."""
MISSED: Final = 0.1
"""A clip that acts on less than this part of the tokens outside its range misses them."""


@lru_cache(maxsize=1)  # four rules and their facts ask for it
def divergence(view: RunView) -> tuple[Series, stats.Divergence] | None:
    """The sampler's series with how its floor moved from the first to the last quarter; None where none is logged.

    The refresh interval is the declared lag, or read off the series where nothing declares one. A signed k1 is judged
    by the magnitude of its window means; one value that is not finite is left out, two decide.
    """
    series = sampler_series(view)
    if series is None:
        return None
    finite = np.isfinite(series.values)
    if np.count_nonzero(~finite) >= NONFINITE_UPDATES:
        return series, stats.sampler_divergence(series.values)
    estimator: stats.Estimator = series.meaning.estimator or "k1"
    declared = lag_declared(view)
    interval = None if declared is None else max(1, declared)
    nats = stats.lag_in_nats(series.values[finite], estimator)
    if interval is not None and estimator == "k1":
        interval += WINDOW - 1  # window means smear the refresh over as many updates
    return series, stats.sampler_divergence(nats, interval=interval)


def probability_growth(series: Series) -> stats.Growth | None:
    """The growth of a mean difference of probabilities over the level that kernels alone make; None below 5 values."""
    magnitude: Floats = np.abs(series.values)
    return stats.growth(np.where(magnitude < PROBABILITY_FLOOR, PROBABILITY_FLOOR, magnitude))


def off_policy_updates(view: RunView) -> tuple[Series, Series, Floats, Floats] | None:
    """Clip fraction and share of tokens outside its range with their ``(n,)`` values at the updates that have both.

    Only updates that moved the policy; None where there is none.
    """
    clip, outside = view.series("clip_fraction"), view.series("outside_sampler_range")
    if clip is None or outside is None:
        return None
    moving = trained(view, clip)
    step, own, other = np.intersect1d(clip.step[moving], outside.step, assume_unique=True, return_indices=True)
    clipped, share = clip.values[moving][own], outside.values[other]
    finite = np.isfinite(clipped) & np.isfinite(share)
    return (clip, outside, clipped[finite], share[finite]) if np.any(finite) else None


def sampler_facts(view: RunView) -> Iterator[str]:
    """The facts of check 1 that the sampler's series establishes."""
    found = divergence(view)
    if found is not None and found[1].judged:
        yield "refresh_in_quarters"
    measures = (sampler_series(view), view.series("sampler_prob_error"))
    if any(series is not None and len(series) >= WINDOW for series in measures):
        yield "sampler_windows"
    if off_policy_updates(view) is not None:
        yield "common_updates"


def judge_sampler_mismatch(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The sampler's policy is not the learner's although no lag is declared.

    What it does: looks for runs that claim fresh data and whose sampler nevertheless gives the tokens other
    probabilities than the learner does.

    Why it matters: every ratio and every importance weight of such a run mixes the difference of two engines with
    that of two policies, and an "on-policy" run learns from data that are not its own.

    How it decides: nothing declares a lag, and the sampler's KL lies above the tolerance on at least 3 updates and
    5% of them without growing 5-fold between any two windows of 5 updates or within the teeth of a regular
    saw-tooth, as a refresh every few updates makes it (a signed k1 is judged by its 5-update means, a mean absolute
    difference m of log-probabilities as m * m / 2). A mean difference of probabilities has no conversion to nats:
    there only a 5-fold growth counts, from at least 0.002. Importance weights logged after truncation hide the
    difference and are never used. Two causes look alike and both are named: an inference engine that computes other
    probabilities than the trainer, and a weight sync that never arrives.

    Example: ``rollout_corr/k3_kl`` between 0.1 and 0.2 nats from the first update to the last of a synchronous run.

    Remedy: compare both engines' log-probabilities of one response right after a weight sync. If the sampler lags by
    design, name the configuration key that sets the lag, as ``stress: {key: ...}``.

    Configuration: ``rules.kl_tolerance`` (0.05 nats per token), ``stress``.

    References: verl-project/verl#7495 (the sync that never arrives), huggingface/trl#6789, RLinf/RLinf#1534 (engines).
    """
    if lag_declared(view):
        return
    series = sampler_series(view)
    evidence: dict[str, Any]
    if "measured" in met and series is not None and len(series) >= WINDOW:
        lag = measured_lag(view, series)
        grown = lag.growth is not None and lag.growth.ratio >= GROWTH
        if lag.above < lag.needed or grown:
            return
        finite = np.abs(series.values[np.isfinite(series.values)])
        median = float(np.quantile(finite, 0.5, method="lower")) if len(finite) else float("inf")
        evidence = {"sampler": series.key, "above_tolerance": lag.above, "of": lag.updates, "median": median}
        said = (
            f"{series.key} lies above {view.plan.kl_tolerance:g} nats per token on {lag.above} of {lag.updates} "
            f"updates (median {median:.3g}) and does not grow"
        )
    else:
        error = view.series("sampler_prob_error")
        growth = None if error is None else probability_growth(error)
        if error is None or growth is None or growth.ratio < GROWTH:
            return
        evidence = {"sampler": error.key, "smallest": growth.smallest, "largest": growth.largest}
        said = (
            f"{error.key} grows from {growth.smallest:.3g} to {growth.largest:.3g} between two windows of {WINDOW} "
            "updates (differences of probabilities have no conversion to nats, so that only growth counts)"
        )
    yield Finding(
        1,
        Level.WARN,
        "the sampler's policy is not the learner's, and no lag is declared",
        f"{said}. Either the inference engine computes other probabilities than the trainer (precision, kernels, "
        "temperature), or the weights sent to it never arrive (verl#7495).",
        evidence,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="compare both engines' log-probabilities of one response right after a weight sync; if the sampler "
        "lags by design, name the configuration key that sets the lag in a design file, as stress: {key: ...}",
    )


def judge_sampler_diverged(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The sampler drifts away from the learner and does not come back.

    What it does: looks for a distance between sampler and learner whose floor rises over the run, or that stops being
    a number.

    Why it matters: a lag that a weight refresh ends is a setting of the experiment; a distance that survives the
    refreshes means that the policy, the engine or the sync has broken, and the rest of the run is no evidence.

    How it decides: the distance is not finite on two updates; or the smallest 5-update window median of the run's last
    quarter is 10 times that of its first (which counts as at least 1e-4, the noise of bf16) and above 0.01 nats per
    token. Both quarters have to hold a complete refresh interval, declared or read off the series, since a saw-tooth
    that returns to its floor is lag and no divergence; else the rule is not judged.

    Example: ``rollout_corr/k3_kl`` at 0.0008 over the first 25 updates and at 0.3 over the last 25, no refresh between.

    Remedy: check that every weight refresh arrives, then lower the learning rate or correct against the sampler.

    Configuration: ``stress``, for a refresh interval that the vocabulary does not know.

    References: verl-project/verl#7495, sail-sg/Precision-RL#10.
    """
    found = divergence(view)
    if found is None or not found[1].diverged:
        return
    series, moved = found
    if moved.nonfinite >= NONFINITE_UPDATES:
        at = series.step[~np.isfinite(series.values)]
        said = f"{series.key} is not a finite number on {len(at)} updates, first at update {int(at[0])}"
        evidence: dict[str, Any] = {"sampler": series.key, "nonfinite": len(at), "first": int(at[0])}
    else:
        said = (
            f"The smallest window median of {series.key} is {moved.first:.3g} in the first quarter of the run and "
            f"{moved.last:.3g} in the last, no refresh bringing it back"
        )
        evidence = {"sampler": series.key, "first_quarter": moved.first, "last_quarter": moved.last}
    evidence["designed_lag"] = lag_declared(view)
    undeclared = "" if lag_declared(view) else " No lag is declared: a weight sync that never arrives looks like this."
    yield Finding(
        1,
        Level.WARN,
        "the sampler drifts away from the learner and does not come back",
        f"{said}.{undeclared}",
        evidence,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="check that every weight refresh arrives at the sampler, then lower the learning rate or correct "
        "against the sampler",
    )


def judge_clip_misses_lag(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The clip leaves most of the tokens outside its own range alone.

    What it does: holds the clip fraction against the share of tokens, among those with an advantage other than 0,
    whose ratio against the sampler lies outside the same range.

    Why it matters: the clip is what bounds an off-policy step. Where its ratio is not the one against the sampler, it
    bounds something else, and the run has less off-policy correction than its clip fraction suggests.

    How it decides: no importance correction is active, and over the updates on which at least 5% of the tokens lie
    outside the range (at least 3 updates) the clip acts on less than a tenth of as many tokens. A tenth, because a
    clip that works acts only where the advantage pushes outwards (about half), and with M minibatches only on
    (M - 1) / M of the data. A share outside any other range is not used.

    Example: 30% of the tokens outside 0.8 to 1.2 against the sampler, and a clip fraction of 0.004.

    Remedy: take pi_old from the sampler's recorded log-probabilities, or weight by importance against them.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 1.
    """
    found = off_policy_updates(view)
    if corrected(view) or found is None:
        return
    clip, outside, clipped, share = found
    lagging = share >= OUTSIDE_SHARE
    count = int(np.count_nonzero(lagging))
    if count < 3:
        return
    with np.errstate(over="ignore"):
        acted, off = float(clipped[lagging].mean()), float(share[lagging].mean())
    if acted >= MISSED * off:
        return
    yield Finding(
        1,
        Level.WARN,
        "the clip misses most of the tokens outside its range",
        f"On {count} updates {off:.1%} of the tokens lie outside the clip range against the sampler ({outside.key}), "
        f"and {clip.key} acts on {acted:.2%}: its ratio is not the one against the sampler.",
        {"updates": count, "outside": off, "clipped": acted, "clip_fraction": clip.key},
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="take pi_old from the sampler's log-probabilities or add an importance weight against them",
    )


RULES: Final = (
    Rule(
        "sampler-mismatch",
        1,
        Level.WARN,
        Scope.RUN,
        (
            branch("measured", SAMPLER_QUANTITIES, "sampler_windows"),
            branch("probabilities", "sampler_prob_error", "sampler_windows"),
        ),
        judge_sampler_mismatch,
        facts=sampler_facts,
    ),
    Rule(
        "sampler-diverged",
        1,
        Level.WARN,
        Scope.RUN,
        (branch("measured", SAMPLER_QUANTITIES, "refresh_in_quarters"),),
        judge_sampler_diverged,
        facts=sampler_facts,
    ),
    Rule(
        "clip-misses-lag",
        1,
        Level.WARN,
        Scope.RUN,
        (branch("measured", "clip_fraction", "testable_clip", "outside_sampler_range", "common_updates"),),
        judge_clip_misses_lag,
        reads=(PROBED_WEIGHT,),
        facts=sampler_facts,
    ),
)

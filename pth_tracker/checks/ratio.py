"""Check 1: the policy in the PPO ratio, measured against the sampler that generated the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.subjects import RunView
from pth_tracker.design.comparison import Pair, differing_keys, shown_values
from pth_tracker.model import IDLE_CLIP, Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Series
from pth_tracker.vocabulary.load import FACT_PREFIX

LEAST_UPDATES: Final = 20
"""Updates at which the clip fraction has to be 0, where the configuration does not make the ratio 1."""
LEAST_LAG_VALUES: Final = 3
"""Values of the sampler's KL from which lag can be told: so many have to lie above the tolerance."""
SAMPLER_QUANTITIES: Final = ("sampler_k3_kl", "sampler_kl", "sampler_abs_dlogp")
"""What can measure the sampler's lag in nats per token, the surest first."""
PROBED_WEIGHT: Final = "is_weight_mean"
"""Logged by a probe, it says that the loss is weighted; frameworks also log it where the weights are not applied."""


def lag_declared(view: RunView) -> int | None:
    """By how many updates the sampler is designed to lag; 0: not at all, None: nothing says."""
    return view.reading.designed_lag(view.plan.stress)


def sampler_series(view: RunView) -> Series | None:
    """The series that measures the sampler's lag best; None where none is logged."""
    return next((series for name in SAMPLER_QUANTITIES if (series := view.series(name)) is not None), None)


def measured_lag(view: RunView, series: Series) -> stats.Lag:
    """Whether ``series`` shows lag, by its estimator and the tolerance in force."""
    estimator: stats.Estimator = series.meaning.estimator or "k1"
    return stats.lag_measured(
        series.values, tolerance=view.plan.kl_tolerance, declared=bool(lag_declared(view)), estimator=estimator
    )


def trained(view: RunView, series: Series) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which updates of ``series``, ``(n,)``, moved the policy: those at which no learning rate of 0 was logged."""
    rate = view.series("lr")
    if rate is None or not rate.exact_zeros:
        return np.ones(len(series), dtype=bool)
    idle = rate.step[rate.values == 0]
    return ~np.isin(series.step, idle)


def corrected(view: RunView) -> bool:
    """Whether an importance correction against the sampler is active, or pi_old is the sampler's.

    Told by the configuration, or by a probe that logged the weights of the loss.
    """
    weight = view.series(PROBED_WEIGHT)
    if weight is not None and weight.key.startswith(FACT_PREFIX):
        return True
    return view.role("correction") not in (MISSING, "none") or view.role("pi_old") == "sampler"


def _clip_values(view: RunView, clip: Series) -> Floats:
    """The ``(k,)`` finite clip fractions of the updates that moved the policy."""
    return clip.values[trained(view, clip) & np.isfinite(clip.values)]


def _idle_level(view: RunView, clip: Series) -> float:
    """The clip fraction up to which the clip is idle: 0, or what kernels make where the ratio is 1 by construction."""
    return clip.meaning.noise if view.role("ratio_is_one") is True else 0.0


def _clip_facts(view: RunView) -> Iterator[str]:
    clip, sampler = view.series("clip_fraction"), sampler_series(view)
    moving = None if clip is None else _clip_values(view, clip)
    acts = clip is not None and moving is not None and bool(np.any(np.abs(moving) > _idle_level(view, clip)))
    settled = moving is not None and (acts or corrected(view))
    # Where nothing is logged at all, that is what is missing.
    if moving is None or settled or len(moving) >= (1 if view.role("ratio_is_one") is True else LEAST_UPDATES):
        yield "enough_updates"
    if sampler is None or settled or len(sampler) >= LEAST_LAG_VALUES:
        yield "lag_values"


def _cause(view: RunView, one: bool) -> str:
    if view.role("correction") is MISSING:
        return "The configuration does not tell whether the loss corrects for it: find out where pi_old comes from."
    step = ", and one optimiser step a batch makes the ratio 1" if one else ""
    return f"pi_old is the learner's own recomputed policy{step}: this run has no off-policy correction."


def _idle_words(highest: float) -> str:
    return "exactly 0" if highest == 0 else f"at most {highest:.2g}, which two forward passes make of one policy,"


def judge_idle_clip(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The clip of an uncorrected run never acts while its sampler lags.

    What it does: looks for runs whose clip fraction is exactly 0 at every update although the data come from an older
    policy.

    Why it matters: where the ratio's denominator is the learner's own recomputed policy and a batch takes one
    optimiser step, the ratio is 1 whatever the sampler did. The clip cannot act, and the "PPO baseline" has no
    off-policy correction at all, while its log looks healthy.

    How it decides: the clip fraction is exactly 0 (full precision) on each of at least 20 updates with a learning
    rate above 0 (fewer where the configuration makes the ratio 1; there it may also lie below the level that the
    vocabulary gives for the kernels of two forward passes), no importance correction against the sampler is
    active, and either lag is measured (the sampler's KL lies above the tolerance on at least 3 updates and 5% of
    them, or is not finite on two, and lag is declared or a 5-update window median grew 5-fold, or in a saw-tooth
    shorter than windows its teeth did) or lag is declared and the configuration makes the ratio 1. Losses without a
    clip that could be tested are left out. A warning where the configuration does not tell whether a correction is
    active.

    Example: ``actor/pg_clipfrac`` is 0.0 on all of 100 updates while ``rollout_corr/k3_kl`` reaches 7 nats.

    Remedy: take pi_old from the sampler's recorded log-probabilities, or weight by importance against them. An
    author who wants an uncorrected baseline says so in the design's ``ignore``, with a reason.

    Configuration: ``rules.kl_tolerance`` (0.05 nats per token), ``stress`` for a lag that the vocabulary does not
    know: a setting whose name is that of a lag (lag, stale, sync, refresh, interval, delay ...).

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 1.
    """
    clip = view.series("clip_fraction")
    if clip is None or corrected(view):
        return
    moving = _clip_values(view, clip)
    one = view.role("ratio_is_one") is True
    if len(moving) < (1 if one else LEAST_UPDATES) or not clip.exact_zeros:
        return
    if np.any(np.abs(moving) > _idle_level(view, clip)):
        return
    highest = float(moving.max())
    interval = lag_declared(view)
    evidence: dict[str, Any] = {"updates": len(moving), "clip_fraction": clip.key, "ratio_is_one": one}
    if interval:
        evidence["designed_lag"] = interval
    reason = ""
    if "measured" in met and (series := sampler_series(view)) is not None:
        lag = measured_lag(view, series)
        finite = series.values[np.isfinite(series.values)]
        largest = float(np.abs(finite).max()) if len(finite) else float("inf")
        evidence |= {"sampler": series.key, "above_tolerance": lag.above, "of": lag.updates, "largest": largest}
        if lag.measured:
            reason = (
                f"{series.key} lies above {view.plan.kl_tolerance:g} nats per token on {lag.above} of {lag.updates} "
                f"updates and reaches {largest:.3g}"
            )
    if not reason and "declared" in met and interval and one:
        reason = f"the sampler lags by up to {interval} updates by design"
    if not reason:
        return
    yield Finding(
        1,
        Level.FAIL if view.role("correction") is not MISSING else Level.WARN,
        "the clip never acts while the sampler lags",
        f"{clip.key} is {_idle_words(highest)} on all {len(moving)} updates while {reason}. {_cause(view, one)}",
        evidence,
        IDLE_CLIP,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="take pi_old from the sampler's log-probabilities or add an importance weight against them; "
        "if an uncorrected baseline is wanted, say so in the design's ignore section",
    )


def judge_ratio_one(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The configuration makes the PPO ratio 1, so that the clip is idle by construction.

    What it does: tells from the configuration, by the framework's own rule, that each batch takes one optimiser step
    against a policy recomputed just before it.

    Why it matters: it is ordinary for on-policy training, and it means that the clip fraction says nothing and that
    the clip range is no setting of the experiment.

    How it decides: by the framework's rule over optimiser steps a batch and the source of pi_old; nothing is
    measured.

    Example: verl with ``ppo_epochs=1`` and ``ppo_mini_batch_size`` equal to ``train_batch_size``.

    Remedy: none is needed while the sampler is fresh.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 1.
    """
    if view.role("ratio_is_one") is not True:
        return
    updates = view.role("updates_per_batch")
    steps = "" if updates is MISSING else f": {updates:g} optimiser step{'' if updates == 1 else 's'} a batch"
    yield Finding(
        1,
        Level.INFO,
        f"the PPO ratio is 1 by construction{steps}",
        "The clip cannot act, and a clip fraction of 0 means nothing. Ordinary for on-policy training.",
        {} if updates is MISSING else {"updates_per_batch": updates},
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
    )


def judge_clip_range(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms differ in the clip range although the ratio is 1 by construction.

    What it does: finds comparisons of clip ranges in a setting where no clip range can have an effect.

    Why it matters: the difference between such arms is noise, whatever it looks like.

    How it decides: a key of the clip range differs between the arms, and in every run of both the configuration makes
    the ratio 1.

    Example: ``clip_ratio_high`` 0.2 against 0.28 with one optimiser step a batch.

    Remedy: take several optimiser steps a batch, or pi_old from the sampler; or drop the comparison.

    Configuration: none.

    References: BytedTsinghua-SIA/DAPO#11, verl-project/verl#791.
    """
    members = [member for member in pair.members if member.reading.role("ratio_is_one") is not MISSING]
    sides = [[m for m in members if m.arm == arm] for arm in (pair.a, pair.b)]
    if not all(sides) or not all(member.reading.role("ratio_is_one") is True for member in members):
        return
    keys = {key for member in members for key in member.reading.framework.clip_range}
    within = {key for side in sides for key in differing_keys([member.run.config for member in side])}
    across = set(differing_keys([side[0].run.config for side in sides]))
    for key in sorted((keys & across) - within):
        values = {arm: shown_values(side, key) for arm, side in zip((pair.a, pair.b), sides)}
        yield Finding(
            1,
            Level.FAIL,
            f"{key} differs, and the ratio is 1 by construction",
            f"{pair.a} has {values[pair.a]}, {pair.b} has {values[pair.b]}. With a ratio of 1 no clip range can "
            "act, so that this difference changes nothing.",
            {"key": key, "values": values},
            basis=pair.comparison.basis,
            runs=tuple(member.key for member in members),
            blames=tuple(member.key for member in sides[0]),
            arms=(pair.a, pair.b),
            remedy="take several optimiser steps on each batch, take pi_old from the sampler, or drop the comparison",
        )


_NEEDED: Final = ("clip_fraction", "exact_zeros", "testable_clip", "enough_updates")
RULES: Final = (
    Rule(
        "idle-clip",
        1,
        Level.FAIL,
        Scope.RUN,
        (
            branch("measured", *_NEEDED, SAMPLER_QUANTITIES, "lag_values"),
            branch("declared", *_NEEDED, "staleness", "updates_per_batch"),
        ),
        judge_idle_clip,
        explains=("ratio-one-by-construction", "clip-misses-lag", "sampler-diverged"),
        reads=(PROBED_WEIGHT,),
        facts=_clip_facts,
    ),
    Rule(
        "clip-range-cannot-act",
        1,
        Level.FAIL,
        Scope.PAIR,
        (branch("declared", "config", "ratio_is_one"),),
        judge_clip_range,
    ),
    Rule(
        "ratio-one-by-construction",
        1,
        Level.INFO,
        Scope.RUN,
        (branch("declared", "ratio_is_one"),),
        judge_ratio_one,
        blames_runs=False,
    ),
)

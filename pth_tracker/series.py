"""Checks 1 and 3 on series that a training loop logged: clip fraction beside lag, batch identity beside age."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pth_tracker.model import IDLE_CLIP, STUCK_BATCH, Level, Report

KL_TOLERANCE: Final = 0.05
"""Nats per token above which a sampler counts as lagging."""


def scan_clip_vs_kl(
    clip_fraction: Mapping[int, float],
    kl: Mapping[int, float],
    kl_tol: float = KL_TOLERANCE,
    is_weighted: bool = False,
) -> Report:
    """Check 1 on logged series: a clip fraction of exactly 0 beside a sampler that lags.

    An update lags where the magnitude of its KL is above the tolerance or is no finite number: a KL of NaN is no
    small KL, and a signed estimate (k1) far below 0 is no closeness. A clip fraction of NaN is no clipping.

    Args:
        clip_fraction: Update to the logged clip fraction of the PPO loss.
        kl: Update to the logged KL of the sampler against the learner, in nats per token.
        kl_tol: KL above which the sampler counts as lagging.
        is_weighted: Whether the loss is weighted by importance against the sampler, which then is the correction.

    Returns:
        A report with the stats ``updates, max_clip_fraction, max_kl, kl_growth, lagging_updates, nonfinite_updates``.
    """
    report = Report(subject="check 1: clip fraction beside the sampler's lag")
    steps = sorted(set(clip_fraction) & set(kl))
    if not steps:
        report.add(
            1,
            Level.WARN,
            "no update has both a clip fraction and a KL of the sampler",
            "Record the sampler's log-probabilities and log their KL against the learner's.",
        )
        return report
    clips = np.array([clip_fraction[step] for step in steps], dtype=np.float64)
    kls = np.array([kl[step] for step in steps], dtype=np.float64)
    far = ~(np.abs(kls) <= kl_tol)
    finite, positive = kls[np.isfinite(kls)], kls[np.isfinite(kls) & (kls > 0)]
    acting = clips[~np.isnan(clips)]
    report.stats |= {
        "updates": len(steps),
        "max_clip_fraction": float(acting.max()) if len(acting) else math.nan,
        "max_kl": float(kls.max()) if not np.isnan(kls).any() else math.inf,
        "kl_growth": _ratio(float(positive.max()), float(positive.min())) if len(positive) else math.nan,
        "lagging_updates": int(far.sum()),
        "nonfinite_updates": len(kls) - len(finite),
    }
    _judge_scan(report, steps, acting, far, kl_tol, is_weighted)
    return report


def _ratio(top: float, bottom: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float64(top) / bottom)


def _judge_scan(
    report: Report, steps: Sequence[int], acting: np.ndarray[Any, Any], far: Any, kl_tol: float, is_weighted: bool
) -> None:
    stats = report.stats
    reach = f"The sampler's KL reaches {stats['max_kl']:.3g} nats per token"
    if not far.any():
        report.add(
            1,
            Level.INFO,
            f"sampler and learner stay close (KL at most {stats['max_kl']:.3g} nats per token)",
            "Where nothing lags, the clip has nothing to act on and its fraction says little.",
        )
    elif not len(acting):
        report.add(1, Level.WARN, "the clip fraction is NaN on every update while the sampler lags", f"{reach}.")
    elif np.any(acting != 0):
        share = float(np.mean(acting != 0))
        report.add(1, Level.INFO, f"the clip acts on {share:.0%} of the updates", f"{reach}.")
    elif is_weighted:
        report.add(
            1,
            Level.INFO,
            f"the clip is idle on all {len(steps)} updates; an importance weight corrects for the lag",
            f"{reach}. The weight against the sampler is this arm's only correction.",
        )
    else:
        odd = f", {stats['nonfinite_updates']} of them not finite" if stats["nonfinite_updates"] else ""
        report.add(
            1,
            Level.FAIL,
            f"the clip fraction is exactly 0 on all {len(steps)} updates while the sampler lags",
            f"{reach} and lies above {kl_tol:g} on {int(far.sum())} updates{odd}. A clip that never acts "
            "beside such a lag stands on a ratio against the learner's own recomputed policy; unless the loss "
            "carries an importance weight against the sampler, this arm has no off-policy correction. Look up where "
            "pi_old comes from.",
            IDLE_CLIP,
            first_lagging_update=next(step for step, lags in zip(steps, far) if lags),
        )


def check_batch_ids(
    batch_ids: Sequence[Any],
    updates: Sequence[int] | None = None,
    ages: Sequence[float | None] | None = None,
    expect_unique: bool = True,
    expected_age: Callable[[int], float] | None = None,
) -> Report:
    """Check 3: how many distinct batches were trained on, and which updates trained on one again.

    Args:
        batch_ids: The identity of the batch of each update, in order. Numbers are equal by value (``7``, ``7.0`` and
            ``"7"`` are one batch); None, ``""`` and NaN are updates whose batch is not known, and judged by nothing.
        updates: The number of each update; 0, 1, 2 and so on without it.
        ages: The age of each update's data; None where it was not logged.
        expect_unique: Whether the design gives every update a batch of its own.
        expected_age: The designed age of the data at an update.

    Returns:
        A report with the stats ``updates, distinct_batches, longest_repeat, repeated_batches``, and ``age_min`` and
        ``age_max`` where ages are known.

    Raises:
        ValueError: the sequences differ in length.
    """
    report = Report(subject="check 3: the batch of each update")
    numbers = [int(update) for update in updates] if updates is not None else list(range(len(batch_ids)))
    for name, other in (("updates", numbers), ("ages", ages)):
        if other is not None and len(other) != len(batch_ids):
            raise ValueError(f"{len(batch_ids)} batch ids and {len(other)} {name} were given: one each is needed")
    if not len(batch_ids):
        report.add(3, Level.WARN, "no updates were recorded")
        return report
    named = [_batch_name(one) for one in batch_ids]
    known = [(update, name) for update, name in zip(numbers, named) if name]
    _judge_identities(report, len(named), known, expect_unique, ages is not None)
    if ages is not None:
        _judge_ages(report, [(u, a) for u, a in zip(numbers, ages) if _is_known(a)], expected_age)
    return report


def _batch_name(identity: Any) -> str:
    """The identity as text, one for all spellings of one number; ``""``: not known."""
    if identity is None:
        return ""
    if isinstance(identity, float | np.floating):
        number = float(identity)
        return "" if math.isnan(number) else str(int(number)) if number.is_integer() else repr(number)
    return str(identity).strip()


def _is_known(age: Any) -> bool:
    return age is not None and not (isinstance(age, float | np.floating) and math.isnan(age))


def _stretches(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start and length of every stretch of equal neighbours."""
    start = 0
    for place in range(1, len(names) + 1):
        if place == len(names) or names[place] != names[start]:
            yield start, place - start
            start = place


def _judge_identities(
    report: Report, recorded: int, known: Sequence[tuple[int, str]], expect_unique: bool, with_ages: bool
) -> None:
    uses: dict[str, list[int]] = {}
    for update, name in known:
        uses.setdefault(name, []).append(update)
    repeated = {name: at for name, at in uses.items() if len(at) > 1}
    stretches = list(_stretches([name for _, name in known])) if known else []
    start, longest = max(stretches, key=lambda stretch: stretch[1], default=(0, 0))
    report.stats |= {
        "updates": recorded,
        "distinct_batches": len(uses),
        "longest_repeat": longest,
        "repeated_batches": len(repeated),
    }
    if len(known) < recorded:
        report.add(
            3,
            Level.WARN,
            f"the batch of {recorded - len(known)} of {recorded} updates is not known",
            "What was not recorded is judged by nothing: it may be a repeat.",
        )
    if not known:
        return
    if not expect_unique or not repeated:
        report.add(3, Level.INFO, f"{len(known)} updates trained on {len(uses)} distinct batches")
        return
    again = len(known) - len(uses)
    lines = [f"{len(known)} updates trained on {len(uses)} distinct batches."]
    if longest > 1:
        first, last = known[start][0], known[start + longest - 1][0]
        lines.append(f"Updates {first} to {last}, {longest} in a row, trained on one batch.")
    most = max(len(at) for at in repeated.values())
    if most != longest:
        lines.append(f"The batch used most was trained on at {most} updates.")
    if with_ages:
        lines.append("The logged age does not show it: a batch that is served again can carry any age.")
    report.add(
        3,
        Level.FAIL,
        f"{again} of {len(known)} updates train{'s' if again == 1 else ''} on an earlier batch again",
        " ".join(lines),
        STUCK_BATCH,
        first_repeat_update=min(at[1] for at in repeated.values()),
    )


def _judge_ages(report: Report, known: Sequence[tuple[int, Any]], expected_age: Callable[[int], float] | None) -> None:
    if known:
        report.stats["age_min"] = min(age for _, age in known)
        report.stats["age_max"] = max(age for _, age in known)
    if expected_age is None:
        return
    if not known:
        report.add(3, Level.WARN, "no update has a data age to hold against the design")
        return
    designed = [(update, age, expected_age(update)) for update, age in known]
    off = [entry for entry in designed if entry[1] != entry[2]]
    if not off:
        report.add(3, Level.INFO, "the data age follows the design on every update")
        return
    update, age, wanted = off[0]
    report.add(
        3,
        Level.FAIL,
        f"the data age is off the design on {len(off)} of {len(known)} updates",
        f"First at update {update}: the data are {age} updates old, designed are {wanted}.",
        first_update=update,
    )

"""What the pictures of a report show, taken from a settled comparison: bounded, whatever the runs logged."""

from __future__ import annotations

from typing import Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.paired_results import paired_scores, result_of, shown_unit
from pth_tracker.checks.ratio import SAMPLER_QUANTITIES
from pth_tracker.checks.stability import LEAST_RUNS, baseline_settings
from pth_tracker.design.comparison import Comparison, Member, Pair
from pth_tracker.examine import Digest, Examination
from pth_tracker.runs import Floats, Ints
from pth_tracker.traces import PairTrace, RunTrace, StableRange, Trace, Traces

POINTS: Final = 200
"""Points of a trace at most."""


def depict(comparison: Comparison) -> Traces:
    """The traces of all examined runs, of every comparison of arms, and of the arms that they are compared with."""
    return Traces(
        {member.key: _run_trace(member, member.result) for member in comparison.members if member.result is not None},
        tuple(trace for pair in comparison.pairs if (trace := _pair_trace(pair)) is not None),
        _ranges(comparison),
        comparison.design.rules.kl_tolerance,
    )


def _run_trace(member: Member, result: Examination) -> RunTrace:
    held = result.quantities
    sampler = next((held[name] for name in SAMPLER_QUANTITIES if name in held), None)
    witness = next((held[name] for name in member.reading.framework.witness if name in held), None)
    score = None
    if len(result.score_step):
        score = _thinned(result.score_key, result.score_step, result.score_values, result.evaluations)
    return RunTrace(
        clip=_curve(held.get("clip_fraction")),
        sampler=_curve(sampler),
        witness=None if witness is None else _first(witness.key, witness.step, witness.values, witness.count),
        batches=_batches(result),
        score=score,
        collapsed=bool(result.collapsed),
        stress=member.cell.stress,
    )


def _curve(digest: Digest | None) -> Trace | None:
    return None if digest is None else _thinned(digest.key, digest.step, digest.values, digest.count)


def _thinned(key: str, step: Ints, values: Floats, count: int) -> Trace:
    kept = np.unique(np.linspace(0, len(step) - 1, min(len(step), POINTS)).round().astype(int))
    return Trace(key, step[kept], values[kept], count, count <= len(kept))


def _first(key: str, step: Ints, values: Floats, count: int) -> Trace:
    return Trace(key, step[:POINTS], values[:POINTS], count, count <= POINTS)


def _batches(result: Examination) -> Trace | None:
    """The batches by their logged identity, or else as the other metrics tell them apart."""
    identity = result.quantities.get("batch_id")
    if identity is not None:
        finite = np.isfinite(identity.values)
        step, names, key, count = identity.step[finite], identity.values[finite], identity.key, identity.count
    else:
        step, names, key, count = result.told_step, result.told_batch.astype(np.float64), "", result.told_count
    if not len(step):
        return None
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    number = np.empty(len(first))
    number[np.argsort(first)] = np.arange(1, len(first) + 1)
    return _first(key, step, number[inverse.reshape(-1)], count)


def _pair_trace(pair: Pair) -> PairTrace | None:
    result = result_of(pair)
    if result is None:
        return None
    a, b, _, _ = paired_scores(pair)
    scale, unit = shown_unit(pair)
    low, high = result.interval.low, result.interval.high
    return PairTrace(
        pair.subject,
        pair.a,
        pair.b,
        result.seeds,
        np.array([a[seed] for seed in result.seeds]),
        np.array([b[seed] for seed in result.seeds]),
        result.interval.mean,
        None if low is None or high is None else (low, high),
        result.interval.missing,
        pair.comparison.design.tie_margin,
        scale,
        unit.strip(),
    )


def _ranges(comparison: Comparison) -> tuple[StableRange, ...]:
    """Those of the arms that others are compared with, where two settings or more were tested."""
    found: dict[str, StableRange] = {}
    for pair in comparison.pairs if comparison.stress_key else ():
        settings = baseline_settings(pair)
        if pair.b in found or len([one for one in settings if len(one.runs) >= LEAST_RUNS]) < 2:
            continue
        collapsed, runs = tuple(one.collapsed for one in settings), tuple(len(one.runs) for one in settings)
        stable = stats.stable_settings(list(collapsed), list(runs))
        found[pair.b] = StableRange(pair.b, tuple(one.value for one in settings), collapsed, runs, stable)
    return tuple(found.values())

"""Check 6: whether a paired difference comes from the length of training, and whether an evaluation resolves it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.paired_results import (
    PairedResult,
    adjust,
    compare_scores,
    paired_results,
    paired_scores,
    result_of,
    shown_unit,
)
from pth_tracker.checks.stability import score_items
from pth_tracker.design.comparison import Cell, Member, Pair, keys_of
from pth_tracker.model import Finding, Level, Rule, Scope, branch

BUDGET_SHARE: Final = 0.1
"""The share by which last updates may differ."""
NOISE_ERRORS: Final = 2.0
ITEM_KEYS: Final = ("evaluation_items", "eval_items", "num_eval_items", "n_eval_items")
"""Configuration keys, at any depth, that hold the number of evaluated items."""


def _scored(pair: Pair, first: bool) -> list[Member]:
    return [m for m in pair.side(first) if m.result and len(m.result.score_step)]


def last_updates(pair: Pair) -> tuple[float, float, int] | None:
    """The arms' median last scored updates, and the last that every run reached; None where an arm has no score."""
    sides = [[int(m.result.score_step[-1]) for m in _scored(pair, first) if m.result] for first in (True, False)]
    if not all(sides):
        return None
    return float(np.median(sides[0])), float(np.median(sides[1])), min(*sides[0], *sides[1])


def _cut(pair: Pair, last: int) -> Pair:
    """The pair with its runs scored at update ``last``; runs that had no score by then have none."""
    metric = pair.comparison.design.metric
    at = metric.at if metric else "last"
    higher = pair.comparison.in_force.higher_is_better

    def scored(member: Member) -> Member:
        if member.result is None:
            return member
        finite = np.isfinite(member.result.score_values) & (member.result.score_step <= last)
        if not finite.any():
            return replace(member, result=replace(member.result, score=None))
        score = stats.score_of(
            member.result.score_step[finite],
            member.result.score_values[finite],
            at=at if isinstance(at, str) else "mean",
            window=0 if isinstance(at, str) else at.mean_over,
            higher_is_better=higher,
        )
        return replace(member, result=replace(member.result, score=score))

    def cell(one: Cell) -> Cell:
        return replace(one, members=tuple(scored(member) for member in one.members))

    return replace(pair, cells=tuple((cell(a), cell(b)) for a, b in pair.cells))


def at_common_update(pair: Pair) -> PairedResult | None:
    """What the comparison would say of the scores at the last update that all its runs reached."""
    memo = pair.comparison.memo.setdefault("at_common_update", {})
    key = (pair.a, pair.b, pair.stress)
    if key not in memo:
        memo[key] = _at_common_update(pair)
    found: PairedResult | None = memo[key]
    return found


def _at_common_update(pair: Pair) -> PairedResult | None:
    lasts = last_updates(pair)
    if lasts is None:
        return None
    result = compare_scores(*paired_scores(_cut(pair, lasts[2])), pair.comparison.design.tie_margin)
    if result is None:
        return None
    own = (pair.a, pair.b, pair.stress)
    return adjust({**paired_results(pair.comparison), own: result}, pair.comparison.claimed)[own]


def _budget_facts(pair: Pair) -> tuple[str, ...]:
    return ("common_curve",) if result_of(pair) and at_common_update(pair) else ()


def _word(pair: Pair, result: PairedResult) -> str:
    if result.verdict is not stats.Verdict.BETTER:
        return str(result.verdict)
    return f"{pair.a if (result.interval.mean > 0) == pair.comparison.in_force.higher_is_better else pair.b} is better"


def _evaluations(pair: Pair, first: bool) -> float:
    return float(np.median([m.result.evaluations for m in _scored(pair, first) if m.result] or [0]))


def judge_unequal_budget(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms trained for different numbers of updates, and the verdict depends on it.

    What it does: compares the arms at each run's own last update, and at the last that all of them reached.

    Why it matters: an arm that trained longer scores higher for that alone. The best of 20 evaluations lies 0.71
    standard deviations above the best of 5.

    How it decides: the arms' median last scored updates differ by more than 10%, and the word of the comparison
    (better with its arm, tie, undecided) is another one at the common last update. With the score taken at its
    ``best``, arms with other numbers of evaluations are named whatever the verdict. A learning rate that follows a
    schedule differs at a common update too; schedule-differs says so.

    Example: 700 updates against 300: better at the end, undecided at update 300.

    Remedy: compare the scores at the last update that both arms reached, or train both equally long.

    Configuration: ``metric`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 6.
    """
    lasts, own, common = last_updates(pair), result_of(pair), at_common_update(pair)
    if lasts is None or own is None or common is None:
        return
    a, b, shared = lasts
    metric = pair.comparison.design.metric
    counts = (_evaluations(pair, True), _evaluations(pair, False))
    words = (_word(pair, own), _word(pair, common))
    scale, unit = shown_unit(pair)
    evidence = {
        "last_updates": {pair.a: a, pair.b: b},
        "common_last": shared,
        "own_verdict": words[0],
        "common_verdict": words[1],
        "own_mean": own.interval.mean,
        "common_mean": common.interval.mean,
    }
    if metric and metric.at == "best" and counts[0] != counts[1]:
        title = f"the best of {counts[0]:g} evaluations against the best of {counts[1]:g}"
        detail = "The more evaluations, the higher the best of them."
    elif abs(a - b) > BUDGET_SHARE * max(a, b) and words[0] != words[1]:
        title = f"{a:g} updates against {b:g}, and at update {shared} the verdict is another one"
        detail = (
            f"At its own last update: {own.interval.mean * scale:+.2f}{unit}, {words[0]}. At update {shared}: "
            f"{common.interval.mean * scale:+.2f}{unit}, {words[1]}."
        )
    else:
        return
    yield Finding(
        6,
        Level.WARN,
        f"{pair.subject}: {title}",
        detail,
        evidence,
        basis=pair.comparison.basis,
        runs=keys_of((*pair.side(True), *pair.side(False))),
        arms=(pair.a, pair.b),
        remedy="compare the scores at the last update that both arms reached, or train both equally long",
    )


def configured_items(members: Sequence[Member]) -> int | None:
    """The number of evaluated items that every member's configuration names; None: not named, or not alike."""
    found: set[int] = set()
    for member in members:
        named = [value for key, value in member.run.config.items() if key.rpartition(".")[2] in ITEM_KEYS]
        numbers = [value for value in named if isinstance(value, int) and not isinstance(value, bool) and value > 0]
        if not named or len(numbers) < len(named):
            return None
        found.update(numbers)
    return found.pop() if len(found) == 1 else None


def evaluation_error(pair: Pair) -> tuple[float, dict[str, int]] | None:
    """The evaluation's error of the mean difference, and the items of each task; None where they are not known."""
    result = result_of(pair)
    if result is None or pair.comparison.design.benchmarks:
        return None
    errors: list[float] = []
    items: dict[str, int] = {}
    for cells in pair.cells:
        members = [m for cell in cells for m in cell.counted if m.result and m.score is not None]
        if not all(any(m.arm == cell.key.arm for m in members) for cell in cells):
            continue
        grids = {m.result.score_decimals for m in members if m.result}
        values = np.concatenate([m.result.score_values for m in members if m.result])
        decimals = max((d for d in grids if d is not None), default=None)
        found = score_items(values, decimals, configured_items(members))
        scores = [m.score for m in members if m.score is not None and math.isfinite(m.score)]
        if found is None or not scores:
            return None
        items[", ".join(cells[0].key.task)] = found
        errors.append(stats.difference_error(float(np.mean(scores)), found, seeds=len(result.seeds)))
    return (math.hypot(*errors) / len(errors), items) if errors else None


def _noise_facts(pair: Pair) -> tuple[str, ...]:
    common = ("common_seed",) if result_of(pair) else ()
    return common + (("evaluation_items",) if evaluation_error(pair) else ())


def _direction_claimed(pair: Pair) -> bool:
    return (pair.a, pair.b) in pair.comparison.claimed or (pair.b, pair.a) in pair.comparison.claimed


def judge_below_eval_noise(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """The difference of two arms is smaller than what their evaluation can resolve.

    What it does: holds the mean difference against the error that the finite test set alone makes.

    Why it matters: one score on 1,319 items is uncertain by 1.2 points, on 30 items by 7 to 9; seeds do not tell of
    it where all runs are evaluated on the same few items.

    How it decides: |mean difference| lies under twice sqrt(2 p (1 - p) / (N n)) over n common seeds, at the mean
    score p on N items. N is what the configuration names as ``evaluation_items`` (or ``eval_items``,
    ``num_eval_items``, ``n_eval_items``), else read off the grid on which the scores lie; scores rounded to a few
    decimals tell none. Over several tasks, the tasks' errors are added in squares. A warning where the comparison's
    word is *better* or a claim asserts a direction; else information.

    Example: 1.1 points at 0.77 on 500 items and one seed, whose error is 2.7 points.

    Remedy: evaluate on more items, or say that the difference is not resolved.

    Configuration: ``metric`` and ``claims`` in the design, ``evaluation_items`` in the runs' configuration.

    References: check 6 of the report.
    """
    result, noise = result_of(pair), evaluation_error(pair)
    if result is None or noise is None:
        return
    error, items = noise
    if abs(result.interval.mean) >= NOISE_ERRORS * error:
        return
    claimed = _direction_claimed(pair)
    scale, unit = shown_unit(pair)
    counts = ", ".join(f"{n:,}" for n in items.values())
    yield Finding(
        6,
        Level.WARN if claimed or result.verdict is stats.Verdict.BETTER else Level.INFO,
        f"{pair.subject}: {result.interval.mean * scale:+.2f}{unit} lies within twice the evaluation's error of "
        f"{error * scale:.2f}{unit}",
        f"On {counts} items and {len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}."
        + (" A claim asserts a direction." if claimed else ""),
        {"mean": result.interval.mean, "error": error, "items": list(items.values()), "seeds": len(result.seeds)},
        basis=pair.comparison.basis,
        runs=keys_of((*pair.side(True), *pair.side(False))),
        arms=(pair.a, pair.b),
        remedy="evaluate on more items, or say that the difference is not resolved",
    )


RULES: Final = (
    Rule(
        "unequal-budget",
        6,
        Level.WARN,
        Scope.PAIR,
        (branch("scored", "score", "replicate", "common_curve"),),
        judge_unequal_budget,
        blames_runs=False,
        facts=_budget_facts,
    ),
    Rule(
        "below-eval-noise",
        6,
        Level.WARN,
        Scope.PAIR,
        (branch("paired", "score", "replicate", "common_seed", "evaluation_items"),),
        judge_below_eval_noise,
        blames_runs=False,
        facts=_noise_facts,
    ),
)

"""Check 2, scores: whether two arms' scores are one score, and start from one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.differences import constant_values, shown_field
from pth_tracker.design.comparison import Member, Pair, keys_of, side_members
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.values import MISSING, listed, same_value
from pth_tracker.vocabulary.detect import mangled, matches_any

SHOWN: Final = 6
"""Fields that a detail names at most."""
START_ERRORS: Final = 4.0
"""Standard errors by which scores at the start have to differ."""


def judge_score_not_comparable(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """The scores of two arms are not the same score.

    What it does: compares the metric's name, and the settings of the evaluation, between the arms.

    Why it matters: a difference of scores that were measured differently is a difference of measurements.

    How it decides: a failure where one arm logs the score under a name that the other does not have (arms that were
    inferred have to train one known task), or where the score is a training reward that holds a penalty (KL in the
    reward) which differs between the arms. A warning where evaluation files, samples, temperature, top-p, length limits
    or the reward function differ.

    Example: ``acc/mean@1`` in one arm and ``acc/mean@16`` in the other.

    Remedy: evaluate both arms' checkpoints with the same metric, items and sampling settings.

    Configuration: ``metric`` in the design, ``--metric``; the vocabulary's ``evaluation`` lists the settings.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    problems = [*_other_keys(pair), *_penalties(pair)]
    fields = evaluation_differences(pair)
    if problems:
        said = "; ".join(problems)
    elif fields:
        said = f"their evaluations differ in {listed(fields, 2)}"
    else:
        return
    shown = [
        f"{key}: {shown_field(key, side_members(pair, 0))} against {shown_field(key, side_members(pair, 1))}"
        for key in fields
    ]
    yield Finding(
        2,
        Level.FAIL if problems else Level.WARN,
        f"the scores of {pair.a} and {pair.b} are not the same score: {said}",
        "; ".join(shown[:SHOWN]) + ("." if shown else ""),
        {"problems": problems, "fields": fields},
        basis=pair.comparison.basis,
        runs=keys_of(pair.members),
        blames=keys_of(side_members(pair, 0)),
        arms=(pair.a, pair.b),
        remedy="evaluate both arms with the same metric, items and sampling settings",
    )


def _score_keys(members: Sequence[Member]) -> dict[str, None]:
    """The raw names under which the runs hold the score in force."""
    return dict.fromkeys(m.result.score_key for m in members if m.result and m.result.score_key)


def _logged_scores(members: Sequence[Member]) -> dict[str, None]:
    """The raw names of every held-out score that the runs log."""
    return dict.fromkeys(key for m in members if m.run.metric_keys for key in m.reading.raw_keys("eval_score"))


def _other_keys(pair: Pair) -> Iterator[str]:
    sides = [side_members(pair, place) for place in (0, 1)]
    held = [_score_keys(side) for side in sides]
    if all(held):
        known = {form for key in held[1] for form in mangled(key)}
        if not any(known.intersection(mangled(key)) for key in held[0]):
            yield f"{next(iter(held[0]))} in {pair.a}, {next(iter(held[1]))} in {pair.b}"
        return
    if not pair.comparison.arms_declared and not any(task for cells in pair.cells for task in cells[0].key.task):
        return  # guessed arms that nothing says to train one task may be two tasks
    for own, other, arms in ((0, 1, (pair.a, pair.b)), (1, 0, (pair.b, pair.a))):
        if not held[own] or held[other]:
            continue
        ours = {form for key in _logged_scores(sides[own]) for form in mangled(key)}
        theirs = [key for key in _logged_scores(sides[other]) if not ours.intersection(mangled(key))]
        if theirs:
            yield f"{next(iter(held[own]))} in {arms[0]}, and only {theirs[0]} in {arms[1]}"


def _penalties(pair: Pair) -> Iterator[str]:
    """Where the score is a training reward of which a penalty is a part that differs between the arms."""
    sides = [side_members(pair, place) for place in (0, 1)]
    penalised = {key for side in sides for m in side for key in m.reading.raw_keys("train_reward_mean")}
    plain = {key for side in sides for m in side for key in m.reading.raw_keys("train_score_mean")}
    if not _score_keys([*sides[0], *sides[1]]).keys() & (penalised - plain):
        return
    held = [{str(m.reading.role("reward_penalty")) for m in side} - {str(MISSING)} for side in sides]
    if all(len(values) == 1 for values in held) and held[0] != held[1]:
        yield f"the reward holds a penalty ({min(held[0])} in {pair.a}, {min(held[1])} in {pair.b})"


def evaluation_differences(pair: Pair) -> list[str]:
    """The settings of the evaluation that are constant in each arm and differ between them, sorted."""
    return _apart(pair, "evaluation")


def _apart(pair: Pair, kind: str) -> list[str]:
    """The configuration keys of one kind (``evaluation``, ``model``) that set the arms apart, sorted."""
    sides = [[m for m in side_members(pair, place) if m.run.config] for place in (0, 1)]
    if not all(sides):
        return []
    left, right = (constant_values(side, _keys_of_kind(side, kind, sides)) for side in sides)
    return sorted(key for key in left.keys() & right.keys() if not same_value(left[key], right[key]))


def _keys_of_kind(side: Sequence[Member], kind: str, sides: Sequence[Sequence[Member]]) -> list[str]:
    patterns = getattr(side[0].reading.framework, kind)
    task = set(side[0].reading.framework.task)
    keys = {key for members in sides for member in members for key in member.run.config}
    return sorted(key for key in keys if key not in task and matches_any(key, patterns))


def _score_facts(pair: Pair) -> tuple[str, ...]:
    return (
        ("logged_scores",)
        if all(_score_keys(s) or _logged_scores(s) for s in (side_members(pair, 0), side_members(pair, 1)))
        else ()
    )


@dataclass(frozen=True)
class Start:
    """The scores of two arms before any training, in the score's unit."""

    a: float
    b: float
    error: float
    """The standard error of their difference."""
    items: int | None
    """Evaluation items read off the scores; None: they are no rates, or do not tell."""


def start_scores(pair: Pair) -> Start | None:
    """The arms' mean scores at update 0 with the standard error of their difference; None where there is none.

    The error is that of the evaluation, sqrt(2 p (1 - p) / N) where the score is a rate on N items that can be read
    off it, or Welch's over the seeds, whichever is larger: replicates start from one model, and greedy answers of one
    model vary no less between arms than they are uncertain.
    """
    sides = [[m for m in side_members(pair, place) if m.result and len(m.result.score_step)] for place in (0, 1)]
    firsts = [
        np.array([m.result.score_values[0] for m in side if m.result and m.result.score_step[0] == 0]) for side in sides
    ]
    if any(not len(first) or not np.isfinite(first).all() for first in firsts):
        return None
    every = np.concatenate([m.result.score_values for side in sides for m in side if m.result])
    every = every[np.isfinite(every)]
    a, b = (float(first.mean()) for first in firsts)
    rate = bool(every.min() >= 0 and every.max() <= 1)
    items = stats.items_from_scores(every) if rate else None
    errors = []
    if items:
        p = (float(np.mean([a, b])) * items + 1) / (items + 2)
        errors.append(math.sqrt(2 * p * (1 - p) / items))
    if all(len(first) > 1 for first in firsts):
        errors.append(math.sqrt(sum(float(first.var(ddof=1)) / len(first) for first in firsts)))
    return Start(a, b, max(errors), items) if errors else None


def _start_facts(pair: Pair) -> tuple[str, ...]:
    return ("start_scores",) if start_scores(pair) is not None else ()


def judge_start_differs(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms start from different scores.

    What it does: compares the scores that both arms logged at update 0, before any training.

    Why it matters: arms that start from one model and are evaluated alike score alike; where they do not, the model,
    the evaluation or the checkpoint is another one.

    How it decides: the mean scores at update 0 differ by more than 4 standard errors, the larger of the evaluation's
    (where the number of items can be read off the scores) and that over the seeds. A failure where the configured
    model and evaluation are equal, so that nothing in the configuration explains it; else a warning.

    Example: 0.36 against 0.71 at update 0, both from ``Qwen2.5-Math-1.5B``.

    Remedy: find out whether an arm began from another checkpoint, resumed a run, or was scored on other items.

    Configuration: ``metric`` in the design.

    References: none.
    """
    start = start_scores(pair)
    if start is None:
        return
    apart = abs(start.a - start.b)
    scale = max(abs(start.a), abs(start.b))
    if apart <= START_ERRORS * start.error or apart <= stats.RELATIVE_TOLERANCE * scale:
        return
    equal = _configured_alike(pair)
    away = f"{apart / start.error:.1f} standard errors" if start.error else "no run of either arm varies"
    yield Finding(
        2,
        Level.FAIL if equal else Level.WARN,
        f"{pair.subject}: the scores at update 0 are {start.a:.4g} and {start.b:.4g}",
        f"{away} apart"
        + (
            "; model and evaluation are configured alike." if equal else "; model or evaluation differ, or are unknown."
        ),
        {"a": start.a, "b": start.b, "error": start.error, "items": start.items, "configured_alike": equal},
        basis=pair.comparison.basis if not equal else Basis.CONTRADICTION,
        runs=keys_of(pair.members),
        blames=keys_of(side_members(pair, 0)),
        arms=(pair.a, pair.b),
        remedy="find out whether an arm began from another checkpoint, resumed a run, or was scored on other items",
    )


def _configured_alike(pair: Pair) -> bool:
    """Whether both arms' configurations name one model and one evaluation."""
    for kind in ("model", "evaluation"):
        sides = [[m for m in side_members(pair, place) if m.run.config] for place in (0, 1)]
        if not all(sides):
            return False
        keys = _keys_of_kind(sides[0], kind, sides)
        constant = [constant_values(side, keys) for side in sides]
        if not keys or any(len(values) < len(keys) for values in constant) or _apart(pair, kind):
            return False
    return True


RULES: Final = (
    Rule(
        "score-not-comparable",
        2,
        Level.FAIL,
        Scope.PAIR,
        (branch("named", "logged_scores"), branch("resolved", "config")),
        judge_score_not_comparable,
        reads=("train_reward_mean", "train_score_mean"),
        facts=_score_facts,
    ),
    Rule(
        "start-differs",
        2,
        Level.FAIL,
        Scope.PAIR,
        (branch("scored", "score", "start_scores"),),
        judge_start_differs,
        facts=_start_facts,
    ),
)

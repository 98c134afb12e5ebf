"""Check 6: differences between arms, paired by seed; `pth_tracker.checks.paired_results` computes what it judges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.paired_evidence import further
from pth_tracker.checks.paired_results import (
    PairedResult,
    pair_keys,
    paired_by,
    paired_scores,
    result_of,
    seed_order,
    shown_interval,
    shown_unit,
    unit_scores,
)
from pth_tracker.design.comparison import Pair
from pth_tracker.model import Finding, Level, Rule, Scope, branch


def judge_paired_difference(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """The difference of two arms, paired by seed, with what it can and cannot say.

    What it does: takes the score differences seed by seed, with their mean, interval, tests and one of three words.

    Why it matters: "all 9 runs above all 6" mixes the seeds' effects with the method's; pairing separates them.

    How it decides: mean +- t(.975, n-1) s/sqrt(n) over the common seeds (n = 2 with its single degree of freedom,
    n = 1 none), Welch's interval beside it, the sign-flip test over all 2^n assignments up to n = 16 with the smallest
    p it can reach, and Holm's adjustment over the comparisons with the baseline. *better*: the adjusted p is below
    .05. *tie*: the 90% interval lies inside the declared margin. Else *undecided*: no significance is never a tie.

    Example: TIS minus GRPO +2.0, +0.7 and +3.1 points: mean +1.93, interval -1.05 to +4.92, undecided.

    Remedy: run more common seeds where it is undecided.

    Configuration: ``metric``, ``baseline``, ``replicate``, ``task``, ``tie_margin`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 6; Student (1908); Holm (1979).
    """
    result = result_of(pair)
    if result is None:
        return
    scale, unit = shown_unit(pair)
    better = pair.comparison.in_force.higher_is_better
    n, mean = len(result.seeds), result.interval.mean
    word = _word(pair, result, better)
    wins = int(np.sum(result.differences > 0 if better else result.differences < 0))
    each = ", ".join(f"{seed}: {d * scale:+.2f}" for seed, d in zip(result.seeds, result.differences))
    lines = [f"By seed: {each}{unit}; {pair.a} ahead on {wins} of {n}."]
    lines.append(
        f"Sign-flip p {result.signs.p:.3g} (the smallest that {n} seeds can reach is {result.signs.smallest_p:.3g}); "
        f"Without pairing {shown_interval(result.welch, scale, 'Welch')}."
    )
    if n == 1:
        lines[-1] = "One common seed gives no interval: the difference cannot be judged."
    elif result.adjusted_p is not None:
        family = f" over {result.family} comparisons" if result.family > 1 else ""
        lines.append(f"t test p {result.interval.p:.3g}, adjusted {result.adjusted_p:.3g}{family}.")
    margin = pair.comparison.design.tie_margin
    more, evidence = further(result, margin, unit_scores(pair.side(True)), unit_scores(pair.side(False)), scale, unit)
    lines += more
    lines.append("It covers the training's randomness on this test set only.")
    yield Finding(
        6,
        Level.INFO,
        f"{pair.subject}: {mean * scale:+.2f}{unit} over {n} seed{'s' if n != 1 else ''}, "
        f"{shown_interval(result.interval, scale)}: {word}",
        " ".join(lines),
        {**_evidence(pair, result, scale), **evidence},
        basis=pair.comparison.basis,
        runs=pair_keys(pair),
        arms=(pair.a, pair.b),
    )


def _word(pair: Pair, result: PairedResult, higher: bool) -> str:
    if result.verdict is stats.Verdict.BETTER:
        ahead = pair.a if (result.interval.mean > 0) == higher else pair.b
        return f"{ahead} is better"
    return str(result.verdict)


def _evidence(pair: Pair, result: PairedResult, scale: float) -> dict[str, Any]:
    return {
        "metric": pair.comparison.in_force.metric,
        "differences": dict(zip(result.seeds, result.differences.tolist())),
        "n": len(result.seeds),
        "mean": result.interval.mean,
        "s": result.interval.s,
        "interval": [result.interval.low, result.interval.high],
        "welch": [result.welch.low, result.welch.high],
        "p": result.interval.p,
        "adjusted_p": result.adjusted_p,
        "sign_flip_p": result.signs.p,
        "smallest_sign_flip_p": result.signs.smallest_p,
        "equivalence_p": result.equivalence.p if result.equivalence else None,
        "verdict": str(result.verdict),
        "shown_times": scale,
    }


def judge_too_few_seeds(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms have only one or two seeds in common.

    What it does: counts the common seeds of a comparison.

    Why it matters: one seed has no interval at all, and with two it rests on a single degree of freedom (t = 12.7).

    How it decides: one or two common seeds.

    Example: arms of three seeds each of which only 43 is in both.

    Remedy: run the missing seeds in both arms.

    Configuration: ``replicate`` in the design.

    References: check 6 of the report.
    """
    result = result_of(pair)
    if result is None or len(result.seeds) > 2:
        return
    n = len(result.seeds)
    tail = (
        "there is no interval: the difference cannot be judged" if n == 1 else "the interval has one degree of freedom"
    )
    yield Finding(
        6,
        Level.WARN,
        f"{pair.subject}: {n} common seed{'s' if n > 1 else ''}",
        f"Seed{'s' if n > 1 else ''} {', '.join(result.seeds)}; {tail}.",
        {"seeds": list(result.seeds)},
        basis=pair.comparison.basis,
        runs=pair_keys(pair),
        arms=(pair.a, pair.b),
        remedy="run more seeds in both arms",
    )


def judge_no_common_seed(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms have no seed in common, so that they cannot be paired.

    What it does: looks for common seeds of a comparison.

    Why it matters: unpaired arms differ by their seeds as well as by their method.

    How it decides: both arms have runs with known seeds, and none is in both. A failure where the design requires
    pairing; else a warning. With Welch's interval where the runs have scores.

    Example: seeds 1, 2, 3 against 4, 5, 6.

    Remedy: run one arm on the other's seeds.

    Configuration: ``pairing: required`` in the design.

    References: check 6 of the report; Welch (1947).
    """
    a, b = paired_by(pair)
    if not a or not b or a & b:
        return
    scale, unit = shown_unit(pair)
    sides = [
        [m.score for m in pair.side(first) if m.score is not None and math.isfinite(m.score)] for first in (True, False)
    ]
    detail = f"{pair.a} has {_seeds(a)}, {pair.b} has {_seeds(b)}."
    evidence: dict[str, Any] = {"a": sorted(a, key=seed_order), "b": sorted(b, key=seed_order)}
    if all(sides):
        welch = stats.welch_interval(*sides)
        evidence["welch"] = [welch.low, welch.high]
        span = shown_interval(welch, scale, "Welch's 95% interval")
        detail += f" Unpaired, the means differ by {welch.mean * scale:+.2f}{unit} ({span})."
    yield Finding(
        6,
        Level.FAIL if pair.comparison.design.pairing == "required" else Level.WARN,
        f"{pair.subject}: no seed in common",
        detail,
        evidence,
        basis=pair.comparison.basis,
        runs=pair_keys(pair),
        blames=pair_keys(pair),
        arms=(pair.a, pair.b),
        remedy="run one arm on the seeds of the other",
    )


def judge_unpaired_runs(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Some seeds ran in one arm only and are left out of the pairing.

    What it does: names the seeds that only one arm has.

    Why it matters: a pooled statement that includes them mixes seed effects with method effects.

    How it decides: information where one arm's seeds contain the other's (a baseline with more seeds), else a warning.

    Example: the method ran seeds 1 to 3, the baseline 1 to 5.

    Remedy: run the missing seeds, or leave the extra ones out of every statement.

    Configuration: ``replicate`` in the design.

    References: check 6 of the report.
    """
    a, b = paired_by(pair)
    if not a & b or a == b:
        return
    both = bool(a - b and b - a)
    runs = tuple(m.key for m in (*pair.side(True), *pair.side(False)) if m.pair_key in a ^ b)
    parts = [f"only {arm}: {_seeds(seeds)}" for arm, seeds in ((pair.a, a - b), (pair.b, b - a)) if seeds]
    yield Finding(
        6,
        Level.WARN if both else Level.INFO,
        f"{pair.subject}: {len(runs)} run{'s' if len(runs) != 1 else ''} without a partner, left out of the pairing",
        f"O{'; '.join(parts)[1:]}.",
        {"only_a": sorted(a - b, key=seed_order), "only_b": sorted(b - a, key=seed_order)},
        basis=pair.comparison.basis,
        runs=runs,
        arms=(pair.a, pair.b),
        remedy="run the missing seeds in the other arm" if both else "",
    )


def _seeds(seeds: set[str]) -> str:
    return ", ".join(sorted(seeds, key=seed_order))


def _facts(pair: Pair) -> tuple[str, ...]:
    return ("common_seed",) if paired_scores(pair)[0] else ()


def _seed_facts(pair: Pair) -> tuple[str, ...]:
    a, b = paired_by(pair)
    return ("common_seed",) if a & b else ()


_SCORED: Final = (branch("paired", "score", "replicate"),)
_COMMON: Final = (branch("paired", "score", "replicate", "common_seed"),)
RULES: Final = (
    Rule(
        "paired-difference",
        6,
        Level.INFO,
        Scope.PAIR,
        _COMMON,
        judge_paired_difference,
        blames_runs=False,
        facts=_facts,
    ),
    Rule("too-few-seeds", 6, Level.WARN, Scope.PAIR, _COMMON, judge_too_few_seeds, blames_runs=False, facts=_facts),
    Rule(
        "no-common-seed",
        6,
        Level.FAIL,
        Scope.PAIR,
        (*_SCORED, branch("seeds", "replicate")),
        judge_no_common_seed,
    ),
    Rule(
        "unpaired-runs",
        6,
        Level.WARN,
        Scope.PAIR,
        (*_COMMON, branch("seeds", "replicate", "common_seed")),
        judge_unpaired_runs,
        blames_runs=False,
        facts=_seed_facts,
    ),
)

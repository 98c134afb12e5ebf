"""Check 2, what two arms must share beside their configuration: the code, and the learning rate at each update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pth_tracker.design.comparison import Cell, Member, Pair, differing_keys, keys_of, side_members
from pth_tracker.model import Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats
from pth_tracker.stats.seams import LR_CHANGE, lr_difference
from pth_tracker.values import Maybe, listed

SHOWN: Final = 6
"""Fields or commits that a detail names at most."""
LEAST_RATES: Final = 10
"""Common updates below which two schedules are not compared."""


def judge_code_differs(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms were run with different code.

    What it does: compares the commits, and the framework's release, that the runs of both arms recorded.

    Why it matters: whatever changed between the two may be what made the difference.

    How it decides: the arms have no commit (or release) in common. A warning where each arm has a single one; where
    an arm's own runs differ, commits change from launch to launch, are not what sets the arms apart, and are only
    noted.

    Example: all ``grpo`` runs at commit 1f2e3d4, all ``tis`` runs at 5a6b7c8.

    Remedy: run both arms from one commit.

    Configuration: none.

    References: none.
    """
    for name, read in (("commit", _commits), ("release", _releases)):
        a, b = (list(dict.fromkeys(text for m in side_members(pair, place) for text in read(m))) for place in (0, 1))
        if not a or not b or set(a) & set(b):
            continue
        single = len(a) == len(b) == 1
        yield Finding(
            2,
            Level.WARN if single else Level.INFO,
            f"{pair.a} and {pair.b} were run with different code"
            + ("" if single else f": the {name} changes from launch to launch"),
            f"{name} {listed(a, SHOWN)} against {listed(b, SHOWN)}.",
            {"kind": name, "a": a, "b": b},
            basis=pair.comparison.basis,
            runs=keys_of(pair.members),
            arms=(pair.a, pair.b),
            remedy=f"run both arms from one {name}" if single else "",
        )


def _commits(member: Member) -> list[str]:
    return [part.commit for part in member.run.parts if part.commit]


def _releases(member: Member) -> list[str]:
    return [f"{member.run.framework} {member.run.version}"] if member.run.version else []


def _code_facts(pair: Pair) -> tuple[str, ...]:
    known = [[text for m in side_members(pair, place) for text in (*_commits(m), *_releases(m))] for place in (0, 1)]
    return ("code_versions",) if all(known) else ()


def _rates(pair: Pair) -> Iterator[tuple[Member, Member, Any, Any, Any]]:
    """For each task the longest runs of both arms with their learning rates at common updates, at full precision."""
    for cells in pair.cells:
        sides = [_longest(cell) for cell in cells]
        if sides[0] is None or sides[1] is None:
            continue
        (left, a), (right, b) = sides[0], sides[1]
        step, at_a, at_b = np.intersect1d(a.step, b.step, assume_unique=True, return_indices=True)
        if len(step) >= LEAST_RATES:
            yield left, right, step, a.values[at_a], b.values[at_b]


def _longest(cell: Cell) -> tuple[Member, Any] | None:
    held = [
        (member, member.result.quantities["lr"])
        for member in cell.members
        if member.result and "lr" in member.result.quantities and member.result.quantities["lr"].decimals is None
    ]
    return max(held, key=lambda one: one[1].last, default=None)


def _rate_facts(pair: Pair) -> tuple[str, ...]:
    return ("exact_rates",) if any(True for _ in _rates(pair)) else ()


def judge_schedule_differs(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms trained with different learning rates at the same update.

    What it does: compares the logged learning rates of the arms' longest runs, update by update.

    Why it matters: a schedule that ends with the run gives a longer run another learning rate at every update; to cut
    the curves to a common length does not make them comparable.

    How it decides: the rates differ by more than 5% on more than 5% of at least 10 common updates. Values printed
    with three decimals are never judged, and a learning rate that is meant to vary is no finding; where nobody
    declared the arms, one that differs by the factor of its own setting throughout is what sets them apart.

    Example: a cosine schedule over 300 against one over 700 updates: a factor of 7.4 at update 300.

    Remedy: give both arms one number of total updates and one schedule.

    Configuration: ``vary`` in the design, for a learning rate that is the treatment.

    References: none.
    """
    if any(_names_rate(key) for key in pair.comparison.in_force.vary):
        return
    for left, right, step, a, b in _rates(pair):
        finite = np.isfinite(a) & np.isfinite(b)
        if finite.sum() < LEAST_RATES:
            continue
        share, factor = lr_difference(a[finite], b[finite])
        if share <= LR_CHANGE or (not pair.comparison.arms_declared and _by_setting(left, right, a[finite], b[finite])):
            continue
        last = int(np.flatnonzero(finite)[-1])
        shown = f"up to a factor of {factor:.2g}" if math.isfinite(factor) else "one of them is 0"
        yield Finding(
            2,
            Level.WARN,
            f"{pair.subject}: the learning rates differ at {share:.0%} of the updates, {shown}",
            f"{left.run.label} against {right.run.label}: {a[last]:.3g} against {b[last]:.3g} at update "
            f"{int(step[last])}.",
            {"share": share, "factor": factor, "updates": int(finite.sum()), "last": [float(a[last]), float(b[last])]},
            basis=pair.comparison.basis,
            runs=keys_of(pair.members),
            blames=keys_of(side_members(pair, 0)),
            arms=(pair.a, pair.b),
            remedy="give both arms one number of total updates and one schedule",
        )
        return


def _by_setting(left: Member, right: Member, a: Floats, b: Floats) -> bool:
    """Whether the rates ``(n,)`` of two runs differ, up to 5% of the updates, by the factor of a setting of theirs."""
    for key in differing_keys([left.run.config, right.run.config]):
        own, other = _positive(left.run.get(key)), _positive(right.run.get(key))
        if own is None or other is None or not _names_rate(key):
            continue
        warm = (a != 0) | (b != 0)  # a schedule that starts at 0 says nothing there
        with np.errstate(all="ignore"):
            off = ~(np.abs(a / b * (other / own) - 1) <= LR_CHANGE)
        if np.any(warm) and float(np.mean(off[warm])) <= LR_CHANGE:
            return True
    return False


def _positive(value: Maybe) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < math.inf else None


def _names_rate(key: str) -> bool:
    leaf = key.rsplit(".", 1)[-1].lower()
    return "learning_rate" in leaf or "lr" in leaf.split("_")


RULES: Final = (
    Rule(
        "code-differs",
        2,
        Level.WARN,
        Scope.PAIR,
        (branch("recorded", "code_versions"),),
        judge_code_differs,
        blames_runs=False,
        facts=_code_facts,
    ),
    Rule(
        "schedule-differs",
        2,
        Level.WARN,
        Scope.PAIR,
        (branch("logged", "lr", "exact_rates"),),
        judge_schedule_differs,
        facts=_rate_facts,
    ),
)

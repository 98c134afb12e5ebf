"""Check 2, configuration: what is meant to vary varies, and what is meant to be fixed is the same."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pth_tracker.design.comparison import Cell, Comparison, Member, Pair, differing_keys, shown_values
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.values import MISSING, is_secret, listed, same_value, value_key

FEW_FIELDS: Final = 3
"""Inferred arms of single runs are compared only where they differ in at most so many fields."""
SHOWN: Final = 6
"""Fields that a title or detail names at most."""


def judge_vary_not_applied(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """A field that is meant to vary is the same in all arms.

    What it does: looks up every field of ``vary`` in the resolved configuration of every run.

    Why it matters: a treatment that never reached the code makes two arms one, and their difference noise.

    How it decides: the field has one value, or is absent, in all runs of all arms; or it has several, and the same
    ones in every arm (the stress and task keys apart, which are crossed with the arms by design).

    Example: ``--vary algorithm.rollout_correction.rollout_is`` where all runs resolve to null.

    A key that no run has blames none.

    Remedy: look for the override in the launch script; the key may be misspelt or overwritten later.

    Configuration: ``vary`` in the design, ``--vary``.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    members = [member for group in comparison.arms.values() for member in group if member.run.config]
    treated = tuple(member.key for member in members if member.arm != comparison.in_force.baseline)
    arms = {member.arm for member in members}
    for key in comparison.in_force.vary:
        values = {value_key(member.run.get(key)): member.run.get(key) for member in members}
        held = {frozenset(value_key(member.run.get(key)) for member in members if member.arm == arm) for arm in arms}
        crossed = key in comparison.in_force.task or key == comparison.stress_key
        if len(held) > 1 or (crossed and len(values) > 1):
            continue
        absent = list(values.values()) == [MISSING]
        near = difflib.get_close_matches(key, sorted({k for m in members for k in m.run.config}), n=1) if absent else []
        state = "is in no run's configuration" if absent else f"is {shown_field(key, members)} in every arm"
        yield Finding(
            2,
            Level.FAIL,
            f"{key} is meant to vary and {state}",
            _told(members, comparison, absent, near),
            {"key": key, "value": "absent" if absent else shown_field(key, members)},
            basis=Basis.DECLARED,
            runs=tuple(member.key for member in members),
            blames=() if absent else treated,
            arms=tuple(comparison.arms),
            remedy=f"look for {key} in the launch: it may be misspelt, or overwritten later",
        )


def _told(members: Sequence[Member], comparison: Comparison, absent: bool, near: Sequence[str]) -> str:
    count, arms = len(members), ", ".join(comparison.arms)
    if not absent:
        return f"All {count} runs of {arms} resolve to it: the treatment did not reach them."
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"None of the {count} runs of {arms} has it: it is misspelt, or the treatment reached no run.{hint}"


def shown_field(key: str, members: Sequence[Member]) -> str:
    """The members' distinct values of ``key`` as text, redacted where it is a secret."""
    return "(redacted)" if is_secret(key, members[0].reading.framework.secrets) else shown_values(members, key)


def constant_values(members: Sequence[Member], keys: Sequence[str]) -> dict[str, Any]:
    """The keys on which all members agree, with that value."""
    return {
        key: members[0].run.get(key)
        for key in keys
        if all(same_value(members[0].run.get(key), member.run.get(key)) for member in members[1:])
    }


def arm_differences(pair: Pair) -> tuple[list[str], list[str]]:
    """The fields that set the pair's arms apart: those of the experiment, and the seed fields, each sorted."""
    memo = pair.comparison.memo.setdefault("arm_differences", {})
    key = (pair.a, pair.b, pair.stress)
    if key not in memo:
        memo[key] = _arm_differences(pair)
    found: tuple[list[str], list[str]] = memo[key]
    return found


def _arm_differences(pair: Pair) -> tuple[list[str], list[str]]:
    comparison = pair.comparison
    sides = [[m for cells in pair.cells for m in cells[place].members if m.run.config] for place in (0, 1)]
    if not all(sides):
        return [], []
    keys = [
        key
        for key in comparison.compared_keys([*sides[0], *sides[1]])
        if key not in comparison.in_force.task and key != comparison.stress_key
    ]
    left, right = (constant_values(side, keys) for side in sides)
    apart = [
        key
        for key in keys
        if key in left
        and key in right
        and not same_value(left[key], right[key])
        and not _own_name(left[key], sides[0])
        and not _own_name(right[key], sides[1])
    ]
    seeds = [key for key in apart if sides[0][0].reading.is_seed(key)]
    several = all(len(side) > 1 for side in sides)
    replicate = set(comparison.design.replicate)
    fields = [key for key in apart if key not in seeds and key not in replicate]
    return fields, [key for key in seeds if several and key not in replicate]


def _own_name(value: Any, members: Sequence[Member]) -> bool:
    return isinstance(value, str) and any(value in (member.run.name, member.key) for member in members)


def judge_undeclared_difference(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms differ in a field that is not meant to vary.

    What it does: compares the resolved configurations of the arms, field by field.

    Why it matters: whatever else differs between the arms may be what made the difference.

    How it decides: the field is constant within each arm and differs between them; it is not in ``vary`` or
    ``replicate``, and is no bookkeeping, derived or soft field, task or stress key. Without ``vary`` nothing was said
    to be fixed, and the differences are listed for information, but for the one field by whose values inferred arms are
    called; inferred arms are compared only where each has two runs that count, or where they differ in at most three
    fields.

    Example: ``actor.optim.lr`` 1e-6 in one arm and 2e-6 in the other.

    Remedy: run the arms with one value, or declare the field in ``vary`` and say so in the claim.

    Configuration: ``vary`` and ``replicate`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    comparison = pair.comparison
    fields, seeds = arm_differences(pair)
    declared = bool(comparison.in_force.vary)
    fields = [key for key in fields if key not in comparison.in_force.vary]
    if not comparison.arms_declared and len(fields) > FEW_FIELDS:
        if any(len(pair.side(first)) < 2 for first in (True, False)):
            return
    if not declared and len(fields) == 1 and _names_arms(pair, fields[0]):
        fields = []
    for kind, keys in (("field", fields), ("seed", seeds)):
        if not keys:
            continue
        shown = [f"{key}: {_values(pair, key, True)} against {_values(pair, key, False)}" for key in keys[:SHOWN]]
        more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
        named = listed(keys, 2)
        yield Finding(
            2,
            Level.WARN if declared else Level.INFO,
            f"{pair.a} and {pair.b} differ in {named}",
            "; ".join(shown) + more + ("; not declared to vary." if declared else "."),
            {"kind": kind, "fields": keys},
            basis=Basis.DECLARED if declared and comparison.arms_declared else Basis.INFERRED,
            runs=tuple(member.key for member in pair.members),
            arms=(pair.a, pair.b),
            remedy="run both arms with one value, or declare the field with --vary" if declared else "",
        )


def _names_arms(pair: Pair, key: str) -> bool:
    """Whether inferred arms are called by this field's values (``lr=1e-06``), which then say how they differ."""
    leaf = key.rsplit(".", 1)[-1]
    return not pair.comparison.arms_declared and all(
        arm == f"{leaf}={_values(pair, key, arm == pair.a)}" for arm in (pair.a, pair.b)
    )


def _values(pair: Pair, key: str, first: bool) -> str:
    members = [member for cells in pair.cells for member in cells[0 if first else 1].members]
    return shown_field(key, members)


def judge_drift_within_arm(cell: Cell, met: frozenset[str]) -> Iterator[Finding]:
    """Runs of one arm differ in a field that is neither their seed nor bookkeeping.

    What it does: compares the resolved configurations of the runs within a cell.

    Why it matters: an arm whose runs differ is several settings under one name, and its spread is not that of the
    seed.

    How it decides: a field other than replicate, seed, bookkeeping, derived, soft, task and stress ones has several
    values in one cell. The runs with the rarer value are blamed, or all where no value is the common one.

    Example: one of three ``grpo`` runs has ``kl_loss_coef`` 0.01.

    Remedy: run it again with the arm's value, or make it an arm of its own.

    Configuration: ``replicate`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    comparison = cell.comparison
    members = [member for member in cell.members if member.run.config]
    if len(members) < 2:
        return
    compared = set(comparison.compared_keys(members))
    aside = {*comparison.in_force.task, *comparison.in_force.replicate, comparison.stress_key}
    fields: list[str] = []
    blamed: dict[str, None] = {}
    for key in differing_keys([member.run.config for member in members]):
        reading = members[0].reading
        if key not in compared or key in aside or reading.is_seed(key):
            continue
        if all(_own_name(member.run.get(key), [member]) for member in members):
            continue
        fields.append(key)
        counts = Counter(value_key(member.run.get(key)) for member in members)
        (common, most), *rest = counts.most_common()
        tied = bool(rest) and rest[0][1] == most
        rare = [member for member in members if tied or value_key(member.run.get(key)) != common]
        blamed |= dict.fromkeys(member.key for member in rare)
    if not fields:
        return
    shown = [f"{key}: {shown_field(key, members)}" for key in fields[:SHOWN]]
    more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    named = listed(fields, 2)
    yield Finding(
        2,
        Level.WARN,
        f"the runs of {cell.subject} differ in {named}",
        "; ".join(shown) + more + ".",
        {"fields": fields},
        basis=comparison.basis,
        runs=tuple(member.key for member in members),
        blames=tuple(blamed),
        arms=(cell.key.arm,),
        remedy="run the odd ones again with the arm's value, or make them an arm of their own",
    )


def _vary_facts(comparison: Comparison) -> tuple[str, ...]:
    held = [any(member.run.config for member in members) for members in comparison.arms.values()]
    return ("arm_configs",) if held and all(held) else ()


def _drift_facts(cell: Cell) -> tuple[str, ...]:
    return ("two_configs",) if sum(bool(member.run.config) for member in cell.members) > 1 else ()


RULES: Final = (
    Rule(
        "vary-not-applied",
        2,
        Level.FAIL,
        Scope.PROJECT,
        (branch("declared", "declared_vary", "config", "comparable_pairs", "arm_configs"),),
        judge_vary_not_applied,
        facts=_vary_facts,
    ),
    Rule(
        "undeclared-difference",
        2,
        Level.WARN,
        Scope.PAIR,
        (branch("resolved", "config"),),
        judge_undeclared_difference,
        blames_runs=False,
    ),
    Rule(
        "drift-within-arm",
        2,
        Level.WARN,
        Scope.CELL,
        (branch("resolved", "config", "two_runs", "two_configs"),),
        judge_drift_within_arm,
        facts=_drift_facts,
    ),
)

"""What claims expect, tested on runs: held, not held, or not testable and why."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.paired_results import (
    PairedResult,
    adjust,
    compare_scores,
    paired_results,
    paired_scores,
    shown_interval,
    shown_unit,
)
from pth_tracker.checks.stability import judge_curve
from pth_tracker.design.comparison import Cell, CellKey, Comparison, Member, Pair, shown_values
from pth_tracker.design.expectations import Better, NoFinding, OfQuantity, OfValue, OnlyDifferIn, Stable
from pth_tracker.model import Coverage, Finding, Level, Outcome
from pth_tracker.values import Value, listed, same_value, show_value, value_key

NAMED: Final = 6
"""Runs or fields that a sentence names at most."""
_OVER_ALL_VALUES: Final = ("last", "mean", "min", "max")
"""Reductions that a value which is not finite leaves without meaning."""


@dataclass(frozen=True)
class Tested:
    """What testing one expectation gave."""

    holds: bool | None
    """None: it cannot be tested."""
    why: str
    """The numbers, or what is missing; whole sentences."""
    runs: tuple[Member, ...] = ()
    """The runs it rests on."""
    evidence: Mapping[str, Any] = field(default_factory=dict)


def try_expectation(
    expect: object, comparison: Comparison, findings: Sequence[Finding], coverage: Sequence[Coverage]
) -> Tested:
    """What testing ``expect`` on the runs gives; findings and coverage are those settled."""
    if isinstance(expect, Better):
        return _better(expect, comparison)
    if isinstance(expect, Stable):
        return _stable(expect, comparison)
    if isinstance(expect, OnlyDifferIn):
        return _only_differ_in(expect, comparison)
    if isinstance(expect, OfQuantity):
        return _quantity(expect, comparison)
    if isinstance(expect, OfValue):
        return _value(expect, comparison)
    assert isinstance(expect, NoFinding)
    return _no_finding(expect, comparison, findings, coverage)


def select_members(comparison: Comparison, arms: Sequence[str], conditions: Mapping[str, Value]) -> tuple[Member, ...]:
    """The members of these arms (none: of all arms) whose configuration has these values."""
    return tuple(
        member
        for member in comparison.members
        if (member.arm in arms if arms else member.arm)
        and all(same_value(member.run.get(key), value) for key, value in conditions.items())
    )


def _nobody(arms: Sequence[str], conditions: Mapping[str, Value]) -> str:
    having = " and ".join(f"{key}={show_value(value)}" for key, value in conditions.items())
    return f"no run of {', '.join(arms) or 'any arm'} that counts" + (f" has {having}" if having else "")


def _labels(members: Iterable[Member]) -> str:
    labels = sorted(member.run.label for member in members)
    return listed(labels, NAMED)


def _both(results: Sequence[bool | None]) -> bool | None:
    """False where anything does not hold, else None where anything is unknown."""
    if False in results:
        return False
    return None if None in results or not results else True


def _pairs(expect: Better, comparison: Comparison) -> list[tuple[Pair, tuple[Member, ...]]]:
    """A pair for each stress value that both arms have, as claims select it, the better arm first."""
    members = select_members(comparison, expect.named_arms, expect.conditions)
    cells: dict[CellKey, list[Member]] = {}
    for member in members:
        cells.setdefault(member.cell, []).append(member)
    found: dict[str, list[tuple[Cell, Cell]]] = {}
    for key, own in cells.items():
        other = CellKey(key.framework, key.task, key.stress, expect.than)
        if key.arm == expect.better and other in cells:
            pair = (Cell(key, tuple(own), comparison), Cell(other, tuple(cells[other]), comparison))
            found.setdefault(key.stress, []).append(pair)
    pairs = [Pair(expect.better, expect.than, s, tuple(own), comparison) for s, own in found.items()]
    return [(pair, (*pair.side(True), *pair.side(False))) for pair in pairs]


def _compared(pair: Pair) -> PairedResult | None:
    """The comparison of the selected runs, p adjusted over the family of claims."""
    raw = compare_scores(*paired_scores(pair), pair.comparison.design.tie_margin)
    if raw is None:
        return None
    others = dict(paired_results(pair.comparison))
    others.pop((pair.b, pair.a, pair.stress), None)
    own = (pair.a, pair.b, pair.stress)
    return adjust({**others, own: raw}, pair.comparison.claimed)[own]


def _better(expect: Better, comparison: Comparison) -> Tested:
    pairs = _pairs(expect, comparison)
    if not pairs:
        return Tested(None, f"{_nobody(expect.named_arms, expect.conditions)}, in both arms at one setting and task")
    results, whys = [], []
    evidence: dict[str, Any] = {}
    for pair, _ in pairs:
        compared = _compared(pair)
        if compared is None:
            holds, why = None, "the arms have no scored seed in common"
        elif expect.every_seed:
            holds, why = _on_every_seed(expect, pair, compared)
        else:
            holds, why = _on_average(expect, pair, compared)
        if compared is not None:
            evidence[pair.stress or "all"] = {
                "differences": dict(zip(compared.seeds, compared.differences.tolist())),
                "mean": compared.interval.mean,
                "interval": [compared.interval.low, compared.interval.high],
                "adjusted_p": compared.adjusted_p,
                "verdict": str(compared.verdict),
            }
        results.append(holds)
        whys.append(f"{pair.subject}: {why}.")
    runs = {member.key: member for _, members in pairs for member in members}
    return Tested(_both(results), " ".join(whys), tuple(runs.values()), {"comparisons": evidence})


def _on_every_seed(expect: Better, pair: Pair, compared: PairedResult) -> tuple[bool | None, str]:
    scale, unit = shown_unit(pair)
    ahead = _ahead(pair, compared)
    least = expect.at_least or 0.0
    failing = [
        seed
        for seed, d in zip(compared.seeds, ahead)
        if d <= 0 or (d < least and not math.isclose(d, least, rel_tol=stats.RELATIVE_TOLERANCE))
    ]
    by_seed = ", ".join(f"{seed}: {d * scale:+.2f}" for seed, d in zip(compared.seeds, compared.differences))
    shown = f"by seed {by_seed}{unit}"
    if failing:
        return False, f"{shown}; not on {', '.join(failing)}"
    seeds = {member.pair_key for member in pair.members}
    missing = sorted(str(seed) for seed in seeds - set(compared.seeds))
    if missing:
        return None, f"{shown}; of the seeds {', '.join(missing)} one arm has no score that counts"
    return True, shown


def _on_average(expect: Better, pair: Pair, compared: PairedResult) -> tuple[bool | None, str]:
    scale, unit = shown_unit(pair)
    mean = float(np.mean(_ahead(pair, compared)))
    span, n = shown_interval(compared.interval, scale), len(compared.seeds)
    shown = f"{compared.interval.mean * scale:+.2f}{unit} over {n} common seed{'s' if n != 1 else ''}, {span}"
    if mean <= 0:
        return False, f"{shown}; {pair.a} is not ahead"
    if expect.at_least is not None and mean < expect.at_least:
        return False, f"{shown}; less than {expect.at_least * scale:g}{unit}"
    if compared.verdict is stats.Verdict.TIE:
        return False, f"{shown}; a tie within the declared margin"
    if compared.verdict is stats.Verdict.BETTER:
        return True, shown
    return None, f"{shown}; undecided, run more common seeds"


def _ahead(pair: Pair, compared: PairedResult) -> np.ndarray[Any, np.dtype[np.float64]]:
    """By how much the first arm is ahead on each seed, ``(n,)``, whichever direction is better."""
    return compared.differences if pair.comparison.in_force.higher_is_better else -compared.differences


def _stable(expect: Stable, comparison: Comparison) -> Tested:
    members = select_members(comparison, expect.named_arms, expect.conditions)
    higher = comparison.in_force.higher_is_better
    found = {
        member.key: judge_curve(member.result.score_values, member.result.score_decimals, higher, expect.max_drop)
        for member in members
        if member.result and len(member.result.score_values)
    }
    collapsed = [member for member in members if member.key in found and found[member.key].collapsed]
    counted = [member for member in members if member.counted or (member.key in found and found[member.key].collapsed)]
    if not counted:
        return Tested(None, f"{_nobody(expect.named_arms, expect.conditions)}.")
    unknown = [member for member in counted if member.key not in found or not found[member.key].judged]
    weak = [member for member in counted if member.key in found and found[member.key].weak]
    named = {
        member.run.label: {"peak": curve.peak, "final": curve.final, "collapsed": curve.collapsed}
        for member in counted
        if (curve := found.get(member.key)) is not None
    }
    evidence = {"runs": dict(list(named.items())[: 2 * NAMED]), "collapsed": len(collapsed), "of": len(counted)}
    limit = f" by {expect.max_drop:g} or more" if expect.max_drop is not None else ""
    if collapsed:
        why = f"{len(collapsed)} of {len(counted)} runs fell{limit} and stayed there: {_labels(collapsed)}."
        return Tested(False, why, tuple(counted), evidence)
    if unknown:
        why = f"fewer than 5 evaluations are logged of {_labels(unknown)}."
        return Tested(None, why, tuple(counted), evidence)
    odds = stats.clopper_pearson(0, len(counted))
    why = f"0 of {len(counted)} runs collapsed, which still allows a rate of {odds.still_allowed:.0%}."
    if weak:
        why += f" Weak evidence: fewer than 10 evaluations of {_labels(weak)}."
    return Tested(True, why, tuple(counted), evidence)


def _only_differ_in(expect: OnlyDifferIn, comparison: Comparison) -> Tested:
    selected = select_members(comparison, expect.arms, expect.conditions)
    arms = expect.arms or tuple(comparison.arms)
    by_arm = {arm: [m for m in selected if m.arm == arm and m.run.config] for arm in arms}
    bare = [arm for arm, members in by_arm.items() if not members]
    if bare or len(by_arm) < 2:
        return Tested(None, f"the configuration is logged by {_nobody(bare or arms, expect.conditions)}.")
    members = [m for own in by_arm.values() for m in own]
    apart = _fields_apart(comparison, by_arm, members)
    named = {key for key in apart if any(_is_of(key, name) for name in expect.only_differ_in)}
    others = [key for key in apart if key not in named]
    evidence = {"differ_in": apart[: 2 * NAMED], "others": others[: 2 * NAMED]}
    if others:
        shown = "; ".join(
            f"{key}: " + " against ".join(shown_values(own, key) for own in by_arm.values()) for key in others[:NAMED]
        )
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        return Tested(False, f"they differ in {shown}{more} as well.", tuple(members), evidence)
    for name in expect.only_differ_in:
        if any(_is_of(key, name) for key in named):
            continue
        if not any(_is_of(key, name) for member in members for key in member.run.config):
            return Tested(None, f"no run's configuration has {name}.", tuple(members), evidence)
        return Tested(False, f"{name} is the same in {', '.join(by_arm)}.", tuple(members), evidence)
    return Tested(True, f"{', '.join(by_arm)} differ in {', '.join(sorted(named))} alone.", tuple(members), evidence)


def _is_of(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.") or fnmatch.fnmatchcase(key, name)


def _fields_apart(comparison: Comparison, by_arm: Mapping[str, list[Member]], members: list[Member]) -> list[str]:
    """The fields whose values are not the same in all arms; of seed fields, those that are constant in each."""
    aside = {*comparison.in_force.task, *comparison.design.replicate, comparison.stress_key}
    found = []
    for key in comparison.compared_keys(members):
        if key in aside or any(m.run.get(key) in (m.run.name, m.key) for m in members):
            continue
        values = [{value_key(m.run.get(key)) for m in own} for own in by_arm.values()]
        if all(own == values[0] for own in values):
            continue
        seed = members[0].reading.is_seed(key)
        if not seed or all(len(own) == 1 and len(group) > 1 for own, group in zip(values, by_arm.values())):
            found.append(key)
    return found


def _bounded(expect: OfQuantity | OfValue, values: Sequence[tuple[Member, float]], what: str) -> Tested:
    """Whether every value, or their mean, lies within the bounds."""
    runs = tuple(member for member, _ in values)
    numbers = [value for _, value in values]
    evidence = {"values": {member.run.label: value for member, value in values[: 2 * NAMED]}}
    if expect.over == "mean":
        mean = float(np.mean(numbers))
        why = f"{what} is {mean:.4g} on average over {len(values)} runs; {expect.bounds} is claimed."
        return Tested(expect.holds(mean), why, runs, {**evidence, "mean": mean})
    outside = [member for member, value in values if not expect.holds(value)]
    span = f"{min(numbers):.4g} to {max(numbers):.4g}"
    why = f"{what} is {span} over {len(values)} run{'s' if len(values) > 1 else ''}; {expect.bounds} is claimed"
    why += f", which does not hold of {_labels(outside)}." if outside else "."
    return Tested(not outside, why, runs, evidence)


def _quantity(expect: OfQuantity, comparison: Comparison) -> Tested:
    members = [m for m in select_members(comparison, expect.arms, expect.conditions) if m.counted and m.result]
    if not members:
        return Tested(None, f"{_nobody(expect.arms, expect.conditions)}.")
    reduced = [(m, m.result.reduced.get(expect.quantity)) for m in members if m.result]
    missing = [m for m, figures in reduced if figures is None]
    if missing:
        return Tested(None, f"{expect.quantity} is not logged by {_labels(missing)}.", tuple(members))
    values = [
        (m, math.nan if f.nonfinite and expect.reduced in _OVER_ALL_VALUES else float(getattr(f, expect.reduced)))
        for m, f in reduced
        if f is not None
    ]
    return _bounded(expect, values, f"the {expect.reduced} of {expect.quantity}")


def _value(expect: OfValue, comparison: Comparison) -> Tested:
    members = [m for m in select_members(comparison, expect.named_arms, expect.conditions) if m.counted]
    values = [(m, m.score) for m in members if m.score is not None]
    if not values:
        return Tested(None, f"{_nobody(expect.named_arms, expect.conditions)} and is scored.", tuple(members))
    return _bounded(expect, values, f"the score of {expect.value}")


def _no_finding(
    expect: NoFinding, comparison: Comparison, findings: Sequence[Finding], coverage: Sequence[Coverage]
) -> Tested:
    members = select_members(comparison, expect.arms, expect.conditions)
    if not members:
        return Tested(None, f"{_nobody(expect.arms, expect.conditions)}.")
    keys = {m.key for m in members}
    hits = [
        finding
        for finding in findings
        if finding.rule in expect.no_finding
        and not finding.ignored
        and finding.level is not Level.INFO
        and keys.intersection(finding.blames or finding.runs)
    ]
    if hits:
        why = " ".join(f"{finding.rule}: {finding.title}." for finding in hits[:NAMED])
        return Tested(False, why, members, {"found": sorted({finding.rule for finding in hits})})
    for rule in expect.no_finding:
        judged = {
            key for one in coverage if one.rule == rule and one.outcome is not Outcome.NOT_JUDGED for key in one.runs
        }
        unknown = [m for m in members if m.key not in judged]
        if unknown:
            return Tested(None, f"{rule} could not judge {_labels(unknown)}.", members)
    return Tested(True, f"{', '.join(expect.no_finding)} found nothing on {len(members)} runs.", members)

"""The reduce step: every rule on every subject, over all examinations, with the coverage of what could be judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pth_tracker.checks import run_rules, stamp
from pth_tracker.checks.claims import ClaimView
from pth_tracker.design.comparison import Cell, Comparison, Member, Pair
from pth_tracker.model import FACTS, Coverage, Finding, NotJudged, Outcome, Rule, Scope
from pth_tracker.vocabulary.load import Vocabulary


@dataclass
class Judged:
    """What judging gathers before it is settled."""

    findings: list[Finding] = field(default_factory=list)
    not_judged: list[NotJudged] = field(default_factory=list)
    coverage: list[Coverage] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    """Keys of the runs that any rule judged."""


def compare(rules: Sequence[Rule], vocabulary: Vocabulary, comparison: Comparison) -> Judged:
    """Every rule judged where its needs are met, and named as not judged where they are not."""
    judged = Judged()
    _judge_runs(rules, vocabulary, comparison, judged)
    _judge_wide(rules, vocabulary, comparison, judged)
    return judged


def judge_claims(
    rules: Sequence[Rule],
    comparison: Comparison,
    findings: Sequence[Finding],
    coverage: Sequence[Coverage],
) -> Iterator[tuple[Coverage, NotJudged | None, list[Finding]]]:
    """What the rules of claims say of each claim of the design, given everything else as settled.

    One entry a rule and claim: its coverage, why it could not be tested, and its findings as yet unsettled.
    """
    views = [ClaimView(claim, comparison, tuple(findings), tuple(coverage)) for claim in comparison.design.claims]
    for rule in (rule for rule in rules if rule.scope is Scope.CLAIM):
        judged = Judged()
        if not views:
            _not_judged(judged, rule, "project", ("claims",), FACTS["claims"], [m.key for m in comparison.members])
            yield judged.coverage[0], judged.not_judged[0], []
        for view in views:
            lacking = rule.needs[0].missing(rule.facts(view))
            if lacking:
                missing = tuple("|".join(group) for group in lacking)
                _not_judged(judged, rule, view.subject, missing, view.tested.why, view.concerned)
                yield judged.coverage[-1], judged.not_judged[-1], []
                continue
            met = rule.needs[0].name
            covered = Coverage(rule.slug, rule.check, view.subject, Outcome.PASSED, view.concerned, (met,))
            yield covered, None, stamp(rule, rule.judge(view, frozenset({met})))


def _judge_runs(rules: Sequence[Rule], vocabulary: Vocabulary, comparison: Comparison, judged: Judged) -> None:
    """Takes over what examination judged run by run."""
    by_slug = {rule.slug: rule for rule in run_rules(rule.slug for rule in rules)}
    covered: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    lacking: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for member in comparison.members:
        if member.result is None:
            continue
        judged.findings += [finding for finding in member.result.findings if finding.rule in by_slug]
        for outcome in member.result.outcomes:
            if outcome.met:
                judged.runs.add(member.key)
                own = (outcome.rule, member.arm or "no arm", outcome.met, outcome.unmet)
                covered.setdefault(own, []).append(member.key)
            else:
                lacking.setdefault((outcome.rule, member.run.framework, outcome.missing), []).append(member.key)
    for (slug, subject, met, unmet), keys in covered.items():
        judged.coverage.append(Coverage(slug, by_slug[slug].check, subject, Outcome.PASSED, tuple(keys), met, unmet))
    for (slug, framework, missing), keys in lacking.items():
        rule = by_slug[slug]
        subject = f"{framework} runs"
        remedy = _remedy(vocabulary, framework, missing)
        judged.not_judged.append(NotJudged(slug, rule.check, subject, missing, remedy, tuple(keys)))
        judged.coverage.append(
            Coverage(slug, rule.check, subject, Outcome.NOT_JUDGED, tuple(keys), (), tuple(b.name for b in rule.needs))
        )


def _judge_wide(rules: Sequence[Rule], vocabulary: Vocabulary, comparison: Comparison, judged: Judged) -> None:
    """Judges the rules of wider scope than one run."""
    subjects: dict[Scope, list[Any]] = {
        Scope.CELL: list(comparison.cells),
        Scope.PAIR: list(comparison.pairs),
        Scope.PROJECT: [comparison],
    }
    for rule in rules:
        if rule.scope in (Scope.RUN, Scope.CLAIM):
            continue
        if not subjects[rule.scope]:
            remedy = comparison.undecided or FACTS["comparable_pairs"]
            _not_judged(judged, rule, "project", ("comparable_pairs",), remedy, [m.key for m in comparison.members])
            continue
        for subject in subjects[rule.scope]:
            members, facts, name = _concerned(subject)
            facts.update(rule.facts(subject))
            lacking = {one.name: _missing(one.groups, subject, members, facts) for one in rule.needs}
            met = tuple(branch for branch, missing in lacking.items() if not missing)
            unmet = tuple(branch for branch, missing in lacking.items() if missing)
            keys = [member.key for member in members]
            if not met:
                missing = tuple("|".join(group) for group in min(lacking.values(), key=len))
                framework = members[0].run.framework if members else "generic"
                _not_judged(judged, rule, name, missing, _remedy(vocabulary, framework, missing), keys)
                continue
            covered = _covered(rule, met, members, facts)
            if not covered:
                _not_judged(judged, rule, name, ("read_runs",), FACTS["read_runs"], keys)
                continue
            keys = covered
            judged.runs |= set(keys)
            judged.findings += stamp(rule, rule.judge(subject, frozenset(met)))
            judged.coverage.append(Coverage(rule.slug, rule.check, name, Outcome.PASSED, tuple(keys), met, unmet))


def _not_judged(
    judged: Judged, rule: Rule, subject: str, missing: tuple[str, ...], remedy: str, keys: Sequence[str]
) -> None:
    judged.not_judged.append(NotJudged(rule.slug, rule.check, subject, missing, remedy, tuple(keys)))
    unmet = tuple(branch.name for branch in rule.needs)
    judged.coverage.append(Coverage(rule.slug, rule.check, subject, Outcome.NOT_JUDGED, tuple(keys), (), unmet))


def _concerned(subject: Cell | Pair | Comparison) -> tuple[tuple[Member, ...], set[str], str]:
    """The members that a subject concerns, the facts it offers beside theirs, and its name."""
    facts: set[str] = set()
    if isinstance(subject, Cell):
        members, name, comparison = subject.members, subject.subject, subject.comparison
        if len([member for member in subject.members if member.result]) > 1:
            facts.add("two_runs")
    elif isinstance(subject, Pair):
        members, name, comparison = subject.members, subject.subject, subject.comparison
    else:
        members, name, comparison = subject.members, "project", subject
    if comparison.pairs:
        facts.add("comparable_pairs")
    if comparison.in_force.vary:
        facts.add("declared_vary")
    return members, facts, name


def _missing(
    groups: tuple[tuple[str, ...], ...], subject: object, members: Sequence[Member], facts: set[str]
) -> tuple[tuple[str, ...], ...]:
    """The groups that no member offers; for a pair, that some arm offers through none of its members."""
    sides = (
        [[m for m in members if m.arm == arm] for arm in (subject.a, subject.b)]
        if isinstance(subject, Pair)
        else [members]
    )
    offered = [
        [_offers(member) | facts for member in side if member.result is not None] or [set(facts)] for side in sides
    ]
    best = [max(side, key=lambda have: sum(bool(have.intersection(group)) for group in groups)) for side in offered]
    return tuple(group for group in groups if not all(have.intersection(group) for have in best))


def _offers(member: Member) -> set[str]:
    offered = set(member.result.available) if member.result else set()
    if member.pair_key is not None:
        offered.add("replicate")
    if not member.counted or member.score is None or not math.isfinite(member.score):
        offered.discard("score")
    return offered


def _covered(rule: Rule, met: Sequence[str], members: Sequence[Member], facts: set[str]) -> list[str]:
    """Keys of the members on which a met branch stands: one that offers nothing that the rule needs is not judged."""
    used = [one for one in rule.needs if one.name in met]
    return [m.key for m in members if m.result and any(not one.missing(_offers(m) | facts) for one in used)]


def _remedy(vocabulary: Vocabulary, framework: str, missing: Sequence[str]) -> str:
    advice: dict[str, None] = {}
    for group in missing:
        first = group.split("|")[0]
        text = FACTS.get(first) or vocabulary.remedy(framework, first)
        if text:
            advice[text] = None
    return "; ".join(advice)

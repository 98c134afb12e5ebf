"""The one place that turns findings into what counts: levels by basis, the user's settings, explanations, ignores."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pth_tracker.checks import all_rules, find_rule
from pth_tracker.design.comparison import Comparison
from pth_tracker.design.expectations import NoFinding
from pth_tracker.design.schema import Design
from pth_tracker.errors import UsageError
from pth_tracker.model import Basis, Finding, Level, Rule
from pth_tracker.runs import Run

EVIDENCE_RUNS = 12
"""Runs of one merged finding whose own evidence is kept."""
OF_REPLICATES = frozenset({"repeated-attempts", "no-common-seed", "too-few-seeds", "unpaired-runs", "pooled-ordering"})
"""Rules whose findings say how many replicates an arm has, and which."""


def selected_rules(design: Design | None, select: Sequence[str], ignore: Sequence[str]) -> tuple[Rule, ...]:
    """The rules to judge: those selected (none: all) without those ignored or switched off.

    Raises:
        UsageError: a slug is no rule's; a DesignError where the design names it.
    """
    base = design or Design()
    levels = base.rules.levels
    for slug in (*select, *ignore):
        find_rule(slug)
    declared: list[tuple[tuple[str | int, ...], str]] = [(("rules", "levels", slug), slug) for slug in levels]
    declared += [(("ignore", place, "rule"), entry.rule) for place, entry in enumerate(base.ignore)]
    for place, claim in enumerate(base.claims):
        if isinstance(claim.expect, NoFinding):
            declared += [(("claims", place, "expect", "no_finding"), slug) for slug in claim.expect.no_finding]
    for where, slug in declared:
        try:
            find_rule(slug)
        except UsageError as error:
            raise base.error(str(error), *where) from error
    off = {*ignore, *(slug for slug, level in levels.items() if level == "off")}
    return tuple(rule for rule in all_rules() if rule.slug not in off and (not select or rule.slug in select))


def gather(
    findings: Sequence[Finding], comparison: Comparison, labels: Mapping[str, str], design: Design | None = None
) -> list[Finding]:
    """Findings on single runs as one for each arm, where they say the same; the others as they are.

    Those that ``design`` ignores are gathered apart from those that it does not.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for place, finding in enumerate(findings):
        member = comparison.by_key.get(finding.runs[0]) if len(finding.runs) == 1 else None
        if member is None or finding.arms:
            groups[place,] = [finding]
        else:
            reason = _ignored(replace(finding, arms=(member.arm,) if member.arm else ()), comparison, design)
            own = (finding.rule, finding.level, finding.basis, finding.title, finding.tag, member.arm, reason)
            groups.setdefault(own, []).append(finding)
    return [_merged(group, comparison, labels) for group in groups.values()]


def _merged(group: Sequence[Finding], comparison: Comparison, labels: Mapping[str, str]) -> Finding:
    first = group[0]
    members = [comparison.by_key[key] for finding in group for key in finding.runs if key in comparison.by_key]
    arms = first.arms or tuple(dict.fromkeys(member.arm for member in members if member.arm))
    if len(group) == 1:
        return replace(first, arms=arms)
    runs = tuple(dict.fromkeys(key for finding in group for key in finding.runs))
    blames = tuple(dict.fromkeys(key for finding in group for key in finding.blames))
    shown = group[:EVIDENCE_RUNS]
    own, shared = _shared_ending([finding.detail for finding in group])
    lines = [f"{labels.get(finding.runs[0], finding.runs[0])}: {text}" for finding, text in zip(shown, own) if text]
    more = [f"and {len(group) - len(shown)} more runs."] if len(group) > len(shown) and lines else []
    detail = "\n".join([*lines, *more, *([shared] if shared else [])])
    evidence = {labels.get(finding.runs[0], finding.runs[0]): dict(finding.evidence) for finding in shown}
    return replace(first, runs=runs, blames=blames, arms=arms, detail=detail, evidence=evidence)


def _shared_ending(details: Sequence[str]) -> tuple[list[str], str]:
    """Each detail without the sentences that all of them end with, and those sentences."""
    sentences = [detail.split(". ") for detail in details]
    count = 0
    while count < min(map(len, sentences)) and len({one[-1 - count] for one in sentences}) == 1:
        count += 1
    own = [". ".join(one[: len(one) - count]) + ("." if count and len(one) > count else "") for one in sentences]
    return own, ". ".join(sentences[0][len(sentences[0]) - count :]) if count else ""


def apply_policy(findings: Sequence[Finding], comparison: Comparison, design: Design | None) -> list[Finding]:
    """The findings as they count.

    In this order: what is inferred is at most a warning; the design's own levels replace that; findings that the
    design ignores carry its reason; those that another finding explains carry that rule's slug.
    """
    levels = design.rules.levels if design else {}
    settled: list[Finding] = []
    for finding in findings:
        level = finding.level
        if finding.basis is Basis.INFERRED and level is Level.FAIL:
            level = Level.WARN
        if finding.rule in levels:
            level = Level(levels[finding.rule])
        blames = finding.blames if level is not Level.INFO else ()
        settled.append(replace(finding, level=level, blames=blames, ignored=_ignored(finding, comparison, design)))
    return [replace(finding, because_of=_explained(finding, settled, comparison)) for finding in settled]


def _ignored(finding: Finding, comparison: Comparison, design: Design | None) -> str:
    for entry in design.ignore if design else ():
        if entry.rule != finding.rule or not set(finding.arms) <= set(entry.arms or finding.arms):
            continue
        runs = [comparison.by_key[key].run for key in finding.blames or finding.runs if key in comparison.by_key]
        if entry.runs and not (runs and all(_matches(run, entry.runs) for run in runs)):
            continue
        if entry.arms and not finding.arms:
            continue
        return entry.reason
    return ""


def _matches(run: Run, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in (run.name, run.label) for glob in globs)


def _explained(finding: Finding, findings: Sequence[Finding], comparison: Comparison) -> str:
    explains = {rule.slug: rule.explains for rule in all_rules()}
    kind = finding.evidence.get("kind", "")
    for other in findings:
        if other is finding or not other.counts or not other.blames or other.level.rank > finding.level.rank:
            continue  # a warning explains no failure away
        named = explains.get(other.rule, ())
        if (finding.rule in named or f"{finding.rule}:{kind}" in named) and _covers(other, finding, comparison):
            return other.rule
    return ""


def _covers(explaining: Finding, finding: Finding, comparison: Comparison) -> bool:
    """Whether the runs that ``explaining`` blames account for ``finding``.

    A finding on two arms is accounted for as soon as all its runs of one of them are blamed: a comparison is spoilt
    by either side. What counts the replicates of an arm is accounted for where one run at most is not blamed: of seeds
    that all became one, the run of that seed has lost nothing, and is no second replicate either.
    """
    blamed = set(explaining.blames)
    concerned = finding.blames or finding.runs
    left = 1 if finding.rule in OF_REPLICATES else 0
    if len(finding.arms) < 2:
        return bool(blamed.intersection(concerned)) and len(set(concerned) - blamed) <= left
    sides: dict[str, set[str]] = {}
    for key in finding.runs:
        member = comparison.by_key.get(key)
        sides.setdefault(member.arm if member else "", set()).add(key)
    return any(side & blamed and len(side - blamed) <= left for side in sides.values())

"""The checks, in order. A check is a module with its ``RULES`` and the plain functions on which they are thin."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType

from pth_tracker.checks import (
    batches,
    budget,
    claims,
    comparability,
    contradictions,
    data_order,
    differences,
    duplicates,
    loss,
    paired,
    pairing,
    ratio,
    sampler,
    scores,
    seeds,
    stability,
)
from pth_tracker.errors import UsageError
from pth_tracker.model import Finding, Level, Rule, Scope

CHECKS: tuple[ModuleType, ...] = (
    ratio,
    sampler,
    seeds,
    contradictions,
    data_order,
    differences,
    comparability,
    scores,
    duplicates,
    batches,
    loss,
    stability,
    paired,
    pairing,
    budget,
    claims,
)


def all_rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the checks."""
    return tuple(rule for module in CHECKS for rule in module.RULES)


def find_rule(slug: str) -> Rule:
    """The rule of this slug.

    Raises:
        UsageError: there is none; names the closest.
    """
    rules = {rule.slug: rule for rule in all_rules()}
    if slug in rules:
        return rules[slug]
    close = difflib.get_close_matches(slug, rules, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"the rules are {', '.join(rules)}"
    raise UsageError(f"there is no rule {slug!r}; {hint}")


def run_rules(slugs: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of run scope among ``slugs``, in the order of the checks."""
    wanted = set(slugs)
    return tuple(rule for rule in all_rules() if rule.scope is Scope.RUN and rule.slug in wanted)


def stamp(rule: Rule, findings: Iterable[Finding]) -> list[Finding]:
    """A judge's findings with the rule's slug on them; a finding never weighs more than its rule."""
    return [
        replace(
            finding,
            rule=rule.slug,
            level=finding.level if finding.level.rank >= rule.level.rank else rule.level,
            blames=finding.blames if rule.blames_runs and finding.level is not Level.INFO else (),
        )
        for finding in findings
    ]

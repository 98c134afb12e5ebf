"""Every rule's fault, planted in otherwise clean comparisons: what is found is exactly what was planted.

Three arms over five seeds in verl's vocabulary and in CleanRL's, audited as a user's runs are. The tables stand in
`planted_verl` and `planted_cleanrl`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import pytest

import planted_cleanrl
import planted_verl
from planted import Fault, Found, Runs, Trap, audit_verl, clean_verl, counted
from planted_cleanrl import CLEANRL, CLEANRL_TRAPS, NOT_IN_CLEANRL, audit_cleanrl, clean_cleanrl
from planted_verl import NOT_IN_VERL, TRAPS, VERL
from pth_tracker.checks import all_rules
from pth_tracker.model import Audit, Level
from synthetic import audit_of, outcomes


@dataclass(frozen=True)
class Vocabulary:
    """The tables of one framework."""

    clean: Callable[[], Runs]
    audit: Callable[..., Audit]
    faults: Mapping[str, Fault]
    traps: Sequence[Trap]
    combined: Sequence[str]
    reasons: Mapping[str, str]

    def audit_faults(self, *faults: Fault) -> Audit:
        """The audit of the clean comparison with these faults planted one after the other."""
        runs = self.clean()
        for fault in faults:
            runs = fault.plant(runs)
        return self.audit(runs, *(fault.design for fault in faults))


VOCABULARIES: Final = {
    "verl": Vocabulary(
        clean_verl, audit_verl, {one.name: one for one in VERL}, TRAPS, planted_verl.COMBINED, NOT_IN_VERL
    ),
    "cleanrl": Vocabulary(
        clean_cleanrl,
        audit_cleanrl,
        {one.name: one for one in CLEANRL},
        CLEANRL_TRAPS,
        planted_cleanrl.COMBINED,
        NOT_IN_CLEANRL,
    ),
}
EXPLAINED: Final[Mapping[str, tuple[str, ...]]] = {
    "idle-clip": ("ratio-one-by-construction", "clip-misses-lag", "sampler-diverged"),
    "lost-seed": (
        "label-contradicts-config", "override-lost:seed", "no-common-seed", "too-few-seeds", "unpaired-runs",
        "shared-data-order", "one-data-order", "repeated-attempts", "duplicate-run", "drift-within-arm:seed",
        "undeclared-difference:seed", "pooled-ordering",
    ),
    "stuck-batch": ("unstable-data-order", "shared-data-order", "collapsed"),
    "rogue-normaliser": ("normaliser-differs",),
}  # fmt: skip
"""Rule to what it explains, as the catalogue of rules has it."""


WEAKER: Final = ("warn", "fail")
"""A warning explains no failure away."""


def rows(kind: str) -> list[Any]:
    """(vocabulary, row) of all tables."""
    return [
        pytest.param(name, row, id=f"{name}: {row.name}")
        for name, vocabulary in VOCABULARIES.items()
        for row in (vocabulary.faults.values() if kind == "faults" else vocabulary.traps)
    ]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_clean_comparison_says_nothing_above_information(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    report = vocabulary.audit(vocabulary.clean())
    assert (
        len(report.runs) == 15
        and len(report.design.arms) == 3
        and {run.framework for run in report.runs.values()} == {name}
    )
    assert counted(report) == [] and report.ok
    assert all(one.level is Level.INFO for one in report.findings)
    assert {str(run.verdict) for run in report.runs.values()} == {"pass"}


@pytest.mark.parametrize(("name", "fault"), rows("faults"))
def test_what_is_found_is_what_was_planted(name: str, fault: Fault) -> None:
    vocabulary = VOCABULARIES[name]
    if fault.inferred:
        report = audit_of(fault.plant(vocabulary.clean()))
    else:
        report = vocabulary.audit_faults(fault)
    assert counted(report) == sorted(fault.found)
    explained = {one.rule: one.because_of for one in report.findings if one.because_of and one.level is not Level.INFO}
    assert set(explained) == set(fault.explains) and set(explained.values()) <= fault.rules
    for rule in explained:
        assert "explained" in outcomes(report, rule) <= {"explained", "passed", "not judged"}
    for level, rule, _ in fault.found:
        assert {"fail": "failed", "warn": "warned"}[level] in outcomes(report, rule)
    blamed = {run for level, _, runs in fault.found for run in runs}
    assert {run.name for run in report.runs.values() if run.verdict in ("fail", "warn")} == blamed


@pytest.mark.parametrize(("name", "trap"), rows("traps"))
def test_what_only_looks_like_a_fault_is_no_finding(name: str, trap: Trap) -> None:
    vocabulary = VOCABULARIES[name]
    runs = trap.runs(vocabulary.clean())
    report = audit_of(runs) if trap.design is None else vocabulary.audit(runs, trap.design)
    assert counted(report) == []
    assert set(trap.says) <= {one.rule for one in report.findings if one.level is Level.INFO}
    for rule in trap.passes:
        assert "passed" in outcomes(report, rule) <= {"passed", "not judged"}, rule


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_rule_has_a_row_or_a_reason(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    planted = {rule for fault in vocabulary.faults.values() for rule in fault.rules}
    rules = {rule.slug: rule for rule in all_rules()}
    assert planted | set(vocabulary.reasons) == set(rules)
    assert not planted & set(vocabulary.reasons) and all(vocabulary.reasons.values())
    assert len(vocabulary.faults) == len({"verl": VERL, "cleanrl": CLEANRL}[name])
    # The worst level of each rule is among those that were planted.
    reached = {(rule, level) for fault in vocabulary.faults.values() for level, rule, _ in fault.found}
    if name == "verl":
        assert {(slug, str(rules[slug].level)) for slug in planted} <= reached


def test_what_explains_what_is_as_the_catalogue_has_it() -> None:
    assert {rule.slug: rule.explains for rule in all_rules() if rule.explains} == EXPLAINED


def expected(faults: Sequence[Fault]) -> list[Found]:
    """What the faults let find together: all of it but what one of them explains of another."""
    found = [one for fault in faults for one in fault.found]

    def explained(level: str, rule: str, blamed: tuple[str, ...]) -> bool:
        return any(
            rule in EXPLAINED.get(other, ()) and blamed and set(blamed) <= set(runs) and (weight, level) != WEAKER
            for weight, other, runs in found
        )

    return sorted(one for one in found if not explained(*one))


def combinations_of(count: int) -> list[Any]:
    """(vocabulary, names of faults), every combination of ``count`` of those that can be combined."""
    return [
        pytest.param(name, chosen, id=f"{name}: {' + '.join(chosen)}")
        for name, vocabulary in VOCABULARIES.items()
        for chosen in combinations(vocabulary.combined, count)
    ]


@pytest.mark.parametrize(("name", "chosen"), combinations_of(2))
def test_two_faults_are_both_found_and_nothing_else(name: str, chosen: Sequence[str]) -> None:
    vocabulary = VOCABULARIES[name]
    faults = [vocabulary.faults[one] for one in chosen]
    assert counted(vocabulary.audit_faults(*faults)) == expected(faults)


FOUR_BUGS: Final = ("idle clip", "the seed is lost", "a stuck queue", "a rogue normaliser")


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("verl", planted_verl.COMBINED),
        ("verl", tuple(reversed(planted_verl.COMBINED))),
        ("verl", FOUR_BUGS),
        ("verl", ("another schedule", "other code", "another start", "no group", "a setting is lost")),
        ("verl", ("two seeds in one arm", "a collapse", "other code")),
        ("verl", ("seeds of one arm alone on both sides", "idle clip", "a tag denies the configuration")),
        ("cleanrl", planted_cleanrl.COMBINED),
        ("cleanrl", ("a seed that crashed in one arm", "other code", "a collapse")),
    ],
)
def test_several_faults_are_all_found_and_nothing_else(name: str, chosen: Sequence[str]) -> None:
    vocabulary = VOCABULARIES[name]
    faults = [vocabulary.faults[one] for one in chosen]
    assert counted(vocabulary.audit_faults(*faults)) == expected(faults)

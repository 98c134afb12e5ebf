"""What holds for every rule: without what it needs it says so, and nothing passes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from pth_tracker import compare as compare_module
from pth_tracker.checks import all_rules, find_rule, stamp
from pth_tracker.errors import UsageError
from pth_tracker.model import FACTS, Branch, Coverage, Finding, Level, Outcome, Rule, Scope
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import (
    ARMS,
    CORRECTION,
    FakeRun,
    Values,
    audit_of,
    change,
    comparison,
    idle,
    labels,
    make_run,
    outcomes,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

WEIGHTS = f"{CORRECTION}.rollout_is"
RULES = [pytest.param(rule, id=rule.slug) for rule in all_rules()]


def bare(names: tuple[str, ...] = ("a", "b", "c", "d")) -> list[FakeRun]:
    """Runs that log neither a configuration nor any metric, under names that say nothing."""
    return without_metrics(without_config([make_run(name, number=n) for n, name in enumerate(names)]), "*")


@pytest.mark.parametrize("rule", RULES)
def test_with_all_needs_unmet_a_rule_is_not_judged_and_nothing_passes(rule: Rule) -> None:
    report = audit_of(bare(), select=(rule.slug,))
    entries = [entry for entry in report.not_judged if entry.rule == rule.slug]
    assert entries and outcomes(report, rule.slug) == {"not judged"}
    assert {key for entry in entries for key in entry.runs} == set(report.runs)
    for entry in entries:
        assert entry.missing and entry.remedy and entry.subject and entry.check == rule.check
        assert {name for group in entry.missing for name in group.split("|")} <= rule.names | {"comparable_pairs"}
    assert report.findings == [] and {run.verdict for run in report.runs.values()} == {"not-judged"}
    (coverage,) = {(entry.branches, entry.unmet) for entry in report.coverage}
    assert coverage == ((), tuple(one.name for one in rule.needs))


@pytest.mark.parametrize("rule", RULES)
def test_declared_arms_of_bare_runs_change_nothing(rule: Rule) -> None:
    design = {"arms": {"x": {"name": ["a", "b"]}, "y": {"name": ["c", "d"]}}, "baseline": "x"}
    report = audit_of(bare(), design, select=(rule.slug,))
    assert outcomes(report, rule.slug) == {"not judged"} and report.findings == []


def test_everything_that_a_branch_may_lack_has_a_remedy() -> None:
    vocabulary = load_vocabulary()
    known = {*FACTS, *vocabulary.quantities, *vocabulary.roles}
    for rule in all_rules():
        assert rule.needs, rule.slug
        assert rule.names <= known, rule.slug
        assert set(rule.reads) <= set(vocabulary.quantities), rule.slug
        for name in rule.names:
            for framework in vocabulary.frameworks:
                assert FACTS.get(name) or vocabulary.remedy(framework, name), (rule.slug, name)


def test_rules_are_well_formed() -> None:
    slugs = [rule.slug for rule in all_rules()]
    assert len(slugs) == len(set(slugs))
    for rule in all_rules():
        assert 1 <= rule.check <= 7 and len({one.name for one in rule.needs}) == len(rule.needs), rule.slug
        assert rule.slug not in rule.explains
        assert pickle.loads(pickle.dumps(rule)) == rule


def test_no_rule_is_silent_on_any_subject() -> None:
    report = audit_of(comparison(seeds=(41, 42)))
    for rule in all_rules():
        covered = {key for entry in report.coverage if entry.rule == rule.slug for key in entry.runs}
        if rule.scope in (Scope.RUN, Scope.CELL, Scope.PROJECT):
            assert covered == set(report.runs), rule.slug
        else:
            assert covered, rule.slug


def test_an_unknown_rule_is_refused_and_the_closest_is_named() -> None:
    with pytest.raises(UsageError, match="there is no rule 'idle-clop'; did you mean idle-clip"):
        find_rule("idle-clop")
    with pytest.raises(UsageError, match="the rules are idle-clip"):
        find_rule("zzz")


def test_a_finding_never_weighs_more_than_its_rule() -> None:
    loudest = Finding(6, Level.FAIL, "x", runs=("a",), blames=("a",))
    (stamped,) = stamp(find_rule("paired-difference"), [loudest])
    assert (stamped.level, stamped.blames, stamped.rule) == (Level.INFO, (), "paired-difference")
    (kept,) = stamp(find_rule("lost-seed"), [replace(loudest, level=Level.WARN)])
    assert (kept.level, kept.blames) == (Level.WARN, ("a",))


def _branches() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    cut: dict[str, dict[str, tuple[str, ...]]] = {
        "idle-clip": {"measured": ("rollout_corr/*", "mismatch/*", "actor/ppo_kl"), "declared": ()},
        "paired-difference": {"paired": ("val-core/*",)},
    }
    for slug, branches in cut.items():
        for name, metrics in branches.items():
            yield slug, name, metrics


@pytest.mark.parametrize(("slug", "branch", "metrics"), list(_branches()))
def test_an_unmet_branch_is_named_in_the_coverage(slug: str, branch: str, metrics: tuple[str, ...]) -> None:
    runs = comparison({"ppo": {"trainer.sync_interval": 4}, "tis": {**ARMS["tis"], "trainer.sync_interval": 4}}, (1, 2))
    if branch == "declared":
        runs = with_config(runs, "*", {"actor_rollout_ref.actor.ppo_mini_batch_size": None})
    before = {entry.subject: entry for entry in audit_of(comparison(seeds=(1, 2))).coverage if entry.rule == slug}
    after: list[Coverage] = [
        entry for entry in audit_of(without_metrics(runs, *metrics)).coverage if entry.rule == slug
    ]
    assert before and after
    assert all(branch in entry.unmet and branch not in entry.branches for entry in after)


def test_a_rule_judges_the_runs_that_have_what_it_needs_and_names_the_others() -> None:
    runs = without_metrics(comparison({"ppo": {}}, (1, 2, 3)), "rollout_corr/*", glob="*-seed2")
    report = audit_of(with_metrics(runs, "*", {k: v for k, v in idle().items() if "rollout" not in k}))
    by_outcome = {entry.outcome: labels(report, entry.runs) for entry in report.coverage if entry.rule == "idle-clip"}
    assert by_outcome == {Outcome.PASSED: ["ppo-seed1", "ppo-seed3"], Outcome.NOT_JUDGED: ["ppo-seed2"]}


def test_frameworks_are_told_apart_in_what_is_missing() -> None:
    other = [
        make_run(f"generic-{n}", config={"lr": 1e-3}, metrics=dict.fromkeys(make_run("x").points) | {"loss": 0.1})
        for n in (1, 2)
    ]
    report = audit_of([*without_metrics(comparison({"ppo": {}}, (1, 2)), "rollout_corr/*"), *change(other, "*")])
    subjects = {entry.subject for entry in report.not_judged if entry.rule == "idle-clip"}
    assert subjects == {"verl runs", "generic runs"}


# every branch of every rule

CLAIMED = {
    "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
    "baseline": "ppo",
    "vary": [WEIGHTS],
    "age": {"expected": "1"},
    "stress": {"key": "trainer.sync_interval"},
    "claims": [{"text": "TIS is stable", "expect": {"stable": "tis"}}],
}


@cache
def well_logged() -> tuple[FakeRun, ...]:
    """Two arms over two seeds at two refresh intervals that log what the rules need, launch arguments included."""
    runs: list[FakeRun] = []
    for lag in (1, 16):
        for arm in ("ppo", "tis"):
            for seed in (41, 42):
                metrics: dict[str, Values] = {
                    "harness/batch_id": np.random.default_rng(seed).integers(0, 2**50, 40).astype(np.float64),
                    "harness/data_age": 1.0,
                    "harness/outside_sampler_range": 0.01,
                    "harness/loss_check": {0: 1.0},
                    "harness/loss_check_kind": {0: 0.0},
                    "training/rollout_probs_diff_mean": 1e-3,
                }
                settings = {**ARMS[arm], "trainer.sync_interval": lag}
                name = f"{arm}-{lag}-seed{seed}"
                more: dict[str, Any] = {"arguments": (f"data.seed={seed}",), "commit": "a" * 40}
                runs.append(make_run(name, settings, seed, updates=40, metrics=metrics, number=len(runs), **more))
    return tuple(runs)


Group = tuple[str, ...]


def ways_to_lack(rule: Rule) -> list[tuple[Group, ...]]:
    """Every way of lacking one group of each branch; each group of a rule with many is lacked at least once."""
    every = list(product(*(one.groups for one in rule.needs)))
    if len(every) <= MOST_WAYS:
        return every
    most = max(len(one.groups) for one in rule.needs)
    return [tuple(one.groups[place % len(one.groups)] for one in rule.needs) for place in range(most)]


MOST_WAYS = 6


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_lacks_one_thing_of_each_branch_is_not_judged_and_names_it(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking: set[str] = set()
    real_branch, real_missing = Branch.missing, compare_module._missing

    def missing_of_branch(own: Branch, available: Iterable[str]) -> tuple[Group, ...]:
        return real_branch(own, set(available) - lacking)

    def missing_of_subject(groups: tuple[Group, ...], *more: Any) -> tuple[Group, ...]:
        found = real_missing(groups, *more)
        return tuple(group for group in groups if group in found or lacking.issuperset(group))

    monkeypatch.setattr(Branch, "missing", missing_of_branch)
    monkeypatch.setattr(compare_module, "_missing", missing_of_subject)
    groups = {group for one in rule.needs for group in one.groups}
    named: set[Group] = set()
    for way in ways_to_lack(rule):
        lacking.clear()
        lacking.update(name for group in way for name in group)
        report = audit_of(list(well_logged()), CLAIMED, select=(rule.slug,))
        assert outcomes(report, rule.slug) == {"not judged"}, way
        assert report.findings == [] and {str(run.verdict) for run in report.runs.values()} == {"not-judged"}
        for entry in [entry for entry in report.not_judged if entry.rule == rule.slug]:
            missing = {tuple(name.split("|")) for name in entry.missing}
            assert missing and missing <= groups and missing & set(way), (way, entry)
            named |= missing
    # Nothing that a branch asks for goes unnamed: where it alone is lacking, it is what is said to be missing.
    alone = {one.groups for one in rule.needs if len(rule.needs) == 1}
    assert all(set(own) <= named for own in alone)


def test_what_the_rules_need_is_all_there() -> None:
    report = audit_of(list(well_logged()), CLAIMED)
    judged = {entry.rule for entry in report.coverage if entry.outcome is not Outcome.NOT_JUDGED}
    assert judged == {rule.slug for rule in all_rules()}

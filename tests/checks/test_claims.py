from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pth_tracker.checks import all_rules, find_rule
from pth_tracker.checks.claims import UNDERMINES
from pth_tracker.design.expectations import EXPECTATIONS
from pth_tracker.design.load import load_design
from pth_tracker.engine import exit_code
from pth_tracker.errors import DesignError, ExitCode
from pth_tracker.model import Audit, Basis, Level
from synthetic import (
    ARMS,
    ONE_STEP,
    SCORE,
    FakeRun,
    audit_of,
    comparison,
    cut,
    findings,
    idle,
    labels,
    make_run,
    not_judged,
    outcomes,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

STRESS = "trainer.sync_interval"
TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
DECLARED: dict[str, Any] = {
    "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
    "baseline": "ppo",
    "metric": {"key": SCORE},
}
SLUGS = ("claim-contradicted", "claim-undermined", "claim-supported")


def judged(runs: Sequence[FakeRun], *expected: Mapping[str, Any], **design: Any) -> Audit:
    claims = [{"text": f"sentence {n}", "expect": expect} for n, expect in enumerate(expected)]
    return audit_of(runs, {**DECLARED, **design, "claims": claims})


def outcome(report: Audit, number: int = 0) -> str:
    """What became of one claim: the finding's rule without its prefix, or ``untestable``."""
    text = f"sentence {number}"
    found = [one for slug in SLUGS for one in findings(report, slug) if one.evidence["claim"] == text]
    untested = [entry for entry in report.not_judged if entry.subject == f'claim "{text}"']
    if untested:
        assert {entry.rule for entry in untested} == set(SLUGS) and not found
        return "untestable"
    (one,) = found
    assert one.basis is Basis.DECLARED and one.blames == () and one.check == 7
    assert one.level is (Level.INFO if one.rule == "claim-supported" else Level.FAIL)
    return one.rule.removeprefix("claim-")


def why(report: Audit, number: int = 0) -> str:
    text = f"sentence {number}"
    untested = [entry.remedy for entry in report.not_judged if entry.subject == f'claim "{text}"']
    found = [one.detail for slug in SLUGS for one in findings(report, slug) if one.evidence["claim"] == text]
    return (untested + found)[0]


def scored(arm: str, scores: Mapping[int, float], **settings: Any) -> list[FakeRun]:
    return [
        make_run(f"{arm}-seed{seed}", {**ARMS[arm], **settings}, seed, metrics={SCORE: {0: 0.36, 60: score}})
        for seed, score in scores.items()
    ]


BASE = {1: 0.701, 2: 0.713, 3: 0.722}
BETTER = {1: 0.752, 2: 0.761, 3: 0.775}
MIXED = {1: 0.790, 2: 0.701, 3: 0.741}

# the reference results

GRPO_64, TIS_64 = (0.743, 0.778, 0.777), (0.763, 0.785, 0.808)
GRPO_96, TIS_96 = (0.114, 0.280, 0.099), (0.764, 0.781, 0.785)


def rising(last: float) -> dict[int, float]:
    shares = (0, 0.3, 0.55, 0.72, 0.84, 0.9, 0.94, 0.97, 0.985, 0.995, 1)
    return {place * 10: 0.36 + (last - 0.36) * share for place, share in enumerate(shares)}


def fallen(last: float) -> dict[int, float]:
    return {**rising(0.74), 70: 0.66, 80: 0.4, 90: last + 0.01, 100: last}


def reference() -> list[FakeRun]:
    runs: list[FakeRun] = []
    for arm, interval, scores in (
        ("grpo", 64, GRPO_64), ("tis", 64, TIS_64), ("grpo", 96, GRPO_96), ("tis", 96, TIS_96),
    ):  # fmt: skip
        for seed, score in zip((42, 43, 44), scores):
            curve = fallen(score) if score < 0.5 else rising(score)
            settings = {STRESS: interval, **ARMS["ppo" if arm == "grpo" else "tis"]}
            name = f"{arm}-n{interval}-seed{seed}"
            runs.append(make_run(name, settings, seed, metrics={SCORE: curve}, number=len(runs)))
    return runs


def test_the_reference_results_as_claims() -> None:
    at = {n: {"where": {STRESS: n}} for n in (64, 96)}
    report = judged(
        reference(),
        {"better": "tis", "than": "grpo", "every_seed": True, **at[64]},
        {"better": "tis", "than": "grpo", **at[64]},
        {"better": "tis", "than": "grpo", "at_least": 0.5, **at[96]},
        {"better": "grpo", "than": "tis", **at[96]},
        {"stable": "tis", "max_drop": 0.05},
        {"stable": "grpo", **at[96]},
        {"stable": "grpo", **at[64]},
        {"value": "tis", "between": [0.76, 0.79], **at[96]},
        {"value": "tis", "between": [0.76, 0.79], **at[64]},
        {"better": "tis", "than": "grpo", "every_seed": True},
        {"better": "tis", "than": "grpo", "every_seed": True, "at_least": 0.05},
        {"no_finding": "collapsed", "arms": "tis"},
        {"no_finding": "collapsed"},
        arms={"grpo": {"name": "grpo-*"}, "tis": {"name": "tis-*"}},
        baseline="grpo",
        stress={"key": STRESS},
    )
    assert [outcome(report, n) for n in range(13)] == [
        "supported",  # +2.0, +0.7, +3.1 points
        "untestable",  # mean +1.93 points, undecided over three seeds
        "supported",
        "contradicted",
        "supported",
        "contradicted",
        "supported",
        "supported",
        "contradicted",  # .808 lies above
        "supported",
        "contradicted",  # at 64 the differences are smaller
        "supported",
        "contradicted",
    ]
    assert "42: +2.00, 43: +0.70, 44: +3.10 points" in why(report, 0)
    assert "+1.93 points" in why(report, 1) and "undecided" in why(report, 1)
    assert "3 of 3 runs fell" in why(report, 5) and "grpo-n96-seed42" in why(report, 5)
    assert "tis-n64-seed44" in why(report, 8)
    assert len(findings(report, "outside-stable-range")) == 1


# better


@pytest.mark.parametrize(
    ("tis", "expect", "result"),
    [
        (BETTER, {}, "supported"),
        (BETTER, {"at_least": 0.04}, "supported"),
        (BETTER, {"at_least": 0.06}, "contradicted"),
        (BETTER, {"every_seed": True}, "supported"),
        (BETTER, {"every_seed": True, "at_least": 0.048}, "supported"),
        (BETTER, {"every_seed": True, "at_least": 0.05}, "contradicted"),
        (MIXED, {}, "untestable"),
        (MIXED, {"every_seed": True}, "contradicted"),
        ({s: v - 0.05 for s, v in MIXED.items()}, {}, "contradicted"),
        ({1: 0.8}, {}, "untestable"),
        ({1: 0.8, 2: 0.8}, {"every_seed": True}, "untestable"),
        ({1: 0.8, 2: 0.6}, {"every_seed": True}, "contradicted"),
        ({**BETTER, 4: 0.8}, {"every_seed": True}, "untestable"),
        ({4: 0.8, 5: 0.8}, {}, "untestable"),
    ],
)
def test_better(tis: Mapping[int, float], expect: Mapping[str, Any], result: str) -> None:
    report = judged([*scored("ppo", BASE), *scored("tis", tis)], {"better": "tis", "than": "ppo", **expect})
    assert outcome(report) == result, why(report)


def test_every_seed_names_the_seeds_that_are_missing_or_against_it() -> None:
    every = {"better": "tis", "than": "ppo", "every_seed": True}
    missing = judged([*scored("ppo", BASE), *scored("tis", {1: 0.8})], every)
    assert "of the seeds 2, 3 one arm has no score" in why(missing)
    against = judged([*scored("ppo", BASE), *scored("tis", MIXED)], every)
    assert "not on 2" in why(against)


def test_a_tie_contradicts_that_one_is_better() -> None:
    close = {1: 0.702, 2: 0.714, 3: 0.7219}
    runs = [*scored("ppo", BASE), *scored("tis", close)]
    assert outcome(judged(runs, {"better": "tis", "than": "ppo"}, tie_margin=0.01)) == "contradicted"
    assert outcome(judged(runs, {"better": "tis", "than": "ppo"})) == "untestable"


def test_the_baseline_may_be_the_better_one_and_lower_may_be_better() -> None:
    runs = [*scored("ppo", BETTER), *scored("tis", BASE)]
    report = judged(runs, {"better": "ppo", "than": "tis"}, {"better": "tis", "than": "ppo"})
    assert [outcome(report, n) for n in (0, 1)] == ["supported", "contradicted"]
    lower = {"metric": {"key": SCORE, "higher_is_better": False}}
    report = judged(runs, {"better": "ppo", "than": "tis"}, {"better": "tis", "than": "ppo"}, **lower)
    assert [outcome(report, n) for n in (0, 1)] == ["contradicted", "supported"]


def test_where_selects_a_stress_value_and_without_it_all_have_to_hold() -> None:
    runs = [
        make_run(f"{arm}-n{n}-seed{s}", {**ARMS[arm], STRESS: n}, s, metrics={SCORE: {0: 0.36, 60: score}})
        for n, tis in ((4, BETTER), (8, {s: v - 0.1 for s, v in BASE.items()}))
        for arm, scores in (("ppo", BASE), ("tis", tis))
        for s, score in scores.items()
    ]
    base = {"better": "tis", "than": "ppo"}
    report = judged(
        runs, {**base, "where": {STRESS: 4}}, {**base, "where": {STRESS: 8}}, base, {**base, "where": {STRESS: 16}}
    )
    assert [outcome(report, n) for n in range(4)] == ["supported", "contradicted", "contradicted", "untestable"]
    assert "trainer.sync_interval=16" in why(report, 3)


# stable


@pytest.mark.parametrize(
    ("curve", "expect", "result"),
    [
        (rising(0.78), {}, "supported"),
        (fallen(0.1), {}, "contradicted"),
        ({**rising(0.78), 90: 0.70, 100: 0.70}, {}, "supported"),
        ({**rising(0.78), 90: 0.70, 100: 0.70}, {"max_drop": 0.05}, "contradicted"),
        ({**rising(0.78), 50: 0.2}, {"max_drop": 0.05}, "supported"),
        ({0: 0.3, 30: 0.5, 60: 0.7}, {}, "untestable"),
        ({**rising(0.78), 100: math.nan}, {}, "contradicted"),
    ],
)
def test_stable(curve: Mapping[int, float], expect: Mapping[str, Any], result: str) -> None:
    runs = with_metrics(comparison(TWO, (1, 2, 3)), "tis-seed2", {SCORE: curve})
    assert outcome(judged(runs, {"stable": "tis", **expect})) == result


def test_a_run_that_collapsed_and_stopped_early_is_no_stable_one() -> None:
    runs = comparison(TWO, (1, 2, 3))
    runs = with_metrics(runs, "tis-seed2", {SCORE: {u // 4: v for u, v in fallen(0.1).items()}})
    runs = [cut(run, 25) if run.name == "tis-seed2" else run for run in runs]
    assert outcome(judged(runs, {"stable": "tis"})) == "contradicted"


def test_stability_on_few_evaluations_is_said_to_be_weak() -> None:
    curve = {0: 0.36, 10: 0.5, 20: 0.6, 30: 0.65, 40: 0.7, 50: 0.72, 60: 0.73}
    report = judged(with_metrics(comparison(TWO, (1, 2)), "tis-*", {SCORE: curve}), {"stable": "tis"})
    assert outcome(report) == "supported" and "Weak evidence" in why(report)


# configurations


def test_arms_that_only_differ_in_what_is_said() -> None:
    key = "algorithm.rollout_correction.rollout_is"
    runs = comparison(TWO, (1, 2, 3))
    report = judged(
        runs, {"only_differ_in": key}, {"only_differ_in": "algorithm.rollout_correction"}, {"only_differ_in": "actor.x"}
    )
    assert [outcome(report, n) for n in range(3)] == ["supported", "supported", "contradicted"]
    other = with_config(runs, "tis-*", {"actor_rollout_ref.actor.optim.lr": 5e-6})
    report = judged(other, {"only_differ_in": key})
    assert outcome(report) == "contradicted" and "actor_rollout_ref.actor.optim.lr" in why(report)
    drifted = with_config(runs, "tis-seed2", {"actor_rollout_ref.actor.optim.lr": 5e-6})
    assert outcome(judged(drifted, {"only_differ_in": key})) == "contradicted"
    same = judged(runs, {"only_differ_in": [key, "actor_rollout_ref.actor.optim.lr"], "arms": ["ppo", "tis"]})
    assert outcome(same) == "contradicted" and "is the same in" in why(same)
    absent = judged(runs, {"only_differ_in": [key, "loss.anchor"]})
    assert outcome(absent) == "untestable" and "no run's configuration has loss.anchor" in why(absent)
    assert outcome(judged(without_config(runs, "tis-*"), {"only_differ_in": key})) == "untestable"


def test_a_seed_that_is_another_one_in_each_arm_is_a_difference() -> None:
    runs = with_config(comparison(TWO, (1, 2)), "tis-*", {"actor_rollout_ref.rollout.seed": 7})
    report = judged(runs, {"only_differ_in": "algorithm.rollout_correction.rollout_is"})
    assert outcome(report) == "contradicted" and "rollout.seed" in why(report)


# quantities and values


@pytest.mark.parametrize(
    ("expect", "result"),
    [
        ({"quantity": "sampler_k3_kl", "reduced": "max", "below": 0.01}, "supported"),
        ({"quantity": "sampler_k3_kl", "reduced": "max", "below": 0.0005}, "contradicted"),
        ({"quantity": "rollout_corr/k3_kl", "reduced": "min", "above": 0.0}, "supported"),
        ({"quantity": "lr", "between": [2e-6, 2e-6]}, "supported"),
        ({"quantity": "lr", "above": 2e-6}, "contradicted"),
        ({"quantity": "training/global_step", "reduced": "last", "between": [60, 60], "arms": "tis"}, "supported"),
        ({"quantity": "training/global_step", "reduced": "mean", "between": [30.5, 30.5]}, "supported"),
        ({"quantity": "training/global_step", "reduced": "first", "below": 2}, "supported"),
        ({"quantity": "nobody/logs_it", "above": 0}, "untestable"),
        ({"quantity": "data_age", "below": 5}, "untestable"),
        ({"quantity": "lr", "above": 0, "where": {"data.seed": 99}}, "untestable"),
        ({"value": "tis", "above": 0.5}, "supported"),
        ({"value": "tis", "above": 0.99}, "contradicted"),
        ({"value": "tis", "between": [0.7, 0.8], "over": "mean"}, "supported"),
    ],
)
def test_quantities_and_values(expect: Mapping[str, Any], result: str) -> None:
    assert outcome(judged(comparison(TWO, (1, 2, 3)), expect)) == result


def test_every_run_and_their_mean_are_told_apart() -> None:
    runs = [*scored("ppo", BASE), *scored("tis", MIXED)]  # mean of MIXED: .744
    report = judged(
        runs, {"value": "tis", "between": [0.72, 0.76]}, {"value": "tis", "between": [0.72, 0.76], "over": "mean"}
    )
    assert [outcome(report, n) for n in (0, 1)] == ["contradicted", "supported"]
    assert "tis-seed1, tis-seed2" in why(report, 0)


def test_a_quantity_that_was_not_finite_is_not_below_anything() -> None:
    runs = with_metrics(comparison(TWO, (1, 2)), "tis-seed1", {"rollout_corr/k3_kl": [4e-4] * 30 + [math.inf] * 30})
    report = judged(runs, {"quantity": "sampler_k3_kl", "reduced": "max", "below": 1})
    assert outcome(report) == "contradicted" and "tis-seed1" in why(report)
    bare = without_metrics(runs, "rollout_corr/*", glob="tis-*")
    assert outcome(judged(bare, {"quantity": "sampler_k3_kl", "below": 1})) == "untestable"


# findings of other rules


def spoilt(ignore: bool = False) -> tuple[list[FakeRun], dict[str, Any]]:
    """A comparison in which the baseline's clip never acts while its sampler lags."""
    settings = {**ONE_STEP, STRESS: 16}
    runs = [
        make_run(f"{arm}-seed{s}", {**ARMS[arm], **settings}, s, metrics={**idle(), SCORE: {0: 0.36, 60: v}})
        for arm, scores in (("ppo", BASE), ("tis", BETTER))
        for s, v in scores.items()
    ]
    entry = {"rule": "idle-clip", "arms": ["ppo"], "reason": "the uncorrected baseline, on purpose"}
    return runs, {"ignore": [entry]} if ignore else {}


def test_a_claim_that_rests_on_blamed_runs_is_undermined() -> None:
    runs, design = spoilt()
    report = judged(
        runs,
        {"better": "tis", "than": "ppo", "every_seed": True},
        {"better": "ppo", "than": "tis"},
        {"value": "ppo", "above": 0.5},
        {"value": "tis", "above": 0.5},
        {"quantity": "lr", "above": 0},
        {"no_finding": "idle-clip", "arms": "tis"},
        {"no_finding": "idle-clip"},
        **design,
    )
    expected = ["undermined", "contradicted", "undermined", "supported", "supported", "supported", "contradicted"]
    assert [outcome(report, n) for n in range(7)] == expected
    found = findings(report, "claim-undermined")[0]
    assert found.evidence["undermined_by"] == ["idle-clip"] and "idle-clip undermines" in found.title
    assert "blamed by idle-clip as well" in why(report, 1)
    assert exit_code(report) is ExitCode.CHECK_FAILED
    assert outcomes(report, "claim-undermined") == {"failed", "passed"}


def test_an_ignored_finding_undermines_nothing() -> None:
    runs, design = spoilt(ignore=True)
    report = judged(runs, {"better": "tis", "than": "ppo", "every_seed": True}, **design)
    assert findings(report, "idle-clip")[0].ignored and outcome(report) == "supported"


def test_a_warning_undermines_nothing_unless_the_author_raises_it() -> None:
    runs, _ = spoilt()
    claim = {"better": "tis", "than": "ppo", "every_seed": True}
    lowered = judged(runs, claim, rules={"levels": {"idle-clip": "warn"}})
    assert findings(lowered, "idle-clip")[0].level is Level.WARN and outcome(lowered) == "supported"
    collapsed = with_metrics(comparison(TWO, (1, 2, 3)), "ppo-*", {SCORE: fallen(0.1)})
    report = judged(collapsed, {"value": "ppo", "below": 0.5})
    assert findings(report, "collapsed") and outcome(report) == "supported"


def test_what_a_rule_could_not_judge_has_no_finding_to_claim() -> None:
    runs = without_metrics(comparison(TWO, (1, 2)), "rollout_corr/*", "actor/pg_clipfrac")
    report = judged(runs, {"no_finding": "idle-clip"})
    assert outcome(report) == "untestable" and "idle-clip could not judge" in why(report)
    off = judged(comparison(TWO, (1, 2)), {"no_finding": "collapsed"}, rules={"levels": {"collapsed": "off"}})
    assert outcome(off) == "untestable"


# the machinery


def test_without_claims_nothing_is_judged() -> None:
    report = audit_of(comparison(TWO, (1, 2)), DECLARED)
    for slug in SLUGS:
        assert outcomes(report, slug) == {"not judged"} and not_judged(report, slug)[0].missing == ("claims",)


def test_claims_may_be_ignored_and_selected() -> None:
    runs = [*scored("ppo", BASE), *scored("tis", MIXED)]
    claim = {"text": "x", "expect": {"better": "tis", "than": "ppo", "every_seed": True}}
    ignore = [{"rule": "claim-contradicted", "reason": "to be reworded"}]
    report = audit_of(runs, {**DECLARED, "claims": [claim], "ignore": ignore})
    assert findings(report, "claim-contradicted")[0].ignored
    assert exit_code(report) is ExitCode.OK
    alone = audit_of(runs, {**DECLARED, "claims": [claim]}, select=("claim-contradicted",))
    assert {one.rule for one in alone.findings} == {"claim-contradicted"}
    assert labels(alone, alone.findings[0].runs) == sorted(run.name for run in runs)


def test_the_published_table_holds_every_failing_rule_and_no_other_word() -> None:
    failing = {rule.slug for rule in all_rules() if rule.level is Level.FAIL and rule.blames_runs}
    assert set(UNDERMINES) == failing
    for slug, kinds in UNDERMINES.items():
        assert set(kinds) <= set(EXPECTATIONS), slug
    doc = find_rule("claim-undermined").doc
    listed: dict[str, set[str]] = {kind: set() for kind in EXPECTATIONS}
    for line in doc.split("    - ")[1:]:
        named, _, rules = line.split("\n\n")[0].partition(":")
        for kind in named.split(", "):
            listed[kind.strip()] = {rule.strip() for rule in rules.split(",")} - {"none"}
    assert listed == {kind: {slug for slug, own in UNDERMINES.items() if kind in own} for kind in EXPECTATIONS}


@pytest.mark.parametrize(
    ("expect", "key", "said"),
    [
        ("{better: ppo, thn: tis}", "claims.0.expect.thn", "did you mean 'than'"),
        ("{better: ppo, than: tis, every_sed: true}", "claims.0.expect.every_sed", "did you mean 'every_seed'"),
        ("{better: ppo}", "claims.0.expect.than", "required"),
        ("{better: ppo, than: ppo}", "claims.0.expect", "better than itself"),
        ("{stable: tis, max_drop: -1}", "claims.0.expect.max_drop", "greater than 0"),
        ("{stable: tis, max_drop: .inf}", "claims.0.expect.max_drop", "finite"),
        ("{wins: tis}", "claims.0.expect", "one of the keys better, stable"),
        ("TIS wins", "claims.0.expect", "is a mapping"),
        ("{value: tis}", "claims.0.expect", "give above, below or between"),
        ("{value: tis, between: [2, 1]}", "claims.0.expect", "from the smaller to the larger"),
        ("{quantity: lr, reduced: final, above: 1}", "claims.0.expect.reduced", "'first', 'last'"),
        ("{only_differ_in: [], arms: [ppo, tis]}", "claims.0.expect.only_differ_in", "at least 1"),
        ("{only_differ_in: x, arms: [tis]}", "claims.0.expect", "two arms or more"),
    ],
)
def test_a_wrong_claim_names_file_line_and_key(expect: str, key: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "design.yaml"
    path.write_text(f"baseline: ppo\nclaims:\n  - text: a sentence\n    expect: {expect}\n")
    with pytest.raises(DesignError, match=said) as error:
        load_design(path)
    assert (error.value.line, error.value.key) == (4, key) and str(path) in str(error.value)


def test_an_unknown_arm_or_rule_in_a_claim_is_refused() -> None:
    runs = comparison(TWO, (1, 2))
    with pytest.raises(DesignError, match="claims.0.expect: the arm 'grpo' is none of the arms ppo, tis"):
        judged(runs, {"better": "grpo", "than": "tis"})
    with pytest.raises(DesignError, match="claims.0.expect.no_finding: there is no rule 'idle-clop'"):
        judged(runs, {"no_finding": "idle-clop"})

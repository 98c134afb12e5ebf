from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pth_tracker.model import Basis, Level
from pth_tracker.runs import RunState
from synthetic import (
    ARMS,
    SCORE,
    FakeRun,
    audit_of,
    change,
    comparison,
    cut,
    findings,
    make_run,
    not_judged,
    only,
    outcomes,
    without_config,
    without_metrics,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
DECLARED: dict[str, Any] = {
    "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
    "baseline": "ppo",
    "metric": {"key": SCORE},
}
RULES = ("runs-dropped-unevenly", "unequal-budget", "below-eval-noise", "pooled-ordering")


def scored(arm: str, scores: Mapping[int, float], **options: Any) -> list[FakeRun]:
    """Runs of one seed each with two evaluations, the second of which is the score."""
    return [
        make_run(f"{arm}-seed{seed}", ARMS[arm], seed, metrics={SCORE: {0: 0.36, 60: score}}, **options)
        for seed, score in scores.items()
    ]


def claimed(better: str, than: str, **more: Any) -> dict[str, Any]:
    claim = {"text": f"{better} beats {than}", "expect": {"better": better, "than": than, **more}}
    return {**DECLARED, "claims": [claim]}


def test_a_clean_comparison_is_quiet() -> None:
    report = audit_of(comparison(TWO, (1, 2, 3, 4, 5)), DECLARED)
    for rule in RULES:
        assert [one for one in findings(report, rule) if one.level is not Level.INFO] == [], rule
        assert outcomes(report, rule) == {"passed"}, rule


# runs dropped


def test_a_seed_that_crashed_in_one_arm_alone() -> None:
    runs = comparison(TWO, (1, 2, 3, 4, 5))
    runs[-1] = cut(runs[-1], 10, state=RunState.CRASHED)
    found = only(audit_of(runs, DECLARED), "runs-dropped-unevenly")
    assert found.level is Level.WARN and found.blames == ()
    assert found.evidence["tis"] == {"launched": 5, "progressed": 4, "counted": 4}
    assert found.evidence["ppo"] == {"launched": 5, "progressed": 5, "counted": 5}
    assert "tis-seed5 (it stopped at update 10" in found.detail


def test_an_attempt_that_was_repeated_or_still_runs_is_not_dropped() -> None:
    runs = comparison(TWO, (1, 2, 3))
    aborted = cut(make_run("tis-seed3-first", ARMS["tis"], 3), 5, state=RunState.CRASHED)
    assert findings(audit_of([*runs, aborted], DECLARED), "runs-dropped-unevenly") == []
    running = cut(make_run("tis-seed4", ARMS["tis"], 4), 5, state=RunState.RUNNING)
    assert findings(audit_of([*runs, running], DECLARED), "runs-dropped-unevenly") == []


def test_the_same_share_dropped_in_both_arms_is_even() -> None:
    runs = [run if not run.name.endswith("seed5") else cut(run, 10) for run in comparison(TWO, (1, 2, 3, 4, 5))]
    assert findings(audit_of(runs, DECLARED), "runs-dropped-unevenly") == []


def test_an_arm_that_logs_another_score_lost_none() -> None:
    runs = without_metrics(comparison(TWO, (1, 2, 3)), SCORE, glob="tis-*")
    assert findings(audit_of(runs, DECLARED), "runs-dropped-unevenly") == []


@pytest.mark.parametrize("by_claim", [False, True])
def test_the_best_three_of_five(by_claim: bool) -> None:
    runs = comparison(TWO, (1, 2, 3, 4, 5))
    arms = {"ppo": {"name": "ppo-*"}, "tis": {"name": ["tis-seed1", "tis-seed3", "tis-seed4"]}}
    design = {**(claimed("tis", "ppo") if by_claim else DECLARED), "arms": arms}
    found = only(audit_of(runs, design), "runs-dropped-unevenly")
    assert found.level is (Level.FAIL if by_claim else Level.WARN)
    assert found.evidence["tis"] == {"launched": 5, "progressed": 5, "counted": 3}
    assert found.evidence["omitted"] == {"tis": ["tis-seed2", "tis-seed5"]}


def test_a_run_of_another_setting_was_not_left_out() -> None:
    other = make_run("old-seed7", {**ARMS["tis"], "actor_rollout_ref.actor.optim.lr": 9e-6}, 7)
    assert findings(audit_of([*comparison(TWO, (1, 2, 3)), other], DECLARED), "runs-dropped-unevenly") == []
    bare = without_config([make_run("old-seed8", ARMS["tis"], 8)])
    assert findings(audit_of([*comparison(TWO, (1, 2, 3)), *bare], DECLARED), "runs-dropped-unevenly") == []


# budget


def long_and_short(rate: float) -> list[FakeRun]:
    """Arms that learn alike until update 60; tis goes on to 120, at ``rate`` for each update."""
    noise = np.random.default_rng(0).normal(0, 0.004, (2, 5))
    runs = []
    for place, (arm, last) in enumerate((("ppo", 60), ("tis", 120))):
        for seed in range(1, 6):
            curve = {u: 0.5 + rate * u + noise[place, seed - 1] for u in range(0, last + 1, 10)}
            runs.append(make_run(f"{arm}-seed{seed}", ARMS[arm], seed, updates=last, metrics={SCORE: curve}))
    return runs


def test_an_arm_that_trained_twice_as_long() -> None:
    found = only(audit_of(long_and_short(1e-3), DECLARED), "unequal-budget")
    assert found.level is Level.WARN and found.evidence["last_updates"] == {"tis": 120.0, "ppo": 60.0}
    assert found.evidence["common_last"] == 60 and found.evidence["common_verdict"] == "undecided"
    assert found.evidence["own_verdict"] == "tis is better"
    assert found.evidence["own_mean"] - found.evidence["common_mean"] == pytest.approx(0.06)


def test_a_longer_arm_that_makes_no_difference() -> None:
    assert findings(audit_of(long_and_short(0.0), DECLARED), "unequal-budget") == []
    nearly = [run if run.name.startswith("tis") else cut(run, 55) for run in comparison(TWO, (1, 2, 3))]
    assert findings(audit_of(nearly, DECLARED), "unequal-budget") == []


def test_the_best_of_more_evaluations() -> None:
    runs = long_and_short(0.0)
    report = audit_of(runs, {**DECLARED, "metric": {"key": SCORE, "at": "best"}})
    assert "the best of 13 evaluations against the best of 7" in only(report, "unequal-budget").title
    equal = audit_of(comparison(TWO, (1, 2, 3)), {**DECLARED, "metric": {"key": SCORE, "at": "best"}})
    assert findings(equal, "unequal-budget") == []


def test_without_scores_no_budget_is_judged() -> None:
    undeclared = {key: value for key, value in DECLARED.items() if key != "metric"}
    report = audit_of(without_metrics(comparison(TWO, (1, 2, 3)), SCORE), undeclared)
    for rule in RULES[1:]:
        assert outcomes(report, rule) == {"not judged"}, rule


# the evaluation's noise

SMALL = {1: 231 / 300, 2: 229 / 300, 3: 233 / 300, 4: 227 / 300}
LARGER = {1: 234 / 300, 2: 232 / 300, 3: 236 / 300, 4: 229 / 300}


def test_a_difference_below_the_evaluations_error() -> None:
    runs = [*scored("ppo", SMALL), *scored("tis", LARGER)]
    found = only(audit_of(runs, claimed("tis", "ppo")), "below-eval-noise")
    # Mean score p = (920 + 931) / 8 / 300; sqrt(2 p (1 - p) / (300 * 4)) = 1.72 points; the difference is .92.
    p = (920 + 931) / 8 / 300
    assert found.evidence["error"] == pytest.approx(math.sqrt(2 * p * (1 - p) / 1200))
    assert found.evidence["items"] == [300] and found.level is Level.WARN and found.blames == ()


def test_a_tie_is_not_warned_of_for_being_small() -> None:
    runs = [*scored("ppo", SMALL), *scored("tis", {s: v + (-1) ** s / 300 for s, v in SMALL.items()})]
    report = audit_of(runs, {**DECLARED, "tie_margin": 0.02})
    assert only(report, "paired-difference").evidence["verdict"] == "tie"
    assert only(report, "below-eval-noise").level is Level.INFO


def test_a_small_difference_that_is_called_better_is_warned_of() -> None:
    runs = [*scored("ppo", SMALL), *scored("tis", LARGER)]
    report = audit_of(runs, DECLARED)
    assert only(report, "paired-difference").title.endswith("tis is better")
    assert only(report, "below-eval-noise").level is Level.WARN


def test_a_difference_that_is_resolved() -> None:
    runs = [*scored("ppo", SMALL), *scored("tis", {s: v + 30 / 300 for s, v in SMALL.items()})]
    assert findings(audit_of(runs, DECLARED), "below-eval-noise") == []


@pytest.mark.parametrize("offset", [3.0, 0.0])
def test_scores_that_tell_no_items_are_not_judged(offset: float) -> None:
    values = np.random.default_rng(1).uniform(0.7, 0.8, (2, 3)) + offset
    runs = [
        make_run(f"{arm}-seed{s}", ARMS[arm], s, metrics={SCORE: {60: values[a, s - 1]}})
        for a, arm in enumerate(TWO)
        for s in (1, 2, 3)
    ]
    report = audit_of(runs, DECLARED)
    assert outcomes(report, "below-eval-noise") == {"not judged"}
    assert not_judged(report, "below-eval-noise")[0].missing == ("evaluation_items",)


def rounded(digits: int, config: Mapping[str, Any]) -> list[FakeRun]:
    """Runs whose scores are known to a fixed number of decimals."""
    values = np.random.default_rng(2).uniform(0.7, 0.72, (2, 6)).round(digits)
    return [
        make_run(f"{arm}-seed{s}", {**ARMS[arm], **config}, s, metrics={SCORE: {0: 0.5, 60: values[a, s - 1]}})
        for a, arm in enumerate(TWO)
        for s in range(1, 7)
    ]


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_rounding_is_not_taken_for_a_number_of_items(digits: int) -> None:
    report = audit_of(rounded(digits, {}), DECLARED)
    assert outcomes(report, "below-eval-noise") == {"not judged"}
    entry = not_judged(report, "below-eval-noise")[0]
    assert entry.missing == ("evaluation_items",) and "name their number in the configuration" in entry.remedy


@pytest.mark.parametrize("key", ["evaluation_items", "trainer.eval_items"])
def test_the_configured_number_of_items_wins(key: str) -> None:
    found = only(audit_of(rounded(3, {key: 200}), DECLARED), "below-eval-noise")
    assert found.evidence["items"] == [200] and found.detail.startswith("On 200 items and 6 seeds.")
    other = [
        make_run(r.name, {**ARMS[r.name[:3]], key: 450}, int(r.name[-1]), metrics={SCORE: {0: 0.36, 60: v}})
        for r, v in zip([*scored("ppo", SMALL), *scored("tis", LARGER)], [*SMALL.values(), *LARGER.values()])
    ]
    assert only(audit_of(other, DECLARED), "below-eval-noise").evidence["items"] == [450]


@pytest.mark.parametrize("value", [0, True, "all", [1, 2], 0.5])
def test_a_configured_number_that_is_none_is_passed_over(value: object) -> None:
    report = audit_of(rounded(3, {"evaluation_items": value}), DECLARED)
    assert outcomes(report, "below-eval-noise") == {"not judged"}


# orderings of whole arms

NINE = {1: 0.70, 2: 0.71, 3: 0.80, 4: 0.79, 5: 0.78}
SIX = {1: 0.60, 2: 0.69, 3: 0.55}


def test_all_runs_above_all_others_with_unpaired_ones() -> None:
    report = audit_of([*scored("ppo", SIX), *scored("tis", NINE)], DECLARED)
    interval = only(report, "paired-difference").evidence["interval"]
    assert interval[0] <= 0 <= interval[1]
    found = only(report, "pooled-ordering")
    assert found.level is Level.WARN and found.evidence["unpaired_seeds"] == ["4", "5"]
    assert "all 5 runs of tis lie above all 3 of ppo" in found.title and not found.evidence["claimed"]


def test_an_ordering_counts_where_a_claim_uses_it() -> None:
    runs = [*scored("ppo", SIX), *scored("tis", {s: NINE[s] for s in SIX})]
    assert findings(audit_of(runs, DECLARED), "pooled-ordering") == []
    assert only(audit_of(runs, claimed("tis", "ppo", every_seed=True)), "pooled-ordering").evidence["claimed"]
    assert findings(audit_of(runs, claimed("ppo", "tis")), "pooled-ordering") == []


def test_an_ordering_that_pairing_bears_out_is_none() -> None:
    clear = {1: 0.81, 2: 0.90, 3: 0.755, 4: 0.8, 5: 0.9}
    assert findings(audit_of([*scored("ppo", SIX), *scored("tis", clear)], DECLARED), "pooled-ordering") == []


def test_a_lost_seed_explains_the_ordering() -> None:
    lost = [make_run(f"tis-seed{s}", ARMS["tis"], 1, metrics={SCORE: {0: 0.36, 60: NINE[s]}}) for s in (1, 2, 3)]
    report = audit_of([*scored("ppo", SIX), *lost], DECLARED)
    assert only(report, "pooled-ordering").because_of == "lost-seed"


# what the paired difference says beside its interval


def test_power_and_equivalence_are_told_where_a_margin_is_declared() -> None:
    runs = [*scored("ppo", dict.fromkeys(range(1, 6), 0.7))]
    runs += scored("tis", {s: 0.7 + d for s, d in enumerate((0.03, -0.02, 0.04, -0.01, 0.01), 1)})
    found = only(audit_of(runs, {**DECLARED, "tie_margin": 0.01}), "paired-difference")
    low, high = found.evidence["seeds_needed"]
    assert 1 < low < high and "To show a difference of 1 points with power 0.8 takes" in found.detail
    assert found.evidence["equivalence_interval"][0] < 0 and "Two one-sided tests" in found.detail
    assert "bootstrap" not in found.evidence
    assert "seeds_needed" not in only(audit_of(runs, DECLARED), "paired-difference").evidence


def test_five_tasks_and_three_seeds_have_an_interquartile_mean() -> None:
    runs = []
    for t, task in enumerate("abcde"):
        for a, arm in enumerate(TWO):
            for seed in (1, 2, 3):
                score = 0.3 + 0.1 * t + 0.02 * a + 0.001 * seed * (1 + a)
                settings = {**ARMS[arm], "data.train_files": task}
                runs.append(make_run(f"{arm}-{task}-seed{seed}", settings, seed, metrics={SCORE: {60: score}}))
    found = only(audit_of(runs, DECLARED), "paired-difference")
    # By hand: differences .021, .022, .023. The IQM leaves 3 of 15 out on either side (trim .25 rounds down).
    left = sorted(0.32 + 0.1 * t + 0.002 * s for t in range(5) for s in (1, 2, 3))[3:-3]
    right = sorted(0.3 + 0.1 * t + 0.001 * s for t in range(5) for s in (1, 2, 3))[3:-3]
    assert found.evidence["iqm"]["value"] == pytest.approx(np.mean(left) - np.mean(right))
    assert list(found.evidence["differences"].values()) == pytest.approx([0.021, 0.022, 0.023])


def test_benchmarks_of_one_checkpoint_are_one_score_on_one_scale() -> None:
    runs = [
        make_run(
            f"{arm}-seed{s}", ARMS[arm], s, metrics={"val/a": {0: 10.0, 60: 50.0 + 10 * a + s}, "val/b": {60: 0.5}}
        )
        for a, arm in enumerate(TWO)
        for s in (1, 2, 3)
    ]
    design = {k: v for k, v in DECLARED.items() if k != "metric"} | {"benchmarks": {"val/a": 100, "val/b": 1}}
    report = audit_of(runs, design)
    assert report.design.metric == "mean of val/a, val/b"
    scores = {run.label: run.score for run in report.runs.values()}
    assert scores["tis-seed2"] == pytest.approx((0.62 + 0.5) / 2)
    assert outcomes(report, "below-eval-noise") == {"not judged"}
    assert only(report, "paired-difference").evidence["n"] == 3
    missing = audit_of(without_metrics(runs, "val/b", glob="tis-seed1"), design)
    assert only(missing, "paired-difference").evidence["n"] == 2


def test_arms_that_claims_compare_are_judged_beside_the_baselines() -> None:
    runs = change(comparison(ARMS, (1, 2, 3)), "none")
    arms = {arm: {"name": f"{arm}-*"} for arm in ARMS}
    claim = {"text": "TIS beats clip-higher", "expect": {"better": "tis", "than": "clip-higher"}}
    report = audit_of(runs, {"arms": arms, "baseline": "ppo", "claims": [claim]})
    found = {one.arms: one for one in findings(report, "paired-difference")}
    assert set(found) == {("clip-higher", "ppo"), ("tis", "ppo"), ("tis", "clip-higher")}
    # What the claim names is a family of one; the others are adjusted over all three.
    own = found["tis", "clip-higher"].evidence
    assert own["adjusted_p"] == pytest.approx(own["p"])
    assert all(one.evidence["adjusted_p"] >= one.evidence["p"] for one in found.values())
    assert all(one.basis is Basis.DECLARED for one in found.values())


@pytest.mark.parametrize(("again", "dropped"), [(False, 1), (True, 0)])
def test_replicates_whose_seed_does_not_act_are_told_by_their_names(again: bool, dropped: int) -> None:
    settings = {**ARMS["tis"], "data.seed": None}
    runs = [*comparison({"ppo": {}}, (41, 42, 43)), *comparison({"tis": settings}, (41, 42, 43))]
    runs = [cut(run, 20, state=RunState.CRASHED) if run.name == "tis-seed43" else run for run in runs]
    if again:  # the attempt was repeated under its name
        runs.append(make_run("tis-seed43", settings, None, number=50))
    report = audit_of(runs, {"arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}, "baseline": "ppo"})
    assert len(findings(report, "runs-dropped-unevenly")) == dropped

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pth_tracker.engine import Options, audit
from pth_tracker.model import Basis, Level
from synthetic import (
    ARMS,
    SCORE,
    FakeRun,
    audit_of,
    comparison,
    cut,
    findings,
    loud,
    make_run,
    not_judged,
    only,
    outcomes,
    with_metrics,
    without_config,
    without_metrics,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
DECLARED: dict[str, Any] = {"arms": {"ppo": {"name": "ppo*"}, "tis": {"name": "tis*"}}, "baseline": "ppo"}
REFERENCE = {
    ("grpo", 64): (0.743, 0.778, 0.777),
    ("tis", 64): (0.763, 0.785, 0.808),
    ("grpo", 96): (0.114, 0.280, 0.099),
    ("tis", 96): (0.764, 0.781, 0.785),
}
"""Final accuracies by arm, refresh interval and data seed (42, 43, 44)."""


def scored(arm: str, scores: Mapping[int, float], settings: Mapping[str, Any] | None = None) -> list[FakeRun]:
    return [
        make_run(f"{arm}-seed{seed}", {**ARMS.get(arm, {}), **(settings or {})}, seed, metrics={SCORE: {60: score}})
        for seed, score in scores.items()
    ]


def reference() -> list[FakeRun]:
    runs: list[FakeRun] = []
    for (arm, interval), scores in REFERENCE.items():
        settings = {"trainer.sync_interval": interval, **ARMS["ppo" if arm == "grpo" else "tis"]}
        for seed, score in zip((42, 43, 44), scores):
            name = f"{arm}-n{interval}-seed{seed}"
            runs.append(make_run(name, settings, seed, metrics={SCORE: {60: score}}, number=len(runs)))
    return runs


def test_the_reference_table() -> None:
    design = {"arms": {"grpo": {"name": "grpo-*"}, "tis": {"name": "tis-*"}}, "baseline": "grpo"}
    report = audit_of(reference(), design)
    assert report.design.stress == "trainer.sync_interval" and "stress" in report.design.inferred
    mild, hard = sorted(findings(report, "paired-difference"), key=lambda one: one.evidence["mean"])
    assert mild.title == (
        "tis against grpo at trainer.sync_interval=64: +1.93 points over 3 seeds, "
        "95% interval -1.05 to +4.92: undecided"
    )
    assert [round(100 * d, 1) for d in mild.evidence["differences"].values()] == [2.0, 0.7, 3.1]
    assert mild.evidence["sign_flip_p"] == mild.evidence["smallest_sign_flip_p"] == 0.25
    assert "tis ahead on 3 of 3" in mild.detail
    # At 96 by hand: 65.0, 50.1, 68.6 points; mean 61.23, s 9.809, 4.302653 * s / sqrt(3) = 24.37.
    assert [round(100 * d, 1) for d in hard.evidence["differences"].values()] == [65.0, 50.1, 68.6]
    assert hard.title.startswith("tis against grpo at trainer.sync_interval=96: +61.23 points over 3 seeds")
    assert "95% interval +36.87 to +85.60: tis is better" in hard.title
    # t = 61.2333 / (9.809 / sqrt 3) = 10.81 on 2 degrees: p = 0.00845, the smaller of two, so twice it after Holm.
    assert hard.evidence["adjusted_p"] == pytest.approx(2 * hard.evidence["p"])
    assert hard.evidence["p"] == pytest.approx(0.00845, abs=5e-5) and "over 2 comparisons" in hard.detail
    assert not findings(report, "lost-seed") and not findings(report, "unpaired-runs")


def test_a_clean_comparison_says_nothing_above_information() -> None:
    report = audit_of(comparison())
    assert loud(report) == [] and len(findings(report, "paired-difference")) == 2
    assert all(one.blames == () and one.level is Level.INFO for one in findings(report, "paired-difference"))


def test_where_lower_is_better_the_smaller_arm_is_ahead() -> None:
    runs = [*scored("ppo", {1: 5.0, 2: 5.1, 3: 5.2}), *scored("tis", {1: 3.0, 2: 3.1, 3: 3.15})]
    design = {**DECLARED, "metric": {"key": SCORE, "higher_is_better": False}}
    found = only(audit_of(runs, design), "paired-difference")
    assert found.title.endswith("tis is better") and "tis ahead on 3 of 3" in found.detail
    assert "points" not in found.title
    assert only(audit_of(runs, DECLARED), "paired-difference").title.endswith("ppo is better")


@pytest.mark.parametrize(("margin", "word"), [(None, "undecided"), (0.05, "tie"), (1e-4, "undecided")])
def test_a_tie_needs_a_declared_margin(margin: float | None, word: str) -> None:
    differences = (0.004, -0.003, 0.002, -0.001, 0.003)
    runs = [
        *scored("ppo", dict.fromkeys(range(1, 6), 0.7)),
        *scored("tis", {seed: 0.7 + d for seed, d in enumerate(differences, 1)}),
    ]
    found = only(audit_of(runs, {**DECLARED, "tie_margin": margin}), "paired-difference")
    assert found.evidence["verdict"] == word


def test_several_runs_of_one_seed_count_by_their_mean() -> None:
    extra = make_run("tis-seed1-again", ARMS["tis"], 1, metrics={SCORE: {60: 0.9}})
    runs = [*scored("ppo", {1: 0.5, 2: 0.5, 3: 0.5}), *scored("tis", {1: 0.6, 2: 0.62, 3: 0.64}), extra]
    differences = only(audit_of(runs), "paired-difference").evidence["differences"]
    assert list(differences.values()) == pytest.approx([0.25, 0.12, 0.14])


def test_tasks_are_averaged_for_each_seed_over_the_pairs_that_both_trained() -> None:
    def on(task: str, arm: str, scores: dict[int, float]) -> list[FakeRun]:
        return [
            make_run(
                f"{arm}-{task}-seed{seed}", {**ARMS[arm], "data.train_files": task}, seed, metrics={SCORE: {60: s}}
            )
            for seed, s in scores.items()
        ]

    runs = [
        *on("a", "ppo", {1: 0.5, 2: 0.5}),
        *on("b", "ppo", {1: 0.1, 2: 0.1}),
        *on("a", "tis", {1: 0.6, 2: 0.7}),
        *on("b", "tis", {1: 0.5}),
        *on("c", "tis", {1: 0.9, 2: 0.9}),
    ]
    found = only(audit_of(runs, DECLARED), "paired-difference")
    # seed 1: mean(0.1, 0.4) over a and b; seed 2: 0.2 on a alone; c has no partner.
    assert found.evidence["differences"] == pytest.approx({"1": 0.25, "2": 0.2})


def test_scores_that_are_not_finite_are_left_out() -> None:
    runs = [*scored("ppo", {1: 0.5, 2: 0.5, 3: 0.5}), *scored("tis", {1: 0.6, 2: math.nan, 3: math.inf})]
    report = audit_of(runs, DECLARED)
    assert only(report, "paired-difference").evidence["n"] == 1
    every = [*scored("ppo", {1: 0.5, 2: 0.5}), *scored("tis", {1: math.nan, 2: math.nan})]
    report = audit_of(every, DECLARED)
    for rule in ("paired-difference", "too-few-seeds"):
        assert outcomes(report, rule) == {"not judged"}, rule


@pytest.mark.parametrize("at", ["last", "best", {"mean_over": 20}])
def test_which_score_counts(at: object) -> None:
    curve: dict[int, float] = {0: 0.1, 40: 0.8, 45: 0.4, 60: 0.6}
    runs = with_metrics(comparison(TWO, (1, 2, 3)), "*", {SCORE: curve})
    report = audit_of(runs, {"metric": {"key": SCORE, "at": at}})
    expected = {"last": 0.6, "best": 0.8}.get(str(at), 0.5)  # updates 41 to 60 hold 0.4 and 0.6
    assert {run.score for run in report.runs.values()} == {expected}


# too few, none, some


@pytest.mark.parametrize(("n", "level"), [(1, True), (2, True), (3, False)])
def test_too_few_seeds(n: int, level: bool) -> None:
    report = audit_of(comparison(TWO, tuple(range(1, n + 1))), DECLARED)
    assert bool(findings(report, "too-few-seeds")) is level
    paired = only(report, "paired-difference")
    if n == 1:
        assert paired.evidence["interval"] == [None, None]
        assert paired.title.endswith("over 1 seed, no interval from one seed: undecided")
        assert paired.evidence["p"] is None and paired.title.endswith("undecided")
    if level:
        found = only(report, "too-few-seeds")
        assert (
            found.level is Level.WARN
            and found.blames == ()
            and found.evidence["seeds"] == [str(k + 1) for k in range(n)]
        )


@pytest.mark.parametrize(("pairing", "level"), [("required", Level.FAIL), ("sensible", Level.WARN)])
def test_no_seed_in_common(pairing: str, level: Level) -> None:
    runs = [*comparison({"ppo": {}}, (1, 2, 3)), *comparison({"tis": ARMS["tis"]}, (4, 5, 6))]
    report = audit_of(runs, {**DECLARED, "pairing": pairing})
    found = only(report, "no-common-seed")
    assert found.level is level and found.evidence["a"] == ["4", "5", "6"] and "Welch" in found.detail
    for rule in ("paired-difference", "too-few-seeds", "unpaired-runs"):
        assert outcomes(report, rule) == {"not judged"}, rule
        assert not_judged(report, rule)[0].missing == ("common_seed",)
    inferred = only(audit_of(runs, {"pairing": pairing}), "no-common-seed")
    assert inferred.level is Level.WARN and inferred.basis is Basis.INFERRED


def test_a_baseline_with_more_seeds_is_information() -> None:
    runs = [*comparison({"ppo": {}}, (1, 2, 3, 4, 5)), *comparison({"tis": ARMS["tis"]}, (1, 2, 3))]
    report = audit_of(runs, DECLARED)
    found = only(report, "unpaired-runs")
    assert found.level is Level.INFO and found.evidence == {"only_a": [], "only_b": ["4", "5"]}
    assert len(found.runs) == 2 and loud(report) == []


def test_seeds_in_either_arm_alone_warn() -> None:
    runs = [*comparison({"ppo": {}}, (1, 2, 3, 4)), *comparison({"tis": ARMS["tis"]}, (2, 3, 4, 5))]
    found = only(audit_of(runs, DECLARED), "unpaired-runs")
    assert found.level is Level.WARN and found.evidence == {"only_a": ["5"], "only_b": ["1"]}


def test_an_aborted_run_leaves_its_seed_unpaired() -> None:
    runs = comparison(TWO, (1, 2, 3, 4))
    runs[-1] = cut(runs[-1], 10)
    report = audit_of(runs, DECLARED)
    assert only(report, "paired-difference").evidence["n"] == 3
    assert only(report, "unpaired-runs").evidence == {"only_a": [], "only_b": ["4"]}


def test_seeds_are_sorted_as_numbers() -> None:
    report = audit_of(comparison(TWO, (2, 10, 1)), DECLARED)
    assert list(only(report, "paired-difference").evidence["differences"]) == ["1", "2", "10"]


@pytest.mark.parametrize("glob", ["*", "tis-*"])
def test_without_scores_no_difference_is_judged(glob: str) -> None:
    report = audit_of(without_metrics(comparison(TWO, (1, 2, 3)), SCORE, glob=glob), DECLARED)
    for rule in ("paired-difference", "too-few-seeds"):
        assert outcomes(report, rule) == {"not judged"}, rule
        entry = not_judged(report, rule)[0]
        assert "score" in entry.missing and "--metric" in entry.remedy


def test_without_seeds_nothing_is_paired_and_nothing_passes() -> None:
    settings = {"data.sampler.class_path": "mine.py"}
    runs = [make_run(f"{arm}{number}", {**TWO[arm], **settings}) for arm in TWO for number in range(3)]
    report = audit_of(runs, DECLARED)
    for rule in ("paired-difference", "too-few-seeds", "no-common-seed", "unpaired-runs"):
        assert outcomes(report, rule) == {"not judged"}, rule
        entry = not_judged(report, rule)[0]
        assert "replicate" in entry.missing and "--replicate" in entry.remedy


def test_names_pair_runs_whose_configuration_is_not_logged() -> None:
    report = audit_of(without_config(comparison(TWO, (1, 2, 3))), DECLARED)
    assert only(report, "paired-difference").evidence["n"] == 3
    assert report.design.replicate == ("the seed in the name",)


def test_public_tables_pair_perfectly_and_nothing_else_speaks(shared_data: Path) -> None:
    from pth_tracker_files.tracker import FilesTracker

    report = audit(FilesTracker([str(shared_data / "tables")]), Options())
    assert len(report.runs) == 36 and len(report.design.arms) == 4
    assert {one.rule for one in report.findings} <= {"paired-difference", "below-eval-noise", "unpaired-runs"}
    found = findings(report, "paired-difference")
    assert len(found) == 3 and all(one.evidence["n"] == 3 and len(one.runs) == 18 for one in found)
    assert not findings(report, "unpaired-runs") and loud(report) == []

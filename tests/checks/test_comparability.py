"""What two arms must share: the code, the learning rate at each update, the score, and the starting point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pth_tracker.model import Basis, Level
from synthetic import (
    ACTOR,
    LR,
    SCORE,
    FakeRun,
    Values,
    audit_of,
    change,
    clean_metrics,
    comparison,
    findings,
    labels,
    make_run,
    not_judged,
    only,
    outcomes,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

CODE, SCHEDULE, SCORES, START = "code-differs", "schedule-differs", "score-not-comparable", "start-differs"
TWO: Mapping[str, Mapping[str, Any]] = {"ppo": {}, "tis": {"algorithm.rollout_correction.rollout_is": "token"}}
DECLARED = {"arms": {arm: {"name": f"{arm}-*"} for arm in TWO}, "baseline": "ppo"}


def arms(seeds: Sequence[int] = (41, 42, 43)) -> list[FakeRun]:
    return comparison(TWO, seeds)


# code-differs


def commits(runs: list[FakeRun], **of: str) -> list[FakeRun]:
    for glob, commit in of.items():
        runs = change(runs, f"{glob}-*", commit=commit)
    return runs


def test_one_commit_an_arm_and_none_in_common_is_a_warning_that_blames_nobody() -> None:
    report = audit_of(commits(arms(), ppo="1f2e3d4", tis="5a6b7c8"), DECLARED, select=(CODE,))
    found = only(report, CODE)
    assert found.level is Level.WARN and found.basis is Basis.DECLARED and not found.blames
    assert "commit 5a6b7c8 against 1f2e3d4" in found.detail


def test_commits_that_change_at_every_launch_are_noted_only() -> None:
    runs = arms()
    for place, run in enumerate(list(runs)):
        runs = change(runs, run.name, commit=f"{place:07x}")
    found = only(audit_of(runs, DECLARED, select=(CODE,)), CODE)
    assert found.level is Level.INFO and "from launch to launch" in found.title


@pytest.mark.parametrize("tis", ["1f2e3d4", ""])
def test_a_common_or_unknown_commit_is_no_difference(tis: str) -> None:
    report = audit_of(commits(arms(), ppo="1f2e3d4", tis=tis), DECLARED, select=(CODE,))
    assert not findings(report, CODE)


def test_one_run_at_the_other_arms_commit_is_enough_in_common() -> None:
    runs = change(commits(arms(), ppo="1f2e3d4", tis="5a6b7c8"), "tis-seed43", commit="1f2e3d4")
    assert not findings(audit_of(runs, DECLARED, select=(CODE,)), CODE)


def test_releases_are_told_from_the_configuration() -> None:
    newer = with_config(arms(), "tis-*", {"distillation.enabled": False})
    found = only(audit_of(newer, DECLARED, select=(CODE,)), CODE)
    assert "release verl 0.8.0 against verl 0.7.1" in found.detail and found.level is Level.WARN


def test_without_commit_and_release_it_is_not_judged() -> None:
    report = audit_of(without_config(arms()), DECLARED, select=(CODE,))
    (entry,) = not_judged(report, CODE)
    assert "git checkout" in entry.remedy


# schedule-differs


def cosine(total: int, updates: int) -> list[float]:
    return [2e-6 * 0.5 * (1 + float(np.cos(np.pi * step / total))) for step in range(updates)]


def test_a_schedule_that_ends_with_the_run_differs_at_the_same_update() -> None:
    # 300 against 700 updates: at update 270 the factor is (1 + cos 0.9 pi) / (1 + cos 0.386 pi) = 0.0489 / 1.351.
    short = [make_run(f"ppo-seed{n}", None, n, updates=300, metrics={LR: cosine(300, 300)}) for n in (41, 42)]
    long = [make_run(f"tis-seed{n}", TWO["tis"], n, updates=700, metrics={LR: cosine(700, 700)}) for n in (41, 42)]
    report = audit_of([*short, *long], DECLARED, select=(SCHEDULE,))
    found = only(report, SCHEDULE)
    assert found.level is Level.WARN and labels(report, found.blames) == ["tis-seed41", "tis-seed42"]
    assert found.evidence["share"] > 0.5 and found.evidence["factor"] > 7.4


@pytest.mark.parametrize(
    ("rates", "design", "found"),
    [
        ((1e-6, 2e-6), None, 0),  # what is logged is the setting by which the arms differ
        ((1e-6, 2e-6), DECLARED, 1),  # somebody declared arms, and no learning rate that varies
        ((1e-6, 5e-6), None, 1),  # another factor than the settings'
        ((1e-6, [2e-6] * 30 + [1e-6] * 30), None, 1),  # another schedule as well
    ],
)
def test_a_rate_that_sets_the_arms_apart_is_no_other_schedule(rates: Any, design: Any, found: int) -> None:
    runs = [
        make_run(f"{arm}-seed{n}", {f"{ACTOR}.optim.lr": setting}, n, metrics={LR: rate})
        for arm, setting, rate in (("ppo", 1e-6, rates[0]), ("tis", 2e-6, rates[1]))
        for n in (41, 42, 43)
    ]
    assert len(findings(audit_of(runs, design, select=(SCHEDULE,)), SCHEDULE)) == found


def test_a_warmup_one_update_apart_is_no_other_schedule() -> None:
    early = [2e-6 * min(1.0, (step + 1) / 3) for step in range(60)]
    late = [2e-6 * min(1.0, step / 3) for step in range(60)]
    runs = with_metrics(with_metrics(arms(), "ppo-*", {LR: early}), "tis-*", {LR: late})
    # Updates 1 to 3 of 60 differ: 5%, and not more.
    assert not findings(audit_of(runs, DECLARED, select=(SCHEDULE,)), SCHEDULE)


def test_a_constant_rate_that_differs_is_found_and_one_that_is_the_treatment_is_not() -> None:
    runs = with_metrics(arms(), "tis-*", {LR: 1e-6})
    runs = with_config(runs, "tis-*", {f"{ACTOR}.optim.lr": 1e-6})
    assert only(audit_of(runs, DECLARED, select=(SCHEDULE,)), SCHEDULE).evidence["share"] == 1.0
    varied = {**DECLARED, "vary": [f"{ACTOR}.optim.lr"]}
    assert not findings(audit_of(runs, varied, select=(SCHEDULE,)), SCHEDULE)


def test_rates_printed_with_three_decimals_are_never_judged() -> None:
    # 2e-6 and 1e-6 both print as 0.000, 4e-4 as 0.000 and 6e-4 as 0.001.
    runs = [
        make_run(f"{arm}-seed{n}", TWO[arm], n, metrics={LR: rate}, decimals={LR: 3})
        for arm, rate in (("ppo", 0.0), ("tis", 0.001))
        for n in (41, 42)
    ]
    report = audit_of(runs, DECLARED, select=(SCHEDULE,))
    assert not findings(report, SCHEDULE)
    (entry,) = not_judged(report, SCHEDULE)
    assert "exact_rates" in entry.missing


def test_few_common_updates_are_not_judged() -> None:
    runs = with_metrics(without_metrics(arms(), LR, glob="tis-*"), "tis-*", {LR: {n: 1e-6 for n in range(200, 260)}})
    assert outcomes(audit_of(runs, DECLARED, select=(SCHEDULE,)), SCHEDULE) == {"not judged"}


# score-not-comparable


def test_another_metric_key_in_one_arm_fails() -> None:
    other = SCORE.replace("mean@1", "mean@16")
    curve: dict[str, Values] = {other: {step: 0.5 for step in range(0, 61, 5)}}
    runs = with_metrics(without_metrics(arms(), SCORE, glob="tis-*"), "tis-*", curve)
    report = audit_of(runs, {**DECLARED, "metric": {"key": SCORE}}, select=(SCORES,))
    found = only(report, SCORES)
    assert found.level is Level.FAIL and "mean@16" in found.title
    assert labels(report, found.blames) == ["tis-seed41", "tis-seed42", "tis-seed43"]


def test_inferred_arms_without_a_known_task_may_be_two_tasks() -> None:
    walker: dict[str, Values] = {"eval/walker_score": {step: 0.5 + step for step in range(0, 61, 5)}}
    cheetah: dict[str, Values] = {"eval/cheetah_score": {step: 0.5 + step for step in range(0, 61, 5)}}
    runs = [
        make_run(f"{task}-seed{n}", config={}, metrics={**dict.fromkeys(_names()), **curve})
        for task, curve in (("walker", walker), ("cheetah", cheetah))
        for n in (1, 2)
    ]
    assert not findings(audit_of(runs, select=(SCORES,)), SCORES)
    design = {"arms": {"a": {"name": "walker-*"}, "b": {"name": "cheetah-*"}}}
    assert only(audit_of(runs, design, select=(SCORES,)), SCORES).level is Level.FAIL


def _names() -> list[str]:
    return list(clean_metrics("anyone", 1))


def test_a_pattern_that_means_two_keys_fails() -> None:
    other = SCORE.replace("gsm8k", "math")
    curve: dict[str, Values] = {other: {step: 0.5 for step in range(0, 61, 5)}}
    runs = with_metrics(without_metrics(arms(), SCORE, glob="tis-*"), "tis-*", curve)
    found = only(audit_of(runs, {**DECLARED, "metric": {"key": "val-core/*/acc/mean@1"}}, select=(SCORES,)), SCORES)
    assert found.level is Level.FAIL and "openai/math" in found.title


def test_a_name_that_a_tracker_mangled_is_the_same_name() -> None:
    mangled = SCORE.replace("@", "_at_")
    runs = arms()
    points = next(run for run in runs if run.name == "ppo-seed41").points[SCORE]
    curve: dict[str, Values] = {mangled: dict(zip(*points))}
    runs = with_metrics(without_metrics(runs, SCORE, glob="tis-*"), "tis-*", curve)
    assert not findings(audit_of(runs, {**DECLARED, "metric": {"key": SCORE}}, select=(SCORES,)), SCORES)


def test_an_arm_that_broke_off_before_its_first_evaluation_has_no_other_key() -> None:
    runs = without_metrics(arms(), SCORE, glob="tis-*")
    assert not findings(audit_of(runs, {**DECLARED, "metric": {"key": SCORE}}, select=(SCORES,)), SCORES)


PENALISED = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01}


@pytest.mark.parametrize("metric, level", [("critic/rewards/mean", Level.FAIL), ("critic/score/mean", None)])
def test_a_training_reward_that_holds_the_treatment_is_no_score(metric: str, level: Level | None) -> None:
    runs = with_config(arms(), "tis-*", PENALISED)
    found = findings(audit_of(runs, {**DECLARED, "metric": {"key": metric}}, select=(SCORES,)), SCORES)
    assert [one.level for one in found] == ([level] if level else [])
    assert all("fixed KL, coefficient 0.01 in tis, none in ppo" in one.title for one in found)


def test_a_coefficient_of_a_penalty_that_is_off_is_no_penalty() -> None:
    runs = with_config(arms(), "tis-*", {"algorithm.kl_ctrl.kl_coef": 0.01})
    design = {**DECLARED, "metric": {"key": "critic/rewards/mean"}}
    assert not findings(audit_of(runs, design, select=(SCORES,)), SCORES)


@pytest.mark.parametrize(
    "settings",
    [
        {"data.val_files": "gsm8k/test-small.parquet"},
        {"actor_rollout_ref.rollout.val_kwargs.temperature": 1.0},
        {"actor_rollout_ref.rollout.val_kwargs.top_p": 0.7},
        {"actor_rollout_ref.rollout.val_kwargs.n": 16},
        {"data.max_response_length": 1024},
        {"reward.custom_reward_function.path": "rewards/lenient.py"},
        {"data.val_max_samples": 200},
    ],
)
def test_an_evaluation_that_differs_is_a_warning_that_names_the_field(settings: Mapping[str, Any]) -> None:
    found = only(audit_of(with_config(arms(), "tis-*", settings), DECLARED, select=(SCORES,)), SCORES)
    assert found.level is Level.WARN and found.evidence["fields"] == list(settings)


@pytest.mark.parametrize("settings", [{"data.val_batch_size": 64}, {"actor_rollout_ref.rollout.temperature": 0.8}])
def test_what_is_no_setting_of_the_evaluation_is_none(settings: Mapping[str, Any]) -> None:
    assert not findings(audit_of(with_config(arms(), "tis-*", settings), DECLARED, select=(SCORES,)), SCORES)


def test_inferred_arms_warn_at_most() -> None:
    runs = with_config(arms(), "tis-*", {"actor_rollout_ref.rollout.val_kwargs.n": 16})
    assert only(audit_of(runs, select=(SCORES,)), SCORES).level is Level.WARN


# start-differs


def starting_at(runs: list[FakeRun], glob: str, rate: float) -> list[FakeRun]:
    """The runs with another accuracy at update 0, on the grid of 1,319 items."""
    for run in runs:
        steps, values = run.points[SCORE]
        curve = {**dict(zip(steps, values)), 0: round(rate * 1319) / 1319}
        runs = with_metrics(runs, run.name, {SCORE: curve}) if run.name.startswith(glob) else runs
    return runs


def test_arms_of_one_model_that_start_apart_fail() -> None:
    # sqrt(2 * 0.41 * 0.59 / 1319) = 1.92 points: 10 points are 5.2 standard errors.
    report = audit_of(starting_at(arms(), "tis", 0.46), DECLARED, select=(START,))
    found = only(report, START)
    assert found.level is Level.FAIL and found.basis is Basis.CONTRADICTION
    assert found.evidence["items"] == 1319 and found.evidence["error"] == pytest.approx(0.0191, abs=2e-4)
    assert "configured alike" in found.detail


def test_seven_points_are_within_four_standard_errors() -> None:
    assert not findings(audit_of(starting_at(arms(), "tis", 0.43), DECLARED, select=(START,)), START)


@pytest.mark.parametrize(
    "settings", [{"actor_rollout_ref.model.path": "Qwen/Qwen3-4B"}, {"actor_rollout_ref.rollout.val_kwargs.n": 4}]
)
def test_another_model_or_evaluation_explains_it_and_warns(settings: Mapping[str, Any]) -> None:
    runs = with_config(starting_at(arms(), "tis", 0.6), "tis-*", settings)
    assert only(audit_of(runs, DECLARED, select=(START,)), START).level is Level.WARN


def test_without_configuration_nothing_is_known_to_be_equal() -> None:
    runs = without_config(starting_at(arms(), "tis", 0.6))
    report = audit_of(runs, {**DECLARED, "metric": {"key": SCORE}}, select=(START,))
    assert only(report, START).level is Level.WARN


def test_a_first_score_after_training_is_no_start() -> None:
    runs = starting_at(arms(), "tis", 0.6)
    late: list[FakeRun] = []
    for run in runs:
        steps, values = run.points[SCORE]
        curve = dict(zip(steps[1:], values[1:]))
        late += with_metrics(without_metrics([run], SCORE), "*", {SCORE: curve})
    report = audit_of(late, {**DECLARED, "metric": {"key": SCORE}}, select=(START,))
    (entry,) = not_judged(report, START)
    assert "start_scores" in entry.missing


def test_scores_that_are_no_rates_are_judged_by_the_spread_of_their_seeds() -> None:
    # Returns of 100, 110, 120 against 200, 210, 220: the error is sqrt(2 * 100 / 3) = 8.16, and 100 are 12 of it.
    runs = arms()
    for arm, base in (("ppo", 100.0), ("tis", 200.0)):
        for place, seed in enumerate((41, 42, 43)):
            curve = {step: base + 10 * place + step for step in range(0, 61, 5)}
            runs = with_metrics(runs, f"{arm}-seed{seed}", {SCORE: curve})
    found = only(audit_of(runs, {**DECLARED, "metric": {"key": SCORE}}, select=(START,)), START)
    assert found.evidence["error"] == pytest.approx(8.165, abs=1e-3) and found.evidence["items"] is None
    assert "12.2 standard errors apart" in found.detail


def test_a_clean_comparison_passes_all_four() -> None:
    report = audit_of(commits(arms(), ppo="1f2e3d4", tis="1f2e3d4"), DECLARED, select=(CODE, SCHEDULE, SCORES, START))
    assert not report.findings
    for rule in (CODE, SCHEDULE, SCORES, START):
        assert outcomes(report, rule) == {"passed"}

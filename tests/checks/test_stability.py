from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pth_tracker.model import Level
from synthetic import (
    ARMS,
    SCORE,
    FakeRun,
    Values,
    audit_of,
    comparison,
    findings,
    labels,
    loud,
    make_run,
    not_judged,
    only,
    outcomes,
    with_metrics,
    without_metrics,
)

TRAIN = "critic/score/mean"
LENGTH = "response_length/mean"
TRUNCATED = "response_length/clip_ratio"
TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
STRESS = "trainer.sync_interval"
DECLARED: dict[str, Any] = {
    "arms": {"ppo": {"name": "ppo*"}, "tis": {"name": "tis*"}},
    "baseline": "ppo",
    "stress": {"key": STRESS},
    "metric": {"key": SCORE},
}
RISING = (0.36, 0.45, 0.55, 0.62, 0.68, 0.71, 0.73, 0.74, 0.745, 0.75, 0.752, 0.75, 0.753)
FALLEN = (0.36, 0.45, 0.55, 0.62, 0.68, 0.71, 0.73, 0.74, 0.60, 0.35, 0.20, 0.12, 0.10)


def evaluated(values: tuple[float, ...], every: int = 5) -> dict[str, Values]:
    return {SCORE: {place * every: value for place, value in enumerate(values)}}


def one(values: tuple[float, ...], **metrics: Values | None) -> list[FakeRun]:
    return [make_run("ppo-seed1", seed=1, metrics={**evaluated(values), **metrics})]


# collapsed


def test_a_run_that_loses_what_it_learned_has_collapsed() -> None:
    report = audit_of(one(FALLEN))
    found = only(report, "collapsed")
    assert found.level is Level.WARN and found.title == "the score collapsed" and len(found.blames) == 1
    assert found.evidence["peak_at"] == 35 and found.evidence["last_at"] == 60 and not found.evidence["weak"]
    assert found.evidence["final"] == pytest.approx(0.11)  # the median of the last two of 13
    assert "reached 0.735 at update 35 and ended at 0.11" in found.detail
    assert outcomes(report, "collapsed") == {"warned"}


def test_a_healthy_run_passes() -> None:
    report = audit_of(one(RISING))
    assert findings(report, "collapsed") == [] and outcomes(report, "collapsed") == {"passed"}


def test_a_spike_that_recovers_is_no_collapse() -> None:
    spike = (*RISING[:9], 0.10, 0.12, *RISING[11:])
    assert findings(audit_of(one(spike)), "collapsed") == []


@pytest.mark.parametrize(
    ("n", "outcome"), [(4, "not judged"), (5, "passed"), (7, "warned"), (9, "warned"), (10, "warned")]
)
def test_few_evaluations_are_not_judged_or_said_to_be_weak(n: int, outcome: str) -> None:
    curve = (*(0.3 + 0.41 * (place / (n - 3)) ** 0.9 for place in range(n - 2)), 0.11234567, 0.1)
    runs = one(curve, **{TRAIN: None, "critic/rewards/mean": None})
    report = audit_of(runs)
    assert outcomes(report, "collapsed") == {outcome}
    if outcome == "not judged":
        assert "evaluations" in not_judged(report, "collapsed")[0].missing
        assert "at least 5 times" in not_judged(report, "collapsed")[0].remedy
    elif outcome == "warned":
        found = only(report, "collapsed")
        assert found.evidence["weak"] is (n < 10) and ("Weak evidence" in found.detail) is (n < 10)


def test_a_score_that_is_not_finite_to_the_end() -> None:
    found = only(audit_of(one((*RISING[:-2], math.nan, math.inf))), "collapsed")
    assert found.title == "the score is not finite to the end" and found.level is Level.WARN
    recovered = (*RISING[:6], math.nan, *RISING[7:])
    assert findings(audit_of(one(recovered)), "collapsed") == []


def test_where_lower_is_better_a_rise_is_a_collapse() -> None:
    design = {"metric": {"key": SCORE, "higher_is_better": False}}
    worse = tuple(5 - 4 * value for value in FALLEN)
    assert only(audit_of(one(worse), design), "collapsed").evidence["peak"] == pytest.approx(5 - 4 * 0.735)
    assert findings(audit_of(one(tuple(5 - 4 * v for v in RISING)), design), "collapsed") == []


def test_the_noise_of_30_items_is_no_collapse() -> None:
    # Peak 20/30, end 15/30: 17 points lost of a gain of 20, less than three errors of sqrt(.25/30) = 9 points.
    curve = tuple(k / 30 for k in (14, 15, 17, 18, 20, 20, 19, 18, 17, 16, 15, 15, 15))
    assert findings(audit_of(one(curve)), "collapsed") == []


def test_the_training_score_is_judged_where_nothing_was_evaluated() -> None:
    up, down = np.linspace(0.3, 0.75, 40), np.linspace(0.7, 0.05, 20)
    train = np.concatenate((up, down))
    runs = without_metrics([make_run("ppo-seed1", seed=1, metrics={TRAIN: train})], "val-core/*")
    report = audit_of(runs)
    found = only(report, "collapsed")
    assert found.title == "the training score collapsed" and found.evidence["metric"] == TRAIN
    assert "do not show it" not in found.detail
    both = only(audit_of(one(RISING, **{TRAIN: train})), "collapsed")
    assert both.title == "the training score collapsed" and both.detail.endswith("The evaluations do not show it.")


def test_three_runs_of_an_arm_make_one_finding() -> None:
    runs = with_metrics(comparison(TWO, (1, 2, 3)), "ppo-*", evaluated(FALLEN))
    found = only(audit_of(runs, DECLARED), "collapsed")
    assert (
        found.arms == ("ppo",)
        and len(found.blames) == 3
        and set(found.evidence) == {f"ppo-seed{seed}" for seed in (1, 2, 3)}
    )


def test_an_ignored_collapse_is_kept_apart() -> None:
    runs = with_metrics(comparison(TWO, (1, 2, 3)), "tis-*", evaluated(RISING))
    runs = with_metrics(runs, "ppo-*", evaluated(FALLEN))
    ignore = [{"rule": "collapsed", "arms": ["ppo"], "reason": "the uncorrected baseline, on purpose"}]
    report = audit_of(runs, {**DECLARED, "ignore": ignore})
    found = only(report, "collapsed")
    assert found.ignored and not found.counts and {run.verdict for run in report.runs.values()} == {"pass"}


# degenerate output


def test_responses_that_shrink_and_stay_short() -> None:
    length = [970.0] * 20 + list(np.linspace(900, 20, 20)) + [9.0] * 20
    report = audit_of(with_metrics(comparison(TWO, (1, 2, 3)), "ppo-seed2", {LENGTH: length}))
    found = only(report, "degenerate-output")
    assert labels(report, found.blames) == ["ppo-seed2"] and found.level is Level.WARN
    assert found.evidence == {"early": 970.0, "late": 9.0, "updates": 60} and "970 to 9 tokens" in found.detail
    assert findings(report, "collapsed") == []


@pytest.mark.parametrize(
    "length",
    [
        pytest.param([512.0] * 60, id="at its limit"),
        pytest.param([970.0] * 30 + [9.0] * 10 + [900.0] * 20, id="it recovers"),
        pytest.param(list(np.linspace(970, 300, 60)), id="it shortens"),
    ],
)
def test_other_lengths_are_no_finding(length: list[float]) -> None:
    report = audit_of(with_metrics(comparison(TWO, (1, 2, 3)), "ppo-*", {LENGTH: length}))
    assert findings(report, "degenerate-output") == [] and "passed" in outcomes(report, "degenerate-output")


def test_without_lengths_nothing_is_judged() -> None:
    report = audit_of(without_metrics(comparison(TWO, (1, 2)), "response_length/*"))
    assert outcomes(report, "degenerate-output") == {"not judged"}
    short = audit_of([make_run("ppo-seed1", seed=1, updates=9)])
    assert outcomes(short, "degenerate-output") == {"not judged"}


def truncated(ppo: tuple[float, ...], tis: tuple[float, ...]) -> list[FakeRun]:
    runs = comparison(TWO, tuple(range(1, len(ppo) + 1)))
    for arm, shares in (("ppo", ppo), ("tis", tis)):
        for seed, share in enumerate(shares, 1):
            runs = with_metrics(runs, f"{arm}-seed{seed}", {TRUNCATED: [0.01] * 54 + [share] * 6})
    return runs


def test_one_arm_is_cut_off_more_than_the_other() -> None:
    report = audit_of(truncated((0.01, 0.02, 0.015), (0.20, 0.22, 0.21)), DECLARED)
    found = only(report, "degenerate-output")
    # means .015 and .21; standard error sqrt(.005^2/3 + .01^2/3) = 0.0065
    assert found.evidence["difference"] == pytest.approx(0.195)
    assert found.evidence["error"] == pytest.approx(math.sqrt((0.005**2 + 0.01**2) / 3))
    assert labels(report, found.blames) == ["tis-seed1", "tis-seed2", "tis-seed3"] and found.arms == ("tis", "ppo")


@pytest.mark.parametrize(
    ("ppo", "tis"),
    [
        pytest.param((0.01, 0.01, 0.01), (0.05, 0.055, 0.06), id="under 5 points"),
        pytest.param((0.0, 0.1, 0.5), (0.3, 0.6, 0.2), id="within 3 standard errors"),
        pytest.param((0.01,), (0.4,), id="one run each"),
    ],
)
def test_a_difference_that_chance_could_make_is_no_finding(ppo: tuple[float, ...], tis: tuple[float, ...]) -> None:
    report = audit_of(truncated(ppo, tis), DECLARED)
    assert findings(report, "degenerate-output") == []


# stable range


def stressed(settings: dict[int, tuple[int, int]], tis_at: tuple[int, ...] = ()) -> list[FakeRun]:
    """Setting to (collapsed, runs) of the baseline; a healthy ``tis`` of three seeds at the settings named."""
    runs: list[FakeRun] = []
    for value, (k, n) in settings.items():
        for seed in range(1, n + 1):
            curve = evaluated(FALLEN if seed <= k else RISING)
            runs.append(make_run(f"ppo-n{value}-seed{seed}", {STRESS: value}, seed, metrics=curve, number=len(runs)))
    for value in tis_at:
        for seed in (1, 2, 3):
            settings_of = {STRESS: value, **ARMS["tis"]}
            name = f"tis-n{value}-seed{seed}"
            runs.append(make_run(name, settings_of, seed, metrics=evaluated(RISING), number=len(runs)))
    return runs


def test_a_comparison_where_the_baseline_collapses() -> None:
    report = audit_of(stressed({64: (0, 3), 96: (3, 3)}, (64, 96)), DECLARED)
    found = only(report, "outside-stable-range")
    assert found.level is Level.WARN and found.evidence["setting"] == "96" and found.evidence["stable_up_to"] == "64"
    assert "3 of its 3 runs collapsed" in found.title
    table = found.evidence["settings"]
    assert (table["64"]["collapsed"], table["96"]["collapsed"]) == (0, 3)
    assert table["64"]["still_allowed"] == pytest.approx(1 - 0.05 ** (1 / 3))  # 63%
    assert table["96"]["interval"] == pytest.approx([0.025 ** (1 / 3), 1.0])
    assert labels(report, found.blames) == [f"ppo-n96-seed{seed}" for seed in (1, 2, 3)]
    assert len(only(report, "collapsed").blames) == 3


def test_inside_the_stable_range_nothing_is_said() -> None:
    report = audit_of(stressed({32: (0, 2), 64: (0, 3)}, (32, 64)), DECLARED)
    assert findings(report, "outside-stable-range") == [] and outcomes(report, "outside-stable-range") == {"passed"}


def test_a_hole_ends_the_range() -> None:
    report = audit_of(stressed({16: (0, 3), 32: (1, 3), 64: (0, 3)}, (16, 32, 64)), DECLARED)
    flagged = {one.evidence["setting"]: one for one in findings(report, "outside-stable-range")}
    assert set(flagged) == {"32", "64"} and flagged["64"].evidence["stable_up_to"] == "16"
    assert "stable up to trainer.sync_interval=16" in flagged["64"].title
    assert labels(report, flagged["32"].blames) == ["ppo-n32-seed1"]
    assert len(flagged["64"].blames) == 3


def test_a_setting_with_a_single_run_is_no_tested_one() -> None:
    report = audit_of(stressed({16: (0, 3), 32: (0, 2), 64: (0, 1)}, (16, 64)), DECLARED)
    assert [one.evidence["setting"] for one in findings(report, "outside-stable-range")] == ["64"]
    report = audit_of(stressed({16: (0, 3), 64: (1, 1)}, (16, 64)), DECLARED)
    assert outcomes(report, "outside-stable-range") == {"not judged"}
    assert not_judged(report, "outside-stable-range")[0].missing == ("stress_values",)


def test_settings_are_ordered_as_numbers() -> None:
    report = audit_of(stressed({8: (0, 2), 16: (0, 2), 128: (2, 2)}, (8, 16, 128)), DECLARED)
    assert [one.evidence["setting"] for one in findings(report, "outside-stable-range")] == ["128"]


def test_without_a_stress_axis_no_range_is_judged() -> None:
    report = audit_of(with_metrics(comparison(TWO, (1, 2, 3)), "ppo-*", evaluated(FALLEN)))
    assert outcomes(report, "outside-stable-range") == {"not judged"}


def test_a_stuck_batch_explains_the_collapse() -> None:
    ids = [0.0] * 33 + [float(batch) for batch in range(1, 28)]
    runs = with_metrics(comparison(TWO, (1, 2, 3)), "ppo-*", {**evaluated(FALLEN), "harness/batch_id": ids})
    assert only(audit_of(runs, DECLARED), "collapsed").because_of == "stuck-batch"


def test_clean_runs_are_quiet() -> None:
    report = audit_of(stressed({32: (0, 3), 64: (0, 3)}, (32, 64)), DECLARED)
    assert [one for one in loud(report) if one[1] in ("collapsed", "degenerate-output", "outside-stable-range")] == []

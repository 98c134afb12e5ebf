from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from pth_tracker.model import IDLE_CLIP, Basis, Level
from pth_tracker.runs import RunRef, SourceRun
from synthetic import (
    ABSENT,
    ACTOR,
    ARMS,
    CLIP,
    CORRECTION,
    K3,
    LR,
    ONE_STEP,
    PROJECT,
    START,
    UPDATES,
    FakeRun,
    Values,
    audit_of,
    comparison,
    covered,
    findings,
    idle,
    labels,
    loud,
    make_run,
    not_judged,
    only,
    outcomes,
    sawtooth,
    with_config,
    with_metrics,
    without_metrics,
)

BYPASS = {f"{CORRECTION}.bypass_mode": True}


def one(settings: Mapping[str, Any] | None = None, **options: Any) -> FakeRun:
    return make_run("grpo-seed43", {**ONE_STEP, **(settings or {})}, 43, **options)


def test_a_clip_that_never_acts_under_a_lagging_sampler_is_an_idle_clip() -> None:
    report = audit_of([one(metrics=idle())])
    found = only(report, "idle-clip")
    assert (found.level, found.tag, found.basis, found.check) == (Level.FAIL, IDLE_CLIP, Basis.CONTRADICTION, 1)
    assert found.blames == found.runs == tuple(report.runs)
    above = sum(value > 0.05 for value in sawtooth(16, 2.0))
    assert (found.evidence["above_tolerance"], found.evidence["of"]) == (above, UPDATES)
    assert found.evidence["largest"] == pytest.approx(2.0003)
    assert only(report, "ratio-one-by-construction").because_of == "idle-clip"
    assert report.runs[found.runs[0]].verdict == "fail" and report.runs[found.runs[0]].rules == ("idle-clip",)
    assert outcomes(report, "idle-clip") == {"failed"}


def test_it_is_found_without_the_configuration_once_twenty_updates_show_it() -> None:
    for updates, expected in ((19, 0), (20, 1)):
        metrics = idle(**{K3: sawtooth(16, 2.0, updates), CLIP: [0.0] * updates})
        run = make_run("x", updates=updates, metrics={**metrics, "rollout_corr/kl": None}, config={})
        report = audit_of([run])
        assert report.runs[run.key].framework == "verl"
        assert len(findings(report, "idle-clip")) == expected, updates
        assert outcomes(report, "idle-clip") == ({"failed"} if expected else {"not judged"}), updates
        assert [one.missing for one in not_judged(report, "idle-clip")] == [("enough_updates",)] * (1 - expected)


def test_few_updates_are_enough_where_the_clip_acted_or_the_loss_is_corrected() -> None:
    for settings, clip in (({f"{ACTOR}.ppo_mini_batch_size": 16}, [0.0] * 9 + [0.1]), (ARMS["tis"], 0.0)):
        report = audit_of([one(settings, updates=10, metrics=idle(**{CLIP: clip, K3: sawtooth(5, 2.0, 10)}))])
        assert outcomes(report, "idle-clip") == {"passed"}


def test_a_clip_fraction_that_is_no_number_is_no_sign_that_the_clip_acted() -> None:
    report = audit_of([one(metrics=idle(**{CLIP: [0.0] * 59 + [math.nan]}))])
    assert only(report, "idle-clip").evidence["updates"] == 59


@pytest.mark.parametrize("clip", [[0.0] * 59 + [1e-9], [1e-4] + [0.0] * 59])
def test_one_update_on_which_the_clip_acted_is_enough(clip: list[float]) -> None:
    assert not findings(audit_of([one(metrics=idle(**{CLIP: clip}))]), "idle-clip")


def test_updates_at_a_learning_rate_of_zero_count_neither_way() -> None:
    rate = [0.0, *[2e-6] * 59]
    warmed = one(metrics=idle(**{CLIP: [0.3, *[0.0] * 59], LR: rate}))
    assert only(audit_of([warmed]), "idle-clip").evidence["updates"] == 59
    frozen = one(metrics=idle(**{LR: 0.0}))
    assert not findings(audit_of([frozen]), "idle-clip")


def test_three_printed_decimals_are_no_exact_zeros() -> None:
    run = one(metrics=idle(), decimals={CLIP: 3, LR: 3, K3: 3})
    report = audit_of([run])
    assert not findings(report, "idle-clip") and outcomes(report, "idle-clip") == {"not judged"}
    (entry,) = not_judged(report, "idle-clip")
    assert entry.missing == ("exact_zeros",) and "full precision" in entry.remedy
    acting = one(metrics=idle(**{CLIP: [0.0] * 59 + [0.002]}), decimals={CLIP: 3})
    assert outcomes(audit_of([acting]), "idle-clip") == {"passed"}


def test_a_rounded_learning_rate_hides_no_update() -> None:
    run = one(metrics=idle(**{LR: 0.0}), decimals={LR: 3})
    assert only(audit_of([run]), "idle-clip").evidence["updates"] == UPDATES


@pytest.mark.parametrize("kl", [0.0, 2e-4, 0.03])
def test_on_policy_training_with_a_clip_of_zero_is_ordinary(kl: float) -> None:
    report = audit_of([one(metrics={CLIP: 0.0, "actor/ppo_kl": 0.0, K3: kl, "rollout_corr/kl": kl})])
    assert not findings(report, "idle-clip") and outcomes(report, "idle-clip") == {"passed"}
    assert only(report, "ratio-one-by-construction").level is Level.INFO
    assert loud(report) == []


def test_a_constant_gap_above_the_tolerance_is_no_lag_unless_lag_is_declared() -> None:
    run = one({"trainer.sync_interval": 1}, metrics=idle(**{K3: 0.2}))
    assert not findings(audit_of([run]), "idle-clip")
    declared = one({"trainer.sync_interval": 16}, metrics=idle(**{K3: 0.2}))
    assert only(audit_of([declared]), "idle-clip").evidence["designed_lag"] == 16


def test_lag_by_design_is_enough_where_the_ratio_is_one() -> None:
    metrics: dict[str, Values | None] = {CLIP: 0.0, K3: None, "rollout_corr/kl": None}
    report = audit_of([one({"trainer.sync_interval": 16}, metrics=metrics)])
    assert "16 updates by design" in only(report, "idle-clip").detail
    (entry,) = covered(report, "idle-clip")
    assert (entry.branches, entry.unmet) == (("declared",), ("measured",))
    several = make_run("grpo-seed43", {"trainer.sync_interval": 16}, 43, metrics=metrics)
    assert not findings(audit_of([several]), "idle-clip")


def test_the_design_names_the_lag_of_a_fork() -> None:
    metrics: dict[str, Values | None] = {CLIP: 0.0, K3: None, "rollout_corr/kl": None}
    run = one({"trainer.weight_refresh": 8}, metrics=metrics)
    assert outcomes(audit_of([run]), "idle-clip") == {"not judged"}
    report = audit_of([run], {"stress": {"key": "trainer.weight_refresh"}})
    assert only(report, "idle-clip").evidence["designed_lag"] == 8
    for value in (math.inf, math.nan, "often", True, None):
        odd = one({"trainer.weight_refresh": value}, metrics=metrics)
        assert not findings(audit_of([odd], {"stress": {"key": "trainer.weight_refresh"}}), "idle-clip"), value


@pytest.mark.parametrize("key", ["data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", "data.max_response_length"])
def test_a_stress_axis_of_another_kind_declares_no_lag(key: str) -> None:
    metrics: dict[str, Values | None] = {CLIP: 0.0, K3: None, "rollout_corr/kl": None}
    design = {"stress": {"key": key}}
    assert outcomes(audit_of([one(metrics=metrics)], design), "idle-clip") == {"not judged"}
    lagging = audit_of([one({"trainer.sync_interval": 16}, metrics=metrics)], design)
    assert only(lagging, "idle-clip").evidence["designed_lag"] == 16


def test_a_stress_key_that_the_vocabulary_knows_means_the_lag_that_it_tells() -> None:
    metrics: dict[str, Values | None] = {CLIP: 0.0, K3: None, "rollout_corr/kl": None}
    run = one({"async_training.staleness_threshold": 0.5}, metrics=metrics)
    for design in (None, {"stress": {"key": "async_training.staleness_threshold"}}):
        assert only(audit_of([run], design), "idle-clip").evidence["designed_lag"] == 1


def test_values_that_are_not_finite_are_evidence_of_lag() -> None:
    twice = [1e-4] * 30 + [math.inf, math.nan] + [1e-4] * 28
    assert not findings(audit_of([one(metrics=idle(**{K3: twice}))]), "idle-clip")  # no lag declared, none grown
    thrice = [1e-4] * 30 + [math.inf, math.nan, -math.inf] + [1e-4] * 27
    assert findings(audit_of([one(metrics=idle(**{K3: thrice}))]), "idle-clip")
    declared = {"trainer.sync_interval": 16}
    assert findings(audit_of([one(declared, metrics=idle(**{K3: twice}))]), "idle-clip")
    once = [1e-4] * 30 + [math.inf] + [1e-4] * 29
    undeclared = one({"trainer.sync_interval": 1}, metrics=idle(**{K3: once}))
    assert not findings(audit_of([undeclared]), "idle-clip")
    never = one(declared, metrics=idle(**{K3: [math.nan] * 60}))
    assert only(audit_of([never]), "idle-clip").evidence["largest"] == math.inf


def test_a_saw_tooth_is_lag_whatever_its_first_and_last_values() -> None:
    series = sawtooth(20, 3.0)  # 60 updates: it ends high; rotated, it ends at its floor
    rotated = [*series[10:], *series[:10]]
    for values in (series, rotated, [*series[1:], series[0]]):
        assert findings(audit_of([one(metrics=idle(**{K3: values}))]), "idle-clip")


def test_signed_k1_noise_around_zero_is_no_lag_and_k1_lag_is() -> None:
    noise = [0.2 * (-1) ** update for update in range(UPDATES)]
    k1 = {K3: None, "rollout_corr/kl": noise}
    assert not findings(audit_of([one(metrics={**idle(), **k1})]), "idle-clip")
    lag = {K3: None, "rollout_corr/kl": sawtooth(16, 2.0)}
    assert only(audit_of([one(metrics={**idle(), **lag})]), "idle-clip").evidence["sampler"] == "rollout_corr/kl"


def test_the_tolerance_is_the_designs() -> None:
    run = one(metrics=idle(**{K3: sawtooth(16, 0.04)}))
    assert not findings(audit_of([run]), "idle-clip")
    assert findings(audit_of([run], {"rules": {"kl_tolerance": 0.01}}), "idle-clip")


@pytest.mark.parametrize("mode", ["sapo", "gpg", "kl_cov", "dro"])
def test_losses_without_a_clip_that_could_act_are_not_judged(mode: str) -> None:
    report = audit_of([one({f"{ACTOR}.policy_loss.loss_mode": mode}, metrics=idle())])
    assert not findings(report, "idle-clip") and outcomes(report, "idle-clip") == {"not judged"}
    (entry,) = not_judged(report, "idle-clip")
    assert entry.missing == ("testable_clip",) and "no clip" in entry.remedy


def test_reinforce_under_bypass_is_not_judged_and_a_clipped_loss_is() -> None:
    settings = {**BYPASS, f"{CORRECTION}.loss_type": "reinforce"}
    assert outcomes(audit_of([one(settings, metrics=idle())]), "idle-clip") == {"not judged"}
    gspo = one({f"{ACTOR}.policy_loss.loss_mode": "gspo"}, metrics=idle())
    assert findings(audit_of([gspo]), "idle-clip")


RELEASE_060 = {
    CORRECTION: ABSENT,
    "reward": ABSENT,
    "sandbox_fusion": ABSENT,
    "algorithm.rollout_is_threshold": 2.0,
    "data.seed": ABSENT,
}


@pytest.mark.parametrize(
    ("settings", "corrected"),
    [
        ({f"{CORRECTION}.rollout_is": "token"}, True),
        ({f"{CORRECTION}.rollout_is": "sequence"}, True),
        ({f"{CORRECTION}.rollout_rs": "token_k1"}, True),
        ({**BYPASS, f"{ACTOR}.strategy": "megatron"}, True),
        (BYPASS, False),  # FSDP's actor of this release takes its own log-probabilities where a batch is one step
        ({f"{ACTOR}.use_rollout_log_probs": True}, True),
        ({f"{CORRECTION}.rollout_is": None}, False),
        ({f"{CORRECTION}.rollout_is": "null"}, False),
        ({f"{CORRECTION}.rollout_is_threshold": 5.0}, False),
        ({f"{CORRECTION}.rollout_is": "token", "actor_rollout_ref.rollout.calculate_log_probs": False}, False),
        ({**RELEASE_060, "algorithm.rollout_is": True}, True),
        ({**RELEASE_060, "algorithm.rollout_is": False}, False),
        ({**RELEASE_060, "algorithm.rollout_is": True, "algorithm.rollout_is_threshold": None}, False),
        ({f"{ACTOR}.tis_imp_ratio_cap": 2.0}, True),
        ({f"{ACTOR}.tis_imp_ratio_cap": -1}, False),
    ],
)
def test_a_corrected_run_is_no_idle_clip(settings: dict[str, Any], corrected: bool) -> None:
    report = audit_of([one(settings, metrics=idle())])
    assert len(findings(report, "idle-clip")) == (0 if corrected else 1)
    assert outcomes(report, "idle-clip") == ({"passed"} if corrected else {"failed"})


def test_what_is_missing_is_named_with_this_frameworks_option() -> None:
    report = audit_of(without_metrics([one(metrics=idle())], "rollout_corr/*"))
    (entry,) = not_judged(report, "idle-clip")
    assert entry.missing == ("sampler_k3_kl|sampler_kl|sampler_abs_dlogp",)
    assert "actor_rollout_ref.rollout.calculate_log_probs=True" in entry.remedy
    assert entry.subject == "verl runs" and entry.runs == tuple(report.runs)
    gone = audit_of(without_metrics([one(metrics=idle())], CLIP))
    assert not_judged(gone, "idle-clip")[0].missing == ("clip_fraction", "exact_zeros")


def test_it_is_said_once_for_a_project_however_many_runs_lack_it() -> None:
    report = audit_of(without_metrics(comparison(), "rollout_corr/*"))
    (entry,) = not_judged(report, "idle-clip")
    assert len(entry.runs) == 15 and outcomes(report, "idle-clip") == {"not judged"}


def test_the_runs_of_an_arm_are_one_finding_and_only_they_are_blamed() -> None:
    arms = {"ppo": ARMS["ppo"], "grpo": ONE_STEP}
    runs = with_metrics(comparison(arms), "grpo-*", idle())
    report = audit_of(runs)
    found = only(report, "idle-clip")
    assert found.arms == ("grpo",) and labels(report, found.blames) == [f"grpo-seed{seed}" for seed in range(41, 46)]
    assert {run.verdict for run in report.runs.values() if run.arm == "ppo"} == {"pass"}
    assert set(found.evidence) == set(labels(report, found.blames))


def test_an_idle_clip_of_the_release_0_6_0_and_of_mlflow_names_is_read() -> None:
    metrics = {**idle(), K3: None, "rollout_corr/kl": None, "mismatch/mismatch_k3_kl": sawtooth(16, 2.0)}
    run = one(RELEASE_060, metrics=metrics)
    assert only(audit_of([run]), "idle-clip").evidence["sampler"] == "mismatch/mismatch_k3_kl"


def test_hostile_settings_are_no_crash() -> None:
    odd: tuple[Any, ...] = (math.inf, -math.inf, math.nan, 10**400, "x" * 50_000, [[]], {"a": {}})
    for value in odd:
        for key in ("trainer.sync_interval", f"{ACTOR}.ppo_epochs", "data.train_batch_size", "async_training.x"):
            report = audit_of([one({key: value}, metrics=idle())])
            assert report.runs


def test_hostile_metrics_are_no_crash() -> None:
    odd: dict[str, Values] = {
        CLIP: [math.nan] * UPDATES,
        K3: [math.inf, -math.inf] * (UPDATES // 2),
        LR: [1e308, -1e308] * (UPDATES // 2),
        "rollout_corr/kl": {0: math.nan},
    }
    report = audit_of([one(metrics={**idle(), **odd})])
    assert not findings(report, "idle-clip") and not report.errors


# clip-range-cannot-act and ratio-one-by-construction


def clip_arms(settings: Mapping[str, Any]) -> list[FakeRun]:
    return comparison({"low": settings, "high": {**settings, f"{ACTOR}.clip_ratio_high": 0.28}}, (41, 42, 43))


def test_a_clip_range_that_cannot_act_is_flagged() -> None:
    report = audit_of(clip_arms(ONE_STEP), {"arms": {"low": {"name": "low-*"}, "high": {"name": "high-*"}}})
    found = only(report, "clip-range-cannot-act")
    assert found.level is Level.FAIL and found.evidence["key"] == f"{ACTOR}.clip_ratio_high"
    assert found.arms in (("low", "high"), ("high", "low"))
    inferred = only(audit_of(clip_arms(ONE_STEP)), "clip-range-cannot-act")
    assert inferred.level is Level.WARN and inferred.basis is Basis.INFERRED


def test_a_clip_range_that_can_act_is_not() -> None:
    assert not findings(audit_of(clip_arms({})), "clip-range-cannot-act")
    mixed = with_config(clip_arms(ONE_STEP), "high-seed41", {f"{ACTOR}.ppo_mini_batch_size": 16})
    design = {"arms": {"low": {"name": "low-*"}, "high": {"name": "high-*"}}}
    assert not findings(audit_of(mixed, design), "clip-range-cannot-act")
    same = comparison({"a": ONE_STEP, "tis": {**ONE_STEP, **ARMS["tis"]}}, (41, 42))
    assert not findings(audit_of(same), "clip-range-cannot-act")


@pytest.mark.parametrize(
    ("settings", "one_by_construction"),
    [
        (ONE_STEP, True),
        ({**ONE_STEP, f"{ACTOR}.ppo_mini_batch_size": 256}, True),
        ({**ONE_STEP, f"{ACTOR}.ppo_epochs": 2}, False),
        ({f"{ACTOR}.ppo_mini_batch_size": 63}, False),
        ({**ONE_STEP, **BYPASS, f"{ACTOR}.strategy": "megatron"}, False),
        ({**ONE_STEP, **BYPASS}, True),
        ({}, False),
    ],
)
def test_when_the_ratio_is_one(settings: dict[str, Any], one_by_construction: bool) -> None:
    report = audit_of([make_run("a-seed43", settings)])
    assert len(findings(report, "ratio-one-by-construction")) == one_by_construction
    assert outcomes(report, "ratio-one-by-construction") == {"passed"}


def test_without_batch_sizes_it_is_not_judged() -> None:
    run = make_run("a-seed43", {f"{ACTOR}.ppo_mini_batch_size": ABSENT})
    report = audit_of([run])
    (entry,) = not_judged(report, "ratio-one-by-construction")
    assert entry.missing == ("ratio_is_one",) and "mini-batch" in entry.remedy


def test_a_run_of_no_known_framework_is_not_said_to_be_uncorrected() -> None:
    points = {"clip_fraction": 0.0, "sampler_k3_kl": sawtooth(16, 2.0)}
    run = make_run("a", config={"lr": 1e-6}, metrics=dict.fromkeys(make_run("a").points) | points)
    report = audit_of([run])
    assert {one.framework for one in report.runs.values()} == {"generic"}
    found = only(report, "idle-clip")
    assert found.level is Level.WARN and "does not tell" in found.detail and "no off-policy" not in found.detail


def test_a_source_without_anything_is_listed_and_judged_by_nothing() -> None:
    empty = FakeRun(SourceRun(RunRef(PROJECT, "e"), "empty", created=START, metric_keys=frozenset()), {})
    report = audit_of([empty])
    assert {entry.outcome for entry in report.coverage} == {"not judged"}
    assert report.runs["e"].verdict == "not-judged" and report.runs["e"].why_not == "it logged nothing"


@pytest.mark.parametrize(("values", "judged"), [(1, False), (2, False), (3, True)])
def test_lag_is_not_told_from_one_or_two_values_of_the_sampler(values: int, judged: bool) -> None:
    settings = {**ONE_STEP, "trainer.sync_interval": ABSENT, "actor_rollout_ref.actor.ppo_epochs": 2}
    metrics = {**idle(), "rollout_corr/k3_kl": dict.fromkeys(range(1, values + 1), 0.4), "rollout_corr/kl": None}
    runs = [make_run("grpo-seed43", settings, metrics=metrics)]
    report = audit_of(runs)
    assert bool(not_judged(report, "idle-clip")) is not judged
    assert ("passed" in outcomes(report, "idle-clip")) is judged

"""The rules of check 4 on synthetic runs: what is flagged, what is not, and what cannot be judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pth_tracker
from pth_tracker.losses import equations
from pth_tracker.model import ROGUE_NORMALISER, Level
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.lens import Lens
from pth_tracker.vocabulary.verl import verl_group_advantage, verl_group_size, verl_normaliser
from single_run import examined, findings, missing
from synthetic import (
    ACTOR,
    audit_of,
    comparison,
    covered,
    labels,
    make_run,
    not_judged,
    only,
    outcomes,
    with_config,
    with_metrics,
    without_config,
)
from synthetic import findings as audited

LOSS = "harness/loss_check"


def logged(implemented: Any, equation: Any) -> dict[str, dict[int, float]]:
    """What a training loop that checks its loss before the first update has logged."""
    metrics = pth_tracker.check_loss(implemented, equation).metrics()
    return {key: {0: value} for key, value in metrics.items()}


def points(implemented: Any, equation: Any) -> dict[str, Any]:
    return {key: ([0], [value[0]]) for key, value in logged(implemented, equation).items()}


ROGUE = logged(equations.dapo, equations.dapo) | logged(equations.ppo_clip, equations.grpo)
RIGHT = logged(equations.grpo, equations.grpo)


# rogue-normaliser and loss-differs


def test_a_failed_check_of_the_normaliser_is_the_rogue_normaliser() -> None:
    report = audit_of(with_metrics(comparison(), "tis-*", ROGUE))
    finding = only(report, "rogue-normaliser")
    assert (finding.level, finding.check, finding.tag) == (Level.FAIL, 4, ROGUE_NORMALISER)
    assert labels(report, finding.blames) == [f"tis-seed{seed}" for seed in (41, 42, 43, 44, 45)]
    assert "a factor per sequence, 0.7" in finding.title
    assert outcomes(report, "rogue-normaliser") == {"failed", "not judged"}
    assert not audited(report, "loss-differs") and not report.ok


def test_a_passed_check_passes_both_rules() -> None:
    report = audit_of(with_metrics(comparison(), "*", RIGHT))
    assert outcomes(report, "rogue-normaliser") == outcomes(report, "loss-differs") == {"passed"}
    assert not audited(report, "rogue-normaliser") and not audited(report, "loss-differs") and report.ok


def test_without_a_check_it_is_not_judged_and_two_lines_say_how() -> None:
    report = audit_of(comparison())
    for rule in ("rogue-normaliser", "loss-differs"):
        (entry,) = not_judged(report, rule)
        assert len(entry.runs) == 15 and entry.subject == "verl runs"
        assert "report = pth_tracker.check_loss(my_loss, my_equation); logger.log(report.metrics())" in entry.remedy


@pytest.mark.parametrize(
    ("factor", "title"),
    [(3.0, "the loss differs from its equation: global factor, 3"), (-1.0, "the loss differs from its equation: sign")],
)
def test_another_difference_says_which(factor: float, title: str) -> None:
    def scaled(logp: Any, logp_old: Any, advantages: Any, mask: Any) -> Any:
        return factor * equations.grpo(logp, logp_old, advantages, mask)

    found = examined(points(scaled, equations.grpo), "loss-differs", "rogue-normaliser")
    (finding,) = findings(found, "loss-differs")
    assert (finding.level, finding.title, finding.tag) == (Level.FAIL, title, "")
    assert f"the gradient by {abs(factor - 1):g} of its scale" in finding.detail
    assert not findings(found, "rogue-normaliser")


def test_a_clip_with_another_normaliser_is_the_rogue_normaliser_and_says_both() -> None:
    found = examined(points(equations.dapo, equations.grpo), "loss-differs", "rogue-normaliser")
    (finding,) = findings(found, "rogue-normaliser")
    assert finding.detail.endswith("Besides, they differ in the following: clip region.")
    assert not findings(found, "loss-differs")


def test_a_later_check_that_fails_counts() -> None:
    found = examined({LOSS: [1.0, 1.0, 0.0], f"{LOSS}_kind": [0.0, 0.0, 6.0]}, "loss-differs", "rogue-normaliser")
    (finding,) = findings(found, "loss-differs")
    assert finding.title.endswith("mask") and "logged at update 3" in finding.detail
    assert not findings(found, "rogue-normaliser")


@pytest.mark.parametrize("code", [99.0, -3.0, 1.5, float("nan")])
def test_a_code_that_means_nothing_is_unknown(code: float) -> None:
    found = examined({LOSS: [0.0], f"{LOSS}_kind": [code]}, "loss-differs")
    assert findings(found, "loss-differs")[0].title.endswith("of an unknown kind")


def test_a_check_logged_without_its_kind_judges_one_rule_only() -> None:
    found = examined({LOSS: [0.0]}, "loss-differs", "rogue-normaliser")
    assert findings(found, "loss-differs")
    assert missing(found, "rogue-normaliser") == ("loss_check_kind",)


# normaliser-differs

SEQUENCES = {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}


def two_arms(settings: dict[str, Any], **options: Any) -> Any:
    runs = comparison({"ppo": {}, "new": {"algorithm.norm_adv_by_std_in_grpo": False, **settings}}, seeds=(41, 42, 43))
    return audit_of(runs, **options)


def test_arms_with_other_normalisers_are_warned_of() -> None:
    finding = only(two_arms(SEQUENCES), "normaliser-differs")
    assert finding.level is Level.WARN and len(finding.arms) == 2
    texts = [own for arm in finding.evidence["normalisers"].values() for own in arm]
    sequences, tokens = sorted(texts)
    assert sequences == "seq-mean-token-mean" and tokens.startswith("token-mean within each ")


def test_one_normaliser_in_both_arms_passes() -> None:
    report = two_arms({})
    assert outcomes(report, "normaliser-differs") == {"passed"} and not audited(report, "normaliser-differs")


def test_a_declared_mode_that_is_not_the_effective_one_is_found() -> None:
    """GSPO ignores loss_agg_mode up to 0.9.0: what is declared alike is not alike."""
    finding = only(two_arms({f"{ACTOR}.policy_loss.loss_mode": "gspo"}), "normaliser-differs")
    assert f"{ACTOR}.loss_agg_mode is token-mean in both, and something else decides." in finding.detail
    gspo = {f"{ACTOR}.policy_loss.loss_mode": "gspo", **SEQUENCES}
    runs = comparison({"grpo": {**SEQUENCES}, "gspo": gspo}, seeds=(41, 42))
    assert not audited(audit_of(runs), "normaliser-differs")


def test_the_normaliser_as_the_treatment_is_none_of_its_business() -> None:
    runs = comparison({"tokens": {}, "sequences": SEQUENCES}, seeds=(41, 42, 43))
    assert not audited(audit_of(runs), "normaliser-differs")  # it is all in which the arms differ
    arms = {"ppo": {"name": "ppo-*"}, "new": {"name": "new-*"}}
    keys = [f"{ACTOR}.loss_agg_mode", "algorithm.norm_adv_by_std_in_grpo"]
    assert not audited(two_arms(SEQUENCES, design={"arms": arms, "vary": keys}), "normaliser-differs")
    assert audited(two_arms(SEQUENCES, design={"arms": arms, "vary": keys[1:]}), "normaliser-differs")


def test_a_rogue_normaliser_explains_it() -> None:
    runs = comparison({"ppo": {}, "new": {"algorithm.norm_adv_by_std_in_grpo": False, **SEQUENCES}}, seeds=(41, 42, 43))
    report = audit_of(with_metrics(runs, "*", ROGUE))
    assert only(report, "normaliser-differs").because_of == "rogue-normaliser"


def test_it_is_not_judged_without_configurations() -> None:
    arms = {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}, "clip": {"name": "clip-*"}}
    report = audit_of(without_config(comparison()), {"arms": arms})
    assert outcomes(report, "normaliser-differs") == {"not judged"}
    assert not_judged(report, "normaliser-differs")[0].remedy


def normaliser(version: str | None, **settings: Any) -> Any:
    config = {f"{ACTOR}.ppo_epochs": 1, "trainer.n_gpus_per_node": 4, "trainer.nnodes": 1}
    config |= {
        f"{ACTOR}.{key}" if key != "legacy" else "trainer.use_legacy_worker_impl": v for key, v in settings.items()
    }
    return verl_normaliser(Lens({key.replace("__", "."): value for key, value in config.items()}, version))


@pytest.mark.parametrize(
    ("version", "settings", "expected"),
    [
        ("0.3.0", {"ppo_micro_batch_size_per_gpu": 8}, "token-mean within each micro-batch of 8 responses"),
        ("0.3.0", {"ppo_micro_batch_size": 64}, "token-mean within each micro-batch of 16 responses"),
        ("0.7.1", {"ppo_micro_batch_size_per_gpu": 8}, "token-mean within each micro-batch of 8 responses"),
        # 16 prompts of one response on 4 GPUs are 4 responses each: a larger micro-batch holds no more.
        (
            "0.7.1",
            {"ppo_micro_batch_size_per_gpu": 8, "ppo_mini_batch_size": 16},
            "token-mean within each micro-batch of 4 responses",
        ),
        (
            "0.6.1",
            {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 16384},
            "token-mean within each dynamic micro-batch of at most 16384 tokens",
        ),
        ("0.7.1", {"ppo_micro_batch_size_per_gpu": 8, "legacy": "disable"}, "token-mean"),
        ("0.6.1", {}, "token-mean within each micro-batch"),
        ("0.8.0", {"ppo_micro_batch_size_per_gpu": 8}, "token-mean"),
        ("0.7.1", {"loss_agg_mode": "seq-mean-token-mean", "ppo_micro_batch_size_per_gpu": 8}, "seq-mean-token-mean"),
        ("0.6.1", {"loss_agg_mode": "seq-mean-token-sum"}, "seq-mean-token-sum"),
        ("0.6.0", {"policy_loss__loss_mode": "gspo", "loss_agg_mode": "token-mean"}, "seq-mean-token-mean"),
        ("0.8.0", {"policy_loss__loss_mode": "gspo", "loss_agg_mode": "token-mean"}, "seq-mean-token-mean"),
        ("0.9.0", {"policy_loss__loss_mode": "gspo", "loss_agg_mode": "token-mean"}, MISSING),
        ("0.9.0", {"policy_loss__loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean"}, "seq-mean-token-mean"),
        ("0.9.1", {"policy_loss__loss_mode": "gspo", "loss_agg_mode": "token-mean"}, "token-mean"),
        ("0.9.1", {"policy_loss__loss_mode": "sapo", "loss_agg_mode": "token-mean"}, "seq-mean-token-mean"),
        ("0.7.0", {"policy_loss__loss_mode": "geo_mean"}, "seq-mean"),
        (
            "0.6.1",
            {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 100},
            "token sum over the response's width, not over the batch within each micro-batch",
        ),
        (
            "0.7.0",
            {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 100, "legacy": "disable"},
            "token sum over 100, not over the batch",
        ),
        ("0.7.1", {"loss_agg_mode": "seq-mean-token-sum-norm"}, "token sum over the response's width and the batch"),
    ],
)
def test_verls_effective_normaliser_by_release(version: str, settings: dict[str, Any], expected: Any) -> None:
    assert normaliser(version, **settings) == expected


def test_a_configuration_without_an_actor_tells_no_normaliser() -> None:
    assert verl_normaliser(Lens({"data.train_batch_size": 8}, "0.7.1")) is MISSING


# no-group

GRPO = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.actor.ppo_epochs": 1, "actor_rollout_ref.rollout.n": 1}
CONFIG = {**GRPO, "actor_rollout_ref.rollout.name": "vllm"}


def ranges(updates: int, best: Any = 1.0, worst: Any = 0.0, top: Any = 1.0, bottom: Any = 0.0) -> dict[str, Any]:
    held = {"critic/score/max": best, "critic/score/min": worst, "critic/advantages/max": top}
    held |= {"critic/advantages/min": bottom}
    return {key: np.broadcast_to(np.asarray(value, dtype=float), updates) for key, value in held.items()}


def test_advantages_that_are_the_scores_have_no_group() -> None:
    result = examined(ranges(20), "no-group", config=CONFIG)
    (finding,) = findings(result, "no-group")
    assert (finding.level, finding.blames) == (Level.FAIL, ("run-1",))
    assert "20 of 20 updates" in finding.title and "The configuration gives 1 for each prompt." in finding.detail
    # The division by a deviation of 1 + 1e-6 that a group of one gets.
    assert findings(examined(ranges(20, top=1 / (1 + 1e-6)), "no-group", config=CONFIG), "no-group")


def test_the_share_of_equal_updates_decides() -> None:
    def found(equal: int) -> bool:
        top = np.where(np.arange(40) < equal, 1.0, 1.7)
        return bool(findings(examined(ranges(40, top=top), "no-group", config=CONFIG), "no-group"))

    assert found(38) and not found(37)


def test_groups_whose_advantages_differ_from_the_scores_pass() -> None:
    grouped = ranges(20, top=1.3, bottom=-0.9)
    assert not findings(examined(grouped, "no-group", config=CONFIG), "no-group")
    assert not findings(examined(ranges(20, top=1.0, bottom=-0.9), "no-group", config=CONFIG), "no-group")


def test_updates_whose_scores_do_not_vary_tell_nothing() -> None:
    best = np.where(np.arange(30) < 9, 1.0, 0.0)  # all wrong from update 10 on: advantages are 0 with any group
    config = {"actor_rollout_ref.actor.ppo_epochs": 1, "actor_rollout_ref.rollout.name": "vllm"}
    result = examined(ranges(30, best=best, top=best), "no-group", config=config)
    assert missing(result, "no-group") == ("varied_scores",)
    best = np.where(np.arange(30) < 10, 1.0, 0.0)
    assert findings(examined(ranges(30, best=best, top=best), "no-group", config=config), "no-group")


def test_an_estimator_without_groups_may_keep_the_scores() -> None:
    config = {**CONFIG, "algorithm.adv_estimator": "reinforce_plus_plus"}
    assert not findings(examined(ranges(20), "no-group", config=config), "no-group")


def test_printed_decimals_are_taken_into_account() -> None:
    printed = ranges(20, best=0.333, top=0.334)
    assert not findings(examined(printed, "no-group", config=CONFIG), "no-group")
    decimals = dict.fromkeys(printed, 3)
    assert findings(examined(printed, "no-group", config=CONFIG, decimals=decimals), "no-group")


def test_a_configuration_alone_warns() -> None:
    (finding,) = findings(examined({"actor/pg_loss": [0.0]}, "no-group", config=CONFIG), "no-group")
    assert finding.level is Level.WARN and "Another key may make the group" in finding.detail
    for other in ({"actor_rollout_ref.rollout.n": 8}, {"actor_rollout_ref.rollout.n_agent": 5}):
        assert not findings(examined({"actor/pg_loss": [0.0]}, "no-group", config={**CONFIG, **other}), "no-group")
    config = {**CONFIG, "algorithm.adv_estimator": "gae"}
    assert not findings(examined({"actor/pg_loss": [0.0]}, "no-group", config=config), "no-group")


def test_what_the_log_shows_stands_above_the_configuration() -> None:
    """A fork's own key makes the group: the configuration says 1, the advantages say otherwise."""
    assert not findings(examined(ranges(20, top=1.3, bottom=-0.9), "no-group", config=CONFIG), "no-group")


def test_without_metrics_and_configuration_it_is_not_judged() -> None:
    report = audit_of([make_run("x", config={}, metrics={"critic/advantages/max": None})])
    (entry,) = not_judged(report, "no-group")
    assert entry.remedy and outcomes(report, "no-group") == {"not judged"}


def test_a_clean_comparison_has_groups() -> None:
    report = audit_of(comparison())
    assert outcomes(report, "no-group") == {"passed"}
    assert covered(report, "no-group")[0].branches == ("measured", "declared")


def test_an_audit_says_it_once_for_an_arm() -> None:
    runs = with_config(comparison(), "ppo-*", {"actor_rollout_ref.rollout.n": 1})
    runs = with_metrics(runs, "ppo-*", {"critic/advantages/max": 1.0, "critic/advantages/min": 0.0})
    report = audit_of(runs)
    finding = only(report, "no-group")
    assert (
        finding.level is Level.FAIL and labels(report, finding.blames)[0] == "ppo-seed41" and len(finding.blames) == 5
    )


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("grpo", True),
        ("AdvantageEstimator.GRPO", True),
        ("grpo_passk", True),
        ("rloo", True),
        ("reinforce_plus_plus_baseline", True),
        ("reinforce_plus_plus", False),
        ("gae", False),
        (None, False),
        ("remax", False),
        ("my_own", MISSING),
    ],
)
def test_verls_estimators_that_compare_responses(estimator: str | None, expected: Any) -> None:
    assert verl_group_advantage(Lens({"algorithm.adv_estimator": estimator})) is expected
    assert verl_group_advantage(Lens({"data.seed": 1})) is MISSING


def test_verls_group_size() -> None:
    rollout = "actor_rollout_ref.rollout"
    assert verl_group_size(Lens({f"{rollout}.n": 8})) == 8
    assert verl_group_size(Lens({f"{rollout}.n": 1, f"{rollout}.n_agent": 5})) == 5
    assert verl_group_size(Lens({f"{rollout}.name": "vllm"})) == 1
    assert verl_group_size(Lens({"data.seed": 1})) is MISSING


def test_a_real_run_of_grpo_with_one_response_is_found(shared_data: Path) -> None:
    """The public 94-step run names grpo and samples one response for each prompt."""
    from pth_tracker.engine import Options, audit

    log = shared_data / "verl" / "grpo_94_steps_taskrunner.log"
    tracker, _ = pth_tracker.find_tracker("", [str(log)])
    report = audit(tracker, Options())
    assert only(report, "no-group").level is Level.FAIL

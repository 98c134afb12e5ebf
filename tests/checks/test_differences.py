from __future__ import annotations

import pytest

from pth_tracker.model import Basis, Level
from synthetic import (
    ABSENT,
    ACTOR,
    ARMS,
    CORRECTION,
    audit_of,
    change,
    comparison,
    findings,
    labels,
    loud,
    make_run,
    not_judged,
    only,
    outcomes,
    with_config,
    without_config,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
VARY = f"{CORRECTION}.rollout_is"
DECLARED = {"arms": {"ppo": {"name": "ppo*"}, "tis": {"name": "tis*"}}, "baseline": "ppo", "vary": VARY}
SEEDS = (41, 42, 43)


def test_a_field_that_varies_as_it_should_passes() -> None:
    report = audit_of(comparison(TWO, SEEDS), DECLARED)
    assert not findings(report, "vary-not-applied") and not findings(report, "undeclared-difference")
    assert outcomes(report, "vary-not-applied") == {"passed"} and loud(report) == []


@pytest.mark.parametrize("value", [None, "token", ABSENT])
def test_a_field_that_should_vary_and_does_not(value: object) -> None:
    report = audit_of(with_config(comparison(TWO, SEEDS), "*", {VARY: value}), DECLARED)
    found = only(report, "vary-not-applied")
    assert (found.level, found.basis) == (Level.FAIL, Basis.DECLARED)
    treated = ["tis-seed41", "tis-seed42", "tis-seed43"]
    assert labels(report, found.blames) == ([] if value is ABSENT else treated)
    assert ("is in no run's configuration" in found.title) is (value is ABSENT)


def test_a_misspelt_field_fails_and_the_others_are_still_judged() -> None:
    report = audit_of(comparison(TWO, SEEDS), {**DECLARED, "vary": [VARY, "algorithm.rollout_corection"]})
    assert only(report, "vary-not-applied").evidence == {"key": "algorithm.rollout_corection", "value": "absent"}


def test_one_value_in_two_spellings_does_not_vary() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"x.threshold": "2.0"})
    report = audit_of(with_config(runs, "ppo-*", {"x.threshold": 2}), {**DECLARED, "vary": "x.threshold"})
    assert findings(report, "vary-not-applied")


def test_an_arm_without_configuration_does_not_make_a_field_vary() -> None:
    runs = with_config(comparison(TWO, SEEDS), "*", {VARY: None})
    report = audit_of(without_config(runs, "tis-*"), DECLARED)
    assert outcomes(report, "vary-not-applied") == {"not judged"}
    (entry,) = not_judged(report, "vary-not-applied")
    assert "arm_configs" in entry.missing and "every arm" in entry.remedy
    half = audit_of(without_config(runs, "tis-seed41"), DECLARED)
    assert findings(half, "vary-not-applied")


def test_without_a_declared_field_it_is_not_judged() -> None:
    report = audit_of(comparison(TWO, SEEDS))
    (entry,) = not_judged(report, "vary-not-applied")
    assert entry.missing == ("declared_vary",) and "--vary" in entry.remedy


def test_one_arm_is_no_comparison() -> None:
    report = audit_of(comparison({"ppo": {}}, SEEDS), {"vary": VARY})
    assert outcomes(report, "vary-not-applied") == {"not judged"}
    assert outcomes(report, "undeclared-difference") == {"not judged"}


# undeclared-difference


@pytest.mark.parametrize(("names", "said"), [("run-{n}", 0), ("lr{arm}-seed{n}", 1)])
def test_a_field_by_whose_values_inferred_arms_are_called_is_not_said_again(names: str, said: int) -> None:
    runs = [
        make_run(
            names.format(n=10 * arm + seed, arm="ab"[arm]),
            {"algorithm.beta": 0.1 * (arm + 1)},
            seed,
            number=10 * arm + seed,
        )
        for arm in (0, 1)
        for seed in (3, 4)
    ]
    report = audit_of(runs, select=("undeclared-difference",))
    assert (list(report.design.arms)[0] == "beta=0.1") is (said == 0)
    assert len(findings(report, "undeclared-difference")) == said


def test_a_field_that_differs_undeclared_warns() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {f"{ACTOR}.optim.lr": 2e-6})
    found = only(audit_of(runs, DECLARED), "undeclared-difference")
    assert (found.level, found.basis, found.blames) == (Level.WARN, Basis.DECLARED, ())
    assert found.evidence["fields"] == [f"{ACTOR}.optim.lr"] and "2e-06 against 0.05" in found.detail


def test_it_is_information_while_nothing_was_declared() -> None:
    found = only(audit_of(comparison(TWO, SEEDS)), "undeclared-difference")
    assert (found.level, found.basis, found.evidence["fields"]) == (Level.INFO, Basis.INFERRED, [VARY])


@pytest.mark.parametrize(
    "settings",
    [
        {"trainer.experiment_name": "other"},
        {"trainer.project_name": "other"},
        {"trainer.n_gpus_per_node": 8},
        {f"{ACTOR}.optim.total_training_steps": 99},
        {f"{ACTOR}.ppo_epochs": "1"},
        {f"{ACTOR}.ppo_epochs": 1.0},
    ],
)
def test_bookkeeping_soft_and_derived_fields_and_spellings_are_no_difference(settings: dict[str, object]) -> None:
    report = audit_of(with_config(comparison(TWO, SEEDS), "tis-*", settings), DECLARED)
    assert not findings(report, "undeclared-difference") and not findings(report, "drift-within-arm")


@pytest.mark.parametrize(("left", "right"), [(None, ABSENT), (True, 1), ("", None), ([1], [1, 2])])
def test_what_is_a_difference(left: object, right: object) -> None:
    runs = with_config(comparison(TWO, SEEDS), "ppo-*", {"algorithm.x": left})
    report = audit_of(with_config(runs, "tis-*", {"algorithm.x": right}), DECLARED)
    assert only(report, "undeclared-difference").evidence["fields"] == ["algorithm.x"]


def test_a_field_that_changes_within_an_arm_is_drift_and_no_difference_of_arms() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-seed42", {f"{ACTOR}.kl_loss_coef": 0.01})
    report = audit_of(runs, DECLARED)
    assert not findings(report, "undeclared-difference")
    found = only(report, "drift-within-arm")
    assert found.level is Level.WARN and labels(report, found.blames) == ["tis-seed42"]
    assert report.runs[found.blames[0]].verdict == "warn"


def test_without_configurations_differences_are_not_judged() -> None:
    report = audit_of(without_config(comparison(TWO, SEEDS), "tis-*"), {k: DECLARED[k] for k in ("arms", "baseline")})
    assert outcomes(report, "undeclared-difference") == {"not judged"}
    bare = without_config(change(comparison(TWO, SEEDS), "*", config={"x": 1}), "tis-*")
    report = audit_of(bare, {k: DECLARED[k] for k in ("arms", "baseline")})
    assert outcomes(report, "undeclared-difference") == {"not judged"}
    assert "resolved configuration" in not_judged(report, "undeclared-difference")[0].remedy


def test_a_secret_is_named_and_not_shown() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"tool.api_key": "sk-live-1"})
    runs = with_config(runs, "ppo-*", {"tool.api_key": "sk-live-2"})
    report = audit_of(runs, DECLARED)
    assert "sk-live" not in repr(report.findings)
    drifting = with_config(comparison(TWO, SEEDS), "tis-seed41", {"tool.api_key": "sk-live-1"})
    assert "sk-live" not in repr(audit_of(drifting, {**DECLARED, "vary": "tool.api_key"}).findings)


# drift-within-arm


def test_where_no_value_is_the_common_one_all_are_blamed() -> None:
    runs = with_config(comparison(TWO, (41, 42)), "tis-seed42", {f"{ACTOR}.kl_loss_coef": 0.01})
    report = audit_of(runs, DECLARED)
    assert labels(report, only(report, "drift-within-arm").blames) == ["tis-seed41", "tis-seed42"]


def test_names_that_runs_carry_in_their_own_configuration_are_no_drift() -> None:
    runs = [change([run], "*", config={**run.source.config, "run": run.name})[0] for run in comparison(TWO, SEEDS)]
    report = audit_of(runs, DECLARED)
    assert loud(report) == []


def test_one_run_or_one_configuration_an_arm_is_not_judged() -> None:
    single = audit_of(comparison(TWO, (41,)), DECLARED)
    assert outcomes(single, "drift-within-arm") == {"not judged"}
    assert not_judged(single, "drift-within-arm")[0].missing == ("two_runs", "two_configs")
    bare = change(comparison(TWO, (41, 42)), "*", config={"x": 1})
    half = audit_of(without_config(bare, "*-seed42"), DECLARED)
    assert outcomes(half, "drift-within-arm") == {"not judged"}
    assert not_judged(half, "drift-within-arm")[0].missing == ("two_configs",)


def test_seeds_tasks_and_stress_are_no_drift() -> None:
    runs = [
        make_run(
            f"ppo-{interval}-seed{seed}", {"trainer.sync_interval": interval, f"{ACTOR}.fsdp_config.seed": seed}, seed
        )
        for interval in (8, 16)
        for seed in SEEDS
    ]
    report = audit_of(runs)
    assert not findings(report, "drift-within-arm") and outcomes(report, "drift-within-arm") == {"passed"}


def test_a_field_that_takes_the_same_several_values_in_every_arm_did_not_vary_between_them() -> None:
    runs = comparison({"ppo": {}, "tis": {}}, (41, 42))
    runs = with_config(runs, "*-seed41", {"actor_rollout_ref.actor.clip_ratio": 0.1})
    runs = with_config(runs, "*-seed42", {"actor_rollout_ref.actor.clip_ratio": 0.3})
    design = {"arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}, "baseline": "ppo"}
    key = "actor_rollout_ref.actor.clip_ratio"
    found = only(audit_of(runs, {**design, "vary": [key]}), "vary-not-applied")
    assert found.level is Level.FAIL and key in found.title
    assert findings(audit_of(runs, {**design, "vary": [key], "stress": {"key": key}}), "vary-not-applied") == []


def test_secrets_set_no_arms_apart() -> None:
    runs = with_config(comparison({"ppo": {}}, (41, 42)), "*-seed42", {"trainer.wandb_api_key": "sk-rotated"})
    report = audit_of(runs)
    assert len(report.design.arms) == 1 and findings(report, "drift-within-arm") == []


def test_a_misspelt_field_blames_no_run_and_is_told_what_it_is_near() -> None:
    design = {
        "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
        "vary": ["actor_rollout_ref.actor.clip_rato"],
    }
    found = only(audit_of(comparison({"ppo": {}, "tis": {}}, (41, 42)), design), "vary-not-applied")
    assert found.level is Level.FAIL and found.blames == ()
    assert "Did you mean actor_rollout_ref.actor.clip_ratio?" in found.detail

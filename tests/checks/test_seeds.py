from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pth_tracker.model import LOST_SEED, Basis, Level
from pth_tracker.runs import RunState
from synthetic import (
    ABSENT,
    ACTOR,
    ARMS,
    CORRECTION,
    SCORE,
    FakeRun,
    audit_of,
    change,
    comparison,
    cut,
    findings,
    labels,
    make_run,
    not_judged,
    only,
    outcomes,
    with_config,
    with_metrics,
    without_config,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
DECLARED = {"arms": {"ppo": {"name": "ppo*"}, "tis": {"name": "tis*"}}, "baseline": "ppo"}
BY_CONFIG = {
    "arms": {
        "ppo": {"config": {f"{CORRECTION}.rollout_is": None}},
        "tis": {"config": {f"{CORRECTION}.rollout_is": "token"}},
    },
    "baseline": "ppo",
}
OLD_RELEASE = {CORRECTION: ABSENT, "reward": ABSENT, "sandbox_fusion": ABSENT, "data.seed": ABSENT}


def named(*names: str, settings: Mapping[str, Any] | None = None, seed: object = 43) -> list[FakeRun]:
    return [make_run(name, settings, seed, number=number) for number, name in enumerate(names)]


def unlabelled(runs: list[FakeRun]) -> list[FakeRun]:
    """The runs under names that say no seed."""
    return [change([run], "*", name=f"{run.name.split('-seed')[0]}-{place}")[0] for place, run in enumerate(runs)]


def test_labels_whose_data_seed_is_null_in_one_arm_are_a_lost_seed() -> None:
    report = audit_of(with_config(comparison(TWO, (41, 42, 43)), "tis-*", {"data.seed": None}))
    found = only(report, "lost-seed")
    assert (found.level, found.tag, found.basis, found.check) == (Level.FAIL, LOST_SEED, Basis.CONTRADICTION, 2)
    assert labels(report, found.blames) == ["tis-seed41", "tis-seed42", "tis-seed43"]
    assert found.arms == ("tis",) and set(found.evidence["orders"].values()) == {"the default order"}
    assert "data.seed is null" in found.detail and "data.seed" in found.remedy
    for slug in ("no-common-seed", "unpaired-runs"):
        assert all(one.because_of == "lost-seed" for one in findings(report, slug)), slug
    assert only(report, "no-common-seed").because_of == "lost-seed"
    assert {run.verdict for run in report.runs.values() if run.arm == "ppo"} == {"pass"}
    assert outcomes(report, "lost-seed") == {"failed"}


def test_a_clean_comparison_has_none() -> None:
    report = audit_of(comparison())
    assert not findings(report, "lost-seed") and outcomes(report, "lost-seed") == {"passed"}


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"data.seed": None}, "the default order"),
        ({"data.seed": ABSENT}, "the default order"),
        ({"data.seed": 7}, "7"),
        ({"data.shuffle": False}, "the file's order"),
        ({**OLD_RELEASE}, "1"),
    ],
)
def test_a_label_against_the_order_in_force(settings: dict[str, Any], order: str) -> None:
    (found,) = findings(audit_of([make_run("grpo-seed43", settings, 43)]), "lost-seed")
    assert set(found.evidence["orders"].values()) == {order}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("grpo-seed43", {}),
        ("grpo-seed043", {}),
        ("grpo_SEED=43", {}),
        ("grpo-seed43", {"data.seed": "43"}),
        ("grpo-seed43", {"data.seed": 43.0}),
        ("grpo-seed1", OLD_RELEASE),
        ("grpo", {"data.seed": None}),
        ("PPO_x_log_0", {}),
        ("seed1.5-VL-grpo", {}),
        ("Seed-36B-grpo", {}),
        ("grpo-s2", {}),
        ("grpo-seed7", {"actor_rollout_ref.rollout.seed": 7}),
        ("grpo-seed42", {f"{ACTOR}.data_loader_seed": 42}),
    ],
)
def test_labels_that_contradict_nothing(name: str, settings: dict[str, Any]) -> None:
    report = audit_of([make_run(name, settings, 43)])
    assert not findings(report, "lost-seed") and outcomes(report, "lost-seed") == {"passed"}


def test_a_label_that_is_the_rollouts_seed_does_not_excuse_a_data_seed_that_does_not_act() -> None:
    run = make_run("grpo-seed43", {"actor_rollout_ref.rollout.seed": 43}, None)
    assert findings(audit_of([run]), "lost-seed")


def test_short_labels_count_only_among_runs_that_differ_in_the_seed_alone() -> None:
    swapped = [make_run(f"grpo-s{seed}", {}, given) for seed, given in ((41, 42), (42, 41), (43, 43))]
    report = audit_of(swapped)
    assert labels(report, only(report, "lost-seed").blames) == ["grpo-s41", "grpo-s42"]
    assert not findings(audit_of(named("sft-s1", "sft-s2", seed=1)), "lost-seed")
    stages = [
        make_run("math-s1", {f"{ACTOR}.optim.lr": 1e-6}, 2),
        make_run("math-s2", {f"{ACTOR}.optim.lr": 5e-7}, 1),
    ]
    assert not findings(audit_of(stages), "lost-seed")


def test_cleanrl_names() -> None:
    def cleanrl(label: int, seed: int) -> FakeRun:
        name = f"CartPole-v1__ppo__{label}__1700000000"
        config = {"env_id": "CartPole-v1", "seed": seed, "learning_rate": 2.5e-4}
        return make_run(name, config=config, number=label, metrics=dict.fromkeys(make_run("a").points) | {"loss": 0.5})

    assert not findings(audit_of([cleanrl(1, 1), cleanrl(2, 2)]), "lost-seed")
    (found,) = findings(audit_of([cleanrl(1, 1), cleanrl(2, 1)]), "lost-seed")
    assert len(found.blames) == 1 and found.evidence["given"] == [1]


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        (("data.seed=43",), False),
        (("+data.seed=43",), False),
        (("data.seed=44",), True),
        (("data.seed=44", "data.seed=43"), False),
        (("data.seed=43", "data.seed=null"), False),
        (("actor_rollout_ref.rollout.seed=9",), False),
        (("data.seed=43.0",), False),
        (("data.seed='43'",), False),
        (("data.seed='44'",), True),
        (("data.seed=",), True),
        ((), False),
    ],
)
def test_launch_arguments_claim_a_seed_and_the_last_one_counts(arguments: tuple[str, ...], lost: bool) -> None:
    report = audit_of([make_run("grpo", {}, 43, arguments=arguments)])
    assert bool(findings(report, "lost-seed")) is lost


def test_two_runs_of_a_declared_arm_on_one_seed() -> None:
    runs = unlabelled(with_config(comparison(TWO, (41, 42, 43)), "tis-seed42", {"data.seed": 41}))
    found = only(audit_of(runs, BY_CONFIG), "lost-seed")
    assert (found.level, found.basis, len(found.blames), found.arms) == (Level.FAIL, Basis.DECLARED, 2, ("tis",))
    report = audit_of(runs)
    assert not findings(report, "lost-seed")
    assert only(report, "repeated-attempts").level is Level.WARN


def test_a_replicate_field_of_the_designs_own_is_what_tells_runs_apart() -> None:
    runs = [
        make_run(f"ppo-{seed}", {"actor_rollout_ref.rollout.seed": seed}, 1, number=seed) for seed in (41, 42, 43)
    ] + [
        make_run(f"tis-{seed}", {"actor_rollout_ref.rollout.seed": seed, **ARMS["tis"]}, 1, number=seed)
        for seed in (41, 42, 43)
    ]
    assert findings(audit_of(runs, DECLARED), "lost-seed")
    report = audit_of(runs, {**DECLARED, "replicate": ["actor_rollout_ref.rollout.seed"]})
    assert not findings(report, "lost-seed") and not findings(report, "repeated-attempts")
    assert only(report, "paired-difference").evidence["n"] == 3


def test_seeds_that_act_in_one_arm_only() -> None:
    runs = unlabelled(with_config(comparison(TWO, (41, 42, 43)), "tis-*", {"data.seed": None}))
    found = only(audit_of(runs), "lost-seed")
    assert found.basis is Basis.INFERRED and found.level is Level.WARN and len(found.blames) == 3
    assert found.arms == ("rollout_is=token",)
    everywhere = unlabelled(with_config(comparison(TWO, (41, 42, 43)), "*", {"data.seed": None}))
    assert not findings(audit_of(everywhere), "lost-seed")


def test_equal_seeds_at_two_stress_values_or_tasks_are_no_lost_seed() -> None:
    for key, values in (
        ("trainer.sync_interval", (64, 96)),
        ("data.train_files", ("gsm8k/train.parquet", "math/train.parquet")),
    ):
        runs = [
            make_run(f"{arm}-{place}-seed{seed}", {**settings, key: value}, seed, number=place)
            for arm, settings in TWO.items()
            for place, value in enumerate(values)
            for seed in (41, 42, 43)
        ]
        report = audit_of(runs, DECLARED)
        assert not findings(report, "lost-seed") and not findings(report, "repeated-attempts"), key
        assert len({run.cell for run in report.runs.values()}) == 4


def test_long_task_names_that_differ_in_their_middle_are_two_tasks() -> None:
    folder = "/mnt/shared/users/alice/datasets/{}/processed/with/instructions/v2/train_full.parquet"
    runs = [
        make_run(f"{arm}-{task}-seed{seed}", {**settings, "data.train_files": folder.format(task)}, seed)
        for arm, settings in TWO.items()
        for task in ("gsm8k", "olympiad")
        for seed in (41, 42)
    ]
    report = audit_of(runs, DECLARED)
    assert not findings(report, "lost-seed") and not findings(report, "repeated-attempts")
    assert len({run.cell for run in report.runs.values()}) == 4


def test_a_sampler_of_the_users_own_is_not_judged_by_the_seed() -> None:
    runs = named("grpo-seed41", "grpo-seed42", settings={"data.sampler.class_path": "my/curriculum.py"})
    report = audit_of(runs)
    assert not findings(report, "lost-seed") and outcomes(report, "lost-seed") == {"not judged"}
    assert not_judged(report, "lost-seed")[0].missing in (("data_seed",), ("config", "data_seed"))


def test_without_a_configuration_nothing_is_claimed_or_passed() -> None:
    report = audit_of(without_config(comparison(TWO, (41, 42))))
    assert not findings(report, "lost-seed") and outcomes(report, "lost-seed") == {"not judged"}
    assert "put the data seed into the run's configuration" in not_judged(report, "lost-seed")[0].remedy


def test_a_run_without_what_a_rule_needs_does_not_pass_beside_one_that_has_it() -> None:
    runs = [*comparison({"ppo": {}}, (41, 42)), *without_config([make_run("mystery")])]
    report = audit_of(runs)
    (entry,) = [one for one in report.coverage if one.rule == "lost-seed"]
    assert labels(report, entry.runs) == ["ppo-seed41", "ppo-seed42"]


# repeated-attempts


def test_two_finished_runs_of_one_seed_are_repeated_attempts() -> None:
    again = make_run("ppo-seed42-again", {}, 42, number=99)
    report = audit_of([*comparison(TWO, (41, 42, 43)), again])
    found = only(report, "repeated-attempts")
    assert found.level is Level.WARN and labels(report, found.blames) == ["ppo-seed42", "ppo-seed42-again"]
    assert found.evidence["seed"] == "42" and found.arms == (report.runs[again.key].arm,)


def test_an_attempt_that_broke_off_is_listed_and_not_counted() -> None:
    whole = comparison(TWO, (41, 42, 43))
    aborted = cut(make_run("ppo-seed42-first", {}, 42, number=99), 20, state=RunState.CRASHED)
    report = audit_of([*whole, aborted])
    assert not findings(report, "repeated-attempts")
    assert report.runs[aborted.key].counted is False
    assert report.runs[aborted.key].why_not == "it stopped at update 20 (the median of its arm is 60)"


def test_progress_counts_and_not_the_exit_state() -> None:
    runs = change(comparison(TWO, (41, 42, 43)), "*-seed42", state=RunState.FAILED, ended=None)
    report = audit_of(runs)
    assert all(run.counted for run in report.runs.values()) and not findings(report, "repeated-attempts")
    assert only(report, "paired-difference").evidence["n"] == 3


def test_running_runs_count_by_what_they_did() -> None:
    runs = comparison(TWO, (41, 42, 43))
    runs[0] = cut(runs[0], 55, state=RunState.RUNNING, ended=None)
    runs[1] = cut(runs[1], 30, state=RunState.RUNNING, ended=None)
    report = audit_of(runs)
    assert [run.counted for run in report.runs.values()] == [True, False, True, True, True, True]


def test_one_run_a_cell_cannot_be_judged() -> None:
    report = audit_of(comparison(TWO, (41,)))
    assert outcomes(report, "repeated-attempts") == {"not judged"}
    assert "more than one seed" in not_judged(report, "repeated-attempts")[0].remedy


def test_runs_on_a_default_order_are_no_attempts_of_one_seed() -> None:
    report = audit_of(unlabelled(with_config(comparison({"ppo": {}}, (41, 42, 43)), "*", {"data.seed": None})))
    assert not findings(report, "repeated-attempts")


def test_a_run_without_the_score_is_not_counted_and_says_why() -> None:
    runs = comparison(TWO, (41, 42))
    report = audit_of([cut(with_metrics([runs[0]], "*", {SCORE: {}})[0], 60), *runs[1:]])
    assert report.runs[runs[0].key].why_not == f"it has no {SCORE}"

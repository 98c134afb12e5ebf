from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pth_tracker.design.stitch import boundary_changes, label, stitch
from pth_tracker.errors import DesignError, ExitCode
from pth_tracker.model import Audit
from pth_tracker.runs import Run, RunState
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import (
    ABSENT,
    ACTOR,
    ARMS,
    CORRECTION,
    ONE_STEP,
    SCORE,
    START,
    FakeRun,
    as_mlflow,
    audit_of,
    change,
    comparison,
    cut,
    findings,
    idle,
    loud,
    make_run,
    unreadable,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
SEEDS = (41, 42, 43)


def arms_of(report: Audit) -> dict[str, list[str]]:
    return {arm: sorted(report.label(key) for key in keys) for arm, keys in report.design.arms.items()}


NAMED = {"ppo": [f"ppo-seed{seed}" for seed in SEEDS], "tis": [f"tis-seed{seed}" for seed in SEEDS]}


def test_arms_seeds_metric_and_baseline_are_inferred_and_shown_as_such() -> None:
    design = audit_of(comparison(TWO, SEEDS)).design
    assert design.baseline == "ppo" and design.replicate == ("data.seed",) and design.metric == SCORE
    assert design.task == ("data.train_files",) and design.stress == "" and design.source == ""
    assert design.inferred == {"arms", "baseline", "metric", "replicate", "task"}
    assert arms_of(audit_of(comparison(TWO, SEEDS))) == NAMED


def test_what_is_declared_is_not_inferred() -> None:
    declared = {
        "arms": {"a": {"name": "ppo-*"}, "b": {"name": "tis-*"}},
        "baseline": "b",
        "replicate": "data.seed",
        "metric": {"key": "critic/score/mean"},
        "task": "data.val_files",
        "stress": {"key": "trainer.x"},
    }
    design = audit_of(comparison(TWO, SEEDS), declared).design
    assert design.inferred == frozenset() and design.baseline == "b" and design.task == ("data.val_files",)
    assert (design.metric, design.stress) == ("critic/score/mean", "trainer.x")


def test_bookkeeping_soft_and_seed_fields_make_no_arms() -> None:
    runs = comparison(TWO, SEEDS)
    for place, run in enumerate(list(runs)):
        settings = {
            "trainer.experiment_name": f"x{place}",
            "trainer.default_local_dir": f"/tmp/{place}",
            "trainer.n_gpus_per_node": place + 1,
            f"{ACTOR}.fsdp_config.seed": place,
            "actor_rollout_ref.rollout.seed": place,
        }
        runs = with_config(runs, run.name, settings)
    assert arms_of(audit_of(runs)) == NAMED


SETTINGS: dict[str, dict[str, Any]] = {
    "verl": {"algorithm": {"adv_estimator": "grpo", "rollout_is": False}, "lr": 1e-6},
    "trl_grpo": {"num_generations": 8, "max_completion_length": 256, "gradient_accumulation_steps": 1, "lr": 1e-6},
    "openrlhf": {"init_kl_coef": 0.01, "micro_rollout_batch_size": 8, "vllm_num_engines": 2, "lr": 1e-6},
    "nemo_rl": {"policy": {"train_global_batch_size": 64}, "grpo": {"num_prompts_per_step": 8}, "lr": 1e-6},
}
"""Framework to a configuration that is recognised as its own."""
BY_NAME = {"low": {"name": "low-*"}, "high": {"name": "high-*"}}
OF_REPLICATES = {"drift-within-arm", "no-common-seed", "repeated-attempts"}
"""Rules that speak where replicates are taken for something else."""


def replicated(framework: str, key: str, names: tuple[str, str] = ("1", "2")) -> list[FakeRun]:
    """Two arms that differ in lr, each with two runs whose values of ``key`` are 1 and 2."""
    runs = []
    for arm, lr in (("low", 1e-6), ("high", 1e-5)):
        for value in (1, 2):
            name = f"{arm}-{names[value - 1]}"
            run = make_run(name, seed=value, config=SETTINGS[framework])
            runs += with_config([run], "*", {"lr": lr, key: value})
    return runs


def told(report: Audit) -> set[str]:
    """What is said of replicates, and of the fields that set the arms apart beside lr."""
    apart = {field for one in findings(report, "undeclared-difference") for field in one.evidence["fields"]}
    return ({one.rule for one in report.findings} & OF_REPLICATES) | (apart - {"lr"})


@pytest.mark.parametrize("names", [("seed1", "seed2"), ("a", "b")])
@pytest.mark.parametrize("key", ["seed", "random_seed", "training.seed"])
@pytest.mark.parametrize("framework", SETTINGS)
def test_a_usual_seed_makes_no_arms_and_is_no_drift_in_any_framework(
    framework: str, key: str, names: tuple[str, str]
) -> None:
    runs = replicated(framework, key, names)
    expected = {arm: sorted(run.name for run in runs if run.name.startswith(arm)) for arm in BY_NAME}
    inferred, declared = audit_of(runs), audit_of(runs, {"arms": BY_NAME})
    assert {run.framework for run in inferred.runs.values()} == {framework}
    assert sorted(map(tuple, arms_of(inferred).values())) == sorted(map(tuple, expected.values()))
    assert told(inferred) == told(declared) == set()


@pytest.mark.parametrize("key", ["seed", "fold", "data.seed", "trainer.sync_interval", "lr_schedule.offset"])
@pytest.mark.parametrize("framework", SETTINGS)
def test_a_declared_replicate_makes_no_arms_and_is_no_drift_in_any_framework(framework: str, key: str) -> None:
    runs = replicated(framework, key, ("a", "b"))
    declared = {"replicate": key, "metric": {"key": SCORE}}
    for design in (declared, {**declared, "arms": BY_NAME}):
        report = audit_of(runs, design)
        assert sorted(map(sorted, arms_of(report).values())) == [["high-a", "high-b"], ["low-a", "low-b"]]
        assert report.design.replicate == (key,) and report.design.stress == "" and told(report) == set()
        assert [one.evidence["n"] for one in findings(report, "paired-difference")] == [2]


def test_a_field_that_is_no_seed_makes_arms_until_it_is_declared() -> None:
    assert len(audit_of(replicated("verl", "fold")).design.arms) == 4


def test_in_every_framework_a_seed_is_a_seed_or_says_why_it_is_none() -> None:
    vocabulary = load_vocabulary()
    run = Run((make_run("x").source,))
    readings = [Reading(vocabulary, replace(run, framework=framework)) for framework in vocabulary.frameworks]
    none = {one.run.framework for one in readings if not one.is_seed("seed")}
    assert all(one.is_seed("seed") != one.is_bookkeeping("seed") for one in readings)
    assert none == {"prime_rl"}, "prime-rl reads its orchestrator's seed nowhere"
    assert not Reading(vocabulary, replace(run, framework="trl_grpo")).is_seed("data_seed")


def test_a_stress_axis_and_tasks_split_cells_and_not_arms() -> None:
    runs = [
        make_run(f"{arm}-n{n}-seed{seed}", {**TWO[arm], "trainer.sync_interval": n}, seed)
        for arm in TWO
        for n in (64, 96)
        for seed in SEEDS
    ]
    report = audit_of(runs)
    assert report.design.stress == "trainer.sync_interval" and len(report.design.arms) == 2
    subjects = {entry.subject for entry in report.coverage if entry.rule == "paired-difference"}
    assert len(subjects) == 2 and all("trainer.sync_interval=" in subject for subject in subjects)
    one = audit_of([run for run in runs if "n64" in run.name])
    assert one.design.stress == ""


def test_one_stress_value_spelt_in_two_ways_is_one() -> None:
    runs = [
        make_run(f"{arm}-seed{seed}", {**TWO[arm], "trainer.sync_interval": 64.0 if arm == "tis" else "64"}, seed)
        for arm in TWO
        for seed in SEEDS
    ]
    report = audit_of(runs, {"stress": {"key": "trainer.sync_interval"}})
    assert [entry.evidence["n"] for entry in findings(report, "paired-difference")] == [3]


def test_runs_as_mlflow_holds_them_give_the_same_audit() -> None:
    direct = audit_of(with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None}))
    mlflow = audit_of([as_mlflow(run) for run in with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None})])
    assert mlflow.design.metric == SCORE.replace("@", "_at_")
    told = [
        [(one.level, one.rule, one.title, one.blames, one.because_of) for one in a.findings] for a in (direct, mlflow)
    ]
    assert told[0] == told[1] and mlflow.design.arms == direct.design.arms
    assert [run.verdict for run in mlflow.runs.values()] == [run.verdict for run in direct.runs.values()]


def test_the_metric_that_most_runs_have_and_the_alternatives() -> None:
    other = "val-core/math/acc/mean@4"
    runs = with_metrics(comparison(TWO, SEEDS), "ppo-seed41", {other: {60: 0.1}})
    design = audit_of(runs).design
    assert design.metric == SCORE and any(other in note and "--metric" in note for note in design.notes)
    assert audit_of(without_metrics(runs, "val-core/*")).design.metric == ""


# declared arms


def test_a_run_in_two_arms_is_refused_by_name() -> None:
    with pytest.raises(DesignError, match="ppo-seed41 is in two arms, a and b") as caught:
        audit_of(comparison(TWO, SEEDS), {"arms": {"a": {"name": "*"}, "b": {"name": "ppo-*"}}})
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_arm_without_runs_is_refused_and_the_runs_are_named() -> None:
    with pytest.raises(DesignError, match="no run is in the arm 'b'; the runs are ppo-seed41"):
        audit_of(comparison(TWO, SEEDS), {"arms": {"a": {"name": "*"}, "b": {"name": "nobody"}}})


def test_runs_in_no_arm_are_listed_and_not_counted() -> None:
    report = audit_of(comparison(TWO, SEEDS), {"arms": {"a": {"name": "ppo-*"}}})
    assert report.design.notes == ("in no arm: tis-seed41, tis-seed42, tis-seed43",)
    assert [run.why_not for run in report.runs.values()] == [""] * 3 + ["it is in no arm"] * 3
    assert [run.counted for run in report.runs.values()] == [True] * 3 + [False] * 3


def test_a_baseline_that_is_no_arm_is_refused() -> None:
    with pytest.raises(DesignError, match="baseline 'grpo' is none of the inferred arms ppo, tis"):
        audit_of(comparison(TWO, SEEDS), {"baseline": "grpo"})
    assert audit_of(comparison(TWO, SEEDS), {"baseline": "tis"}).design.baseline == "tis"


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ({"name": "ppo-*"}, 3),
        ({"name": ["ppo-seed41", "tis-seed4?"]}, 4),
        ({"group": "g1"}, 1),
        ({"tag": "good"}, 2),
        ({"job_type": "train"}, 1),
        ({"config": {f"{CORRECTION}.rollout_is": "token"}}, 3),
        ({"config": {f"{CORRECTION}.rollout_is": None}}, 3),
        ({"config": {"data.seed": "41"}}, 2),
        ({"config": {"data.seed": 41.0}}, 2),
        ({"name": "ppo-*", "config": {"data.seed": 41}}, 1),
    ],
)
def test_selectors(selector: dict[str, Any], found: int) -> None:
    runs = change(comparison(TWO, SEEDS), "ppo-seed41", group="g1", tags=("x", "good"), job_type="train")
    runs = change(runs, "tis-seed43", tags=("good",))
    assert len(audit_of(runs, {"arms": {"a": selector}}).design.arms["a"]) == found


# no comparison


def test_single_exploratory_runs_are_no_comparison_and_say_so_once() -> None:
    runs = [
        make_run(
            f"try-{n}",
            {
                f"{ACTOR}.optim.lr": 10.0**-n,
                "data.train_batch_size": 32 * n,
                f"{ACTOR}.kl_loss_coef": 1e-3 * n,
                "algorithm.gamma": 1 - n / 100,
            },
            number=n,
        )
        for n in range(1, 6)
    ]
    report = audit_of(runs)
    (note,) = [note for note in report.notes if "no comparison recognised" in note]
    assert "5 different settings" in note and "--arm" in note
    assert not findings(report, "undeclared-difference") and not findings(report, "paired-difference")
    assert loud(report) == [] and report.design.baseline == ""
    for entry in report.not_judged:
        if entry.missing == ("comparable_pairs",):
            assert entry.remedy == note


def test_arms_of_single_runs_that_differ_in_little_are_compared() -> None:
    runs = [make_run("low-seed43", {f"{ACTOR}.optim.lr": 1e-6}), make_run("high-seed43", {f"{ACTOR}.optim.lr": 1e-5})]
    assert findings(audit_of(runs), "undeclared-difference")


def test_runs_without_configuration_are_told_apart_by_their_names() -> None:
    report = audit_of(without_config(comparison(TWO, SEEDS)))
    assert arms_of(report) == NAMED and report.design.replicate == ("the seed in the name",)


def test_runs_whose_configuration_holds_no_setting_are_told_apart_by_their_names() -> None:
    names = ("low-seed1", "low-seed2", "high-seed1", "high-seed2")
    runs = [make_run(name, config={"trainer.experiment_name": name, "data.seed": int(name[-1])}) for name in names]
    assert set(audit_of(runs).design.arms) == {"low", "high"}


def test_two_frameworks_in_one_project_are_never_compared() -> None:
    other = [
        make_run(
            f"sb3-seed{seed}",
            config={"policy": "MlpPolicy", "seed": seed, "learning_rate": 3e-4},
            metrics={**dict.fromkeys(make_run("x").points), "rollout/ep_rew_mean": 1.0, "train/approx_kl": 0.01},
        )
        for seed in SEEDS
    ]
    report = audit_of([*comparison(TWO, SEEDS), *other])
    frameworks = {run.arm: run.framework for run in report.runs.values()}
    assert frameworks["ppo"] == frameworks["tis"] == "verl" and len(frameworks) == 3
    assert [one.arms for one in findings(report, "paired-difference")] == [("tis", "ppo")]


# stitching


def resumed(first: FakeRun, last: int, restart: int | None = None, **attributes: Any) -> list[FakeRun]:
    """``first`` broken off after step ``last``, and a second run of its name from ``restart`` (None: the next step)."""
    assert first.source.created is not None
    ended = first.source.created + timedelta(minutes=10)
    later = {"created": ended + timedelta(minutes=5), "ended": ended + timedelta(hours=1), **attributes}
    again = make_run(first.name, run_id=f"{first.key}-again", config=first.source.config, **later)
    before = cut(first, last, state=RunState.CRASHED, ended=ended)
    return [before, cut(again, 10**9, last + 1 if restart is None else restart)]


def test_a_resumed_run_is_one_run_of_two_parts() -> None:
    runs = comparison(TWO, SEEDS)
    report = audit_of([*resumed(runs[0], 30), *runs[1:]])
    audited = report.runs[runs[0].key]
    assert len(report.runs) == 6 and len(audited.parts) == 2 and audited.counted and audited.last_update == 60
    assert not findings(report, "repeated-attempts")


def test_a_restart_from_the_start_is_two_attempts() -> None:
    runs = comparison(TWO, SEEDS)
    report = audit_of([*resumed(runs[0], 30, 0), *runs[1:]])
    assert len(report.runs) == 7
    first = report.runs[runs[0].key]
    assert len(first.parts) == 1 and not first.counted and "stopped at update 30" in first.why_not
    again = report.runs[f"{runs[0].key}-again"]
    assert again.counted and again.label != first.label and again.label.startswith("ppo-seed41 (")
    assert not findings(report, "repeated-attempts")


def test_a_restart_that_is_resumed_itself_stays_together() -> None:
    runs = comparison(TWO, SEEDS)
    first, second = resumed(runs[0], 30, 0)
    assert second.source.created is not None
    third = make_run(
        first.name,
        run_id="third",
        config=first.source.config,
        created=second.source.created + timedelta(hours=2),
        ended=second.source.created + timedelta(hours=3),
    )
    middle = cut(second, 40, state=RunState.CRASHED, ended=second.source.created + timedelta(hours=1))
    report = audit_of([first, middle, cut(third, 60, 41), *runs[1:]])
    assert {key: len(run.parts) for key, run in report.runs.items() if run.name == "ppo-seed41"} == {
        first.key: 1,
        middle.key: 2,
    }
    assert report.runs[middle.key].counted and report.runs[middle.key].last_update == 60


def test_restarts_one_after_the_other_are_as_many_attempts() -> None:
    run = comparison(TWO, SEEDS)[0]
    parts = []
    for place in range(4):
        created = START + timedelta(hours=place)
        part = make_run(
            run.name,
            run_id=f"r{place}",
            config=run.source.config,
            created=created,
            ended=created + timedelta(minutes=5),
        )
        parts.append(cut(part, 20 + place, state=RunState.CRASHED))
    report = audit_of(parts)
    assert [len(audited.parts) for audited in report.runs.values()] == [1] * 4
    assert [audited.last_update for audited in report.runs.values()] == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("attributes", "joined"),
    [
        ({}, True),
        ({"created": START - timedelta(days=1), "ended": START}, False),
        ({"created": None}, False),
    ],
)
def test_what_is_one_run(attributes: dict[str, Any], joined: bool) -> None:
    report = audit_of(resumed(make_run("a-seed43"), 30, **attributes))
    assert len(report.runs) == (1 if joined else 2)


def test_a_finished_run_is_never_continued() -> None:
    first, second = resumed(make_run("a-seed43"), 30)
    done = change([first], "*", state=RunState.FINISHED)
    assert len(audit_of([*done, second]).runs) == 2


def test_another_seed_or_other_settings_are_another_run() -> None:
    for settings in ({"data.seed": 44}, {f"{ACTOR}.optim.lr": 1.0, "algorithm.gamma": 0.5, "algorithm.lam": 0.1}):
        first, second = resumed(make_run("a-seed43"), 30)
        assert len(audit_of([first, *with_config([second], "*", settings)]).runs) == 2


def test_runs_without_a_name_are_not_one_another() -> None:
    first, second = resumed(make_run("", {}, 43, run_id="r"), 30)
    assert len(audit_of([first, second]).runs) == 2


def test_a_part_that_cannot_be_read_spoils_the_whole_run_by_name() -> None:
    first, second = resumed(make_run("a-seed43"), 30)
    report = audit_of([first, unreadable(second), make_run("b-seed44", {}, 44)])
    assert [(error.name, error.ref.run_id) for error in report.errors] == [("a-seed43", second.key)]
    assert report.runs[first.key].why_not == "it could not be read"
    assert report.runs[first.key].verdict == "not-judged"


def test_what_changed_at_the_boundary() -> None:
    first, second = resumed(make_run("a-seed43"), 30)
    (changed,) = with_config([second], "*", {f"{ACTOR}.optim.lr": 0.5, "trainer.extra": 1})
    (run,) = stitch(load_vocabulary(), [first.source, changed.source])
    assert boundary_changes(run) == {f"{ACTOR}.optim.lr": (0.05, 0.5), "trainer.extra": (MISSING, 1)}


def test_labels_are_unique() -> None:
    def runs(*pairs: tuple[str, str]) -> list[str]:
        return [one.label for one in label([Run((make_run(n, run_id=key).source,)) for n, key in pairs])]

    assert runs(("a", "abcdef"), ("b", "abcdeg")) == ["a", "b"]
    assert runs(("a", "abcdef1"), ("a", "abcdeg1")) == ["a (abcdef)", "a (abcdeg)"]
    assert runs(("", "x1"), ("", "x2")) == ["x1", "x2"]
    assert len(set(runs(("a", "1"), ("a", "12"), ("a", "123456789")))) == 3


def test_the_name_of_an_arm_shows_no_secret() -> None:
    runs = [
        make_run(f"job{number}", {"env.OPENAI_API_KEY": f"sk-{arm}", f"{ACTOR}.optim.lr": float(arm)}, seed)
        for number, (arm, seed) in enumerate([(1, 41), (1, 42), (2, 41), (2, 42)])
    ]
    report = audit_of(runs)
    assert list(report.design.arms) == ["lr=1.0", "lr=2.0"]


def test_an_attempt_that_broke_off_before_it_logged_anything_configures_nothing() -> None:
    settings = {f"{CORRECTION}.rollout_is": ABSENT}
    again = make_run("a-seed43", {**ONE_STEP, **settings}, 43, number=2, metrics=idle())
    broken = make_run("a-seed43", {**ONE_STEP, **ARMS["tis"]}, 43, number=1, state=RunState.CRASHED)
    empty = replace(broken, points={}, source=replace(broken.source, metric_keys=frozenset(), last_step=None))
    report = audit_of([empty, again])
    assert len(report.runs) == 1 and [one.rule for one in report.by_level("fail")] == ["idle-clip"]


def test_names_that_no_run_has_are_said_with_the_nearest() -> None:
    notes = audit_of(comparison(TWO, (41, 42)), {"replicate": ["data.sed"]}).design.notes
    assert "no run's configuration has data.sed; did you mean data.seed?" in notes
    assert (
        audit_of(comparison(TWO, (41, 42)), {"metric": {"key": SCORE}, "replicate": ["data.seed"]}).design.notes == ()
    )


@pytest.mark.parametrize(
    ("named", "near"),
    [(f"{SCORE}x", SCORE), ("actor/grad_norms", "actor/grad_norm"), ("a/very/long/way/off/acc/mean@1", SCORE)],
)
def test_a_metric_that_no_run_logs_is_an_error_that_names_the_nearest(named: str, near: str) -> None:
    with pytest.raises(DesignError, match=f"no run logs the metric {named}; did you mean ") as caught:
        audit_of(comparison(TWO, (41, 42)), {"metric": {"key": named}})
    assert near in str(caught.value) and caught.value.exit_code == 2 and caught.value.key == "metric"


def test_where_no_name_is_near_the_nearest_are_named_all_the_same() -> None:
    with pytest.raises(DesignError, match="no run logs the metric zzz; the nearest names are [^,]+, [^,]+, [^,]+$"):
        audit_of(comparison(TWO, (41, 42)), {"metric": {"key": "zzz"}})


def test_a_metric_that_running_runs_have_not_logged_yet_is_only_noted() -> None:
    runs = change(comparison(TWO, (41, 42)), "*", state=RunState.RUNNING)
    assert any(
        "no run logs the metric later" in note for note in audit_of(runs, {"metric": {"key": "later"}}).design.notes
    )
    bare = without_metrics(comparison(TWO, (41, 42)), "*")
    assert audit_of(bare, {"metric": {"key": "later"}}).design.notes

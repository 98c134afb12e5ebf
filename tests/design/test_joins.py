"""Trainings that are logged as two runs, and runs that train nothing: both told from the listing alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from llm_configurations import PRIME_TRAINER
from llm_fixtures import LAG, NOTHING, UPDATES, noise, prime_runs, prime_trainer, trained_run
from pth_tracker.design.stitch import stitch
from pth_tracker.examine import Examination, examine, units_of
from pth_tracker.model import Plan, Verdict
from pth_tracker.runs import History, Run, RunState
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.load import load_vocabulary
from pth_tracker.writeback import write_back
from synthetic import (
    SCORE,
    START,
    FakeRun,
    MemoryTracker,
    audit_of,
    change,
    comparison,
    cut,
    findings,
    labels,
    loud,
    make_run,
    only,
    outcomes,
    with_config,
    with_metrics,
)

PLAN = Plan(rules=(), quantities=("train_score_mean", "loss"), metric="")


def project(**trainer: Any) -> list[FakeRun]:
    """Two arms of three trainings, each of them two runs."""
    return [
        run
        for place, (arm, low) in enumerate((("base", 0.125), ("wide", 0.25)))
        for seed in (1, 2, 3)
        for run in prime_runs(
            f"{arm}-seed{seed}", seed, trainer={"loss.token_mask_low": low, **trainer}, number=4 * place + seed
        )
    ]


def stitched(runs: list[FakeRun]) -> list[Run]:
    return stitch(load_vocabulary(), [run.source for run in runs])


def names(run: Run) -> list[str]:
    return [part.name for part in run.parts]


def test_one_training_that_two_processes_log_is_one_run() -> None:
    runs = project()
    report = audit_of(runs)
    assert sorted(entry.label for entry in report.runs.values()) == sorted(
        f"{arm}-seed{seed}" for arm in ("base", "wide") for seed in (1, 2, 3)
    )
    assert {entry.framework for entry in report.runs.values()} == {"prime_rl"}
    assert set(report.design.arms) == {"base", "wide"} and report.design.metric == "eval/aime/avg@16"
    assert {entry.seed for entry in report.runs.values()} == {"1", "2", "3"}
    assert loud(report) == [] and outcomes(report, "sampler-mismatch") == {"passed"}
    assert [names(run) for run in stitched(runs)][0] == ["base-seed1-orchestrator", "base-seed1-trainer"]


def test_the_metrics_and_settings_of_both_reach_the_checks() -> None:
    diverging = with_metrics(project(), "wide-seed2-trainer", {"mismatch_kl/mean": [0.001] * 38 + [float("nan")] * 2})
    (found,) = findings(audit_of(diverging), "sampler-diverged")  # the trainer's metric
    assert len(found.blames) == 1
    unseeded = with_config(project(), "wide-*-orchestrator", {"buffer.seed": None})
    report = audit_of(unseeded)
    lost = only(report, "lost-seed")  # the orchestrator's setting
    assert labels(report, lost.blames) == ["wide-seed1", "wide-seed2", "wide-seed3"]
    assert "buffer.seed is null" in lost.detail


def test_no_history_decides_and_both_are_asked_for_what_either_may_hold() -> None:
    tracker = MemoryTracker(project())
    audit_of(tracker)
    assert tracker.requests["histories"] == 1
    for wanted in tracker.wanted.values():
        assert wanted is not None and {"reward/mean", "optim/lr", "mismatch_kl/mean"} <= set(wanted)


def test_marks_go_to_both_runs() -> None:
    runs = with_config(project(), "wide-seed1-orchestrator", {"buffer.seed": 7})
    tracker = MemoryTracker(runs)
    report = audit_of(tracker)
    write_back(tracker, report, dry_run=False)
    marked = {ref.run_id for ref, marks in tracker.held.items() if any("lost-seed" in tag for tag in marks.tags)}
    assert marked == {run.key for run in runs if run.name.startswith("wide-seed1-")}
    assert {ref.run_id for ref in tracker.held} == {run.key for run in runs}


def test_a_trainer_without_its_orchestrator_is_judged_on_what_it_has() -> None:
    metrics = {**NOTHING, **prime_trainer("x", 1), "mismatch_kl/mean": [0.001] * 20 + [0.5] * 20}
    alone = make_run("x-trainer", config=PRIME_TRAINER, metrics=metrics, updates=UPDATES)
    report = audit_of([alone])
    (entry,) = report.runs.values()
    assert (entry.label, len(entry.parts)) == ("x-trainer", 1)
    assert only(report, "sampler-diverged").blames == (alone.key,)
    assert any("NAME-orchestrator" in one.remedy for one in report.not_judged if "data_seed" in one.missing)


def test_trainings_of_one_name_are_told_apart_by_time() -> None:
    first, again = prime_runs("x-seed1", 1, number=1), prime_runs("x-seed1", 1, number=9)
    runs = stitched([first[0], again[1], again[0], first[1]])
    assert [{part.created for part in run.parts} for run in runs] == [
        {START + timedelta(hours=1)},
        {START + timedelta(hours=9)},
    ]
    assert [run.label for run in runs] == [f"x-seed1 ({run.key[: len(run.label) - 10]})" for run in runs]


def test_what_did_not_run_at_one_time_or_is_another_process_is_not_joined() -> None:
    orchestrator, trainer = prime_runs("x", 1, number=1)
    (later,) = change([trainer], "*", created=START + timedelta(days=2), ended=START + timedelta(days=3))
    assert [names(run) for run in stitched([orchestrator, later])] == [["x-orchestrator"], ["x-trainer"]]
    (posing,) = change([orchestrator], "*", name="x-trainer")  # its configuration is an orchestrator's
    assert len(stitched([orchestrator, posing])) == 2
    assert len(stitched([orchestrator, *change([trainer], "*", name="y-trainer")])) == 2
    # A name like that says nothing of other frameworks.
    verl = [make_run(f"ppo-{side}", number=1) for side in ("trainer", "orchestrator")]
    assert [names(run) for run in stitched(verl)] == [["ppo-trainer"], ["ppo-orchestrator"]]


def test_times_that_a_tracker_does_not_tell_join_by_name() -> None:
    runs = change(prime_runs("x", 1), "*", created=None, ended=None)
    assert [names(run) for run in stitched(runs)] == [["x-orchestrator", "x-trainer"]]


def test_processes_with_made_up_names_are_joined_by_their_folder() -> None:
    orchestrator, trainer = (change([run], "*", name=name) for run, name in zip(prime_runs("x", 1, number=1), "ab"))
    assert [(run.name, names(run)) for run in stitched([*orchestrator, *trainer])] == [("b", ["a", "b"])]
    apart = change(trainer, "*", created=START + timedelta(hours=1, minutes=20))  # another launch in that folder
    elsewhere = with_config(trainer, "*", {"output_dir": "elsewhere"})
    for others in (apart, elsewhere):
        assert [names(run) for run in stitched([*orchestrator, *others])] == [["a"], ["b"]]


def resumed(**settings: Any) -> list[FakeRun]:
    """A training that crashed at update 20 and was resumed: four runs."""
    pieces = []
    for run in prime_runs("x-seed1", 1, number=1):
        begun = START + timedelta(hours=1)
        pieces.append(cut(run, 20, created=begun, ended=begun + timedelta(hours=1), state=RunState.CRASHED))
        later = {"created": begun + timedelta(hours=3), "ended": begun + timedelta(hours=4)}
        ref = type(run.source.ref)(run.source.ref.project, f"{run.key}-2")
        pieces.append(cut(run, UPDATES, 21, ref=ref, **later))
    return with_config(pieces, "x-seed1-trainer", {}) if not settings else [
        *with_config(pieces[:3], "nobody", {}), *with_config(pieces[3:], "*", settings)
    ]  # fmt: skip


def test_a_resumed_training_of_two_processes_is_one_run_of_two_segments() -> None:
    (run,) = stitched(resumed())
    assert [[part.name for part in segment] for segment in run.segments] == [
        ["x-seed1-orchestrator", "x-seed1-trainer"]
    ] * 2
    assert [part.ref.run_id.endswith("-2") for part in run.parts] == [False, False, True, True]
    report = audit_of(resumed())
    assert [len(entry.parts) for entry in report.runs.values()] == [4] and loud(report) == []
    changed = only(audit_of(resumed(**{"optim.weight_decay": 0.1})), "resume-changes-run")
    assert "optim.weight_decay" in changed.detail


def test_one_that_starts_over_is_two_attempts_of_two_processes() -> None:
    pieces = resumed()
    again = [cut(run, 20) if run.key.endswith("-2") else run for run in pieces]
    whole = {run.name: run for run in prime_runs("x-seed1", 1, number=1)}
    again = [
        FakeRun(run.source, whole[run.name].points) if run.key.endswith("-2") else run for run in again
    ]  # the later ones log from the first update on
    report = audit_of(again)
    assert sorted(len(entry.parts) for entry in report.runs.values()) == [2, 2]


def test_what_both_processes_log_under_one_name_is_no_conflict() -> None:
    listed = prime_runs("x-seed1", 1, number=1)  # all metrics are read, perf/throughput of both
    runs = [FakeRun(replace(run.source, metric_keys=None), run.points) for run in listed]
    (result,) = examine(MemoryTracker(runs), units_of(stitched(runs), PLAN), PLAN)
    assert isinstance(result, Examination) and result.conflicts == 0


def test_a_metric_less_another_one_is_read_at_their_common_updates() -> None:
    run = trained_run("tinker_cookbook", "x", 1)
    points = {"training_client/step": ([1, 2, 3], [4.0, 5.0, 6.0]), "sampling_client/step_mean": ([2, 3], [4.5, 5.0])}
    (own,) = stitched([run])
    age = Reading(load_vocabulary(), own, History.from_points(points)).series("data_age")
    assert age is not None and age.step.tolist() == [2, 3] and age.values.tolist() == [0.5, 1.0]


# what trains nothing


def evaluation(name: str, **attributes: Any) -> FakeRun:
    scores = {step: 0.5 for step in (5, 10, 15)}
    return make_run(name, metrics={**NOTHING, SCORE: scores}, config={"ckpt": name}, number=500, **attributes)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (lambda: make_run("ppo-seed43-eval", job_type="Eval", number=500), "its job type is Eval"),
        (lambda: make_run("ppo-seed43", {"trainer.val_only": True}, number=500), "has it evaluate only"),
        (lambda: evaluation("ppo-seed43-best"), "it logs evaluations only"),
    ],
)
def test_what_trains_nothing_is_listed_with_the_reason_and_left_aside(job: Any, why: str) -> None:
    own = job()
    report = audit_of([*comparison(), own])
    entry = report.runs[own.key]
    assert not entry.counted and why in entry.why_not and entry.verdict is Verdict.NOT_JUDGED
    assert loud(report) == [] and own.key not in {key for one in report.findings for key in one.runs}
    assert all(own.key not in keys for keys in report.design.arms.values())
    assert all(entry.counted for key, entry in report.runs.items() if key != own.key)


def test_evaluations_alone_are_what_is_compared_where_nobody_logs_more() -> None:
    runs = [FakeRun(run.source, {SCORE: run.points[SCORE]}) for run in comparison()]
    report = audit_of(change(runs, "*", notes=()))
    assert all(entry.counted for entry in report.runs.values()) and len(report.design.arms) == 3


def test_a_training_metric_that_is_called_val_makes_no_evaluation() -> None:
    runs = [trained_run("open_instruct", f"x-seed{seed}", seed, number=seed) for seed in (1, 2)]
    only_val = {"val/sequence_lengths": noise("a", 1, 2), "val/advantages_max": noise("b", 1, 2)}
    partly = trained_run("open_instruct", "x-seed3", 3, number=3)
    bare = FakeRun(partly.source, {key: (tuple(range(1, 41)), tuple(value)) for key, value in only_val.items()})
    report = audit_of([*runs, *change([bare], "*", notes=())])
    assert "evaluations only" not in " ".join(entry.why_not for entry in report.runs.values())


def test_a_declared_arm_counts_whatever_the_job_is_called() -> None:
    runs = change(comparison({"ppo": {}, "tis": {"algorithm.rollout_correction.rollout_is": "token"}}), "*",
                  job_type="eval")  # fmt: skip
    design = {"arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}}
    report = audit_of(runs, design)
    assert all(entry.counted for entry in report.runs.values())
    nothing = audit_of(runs)
    assert not any(entry.counted for entry in nothing.runs.values()) and loud(nothing) == []


def test_lag_is_declared_by_either_process() -> None:
    runs = with_metrics(project(), "*-trainer", {"mismatch_kl/mean": LAG})
    assert findings(audit_of(runs), "sampler-mismatch") == []


def test_replicates_of_one_fixed_order_are_told_apart_by_another_seed() -> None:
    runs = [
        trained_run("areal", f"{arm}-{seed}", seed, {"actor.eps_clip": eps}, number=10 * place + seed, group=arm)
        for place, (arm, eps) in enumerate((("base", 0.2), ("wide", 0.4)))
        for seed in (1, 2, 3)
    ]
    report = audit_of(runs)
    assert report.design.replicate == ("seed",) and {entry.seed for entry in report.runs.values()} == {"1", "2", "3"}
    assert {rule for _, rule, _ in loud(report)} == {"one-data-order"}
    assert len(findings(report, "paired-difference")) == 1


def test_a_run_without_the_score_in_force_collapses_by_its_own() -> None:
    falls = {step: 0.2 + 0.5 * step / 20 if step <= 20 else 0.05 for step in range(2, UPDATES + 1, 2)}
    others = [run for run in comparison() if not run.name.startswith("tis")]
    fallen = trained_run("roll", "roll-seed1", 1, metrics={"val_correct/all/mean": falls})
    report = audit_of([*others, fallen])
    assert report.design.metric == SCORE and only(report, "collapsed").blames == (fallen.key,)
    assert only(report, "collapsed").evidence["metric"] == "val_correct/all/mean"

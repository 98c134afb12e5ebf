from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from pth_tracker.engine import exit_code
from pth_tracker.errors import DesignError, ExitCode, NothingSelected, ProjectNotFound, TrackerError, UsageError
from pth_tracker.model import Level, Outcome
from pth_tracker.runs import RunState
from synthetic import (
    ARMS,
    CLIP,
    CORRECTION,
    ONE_STEP,
    PROJECT,
    SCORE,
    START,
    MemoryTracker,
    audit_of,
    change,
    comparison,
    cut,
    findings,
    idle,
    labels,
    loud,
    make_run,
    only,
    unreadable,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
SEEDS = (41, 42, 43)


def test_two_bugs_in_one_comparison_are_told_apart() -> None:
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS), "grpo-*", idle())
    report = audit_of(with_config(runs, "tis-*", {"data.seed": None}))
    assert [(one.rule, one.tag) for one in report.findings if one.counts and one.level is Level.FAIL] == [
        ("idle-clip", "Idle Clip"),
        ("lost-seed", "Lost Seed"),
    ]
    verdicts = {run.name: (str(run.verdict), run.rules) for run in report.runs.values()}
    assert verdicts == {
        **{f"grpo-seed{seed}": ("fail", ("idle-clip",)) for seed in SEEDS},
        **{f"tis-seed{seed}": ("fail", ("lost-seed",)) for seed in SEEDS},
    }
    assert exit_code(report) is ExitCode.CHECK_FAILED


def test_the_worst_finding_that_blames_a_run_is_its_verdict() -> None:
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS), "grpo-*", idle())
    report = audit_of(with_config(runs, "grpo-seed42", {"algorithm.gamma": 0.5}))
    drifting = next(run for run in report.runs.values() if run.name == "grpo-seed42")
    assert drifting.verdict == "fail" and "idle-clip" in drifting.rules


def test_findings_are_sorted_the_loudest_first_and_the_uncounted_last() -> None:
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, (41, 42)), "grpo-*", idle())
    report = audit_of(with_config(runs, "tis-*", {"data.seed": None}))
    order = [(not one.counts, one.level.rank, one.check) for one in report.findings]
    assert order == sorted(order) and report.findings[0].level is Level.FAIL


def test_only_what_the_rules_need_is_fetched() -> None:
    tracker = MemoryTracker(with_metrics(comparison(TWO, SEEDS), "*", {"timing_s/step": 1.0, "noise/x": 2.0}))
    audit_of(tracker)
    assert tracker.requests == {"runs": 1, "histories": 1}
    for keys in tracker.wanted.values():
        assert keys is not None and CLIP in keys and SCORE in keys
        assert "noise/x" not in keys and "timing_s/step" not in keys
    narrow = MemoryTracker(comparison(TWO, SEEDS))
    audit_of(narrow, select=("lost-seed",))
    assert all(keys is not None and "critic/score/mean" not in keys for keys in narrow.wanted.values())


def test_where_the_listing_does_not_tell_the_metrics_all_are_fetched() -> None:
    from dataclasses import replace

    blind = [replace(run, source=replace(run.source, metric_keys=None)) for run in comparison(TWO, SEEDS)]
    tracker = MemoryTracker(blind)
    report = audit_of(tracker, {"metric": {"key": SCORE}})
    assert set(tracker.wanted.values()) == {None} and only(report, "paired-difference").evidence["n"] == 3


def test_a_run_that_cannot_be_read_is_named_and_the_others_are_audited() -> None:
    runs = comparison(TWO, SEEDS)
    report = audit_of([unreadable(runs[0], "HTTP 500"), *runs[1:]])
    assert [(error.name, error.message) for error in report.errors] == [("ppo-seed41", "HTTP 500")]
    spoilt = report.runs[runs[0].key]
    assert (spoilt.counted, spoilt.why_not, spoilt.verdict) == (False, "it could not be read", "not-judged")
    assert len(report.runs) == 6 and only(report, "paired-difference").evidence["n"] == 2
    assert exit_code(report) is ExitCode.TRACKER and exit_code(report, exit_zero=True) is ExitCode.TRACKER


def test_a_run_without_an_answer_is_an_error_too() -> None:
    runs = comparison(TWO, SEEDS)
    report = audit_of(MemoryTracker(runs, silent=[runs[0].key]))
    assert [(error.name, "no answer" in error.message) for error in report.errors] == [("ppo-seed41", True)]


def test_where_no_run_can_be_read_nothing_is_judged() -> None:
    report = audit_of([unreadable(run) for run in comparison(TWO, SEEDS)])
    assert {entry.outcome for entry in report.coverage} == {Outcome.NOT_JUDGED}
    assert exit_code(report) is ExitCode.NOTHING and len(report.errors) == 6
    assert {str(run.verdict) for run in report.runs.values()} == {"not-judged"}


def test_a_tracker_that_fails_as_a_whole() -> None:
    with pytest.raises(TrackerError, match="unreachable"):
        audit_of(MemoryTracker(comparison(), down="the server is unreachable"))


def test_nothing_selected_says_by_what() -> None:
    with pytest.raises(ProjectNotFound):
        audit_of(comparison(), project="none")
    with pytest.raises(NothingSelected, match="'synthetic' has no run that --where selects"):
        audit_of(comparison(), where="zzz*")
    with pytest.raises(NothingSelected, match="--where and --since"):
        audit_of(comparison(), where="zzz*", since=START)
    with pytest.raises(NothingSelected, match="memory at memory has no run to audit"):
        audit_of([], project="")
    late = audit_of(comparison(), since=START + timedelta(hours=14))
    assert len(late.runs) == 1


def test_wrong_rules_are_refused_before_the_tracker_is_asked() -> None:
    tracker = MemoryTracker(comparison())
    with pytest.raises(UsageError, match="idle-clip"):
        audit_of(tracker, select=("idle-clop",))
    with pytest.raises(DesignError, match="idle-clip"):
        audit_of(tracker, {"rules": {"levels": {"idle-clop": "warn"}}})
    with pytest.raises(UsageError, match="no such vocabulary"):
        audit_of(tracker, vocabularies=(Path("none.yaml"),))
    assert not tracker.requests


def test_a_tracker_that_can_only_be_read_is_noted_and_no_error() -> None:
    report = audit_of(MemoryTracker(comparison(TWO, SEEDS), read_only="log files are only read"))
    assert "nothing is written back: log files are only read" in report.notes
    assert exit_code(report) is ExitCode.OK


def test_aborted_and_empty_runs_are_listed_with_the_reason() -> None:
    runs = comparison(TWO, SEEDS)
    aborted = cut(make_run("ppo-seed44", {}, 44, number=50), 53, state=RunState.KILLED)
    reached = cut(make_run("ppo-seed45", {}, 45, number=51), 54, state=RunState.KILLED)
    empty = change(without_metrics([make_run("ppo-seed46", {}, 46, number=52)], "*"), "*", state=RunState.FAILED)
    report = audit_of([*runs, aborted, reached, *empty])
    why = {run.name: run.why_not for run in report.runs.values()}
    assert why["ppo-seed44"] == "it stopped at update 53 (the median of its arm is 60)"
    assert why["ppo-seed45"] == "" and why["ppo-seed46"] == "it logged nothing"  # 54 is 90% of 60
    verdicts = {run.name: str(run.verdict) for run in report.runs.values()}
    assert verdicts["ppo-seed46"] == "not-judged" and verdicts["ppo-seed45"] == "pass"


def test_notes_of_the_adapter_reach_the_report() -> None:
    runs = change(comparison(TWO, SEEDS), "ppo-seed41", notes=("truncated file: 3 records lost",))
    report = audit_of(runs)
    assert [run.notes for run in report.runs.values()][0] == ("truncated file: 3 records lost",)


def test_progress_is_told() -> None:
    from pth_tracker.engine import Options, audit

    told: list[tuple[str, int, int]] = []
    audit(MemoryTracker(comparison(TWO, SEEDS)), Options(PROJECT), progress=lambda *step: told.append(step))
    assert told[0][0] == "listing runs" and ("reading histories", 6, 6) in told
    assert all(done <= total for _, done, total in told)


def test_every_run_and_finding_of_an_audit_is_consistent() -> None:
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS), "grpo-*", idle())
    report = audit_of(with_config(runs, "tis-*", {"data.seed": None}))
    for finding in report.findings:
        assert set(finding.blames) <= set(finding.runs) <= set(report.runs), finding.rule
        assert set(finding.arms) <= set(report.design.arms), finding.rule
        assert finding.title and "\n" not in finding.title and finding.rule
        assert not finding.blames or finding.level is not Level.INFO
    assert report.counts["runs"] == 6 and report.counts["fail"] == 2
    assert pickle.loads(pickle.dumps(report)).counts == report.counts


def test_an_audit_is_the_same_whatever_the_order_of_answers_and_twice() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None})
    first, second, third = audit_of(runs), audit_of(runs), audit_of(list(reversed(runs)))
    assert first.findings == second.findings == third.findings
    assert first.coverage == second.coverage and first.design == third.design


def test_a_large_project_is_read_in_batches() -> None:
    runs = [make_run(f"try-{n}", {}, n, updates=2, number=n) for n in range(205)]
    tracker = MemoryTracker(runs)
    report = audit_of(tracker, select=("idle-clip",))
    assert len(report.runs) == 205 and tracker.requests["histories"] == 2


def test_projects_of_one_run_and_of_runs_without_configuration() -> None:
    assert loud(audit_of([make_run("a-seed43")])) == []
    report = audit_of(without_config(comparison(TWO, SEEDS)))
    assert loud(report) == [] and not findings(report, "lost-seed")
    assert labels(report, report.design.arms["tis"]) == [f"tis-seed{seed}" for seed in SEEDS]


def test_the_design_in_force_is_part_of_the_audit() -> None:
    design = {"vary": f"{CORRECTION}.rollout_is", "tie_margin": 0.01, "pairing": "required"}
    in_force = audit_of(comparison(TWO, SEEDS), design).design
    assert (in_force.vary, in_force.tie_margin, in_force.pairing) == ((f"{CORRECTION}.rollout_is",), 0.01, "required")


def test_runs_that_logged_nothing_are_not_judged_whatever_their_configuration_says() -> None:
    empty = without_metrics(comparison({"ppo": {}}, SEEDS), "*")
    report = audit_of(empty)
    assert not report.judged and exit_code(report) is ExitCode.NOTHING
    lost = audit_of(with_config(empty, "*", {"data.seed": None}))
    assert lost.judged and exit_code(lost) is ExitCode.CHECK_FAILED  # names deny the configuration all the same

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pth_tracker.errors import ProjectNotFound, TrackerError
from pth_tracker.model import Audit
from pth_tracker.runs import RunState
from pth_tracker.tracker import MARK_NAMES, Marks, Query
from pth_tracker.writeback import MAX_TAG, TABLE, plan_edits, remove_marks, write_back
from synthetic import (
    ARMS,
    ONE_STEP,
    PROJECT,
    FakeRun,
    MemoryTracker,
    audit_of,
    change,
    comparison,
    cut,
    idle,
    make_run,
    with_config,
    with_metrics,
    without_metrics,
)

SEEDS = (41, 42, 43)


def spoilt() -> list[FakeRun]:
    """Three idle clips, three lost seeds, and a run of no arm that nothing can judge."""
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS), "grpo-*", idle())
    return with_config(runs, "tis-*", {"data.seed": None})


def marked(tracker: MemoryTracker, runs: list[FakeRun]) -> dict[str, Marks]:
    return {run.name: tracker.held[run.source.ref] for run in runs if run.source.ref in tracker.held}


def test_every_run_gets_its_verdict_and_only_suspicious_ones_get_tags() -> None:
    runs = [*spoilt(), *comparison({"ppo": ARMS["ppo"]}, (41,))]
    tracker = MemoryTracker(runs)
    report = audit_of(tracker)
    written = write_back(tracker, report, dry_run=False)
    assert written.applied and not written.errors and len(written.planned) == 7
    marks = marked(tracker, runs)
    assert marks["grpo-seed41"].tags == {"pth:fail", "pth:idle-clip"}
    assert marks["tis-seed42"].tags == {"pth:fail", "pth:lost-seed"}
    assert marks["ppo-seed41"].tags == frozenset()
    assert marks["ppo-seed41"].values["verdict"] == "pass" and marks["ppo-seed41"].values["rules"] == ""
    for held in marks.values():
        assert set(held.values) == set(MARK_NAMES) and held.values["version"] == report.version
        assert report.audited_at and held.values["audited_at"] == report.audited_at.isoformat(timespec="seconds")


@pytest.mark.parametrize("narrowed", [{"select": ("sampler-mismatch",)}, {"ignore": ("idle-clip",)}])
def test_a_part_of_the_rules_never_overwrites_the_verdict_of_all(narrowed: dict[str, Any]) -> None:
    tracker = MemoryTracker(spoilt())
    write_back(tracker, audit_of(tracker), dry_run=False)
    before = dict(tracker.held)
    written = write_back(tracker, audit_of(tracker, **narrowed), dry_run=False)
    assert "--select or --ignore" in written.refused and written.planned == ()
    assert tracker.held == before


def test_trackers_without_tags_get_none() -> None:
    tracker = MemoryTracker(spoilt(), has_tags=False)
    write_back(tracker, audit_of(tracker), dry_run=False)
    assert all(not marks.tags and marks.values["verdict"] == "fail" for marks in tracker.held.values())


def test_an_unchanged_run_plans_no_edit_and_keeps_its_time() -> None:
    tracker = MemoryTracker(spoilt())
    write_back(tracker, audit_of(tracker), dry_run=False)
    before = dict(tracker.held)
    again = write_back(tracker, later(audit_of(tracker)), dry_run=False)
    assert again.planned == () and tracker.held == before and tracker.requests["apply"] == 1
    assert len(tracker.publications) == 2  # the audit run tells of every audit


def later(report: Audit) -> Audit:
    assert report.audited_at is not None
    report.audited_at += timedelta(days=1)
    return report


def test_a_changed_verdict_changes_that_run_alone_and_takes_old_tags_off() -> None:
    runs = spoilt()
    tracker = MemoryTracker(runs)
    write_back(tracker, audit_of(tracker), dry_run=False)
    mended = MemoryTracker(runs)
    mended.held = tracker.held
    old = dict(mended.held)
    report = later(audit_of(with_config(runs, "tis-seed41", {"data.seed": 41})))
    written = write_back(mended, report, dry_run=False)
    assert [edit.run for edit in written.planned] == ["tis-seed41"]
    (edit,) = written.planned
    assert edit.remove_tags == ("pth:fail", "pth:lost-seed") and edit.add_tags == ()
    assert set(edit.set) == {"verdict", "rules", "audited_at"}
    assert sum(mended.held[ref] != old[ref] for ref in old) == 1


def test_a_new_version_of_the_tool_is_written() -> None:
    tracker = MemoryTracker(spoilt())
    report = audit_of(tracker)
    write_back(tracker, report, dry_run=False)
    report.version = "99.0"
    assert len(write_back(tracker, report, dry_run=True).planned) == 6


def test_what_a_killed_audit_left_is_put_right_by_the_next() -> None:
    tracker = MemoryTracker(spoilt())
    report = audit_of(tracker)
    edits = plan_edits(report, tracker.marks([ref for run in report.runs.values() for ref in run.parts]), tags=True)
    list(tracker.apply(edits[:3]))
    half = replace(edits[3], set_values={"verdict": "fail"}, add_tags=frozenset())
    list(tracker.apply([half]))
    written = write_back(tracker, audit_of(tracker), dry_run=False)
    assert len(written.planned) == 3 and written.published
    assert not write_back(tracker, later(audit_of(tracker)), dry_run=True).planned


def test_every_part_of_a_resumed_run_is_marked() -> None:
    whole = make_run("a-seed43")
    assert whole.source.created is not None
    ended = whole.source.created + timedelta(minutes=10)
    first = cut(whole, 30, state=RunState.CRASHED, ended=ended)
    again = make_run("a-seed43", run_id="again", created=ended + timedelta(minutes=1), ended=ended + timedelta(hours=1))
    tracker = MemoryTracker([first, cut(again, 60, 31)])
    report = audit_of(tracker)
    assert len(report.runs) == 1
    write_back(tracker, report, dry_run=False)
    assert len(tracker.held) == 2 and len({marks.values["verdict"] for marks in tracker.held.values()}) == 1


def test_a_dry_run_plans_the_same_and_writes_nothing() -> None:
    tracker = MemoryTracker(spoilt())
    report = audit_of(tracker)
    planned = write_back(tracker, report, dry_run=True)
    assert not planned.applied and len(planned.planned) == 6 and not tracker.held
    assert set(tracker.requests) == {"runs", "histories", "marks"}
    assert write_back(tracker, report, dry_run=False).planned == planned.planned


def test_a_tracker_that_can_only_be_read_is_not_even_asked() -> None:
    tracker = MemoryTracker(spoilt(), read_only="log files are only read")
    report = audit_of(tracker)
    before = tracker.requests.copy()
    for written in (
        write_back(tracker, report, dry_run=False),
        remove_marks(tracker, Query(PROJECT), dry_run=False),
    ):
        assert written.refused == "log files are only read" and not written.applied and not written.planned
    assert tracker.requests == before


def test_a_refused_edit_is_named_and_the_others_are_written() -> None:
    runs = spoilt()
    tracker = MemoryTracker(runs, refused=[runs[0].key])
    written = write_back(tracker, audit_of(tracker), dry_run=False)
    assert written.errors == ("grpo-seed41: the server refuses (HTTP 403)",) and len(tracker.held) == 5
    assert written.applied and written.published


def test_a_running_run_is_left_out_and_named() -> None:
    runs = change(spoilt(), "tis-seed43", state=RunState.RUNNING, ended=None)
    written = write_back(tracker := MemoryTracker(runs), audit_of(runs), dry_run=False)
    assert written.skipped == ("tis-seed43: it is still running",) and not written.errors and len(tracker.held) == 5


def test_the_audit_run_that_cannot_be_written_is_an_error_and_the_marks_stay() -> None:
    class NoAuditRun(MemoryTracker):
        def publish(self, publication: Any) -> str:
            raise TrackerError("HTTP 500")

    tracker = NoAuditRun(spoilt())
    written = write_back(tracker, audit_of(tracker), dry_run=False)
    assert written.errors == ("the audit run could not be written: HTTP 500",) and len(tracker.held) == 6


def test_what_is_published() -> None:
    tracker = MemoryTracker(spoilt())
    report = audit_of(tracker)
    assert write_back(tracker, report, dry_run=False, files={"a.txt": b"x"}).published == "memory run pth-audit"
    (publication,) = tracker.publications
    assert publication.columns == TABLE and len(publication.rows) == len(report.findings)
    assert all(len(row) == len(TABLE) for row in publication.rows)
    assert all(isinstance(cell, str | int | float) for row in publication.rows for cell in row)
    first = dict(zip(TABLE, publication.rows[0]))
    assert (first["level"], first["rule"], first["bug"]) == ("fail", "idle-clip", "Idle Clip")
    assert first["blamed"] == "grpo-seed41, grpo-seed42, grpo-seed43" and first["arms"] == "grpo"
    assert publication.counts == report.counts and publication.counts["fail"] == 2
    assert publication.attributes == {"version": report.version, "worst_level": "fail"}
    assert publication.files == {"a.txt": b"x"} and publication.project == PROJECT
    explained = {row[TABLE.index("explained_by")] for row in publication.rows}
    assert {"", "idle-clip", "lost-seed"} <= explained


def test_findings_link_to_the_pages_of_the_first_runs() -> None:
    runs = with_metrics(comparison({"grpo": ONE_STEP}, range(41, 53)), "grpo-*", idle())
    runs = [run for one in runs for run in change([one], one.name, url=f"https://tracker.example.org/{one.name}")]
    tracker = MemoryTracker(runs)
    write_back(tracker, audit_of(tracker), dry_run=False)
    (publication,) = tracker.publications
    row = next(row for row in publication.rows if row[TABLE.index("rule")] == "idle-clip")
    pages = " ".join(f"https://tracker.example.org/grpo-seed{seed}" for seed in range(41, 51))
    assert row[TABLE.index("links")] == f"{pages} and 2 more"


def test_a_clean_audit_publishes_that_nothing_is_wrong() -> None:
    tracker = MemoryTracker(without_metrics([make_run("a")], "*"))
    write_back(tracker, audit_of(tracker), dry_run=False)
    assert tracker.publications[0].attributes["worst_level"] == "none"
    (marks,) = tracker.held.values()
    assert marks.values["verdict"] in ("pass", "not-judged") and not marks.tags


def test_tags_are_no_longer_than_trackers_take() -> None:
    tracker = MemoryTracker(spoilt())
    report = audit_of(tracker)
    report.runs = {key: replace(run, rules=("x" * 200,)) for key, run in report.runs.items()}
    write_back(tracker, report, dry_run=False)
    assert all(len(tag) <= MAX_TAG for marks in tracker.held.values() for tag in marks.tags)


# untag


def test_untag_takes_all_marks_off_and_leaves_what_is_not_ours() -> None:
    runs = spoilt()
    tracker = MemoryTracker(runs)
    write_back(tracker, audit_of(tracker), dry_run=False)
    planned = remove_marks(tracker, Query(PROJECT), dry_run=True)
    assert len(planned.planned) == 6 and len(marked(tracker, runs)) == 6 and not planned.applied
    assert all(set(edit.unset) == set(MARK_NAMES) and not edit.set for edit in planned.planned)
    done = remove_marks(tracker, Query(PROJECT), dry_run=False)
    assert done.applied and list(marked(tracker, runs).values()) == [Marks()] * 6
    assert len(tracker.publications) == 1
    assert remove_marks(tracker, Query(PROJECT), dry_run=False).planned == ()


def test_untag_touches_only_what_is_selected() -> None:
    tracker = MemoryTracker(spoilt())
    write_back(tracker, audit_of(tracker), dry_run=False)
    assert len(remove_marks(tracker, Query(PROJECT, "tis-*"), dry_run=False).planned) == 3
    assert sum(bool(marks.values) for marks in tracker.held.values()) == 3
    with pytest.raises(ProjectNotFound):
        remove_marks(tracker, Query("none"), dry_run=False)


def test_marks_of_an_older_version_are_taken_off_too() -> None:
    runs = spoilt()
    tracker = MemoryTracker(runs)
    tracker.held[runs[0].source.ref] = Marks({"verdict": "fail", "score": "3"}, frozenset({"pth:old"}))
    (edit,) = remove_marks(tracker, Query(PROJECT), dry_run=False).planned
    assert edit.unset == ("score", "verdict") and edit.remove_tags == ("pth:old",)
    written = write_back(tracker, audit_of(tracker), dry_run=True)
    assert len(written.planned) == 6

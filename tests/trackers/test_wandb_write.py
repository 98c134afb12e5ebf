"""Writing to a W&B server: nothing of anybody else's is lost, and each project has one audit run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from pth_tracker.errors import TrackerError
from pth_tracker.runs import RunRef
from pth_tracker.tracker import EditResult, MarkEdit, Marks, Publication, Query
from pth_tracker_wandb import open_tracker
from pth_tracker_wandb.server import ServerTracker
from wandb_server.server import Fault, Request, WandbServer
from wandb_server.store import StoredRun


@pytest.fixture(scope="module")
def tracker(wandb_environment: WandbServer) -> Iterator[ServerTracker]:
    opened = open_tracker(["wandb"])
    assert isinstance(opened, ServerTracker)
    yield opened
    opened.close()


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


def edit(project: str, name: str = "r", **changes: Any) -> MarkEdit:
    return MarkEdit(RunRef(f"team/{project}", name), name, **changes)


def only(results: Iterator[EditResult]) -> EditResult:
    (result,) = results
    return result


VERDICT: Mapping[str, Any] = {
    "set_values": {"verdict": "fail", "rules": "idle-clip"},
    "add_tags": frozenset({"pth:fail", "pth:idle-clip"}),
}


def mutations(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.query.lstrip().startswith("mutation")]


def test_marks_are_set_read_and_taken_back(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    stored = server.add_run(wandb_project, "r", {"lr": 1}, [{"loss": 0.5}], tags=["mine"])
    ref = RunRef(f"team/{wandb_project}", "r")
    before = dict(stored.summary)
    with server.counting() as seen:
        assert only(tracker.apply([edit(wandb_project, **VERDICT)])).error == ""
    assert Counter(request.operation for request in seen) == {"PthTrackerRun": 1, "PthTrackerMark": 1}
    assert stored.tags == ["mine", "pth:fail", "pth:idle-clip"]
    assert stored.summary == {**before, "pth/verdict": "fail", "pth/rules": "idle-clip"}
    expected = Marks({"verdict": "fail", "rules": "idle-clip"}, frozenset({"pth:fail", "pth:idle-clip"}))
    assert tracker.marks([ref]) == {ref: expected}
    undo = edit(
        wandb_project,
        unset_values=frozenset({"verdict", "rules"}),
        remove_tags=frozenset({"pth:fail", "pth:idle-clip"}),
    )
    only(tracker.apply([undo]))
    assert (stored.tags, stored.summary) == (["mine"], before)
    assert tracker.marks([ref]) == {ref: Marks()}


@pytest.mark.parametrize("moment", ["after the listing", "just before the writing"])
def test_what_a_human_adds_meanwhile_survives(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, moment: str
) -> None:
    stored = server.add_run(wandb_project, "r", {"lr": 1}, [{"loss": math.nan}], tags=["mine"])
    list(tracker.runs(Query(wandb_project)))

    def human(request: Request | None = None) -> None:
        if request is None or request.operation == "PthTrackerRun":
            stored.tags.append("keep")
            stored.summary["note"] = "looks odd"
            stored.config["lr"] = {"value": 2, "desc": None}

    if moment == "after the listing":
        human()
    else:
        server.before = human
    with server.counting() as seen:
        only(tracker.apply([edit(wandb_project, **VERDICT)]))
    assert stored.tags == ["mine", "keep", "pth:fail", "pth:idle-clip"]
    assert stored.summary == {
        "_step": 0, "loss": "NaN", "note": "looks odd", "pth/verdict": "fail", "pth/rules": "idle-clip"
    }  # fmt: skip
    assert stored.config["lr"] == {"value": 2, "desc": None}
    (mutation,) = mutations(seen)
    assert set(mutation.variables) == {"id", "tags", "summaryMetrics"}


def test_the_same_with_the_update_of_the_sdk_loses_it(server: WandbServer, wandb_project: str) -> None:
    """Why this adapter does not use it; the day this fails, `write` may become simpler."""
    import wandb

    stored = server.add_run(wandb_project, "r", {"opt": {"value": 3, "name": "adam"}}, [{"loss": 0.5}], tags=["mine"])
    (run,) = wandb.Api(timeout=20).runs(f"team/{wandb_project}", lazy=False)
    stored.tags.append("keep")
    stored.summary["note"] = "looks odd"
    run.tags = [*run.tags, "pth:fail"]
    run.update()
    assert stored.tags == ["mine", "pth:fail"]
    assert "note" not in stored.summary
    assert stored.config["opt"]["value"] == 3, "a user's own nested key is gone"


def test_only_what_changes_is_sent(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r", rows=[{"loss": 0.5}])
    with server.counting() as seen:
        only(tracker.apply([edit(wandb_project, add_tags=frozenset({"pth:fail"}))]))
        only(tracker.apply([edit(wandb_project, set_values={"verdict": "fail"})]))
        only(tracker.apply([edit(wandb_project, set_values={"verdict": "fail"}, add_tags=frozenset({"pth:fail"}))]))
    assert [set(request.variables) for request in mutations(seen)] == [{"id", "tags"}, {"id", "summaryMetrics"}]


@pytest.mark.parametrize("state", ["running", "preempting", "pending"])
def test_running_runs_are_left_alone(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, state: str
) -> None:
    stored = server.add_run(wandb_project, "r", state=state)
    with server.counting() as seen:
        result = only(tracker.apply([edit(wandb_project, **VERDICT)]))
    assert state in result.skipped and not result.error
    assert not mutations(seen)
    tracker.write_running = True
    try:
        assert only(tracker.apply([edit(wandb_project, **VERDICT)])) == EditResult(edit(wandb_project, **VERDICT))
    finally:
        tracker.write_running = False
    assert "pth:fail" in stored.tags


@pytest.mark.parametrize("tag", ["pth:" + "x" * 61, "mine"])
def test_tags_that_must_not_be_written(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, tag: str
) -> None:
    stored = server.add_run(wandb_project, "r", tags=["mine"])
    assert "64 characters" in only(tracker.apply([edit(wandb_project, add_tags=frozenset({tag}))])).error
    assert stored.tags == ["mine"]


def test_a_refused_edit_does_not_stop_the_others(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    runs = {name: server.add_run(wandb_project, name) for name in ("a", "b", "c")}

    def forbid(request: Request) -> Fault | None:
        return Fault(403) if request.variables.get("id") == runs["b"].storage_id else None

    server.trouble = forbid
    edits = [edit(wandb_project, name, **VERDICT) for name in ("a", "b", "gone", "c")]
    results = list(tracker.apply(edits))
    assert [result.edit for result in results] == edits
    assert [bool(result.error) for result in results] == [False, True, True, False]
    assert [run.tags for run in runs.values()] == [["pth:fail", "pth:idle-clip"], [], ["pth:fail", "pth:idle-clip"]]


def test_a_summary_that_cannot_be_read_is_left_alone(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    stored = server.add_run(wandb_project, "r", rows=[{"loss": 0.5}])
    stored.raw_summary = '{"loss": 0.5, '
    with server.counting() as seen:
        assert "left alone" in only(tracker.apply([edit(wandb_project, **VERDICT)])).error
    assert not mutations(seen)
    assert tracker.marks([RunRef(f"team/{wandb_project}", "r")])


def test_marks_of_many_runs_cost_one_request(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    for index in range(120):
        server.add_run(wandb_project, f"r{index}", tags=["pth:warn"] if index % 2 else [])
    refs = [RunRef(f"team/{wandb_project}", f"r{index}") for index in range(0, 120, 3)]
    gone = RunRef(f"team/{wandb_project}", "gone")
    with server.counting() as seen:
        found = tracker.marks([*refs, gone])
    assert set(found) == set(refs)
    assert sum(bool(marks.tags) for marks in found.values()) == 20
    assert len(seen) == 1


# the audit run


def publication(project: str, fail: int) -> Publication:
    return Publication(
        project=project,
        audited_at=datetime(2026, 11, 30, 2, fail, tzinfo=UTC),
        columns=("check", "level", "runs", "evidence"),
        rows=(("ratio", "fail", 2, 0.5), ("seeds", "warn", 1, "=cmd()"), ("loss", "info", None, None)),
        counts={"fail": fail, "warn": 1, "runs": 6},
        attributes={"verdict": "fail", "version": "0.1.0"},
        files={"report.html": b"<!doctype html><p>caf\xc3\xa9</p>", "report.md": b"# Report"},
    )


def audit_run(server: WandbServer, project: str) -> StoredRun:
    return server.run(project, "pth-audit")


def test_two_audits_share_one_run(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    import wandb

    server.add_run(wandb_project, "r")
    urls = [tracker.publish(publication(wandb_project, fail)) for fail in (3, 1)]
    assert urls == [f"{server.url}/team/{wandb_project}/runs/pth-audit"] * 2
    assert set(server.store.projects["team", wandb_project]) == {"r", "pth-audit"}
    stored = audit_run(server, wandb_project)
    assert [(row["fail"], row["warn"], row["runs"]) for row in stored.rows] == [(3, 1, 6), (1, 1, 6)]
    assert (stored.job_type, stored.state) == ("pth-audit", "finished")
    assert stored.summary["version"] == "0.1.0"
    assert stored.summary["audited_at"] == "2026-11-30T02:01:00+00:00"
    read = wandb.Api(timeout=20).run(f"team/{wandb_project}/pth-audit")
    artifacts = {artifact.name.partition(":")[0]: artifact for artifact in read.logged_artifacts()}
    table = artifacts["run-pth-audit-findings"].get("findings")
    assert isinstance(table, wandb.Table)
    assert table.columns == ["check", "level", "runs", "evidence"]
    assert table.data == [["ratio", "fail", 2, 0.5], ["seeds", "warn", 1, "=cmd()"], ["loss", "info", None, None]]
    reports = [item for item in server.store.artifacts if item.name == "pth-audit-report" and item.run is stored]
    report = reports[0]
    assert report.files == publication(wandb_project, 1).files
    assert any(content == publication(wandb_project, 1).files["report.html"] for content in stored.files.values())
    assert [run.name for run in tracker.runs(Query(wandb_project))] == ["r"]


def test_the_audit_run_says_nothing_about_this_machine(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    server.add_run(wandb_project, "r")
    tracker.publish(publication(wandb_project, 1))
    stored = audit_run(server, wandb_project)
    assert "requirements.txt" not in stored.files
    assert "wandb-metadata.json" not in stored.files
    assert all(server.api_key.encode() not in content for content in stored.files.values())


def test_an_audit_run_that_is_refused(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r")
    server.trouble = lambda request: Fault(403, message="denied") if request.operation == "UpsertBucket" else None
    with pytest.raises(TrackerError, match="denied"):
        tracker.publish(publication(wandb_project, 1))

"""Marks and the audit run in MLflow: only our names are touched, on a server and on a database alike."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
import pytest
from mlflow.tracking import MlflowClient

import pth_tracker_mlflow
from pth_tracker.errors import TrackerError
from pth_tracker.runs import RunRef
from pth_tracker.tracker import MarkEdit, Publication, Query, Tracker
from trackers.mlflow_proxy import proxy
from trackers.mlflow_runs import Written, write_experiment

if TYPE_CHECKING:
    from conftest import MlflowServer

AT = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)


@pytest.fixture(params=["server", "database"])
def store(
    request: pytest.FixtureRequest, mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MlflowClient, Tracker]]:
    monkeypatch.chdir(tmp_path)
    if request.param == "server":
        uri = request.getfixturevalue("mlflow_server").uri
    else:
        shutil.copyfile(mlflow_template, tmp_path / "mlflow.db")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = pth_tracker_mlflow.open_tracker([uri])
    yield MlflowClient(uri), tracker
    tracker.close()


@pytest.fixture
def written(store: tuple[MlflowClient, Tracker]) -> Written:
    return write_experiment(store[0], f"rl-{uuid.uuid4().hex}")


def test_marks_are_set_and_unset_and_nothing_else_changes(
    store: tuple[MlflowClient, Tracker], written: Written
) -> None:
    client, tracker = store
    before = {name: client.get_run(run_id) for name, run_id in written.ids.items()}
    listed = list(tracker.runs(Query(written.experiment)))
    refs = {name: RunRef(written.experiment, run_id) for name, run_id in written.ids.items()}
    edits = [
        MarkEdit(refs["grpo-seed1"], "grpo-seed1", {"verdict": "fail", "rules": "idle-clip,lost-seed"}),
        MarkEdit(refs["gone"], "gone", {"verdict": "pass"}),
        MarkEdit(refs["child"], "child", {"verdict": "pass"}, unset_values=frozenset({"rules", "version"})),
        MarkEdit(RunRef(written.experiment, "f" * 32), "absent", {"verdict": "pass"}),
        MarkEdit(refs["long"], "long", {"verdict": "not-judged"}),
    ]
    results = {result.edit.run_name: result for result in tracker.apply(edits)}
    assert [name for name, result in results.items() if result.error] == ["gone", "absent"]
    assert "active" in results["gone"].error and "\n" not in results["gone"].error
    marks = tracker.marks(list(refs.values()))
    assert marks[refs["grpo-seed1"]].values == {"verdict": "fail", "rules": "idle-clip,lost-seed"}
    assert marks[refs["child"]].values == {"verdict": "pass"}
    assert marks[refs["long"]].values == {"verdict": "not-judged"} and not marks[refs["odd"]].values
    for name, run_id in written.ids.items():
        now, then = client.get_run(run_id), before[name]
        assert (now.info.status, now.info.end_time, now.info.lifecycle_stage) == (
            then.info.status, then.info.end_time, then.info.lifecycle_stage,
        )  # fmt: skip
        for tags in (now.data.tags, then.data.tags):
            for key in [key for key in tags if key.startswith("pth.")]:
                del tags[key]
        assert now.data.tags == then.data.tags and now.data.params == then.data.params
    again = list(tracker.runs(Query(written.experiment)))
    assert [replace(run, marks=None) for run in again] == [replace(run, marks=None) for run in listed]


def publication(project: str, rows: int, counts: dict[str, int], at: datetime = AT) -> Publication:
    table = tuple(("idle-clip", "fail", f"run-{number}", number, None) for number in range(rows))
    columns = ("rule", "level", "run", "updates", "note")
    return Publication(
        project, at, columns, table, counts, {"version": "0.1.0", "verdict": "fail"}, {"report.md": b"# \xe2\x9c\x93\n"}
    )


def test_the_audit_run_is_one_and_keeps_a_trend(
    store: tuple[MlflowClient, Tracker], written: Written, capfd: pytest.CaptureFixture[str]
) -> None:
    client, tracker = store
    project = written.experiment
    client.set_tag(written.ids["our own"], "pth.role", "was audit")
    names = [run.name for run in tracker.runs(Query(project))]
    capfd.readouterr()
    first = tracker.publish(publication(project, 3, {"fail": 3, "warn": 1, "runs": 6}))
    tracker.publish(publication(project, 1, {"fail": 1, "warn": 0, "runs": 6}, AT.replace(day=1)))
    second = tracker.publish(publication(project, 2, {"fail": 2, "warn": 0, "runs": 7}))
    assert first == second
    assert capfd.readouterr() == ("", "")
    [run] = client.search_runs([written.number], "tags.`pth.role` = 'audit'")
    assert run.info.run_id in first
    assert (run.info.run_name, run.info.status) == ("pth-audit", "FINISHED")
    assert run.data.tags["pth.version"] == "0.1.0" and run.data.tags["pth.audited_at"] == AT.isoformat()
    trend = client.get_metric_history(run.info.run_id, "pth.count.fail")
    assert sorted((point.step, point.value) for point in trend) == [(1, 3.0), (2, 1.0), (3, 2.0)]
    assert run.data.metrics["pth.count.runs"] == 7.0
    mlflow.set_experiment(project)
    table = mlflow.load_table("pth/findings.json")
    assert table["run"].tolist() == ["run-0", "run-1"] and list(table.columns[:3]) == ["rule", "level", "run"]
    path = Path(client.download_artifacts(run.info.run_id, "pth/report.md"))
    assert path.read_bytes() == b"# \xe2\x9c\x93\n"
    assert [run.name for run in tracker.runs(Query(project))] == names


def test_an_audit_without_findings_leaves_an_empty_table(store: tuple[MlflowClient, Tracker], written: Written) -> None:
    store[1].publish(publication(written.experiment, 2, {"fail": 2}))
    store[1].publish(publication(written.experiment, 0, {"fail": 0}))
    mlflow.set_experiment(written.experiment)
    table = mlflow.load_table("pth/findings.json")
    assert len(table) == 0 and "rule" in table.columns


def test_a_file_name_cannot_leave_the_folder(store: tuple[MlflowClient, Tracker], written: Written) -> None:
    client, tracker = store
    client.set_tag(written.ids["our own"], "pth.role", "was audit")
    hostile = Publication(written.experiment, AT, ("rule",), (), {}, {}, {"../../escape.txt": b"x", "a/b.txt": b"y"})
    tracker.publish(hostile)
    [run] = client.search_runs([written.number], "metrics.`pth.count.runs` = 0")
    found = {artifact.path for artifact in client.list_artifacts(run.info.run_id, "pth")}
    assert found == {"pth/escape.txt", "pth/b.txt", "pth/findings.json"}


def test_a_deleted_audit_run_is_made_anew(store: tuple[MlflowClient, Tracker], written: Written) -> None:
    client, tracker = store
    first = tracker.publish(publication(written.experiment, 1, {"fail": 1}))
    for run in client.search_runs([written.number], "tags.`pth.role` = 'audit'"):
        client.delete_run(run.info.run_id)
    assert tracker.publish(publication(written.experiment, 1, {"fail": 1})) != first


def test_an_artifact_place_that_cannot_be_written_is_told_and_the_marks_stay(
    mlflow_sqlite: Path, tmp_path: Path
) -> None:
    client = MlflowClient(f"sqlite:///{mlflow_sqlite}")
    (tmp_path / "file").write_text("not a folder")
    client.create_experiment("blocked", artifact_location=str(tmp_path / "file"))
    client.create_experiment("served", artifact_location="mlflow-artifacts:/7")
    tracker = pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)])
    for project in ("blocked", "served"):
        number = next(found.experiment_id for found in client.search_experiments() if found.name == project)
        ref = RunRef(project, client.create_run(number).info.run_id)
        list(tracker.apply([MarkEdit(ref, "run", {"verdict": "pass"})]))
        with pytest.raises(TrackerError, match=f"artifact location of '{project}'") as caught:
            tracker.publish(publication(project, 1, {"fail": 1}))
        assert "\n" not in str(caught.value)
        assert tracker.marks([ref])[ref].values == {"verdict": "pass"}


def test_writing_to_a_server_that_went_away_is_told_quickly(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with proxy(mlflow_server.uri) as state:
        tracker = pth_tracker_mlflow.open_tracker([state.uri])
    edits = [MarkEdit(RunRef("any", f"{number:032x}"), "run", {"verdict": "pass"}) for number in range(50)]
    results = list(tracker.apply(edits))
    assert len(results) == 50 and all("cannot be reached" in result.error for result in results)
    with pytest.raises(TrackerError, match="cannot be reached"):
        tracker.publish(publication("any", 1, {"fail": 1}))
    tracker.close()

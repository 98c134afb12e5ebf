"""An MLflow database read with plain SQL: exact, read-only, and clear about what it cannot read."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Metric, RunTag
from mlflow.tracking import MlflowClient

import pth_tracker_mlflow
from pth_tracker.errors import ProjectNotFound, TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunRef, RunState, SourceRun
from pth_tracker.tracker import Publication, Query, Tracker
from pth_tracker_mlflow.address import parse
from trackers.mlflow_runs import START, Written, write_experiment


@pytest.fixture(scope="module")
def filled(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    path = tmp_path_factory.mktemp("filled") / "mlflow.db"
    shutil.copyfile(mlflow_template, path)
    return path, write_experiment(MlflowClient(f"sqlite:///{path}"), "rl-stale")


@pytest.fixture
def tracker(filled: tuple[Path, Written]) -> Iterator[Tracker]:
    opened = pth_tracker_mlflow.open_tracker([f"sqlite:///{filled[0]}"])
    yield opened
    opened.close()


def by_name(tracker: Tracker, project: str) -> dict[str, SourceRun]:
    return {run.name: run for run in tracker.runs(Query(project))}


def one(tracker: Tracker, run: SourceRun, keys: set[str] | None = None) -> History:
    [(ref, answer)] = tracker.histories([(run.ref, keys)])
    assert ref == run.ref and isinstance(answer, History)
    return answer


def test_runs_come_in_order_without_the_deleted_and_the_audit_run(tracker: Tracker) -> None:
    names = [run.name for run in tracker.runs(Query("rl-stale"))]
    # A run that a user called pth-audit is the user's; the one with our tag is ours, whatever its name.
    assert names == ["odd", "grpo-seed1", "long", "child", "pth-audit"]


def test_a_run_as_listed(tracker: Tracker, filled: tuple[Path, Written]) -> None:
    run = by_name(tracker, "rl-stale")["grpo-seed1"]
    assert run.ref == RunRef("rl-stale", filled[1].ids["grpo-seed1"])
    assert run.state is RunState.FINISHED
    assert run.created == datetime.fromtimestamp((START + 2000) / 1000, UTC)
    assert run.ended == datetime.fromtimestamp((START + 62_000) / 1000, UTC)
    assert run.config == {
        "lr": "1e-06", "data/seed": "42", "algorithm.rollout_is": "None", "größe": "λ=0.95", "files": "['a', 'b']",
    }  # fmt: skip
    assert run.metric_keys == frozenset({"actor/loss", "val-core/openai/gsm8k/acc/mean_at_1"})
    assert (run.last_step, run.tags, run.user, run.program, run.commit) == (
        9, ("stage=final",), "mei", "train.py", "0123abc",
    )  # fmt: skip


def test_states_and_parents(tracker: Tracker, filled: tuple[Path, Written]) -> None:
    runs = by_name(tracker, "rl-stale")
    assert {name: run.state for name, run in runs.items()} == {
        "odd": RunState.FAILED, "grpo-seed1": RunState.FINISHED, "long": RunState.RUNNING,
        "child": RunState.KILLED, "pth-audit": RunState.FINISHED,
    }  # fmt: skip
    assert runs["child"].parent_id == filled[1].ids["grpo-seed1"]
    assert runs["long"].ended is None


def test_non_finite_negative_and_unordered_points(tracker: Tracker) -> None:
    history = one(tracker, by_name(tracker, "rl-stale")["odd"])
    steps, values = history.series("mixed")
    assert steps.tolist() == [-2, 3, 4, 5, 10]
    np.testing.assert_array_equal(values, [1.5, np.nan, np.inf, -np.inf, 2.5])
    assert history.nonfinite_at["mixed"].tolist() == [3, 4, 5]
    assert [part.tolist() for part in history.series("back to front")] == [[10, 20, 30], [10.0, 20.0, 30.0]]
    assert "größe" in history.values


def test_of_two_values_at_a_step_the_later_timestamp_wins(tracker: Tracker) -> None:
    history = one(tracker, by_name(tracker, "rl-stale")["odd"], {"twice"})
    # Step 1: 7.0 was logged later than 8.0. Step 2: three values at one moment, the largest of which is the latest.
    assert [part.tolist() for part in history.series("twice")] == [[1, 2], [7.0, 3.0]]
    assert history.conflicts == 3


def test_only_the_requested_metrics_are_read(tracker: Tracker) -> None:
    run = by_name(tracker, "rl-stale")["odd"]
    assert set(one(tracker, run, {"twice", "absent"}).values) == {"twice"}
    assert one(tracker, run, set()).values == {}
    many = {"twice", *(f"absent/{number}" for number in range(3000))}
    assert set(one(tracker, run, many).values) == {"twice"}


def test_many_runs_in_one_call_are_told_apart(tracker: Tracker, filled: tuple[Path, Written]) -> None:
    runs = list(tracker.runs(Query("rl-stale")))
    answers = dict(tracker.histories([(run.ref, None) for run in runs]))
    assert set(answers) == {run.ref for run in runs}
    for run in runs:
        answer = answers[run.ref]
        assert isinstance(answer, History) and frozenset(answer.values) == run.metric_keys
    long = answers[RunRef("rl-stale", filled[1].ids["long"])]
    assert isinstance(long, History)
    np.testing.assert_array_equal(long.values["loss"], np.sin(np.arange(3000)))


def test_a_run_that_is_gone_is_an_error_and_the_others_go_on(tracker: Tracker) -> None:
    run = by_name(tracker, "rl-stale")["odd"]
    absent = RunRef("rl-stale", "f" * 32)
    answers = dict(tracker.histories([(absent, {"twice"}), (run.ref, {"twice"})]))
    assert isinstance(answers[absent], RunError) and isinstance(answers[run.ref], History)


def test_since_and_where(tracker: Tracker) -> None:
    since = datetime.fromtimestamp((START + 3000) / 1000, UTC)
    assert [run.name for run in tracker.runs(Query("rl-stale", since=since))] == ["long", "child", "pth-audit"]
    where = "params.lr = '1e-06' and attributes.status = 'FINISHED'"
    assert [run.name for run in tracker.runs(Query("rl-stale", where=where))] == ["grpo-seed1"]
    with pytest.raises(UsageError, match="--where"):
        list(tracker.runs(Query("rl-stale", where="params.lr = 1 or true")))


def test_marks(tracker: Tracker, filled: tuple[Path, Written]) -> None:
    ids = filled[1].ids
    refs = [RunRef("rl-stale", ids["child"]), RunRef("rl-stale", ids["odd"])]
    marks = tracker.marks(refs)
    assert marks[refs[0]].values == {"verdict": "fail", "rules": "idle-clip"} and not marks[refs[1]].values
    assert by_name(tracker, "rl-stale")["child"].tags == ()


def test_reading_leaves_the_file_as_it_is(filled: tuple[Path, Written]) -> None:
    before = hashlib.sha256(filled[0].read_bytes()).hexdigest()
    tracker = pth_tracker_mlflow.open_tracker([str(filled[0])])
    runs = list(tracker.runs(Query("rl-stale")))
    list(tracker.histories([(run.ref, None) for run in runs]))
    tracker.marks([run.ref for run in runs])
    assert tracker.read_only == ""
    tracker.close()
    assert hashlib.sha256(filled[0].read_bytes()).hexdigest() == before
    assert sorted(path.name for path in filled[0].parent.iterdir()) == ["mlflow.db"]


def test_the_revision_follows_the_evidence_and_not_the_marks(mlflow_sqlite: Path) -> None:
    client = MlflowClient(f"sqlite:///{mlflow_sqlite}")
    written = write_experiment(client, "exp")
    tracker = pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)])
    run_id = written.ids["grpo-seed1"]

    def revision() -> str:
        return by_name(tracker, "exp")["grpo-seed1"].revision

    seen = [revision()]
    client.log_batch(run_id, tags=[RunTag("pth.verdict", "pass"), RunTag("note", "mine")])
    client.set_terminated(run_id, "FINISHED", end_time=START + 99_000_000)
    assert revision() == seen[0]
    client.log_metric(run_id, "actor/loss", 0.1, START + 99, 10)
    seen.append(revision())
    client.log_param(run_id, "late", "1")
    seen.append(revision())
    client.set_terminated(run_id, "FAILED")
    seen.append(revision())
    assert len(set(seen)) == 4


def test_a_project_that_is_absent_or_deleted(mlflow_sqlite: Path) -> None:
    client = MlflowClient(f"sqlite:///{mlflow_sqlite}")
    for name in ("rl-stale", "rl-fresh", "zebra", "yak", "xerus", "wolf"):
        client.create_experiment(name)
    client.delete_experiment(client.create_experiment("old"))
    tracker = pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)])
    with pytest.raises(ProjectNotFound, match="'rl-stale', 'rl-fresh', .* and 2 more") as caught:
        list(tracker.runs(Query("rl-stael")))
    assert "'old'" not in str(caught.value) and str(caught.value).endswith("; did you mean 'rl-stale'?")
    with pytest.raises(ProjectNotFound, match="'old' .* is deleted"):
        list(tracker.runs(Query("old")))
    with pytest.raises(ProjectNotFound, match="--project"):
        list(tracker.runs(Query("")))
    assert "old" not in tracker.projects()


def alter(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("UPDATE alembic_version SET version_num = '90e64c465722'", "mlflow db upgrade sqlite:////"),
        ("UPDATE alembic_version SET version_num = 'ffffffffffff'", "a newer MLflow"),
        ("DROP TABLE alembic_version", "mlflow db upgrade sqlite:////"),
    ],
)
def test_another_schema_is_read_and_never_migrated(
    filled: tuple[Path, Written], tmp_path: Path, statement: str, told: str
) -> None:
    path = tmp_path / "old.db"
    shutil.copyfile(filled[0], path)
    alter(path, statement)
    before = path.read_bytes()
    tracker = pth_tracker_mlflow.open_tracker([str(path)])
    assert told in tracker.read_only
    runs = list(tracker.runs(Query("rl-stale")))
    assert len(runs) == 5
    with pytest.raises(UsageError, match="--where"):
        list(tracker.runs(Query("rl-stale", where="params.lr = '1'")))
    with pytest.raises(TrackerError, match="only read"):
        list(tracker.apply([]))
    with pytest.raises(TrackerError, match="only read"):
        tracker.publish(Publication("rl-stale", datetime.now(UTC), (), (), {}))
    assert path.read_bytes() == before


def test_a_store_without_the_newer_tables_gives_the_same(filled: tuple[Path, Written], tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copyfile(filled[0], path)
    alter(path, "DROP TABLE latest_metrics", "DROP TABLE alembic_version", "DROP TABLE inputs")
    old, new = (pth_tracker_mlflow.open_tracker([str(file)]) for file in (path, filled[0]))
    assert list(old.runs(Query("rl-stale"))) == list(new.runs(Query("rl-stale")))


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("ALTER TABLE metrics DROP COLUMN is_nan", "'metrics' has no column 'is_nan'"),
        ("DROP TABLE params", "no table 'params'"),
    ],
)
def test_a_missing_table_or_column_is_named(mlflow_sqlite: Path, statement: str, told: str) -> None:
    alter(mlflow_sqlite, "ALTER TABLE metrics RENAME TO m", "CREATE TABLE metrics AS SELECT * FROM m", statement)
    with pytest.raises(TrackerError, match=told):
        pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)])


def test_a_broken_file_is_one_sentence(filled: tuple[Path, Written], tmp_path: Path) -> None:
    whole = filled[0].read_bytes()
    cases = {"text.db": b"no database " * 100, "empty.db": b"", "half.db": whole[: len(whole) // 2]}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TrackerError) as caught:
            tracker = pth_tracker_mlflow.open_tracker([f"sqlite:///{tmp_path / name}"])
            runs = list(tracker.runs(Query("rl-stale")))
            answers = dict(tracker.histories([(run.ref, None) for run in runs]))
            if any(isinstance(answer, RunError) for answer in answers.values()):
                raise TrackerError(f"{name}: reported run by run")
        assert name in str(caught.value) and "\n" not in str(caught.value)


def test_system_metrics_do_not_say_how_far_training_went(mlflow_sqlite: Path) -> None:
    client = MlflowClient(f"sqlite:///{mlflow_sqlite}")
    run_id = client.create_run("0").info.run_id
    client.log_batch(run_id, [Metric("loss", 1.0, START, 7), Metric("system/cpu", 1.0, START, 5000)])
    [run] = pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)]).runs(Query("Default"))
    assert run.last_step == 7


def test_postgres_gives_the_same_as_sqlite(postgres_url: str) -> None:
    client = MlflowClient(parse(postgres_url).uri)  # the address with the driver that is installed
    written = write_experiment(client, "rl-stale")
    tracker = pth_tracker_mlflow.open_tracker([postgres_url])
    assert "s3cret-word" not in str(tracker.address)
    runs = by_name(tracker, "rl-stale")
    assert list(runs) == ["odd", "grpo-seed1", "long", "child", "pth-audit"]
    assert runs["grpo-seed1"].config["größe"] == "λ=0.95" and runs["odd"].last_step == 30
    assert tracker.read_only == ""
    history = one(tracker, runs["odd"])
    np.testing.assert_array_equal(history.series("mixed")[1], [1.5, np.nan, np.inf, -np.inf, 2.5])
    assert [part.tolist() for part in history.series("twice")] == [[1, 2], [7.0, 3.0]]
    assert len(one(tracker, runs["long"], {"loss"})) == 3000
    marks = tracker.marks([RunRef("rl-stale", written.ids["child"])])
    assert next(iter(marks.values())).values == {"verdict": "fail", "rules": "idle-clip"}
    tracker.close()
    wrong = postgres_url.replace("s3cret-word", "wr0ng-word")
    with pytest.raises(TrackerError, match="password authentication failed") as caught:
        pth_tracker_mlflow.open_tracker([wrong])
    assert "wr0ng-word" not in str(caught.value) and "\n" not in str(caught.value)


KILLED_WRITER = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 5")  # so that half of it reaches the file before it is committed
connection.execute("BEGIN")
connection.execute("UPDATE metrics SET value = value + 1000")
os._exit(9)
"""


def test_what_a_killed_writer_left_is_taken_back(
    filled: tuple[Path, Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copyfile(filled[0], path)
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
    journal = path.with_name("mlflow.db-journal")
    assert journal.stat().st_size > 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        before = path.read_bytes()
        with pytest.raises(TrackerError, match="a process was killed while it wrote.*open the file once with it"):
            pth_tracker_mlflow.open_tracker([f"sqlite:///{path}"])
        assert path.read_bytes() == before
    opened = pth_tracker_mlflow.open_tracker([f"sqlite:///{path}"])
    try:
        history = one(opened, by_name(opened, "rl-stale")["grpo-seed1"], {"actor/loss"})
    finally:
        opened.close()
    assert history.values["actor/loss"][0] == 0.5 and not journal.exists()
    assert path.read_bytes() == filled[0].read_bytes()

"""Writing back touches our own names and nothing else: a tracker's whole state, before and after, row by row."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from conftest import MlflowServer
from faults.mlflow_store import Experiment
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from trackers.mlflow_proxy import Proxy, proxy
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Request, WandbServer

PROJECT = "write-path"
State = dict[str, set[tuple[Any, ...]]]
"""Table to its rows."""
READING = ("experiments/search", "runs/search")
"""MLflow's requests that are posted and change nothing."""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_URI")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def audit(tracker: str, *options: str, project: str = PROJECT) -> int:
    return main(["audit", "-q", "--tracker", tracker, "--project", project, *options])


def configure(tracker: str, project: str) -> None:
    Path("pth-tracker.yaml").write_text(f"audits: [{{name: lab, project: {project}, tracker: '{tracker}'}}]\n")


# MLflow


@pytest.fixture(scope="module")
def logged(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the project, another one, and tags and metrics of the user's own."""
    store = tmp_path_factory.mktemp("write-path") / "mlflow.db"
    shutil.copyfile(mlflow_template, store)
    own = Experiment.logged(store, PROJECT)
    Experiment.logged(store, "another")
    for run_id in own.ids().values():
        for key, value in {
            "note": "keep me",
            "harness/run": "ours no more",
            "pthx": "not ours",
            "mlflow.note": "#",
        }.items():
            own.rows("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", key, value, run_id)
    return store


@pytest.fixture(params=["database", "server"])
def mlflow(request: pytest.FixtureRequest, logged: Path, tmp_path: Path) -> tuple[str, Path, Path]:
    """The address, the file of the store, and the folder of artifacts."""
    if request.param == "database":
        shutil.copyfile(logged, tmp_path / "mlflow.db")
        Experiment(tmp_path / "mlflow.db", PROJECT).keep_artifacts_in(tmp_path / "artifacts")
        return f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlflow.db", tmp_path
    server: MlflowServer = request.getfixturevalue("mlflow_server")
    for name in (PROJECT, "another"):
        copied = [row[0] for row in Experiment(server.store, name).rows("SELECT name FROM experiments")]
        if name not in copied:
            Experiment.logged(server.store, name)
    return server.uri, server.store, server.store.parent


def whole(store: Path) -> State:
    """Every row of every table."""
    with closing(sqlite3.connect(store)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: set(connection.execute(f'SELECT * FROM "{name}"')) for name in names}


def columns(store: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(store)) as connection:
        return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "/artifacts/" in str(path)}


def audit_run(store: Path) -> str:
    chosen = "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) WHERE runs.name = 'pth-audit' AND "
    ((run_id,),) = Experiment(store, PROJECT).rows(f"{chosen} experiments.name = ?", PROJECT)
    return str(run_id)


def without_audit_run(store: Path, state: State, run_id: str) -> State:
    """The state without the rows of the audit run."""
    return {table: {row for row in rows if run_id not in row} for table, rows in state.items()}


def test_only_our_own_names_change_in_mlflow_and_untag_restores_the_rest(mlflow: tuple[str, Path, Path]) -> None:
    address, store, artifacts = mlflow
    before, files_before = whole(store), files(artifacts)
    assert audit(address) == ExitCode.CHECK_FAILED
    ours = audit_run(store)
    after = without_audit_run(store, whole(store), ours)
    assert {table for table in after if after[table] != before.get(table)} == {"tags"}
    assert before["tags"] <= after["tags"], "nothing is taken away"
    tag = columns(store, "tags")
    added = [dict(zip(tag, row)) for row in after["tags"] - before["tags"]]
    assert {one["key"] for one in added} == {"pth.verdict", "pth.rules", "pth.audited_at", "pth.version"}
    assert {one["run_uuid"] for one in added} == set(Experiment(store, PROJECT).ids().values()) and len(added) == 16
    files_now = files(artifacts)
    assert {path for path in files_now if files_now[path] != files_before.get(path)} == {
        path for path in files_now if f"/{ours}/artifacts/pth/" in path
    }
    assert files_before.keys() < files_now.keys()

    # A second audit, under which verdicts change, and taking all away again.
    assert audit(address, "--kl-tolerance", "99") in (ExitCode.OK, ExitCode.CHECK_FAILED)
    assert without_audit_run(store, whole(store), ours)["runs"] == before["runs"]
    kept = {row for table in whole(store).values() for row in table if ours in row}
    assert main(["untag", "--tracker", address, "--project", PROJECT]) == ExitCode.OK
    assert without_audit_run(store, whole(store), ours) == before
    assert {row for table in whole(store).values() for row in table if ours in row} == kept, "the audit run stays"
    Experiment(store, PROJECT).reset()


@pytest.fixture
def between(mlflow_server: MlflowServer) -> Iterator[Proxy]:
    if not Experiment(mlflow_server.store, PROJECT).ids():
        Experiment.logged(mlflow_server.store, PROJECT)
    with proxy(mlflow_server.uri) as state:
        yield state


@pytest.mark.parametrize("command", ["audit --dry-run", "audit --no-write", "untag --dry-run", "nightly --dry-run"])
def test_no_request_to_mlflow_changes_anything_where_that_was_asked_for(
    between: Proxy, mlflow_server: MlflowServer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, option = command.split()
    if name == "untag":
        assert audit(between.uri) == ExitCode.CHECK_FAILED
        between.calls.clear()
    before = whole(mlflow_server.store)
    configure(between.uri, PROJECT)
    where = [] if name == "nightly" else ["--tracker", between.uri, "--project", PROJECT]
    assert main([name, option, *where]) == (ExitCode.OK if name == "untag" else ExitCode.CHECK_FAILED)
    assert len(between.calls) >= 3
    posted = {path.rpartition("/mlflow/")[2] for method, path in between.calls if method != "GET"}
    assert posted <= set(READING), posted
    assert whole(mlflow_server.store) == before
    assert "4 planned edits" in capsys.readouterr().err or option == "--no-write"
    Experiment(mlflow_server.store, PROJECT).reset()


# W&B


def in_store(server: WandbServer) -> dict[str, Mapping[str, Any]]:
    """Every run of every project with all that is kept of it, deeply."""
    return {
        f"{entity}/{project}/{name}": {key: value for key, value in asdict(run).items() if key != "_keys"}
        for (entity, project), runs in server.store.projects.items()
        for name, run in runs.items()
    }


def test_only_our_own_names_change_in_wandb_and_untag_restores_the_rest(
    wandb_environment: WandbServer, wandb_project: str
) -> None:
    server = wandb_environment
    stored = put(server, wandb_project, faulty())
    put(server, f"{wandb_project}-other", faulty())
    for run in stored.values():
        run.tags += ["pthx", "keep"]
        run.summary |= {"harness/run": "x", "pth": {"of": "the user"}, "nested": {"a": [1, None]}}
        run.notes, run.files = "by hand", {"note.txt": b"x"}
    before, artifacts = deepcopy(in_store(server)), list(server.store.artifacts)
    project = f"team/{wandb_project}"
    assert audit("wandb", project=project) == ExitCode.CHECK_FAILED
    after = in_store(server)
    assert after.keys() - before.keys() == {f"{project}/pth-audit"}
    for place, was in before.items():
        now = after[place]
        changed = {name for name in was if now[name] != was[name]}
        if not place.startswith(f"{project}/"):
            assert not changed
            continue
        assert changed <= {"tags", "summary"} and "summary" in changed
        assert [tag for tag in now["tags"] if not tag.startswith("pth:")] == was["tags"]
        assert {key: value for key, value in now["summary"].items() if not key.startswith("pth/")} == was["summary"]
    assert {one.run.name for one in server.store.artifacts if one not in artifacts} == {"pth-audit"}
    ours = deepcopy(after[f"{project}/pth-audit"])
    assert main(["untag", "--tracker", "wandb", "--project", project]) == ExitCode.OK
    assert in_store(server) == {**before, f"{project}/pth-audit": ours}


@pytest.mark.parametrize("command", ["untag --dry-run", "nightly --dry-run", "nightly --no-write"])
def test_no_request_to_wandb_changes_anything_where_that_was_asked_for(
    wandb_environment: WandbServer, wandb_project: str, command: str
) -> None:
    server, project = wandb_environment, f"team/{wandb_project}"
    for run in put(server, wandb_project, faulty()).values():
        run.tags.append("pth:fail")
        run.summary["pth/verdict"] = "fail"
    before = deepcopy(in_store(server))
    name, option = command.split()
    configure("wandb", project)
    where = [] if name == "nightly" else ["--tracker", "wandb", "--project", project]
    with server.counting() as seen:
        assert main([name, option, *where]) == (ExitCode.OK if name == "untag" else ExitCode.CHECK_FAILED)
    assert seen and not [request.operation for request in seen if changes_something(request)]
    assert in_store(server) == before


def changes_something(request: Request) -> bool:
    if request.kind == "graphql":
        return not request.query.lstrip().startswith("query")
    return request.kind != "export" or request.operation != "GET"

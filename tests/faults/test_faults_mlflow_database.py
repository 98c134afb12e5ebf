"""The rows of the fault table for MLflow's databases: real files, processes with limits, and a real PostgreSQL."""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from mlflow.tracking import MlflowClient

from conftest import free_port
from faults.mlflow_store import PROJECT, Experiment, after, copied, template
from faults.outcome import BROKEN, Ended, Marks, check, check_written, params, run
from faults.processes import audit_within, nobody, open_folder
from faults.table import DATABASE, POSTGRES, Row, Written
from pth_tracker.cli import main
from pth_tracker.runs import RunRef
from pth_tracker_mlflow.address import parse
from pth_tracker_mlflow.sql import SqlTracker
from trackers.test_mlflow_postgres import copy_tables

Capture = pytest.CaptureFixture[str]
__all__ = ["after", "open_folder", "template"]


@pytest.fixture
def experiment(template: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    return copied(template, open_folder / "store", monkeypatch)


def as_histories_are_read(patch: pytest.MonkeyPatch, change: Any) -> None:
    """Calls ``change`` once as the first history is asked for."""
    read = SqlTracker.histories
    done: list[None] = []

    def changed(tracker: SqlTracker, requests: Sequence[tuple[RunRef, Collection[str] | None]]) -> Iterator[Any]:
        if not done:
            done.append(change())
        return read(tracker, requests)

    patch.setattr(SqlTracker, "histories", changed)


def strike(row: Row, experiment: Experiment, patch: pytest.MonkeyPatch, capsys: Capture) -> Ended:
    """Makes the row happen; yields how the audit ended."""
    store = experiment.store
    command = ["audit", "--project", PROJECT, "--tracker", f"sqlite:///{store}"]
    changes = {
        "run deleted": experiment.delete_run,
        "run resumed": experiment.resume_run,
        "run removed for good": experiment.remove_run,
    }
    if row.fault in changes:
        as_histories_are_read(patch, changes[row.fault])
    elif row.fault == "no such file":
        command[-1] += ".none"
    elif row.fault == "another kind of file":
        store.write_bytes(b"SQLite format 4\0" + bytes(5000))
    elif row.fault == "truncated file":
        store.write_bytes(store.read_bytes()[: store.stat().st_size // 2])
    elif row.fault in ("file unreadable to the user", "file that may not be written"):
        store.chmod(0o600 if row.when == "opening" else 0o644)
        return audit_within(command, store.parent, user=nobody())
    elif row.fault == "full disk":
        return audit_within(command, store.parent, largest=4096)
    elif row.fault == "killed":
        return audit_within([sys.executable, "-c", KILLED_BETWEEN_WRITES, *command], store.parent)
    elif row.fault.startswith("locked"):
        with closing(sqlite3.connect(store)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            return run(capsys, *command)
    return run(capsys, *command)


KILLED_BETWEEN_WRITES = """
import os, signal, sys
from pth_tracker.cli import main
from pth_tracker_mlflow import write

whole, count = write.change_with_client, []

def change(client, edit):
    if count:
        os.kill(os.getpid(), signal.SIGKILL)
    count.append(edit)
    whole(client, edit)

write.change_with_client = change
main(sys.argv[1:])
"""


@pytest.mark.parametrize("row", params(DATABASE))
def test_row(row: Row, experiment: Experiment, template: Path, after: Marks, capsys: Capture) -> None:
    before = experiment.marks()
    with pytest.MonkeyPatch.context() as patch:
        ended = strike(row, experiment, patch, capsys)
    if row.fault == "killed":
        assert ended.status == -signal.SIGKILL
    else:
        check(row, ended)
    if row.fault in ("another kind of file", "truncated file"):
        return
    if row.fault == "run removed for good":
        assert experiment.published() and set(experiment.marks()) == set(after) - {BROKEN}
        return
    check_written(row, experiment.marks(), experiment.published(), before, after)
    if row.written is Written.NOTHING:
        return
    experiment.rows("UPDATE runs SET lifecycle_stage = 'active'")
    assert main(["audit", "-q", "--project", PROJECT, "--tracker", f"sqlite:///{experiment.store}"]) == 1
    assert experiment.marks() == after and experiment.published()


# PostgreSQL


@pytest.fixture(scope="module")
def postgres(template: Path, postgres_url: str) -> Iterator[str]:
    """The address of a PostgreSQL database that holds what the template holds."""
    admin = parse(postgres_url).uri
    server = sqlalchemy.create_engine(admin, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE DATABASE faults"))
    address = admin.rpartition("/")[0] + "/faults"
    MlflowClient(address).search_experiments()
    source, target = sqlalchemy.create_engine(f"sqlite:///{template}"), sqlalchemy.create_engine(address)
    copy_tables(source, target)
    source.dispose()
    target.dispose()
    yield address
    server.dispose()


@pytest.mark.parametrize("row", params(POSTGRES))
def test_postgres_row(
    row: Row, postgres: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    address = postgres
    password = parse(postgres_url).uri.partition("audit:")[2].partition("@")[0]
    if row.fault == "wrong password":
        address = postgres.replace(password, "wr0ng-word")
    elif row.fault == "nobody listens":
        address = postgres.rpartition(":")[0] + f":{free_port()}/faults"
    else:
        end_connection_as_one_run_is_read(monkeypatch, parse(postgres_url).uri)
    ended = run(capsys, "audit", "--project", PROJECT, "--tracker", address)
    check(row, ended)
    assert password not in ended.said and "wr0ng-word" not in ended.said
    engine = sqlalchemy.create_engine(postgres)
    with engine.connect() as connection:
        marked = connection.execute(
            sqlalchemy.text("SELECT name, value FROM runs JOIN tags USING (run_uuid) WHERE key = 'pth.verdict'")
        ).all()
    engine.dispose()
    verdicts = dict(tuple(one) for one in marked)
    if row.written is Written.NOTHING:
        assert not verdicts
    else:
        assert verdicts.pop(BROKEN) == "not-judged" and len(verdicts) == 3
        assert set(verdicts.values()) <= {"fail", "pass"}


def end_connection_as_one_run_is_read(patch: pytest.MonkeyPatch, admin: str) -> None:
    """Has the server end all other connections in the middle of reading the first run."""
    read = SqlTracker._points
    done: list[str] = []

    def ending(tracker: SqlTracker, run_id: str, keys: Collection[str] | None) -> Any:
        if not done:
            done.append(run_id)
            with tracker._engine.connect() as held:
                held.execute(sqlalchemy.text("SELECT 1"))
                end_all(admin)
                with tracker._reading():
                    held.execute(sqlalchemy.text("SELECT 1"))
        return read(tracker, run_id, keys)

    patch.setattr(SqlTracker, "_points", ending)


def end_all(admin: str) -> None:
    server = sqlalchemy.create_engine(admin, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(
            sqlalchemy.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'faults' AND pid <> "
                "pg_backend_pid()"
            )
        )
    server.dispose()

"""An experiment in MLflow's SQLite store, looked at and changed behind MLflow's back."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.outcome import BROKEN, Marks
from nightly.test_requests import log_to_mlflow
from pth_tracker.cli import main
from trackers.wandb_stored_runs import faulty

PROJECT = "faults"
TABLES = ("metrics", "latest_metrics", "params", "tags", "runs")
"""Those with rows of runs; the runs themselves last."""


@dataclass(frozen=True)
class Experiment:
    """The experiment of this name in the store, with the runs that `faulty` makes."""

    store: Path
    name: str

    @classmethod
    def logged(cls, store: Path, name: str) -> Experiment:
        """Logs the runs through MLflow's client, past any server."""
        # By default they go where this process was when it first opened the store.
        log_to_mlflow(f"sqlite:///{store}", name, faulty(), artifacts=str(store.parent / "mlruns" / name))
        return cls(store, name)

    def keep_artifacts_in(self, folder: Path) -> None:
        """Has artifacts kept in another folder: a copied store still names that of its original."""
        self.rows("UPDATE experiments SET artifact_location = ? || '/' || experiment_id", str(folder))

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Runs one statement on the store."""
        with closing(sqlite3.connect(self.store, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def ids(self) -> dict[str, str]:
        """Run name to id, without audit runs."""
        chosen = "SELECT runs.name, run_uuid FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name=?"
        return {name: run_id for name, run_id in self.rows(chosen, self.name) if name != "pth-audit"}

    def marks(self) -> Marks:
        """Our tags of every run but the time."""
        found: dict[str, dict[str, str]] = {}
        for name, run_id in self.ids().items():
            chosen = "SELECT key, value FROM tags WHERE run_uuid = ? AND key LIKE 'pth.%' AND key <> 'pth.audited_at'"
            found[name] = dict(self.rows(chosen, run_id))
        return found

    def _audit_runs(self) -> list[tuple[str, str]]:
        chosen = "SELECT run_uuid, status FROM runs JOIN experiments USING (experiment_id) "
        return self.rows(f"{chosen} WHERE runs.name = 'pth-audit' AND experiments.name = ?", self.name)

    def published(self) -> bool:
        """Whether there is one finished audit run that holds the findings."""
        found = self._audit_runs()
        assert len(found) <= 1, "audit runs are one"
        logged = "SELECT value FROM tags WHERE run_uuid = ? AND key = 'mlflow.loggedArtifacts'"
        return bool(found) and found[0][1] == "FINISHED" and bool(self.rows(logged, found[0][0]))

    def reset(self) -> None:
        """Takes away all that audits wrote, and what the faults did to the run."""
        ours = [run_id for run_id, _ in self._audit_runs()]
        for run_id in ours:
            for table in TABLES:
                self.rows(f"DELETE FROM {table} WHERE run_uuid = ?", run_id)
        for run_id in self.ids().values():
            self.rows("DELETE FROM tags WHERE run_uuid = ? AND key LIKE 'pth.%'", run_id)
            self.rows("UPDATE runs SET status = 'FINISHED', lifecycle_stage = 'active' WHERE run_uuid = ?", run_id)

    def delete_run(self) -> None:
        """What deleting it in MLflow's page does."""
        self.rows("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", self.ids()[BROKEN])

    def resume_run(self) -> None:
        """What logging on in it does."""
        self.rows("UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?", self.ids()[BROKEN])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Brings all rows of the run back at the end."""
        run_id = self.ids()[BROKEN]
        kept = {table: self.rows(f"SELECT * FROM {table} WHERE run_uuid = ?", run_id) for table in TABLES}
        yield
        for table in reversed(TABLES):
            self.rows(f"DELETE FROM {table} WHERE run_uuid = ?", run_id)
            for row in kept[table]:
                self.rows(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", *row)

    def remove_run(self) -> None:
        """What ``mlflow gc`` does."""
        run_id = self.ids()[BROKEN]
        for table in TABLES:
            self.rows(f"DELETE FROM {table} WHERE run_uuid = ?", run_id)


@pytest.fixture(scope="module")
def template(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds the experiment, never audited: tests take copies of it."""
    path = tmp_path_factory.mktemp("faults") / "mlflow.db"
    shutil.copyfile(mlflow_template, path)
    Experiment.logged(path, PROJECT)
    return path


@pytest.fixture(scope="module")
def after(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """The marks that an undisturbed audit writes."""
    store = tmp_path_factory.mktemp("undisturbed") / "mlflow.db"
    shutil.copyfile(template, store)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(store.parent)
        assert main(["audit", "-q", "--project", PROJECT, "--tracker", f"sqlite:///{store}"]) == 1
    assert Experiment(store, PROJECT).published()
    return Experiment(store, PROJECT).marks()


def copied(template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The experiment in a copy of the store, in ``folder``, from where commands run with nothing set for them."""
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_", "WANDB_")):
            monkeypatch.delenv(name)
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copyfile(template, folder / "mlflow.db")
    found = Experiment(folder / "mlflow.db", PROJECT)
    found.keep_artifacts_in(folder / "artifacts")
    return found

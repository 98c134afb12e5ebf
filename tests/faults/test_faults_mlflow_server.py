"""The rows of the fault table for an MLflow server: a real one, behind a proxy that breaks what goes through."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from conftest import MlflowServer, free_port
from faults.mlflow_store import Experiment
from faults.outcome import BROKEN, Marks, check, check_written, params, run
from faults.table import SERVER, Row, Written
from pth_tracker.errors import ExitCode
from pth_tracker_mlflow import http
from trackers.mlflow_proxy import Answer, Broken, Proxy, Rule, proxy

Capture = pytest.CaptureFixture[str]
MUTATING = ("log-batch", "create", "update", "set-tag", "delete-tag", "log-artifact", "log-metric", "artifacts")
STATUSES = {"401": 401, "403": 403, "404": 404, "429": 429, "500": 500}
FAULTS: dict[str, Answer | Broken] = {
    **{name: (status, b"trouble") for name, status in STATUSES.items()},
    "time-out": Broken(delay=3, drop=True),
    "truncated answer": Broken(cut=True),
    "invalid JSON": (200, b'{"runs": ['),
    "slow drip": Broken(drip=0.02),
    "dies": Broken(drop=True),
}
SHAPES = {"project": b'{"experiment": 5}', "listing": b'{"runs": [{"data": {"metrics": [{"key": 1}]}}]}'}
SHAPES["histories"] = b'{"metrics": [{"key": "loss"}]}'
STAYS = ("time-out", "dies")
"""Faults that, once they struck, strike every request."""


@pytest.fixture(scope="module")
def experiment(mlflow_server: MlflowServer) -> Experiment:
    return Experiment.logged(mlflow_server.store, "faults")


@pytest.fixture
def between(
    mlflow_server: MlflowServer, experiment: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Proxy]:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    for name, value in {"max_retries": 0, "backoff_factor": 0}.items():
        monkeypatch.setitem(http._FIRST, name, value)
    with proxy(mlflow_server.uri) as state:
        yield state
    experiment.reset()


@pytest.fixture(scope="module")
def after(experiment: Experiment, mlflow_server: MlflowServer) -> Marks:
    """The marks that an undisturbed audit writes."""
    from pth_tracker.cli import main

    assert main(["audit", "-q", "--project", experiment.name, "--tracker", mlflow_server.uri]) == ExitCode.CHECK_FAILED
    found = experiment.marks()
    assert experiment.published() and all(found.values())
    experiment.reset()
    return found


def moment(when: str, run_id: str) -> Callable[[str, str], bool]:
    """Whether a request is made at this moment of an audit."""
    one = when.endswith(" of one run")
    places: dict[str, Callable[[str, str], bool]] = {
        "opening": lambda path, body: "experiments/search" in path,
        "project": lambda path, body: "experiments/get-by-name" in path,
        "listing": lambda path, body: "runs/search" in path,
        "histories": lambda path, body: "metrics/get-history" in path,
        "write": lambda path, body: "runs/log-batch" in path and '"metrics": []' not in body,
        "publish": lambda path, body: path.endswith("runs/create"),
        "all but publish": lambda path, body: True,
        "every request": lambda path, body: True,
    }
    place = places[when.removesuffix(" of one run")]
    return lambda path, body: place(path, body) and (not one or run_id in path + body)


def breaking(row: Row, experiment: Experiment) -> Rule:
    """What the proxy does for this row."""
    run_id = experiment.ids()[BROKEN]
    strikes = moment(row.when, run_id)
    fault, once = row.fault.removesuffix(" once"), row.fault.endswith(" once")
    seen: set[str] = set()
    struck: list[str] = []
    passed: list[str] = []
    passing = itertools.count() if row.when == "write" else itertools.count(1)

    def rule(path: str, body: str) -> Answer | Broken | None:
        place = path.partition("?")[0]
        if row.when == "all but publish" and place.endswith("runs/create"):
            passed.append(place)
        if passed:
            return None
        if struck and fault in STAYS:
            return FAULTS[fault]
        if not strikes(path, body) or (once and place in seen) or (fault in STAYS and not next(passing)):
            return None
        seen.add(place)
        struck.append(place)
        return (200, SHAPES[row.when]) if fault == "JSON of another shape" else FAULTS[fault]

    return rule


def changing(row: Row, experiment: Experiment) -> Rule:
    """The proxy that lets all pass, and changes the run as the first history is asked for."""
    changes = {"run deleted": experiment.delete_run, "run resumed": experiment.resume_run}
    change = {**changes, "run removed for good": experiment.remove_run}[row.fault]
    done: list[bool] = []
    lock = threading.Lock()  # histories are asked for by several requests at a time

    def rule(path: str, body: str) -> Answer | Broken | None:
        with lock:
            if "get-history" in path and not done:
                change()
                done.append(True)
        return None

    return rule


@pytest.mark.parametrize("row", params(SERVER))
def test_row(
    row: Row,
    between: Proxy,
    experiment: Experiment,
    after: Marks,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    before = experiment.marks()
    uri = between.uri
    if row.fault == "nobody listens":
        uri = f"http://127.0.0.1:{free_port()}"
    elif row.fault.startswith("run "):
        between.rule = changing(row, experiment)
    else:
        between.rule = breaking(row, experiment)
    if row.fault.endswith(" once"):
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        monkeypatch.setitem(http._FIRST, "max_retries", 2)
    if row.fault == "time-out":
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
        monkeypatch.setitem(http._FIRST, "timeout", 2)
    if row.fault == "slow drip":
        monkeypatch.setattr(http, "_ANSWER_SECONDS", 1)
    audit = ["audit", "--project", experiment.name, "--tracker"]
    with experiment.restored() if row.fault == "run removed for good" else nullcontext():
        ended = run(capsys, *audit, uri)
        check(row, ended)
        if row.fault == "run removed for good":
            assert set(experiment.marks()) == set(after) - {BROKEN} and experiment.published()
            return
        check_written(row, experiment.marks(), experiment.published(), before, after)
    if row.written is Written.NOTHING:
        assert not [path for _, path in between.calls if path.endswith(MUTATING)]
        return
    between.rule = lambda path, body: None
    experiment.rows("UPDATE runs SET lifecycle_stage = 'active' WHERE run_uuid = ?", experiment.ids()[BROKEN])
    assert run(capsys, *audit, between.uri).status == ExitCode.CHECK_FAILED
    assert experiment.marks() == after and experiment.published()

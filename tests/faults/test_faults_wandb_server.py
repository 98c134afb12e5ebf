"""The rows of the fault table for a W&B server: the stand-in for one, in trouble."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.outcome import BROKEN, Marks, check, check_written, params, run
from faults.table import WANDB, Row, Written
from pth_tracker.errors import ExitCode
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Fault, Request, Trouble, WandbServer
from wandb_server.store import StoredRun

Capture = pytest.CaptureFixture[str]
FAULTS = {
    **{str(status): Fault(status) for status in (401, 403, 404, 429, 500)},
    "time-out": Fault(0, delay=8),
    "truncated answer": Fault(truncate=True),
    "invalid JSON": Fault(200, body=b'{"data": {'),
    "JSON of another shape": Fault(200, body=b'{"data": {"project": {"runs": {"edges": [5]}}}}'),
    "slow drip": Fault(drip=0.02),
    "dies": Fault(drop=True),
}
IMPATIENT = ("time-out", "slow drip", "dies", "nobody listens")
"""Faults that only a time-out ends."""


@pytest.fixture(scope="module")
def server(wandb_environment: WandbServer) -> Iterator[WandbServer]:
    """The stand-in, whose clients ask again but once."""
    with pytest.MonkeyPatch.context() as patch:
        for channel in ("GRAPHQL", "FILE_TRANSFER", "FILE_STREAM"):
            patch.setenv(f"WANDB__{channel}_RETRY_MAX", "1")
        yield wandb_environment


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_URI")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def marks(stored: dict[str, StoredRun]) -> Marks:
    """Our tags and keys of every run but the time, whether the server still has it or not."""
    return {
        name: (
            sorted(tag for tag in kept.tags if tag.startswith("pth:")),
            {key: value for key, value in kept.summary.items() if key.startswith("pth/") and "audited" not in key},
        )
        for name, kept in stored.items()
    }


def published(server: WandbServer, project: str) -> bool:
    kept = server.store.find(server.entity, project, "pth-audit")
    return kept is not None and kept.state == "finished" and "audited_at" in kept.summary


def audit(project: str) -> list[str]:
    return ["audit", "--tracker", "wandb", "--project", f"team/{project}"]


@pytest.fixture(scope="module")
def after(server: WandbServer, tmp_path_factory: pytest.TempPathFactory) -> Marks:
    """The marks that an undisturbed audit writes."""
    from pth_tracker.cli import main

    stored = put(server, "undisturbed", faulty())
    assert main(["audit", "-q", "--tracker", "wandb", "--project", "team/undisturbed"]) == ExitCode.CHECK_FAILED
    assert published(server, "undisturbed")
    return marks(stored)


def moment(when: str, broken: StoredRun) -> Callable[[Request], bool]:
    """Whether a request is made at this moment of an audit."""
    one = when.endswith(" of one run")
    places: dict[str, Callable[[Request], bool]] = {
        "listing": lambda request: request.operation == "PthTrackerRuns",
        "histories": lambda request: request.operation == "PthTrackerExports",
        "histories of one run": lambda request: request.kind == "export" and f"/{broken.name}/" in request.path,
        "marks": lambda request: request.operation == "PthTrackerMarks",
        "write": lambda request: request.operation == "PthTrackerMark",
        "publish": lambda request: request.kind == "stream",
    }
    place = places[when] if when in places else places[when.removesuffix(" of one run")]
    ours = (broken.storage_id,)
    return lambda request: place(request) and (not one or "write" not in when or request.variables.get("id") in ours)


def trouble(row: Row, broken: StoredRun) -> Trouble:
    strikes = moment(row.when, broken)
    passing = itertools.count()
    struck: list[str] = []

    def meets(request: Request) -> Fault | None:
        if struck and row.fault == "dies":
            return FAULTS["dies"]
        if not strikes(request) or (row.fault == "dies" and not next(passing)):
            return None
        struck.append(request.operation)
        return FAULTS[row.fault]

    return meets


def change(row: Row, server: WandbServer, project: str, broken: StoredRun) -> None:
    """Changes the run just before the request at the row's moment is answered."""
    operation = "PthTrackerExports" if row.when == "histories" else "PthTrackerRun"

    def before(request: Request) -> None:
        if request.operation == operation and request.variables.get("run") == broken.name:
            if row.fault == "run resumed":
                broken.state = "running"
            else:
                server.store.projects[server.entity, project].pop(broken.name, None)

    server.before = before


def undo(server: WandbServer, project: str, broken: StoredRun) -> None:
    server.trouble = server.before = None
    broken.state = "finished"
    server.store.projects[server.entity, project][broken.name] = broken


def mutations(seen: list[Request]) -> list[str]:
    return [request.operation for request in seen if request.query.lstrip().startswith("mutation")]


@pytest.mark.parametrize("row", params(WANDB))
def test_row(
    row: Row,
    server: WandbServer,
    after: Marks,
    wandb_project: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    stored = put(server, wandb_project, faulty())
    before, broken = marks(stored), stored[BROKEN]
    with monkeypatch.context() as patch:
        if row.fault in IMPATIENT:
            patch.setenv("WANDB_HTTP_TIMEOUT", "4")
        elif row.when == "publish":
            patch.setenv("WANDB_HTTP_TIMEOUT", "10")
        if row.fault == "nobody listens":
            patch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        elif row.fault.startswith("run "):
            change(row, server, wandb_project, broken)
        else:
            server.trouble = trouble(row, broken)
        with server.counting() as seen:
            ended = run(capsys, *audit(wandb_project))
    check(row, ended)
    assert server.api_key not in ended.said
    check_written(row, marks(stored), published(server, wandb_project), before, after)
    undo(server, wandb_project, broken)
    if row.written is Written.NOTHING:
        assert not mutations(seen)
        return
    assert run(capsys, *audit(wandb_project)).status == ExitCode.CHECK_FAILED
    assert marks(stored) == after and published(server, wandb_project)

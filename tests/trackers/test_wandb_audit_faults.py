"""Whole audits of a W&B server in trouble, from the command line: the same findings, or one sentence, and no key."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Fault, Trouble, WandbServer

Capture = pytest.CaptureFixture[str]
SEEDS = range(41, 66)
"""Two arms of these make fifty runs."""


@pytest.fixture(autouse=True)
def no_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_URI")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


def audit(project: str, *options: str) -> int:
    return main(["audit", "--tracker", "wandb", "--project", project, *options])


def as_json(capsys: Capture) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def one_in_five() -> Trouble:
    """Every fifth request to the tracker is refused, fails or is dropped, in turn."""
    number, fault = itertools.count(1), itertools.cycle([Fault(429), Fault(500), Fault(drop=True)])
    return lambda request: next(fault) if next(number) % 5 == 0 else None


def test_one_request_in_five_failing_changes_no_finding(
    server: WandbServer, wandb_project: str, capsys: Capture
) -> None:
    stored = put(server, wandb_project, faulty(SEEDS))
    assert len(stored) == 50
    assert audit(wandb_project, "--no-write", "--format", "json") == ExitCode.CHECK_FAILED
    calm = as_json(capsys)
    server.trouble = one_in_five()
    with server.counting() as seen:
        assert audit(wandb_project, "--format", "json") == ExitCode.CHECK_FAILED
    shaken = as_json(capsys)
    assert len(seen) > 5 * 50, "the requests of listing, reading and writing, and those made again"
    assert {finding["rule"] for finding in calm["findings"]} >= {"idle-clip"}
    for part in ("findings", "coverage", "not_judged", "errors", "counts"):
        assert shaken[part] == calm[part], part
    assert shaken["errors"] == [] and shaken["write_back"]["errors"] == []
    for name, run in stored.items():
        assert ("pth:fail" in run.tags) == name.startswith("ppo-")
        assert run.summary["pth/verdict"] == ("fail" if name.startswith("ppo-") else "pass")


@pytest.mark.parametrize("fault", [Fault(500), Fault(429), Fault(403)], ids=["500", "429", "403"])
def test_a_run_that_always_fails_is_named_and_the_others_are_audited(
    server: WandbServer, wandb_project: str, fault: Fault, capsys: Capture
) -> None:
    stored = put(server, wandb_project, faulty((41, 42, 43)))
    broken = stored["ppo-seed42"].name
    server.trouble = lambda request: fault if request.kind == "export" and f"/{broken}/" in request.path else None
    assert audit(wandb_project, "-o", "report.json") == ExitCode.TRACKER
    text = " ".join(capsys.readouterr().out.split())
    assert "ppo-seed42" in text and str(fault.status) in text and "exit status 4" in text
    data = json.loads(Path("report.json").read_text())
    assert [error["run"] for error in data["errors"]] == ["ppo-seed42"]
    verdicts = {run["label"]: run["verdict"] for run in data["runs"]}
    others = {"ppo-seed41": "fail", "ppo-seed43": "fail", "tis-seed41": "pass", "tis-seed42": "pass"}
    assert verdicts == {**others, "tis-seed43": "pass", "ppo-seed42": "not-judged"}
    assert stored["ppo-seed41"].summary["pth/verdict"] == "fail"
    assert stored["ppo-seed42"].summary["pth/verdict"] == "not-judged"
    assert "very-secret" not in text + Path("report.json").read_text(), "the signature of an export's address"


def test_a_run_that_is_not_even_answered_for(server: WandbServer, wandb_project: str, capsys: Capture) -> None:
    stored = put(server, wandb_project, faulty())
    broken = stored["tis-seed41"].name
    server.trouble = lambda request: Fault(500) if request.variables.get("run") == broken else None
    assert audit(wandb_project, "--format", "json") == ExitCode.TRACKER
    data = as_json(capsys)
    assert [error["run"] for error in data["errors"]] == ["tis-seed41"]
    (refused,) = data["write_back"]["errors"]
    assert refused.startswith("tis-seed41: ") and "500" in refused
    assert len(data["write_back"]["planned"]) == 3


# what stops an audit: one sentence, its exit status, and the key in nothing

KEY = "5ecre7" * 6 + "abcd"
"""A planted key, in the form of W&B's own."""


def run_command(server: WandbServer, folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    """The exit status and everything that a fresh process prints or writes to a file."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "PTH_TRACKER_"))}
    environment = {name: value for name, value in {**server.environment(folder), **environment}.items() if value}
    command = [sys.executable, "-m", "pth_tracker", "audit", "--tracker", "wandb", *options]
    files = [option for name in ("report.json", "report.txt") for option in ("-o", name)]
    done = subprocess.run(
        [*command, *files], env={**plain, **environment}, cwd=folder, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    written = [path.read_text() for path in (folder / "report.json", folder / "report.txt") if path.exists()]
    return done.returncode, "\n".join([done.stdout, done.stderr, *written])


@pytest.mark.parametrize(
    ("environment", "project", "status", "words"),
    [
        ({"WANDB_API_KEY": ""}, "p", ExitCode.TRACKER, "set WANDB_API_KEY"),
        ({"WANDB_API_KEY": KEY}, "p", ExitCode.TRACKER, "refuses the API key (HTTP 401): set WANDB_API_KEY"),
        ({"WANDB_API_KEY": "short"}, "p", ExitCode.TRACKER, "set WANDB_API_KEY"),
        ({}, "no-such-project", ExitCode.USAGE, "has no project team/no-such-project"),
        ({}, "", ExitCode.USAGE, "name the project to audit with --project"),
        (
            {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY, "WANDB_HTTP_TIMEOUT": "2"},
            "p",
            ExitCode.TRACKER,
            "could not be reached within 2 s",
        ),
    ],
    ids=["no key", "wrong key", "no such key", "no such project", "no project", "unreachable"],
)
def test_what_stops_an_audit_is_one_sentence(
    server: WandbServer,
    wandb_project: str,
    tmp_path: Path,
    environment: dict[str, str],
    project: str,
    status: ExitCode,
    words: str,
) -> None:
    server.add_run(wandb_project, "r")
    ended, said = run_command(server, tmp_path, *(["--project", project] if project else []), **environment)
    assert ended == status
    assert words in said
    assert said.strip().startswith("pth-tracker: error: ") and said.strip().count("\n") == 0
    assert "Traceback" not in said
    for key in (server.api_key, environment.get("WANDB_API_KEY")):
        assert not key or key not in said


def test_the_key_is_in_nothing_that_an_audit_says_writes_or_publishes(
    server: WandbServer, wandb_project: str, tmp_path: Path
) -> None:
    """Also where the server hands the key back in its own messages, and a run holds it in its configuration."""
    runs = put(server, wandb_project, faulty())
    key = server.api_key
    runs["ppo-seed41"].config["api_key"] = {"value": key, "desc": None}
    broken = runs["tis-seed41"].name
    fault = Fault(403, message=f"key {key} may not read this")
    server.trouble = lambda request: fault if request.variables.get("run") == broken else None
    ended, said = run_command(server, tmp_path, "--project", wandb_project, "-v")
    assert ended == ExitCode.TRACKER
    assert "may not read this" in said and "idle-clip" in said
    assert key not in said
    kept = server.run(wandb_project, "pth-audit")
    contents = [*kept.files.values()]
    for artifact in server.store.artifacts:
        if artifact.run is kept:
            contents += [artifact.manifest, *artifact.files.values()]
    assert len(contents) > 2
    assert all(key.encode() not in content for content in contents)
    assert key not in json.dumps([kept.config, kept.summary, kept.rows, kept.args])

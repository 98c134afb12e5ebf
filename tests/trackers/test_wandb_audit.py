"""Whole audits of a W&B server from the command line: what they write, and what they leave alone."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from html_page import read_page
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from pth_tracker.runs import RunState
from synthetic import change
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Fault, Request, WandbServer
from wandb_server.store import StoredRun

Capture = pytest.CaptureFixture[str]
PPO = ["ppo-seed41", "ppo-seed42"]
TIS = ["tis-seed41", "tis-seed42"]
MARK_KEYS = {"pth/verdict", "pth/rules", "pth/audited_at", "pth/version"}


@pytest.fixture(autouse=True)
def no_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_URI")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


@pytest.fixture
def stored(server: WandbServer, wandb_project: str) -> dict[str, StoredRun]:
    return put(server, wandb_project, faulty())


def audit(project: str, *options: str) -> int:
    return main(["audit", "--tracker", "wandb", "--project", f"team/{project}", *options])


def as_json(capsys: Capture) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def mutations(requests: list[Request]) -> Counter[str]:
    return Counter(request.operation for request in requests if request.query.lstrip().startswith("mutation"))


def test_marks_are_written_once_and_taken_away_again(
    server: WandbServer, stored: dict[str, StoredRun], wandb_project: str, capsys: Capture
) -> None:
    before = {name: dict(run.summary) for name, run in stored.items()}
    with server.counting() as seen:
        assert audit(wandb_project, "--format", "json") == ExitCode.CHECK_FAILED
    assert mutations(seen)["PthTrackerMark"] == 4, "one a run"
    data = as_json(capsys)
    assert data["write_back"]["published"] == f"{server.url}/team/{wandb_project}/runs/pth-audit"
    for name, run in stored.items():
        suspicious = name in PPO
        assert run.tags == ["mine", *(["pth:fail", "pth:idle-clip"] if suspicious else [])]
        assert {key: run.summary.pop(key) for key in MARK_KEYS}["pth/verdict"] == ("fail" if suspicious else "pass")
        assert run.summary == before[name]
        run.summary |= {"pth/verdict": "stale", "pth/rules": "", "pth/audited_at": "", "pth/version": ""}
    kept = server.run(wandb_project, "pth-audit")
    (row,) = kept.rows
    assert (kept.job_type, kept.state, row["fail"], row["runs"]) == ("pth-audit", "finished", 1, 4)
    table = next(item for item in server.store.artifacts if item.run is kept and item.kind == "run_table")
    (content,) = table.files.values()
    found = [dict(zip(json.loads(content)["columns"], cells)) for cells in json.loads(content)["data"]]
    worst = next(one for one in found if one["rule"] == "idle-clip")
    links = [f"{server.url}/team/{wandb_project}/runs/{stored[name].name}" for name in PPO]
    assert (worst["level"], worst["blamed"], worst["links"]) == ("fail", ", ".join(PPO), " ".join(links))

    page = next(content for name, content in kept.files.items() if name.endswith(".html")).decode()
    assert kept.rows[0]["audit"]["_type"] == "html-file"
    shown = read_page(page)
    assert shown.one("h1").text == "✗ Failed" and shown.one("section", id="group-idle-clip").all("figure")
    assert set(links) <= {link.attrs["href"] for link in shown.one("table", id="runs-table").all("a", class_="name")}
    attached = next(item for item in server.store.artifacts if item.name == "pth-audit-report" and item.run is kept)
    assert set(attached.files) == {"audit.html", "audit.json", "audit.txt"}
    assert attached.files["audit.html"].decode() == page

    # What somebody has changed in the meantime is put right, then there is nothing left to do.
    assert audit(wandb_project) == ExitCode.CHECK_FAILED
    assert "Written: marks of 4 runs (2 fail, 2 pass)" in capsys.readouterr().out
    with server.counting() as seen:
        assert audit(wandb_project) == ExitCode.CHECK_FAILED
    assert "PthTrackerMark" not in mutations(seen)
    assert "Nothing to write: all marks are up to date" in capsys.readouterr().out
    assert [row["fail"] for row in kept.rows] == [1, 1, 1], "the trend"

    assert main(["untag", "--tracker", "wandb", "--project", f"team/{wandb_project}"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert said == "Removed the marks of 4 runs; the audit run 'pth-audit', where there is one, stays.\n"
    for name, run in stored.items():
        assert (run.tags, run.summary) == (["mine"], before[name])
    assert server.run(wandb_project, "pth-audit") is kept and len(kept.rows) == 3


@pytest.mark.parametrize("option", ["--dry-run", "--no-write"])
def test_nothing_is_written_where_that_was_asked_for(
    server: WandbServer, stored: dict[str, StoredRun], wandb_project: str, option: str, capsys: Capture
) -> None:
    with server.counting() as seen:
        assert audit(wandb_project, option, "--format", "json") == ExitCode.CHECK_FAILED
    assert not mutations(seen)
    assert {request.kind for request in seen} == {"graphql", "export"}
    planned = as_json(capsys)["write_back"]["planned"]
    assert len(planned) == (4 if option == "--dry-run" else 0)
    assert all(run.tags == ["mine"] for run in stored.values())


@pytest.mark.parametrize("moment", ["PthTrackerRuns", "PthTrackerExports", "PthTrackerMarks", "PthTrackerRun"])
def test_what_a_human_adds_during_an_audit_survives(
    server: WandbServer, stored: dict[str, StoredRun], wandb_project: str, moment: str, capsys: Capture
) -> None:
    """`moment`: just before this request is answered; all but the first come after the listing."""
    run = stored["ppo-seed41"]

    def human(request: Request) -> None:
        if request.operation == moment and "keep" not in run.tags:
            run.tags.append("keep")
            run.summary["note"] = "looks odd"

    server.before = human
    assert audit(wandb_project) == ExitCode.CHECK_FAILED
    assert run.tags == ["mine", "keep", "pth:fail", "pth:idle-clip"]
    assert (run.summary["note"], run.summary["pth/verdict"]) == ("looks odd", "fail")
    assert main(["untag", "--tracker", "wandb", "--project", f"team/{wandb_project}"]) == ExitCode.OK
    assert run.tags == ["mine", "keep"]
    assert run.summary["note"] == "looks odd" and not MARK_KEYS & run.summary.keys()


def test_the_sdks_own_update_would_lose_it(server: WandbServer, wandb_project: str) -> None:
    """The trap that the adapter avoids: where the SDK mends it, this test tells."""
    import wandb

    stored = put(server, wandb_project, faulty())["ppo-seed41"]
    (listed,) = wandb.Api(timeout=20).runs(f"team/{wandb_project}", {"displayName": stored.display_name}, lazy=False)
    stored.tags.append("keep")
    stored.summary["note"] = "looks odd"
    listed.tags = [*listed.tags, "pth:fail"]
    listed.update()
    assert stored.tags == ["mine", "pth:fail"]
    assert "note" not in stored.summary


def test_running_runs_are_written_only_where_that_was_asked_for(
    server: WandbServer, wandb_project: str, capsys: Capture
) -> None:
    stored = put(server, wandb_project, change(faulty(), "ppo-seed42", state=RunState.RUNNING))
    running = stored["ppo-seed42"]
    assert audit(wandb_project, "--dry-run", "--format", "json") == ExitCode.CHECK_FAILED
    dry = as_json(capsys)["write_back"]
    assert sorted(edit["run"] for edit in dry["planned"]) == ["ppo-seed41", *TIS]
    assert dry["skipped"] == ["ppo-seed42: it is still running"]

    assert audit(wandb_project) == ExitCode.CHECK_FAILED
    text = " ".join(capsys.readouterr().out.split())
    assert "Written: marks of 3 runs (1 fail, 2 pass)" in text
    assert "left out: ppo-seed42: it is running, and its own process may undo marks (--write-running)" in text
    assert running.tags == ["mine"] and not MARK_KEYS & running.summary.keys()
    assert "pth:fail" in stored["ppo-seed41"].tags

    assert audit(wandb_project, "--write-running", "--format", "json") == ExitCode.CHECK_FAILED
    assert as_json(capsys)["write_back"]["skipped"] == []
    assert running.tags == ["mine", "pth:fail", "pth:idle-clip"]
    assert running.state == "running"

    untag = ["untag", "--tracker", "wandb", "--project", f"team/{wandb_project}"]
    assert main([*untag, "--dry-run"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "the marks of 3 runs would be removed" in captured.out
    assert "ppo-seed42: it is still running" in captured.err
    assert main(untag) == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.out.startswith("Removed the marks of 3 runs;") and "ppo-seed42: it is running" in captured.err
    assert running.tags == ["mine", "pth:fail", "pth:idle-clip"]
    assert main([*untag, "--write-running"]) == ExitCode.OK
    assert running.tags == ["mine"] and not MARK_KEYS & running.summary.keys()


def test_a_refused_mark_is_named_and_not_counted_as_written(
    server: WandbServer, stored: dict[str, StoredRun], wandb_project: str, capsys: Capture
) -> None:
    refused = stored["tis-seed41"].storage_id
    server.trouble = lambda request: Fault(403, message="denied") if request.variables.get("id") == refused else None
    assert audit(wandb_project) == ExitCode.TRACKER
    text = " ".join(capsys.readouterr().out.split())
    assert "Written: marks of 3 runs (2 fail, 1 pass)" in text
    assert "refused: tis-seed41: W&B at" in text and "denied" in text

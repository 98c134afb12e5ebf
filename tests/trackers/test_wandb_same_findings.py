"""The demo's runs in MLflow, on a W&B server and in an offline W&B folder: one and the same audit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pth_tracker import engine
from pth_tracker.cli import main
from pth_tracker.demo import MlflowSink, WandbSink, embedded_store
from pth_tracker.demo.sinks import Sink
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit
from pth_tracker.tracker import Address, open_address
from pth_tracker_wandb.wandb_records import read_log
from wandb_server.server import WandbServer

if TYPE_CHECKING:
    from conftest import DemoRuns

PROJECT = "rl-stale-demo"
Capture = pytest.CaptureFixture[str]


def replay(sink: Sink, name: str, config: dict[str, Any], history: dict[int, dict[str, float]]) -> None:
    sink.start(name, config)
    for step, metrics in history.items():
        sink.log(step, metrics)
    sink.finish()


def wait_until_written(folder: Path, runs: int, seconds: float = 120) -> None:
    """Returns once every log ends with an exit record: wandb-core may still write when `finish` has returned."""
    deadline = time.monotonic() + seconds
    while True:
        logs = list(folder.glob("offline-run-*/*.wandb"))
        if len(logs) == runs and all(read_log(log).exit_code == 0 for log in logs):
            return
        assert time.monotonic() < deadline, f"{len(logs)} logs in {folder}, some without an end"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def places(
    demo_runs: DemoRuns, wandb_environment: WandbServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Address]]:
    """Where the runs are, all logged by the demo's own sinks."""
    folder = tmp_path_factory.mktemp("same-findings")
    uri = embedded_store(folder / "mlflow")
    (folder / "online").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # The commit of this repository may change while its tests run, and would be a finding of its own.
        patch.setenv("WANDB_DISABLE_GIT", "true")
        patch.setattr("sys.argv", ["train.py"])
        for name, run in demo_runs.items():
            replay(MlflowSink(uri, PROJECT), name, *run)
            replay(WandbSink(PROJECT, "online", folder / "online"), name, *run)
            replay(WandbSink(PROJECT, "offline", folder), name, *run)
    wait_until_written(folder / "wandb", len(demo_runs))
    yield {
        "mlflow": Address("mlflow", (uri,)),
        "server": Address("wandb", (wandb_environment.url,)),
        "folder": Address("wandb", (str(folder / "wandb"),)),
    }


@pytest.fixture(scope="module")
def audits(places: dict[str, Address]) -> dict[str, Audit]:
    found = {}
    for place, address in places.items():
        tracker = open_address(address)
        found[place] = engine.audit(tracker, engine.Options(project=PROJECT))
        tracker.close()
    return found


def findings(audit: Audit) -> list[tuple[Any, ...]]:
    def labels(keys: tuple[str, ...]) -> list[str]:
        return sorted(audit.label(key) for key in keys)

    return sorted(
        (one.rule, str(one.level), labels(one.runs), labels(one.blames), sorted(one.arms)) for one in audit.findings
    )


def test_the_findings_are_the_same_wherever_the_runs_were_logged(audits: dict[str, Audit]) -> None:
    expected = findings(audits["mlflow"])
    assert findings(audits["server"]) == expected
    assert findings(audits["folder"]) == expected
    failed = {rule for rule, level, *_ in expected if level == "fail"}
    assert {"idle-clip", "lost-seed", "stuck-batch", "rogue-normaliser"} <= failed


@pytest.mark.parametrize("place", ["server", "folder"])
def test_design_scores_and_verdicts_are_the_same(audits: dict[str, Audit], demo_runs: DemoRuns, place: str) -> None:
    def facts(audit: Audit) -> dict[str, tuple[Any, ...]]:
        return {
            run.label: (run.arm, run.seed, run.cell, run.last_update, run.score, run.verdict, run.rules, run.framework)
            for run in audit.runs.values()
        }

    assert facts(audits[place]) == facts(audits["mlflow"])
    assert facts(audits[place]).keys() == demo_runs.keys()


def test_what_could_be_judged_is_the_same(audits: dict[str, Audit]) -> None:
    def coverage(audit: Audit, *without: str) -> set[tuple[Any, ...]]:
        return {
            (entry.rule, tuple(sorted(audit.label(key) for key in entry.runs)), str(entry.outcome))
            for entry in audit.coverage
            if entry.rule not in without
        }

    assert coverage(audits["server"]) == coverage(audits["folder"])
    # Launch arguments, from which this rule judges, are kept by W&B alone.
    assert coverage(audits["server"], "override-lost") == coverage(audits["mlflow"], "override-lost")


# from the command line


def in_json(captured: str) -> list[tuple[Any, ...]]:
    data = json.loads(captured)
    return sorted(
        (one["rule"], one["level"], sorted(one["runs"]), sorted(one["blames"]), sorted(one["arms"]))
        for one in data["findings"]
    )


@pytest.mark.parametrize(
    "arguments", [["wandb/"], ["wandb"], ["--tracker", "./wandb"], ["--tracker", "wandb/", "--project", PROJECT]]
)
def test_a_folder_named_on_the_command_line(
    places: dict[str, Address],
    audits: dict[str, Audit],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(Path(places["folder"].locations[0]).parent)
    assert main(["audit", *arguments, "--format", "json"]) == ExitCode.CHECK_FAILED
    captured = capsys.readouterr()
    assert in_json(captured.out) == findings(audits["mlflow"])
    assert "only read" in json.loads(captured.out)["write_back"]["refused"]


def test_the_bare_word_wandb_is_the_server_also_beside_a_folder_of_that_name(
    places: dict[str, Address], audits: dict[str, Audit], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(Path(places["folder"].locations[0]).parent)
    arguments = ["--tracker", "wandb", "--project", f"team/{PROJECT}", "--no-write", "--format", "json"]
    assert main(["audit", *arguments]) == ExitCode.CHECK_FAILED
    data = capsys.readouterr().out
    assert in_json(data) == findings(audits["mlflow"])
    assert places["server"].locations[0] in json.loads(data)["tracker"]["chosen"]

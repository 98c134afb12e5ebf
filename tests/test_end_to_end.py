"""Whole audits on real parts: the demo's runs, trained here, in real MLflow stores and behind a real server."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pytest
from mlflow import MlflowClient

from html_page import read_page
from pth_tracker.cli import main
from pth_tracker.demo import DATA_SEEDS, MlflowSink, demo_arms, experiment_name
from pth_tracker.engine import Options, audit, exit_code
from pth_tracker.errors import ExitCode
from pth_tracker.model import IDLE_CLIP, LOST_SEED, ROGUE_NORMALISER, STUCK_BATCH, Audit
from pth_tracker.render import attachments
from pth_tracker.render.json_v1 import to_dict
from pth_tracker.tracker import AUDIT_RUN_NAME, Address, Query, Tracker, open_address
from pth_tracker.writeback import remove_marks, write_back
from synthetic import labels, loud

if TYPE_CHECKING:
    from conftest import DemoRuns, MlflowServer

PROJECT = experiment_name(False)
BUGS = {
    "grpo": ("idle-clip", IDLE_CLIP),
    "tis": ("lost-seed", LOST_SEED),
    "replay": ("stuck-batch", STUCK_BATCH),
    "ppo-clip": ("rogue-normaliser", ROGUE_NORMALISER),
}
"""Arm of the demo to the rule that finds its bug, and the bug's name."""
RUNS = {arm.name: [f"{arm.name}-seed{seed}" for seed in DATA_SEEDS] for arm in demo_arms(False)}
EVERY = sorted(name for names in RUNS.values() for name in names)
SERVED = "end-to-end"


def log(uri: str, experiment: str, runs: DemoRuns, artifacts: str | None = None) -> None:
    for name, (config, history) in runs.items():
        sink = MlflowSink(uri, experiment, artifacts)
        sink.start(name, config)
        for step, metrics in history.items():
            sink.log(step, metrics)
        sink.finish()


@pytest.fixture(scope="module")
def served(mlflow_server: MlflowServer, demo_runs: DemoRuns) -> MlflowServer:
    """The session's MLflow server with the demo's runs in an experiment of its own."""
    log(mlflow_server.store_uri, SERVED, demo_runs, "mlflow-artifacts:/end-to-end")
    return mlflow_server


@pytest.fixture
def opened(demo_store: Path) -> Iterator[Tracker]:
    """The demo's store, opened."""
    tracker = open_address(Address("mlflow", (f"sqlite:///{demo_store}",)))
    yield tracker
    tracker.close()


def audit_at(uri: str, project: str = PROJECT) -> Audit:
    tracker = open_address(Address("mlflow", (uri,)))
    try:
        return audit(tracker, Options(project))
    finally:
        tracker.close()


def comparable(report: Audit) -> dict[str, Any]:
    """The audit as JSON without addresses and times."""
    data = to_dict(report)
    for key in ("tracker", "audited_at"):
        del data[key]
    for run in data["runs"]:
        del run["url"]
    return data


def blamed(report: Audit) -> dict[tuple[str, str], list[str]]:
    """(rule, bug) of everything above information that counts, to the labels of the runs it blames."""
    return {
        (one.rule, one.tag): labels(report, one.blames) for one in report.findings if one.counts and one.level != "info"
    }


def test_the_demo_is_found_out_alike_in_a_database_and_behind_a_server(served: MlflowServer) -> None:
    stored, remote = audit_at(served.store_uri, SERVED), audit_at(served.uri, SERVED)
    assert {"grpo", "tis"} <= set(RUNS)
    assert blamed(stored) == {BUGS[arm]: names for arm, names in RUNS.items()}
    assert comparable(stored) == comparable(remote)
    assert exit_code(stored) is ExitCode.CHECK_FAILED
    assert {run.name: str(run.verdict) for run in stored.runs.values()} == dict.fromkeys(EVERY, "fail")
    assert stored.design.baseline == "grpo" and not stored.errors


def test_the_mended_demo_says_nothing_above_information(repaired_demo_runs: DemoRuns, mlflow_sqlite: Path) -> None:
    uri = f"sqlite:///{mlflow_sqlite}"
    log(uri, "mended", repaired_demo_runs, (mlflow_sqlite.parent / "artifacts").as_uri())
    report = audit_at(uri, "mended")
    assert loud(report) == [] and exit_code(report) is ExitCode.OK
    assert {str(run.verdict) for run in report.runs.values()} == {"pass"}


def test_the_audit_run_shows_the_page_whose_links_lead_to_the_runs(served: MlflowServer, tmp_path: Path) -> None:
    tracker = open_address(Address("mlflow", (served.uri,)))
    report = audit(tracker, Options(SERVED))
    write_back(tracker, report, dry_run=False, files=lambda: attachments(report))
    tracker.close()
    client = MlflowClient(served.uri)
    experiment = client.get_experiment_by_name(SERVED)
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id], "tags.`mlflow.runName` = 'pth-audit'")
    page = Path(client.download_artifacts(kept.info.run_id, "pth/audit.html", str(tmp_path))).read_text("utf-8")
    tree = read_page(page)
    assert tree.one("h1").text == "✗ Failed" and len(tree.all("figure")) == 7
    assert [group.one("h3").text for group in tree.all("section", class_="group")][:4] == [
        IDLE_CLIP, LOST_SEED, STUCK_BATCH, ROGUE_NORMALISER
    ]  # fmt: skip
    table = tree.one("table", id="runs-table")
    links = {link.text: link.attrs["href"] for link in table.all("a", class_="name")}
    assert links == {run.label: run.url for run in report.runs.values()} and sorted(links) == EVERY
    assert all(url.startswith(f"{served.uri}/") for url in links.values())


def state_of(client: MlflowClient, experiment_id: str) -> dict[str, tuple[Any, ...]]:
    """Everything about the demo's runs that is not ours."""
    return {
        run.info.run_name: (
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.info.lifecycle_stage,
            {key: value for key, value in run.data.tags.items() if not key.startswith("pth.")},
            run.data.params,
            run.data.metrics,
        )
        for run in client.search_runs([experiment_id])
        if run.info.run_name != AUDIT_RUN_NAME
    }


def test_the_verdict_is_written_where_people_look_and_nothing_else(served: MlflowServer) -> None:
    client = MlflowClient(served.uri)
    experiment = client.get_experiment_by_name(SERVED)
    assert experiment is not None
    first = client.search_runs([experiment.experiment_id])[0]
    client.set_tag(first.info.run_id, "mine", "kept")
    before = state_of(client, experiment.experiment_id)
    tracker = open_address(Address("mlflow", (served.uri,)))
    remove_marks(tracker, Query(SERVED), dry_run=False)  # of another test
    report = audit(tracker, Options(SERVED))
    written = write_back(tracker, report, dry_run=False)
    assert written.applied and not written.errors and len(written.planned) == len(EVERY)
    assert state_of(client, experiment.experiment_id) == before

    mlflow.set_tracking_uri(served.uri)
    try:
        tagged = mlflow.search_runs(
            experiment_names=[SERVED], filter_string="tags.`pth.verdict` = 'fail'", output_format="list"
        )
        assert sorted(run.info.run_name for run in tagged) == EVERY
        idle = mlflow.search_runs(
            experiment_names=[SERVED], filter_string="tags.`pth.rules` LIKE '%idle-clip%'", output_format="list"
        )
        assert sorted(run.info.run_name for run in idle) == RUNS["grpo"]
        (audit_run,) = mlflow.search_runs(
            experiment_names=[SERVED], filter_string=f"attributes.run_name = '{AUDIT_RUN_NAME}'", output_format="list"
        )
        # `mlflow.load_table` without its global choice of an experiment.
        table = client.load_table(experiment.experiment_id, "pth/findings.json", run_ids=[audit_run.info.run_id])
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
    assert len(table) == len(report.findings)
    counted = table[(table["level"] == "fail") & (table["explained_by"] == "")]
    assert sorted(counted["rule"]) == sorted(BUGS[arm][0] for arm in RUNS)

    again = audit(tracker, Options(SERVED))
    assert len(again.runs) == len(EVERY)  # the audit run is never audited
    assert write_back(tracker, again, dry_run=True).planned == ()
    done = remove_marks(tracker, Query(SERVED), dry_run=False)
    assert len(done.planned) == len(EVERY) and not done.errors
    left = client.search_runs([experiment.experiment_id])
    assert not [key for run in left for key in run.data.tags if key.startswith("pth.") and run.info.run_name in before]
    assert state_of(client, experiment.experiment_id) == before
    tracker.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_reading_and_a_dry_run_leave_every_byte_of_the_store(opened: Tracker, demo_store: Path) -> None:
    before = digest(demo_store)
    report = audit(opened, Options(PROJECT))
    assert len(write_back(opened, report, dry_run=True).planned) == len(EVERY)
    opened.close()
    assert digest(demo_store) == before and [path.name for path in demo_store.parent.iterdir()] == ["mlflow.db"]


def test_marks_in_a_database_survive_and_a_second_audit_plans_none(opened: Tracker, demo_store: Path) -> None:
    write_back(opened, audit(opened, Options(PROJECT)), dry_run=False)
    other = open_address(Address("mlflow", (f"sqlite:///{demo_store}",)))
    second = audit(other, Options(PROJECT))
    assert write_back(other, second, dry_run=True).planned == ()
    assert comparable(second) == comparable(audit(opened, Options(PROJECT)))
    assert len(remove_marks(other, Query(PROJECT), dry_run=False).planned) == len(EVERY)
    assert not any(marks.values for marks in other.marks([run.ref for run in other.runs(Query(PROJECT))]).values())
    other.close()


def test_a_store_that_can_only_be_read_is_audited_with_a_note(
    demo_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK and real(path, mode, **more))
    demo_store.chmod(0o444)
    tracker = open_address(Address("mlflow", (f"sqlite:///{demo_store}",)))
    assert tracker.read_only
    report = audit(tracker, Options(PROJECT))
    assert any("nothing is written back" in note for note in report.notes)
    written = write_back(tracker, report, dry_run=False)
    assert written.refused and not written.errors
    report.write_back = written
    assert exit_code(report) is ExitCode.CHECK_FAILED
    tracker.close()


# wrong input through the command line


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that names no tracker."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "PTH_TRACKER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def older_schema(path: Path) -> None:
    with sqlite3.connect(path) as store:
        store.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    store.close()


STORE = ["--project", PROJECT, "--tracker", "sqlite:///mlflow.db"]
WRONG: dict[str, tuple[list[str], int, str]] = {
    "no such experiment": (["--project", "none", "--tracker", "sqlite:///mlflow.db"], 2, "none"),
    "unreachable server": (["--project", PROJECT, "--tracker", "http://127.0.0.1:9"], 4, "127.0.0.1:9"),
    "empty store": (["--project", PROJECT, "--tracker", "sqlite:///empty.db"], 2, PROJECT),
    "empty experiment": (["--project", "Default", "--tracker", "sqlite:///mlflow.db"], 3, "Default"),
    "no store": (["--project", PROJECT, "--tracker", "sqlite:///nowhere.db"], 2, "nowhere.db"),
    "corrupt store": (["--project", PROJECT, "--tracker", "sqlite:///corrupt.db"], 4, "corrupt.db"),
    "truncated store": (["--project", PROJECT, "--tracker", "sqlite:///truncated.db"], 4, "truncated.db"),
    "misspelt key": (
        [*STORE, "--design", "key.yaml"],
        2,
        "key.yaml:1",
    ),
    "unknown rule selected": (
        [*STORE, "--select", "idle"],
        2,
        "idle",
    ),
    "unknown rule in design": (
        [*STORE, "--design", "rule.yaml"],
        2,
        "rule.yaml:1 at ignore.0.rule",
    ),
    "no design file": ([*STORE, "--design", "no.yaml"], 2, "no.yaml"),
    "run in two arms": (
        [*STORE, "--arm", "a=grpo*", "--arm", "b=*43"],
        2,
        "grpo-seed43 is in two arms, a and b",
    ),
    "no such metric": ([*STORE, "--metric", "val-core/nothing/acc"], 2, "no run logs the metric val-core/nothing/acc"),
    "no filter": (
        [*STORE, "--where", "nonsense("],
        2,
        "--where",
    ),
}


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_sentence_and_its_exit_status(
    case: str, demo_store: Path, mlflow_template: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(mlflow_template, tmp_path / "empty.db")
    (tmp_path / "corrupt.db").write_bytes(b"this is no database\n" * 500)
    (tmp_path / "truncated.db").write_bytes(demo_store.read_bytes()[:20_000])
    (tmp_path / "key.yaml").write_text("basline: grpo\n")
    (tmp_path / "rule.yaml").write_text("ignore: [{rule: idle-clop, reason: on purpose}]\n")
    arguments, status, words = WRONG[case]
    before = {path.name: digest(path) for path in tmp_path.iterdir() if path.is_file()}
    assert main(["audit", *arguments]) == status
    captured = capfd.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("pth-tracker: error: ") and words in lines[0], captured.err
    assert captured.out == "" and "Traceback" not in captured.err
    assert {path.name: digest(path) for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.usefixtures("calm")
def test_a_store_of_an_older_schema_is_refused_or_read_and_never_migrated(
    demo_store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    older_schema(demo_store)
    before = digest(demo_store)
    status = main(["audit", "--project", PROJECT, "--tracker", f"sqlite:///{demo_store}", "--no-write"])
    captured = capfd.readouterr()
    assert status in (ExitCode.CHECK_FAILED, ExitCode.TRACKER) and "Traceback" not in captured.err
    if status == ExitCode.TRACKER:
        assert len(captured.err.strip().splitlines()) == 1
    assert digest(demo_store) == before
    status = main(["audit", "--project", PROJECT, "--tracker", f"sqlite:///{demo_store}"])
    assert status in (ExitCode.CHECK_FAILED, ExitCode.TRACKER)
    with sqlite3.connect(demo_store) as store:
        assert store.execute("SELECT version_num FROM alembic_version").fetchall() == [("451aebb31d03",)]
    store.close()

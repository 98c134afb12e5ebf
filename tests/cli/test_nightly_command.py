from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import MlflowServer
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode, UsageError
from trackers.mlflow_proxy import Answer, proxy

Capture = pytest.CaptureFixture[str]
DEMO = "rl-stale-demo"


@pytest.fixture
def lab(demo_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the demo's store, a configuration that audits it, and a cache of its own."""
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path / "cache"))
    configure(tmp_path, f"sqlite:///{demo_store}", "outputs: report.json")
    return tmp_path


def configure(folder: Path, tracker: str, extra: str = "", project: str = DEMO) -> Path:
    path = folder / "pth-tracker.yaml"
    path.write_text(f"audits:\n  - name: demo\n    project: {project}\n    tracker: {tracker}\n    {extra}\n")
    return path


def in_json(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def test_two_nights_with_what_is_new_the_trend_and_the_cache(lab: Path, capsys: Capture) -> None:
    assert main(["nightly", "--health-file", "health.json", "--log-format", "json"]) == ExitCode.CHECK_FAILED
    first = capsys.readouterr()
    assert (
        first.out.startswith("demo: FAILED: Idle Clip on 3 runs")
        and "The first audit of this name: 4 findings to start from" in first.out
    )
    events = {event["event"]: event for event in in_json(first.err)}
    assert list(events) == ["audit-start", "audit-end", "end"]
    assert (events["audit-end"]["kept"], events["audit-end"]["new"], events["end"]["exit"]) == (0, 4, 1)
    assert {"time", "level", "message"} <= events["end"].keys()
    health = json.loads((lab / "health.json").read_text())
    assert (health["status"], health["last_exit"], health["pid"], health["next"]) == ("ended", 1, os.getpid(), None)
    assert health["last_start"] <= health["last_end"] <= health["at"]

    assert main(["nightly"]) == ExitCode.CHECK_FAILED
    second = capsys.readouterr()
    assert "4 still open" in second.out and "new fail" not in second.out
    assert "12 runs, 12 unchanged and not read again: " in second.err
    report = json.loads((lab / "report.json").read_text())
    assert len(report["since_last"]["still_open"]) == 4 and report["write_back"]["planned"] == []

    assert main(["trend", "--project", DEMO]) == ExitCode.OK
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith(f"demo: {DEMO} in mlflow at sqlite:///")
    assert head.split() == ["audited", "runs", "fail", "warn", "info", "not", "judged", "errors", "new", "resolved"]
    assert [row.split()[2:4] for row in rows] == [["12", "4"]] * 2 and [row.split()[-2] for row in rows] == ["4", "0"]
    assert main(["trend", "--project", DEMO, "--format", "json", "--last", "1"]) == ExitCode.OK
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["runs"], row["fail"], row["new"], row["project"], row["name"]) == (12, 4, 0, DEMO, "demo")

    assert main(["trend"]) == ExitCode.USAGE
    assert f"name the project with --project; there are past audits of {DEMO}" in capsys.readouterr().err
    assert main(["trend", "--project", "rl-stale-dem"]) == ExitCode.NOTHING
    assert f"but of {DEMO}; did you mean '{DEMO}'?" in capsys.readouterr().err

    assert main(["cache", "info"]) == ExitCode.OK
    assert "keeps what was read of 12 runs and what 2 past audits found" in capsys.readouterr().out
    assert main(["cache", "clear"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith(f"Removed what was kept in {lab / 'cache'}: ")
    for action in ("info", "clear"):
        assert main(["cache", action]) == ExitCode.OK
        assert capsys.readouterr().out == f"Nothing is kept in {lab / 'cache'}.\n"
    assert main(["trend", "--project", DEMO]) == ExitCode.NOTHING
    assert "no past audits are kept in" in capsys.readouterr().err


def test_how_much_is_printed(lab: Path, capsys: Capture) -> None:
    assert main(["nightly", "-v", "--no-write"]) == ExitCode.CHECK_FAILED
    whole = capsys.readouterr().out
    assert whole.startswith("demo\nFAILED: Idle Clip") and "remedy" in whole and "The first audit of this name" in whole
    assert main(["nightly", "-q", "--no-write"]) == ExitCode.CHECK_FAILED
    assert capsys.readouterr().out.startswith("demo: FAILED")
    assert main(["nightly", "--dry-run"]) == ExitCode.CHECK_FAILED
    assert "demo: dry run, nothing is written: 12 planned edits:" in capsys.readouterr().err


TABLE = "who,rep,acc\ngrpo,1,0.5\ngrpo,2,0.25\ntis,1,0.75\ntis,2,0.5\n"


def tables(*audits: str) -> None:
    """A table in this folder, and a configuration with these audits of it."""
    Path("runs.csv").write_text(TABLE)
    Path("pth-tracker.yaml").write_text("audits:\n" + "".join(f"  - {{paths: runs.csv, {one}}}\n" for one in audits))


def test_past_audits_of_files_need_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path / "cache"))
    tables("name: a, columns: 'arm=who,seed=rep,value=acc'")
    main(["nightly"])
    capsys.readouterr()
    assert main(["trend"]) == ExitCode.OK and capsys.readouterr().out.startswith("a: files in files at ")


@pytest.mark.parametrize("columns", ["'arm=who,seed=rep,value=acc'", "[arm=who, seed=rep, value=acc]"])
def test_columns_name_those_of_a_table_as_the_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, columns: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tables(f"name: a, columns: {columns}, outputs: nightly.json")
    main(["nightly", "--no-cache", "--cache", "cache"])
    option = [part for one in ("arm=who", "seed=rep", "value=acc") for part in ("--columns", one)]
    main(["audit", "runs.csv", *option, "-o", "audit.json"])
    expected = [("grpo", "1"), ("grpo", "2"), ("tis", "1"), ("tis", "2")]
    for name in ("nightly.json", "audit.json"):
        report = json.loads(Path(name).read_text())
        assert [(run["arm"], run["seed"]) for run in report["runs"]] == expected


def test_columns_of_what_is_no_file_are_refused(lab: Path, demo_store: Path, capsys: Capture) -> None:
    configure(lab, f"sqlite:///{demo_store}", "columns: arm=who")
    assert main(["nightly", "--no-write"]) == ExitCode.USAGE
    assert "--columns names the columns of tables in files, and what is audited is mlflow" in capsys.readouterr().err


@pytest.mark.parametrize("extra", [[], ["--dry-run"], ["--cron", "0 3 * * *"]])
def test_reports_that_cannot_be_written_are_told_before_the_first_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, extra: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    columns = "columns: 'arm=who,seed=rep,value=acc'"
    tables(f"name: a, {columns}, outputs: a.json", f"name: b, {columns}, outputs: [b.json, none/b.html]")
    assert main(["nightly", "--cache", "cache", *extra]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert "pth-tracker.yaml:3 at audits.1.outputs.1: cannot write" in captured.err and captured.err.count("\n") == 1
    assert captured.out == "" and sorted(path.name for path in tmp_path.iterdir()) == ["pth-tracker.yaml", "runs.csv"]
    assert main(["nightly", "--cache", "cache", "--only", "a", *extra[:1]]) != ExitCode.USAGE or "--cron" in extra


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.ENOTSUP, "Not supported"),
              NotImplementedError("FileSystem does not appear to support flock")],
)  # fmt: skip
def test_a_filesystem_without_locks_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, error: Exception
) -> None:
    import filelock

    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    tables("name: a, columns: 'arm=who,seed=rep,value=acc'")
    assert main(["nightly", "--cache", "cache"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "internal error" not in said and said.count("\n") == 1
    assert (
        "cache/nightly-" in said and ".lock'" in said and "name a folder on a disk of this machine with --cache" in said
    )


def test_standard_output_that_is_full_stops_no_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from pth_tracker.cli import output

    def full(text: str) -> None:
        raise UsageError("standard output cannot be written: No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "emit", full)
    Path("runs.csv").write_text("method,seed,acc\ngrpo,1,0.5\ngrpo,2,0.25\ntis,1,0.75\ntis,2,0.5\n")
    Path("pth-tracker.yaml").write_text(
        "audits:\n" + "".join(f"  - {{name: {one}, paths: runs.csv, outputs: {one}.json}}\n" for one in ("a", "b")),
        encoding="utf-8",
    )
    assert main(["nightly", "--no-cache", "--cache", str(tmp_path / "cache"), "--log-format", "json"]) == ExitCode.USAGE
    told = in_json(capsys.readouterr().err)
    troubles = [event["audit"] for event in told if "No space left" in event["message"]]
    assert troubles == ["a", "b"] and Path("a.json").exists() and Path("b.json").exists()
    assert told[-1]["event"] == "end" and told[-1]["exit"] == ExitCode.USAGE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config", "none.yaml"], "none.yaml: this configuration file cannot be read"),
        (["--only", "other"], "--only other: pth-tracker.yaml has no audit of this name, but demo"),
        (["--dry-run", "--no-write"], "give one of them"),
        (["-q", "-v"], "give one of them"),
        (["--timezone", "UTC"], "--timezone is that of --cron"),
        (["--cron", "0 3 * *"], "has 4 fields"),
        (["--cron", "0 3 * * *", "--timezone", "Mars"], "is no time zone"),
    ],
)
def test_wrong_options(lab: Path, options: list[str], message: str, capsys: Capture) -> None:
    assert main(["nightly", *options]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == "" and not (lab / "cache").exists()


def test_trend_and_cache_make_no_file(lab: Path, capsys: Capture) -> None:
    assert main(["trend"]) == ExitCode.NOTHING
    assert main(["trend", "--last", "0"]) == ExitCode.USAGE
    assert main(["cache", "info"]) == ExitCode.OK and main(["cache", "clear"]) == ExitCode.OK
    assert not (lab / "cache").exists()
    assert main(["cache", "burn"]) == ExitCode.USAGE
    capsys.readouterr()


def test_a_plain_audit_leaves_the_cache_alone(lab: Path, demo_store: Path, capsys: Capture) -> None:
    main(["audit", "--project", DEMO, "--tracker", f"sqlite:///{demo_store}", "--no-write", "-q"])
    assert not (lab / "cache").exists()
    capsys.readouterr()


class Process:
    """A real `pth-tracker nightly`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.health_file = folder / "health.json"
        command = [sys.executable, "-m", "pth_tracker", "nightly", "--health-file", str(self.health_file), *options]
        self.popen = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    def health(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.health_file.read_text())
        except FileNotFoundError:
            return {}
        return found

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not what():
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.05)

    def end(self) -> tuple[int, str, str]:
        out, err = self.popen.communicate(timeout=120)
        return self.popen.returncode, out, err


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Process]:
    process = Process(folder, *options)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


@pytest.fixture
def held(mlflow_server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Configures an audit of a server that answers the listing only once this event is set."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path / "cache"))
    client = MlflowClient(mlflow_server.uri)
    project = f"held-{tmp_path.name}"
    client.create_run(client.create_experiment(project))
    go = threading.Event()

    def rule(path: str, body: str) -> Answer | None:
        if path.endswith("/runs/search"):
            go.wait(120)
        return None

    with proxy(mlflow_server.uri) as between:
        between.rule = rule
        configure(tmp_path, between.uri, project=project)
        yield go
        go.set()


def test_of_two_at_once_one_runs_and_the_other_says_so_and_ends_with_0(held: threading.Event, tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.until(lambda: first.health().get("status") == "auditing")
        with running(tmp_path, "--log-format", "json") as second:
            status, out, err = second.end()
        assert (status, out) == (0, "")
        (event,) = in_json(err)
        assert event["event"] == "already-running" and "another process does the audits of" in event["message"]
        held.set()
        status, _, err = first.end()
        assert status == ExitCode.NOTHING and "done, exit status 3" in err
    with running(tmp_path) as third:
        assert third.end()[0] == ExitCode.NOTHING, "the lock ended with its process"


def test_a_signal_to_terminate_ends_a_run_cleanly(held: threading.Event, tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.until(lambda: process.health().get("audit") == "demo")
        process.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        held.set()
        status, out, err = process.end()
    assert (status, out) == (ExitCode.INTERRUPTED, "") and "stopped by a signal" in err and "Traceback" not in err
    assert process.health()["status"] == "stopped" and process.health()["last_exit"] is None
    left = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert {name for name in left if name.startswith(".") or name.endswith((".tmp", "-wal", "-shm"))} == set()


def test_a_process_that_waits_says_when_and_ends_cleanly(lab: Path) -> None:
    with running(lab, "--cron", "0 3 1 1 *", "--timezone", "UTC", "--log-format", "json") as process:
        process.until(lambda: process.health().get("status") == "waiting")
        health = process.health()
        assert health["next"].endswith("-01-01T03:00:00+00:00") and health["last_start"] is None
        process.popen.send_signal(signal.SIGTERM)
        status, out, err = process.end()
    assert (status, out) == (ExitCode.INTERRUPTED, "")
    lines = err.splitlines()
    assert [json.loads(line)["event"] for line in lines[:-1]] == ["waiting", "stopped"]
    assert lines[-1] == "pth-tracker: interrupted"
    assert process.health()["status"] == "stopped" and process.health()["next"] is None


@pytest.mark.slow
def test_a_process_that_stays_audits_on_time_and_waits_again(lab: Path) -> None:
    with running(lab, "--cron", "* * * * *") as process:
        process.until(lambda: process.health().get("last_exit") is not None)
        process.until(lambda: process.health()["status"] == "waiting")
        health = process.health()
        assert health["last_exit"] == 1 and health["next"] > health["last_end"]
        (lab / "pth-tracker.yaml").write_text("audits: nonsense\n")
        process.until(lambda: process.health()["last_exit"] == 2)
        process.popen.send_signal(signal.SIGTERM)
        status, out, err = process.end()
    assert status == ExitCode.INTERRUPTED and out.startswith("demo: FAILED") and "audits: " in err

"""A W&B server in trouble: retried, or one sentence, and the key in none of it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pth_tracker.errors import TrackerError
from pth_tracker.runs import History, RunError, RunRef
from pth_tracker.tracker import MarkEdit, Publication, Query
from pth_tracker_wandb import open_tracker
from pth_tracker_wandb.server import ServerTracker
from wandb_server.server import Fault, Trouble, WandbServer


@pytest.fixture(scope="module")
def tracker(wandb_environment: WandbServer) -> Iterator[ServerTracker]:
    opened = open_tracker(["wandb"])
    assert isinstance(opened, ServerTracker)
    yield opened
    opened.close()


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


def fill(server: WandbServer, project: str, runs: int = 12) -> list[RunRef]:
    for index in range(runs):
        rows = [{"_step": step, "loss": index + 0.5 * step} for step in range(20)]
        server.add_run(project, f"r{index}", {"seed": index}, rows, files=1 + index % 2, live_rows=index % 3)
    return [RunRef(f"team/{project}", f"r{index}") for index in range(runs)]


def every(count: int, *faults: Fault) -> Trouble:
    """Each `count`-th request meets the next of `faults`."""
    number, fault = itertools.count(1), itertools.cycle(faults)
    return lambda request: next(fault) if next(number) % count == 0 else None


def exports_of(name: str, fault: Fault) -> Trouble:
    return lambda request: fault if request.kind == "export" and f"/{name}/" in request.path else None


def read(tracker: ServerTracker, refs: list[RunRef]) -> dict[RunRef, History | RunError]:
    return dict(tracker.histories([(ref, None) for ref in refs]))


def assert_intact(found: History | RunError, index: int) -> None:
    assert isinstance(found, History), found
    np.testing.assert_array_equal(found.step, np.arange(20))
    np.testing.assert_array_equal(found.values["loss"], index + 0.5 * np.arange(20))


def test_one_request_in_five_failing_changes_nothing(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    refs = fill(server, wandb_project)
    calm = list(tracker.runs(Query(wandb_project)))
    server.trouble = every(5, Fault(429), Fault(500), Fault(drop=True), Fault(503), Fault(truncate=True))
    assert list(tracker.runs(Query(wandb_project))) == calm
    found = read(tracker, refs)
    for index, ref in enumerate(refs):
        assert_intact(found[ref], index)
    edits = [MarkEdit(ref, ref.run_id, {"verdict": "pass"}) for ref in refs]
    assert all(result.error == "" for result in tracker.apply(edits))
    assert [marks.values["verdict"] for marks in tracker.marks(refs).values()] == ["pass"] * len(refs)


@pytest.mark.parametrize("fault", [Fault(500), Fault(403)], ids=["500", "403"])
def test_a_run_whose_export_always_fails(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, fault: Fault
) -> None:
    refs = fill(server, wandb_project, 4)
    list(tracker.runs(Query(wandb_project)))
    server.trouble = exports_of("r1", fault)
    found = read(tracker, refs)
    failed = found.pop(refs[1])
    assert isinstance(failed, RunError)
    assert failed.name == "r1"
    assert str(fault.status) in failed.message
    assert "very-secret" not in failed.message, "the signature of an export's address"
    for ref, history in found.items():
        assert_intact(history, int(ref.run_id[1:]))


def test_a_run_whose_query_always_fails(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    refs = fill(server, wandb_project, 3)
    server.trouble = lambda request: Fault(500) if request.variables.get("run") == "r1" else None
    found = read(tracker, refs)
    assert isinstance(found[refs[1]], RunError)
    assert_intact(found[refs[0]], 0)
    assert_intact(found[refs[2]], 2)


@pytest.mark.parametrize("fault", [Fault(403), Fault(truncate=True)], ids=["expired", "broken off"])
def test_an_export_that_fails_once_is_asked_for_again(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, fault: Fault
) -> None:
    refs = fill(server, wandb_project, 1)
    once = iter([fault])
    server.trouble = lambda request: next(once, None) if request.kind == "export" else None
    assert_intact(read(tracker, refs)[refs[0]], 0)


def test_a_damaged_export_is_refused(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    refs = fill(server, wandb_project, 1)
    server.run(wandb_project, "r0").exports[0] = b"<Error>AccessDenied</Error>"
    failed = read(tracker, refs)[refs[0]]
    assert isinstance(failed, RunError)
    assert "cannot be read in full" in failed.message


@pytest.mark.parametrize("line", ["{", '{"_step": NaN, "loss": 1}', '{"_step": 0, "loss": ' + "[" * 100_000])
def test_a_live_row_that_cannot_be_read(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, line: str
) -> None:
    stored = server.add_run(wandb_project, "r", rows=[{"loss": 1.0}], exported=False)
    stored.raw_lines = [line]
    failed = read(tracker, [RunRef(f"team/{wandb_project}", "r")]).popitem()[1]
    assert isinstance(failed, RunError)
    assert "cannot be read" in failed.message
    assert len(failed.message) < 300


def test_live_rows_that_are_withheld_are_no_history(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    stored = server.add_run(wandb_project, "r", rows=[{"loss": float(step)} for step in range(200)], exported=False)
    stored.history_cap = 3
    failed = read(tracker, [RunRef(f"team/{wandb_project}", "r")]).popitem()[1]
    assert isinstance(failed, RunError)
    assert "not exported yet" in failed.message


def test_a_key_that_is_withdrawn_midway(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    refs = fill(server, wandb_project, 3)
    server.trouble = lambda request: Fault(401) if request.kind == "graphql" else None
    with pytest.raises(TrackerError, match="refuses the API key"):
        read(tracker, refs)


def test_a_server_that_goes_away_midway(
    server: WandbServer, wandb_project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    refs = fill(server, wandb_project, 30)
    tracker = open_tracker(["wandb"])
    server.trouble = lambda request: Fault(drop=True)
    with pytest.raises(TrackerError, match="could not be reached within 1 s"):
        dict(tracker.histories([(ref, None) for ref in refs]))
    tracker.close()


def test_an_audit_run_that_cannot_be_uploaded(
    server: WandbServer, wandb_project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    fill(server, wandb_project, 1)
    tracker = open_tracker(["wandb"])
    server.trouble = lambda request: Fault(500) if request.kind == "stream" else None
    moment = datetime(2026, 11, 30, tzinfo=UTC)
    with pytest.raises(TrackerError, match="audit run"):
        tracker.publish(Publication(wandb_project, moment, ("check",), (("ratio",),), {"fail": 1}))
    server.trouble = None
    tracker.close()


# opening


def refusal() -> str:
    with pytest.raises(TrackerError) as raised:
        open_tracker(["wandb"])
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_no_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    with server.counting() as seen:
        message = refusal()
    assert server.url in message and "WANDB_API_KEY" in message
    assert not seen


@pytest.mark.parametrize("key", ["f" * 40, "short"])
def test_a_wrong_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", key)
    message = refusal()
    assert server.url in message and "WANDB_API_KEY" in message
    assert key not in message


def test_nobody_listens(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "2")
    assert "http://127.0.0.1:9 could not be reached within 2 s" in refusal()


def test_nobody_answers(server: WandbServer, wandb_project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    server.trouble = lambda request: Fault(0, delay=3)
    message = refusal()
    assert f"{server.url} could not be reached within 1 s (no answer in time)" in message
    assert "WANDB_BASE_URL" in message


SCRIPT = """
import os, signal, sys
from pathlib import Path
from pth_tracker.tracker import Query, find_tracker

def helpers():
    mine = f"--pid\\0{os.getpid()}\\0".encode()
    lines = [path for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return [int(path.parent.name) for path in lines if mine in path.read_bytes()]

tracker, why = find_tracker("", ["wandb"])
print(why)
runs = list(tracker.runs(Query(sys.argv[1])))
print(runs, list(tracker.histories([(run.ref, None) for run in runs])), tracker)
print("before:", len(helpers()))
if sys.argv[2] == "deaf":
    os.kill(*helpers(), signal.SIGSTOP)
tracker.close()
tracker.close()
print("after:", len(helpers()))
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("helper", ["obedient", "deaf"])
def test_closing_ends_the_helper_process_silently(
    server: WandbServer, wandb_project: str, tmp_path: Path, helper: str
) -> None:
    fill(server, wandb_project, 2)
    environment = {**os.environ, **server.environment(tmp_path)}
    environment.pop("WANDB_SERVICE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", SCRIPT, wandb_project, helper],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert server.url in lines[0]
    assert lines[-2:] == ["before: 1", "after: 0"]
    assert server.api_key not in done.stdout

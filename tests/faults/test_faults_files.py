"""The rows of the fault table for what is only read: W&B's local folders, and log files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verl_logs
from faults.outcome import BROKEN, Ended, check, params, run
from faults.processes import audit_within, nobody, open_folder
from faults.table import FILES, FOLDER, Row
from pth_tracker_files.tracker import FilesTracker
from pth_tracker_wandb.local import LocalTracker
from synthetic import FakeRun
from trackers.wandb_local_runs import exit_record, history_record, run_record, write_run
from trackers.wandb_stored_runs import faulty

__all__ = ["open_folder"]
Capture = pytest.CaptureFixture[str]


def by_step(one: FakeRun) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for key, (steps, values) in one.points.items():
        for step, value in zip(steps, values):
            rows.setdefault(step, {})[key] = value
    return dict(sorted(rows.items()))


def write_folder(folder: Path) -> dict[str, Path]:
    """The runs as W&B's offline folders; run name to its log."""
    found = {}
    for number, one in enumerate(faulty()):
        rows = [history_record(row, step) for step, row in by_step(one).items()]
        config = {key: json.dumps(value) for key, value in one.source.config.items()}
        head = run_record(f"id{number}", "p", 1_700_000_000 + 3600 * number, config=config, display_name=one.name)
        made = write_run(folder / "wandb", [head, *rows, exit_record()], f"id{number}")
        found[one.name] = next(made.glob("*.wandb"))
    return found


def write_logs(folder: Path) -> dict[str, Path]:
    """The runs as verl's console logs; run name to its file."""
    release = verl_logs.RELEASES["0.7.1"]
    found = {}
    for one in faulty():
        log = verl_logs.Log()
        head = verl_logs.prefix(release.task, 4711, "plain")
        log.lines += [head + line for line in verl_logs.config_lines(dict(one.source.config))]
        log.lines += [head + log.take(release, step, row) for step, row in by_step(one).items()]
        log.lines.append(f"{head}Training Progress: 100%|##########| 60/60 [00:00<00:00]")
        found[one.name] = log.write(folder / "logs" / f"{one.name}.log")
    return found


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def strike(
    row: Row, folder: Path, files: dict[str, Path], patch: pytest.MonkeyPatch, command: list[str]
) -> Callable[[], Ended] | None:
    """Makes the row happen to the files; yields what runs the command where this process does not."""
    broken = files[BROKEN]
    if row.fault == "truncated file":
        broken.write_bytes(broken.read_bytes()[: int(broken.stat().st_size * 0.95)])
    elif row.fault == "another kind of file":
        broken.write_bytes(bytes(range(256)) * 500)
    elif row.fault == "nothing there":
        command[-1] += "-none"
    elif row.fault == "file unreadable to the user":
        user = nobody()
        broken.chmod(0o600)
        return lambda: audit_within(command, folder, user=user)
    else:
        kind: Any = LocalTracker if row.adapter == FOLDER else FilesTracker
        read = kind.histories

        def gone(tracker: Any, requests: Any) -> Any:
            broken.unlink()
            return read(tracker, requests)

        patch.setattr(kind, "histories", gone)
    return None


@pytest.mark.parametrize("row", params(FOLDER, FILES))
def test_row(row: Row, open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in list(os.environ):
        if name.startswith(("PTH_TRACKER_", "MLFLOW_TRACKING_", "WANDB_")):
            monkeypatch.delenv(name)
    tmp_path = open_folder
    monkeypatch.chdir(tmp_path)
    files = write_folder(tmp_path) if row.adapter == FOLDER else write_logs(tmp_path)
    command = ["audit", str(tmp_path / ("wandb" if row.adapter == FOLDER else "logs"))]
    whole = {path: path.read_bytes() for path in files.values()}
    elsewhere = strike(row, tmp_path, files, monkeypatch, command)
    before = state_of(tmp_path)
    ended = elsewhere() if elsewhere else run(capsys, *command)
    check(row, ended)
    monkeypatch.undo()
    now = state_of(tmp_path)
    gone = {str(files[BROKEN])} if row.fault == "run deleted" else set()
    made = {path for path in now.keys() - before.keys() if "fontlist" not in path}
    assert before.keys() - gone == now.keys() - made and not made, "nothing is written"
    assert all(now[path] == before[path] for path in now.keys() & before.keys())
    for path, content in whole.items():
        path.write_bytes(content)
    monkeypatch.chdir(tmp_path)
    mended = run(capsys, "audit", str(tmp_path / ("wandb" if row.adapter == FOLDER else "logs")))
    assert mended.status == 1 and "Idle Clip on 2 runs" in mended.said

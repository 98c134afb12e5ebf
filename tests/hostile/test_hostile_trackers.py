"""Hostile names in the stores of trackers: the audit finds what it found, and its marks change nothing else."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from hostile.hostile_text import NAMES
from hostile.test_hostile_audits import steers
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

pytestmark = pytest.mark.slow

IN_TABLES = {
    **{kind: text.encode("utf-8", errors="surrogatepass") for kind, text in NAMES.items() if kind != "megabyte"},
    "no UTF-8": b"\xff\xfe\x80",
    "megabyte": NAMES["megabyte"].encode(),
}
"""What a database may hold as text, whatever a client would have refused."""
REPORTS = ("report.json", "report.txt", "report.html", "report.md", "report.xml")


def put_hostile(store: Path, text: bytes) -> set[str]:
    """Every word of the store that a user may choose holds ``text``; returns the runs' ids."""
    connection = sqlite3.connect(store)
    connection.text_factory = bytes
    with connection:
        names = dict(connection.execute("SELECT run_uuid, name FROM runs"))
        for run, name in names.items():
            for table in ("params", "tags"):
                connection.execute(
                    f"INSERT INTO {table} (key, value, run_uuid) VALUES (CAST(? AS TEXT), CAST(? AS TEXT), ?)",
                    (b"odd" + text, text, run.decode()),
                )
            for table in ("metrics", "latest_metrics"):
                connection.execute(
                    f"INSERT INTO {table} (key, value, timestamp, run_uuid, step, is_nan)"
                    " VALUES (CAST(? AS TEXT), 1.0, 1, ?, 1, 0)",
                    (b"odd" + text, run.decode()),
                )
            odd = "value = CAST(? AS TEXT) WHERE run_uuid = ? AND key"
            connection.execute(f"UPDATE tags SET {odd} = 'mlflow.runName'", (name + b"-" + text, run.decode()))
            connection.execute(f"UPDATE tags SET {odd} = 'mlflow.user'", (text, run.decode()))
            connection.execute(
                "UPDATE runs SET name = CAST(? AS TEXT), user_id = CAST(? AS TEXT) WHERE run_uuid = ?",
                (name + b"-" + text, text, run.decode()),
            )
    connection.close()
    return {run.decode() for run in names}


def rows(store: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that is not ours in the store."""
    connection = sqlite3.connect(store)
    connection.text_factory = bytes
    found = {}
    for table in ("runs", "params", "metrics", "tags", "latest_metrics"):
        of = "run_uuid" if table != "runs" else "name"
        found[table] = sorted(
            row
            for row in connection.execute(f"SELECT {of}, * FROM {table}")
            if b"pth." not in b"".join(cell for cell in row if isinstance(cell, bytes)) and row[0] != b"pth-audit"
        )
    connection.close()
    return found


@pytest.mark.parametrize("kind", IN_TABLES)
def test_hostile_names_in_an_mlflow_store(
    kind: str, demo_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = IN_TABLES[kind]
    ids = put_hostile(demo_store, text)
    before = rows(demo_store)
    outputs = [option for name in REPORTS for option in ("-o", name)]
    status = main(["audit", "--project", "rl-stale-demo", "--tracker", f"sqlite:///{demo_store}", *outputs])
    if text.decode(errors="ignore").encode() != text:
        (told,) = capsys.readouterr().err.splitlines()
        assert status == ExitCode.TRACKER and "cannot be read: Could not decode to UTF-8 column 'name'" in told
        assert rows(demo_store) == before and not any(map(steers, told)) and not list(tmp_path.glob("report.*"))
        return
    assert status == ExitCode.CHECK_FAILED
    report = json.loads(Path("report.json").read_text())
    assert not report["errors"] and not report["write_back"]["errors"]
    assert {run["id"] for run in report["runs"]} >= ids
    failed = {finding["rule"] for finding in report["findings"] if finding["level"] == "fail"}
    assert {"idle-clip", "lost-seed", "stuck-batch"} <= failed
    for name in REPORTS:
        assert not any(map(steers, set(Path(name).read_text())))
    connection = sqlite3.connect(demo_store)
    verdicts = dict(connection.execute("SELECT run_uuid, value FROM tags WHERE key = 'pth.verdict'"))
    connection.close()
    assert set(verdicts) >= ids and "fail" in verdicts.values()
    after = rows(demo_store)
    for table, kept in before.items():
        assert set(kept) <= set(after[table]), table

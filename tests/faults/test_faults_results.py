"""The rows of the fault table for what stands beside a tracker: the cache, outputs, and the clock."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from faults.mlflow_store import PROJECT, Experiment, after, copied, template
from faults.outcome import Ended, Marks, check, check_written, params, run
from faults.processes import audit_within, nobody, open_folder
from faults.table import CACHE, CLOCK, OUTPUTS, Row, Written
from pth_tracker import engine, moments
from pth_tracker.cache import FILE_NAME, Cache
from pth_tracker.cli import session
from pth_tracker.nightly import run as nights

Capture = pytest.CaptureFixture[str]
__all__ = ["after", "open_folder", "template"]
FULL = Path("/dev/full")
YEARS = timedelta(days=3650)


@pytest.fixture
def experiment(template: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    folder = open_folder / "store"
    found = copied(template, folder, monkeypatch)
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(folder / "cache"))
    entry = f"{{name: lab, project: {PROJECT}, tracker: 'sqlite:///{folder}/mlflow.db'}}"
    (folder / "pth-tracker.yaml").write_text(f"audits: [{entry}]\n")
    return found


def audit(experiment: Experiment, *options: str) -> list[str]:
    return ["audit", "--project", PROJECT, "--tracker", f"sqlite:///{experiment.store}", *options]


def leftovers(folder: Path) -> list[str]:
    """What was begun and not finished."""
    return [path.name for path in folder.rglob(".*") if path.is_file()]


# the cache


def in_a_bad_cache(row: Row, folder: Path, capsys: Capture) -> Ended:
    cache = folder / "cache"
    if row.fault == "full disk":
        # The folder of the store may grow, so the store is made large before; the cache's file may not.
        return audit_within(["nightly", "--no-write"], folder, largest=8192, PTH_TRACKER_CACHE=str(cache))
    if row.fault == "read-only folder":
        cache.mkdir(mode=0o555)
        (folder / "mlflow.db").chmod(0o644)
        return audit_within(
            ["nightly", "--no-write"], folder, user=nobody(), PTH_TRACKER_CACHE=str(cache), HOME=str(folder)
        )
    if row.fault == "folder that cannot be made":
        cache.touch()
        return run(capsys, "nightly", "--cache", str(cache / "below"))
    assert run(capsys, "nightly", "--no-write").status == 1
    kept = cache / FILE_NAME
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2] if row.fault == "truncated file" else b"x" * 9000)
    return run(capsys, "nightly")


@pytest.mark.parametrize("row", params(CACHE))
def test_cache_row(row: Row, experiment: Experiment, after: Marks, capsys: Capture) -> None:
    before, folder = experiment.marks(), experiment.store.parent
    ended = in_a_bad_cache(row, folder, capsys)
    check(row, ended)
    check_written(row, experiment.marks(), experiment.published(), before, after)
    (folder / "cache").chmod(0o755)
    assert run(capsys, "nightly", "--cache", str(folder / "another")).status == 1
    with Cache(folder / "another", read_only=True) as cache:
        assert cache.info().examinations == 4 and cache.notes == []
    assert experiment.marks() == after


# outputs


def to_a_bad_place(row: Row, experiment: Experiment, patch: pytest.MonkeyPatch, capsys: Capture) -> Ended:
    folder, command = experiment.store.parent, audit(experiment)
    if (row.fault, row.when) == ("full device", "a file of -o"):
        Path("full.json").symlink_to(FULL)
        return run(capsys, *command, "-o", "full.json", "-o", "report.json")
    if row.fault == "full device":
        with FULL.open("w") as full:
            if row.when == "standard output":
                return audit_within(command, folder, stdout=full)
            if row.when == "standard error":
                return audit_within([*command, "--dry-run"], folder, stderr=full)
            return audit_within(["nightly"], folder, stderr=full, PTH_TRACKER_CACHE=str(folder / "cache"))
    if row.fault == "full disk":
        # More than the store needs, and less than the report.
        largest = experiment.store.stat().st_size + (4 << 20)
        patch.setattr(session, "render", lambda audit, chosen, status: "x" * (largest + 1))
        return audit_within([sys.executable, "-c", LARGE_REPORT, str(largest), *command, "-o", "report.json"], folder,
                            largest=largest)  # fmt: skip
    if row.fault == "reader gone":
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            return audit_within(command, folder, stdout=pipe)
    if row.fault == "folder removed":
        (folder / "reports").mkdir()
        before = engine.audit

        def removing(*args: Any, **kwargs: Any) -> Any:
            shutil.rmtree(folder / "reports")
            return before(*args, **kwargs)

        patch.setattr(engine, "audit", removing)
        return run(capsys, *command, "-o", "reports/report.json")
    (folder / "reports").mkdir(mode=0o555)
    return audit_within([*command, "-o", "reports/report.json"], folder, user=nobody())


LARGE_REPORT = """
import sys
from pth_tracker.cli import main, session

session.render = lambda audit, chosen, status: "x" * (int(sys.argv[1]) + 1)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("row", params(OUTPUTS))
def test_outputs_row(row: Row, experiment: Experiment, after: Marks, capsys: Capture) -> None:
    before, folder = experiment.marks(), experiment.store.parent
    with pytest.MonkeyPatch.context() as patch:
        ended = to_a_bad_place(row, experiment, patch, capsys)
    if row.when == "standard error" or row.fault == "reader gone":
        assert ended.status == row.status and "Traceback" not in ended.said
    else:
        check(row, ended)
    check_written(row, experiment.marks(), experiment.published(), before, after)
    assert not leftovers(folder)
    if row.when == "a file of -o" and row.written is Written.ALL:
        assert "Idle Clip" in ended.out, "the report is on standard output all the same"
        assert (folder / "report.json").exists() == (row.fault == "full device"), "the other file is written"
    assert run(capsys, *audit(experiment, "-o", "report.json")).status == 1
    assert experiment.marks() == after and experiment.published() and "Idle" in (folder / "report.json").read_text()


# the clock


class Clock:
    """The time that the package sees, moved by as much as it is told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.moved = timedelta()
        clock = self

        class Moved(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + clock.moved

        for module in (engine, nights, moments):
            patch.setattr(module, "datetime", Moved)


def under_a_clock(row: Row, experiment: Experiment, clock: Clock, capsys: Capture) -> Ended:
    if row.when == "second audit":
        assert run(capsys, *audit(experiment)).status == 1
        clock.moved = -timedelta(hours=1) if row.fault == "an hour back" else YEARS
        return run(capsys, *audit(experiment))
    if row.when == "nightly":
        clock.moved = YEARS
        assert run(capsys, "nightly").status == 1
        clock.moved = timedelta()
        ended = run(capsys, "nightly")
        told = experiment.rows("SELECT value FROM tags JOIN runs USING (run_uuid) WHERE runs.name = 'pth-audit' "
                               "AND key = 'pth.audited_at'")  # fmt: skip
        assert datetime.fromisoformat(told[0][0]) < datetime.now(UTC) + timedelta(days=1), "the audit run says today"
        return ended
    clock.moved = -YEARS
    return run(capsys, *audit(experiment, "--since", "7d"))


@pytest.mark.parametrize("row", params(CLOCK))
def test_clock_row(
    row: Row, experiment: Experiment, after: Marks, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    before = experiment.marks()
    clock = Clock(monkeypatch)
    ended = under_a_clock(row, experiment, clock, capsys)
    check(row, ended)
    check_written(row, experiment.marks(), experiment.published(), before, after)
    clock.moved = timedelta()
    assert run(capsys, *audit(experiment)).status == 1
    assert experiment.marks() == after and experiment.published()

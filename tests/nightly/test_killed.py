"""kill -9 at random moments of an audit that writes back, then one clean audit: nothing differs from undisturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pth_tracker import codec
from pth_tracker.cache import FILE_NAME, KEPT_TYPES, Cache
from test_codec import same

pytestmark = pytest.mark.slow
MOMENTS = 10
PROJECT = "rl-stale-demo"


class Store:
    """A copy of the demo's store, with a configuration that audits it and a cache of its own."""

    def __init__(self, template: Path, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.path = folder / "mlflow.db"
        shutil.copyfile(template, self.path)
        text = f"audits: [{{name: demo, project: {PROJECT}, tracker: 'sqlite:///{self.path}', outputs: report.json}}]\n"
        (folder / "pth-tracker.yaml").write_text(text)

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PTH_TRACKER_CACHE": str(self.folder / "cache")}
        return subprocess.Popen(
            [sys.executable, "-m", "pth_tracker", "nightly"],
            cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def tags(self) -> list[tuple[str, str, str]]:
        """Every tag of every run but the times, by run name: the audit run's id is another one in each store."""
        chosen = "SELECT runs.name, tags.key, tags.value FROM tags JOIN runs USING (run_uuid)"
        with sqlite3.connect(self.path) as connection:
            rows = connection.execute(f"{chosen} ORDER BY runs.name, tags.key").fetchall()
        connection.close()
        return [row for row in rows if row[1] != "pth.audited_at"]

    def audit_runs(self) -> list[tuple[str, str]]:
        """The status and place of artifacts of each audit run."""
        chosen = "SELECT status, artifact_uri FROM runs WHERE name = 'pth-audit'"
        with sqlite3.connect(self.path) as connection:
            found: list[tuple[str, str]] = connection.execute(chosen).fetchall()
        connection.close()
        return found

    def counts(self) -> dict[str, float]:
        """What the trend says last."""
        chosen = "SELECT key, value FROM latest_metrics WHERE key LIKE 'pth.count.%'"
        with sqlite3.connect(self.path) as connection:
            found = dict(connection.execute(chosen).fetchall())
        connection.close()
        return found

    def table(self) -> Any:
        ((_, place),) = self.audit_runs()
        return json.loads(Path(place.removeprefix("file://"), "pth", "findings.json").read_text())

    def kept(self) -> tuple[list[Any], list[Any]]:
        """The examinations by run, and the past audits but for the times and the place of the audit run."""
        connection = sqlite3.connect(self.folder / "cache" / FILE_NAME)
        bodies = [row[0] for row in connection.execute("SELECT body FROM examinations")]
        connection.close()
        examined = sorted((codec.decode(body, KEPT_TYPES) for body in bodies), key=lambda one: str(one.run_key))
        with Cache(self.folder / "cache", read_only=True) as cache:
            past = cache.audits(PROJECT)
        none: Any = None
        return examined, [
            replace(one, audited_at=none, published_at=none, published="", tracker="", configuration="") for one in past
        ]


def test_nothing_differs_after_ten_kills(demo_template: Path, tmp_path: Path) -> None:
    undisturbed = Store(demo_template, tmp_path / "undisturbed")
    started = time.monotonic()
    assert undisturbed.start().wait(300) == 1
    lasted = time.monotonic() - started
    examined, past = undisturbed.kept()
    assert len(examined) == 12 and len(past) == 1 and len(undisturbed.audit_runs()) == 1
    dice = random.Random(20260301)
    killed = 0
    for number in range(MOMENTS):
        store = Store(demo_template, tmp_path / str(number))
        process = store.start()
        try:
            process.wait(dice.uniform(0.3, 0.95) * lasted)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
        assert store.start().wait(300) == 1
        assert store.tags() == undisturbed.tags(), number
        assert (store.counts(), store.table()) == (undisturbed.counts(), undisturbed.table()), number
        assert [status for status, _ in store.audit_runs()] == ["FINISHED"], number
        now_examined, now_past = store.kept()
        assert len(now_examined) == 12 and all(same(a, b) for a, b in zip(now_examined, examined)), number
        assert now_past[:1] == past, number
        report = json.loads((store.folder / "report.json").read_text())
        assert report["exit"] == 1 and not report["write_back"]["errors"]
        assert not [file for file in store.folder.iterdir() if file.name.startswith(".")], number
    assert killed >= MOMENTS // 2

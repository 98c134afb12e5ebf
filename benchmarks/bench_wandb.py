"""What reading and marking runs on W&B costs: requests per run, and time against the SDK's own readers.

The far side of the wire is the tests' stand-in for a W&B server on threads of this process. Both sides of a comparison
are timed against it in one process, one after the other, so that their ratio and the counts of requests hold where
absolute times do not. Histories lie on it as exported parquet files; the local run is logged by the SDK.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pth_tracker.runs import History
from pth_tracker.tracker import MarkEdit, Publication, Query
from pth_tracker_wandb import open_tracker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from measuring import timed
from table import Row

from wandb_server.server import Request, WandbServer

RUNS = (200, 12)
"""Runs whose requests are counted; with ``quick``, fewer."""
HISTORIES = ((20, 10_000, 30), (2, 200, 5))
"""Runs, steps and metrics of the histories that are timed."""
LOCAL = ((1, 10_000, 30), (1, 200, 5))


def names(metrics: int) -> list[str]:
    """The names of the metrics."""
    return [f"actor/metric_{index:02}" for index in range(metrics)]


def history(steps: int, metrics: int, seed: int) -> list[dict[str, float]]:
    """A run's history, one row a step."""
    values = np.random.default_rng(seed).normal(size=(steps, metrics)).tolist()
    keys = names(metrics)
    return [dict(zip(keys, row, strict=True)) for row in values]


@contextmanager
def served() -> Iterator[WandbServer]:
    """The stand-in, and the environment that points to it."""
    with tempfile.TemporaryDirectory() as folder:
        server = WandbServer().start()
        before = dict(os.environ)
        os.environ.update(server.environment(Path(folder)))
        try:
            yield server
        finally:
            os.environ.clear()
            os.environ.update(before)
            server.stop()


def per_run(server: WandbServer, project: str, count: int, **attributes: Any) -> Iterator[Row]:
    """Requests for listing, reading and marking ``count`` runs, each counted apart."""
    keys = names(3)
    for index in range(count):
        server.add_run(project, f"r{index}", {"seed": index}, history(50, 3, index), **attributes)
    with server.counting() as opening:
        tracker = open_tracker(["wandb"])
    with server.counting() as listing:
        runs = list(tracker.runs(Query(project)))
    with server.counting() as reading:
        answers = dict(tracker.histories([(run.ref, keys) for run in runs]))
    if len(runs) != count or any(not isinstance(answer, History) for answer in answers.values()):
        raise RuntimeError(f"{len(runs)} of {count} runs listed, {len(answers)} read")
    edits = [MarkEdit(run.ref, run.name, {"verdict": "fail"}, add_tags=frozenset({"pth:fail"})) for run in runs]
    with server.counting() as planning:
        tracker.marks([run.ref for run in runs])
    with server.counting() as writing:
        refused = [result.error for result in tracker.apply(edits) if result.error]
    with server.counting() as publishing:
        tracker.publish(Publication(project, datetime.now(UTC), ("rule",), (("idle-clip",),), {"fail": count}))
    tracker.close()
    if refused:
        raise RuntimeError(refused[0])
    stages: dict[str, list[Request]] = {
        "opening": opening,
        "listing": listing,
        "histories": reading,
        "marks read": planning,
        "marks written": writing,
        "audit run": publishing,
    }
    for stage, seen in stages.items():
        of = ", ".join(f"{number} {kind}" for kind, number in Counter(map(_kind, seen)).items())
        yield Row(f"W&B, {project}: {stage}", f"{count} runs", len(seen), "requests", note=of)


def _kind(request: Request) -> str:
    return request.operation if request.kind == "graphql" else request.kind


def read_with_tracker(project: str, keys: list[str]) -> int:
    """The adapter, from opening to closing; returns the number of points."""
    tracker = open_tracker(["wandb"])
    points = 0
    for _, answer in tracker.histories([(run.ref, keys) for run in tracker.runs(Query(project))]):
        if not isinstance(answer, History):
            raise RuntimeError(answer.message)
        points += sum(len(answer.series(key)[0]) for key in answer.values)
    tracker.close()
    return points


def read_with_scan(project: str, keys: list[str]) -> int:
    """The SDK's documented way to an exact history, `scan_history` of each run; returns the number of points."""
    import wandb

    points = 0
    for run in wandb.Api(timeout=120).runs(f"team/{project}"):
        points += sum(key in row for row in run.scan_history(use_cache=False) for key in keys)
    return points


def histories(server: WandbServer, shape: tuple[int, int, int]) -> Row:
    """Seconds for ``shape`` (runs, steps, metrics) by the adapter and by `scan_history`."""
    count, steps, metrics = shape
    first = server.add_run("histories", "r0", {"seed": 0}, history(steps, metrics, 0))
    first.history_keys()  # a real server knows them; here, counting them would take longer than all readings
    for index in range(1, count):
        server.store.projects[server.entity, "histories"][f"r{index}"] = replace(first, name=f"r{index}")
    ours, points = timed(read_with_tracker, "histories", names(metrics))
    theirs, expected = timed(read_with_scan, "histories", names(metrics))
    if not points == expected == int(np.prod(shape)):
        raise RuntimeError(f"{points} points read, {expected} by the SDK, {np.prod(shape)} written")
    return Row("W&B histories, server", size_of(shape), ours, "s", "scan_history()", theirs, least=10)


def size_of(shape: tuple[int, int, int]) -> str:
    """In words."""
    return "{} runs x {} steps x {} metrics".format(*shape)


def log_offline(folder: Path, steps: int, metrics: int) -> Path:
    """The folder of one offline run, logged by the SDK."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    with wandb.init(project="local", mode="offline", dir=str(folder), reinit="create_new", settings=settings) as run:
        for row in history(steps, metrics, 0):
            run.log(row)
    wandb.teardown()
    (found,) = folder.glob("wandb/offline-run-*")
    return found


def read_folder(folder: Path, keys: list[str]) -> int:
    """The adapter on a local folder; returns the number of points."""
    tracker = open_tracker([str(folder)])
    (run,) = tracker.runs(Query())
    ((_, answer),) = tracker.histories([(run.ref, keys)])
    if not isinstance(answer, History):
        raise RuntimeError(answer.message)
    return sum(len(answer.series(key)[0]) for key in answer.values)


def read_with_leet(folder: Path, keys: list[str]) -> int:
    """``wandb leet inspect --json`` and the parsing of what it prints; returns the number of points."""
    command = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    points = 0
    for line in done.stdout.splitlines():
        record = json.loads(line)
        if record["type"] == "history":
            row = record["history"]["item"]
            points += sum(key in row for key in keys)
    return points


def local(shape: tuple[int, int, int]) -> Row:
    """Seconds for one local run of ``shape`` by the adapter and by ``wandb leet``."""
    _, steps, metrics = shape
    with tempfile.TemporaryDirectory() as name:
        folder = log_offline(Path(name), steps, metrics)
        ours, points = timed(read_folder, folder, names(metrics))
        theirs, expected = timed(read_with_leet, folder, names(metrics))
    if not points == expected == int(np.prod(shape)):
        raise RuntimeError(f"{points} points read, {expected} by the SDK, {np.prod(shape)} written")
    return Row("W&B history, offline folder", size_of(shape), ours, "s", "wandb leet inspect", theirs)


def rows(quick: bool) -> Iterator[Row]:
    """The requests of each stage, and the times of histories."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    pick = int(quick)
    with served() as server:
        yield from per_run(server, "one file", RUNS[pick])
        yield from per_run(server, "live rows", RUNS[pick], files=2, live_rows=5)
        yield histories(server, HISTORIES[pick])
        yield local(LOCAL[pick])

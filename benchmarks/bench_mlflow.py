"""How long reading 60 runs x 20 metrics x 500 steps from MLflow takes, against MLflow's own client in a loop.

Both sides are timed in one process on one store, so that their ratio holds where absolute times do not. The rows are
written straight into the tables, since logging 600,000 points through a client takes longer than all readings
together. The server is the real one with two workers.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measuring import timed
from table import Row

from pth_tracker.runs import History
from pth_tracker.tracker import Query
from pth_tracker_mlflow import open_tracker

PROJECT = "bench"
FULL = (60, 500)
QUICK = (12, 100)
NAMES = tuple(f"actor/metric_{key:02}" for key in range(20))
Values = np.ndarray[Any, np.dtype[np.float64]]


def noise(index: int, steps: int, rng: np.random.Generator) -> Values:
    """``(steps, 20)``: a run of metrics that mean nothing."""
    return rng.normal(size=(steps, len(NAMES)))


def fill(
    path: Path,
    runs: int,
    steps: int,
    names: Sequence[str] = NAMES,
    values: Callable[[int, int, np.random.Generator], Values] = noise,
    parameters: Callable[[int], Mapping[str, str]] = lambda index: {},
) -> list[str]:
    """Writes the runs into a fresh store and returns their ids; ``values(index, steps, rng)`` is a run's history."""
    from mlflow.tracking import MlflowClient

    number = int(MlflowClient(f"sqlite:///{path}").create_experiment(PROJECT))
    rng = np.random.default_rng(0)
    start = 1_760_000_000_000
    ids = [rng.bytes(16).hex() for _ in range(runs)]
    connection = sqlite3.connect(path)
    with connection:
        for index, run_id in enumerate(ids):
            connection.execute(
                "INSERT INTO runs (run_uuid, name, experiment_id, status, start_time, end_time, lifecycle_stage,"
                " artifact_uri, user_id, source_type) VALUES (?, ?, ?, 'FINISHED', ?, ?, 'active', '', '', 'LOCAL')",
                (run_id, f"run-{index}", number, start + index, start + index + steps * 1000),
            )
            connection.executemany(
                "INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)",
                [(key, value, run_id) for key, value in parameters(index).items()],
            )
            rows = [
                (name, value, start + step * 1000, run_id, step)
                for step, row in enumerate(values(index, steps, rng).tolist())
                for name, value in zip(names, row, strict=True)
            ]
            columns = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)"
            connection.executemany(f"INSERT INTO metrics {columns}", rows)
            connection.executemany(f"INSERT INTO latest_metrics {columns}", rows[-len(names) :])
    connection.close()
    return ids


@contextmanager
def served(store: str, folder: Path) -> Iterator[str]:
    """A real MLflow server with two workers on the store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "2"]
    options += ["--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts")]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options],
            stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 180
            while True:
                try:
                    urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    if time.monotonic() > deadline or process.poll() is not None:
                        raise
                    time.sleep(0.3)
            yield uri
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def read_with_client(uri: str, ids: Sequence[str], keys: Sequence[str]) -> int:
    """MLflow's documented way: one call a run and metric; returns the number of points."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    return sum(len(client.get_metric_history(run_id, key)) for run_id in ids for key in keys)


def read_with_tracker(uri: str, keys: Sequence[str]) -> int:
    """The adapter: listing included; returns the number of points."""
    tracker = open_tracker([uri])
    runs = list(tracker.runs(Query(PROJECT)))
    points = 0
    for _, answer in tracker.histories([(run.ref, keys) for run in runs]):
        if not isinstance(answer, History):
            raise RuntimeError(answer.message)
        points += sum(len(answer.series(key)[0]) for key in answer.values)
    tracker.close()
    return points


def rows(quick: bool) -> Iterator[Row]:
    """One row a way in."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    shape = QUICK if quick else FULL
    expected = shape[0] * len(NAMES) * shape[1]
    size = f"{shape[0]} runs x {len(NAMES)} metrics x {shape[1]} steps"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "mlflow.db"
        ids = fill(path, *shape)
        with served(f"sqlite:///{path}", folder) as uri:
            for way, address, least in (("database", f"sqlite:///{path}", 5.0), ("server", uri, 3.0)):
                ours, points = timed(read_with_tracker, address, NAMES)
                theirs, reference = timed(read_with_client, address, ids, NAMES)
                if not points == reference == expected:
                    raise RuntimeError(f"{way}: {points} points read, {reference} by the client, {expected} written")
                yield Row(f"MLflow histories, {way}", size, ours, "s", "MlflowClient loop", theirs, least)

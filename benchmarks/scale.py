"""What a night over 2,000 runs x 6 metrics x 1,000 steps costs, the first time and when nothing has changed.

The runs lie in PostgreSQL behind a real MLflow server with two workers; they are written straight into its tables,
since logging 12 million points through a client takes hours. Both nights are `pth-tracker nightly` as a command,
write-back included. Requests are counted in the server's own access log.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import sqlalchemy
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_mlflow import served
from measuring import Measured, measured

from postgres import postgres_cluster

PROJECT: Final = "scale"
FULL: Final = (2000, 1000)
QUICK: Final = (100, 100)
METRICS: Final = (
    "actor/pg_clipfrac", "rollout_corr/k3_kl", "actor/lr", "actor/grad_norm", "critic/score/mean",
    "val-core/math/acc/mean_at_1",
)  # fmt: skip
"""Of verl, as MLflow stores their names."""
SEEDS: Final = 5
START: Final = 1_760_000_000_000
MEMORY_MB: Final = 600
FEWER_REQUESTS: Final = 50


def parameters(index: int) -> dict[str, str]:
    """The configuration of one run: arms of four seeds' groups that differ in the learning rate."""
    arm, seed = divmod(index, SEEDS)
    return {
        "data/seed": str(42 + seed),
        "data/train_files": "math.parquet",
        "data/train_batch_size": "256",
        "actor_rollout_ref/actor/optim/lr": f"{1e-6 * (1 + arm):.9g}",
        "actor_rollout_ref/actor/ppo_mini_batch_size": "64",
        "actor_rollout_ref/model/path": "Qwen/Qwen3-0.6B",
        "algorithm/adv_estimator": "grpo",
        "trainer/total_training_steps": "1000",
    }


def values(index: int, steps: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``(steps, 6)``: healthy training whose score rises."""
    rising = 0.6 * (1 - np.exp(-np.arange(steps) / (0.2 * steps)))
    columns = [
        rng.uniform(1e-3, 1e-2, steps),
        rng.uniform(1e-5, 1e-3, steps),
        np.full(steps, 1e-6 * (1 + index // SEEDS)),
        rng.lognormal(0, 0.2, steps),
        rising + rng.normal(0, 0.02, steps),
        rising + rng.normal(0, 0.01, steps),
    ]
    return np.column_stack(columns)


def fill(uri: str, runs: int, steps: int) -> None:
    """Writes the runs into MLflow's tables at ``uri``."""
    from mlflow.tracking import MlflowClient

    number = MlflowClient(uri).create_experiment(PROJECT, artifact_location="mlflow-artifacts:/scale")
    rng = np.random.default_rng(0)
    engine = sqlalchemy.create_engine(uri)
    connection = engine.raw_connection()
    cursor: Any = connection.cursor()

    def copy(table: str, columns: str, lines: list[str]) -> None:
        cursor.copy_expert(f"COPY {table} ({columns}) FROM STDIN", io.StringIO("".join(lines)))

    metric = "key, value, timestamp, run_uuid, step, is_nan"
    for index in range(runs):
        run_id = rng.bytes(16).hex()
        begun, ended = START + index * 1000, START + index * 1000 + steps * 1000
        arm, seed = divmod(index, SEEDS)
        copy(
            "runs",
            "run_uuid, name, experiment_id, status, start_time, end_time, lifecycle_stage, artifact_uri, user_id,"
            " source_type",
            [f"{run_id}\tarm{arm}-seed{42 + seed}\t{number}\tFINISHED\t{begun}\t{ended}\tactive\t"
             f"mlflow-artifacts:/scale/{run_id}\tbench\tLOCAL\n"],
        )  # fmt: skip
        copy("params", "key, value, run_uuid", [f"{k}\t{v}\t{run_id}\n" for k, v in parameters(index).items()])
        rows = [
            f"{key}\t{value!r}\t{begun + step * 1000}\t{run_id}\t{step}\tf\n"
            for step, row in enumerate(values(index, steps, rng).tolist())
            for key, value in zip(METRICS, row, strict=True)
        ]
        copy("metrics", metric, rows)
        copy("latest_metrics", metric, rows[-len(METRICS) :])
    connection.commit()
    cursor.execute("ANALYZE")
    connection.commit()
    connection.close()
    engine.dispose()


REQUEST: Final = re.compile(r'"(?:GET|POST|PATCH|DELETE|PUT) /(?:api|ajax-api|graphql|version)[^"]*" \d{3}')


def night(folder: Path, configuration: Path, log: Path) -> tuple[Measured, int]:
    """Runs `pth-tracker nightly` once; what it took, and its requests."""
    before = len(REQUEST.findall(log.read_text(errors="replace")))
    command = [str(Path(sys.executable).with_name("pth-tracker")), "nightly", "--config", str(configuration)]
    done = measured(command, folder, os.environ | {"PTH_TRACKER_CACHE": str(folder / "cache")}, memory=True)
    time.sleep(1)  # the server's log is written after its answers
    return done, len(REQUEST.findall(log.read_text(errors="replace"))) - before


def marks(uri: str) -> str:
    """A hash of all tags of all audited runs."""
    engine = sqlalchemy.create_engine(uri)
    with engine.connect() as connection:
        rows = connection.execute(
            sqlalchemy.text(
                "SELECT t.run_uuid, t.key, t.value FROM tags t JOIN runs r USING (run_uuid)"
                " WHERE r.name <> 'pth-audit' ORDER BY 1, 2"
            )
        ).all()
    engine.dispose()
    if not rows:
        raise RuntimeError("the first night left no mark")
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def main(quick: bool = False) -> list[tuple[Measured, int]]:
    """The first night, and the second; raises where the second is not what it has to be."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    runs, steps = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as name, postgres_cluster() as address:
        folder = Path(name)
        uri = address.replace("postgresql://", "postgresql+psycopg2://")
        start = time.perf_counter()
        fill(uri, runs, steps)
        print(f"{runs} runs x {len(METRICS)} metrics x {steps} steps written in {time.perf_counter() - start:.0f} s")
        with served(uri, folder) as server:
            configuration = folder / "pth-tracker.yaml"
            audit = {"name": PROJECT, "project": PROJECT, "tracker": [server], "outputs": ["report.json"]}
            configuration.write_text(yaml.safe_dump({"audits": [audit]}))
            first = night(folder, configuration, folder / "server.log")
            written = marks(uri)
            second = night(folder, configuration, folder / "server.log")
            if marks(uri) != written:
                raise RuntimeError("the second night changed marks though nothing had changed")
    return [first, second]


if __name__ == "__main__":
    nights = main(quick="--quick" in sys.argv)
    print(f"{'night':8} {'seconds':>8} {'CPU s':>8} {'requests':>9} {'memory (MB)':>12} {'exit':>5}")
    for title, (one, requests) in zip(("first", "second"), nights, strict=True):
        print(f"{title:8} {one.seconds:8.1f} {one.cpu:8.1f} {requests:9} {one.peak:12.0f} {one.status:5}")
    ratio = nights[0][1] / max(1, nights[1][1])
    print(f"the second night made 1/{ratio:.0f} of the requests (at most 1/{FEWER_REQUESTS} asked)")
    memory = max(one.peak for one, _ in nights)
    print(f"memory at most {memory:.0f} MB (under {MEMORY_MB} asked)")
    sys.exit(int(ratio < FEWER_REQUESTS or memory >= MEMORY_MB) if "--quick" not in sys.argv else 0)

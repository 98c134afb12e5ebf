"""Runs written into an MLflow store for the tests of its adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

START: Final = 1_760_000_000_000


@dataclass(frozen=True)
class Written:
    """An experiment and the run ids by the names the tests know them by."""

    experiment: str
    number: str
    ids: dict[str, str]


def write_experiment(client: MlflowClient, name: str) -> Written:
    """An experiment with one run of every kind that has ever been read wrongly."""
    number = client.create_experiment(name)
    ids: dict[str, str] = {}

    def run(label: str, offset: int, status: str | None = "FINISHED", tags: dict[str, str] | None = None) -> str:
        made = client.create_run(number, start_time=START + offset, run_name=label, tags=tags or {})
        run_id: str = made.info.run_id
        ids[label] = run_id
        if status:
            client.set_terminated(run_id, status, end_time=START + offset + 60_000)
        return run_id

    plain = run("grpo-seed1", 2000, tags={"mlflow.user": "mei", "stage": "final", "mlflow.source.name": "train.py"})
    client.set_tag(plain, "mlflow.source.git.commit", "0123abc")
    params = {
        "lr": "1e-06",
        "data/seed": "42",
        "algorithm.rollout_is": "None",
        "größe": "λ=0.95",
        "files": "['a', 'b']",
    }
    client.log_batch(plain, params=[Param(key, value) for key, value in params.items()])
    points = [Metric("actor/loss", 0.5 - 0.01 * step, START + step, step) for step in range(10)]
    points += [Metric("val-core/openai/gsm8k/acc/mean@1".replace("@", "_at_"), 0.7, START, step) for step in (0, 5, 9)]
    client.log_batch(plain, metrics=points)

    odd = run("odd", 1000, "FAILED")
    client.log_batch(
        odd,
        metrics=[
            Metric("mixed", math.nan, START + 3, 3),
            Metric("mixed", math.inf, START + 4, 4),
            Metric("mixed", -math.inf, START + 5, 5),
            Metric("mixed", 1.5, START + 9, -2),
            Metric("mixed", 2.5, START + 1, 10),
            Metric("twice", 7.0, START + 50, 1),
            Metric("twice", 8.0, START + 20, 1),
            Metric("twice", 1.0, START + 60, 2),
            Metric("twice", 3.0, START + 60, 2),
            Metric("twice", 2.0, START + 60, 2),
            Metric("back to front", 30.0, START + 1, 30),
            Metric("back to front", 20.0, START + 2, 20),
            Metric("back to front", 10.0, START + 3, 10),
            Metric("größe", 1.0, START, 0),
        ],
    )
    long = run("long", 3000, None)
    client.log_batch(long, metrics=[Metric("loss", math.sin(step), START + step, step) for step in range(1000)])
    client.log_batch(long, metrics=[Metric("loss", math.sin(step), START + step, step) for step in range(1000, 2000)])
    client.log_batch(long, metrics=[Metric("loss", math.sin(step), START + step, step) for step in range(2000, 3000)])
    run("child", 4000, "KILLED", tags={"mlflow.parentRunId": plain})
    run("pth-audit", 5000)
    run("our own", 6000, tags={"pth.role": "audit"})
    gone = run("gone", 7000)
    client.delete_run(gone)
    client.log_batch(ids["child"], tags=[RunTag("pth.verdict", "fail"), RunTag("pth.rules", "idle-clip")])
    return Written(name, number, ids)

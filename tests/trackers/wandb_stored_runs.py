"""Runs made by hand, put into the stand-in for a W&B server as if they had been logged there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pth_tracker.runs import RunState
from synthetic import ONE_STEP, FakeRun, comparison, idle, with_metrics
from wandb_server.server import WandbServer
from wandb_server.store import StoredRun


def put(server: WandbServer, project: str, runs: Iterable[FakeRun]) -> dict[str, StoredRun]:
    """The stored runs by name."""
    stored = {}
    for run in runs:
        rows: dict[int, dict[str, Any]] = {}
        for key, (steps, values) in run.points.items():
            for step, value in zip(steps, values):
                rows.setdefault(step, {"_step": step})[key] = value
        stored[run.name] = server.add_run(
            project,
            run.name,
            run.source.config,
            [rows[step] for step in sorted(rows)],
            state=str(run.source.state or RunState.FINISHED),
            created=run.source.created,
            tags=["mine"],
            run_id=run.source.ref.run_id,
        )
    return stored


def faulty(seeds: Iterable[int] = (41, 42)) -> list[FakeRun]:
    """Two arms, of which ``ppo`` has an Idle Clip."""
    runs = comparison({"ppo": ONE_STEP, "tis": {"algorithm.rollout_correction.rollout_is": "token"}}, tuple(seeds))
    return with_metrics(runs, "ppo-*", idle())

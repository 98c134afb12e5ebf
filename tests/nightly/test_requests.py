"""How many requests a night makes of real servers: the first, and the second, on which nothing changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from conftest import MlflowServer
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from synthetic import FakeRun
from trackers.mlflow_proxy import proxy
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Request, WandbServer

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def configure(project: str, tracker: str) -> None:
    Path("pth-tracker.yaml").write_text(f"audits: [{{name: lab, project: {project}, tracker: '{tracker}'}}]\n")


def log_to_mlflow(uri: str, project: str, runs: list[FakeRun], artifacts: str | None = None) -> None:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    from pth_tracker.values import canonical_config

    client = MlflowClient(uri)
    number = client.create_experiment(project, artifacts)
    for run in runs:
        made = client.create_run(number, run_name=run.name).info.run_id
        params = [Param(key, str(value)) for key, value in canonical_config(run.source.config).items()]
        client.log_batch(made, params=params)
        points = [
            Metric(key.replace("@", "_at_"), float(value), 1_760_000_000_000 + step, int(step))
            for key, (steps, values) in run.points.items()
            for step, value in zip(steps, values)
        ]
        for start in range(0, len(points), 1000):
            client.log_batch(made, metrics=points[start : start + 1000])
        client.set_terminated(made)


def test_a_quiet_night_asks_an_mlflow_server_for_the_listing_alone(
    mlflow_server: MlflowServer, tmp_path: Path, capsys: Capture
) -> None:
    project = f"quiet-{tmp_path.name}"
    log_to_mlflow(mlflow_server.uri, project, faulty())
    with proxy(mlflow_server.uri) as between:
        configure(project, between.uri)
        assert main(["nightly"]) == ExitCode.CHECK_FAILED
        first = Counter(path.rpartition("mlflow/")[2] for path in between.requests)
        between.requests.clear()
        assert main(["nightly"]) == ExitCode.CHECK_FAILED
        second = Counter(path.rpartition("mlflow/")[2] for path in between.requests)
    assert first["runs/log-batch"] >= 4 and first["metrics/get-history-bulk"] > 0
    assert second == {"experiments/search": 1, "experiments/get-by-name": 1, "runs/search": 1}
    assert "4 unchanged and not read again" in capsys.readouterr().err


def mutations(seen: list[Request]) -> int:
    return sum(request.query.lstrip().startswith("mutation") for request in seen)


@pytest.mark.parametrize("count", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_quiet_night_asks_wandb_for_the_listing_alone(
    wandb_environment: WandbServer, wandb_project: str, count: int, capsys: Capture
) -> None:
    """W&B: two requests as the SDK starts, then one for each thousand runs listed, the audit run among them."""
    server = wandb_environment
    stored = put(server, wandb_project, faulty(range(100, 100 + count // 2)))
    assert len(stored) == count
    configure(f"team/{wandb_project}", "wandb")
    with server.counting() as first:
        assert main(["nightly"]) == ExitCode.CHECK_FAILED, capsys.readouterr().err
    before = {name: (list(run.tags), dict(run.summary)) for name, run in stored.items()}
    assert all("pth/verdict" in summary for _, summary in before.values())
    with server.counting() as second:
        assert main(["nightly"]) == ExitCode.CHECK_FAILED
    operations = Counter(request.operation for request in second)
    assert operations.pop("PthTrackerRuns") == count // 1000 + 1
    assert sum(operations.values()) <= 2, "what the SDK asks as it starts, less in a process in which it was started"
    assert mutations(second) == 0
    assert {name: (run.tags, run.summary) for name, run in stored.items()} == before
    if count == 1000:
        assert 50 * len(second) <= len(first)

    changed = stored["ppo-seed100"]
    changed.rows.append({**changed.rows[-1], "_step": changed.rows[-1]["_step"] + 1})
    changed.export()
    with server.counting() as third:
        assert main(["nightly"]) == ExitCode.CHECK_FAILED
    read = [request for request in third if request.operation == "PthTrackerExports"]
    assert [request.variables["run"] for request in read] == [changed.name]
    assert sum(request.kind == "export" for request in third) == 1, "one file"

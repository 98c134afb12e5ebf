"""Fixtures shared by all tests: real servers and stores, started once a session and only where a test asks."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from wandb_server.server import WandbServer

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public runs, from PTH_TRACKER_SHARED_DATA or beside the repository; skips where it is absent."""
    named = os.environ.get("PTH_TRACKER_SHARED_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data in {folder} (PTH_TRACKER_SHARED_DATA)")
    return folder


def free_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class MlflowServer:
    """A real `mlflow server` and the store behind it."""

    uri: str
    store_uri: str
    store: Path
    artifacts: Path


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow store of the installed schema, to be copied: making the schema takes seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow-template") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_sqlite(mlflow_template: Path, tmp_path: Path) -> Path:
    """A fresh MLflow store of the test's own."""
    path = tmp_path / "mlflow.db"
    shutil.copyfile(mlflow_template, path)
    return path


@pytest.fixture(scope="session")
def mlflow_server(mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """One real MLflow server for all tests; each makes experiments of its own."""
    folder = tmp_path_factory.mktemp("mlflow-server")
    store, artifacts = folder / "mlflow.db", folder / "artifacts"
    shutil.copyfile(mlflow_template, store)
    port = free_port()
    server = MlflowServer(f"http://127.0.0.1:{port}", f"sqlite:///{store}", store, artifacts)
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    options += ["--backend-store-uri", server.store_uri, "--artifacts-destination", str(artifacts)]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *options],
            stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(f"{server.uri}/health", process, folder / "log.txt")
            yield server
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 180) -> None:
    """Returns once ``url`` answers; fails with the server's log where it does not."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"the server at {url} did not start:\n{log.read_text(errors='replace')[-3000:]}")


def skip_unless_required(variable: str, why: str) -> NoReturn:
    """Skips the test, saying why; fails it where the environment's ``variable`` forbids the skip, as in `.ci/run`."""
    if os.environ.get(variable):
        pytest.fail(f"{why}, and {variable} forbids to skip")
    pytest.skip(why)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A private PostgreSQL cluster's address, its password included; skips where PostgreSQL is not installed."""
    from postgres import NoPostgres, postgres_cluster

    try:
        with postgres_cluster() as address:
            yield address
    except NoPostgres as error:
        skip_unless_required("PTH_TRACKER_REQUIRE_POSTGRES", str(error))


DemoRuns = dict[str, tuple[dict[str, Any], dict[int, dict[str, float]]]]
"""Run name to its resolved nested configuration and its metrics by step."""


def train_in_memory(*, repaired: bool) -> DemoRuns:
    """The demo's runs, trained and kept in memory."""
    from pth_tracker.demo import MemorySink, run_demo

    sinks: list[MemorySink] = []

    def make_sink() -> MemorySink:
        sinks.append(MemorySink())
        return sinks[-1]

    run_demo(make_sink, repaired=repaired)
    return {sink.name: (sink.config, sink.history) for sink in sinks}


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The path ``name`` that ``make`` writes, made by one of the session's processes and read by all of them."""
    from filelock import FileLock

    shared = factory.getbasetemp()
    path = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / name
    finished = path.with_name(f"{name}.finished")
    with FileLock(f"{path}.lock"):
        if not finished.exists():
            make(path)
            finished.touch()
    return path


def trained_once(factory: pytest.TempPathFactory, *, repaired: bool) -> DemoRuns:
    """The demo's runs, trained once a session."""
    name = "demo-repaired.pickle" if repaired else "demo.pickle"
    path = made_once(factory, name, lambda path: path.write_bytes(pickle.dumps(train_in_memory(repaired=repaired))))
    runs: DemoRuns = pickle.loads(path.read_bytes())
    return runs


@pytest.fixture(scope="session")
def demo_runs(tmp_path_factory: pytest.TempPathFactory) -> DemoRuns:
    """The demo as launched: idle clip (grpo), lost seed (tis), rogue normaliser (ppo-clip), stuck batch (replay)."""
    return trained_once(tmp_path_factory, repaired=False)


@pytest.fixture(scope="session")
def repaired_demo_runs(tmp_path_factory: pytest.TempPathFactory) -> DemoRuns:
    """The demo with its harness mended: arms ppo-clip, tis and replay, three data seeds each."""
    return trained_once(tmp_path_factory, repaired=True)


@pytest.fixture(scope="session")
def wandb_server() -> Iterator[WandbServer]:
    """A stand-in for a W&B server on a loopback port; nothing of the environment points to it."""
    from wandb_server.server import WandbServer

    server = WandbServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def wandb_environment(wandb_server: WandbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WandbServer]:
    """The stand-in as the W&B server of this module's environment, with the SDK freshly started and stopped again."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wandb_server.environment(tmp_path_factory.mktemp("wandb")).items():
            patch.setenv(name, value)
        _stop_wandb()
        yield wandb_server
        _stop_wandb()


@pytest.fixture
def wandb_project(wandb_environment: WandbServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A project name of this test's own; afterwards the stand-in makes no more trouble."""
    yield re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    wandb_environment.trouble = wandb_environment.before = None


def _stop_wandb() -> None:
    if "wandb" in sys.modules:
        import wandb

        wandb.teardown()


@pytest.fixture(scope="session")
def demo_template(demo_runs: DemoRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's runs in an MLflow store in a file, as `pth-tracker demo` leaves it before its audit."""
    from pth_tracker.demo import MlflowSink, embedded_store, experiment_name

    def write(folder: Path) -> None:
        folder.mkdir()
        uri = embedded_store(folder)
        for name, (config, history) in demo_runs.items():
            sink = MlflowSink(uri, experiment_name(False))
            sink.start(name, config)
            for step, metrics in history.items():
                sink.log(step, metrics)
            sink.finish()

    return made_once(tmp_path_factory, "demo-store", write) / "mlflow.db"


@pytest.fixture
def demo_store(demo_template: Path, tmp_path: Path) -> Path:
    """A copy of the demo's MLflow store that is the test's own."""
    path = tmp_path / "mlflow.db"
    shutil.copyfile(demo_template, path)
    return path

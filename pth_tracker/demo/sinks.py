"""Where a demo run is logged: memory, an MLflow store, W&B, or a console log, as verl 0.7.1 logs to each.

The SDKs are imported when a sink is started, never with this module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pprint
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal, Protocol

from pth_tracker.demo.launch import experiment_name
from pth_tracker.errors import UsageError

if TYPE_CHECKING:
    import wandb
    from mlflow import MlflowClient
    from mlflow.entities import Metric


class Sink(Protocol):
    """The log of one run: started once, then values by step, then finished."""

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Open the run under its name, with its resolved configuration."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the values of one step."""

    def finish(self, *, failed: bool = False) -> None:
        """Close the run; nothing is logged after it."""


class MemorySink:
    """A sink that keeps everything it is given."""

    def __init__(self) -> None:
        self.name = ""
        self.config: dict[str, Any] = {}
        self.history: dict[int, dict[str, float]] = {}
        self.finished = False

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Keep name and configuration."""
        self.name, self.config = name, dict(config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the values of one step."""
        self.history.setdefault(step, {}).update(metrics)

    def finish(self, *, failed: bool = False) -> None:
        """Note that the run has ended."""
        self.finished = not failed


_MLFLOW_BATCH: Final = 1000
"""Metrics in one ``log_batch`` request; the server's own limit."""
_MLFLOW_PARAMS: Final = 100
"""Parameters in one ``log_batch`` request; the server's own limit."""


def mlflow_params(config: Mapping[str, Any]) -> dict[str, str]:
    """A nested configuration as verl 0.7.1 logs it to MLflow: keys joined by "/", every value as text.

    A list becomes ``key/list_len`` with ``key/0``, ``key/1`` and so on.
    """
    return {key: str(value) for key, value in _flat(config)}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        value = {"list_len": len(value)} | {str(index): item for index, item in enumerate(value)}
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _flat(item, f"{path}/{key}" if path else str(key))


def mlflow_metric_key(key: str) -> str:
    """A metric's name as verl 0.7.1 gives it to MLflow: "@" to ``_at_``, "//" to "/", what is not allowed to "_"."""
    return re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", key.replace("@", "_at_")))


class MlflowSink:
    """One MLflow run, its values sent in large batches.

    Args:
        tracking_uri: The store or server.
        experiment: The experiment's name; made where there is none.
        artifacts: URI under which a new experiment keeps its artifacts; the store's own default where None.
    """

    def __init__(self, tracking_uri: str, experiment: str, artifacts: str | None = None) -> None:
        self._uri = tracking_uri
        self._experiment = experiment
        self._artifacts = artifacts
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._pending: list[Metric] = []

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Create the run and log its parameters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = self._client = MlflowClient(tracking_uri=self._uri)
        known = client.get_experiment_by_name(self._experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(self._experiment, self._artifacts)
        self._run_id = client.create_run(experiment_id, run_name=name).info.run_id
        params = [Param(key, value) for key, value in mlflow_params(config).items()]
        for start in range(0, len(params), _MLFLOW_PARAMS):
            client.log_batch(self._run_id, params=params[start : start + _MLFLOW_PARAMS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the values of one step, and send what has gathered once it fills a batch."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._pending += [Metric(mlflow_metric_key(key), value, now, step) for key, value in metrics.items()]
        while len(self._pending) >= _MLFLOW_BATCH:
            self._send()

    def finish(self, *, failed: bool = False) -> None:
        """Send what is left and set the run's status."""
        if self._client is None:
            return
        while self._pending:
            self._send()
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _send(self) -> None:
        batch, self._pending = self._pending[:_MLFLOW_BATCH], self._pending[_MLFLOW_BATCH:]
        if self._client is not None:
            self._client.log_batch(self._run_id, metrics=batch)


class WandbSink:
    """One W&B run; an offline run's folder is complete at the latest when the process ends.

    Args:
        project: The project's name.
        mode: ``online`` needs a server and a key, ``offline`` writes a run folder to be synced later.
        directory: Where run folders go.
        base_url: The server; the environment's where None.
        entity: The user or team; the key's default where None.
    """

    def __init__(
        self,
        project: str,
        mode: Literal["online", "offline"] = "online",
        directory: Path | str | None = None,
        base_url: str | None = None,
        entity: str | None = None,
    ) -> None:
        self._project = project
        self._mode = mode
        self._directory = directory
        self._base_url = base_url
        self._entity = entity
        self._run: wandb.Run | None = None

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Open the run with its nested configuration."""
        import wandb

        options: dict[str, Any] = {} if self._base_url is None else {"base_url": self._base_url}
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            name=name,
            config=dict(config),
            mode=self._mode,
            dir=None if self._directory is None else str(self._directory),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, **options),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the values of one step."""
        if self._run is not None:
            self._run.log(dict(metrics), step=step)

    def finish(self, *, failed: bool = False) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)


class ConsoleSink:
    """A log file as a verl 0.7.1 job leaves it: the resolved configuration, then one line a step, all prefixed.

    Args:
        path: The file; its folder is made, and what it held is replaced.
        pid: The process id in the prefix; this process's where None.
    """

    def __init__(self, path: Path | str, pid: int | None = None) -> None:
        self._path = Path(path)
        self._prefix = f"(TaskRunner pid={os.getpid() if pid is None else pid}) "
        self._file: IO[str] | None = None

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        """Write the configuration."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8", newline="\n")
        self._write(pprint.pformat(dict(config)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the values of one step, at full precision."""
        self._write(" - ".join([f"step:{step}", *(f"{key}:{pprint.pformat(v)}" for key, v in metrics.items())]))

    def finish(self, *, failed: bool = False) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, text: str) -> None:
        if self._file is not None:
            self._file.writelines(f"{self._prefix}{line}\n" for line in text.splitlines())


def embedded_store(folder: Path | str, *, repaired: bool = False) -> str:
    """The URI of the MLflow store ``folder/mlflow.db``, in which the demo's own experiment has been made anew, empty.

    The experiment of an earlier call is deleted with its runs; every other experiment stays as it is. Artifacts go
    beside the file.

    Args:
        folder: Where the store is; made where there is none.
        repaired: Which of the demo's two experiments to make anew.

    Raises:
        UsageError: The folder cannot be made, written or named in a URI.
    """
    place = Path(folder).expanduser().resolve()
    if "?" in str(place):
        raise UsageError(f"{place}: a store's folder cannot have '?' in its name; choose another folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        # SQLite reports an unwritable place late and without its name.
        (place / "mlflow.db").open("ab").close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{place}: cannot make the demo's store here ({reason}); choose another folder") from error
    from mlflow import MlflowClient

    uri = f"sqlite:///{place / 'mlflow.db'}"
    name = experiment_name(repaired)
    with _without_migration_log():
        client = MlflowClient(tracking_uri=uri)
        _delete_experiment(client, name)
        client.create_experiment(name, (place / "artifacts" / name).as_uri())
    return uri


@contextlib.contextmanager
def _without_migration_log() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("alembic", "mlflow.store.db.utils")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _delete_experiment(client: MlflowClient, name: str) -> None:
    """Delete an experiment for good where the store can, else as MLflow deletes, its name freed."""
    from mlflow.entities import ViewType

    old = client.get_experiment_by_name(name)
    if old is None:
        return
    if old.lifecycle_stage == "deleted":
        client.restore_experiment(old.experiment_id)
    client.rename_experiment(old.experiment_id, f"{name} (replaced, {old.experiment_id})")
    client.delete_experiment(old.experiment_id)
    # `mlflow gc` calls these two; itself, it would also purge what the user has deleted in other experiments.
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    drop_run = getattr(store, "_hard_delete_run", None)
    drop_experiment = getattr(store, "_hard_delete_experiment", None)
    if drop_run is None or drop_experiment is None:
        return
    while runs := client.search_runs([old.experiment_id], run_view_type=ViewType.ALL, max_results=1000):
        for run in runs:
            drop_run(run.info.run_id)
    drop_experiment(old.experiment_id)

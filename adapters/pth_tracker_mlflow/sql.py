"""An MLflow database read with plain SQL: read-only, in batches, without MLflow's own code."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from pth_tracker.errors import AdapterUnavailable, TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.tracker import Address, EditResult, MarkEdit, Marks, Publication, Query
from pth_tracker_mlflow import sdk, write
from pth_tracker_mlflow.address import Store, connect_read_only
from pth_tracker_mlflow.common import (
    MARK_TAGS,
    Points,
    StoredRun,
    history,
    in_order,
    marks_of,
    no_such_experiment,
    since_ms,
    source_run,
)

NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "experiments": ("experiment_id", "name", "lifecycle_stage"),
    "runs": ("run_uuid", "experiment_id", "name", "status", "start_time", "end_time", "lifecycle_stage", "user_id"),
    "metrics": ("run_uuid", "key", "step", "timestamp", "value", "is_nan"),
    "params": ("run_uuid", "key", "value"),
    "tags": ("run_uuid", "key", "value"),
}
_IDS_PER_QUERY: Final = 500
_KEYS_PER_QUERY: Final = 500
_ROWS_PER_FETCH: Final = 10_000
_DRIVERS: Final = {"postgresql": "pth-tracker[postgres]", "mysql": "pymysql", "mssql": "pyodbc"}


def _table(name: str) -> Any:
    columns = NEEDED["metrics"] if name == "latest_metrics" else (*NEEDED[name], "workspace")
    return sa.table(name, *(sa.column(column) for column in columns))


_EXPERIMENTS, _RUNS, _METRICS, _PARAMS, _TAGS = (_table(name) for name in NEEDED)
_LATEST = _table("latest_metrics")


def _logged(table: Any) -> Any:
    return sa.case((table.c.is_nan == sa.true(), sa.null()), else_=table.c.value)


class SqlTracker:
    """A `pth_tracker.tracker.Tracker` on an MLflow database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = self._open()
        self._columns = self._check_schema()

    @property
    def address(self) -> Address:
        """The database's address without its password."""
        return self._store.address

    @property
    def has_tags(self) -> bool:
        """MLflow has no plain tags."""
        return False

    @cached_property
    def read_only(self) -> str:
        """Why the store cannot be written through the installed MLflow; ``""`` where it can."""
        heads, known = sdk.schema_revisions()
        if not heads:
            return f"{self.address} is only read: MLflow, which writes the marks, is not installed ({sdk.REMEDY})"
        path = self._store.path
        if path and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            return f"{self.address} is only read: the file or its folder is not writable"
        with self._reading() as connection:
            found = ""
            if "alembic_version" in self._columns:
                version = sa.table("alembic_version", sa.column("version_num"))
                found = str(connection.execute(sa.select(version.c.version_num)).scalar() or "")
        if found in heads:
            return ""
        if found and found not in known:
            return (
                f"{self.address} is only read: a newer MLflow wrote its schema ({found}); upgrade MLflow here to write"
            )
        schema = f"schema {found}" if found else "schema"
        return (
            f"{self.address} is only read: its {schema} is older than the installed MLflow's, which would migrate it; "
            f"to have marks written, back it up and run `mlflow db upgrade {self._store.public}`"
        )

    def projects(self) -> Sequence[str]:
        """The names of the experiments that are not deleted, sorted."""
        return sorted({name for _, name, stage in self._experiments() if stage == "active"})

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """The runs of an experiment; see `pth_tracker.tracker.Tracker.runs`."""
        experiment = self._experiment(query.project)
        runs = self._list(experiment, query)
        for run in runs:
            if not run.is_audit:
                yield source_run(run, query.project)

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """The exact histories, one query a run; see `pth_tracker.tracker.Tracker.histories`.

        Several runs in one query were measured to be slower: each row would carry its run's id.
        """
        for part in _chunks(requests, _IDS_PER_QUERY):
            with self._reading() as connection:
                chosen = sa.select(_RUNS.c.run_uuid).where(_RUNS.c.run_uuid.in_([ref.run_id for ref, _ in part]))
                existing = set(connection.scalars(chosen))
            for ref, keys in part:
                if ref.run_id not in existing:
                    yield ref, RunError(ref, ref.run_id, f"{self.address} no longer holds run {ref.run_id}")
                    continue
                try:
                    answer: History | RunError = history(self._points(ref.run_id, keys))
                except TrackerError as error:
                    self._alive()
                    answer = RunError(ref, ref.run_id, str(error))
                yield ref, answer

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """Our tags on these runs as they are now."""
        tags: dict[str, dict[str, str]] = defaultdict(dict)
        with self._reading() as connection:
            for ids in _chunks([ref.run_id for ref in refs], _IDS_PER_QUERY):
                chosen = _pairs(_TAGS).where(_TAGS.c.run_uuid.in_(ids), _TAGS.c.key.in_(list(MARK_TAGS)))
                for run_id, key, value in connection.execute(chosen):
                    tags[run_id][key] = value or ""
        return {ref: marks_of(tags.get(ref.run_id, {})) for ref in refs}

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Carries the edits out through MLflow's client, one after the other."""
        if self.read_only:
            raise TrackerError(self.read_only)
        client = sdk.client(self._store.uri)
        return write.apply(partial(write.change_with_client, client), self._store, edits, threads=1)

    def publish(self, publication: Publication) -> str:
        """Brings the experiment's audit run up to date through MLflow's client."""
        if self.read_only:
            raise TrackerError(self.read_only)
        experiment = self._experiment(publication.project)
        run_id = write.publish(sdk.client(self._store.uri), self._store, publication, str(experiment))
        return f"run pth-audit ({run_id}) of experiment {publication.project!r} in {self._store.public}"

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def _open(self) -> sa.Engine:
        if self._store.path:
            path = self._store.path
            return sa.create_engine("sqlite://", creator=lambda: connect_read_only(path))
        url = sa.make_url(self._store.uri)
        dialect = url.get_backend_name()
        try:
            connect_args = {"connect_timeout": 15} if dialect in ("postgresql", "mysql") else {}
            engine = sa.create_engine(url, connect_args=connect_args, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            wanted = _DRIVERS.get(dialect, str(error.name))
            raise AdapterUnavailable(
                f"the driver for {self.address} is not installed ({error.name}): pip install '{wanted}'"
            ) from error
        except (SQLAlchemyError, TypeError, ValueError) as error:
            raise UsageError(f"{self.address} cannot be used: {self._store.scrub(error)}") from None
        return engine.execution_options(postgresql_readonly=True) if dialect == "postgresql" else engine

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection; what the database refuses is one `TrackerError` sentence without the password."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            reason = self._store.scrub(getattr(error, "orig", None) or error)
            raise TrackerError(f"{self.address} cannot be read: {reason}") from None

    def _check_schema(self) -> dict[str, set[str]]:
        with self._reading() as connection:
            inspector = sa.inspect(connection)
            tables = set(inspector.get_table_names())
            if missing := [table for table in NEEDED if table not in tables]:
                raise TrackerError(f"{self.address} is no MLflow store: it has no table {missing[0]!r}")
            columns = {
                table: {column["name"] for column in inspector.get_columns(table)}
                for table in tables & {*NEEDED, "latest_metrics"}
            }
        for table, needed in NEEDED.items():
            if absent := [column for column in needed if column not in columns[table]]:
                raise TrackerError(
                    f"{self.address} cannot be read: its table {table!r} has no column {absent[0]!r}; "
                    "MLflow 1.0 or later makes it"
                )
        return columns | ({"alembic_version": set()} if "alembic_version" in tables else {})

    def _experiments(self) -> list[tuple[Any, str, str]]:
        chosen = sa.select(_EXPERIMENTS.c.experiment_id, _EXPERIMENTS.c.name, _EXPERIMENTS.c.lifecycle_stage)
        if "workspace" in self._columns["experiments"]:
            workspace = os.environ.get("MLFLOW_WORKSPACE") or "default"
            chosen = chosen.where(_EXPERIMENTS.c.workspace == workspace)
        with self._reading() as connection:
            return [(number, name, stage) for number, name, stage in connection.execute(chosen)]

    def _experiment(self, name: str) -> Any:
        found = self._experiments()
        named = [(number, stage) for number, own, stage in found if own == name]
        for number, stage in named:
            if stage == "active":
                return number
        existing = [own for _, own, stage in found if stage == "active"]
        raise no_such_experiment(name, existing, str(self.address), deleted=bool(named))

    def _list(self, experiment: Any, query: Query) -> list[StoredRun]:
        chosen = sa.select(
            _RUNS.c.run_uuid, _RUNS.c.name, _RUNS.c.status, _RUNS.c.start_time, _RUNS.c.end_time, _RUNS.c.user_id
        ).where(_RUNS.c.experiment_id == experiment, _RUNS.c.lifecycle_stage == "active")
        if query.since:
            chosen = chosen.where(_RUNS.c.start_time >= since_ms(query.since))
        wanted = self._where(str(experiment), query.where) if query.where else None
        runs: list[StoredRun] = []
        with self._reading() as connection:
            rows = [row for row in connection.execute(chosen) if wanted is None or row[0] in wanted]
            for part in _chunks(rows, _IDS_PER_QUERY):
                ids = [row[0] for row in part]
                params = _grouped(connection.execute(_pairs(_PARAMS).where(_PARAMS.c.run_uuid.in_(ids))))
                tags = _grouped(connection.execute(_pairs(_TAGS).where(_TAGS.c.run_uuid.in_(ids))))
                latest = self._latest(connection, ids)
                for run_id, name, status, start, end, user in part:
                    own = (params.get(run_id, {}), tags.get(run_id, {}), latest.get(run_id, {}))
                    runs.append(StoredRun(run_id, str(experiment), name or "", status, start, end, user or "", *own))
        return in_order(runs)

    def _latest(self, connection: sa.Connection, ids: Sequence[str]) -> dict[str, dict[str, tuple[int, int, float]]]:
        """Each run's last point of each metric; from the points themselves where the store keeps no such table."""
        if set(NEEDED["metrics"]) <= self._columns.get("latest_metrics", set()):
            table = _LATEST
            chosen = sa.select(table.c.run_uuid, table.c.key, table.c.step, table.c.timestamp, _logged(table))
            chosen = chosen.where(table.c.run_uuid.in_(ids))
        else:
            table = _METRICS
            order = (table.c.step.desc(), table.c.timestamp.desc(), table.c.value.desc())
            place = sa.func.row_number().over(partition_by=(table.c.run_uuid, table.c.key), order_by=order)
            ranked = sa.select(
                table.c.run_uuid, table.c.key, table.c.step, table.c.timestamp, _logged(table).label("logged"),
                place.label("place"),
            ).where(table.c.run_uuid.in_(ids)).subquery()  # fmt: skip
            chosen = sa.select(*[column for column in ranked.c if column.name != "place"]).where(ranked.c.place == 1)
        found: dict[str, dict[str, tuple[int, int, float]]] = defaultdict(dict)
        for run_id, key, step, at, value in connection.execute(chosen):
            found[run_id][key] = (step, at or 0, float("nan") if value is None else float(value))
        return found

    def _where(self, experiment: str, where: str) -> set[str]:
        """The ids of the runs that MLflow's own filter selects: only its own code knows the grammar."""
        if self.read_only:
            raise UsageError(f"--where needs MLflow's own code on a database it can open, and {self.read_only}")
        return write.search_ids(sdk.client(self._store.uri), self._store, experiment, where)

    def _alive(self) -> None:
        """Raises TrackerError where not one run but the whole database has become unreadable."""
        with self._reading() as connection:
            connection.execute(sa.select(_RUNS.c.run_uuid).limit(1)).all()

    def _points(self, run_id: str, keys: Collection[str] | None) -> dict[str, Points]:
        """All points of one run by metric."""
        table = _METRICS
        chosen = sa.select(table.c.key, table.c.step, table.c.timestamp, _logged(table))
        chosen = chosen.where(table.c.run_uuid == run_id)
        if keys is not None and len(keys) <= _KEYS_PER_QUERY:
            chosen = chosen.where(table.c.key.in_(sorted(keys)))
        number: defaultdict[str, int] = defaultdict()
        number.default_factory = number.__len__
        parts: list[tuple[Any, ...]] = []
        with self._reading() as connection:
            # The driver's own cursor: SQLAlchemy's rows would cost a third of the whole read.
            cursor: Any = connection.execute(chosen).cursor
            while rows := cursor.fetchmany(_ROWS_PER_FETCH):
                names, steps, times, values = zip(*rows)
                parts.append(
                    (
                        np.fromiter(map(number.__getitem__, names), np.int64, len(rows)),
                        np.array(steps, dtype=np.int64),
                        np.array(times, dtype=np.int64),
                        np.array(values, dtype=np.float64),
                    )
                )
        if not parts:
            return {}
        group, step, at, value = (np.concatenate(column) for column in zip(*parts))
        order = np.argsort(group, kind="stable")
        edges = np.searchsorted(group[order], np.arange(len(number) + 1))
        pieces = {name: order[start:end] for name, start, end in zip(number, edges[:-1], edges[1:])}
        return {
            name: Points(step[own], at[own], value[own]) for name, own in pieces.items() if keys is None or name in keys
        }


def _pairs(table: Any) -> Any:
    return sa.select(table.c.run_uuid, table.c.key, table.c.value)


def _grouped(rows: Iterable[Any]) -> dict[str, dict[str, str]]:
    grouped: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, key, value in rows:
        grouped[run_id][key] = value or ""
    return grouped


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

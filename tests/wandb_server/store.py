"""What the stand-in for a W&B server keeps: runs with their history, files and artifacts, in memory."""

from __future__ import annotations

import base64
import io
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]


def opaque_id(*parts: str) -> str:
    return base64.urlsafe_b64encode(":".join(parts).encode()).decode()


def flatten(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A logged row's leaves by dotted key; media objects stay whole."""
    for key, value in row.items():
        if isinstance(value, Mapping) and "_type" not in value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass
class StoredRun:
    entity: str
    project: str
    name: str
    display_name: str
    created: datetime
    heartbeat: datetime
    state: str = "running"
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    group: str | None = None
    job_type: str | None = None
    user: str = "ada"
    host: str | None = None
    program: str | None = None
    args: list[str] | None = None
    commit: str | None = None
    notes: str | None = None
    description: str | None = None
    rows: list[Row] = field(default_factory=list)
    live_from: int = 0
    """Rows from this index on are live: not in any export."""
    exports: list[bytes] = field(default_factory=list)
    hide_live_steps: bool = False
    """Names neither exports nor live steps, as the server does for some runs whose rows it has."""
    history_cap: int | None = None
    """Most rows in one page of history, whatever is asked for; the page is then a sample."""
    raw_summary: str = ""
    """What the server gives as the summary instead of `summary`."""
    raw_lines: list[str] = field(default_factory=list)
    """What the server gives as rows instead of the live ones."""
    events: int = 0
    log_lines: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    _keys: tuple[tuple[int, str], dict[str, Any]] | None = None

    @property
    def storage_id(self) -> str:
        return opaque_id("Run", "v1", self.name, self.project, self.entity)

    @property
    def live_rows(self) -> list[Row]:
        return self.rows[self.live_from :]

    def last_step(self) -> int:
        return max((int(row["_step"]) for row in self.rows), default=-1)

    def history_keys(self) -> dict[str, Any] | None:
        """What the server tells of the logged keys; kept until a row is added or the last one changes."""
        if not self.rows:
            return None
        version = (len(self.rows), repr(self.rows[-1]))
        if self._keys is None or self._keys[0] != version:
            self._keys = (version, self._count_keys())
        return self._keys[1]

    def _count_keys(self) -> dict[str, Any]:
        counts: dict[str, dict[str, int]] = {}
        last: dict[str, Any] = {}
        for row in self.rows:
            for key, value in flatten(row):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                kind = "number" if number else "string" if isinstance(value, str) else "map"
                tally = counts.setdefault(key, {})
                tally[kind] = tally.get(kind, 0) + 1
                last[key] = value
        keys = {
            key: {
                "typeCounts": [{"type": kind, "count": count} for kind, count in tally.items()],
                "monotonic": key == "_step",
                "previousValue": as_stored(last[key]),
            }
            for key, tally in counts.items()
        }
        return {"keys": keys, "sets": [], "lastStep": self.last_step()}

    def export(self, files: int = 1, live_rows: int = 0) -> None:
        """Writes all but the last `live_rows` rows to `files` parquet files."""
        self.live_from = len(self.rows) - live_rows
        ready = self.rows[: self.live_from]
        size = max(1, math.ceil(len(ready) / files))
        self.exports = [to_parquet(ready[start : start + size]) for start in range(0, len(ready), size)]


def as_stored(value: Any) -> Any:
    """Non-finite numbers as the text under which a JSON store keeps them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: as_stored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_stored(item) for item in value]
    return value


def to_parquet(rows: Sequence[Row]) -> bytes:
    """One export: a column for each flattened key, absent values null."""
    flat = [dict(flatten(row)) for row in rows]
    keys = dict.fromkeys(key for row in flat for key in row)
    columns = {}
    for key in keys:
        cells = [row.get(key) for row in flat]
        if any(isinstance(cell, float) for cell in cells) and not any(isinstance(cell, str) for cell in cells):
            columns[key] = pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
        else:
            columns[key] = pa.array(cells)
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


@dataclass
class StoredArtifact:
    run: StoredRun
    name: str
    kind: str
    version: int
    digest: str
    metadata: str | None
    description: str | None
    aliases: list[str]
    client_id: str
    state: str = "PENDING"
    manifest: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return opaque_id("Artifact", self.run.entity, self.run.project, self.name, str(self.version))


class Store:
    """All projects of the server; `lock` guards every access."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.projects: dict[tuple[str, str], dict[str, StoredRun]] = {}
        self.artifacts: list[StoredArtifact] = []
        self._clock = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """A moment that is later at each call."""
        with self.lock:
            self._clock += timedelta(seconds=1)
            return self._clock

    def find(self, entity: str, project: str, name: str) -> StoredRun | None:
        return self.projects.get((entity, project), {}).get(name)

    def by_id(self, storage_id: str) -> StoredRun | None:
        every = (run for runs in self.projects.values() for run in runs.values())
        return next((run for run in every if run.storage_id == storage_id), None)

    def create(self, entity: str, project: str, name: str) -> StoredRun:
        moment = self.now()
        run = StoredRun(entity, project, name, name, created=moment, heartbeat=moment)
        self.projects.setdefault((entity, project), {})[name] = run
        return run

    def artifact(self, artifact_id: str) -> StoredArtifact | None:
        return next((artifact for artifact in self.artifacts if artifact.id == artifact_id), None)


def wrap_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as W&B stores it."""
    wrapped: dict[str, Any] = {key: {"value": value, "desc": None} for key, value in config.items()}
    return {**wrapped, "_wandb": {"value": {"cli_version": "0.31.0", "t": {"1": [1]}}, "desc": None}}


def dump(value: Any) -> str:
    return json.dumps(as_stored(value))

"""The records of a ``.wandb`` file decoded: what a run is (configuration, attributes, end) and its history."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pth_tracker_wandb.history_rows import HistoryRows
from pth_tracker_wandb.wandb_file import Damage, read_records
from pth_tracker_wandb.wandb_messages import (
    CONFIG,
    ENVIRONMENT,
    EXIT,
    HISTORY,
    PREEMPTING,
    RUN,
    STATS,
    message_class,
    record_kind,
)

_READ: Final = frozenset({HISTORY, CONFIG, RUN, EXIT, ENVIRONMENT})
_HEAD_RECORDS: Final = 100
"""The records among which a run introduces itself; W&B writes them first."""


@dataclass(frozen=True)
class RunLog:
    """One ``.wandb`` file as read: the run's attributes and, where asked for, its history's rows."""

    run_id: str = ""
    """``""``: the log has no run record."""
    entity: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()
    host: str = ""
    user: str = ""
    program: str = ""
    arguments: tuple[str, ...] | None = None
    commit: str = ""
    start_time: datetime | None = None
    """As W&B shows it; for a resumed run it may be the first segment's."""
    process_started: datetime | None = None
    """When the process that wrote this log started."""
    last_time: datetime | None = None
    """The latest time that a row or a system measurement carries."""
    config: Mapping[str, object] = field(default_factory=dict)
    exit_code: int | None = None
    """None: the log has no exit record."""
    preempting: bool = False
    rows: HistoryRows = field(default_factory=HistoryRows)
    damage: Damage = field(default_factory=Damage)


def read_log(path: Path, wanted: Collection[str] | None = ()) -> RunLog:
    """The log at ``path``, with the history of the ``wanted`` metrics (None: all; names and last step are always told).

    Raises:
        TrackerError: it cannot be opened or is no W&B log.
    """
    return _Reader(HistoryRows(wanted)).read(path)


def read_head(path: Path) -> RunLog:
    """The attributes with which the log at ``path`` begins, without the history.

    Raises:
        TrackerError: it cannot be opened or is no W&B log.
    """
    return _Reader(HistoryRows(())).read(path, head_only=True)


class _Reader:
    """The state of reading one log: attributes as later records replace earlier ones."""

    def __init__(self, rows: HistoryRows) -> None:
        self.rows = rows
        self.config: dict[str, object] = {}
        self.facts: dict[str, Any] = {}
        self.last_time: datetime | None = None

    def read(self, path: Path, head_only: bool = False) -> RunLog:
        from google.protobuf.message import DecodeError

        damage = Damage()
        decode = message_class("Record").FromString
        last_stats = b""
        for index, data in enumerate(read_records(path, damage)):
            kind = record_kind(data)
            if head_only and (kind == HISTORY or index >= _HEAD_RECORDS or self._is_introduced()):
                break
            if kind == STATS:
                last_stats = data
            elif kind == PREEMPTING:
                self.facts["preempting"] = True
            elif kind in _READ:
                try:
                    self._take(kind, decode(data))
                except DecodeError:
                    damage.unreadable += 1
            elif not kind:
                damage.unreadable += 1
        if last_stats:
            try:
                self._seen(_moment(decode(last_stats).stats.timestamp))
            except DecodeError:
                damage.unreadable += 1
        self._seen(_from_epoch(self.rows.last_timestamp))
        damage.stepless = self.rows.stepless
        damage.unreadable += self.rows.undecodable
        return RunLog(config=self.config, rows=self.rows, damage=damage, last_time=self.last_time, **self.facts)

    def _is_introduced(self) -> bool:
        return "run_id" in self.facts and "process_started" in self.facts

    def _take(self, kind: int, record: Any) -> None:
        if kind == HISTORY:
            step = record.history.step.num if record.history.HasField("step") else None
            self.rows.add_items(record.history.item, step)
        elif kind == RUN:
            self._take_run(record.run)
        elif kind == EXIT and record.HasField("exit"):
            self.facts["exit_code"] = record.exit.exit_code
        elif kind == CONFIG:
            self._take_config(record.config)
        elif kind == ENVIRONMENT:
            self._take_environment(record.environment)

    def _take_run(self, run: Any) -> None:
        names = {"name": "display_name", "group": "run_group"}
        for own in ("run_id", "entity", "project", "name", "group", "job_type", "host"):
            self._set(own, getattr(run, names.get(own, own)))
        self._set("tags", tuple(run.tags))
        self._set("commit", run.git.commit)
        self._set("start_time", _moment(run.start_time))
        self._take_config(run.config)

    def _take_environment(self, environment: Any) -> None:
        self._set("process_started", _moment(environment.started_at))
        self._set("program", environment.program)
        self._set("user", environment.username)
        self._set("host", environment.host)
        self._set("commit", environment.git.commit)
        if environment.args or environment.program:
            self.facts["arguments"] = tuple(environment.args)

    def _set(self, name: str, value: object) -> None:
        if value:
            self.facts[name] = value

    def _seen(self, moment: datetime | None) -> None:
        if moment is not None and (self.last_time is None or moment > self.last_time):
            self.last_time = moment

    def _take_config(self, config: Any) -> None:
        for item in config.update:
            *path, leaf = item.nested_key or [item.key]
            place = self.config
            for part in path:
                inner = place.get(part)
                if not isinstance(inner, dict):
                    inner = place[part] = {}
                place = inner
            place[leaf] = _json_value(item.value_json)
        for item in config.remove:
            *path, leaf = item.nested_key or [item.key]
            place = self.config
            for part in path:
                inner = place.get(part)
                place = inner if isinstance(inner, dict) else {}
            place.pop(leaf, None)
        self.config.pop("_wandb", None)


def _json_value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _moment(timestamp: Any) -> datetime | None:
    return _from_epoch(timestamp.seconds + timestamp.nanos / 1e9) if timestamp.seconds > 0 else None


def _from_epoch(seconds: float) -> datetime | None:
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return None

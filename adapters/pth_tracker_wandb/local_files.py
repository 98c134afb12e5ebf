"""The text files beside or instead of a ``.wandb`` file: configuration, metadata, summary and the oldest history.

``config.yaml``, ``wandb-metadata.json`` and ``wandb-summary.json`` lie in ``files/``, before release 0.10 in the run
folder itself, together with ``wandb-history.jsonl``. Each is optional; one that cannot be read becomes a note.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os.path import isfile
from pathlib import Path
from typing import Final

from pth_tracker.errors import TrackerError
from pth_tracker.plain_yaml import load_yaml
from pth_tracker.values import unwrap_wandb
from pth_tracker_wandb.history_rows import HistoryRows
from pth_tracker_wandb.wandb_file import counted

MAX_YAML: Final = 2 * 1024 * 1024
MAX_JSON: Final = 64 * 1024 * 1024
"""Larger files (bytes) are no configuration or metadata of W&B's and are not parsed."""
MAX_ROW: Final = 16 * 1024 * 1024
CONFIG, METADATA, SUMMARY, HISTORY = "config.yaml", "wandb-metadata.json", "wandb-summary.json", "wandb-history.jsonl"


@dataclass(frozen=True)
class Metadata:
    """What ``wandb-metadata.json`` tells of a run; empty where there is none."""

    arguments: tuple[str, ...] | None = None
    program: str = ""
    host: str = ""
    user: str = ""
    commit: str = ""
    project: str = ""
    state: str = ""
    started: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextConfig:
    """A run's configuration from ``config.yaml``, without W&B's wrappers; None: there is none to read."""

    config: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextHistory:
    """The rows of a ``wandb-history.jsonl`` and what could not be read of it."""

    rows: HistoryRows = field(default_factory=HistoryRows)
    notes: tuple[str, ...] = ()


def text_file(folder: Path, name: str) -> Path | None:
    """The run's file of this name, in ``files/`` or, as in the oldest layout, in the folder itself."""
    for path in (folder / "files" / name, folder / name):
        if isfile(path):
            return path
    return None


def read_metadata(folder: Path) -> Metadata:
    """What the run's ``wandb-metadata.json`` tells; never raises for what the file holds."""
    path = text_file(folder, METADATA)
    if path is None:
        return Metadata()
    try:
        raw = _read_json(path)
    except TrackerError as error:
        return Metadata(notes=(str(error),))
    arguments = raw.get("args")
    known: tuple[str, ...] | None = None
    if isinstance(arguments, list):
        known = tuple(str(argument) for argument in arguments)
    elif raw.get("program"):
        # wandb-core leaves an empty list out.
        known = ()
    git = raw.get("git")
    commit = git.get("commit") if isinstance(git, dict) else None
    return Metadata(
        arguments=known,
        program=_text(raw.get("program")),
        host=_text(raw.get("host")),
        user=_text(raw.get("username")),
        commit=_text(commit),
        project=_text(raw.get("project")),
        state=_text(raw.get("state")),
        started=_moment(raw.get("startedAt")),
    )


def read_config(folder: Path) -> TextConfig:
    """The configuration in the run's ``config.yaml``; never raises for what the file holds."""
    path = text_file(folder, CONFIG)
    if path is None:
        return TextConfig()
    try:
        text = _read_text(path, MAX_YAML)
        raw = load_yaml(text)
        if raw is None:
            return TextConfig({})
        if not isinstance(raw, dict):
            raise TrackerError(f"{path} is no mapping of settings: it was left out")
    except TrackerError as error:
        return TextConfig(notes=(str(error),))
    except ValueError as error:
        return TextConfig(notes=(f"{path} is no valid YAML ({str(error)[:200]}): the configuration was left out",))
    return TextConfig(unwrap_wandb({str(key): value for key, value in raw.items()}))


def read_summary_keys(folder: Path) -> frozenset[str]:
    """The metric names in the run's ``wandb-summary.json``; empty where there is none to read."""
    path = text_file(folder, SUMMARY)
    if path is None:
        return frozenset()
    rows = HistoryRows(())
    try:
        rows.add_mapping(_read_json(path))
    except TrackerError:
        return frozenset()
    return rows.metric_keys


def read_text_history(path: Path, wanted: Collection[str] | None = ()) -> TextHistory:
    """The rows of a ``wandb-history.jsonl`` with the ``wanted`` metrics (None: all).

    Raises:
        TrackerError: it cannot be opened.
    """
    rows = HistoryRows(wanted)
    bad = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_ROW):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    rows.add_mapping(row)
                else:
                    bad += 1
    except OSError as error:
        raise TrackerError(f"{path} cannot be read ({error.strerror or error}): check its rights") from error
    said = [
        (bad, f"{path.name} has {counted(bad, 'line')} without a JSON object, left out"),
        (rows.stepless, f"{path.name} has {counted(rows.stepless, 'row')} without a step, left out"),
    ]
    return TextHistory(rows, tuple(text for so, text in said if so))


def _read_text(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise TrackerError(f"{path} cannot be read ({error.strerror or error}): it was left out") from error
    if len(data) > limit:
        raise TrackerError(f"{path} is larger than {limit // 1024**2} MiB: it was left out")
    return data.decode("utf-8", errors="replace")


def _read_json(path: Path) -> dict[str, object]:
    try:
        raw = json.loads(_read_text(path, MAX_JSON))
    except (ValueError, RecursionError) as error:
        raise TrackerError(f"{path} is no valid JSON: it was left out") from error
    if not isinstance(raw, dict):
        raise TrackerError(f"{path} is no JSON object: it was left out")
    return raw


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None

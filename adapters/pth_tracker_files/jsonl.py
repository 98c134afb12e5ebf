"""verl's file logger and EasyR1's: one JSON object a line, with the step and the metrics logged at it.

verl writes ``{"step": 3, "data": {"actor/lr": 1e-6}}`` and no configuration; EasyR1 writes
``{"step": 3, "actor": {"lr": 1e-6}}`` and ``experiment_config.json`` beside it. A NaN is written as null by some
releases, which cannot be told from a metric without a value: null is left out, and a note says so.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.runs import History, RunError, SourceRun
from pth_tracker_files.hydra import hydra_files
from pth_tracker_files.naming import as_text
from pth_tracker_files.sources import LoadedRun, open_regular, read_head, ref_for, revision_of

KIND: Final = "verl's JSONL metric files"
SEPARATE: Final = True

MAX_LINE: Final = 1 << 24
MAX_KEYS: Final = 20_000
MAX_CONFIG: Final = 1 << 21
EASYR1_CONFIG: Final = "experiment_config.json"


def claims(path: Path, head: bytes) -> bool:
    """Whether the first line is a JSON object of a step and its metrics."""
    first = head.lstrip().partition(b"\n")[0]
    if not first.startswith(b'{"step"'):
        return False
    if b"\n" not in head:
        return _row(_whole_first_line(path)) is not None
    return _row(first) is not None


def _whole_first_line(path: Path) -> bytes:
    try:
        with open(open_regular(path), "rb") as file:
            return file.readline(MAX_LINE)
    except OSError:
        return b""


def load(paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
    """The run in each file."""
    for path in paths:
        try:
            yield _load(path)
        except (OSError, ValueError) as error:
            yield RunError(ref_for(path), as_text(path.stem), f"{path} cannot be read: {error}")


def _load(path: Path) -> LoadedRun:
    revision = revision_of(path)
    series: dict[str, tuple[array[int], array[float]]] = {}
    unread = empty = 0
    with open(open_regular(path), "rb") as file:
        while line := file.readline(MAX_LINE):
            row = _row(line)
            if row is None:
                unread += bool(line.strip())
                continue
            step, metrics = row
            for key, value in metrics.items():
                if value is None:
                    empty += 1
                    continue
                if key not in series:
                    if len(series) == MAX_KEYS:
                        raise ValueError(f"it holds more than {MAX_KEYS} metric names")
                    series[key] = (array("q"), array("d"))
                series[key][0].append(step)
                series[key][1].append(value)
    history = History.from_points({key: (np.asarray(s), np.asarray(v)) for key, (s, v) in series.items()})
    config, arguments, notes, others = _configuration(path)
    if unread:
        notes.append(f"{unread} lines are no metrics of one step and were left out")
    if empty:
        notes.append(f"{empty} values are null (verl writes NaN so) and were left out")
    run = SourceRun(
        ref_for(path),
        as_text(path.stem),
        config=config,
        metric_keys=frozenset(history.values),
        last_step=int(history.step[-1]) if len(history) else None,
        revision="+".join((revision, *(revision_of(other) for other in others))),
        arguments=arguments,
        notes=tuple(notes),
    )
    return LoadedRun(run, history)


def _row(line: bytes) -> tuple[int, dict[str, float | None]] | None:
    """The step and its metrics (None: null), or None where the line holds no such thing."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or abs(step) > 1 << 53 or len(row) < 2:
        return None
    data = row["data"] if set(row) == {"step", "data"} else {k: v for k, v in row.items() if k != "step"}
    if not isinstance(data, dict) or (
        data is not row.get("data") and not all(isinstance(v, dict) for v in data.values())
    ):
        return None
    return step, dict(_metrics(data))


def _metrics(data: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float | None]]:
    for key, value in data.items():
        if isinstance(value, dict) and depth < 20:
            yield from _metrics(value, f"{prefix}{key}/", depth + 1)
        elif value is None:
            yield f"{prefix}{key}", None
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value) if abs(value) < 1e308 or isinstance(value, float) else math.inf


def _configuration(path: Path) -> tuple[Mapping[str, object], tuple[str, ...] | None, list[str], tuple[Path, ...]]:
    """The configuration beside the file, the overrides, notes, and the files they come from."""
    easy = path.parent / EASYR1_CONFIG
    try:
        raw = read_head(easy, MAX_CONFIG)
        config = json.loads(raw)
        if isinstance(config, dict):
            return config, None, [f"the configuration is taken from {EASYR1_CONFIG} beside it"], (easy,)
    except (OSError, ValueError, RecursionError):
        pass
    hydra = hydra_files(path)
    notes = list(hydra.notes)
    if hydra.config:
        notes.append("the configuration is taken from .hydra/config.yaml beside it")
    return hydra.config, hydra.overrides, notes, hydra.paths

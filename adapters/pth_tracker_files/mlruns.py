"""MLflow's file store (``mlruns``), read as plain files: nothing is imported from MLflow and nothing is created.

``<store>/<experiment>/<run>/`` holds ``meta.yaml`` and the folders ``params``, ``tags`` and ``metrics``, one file a
name; a ``/`` in a name is a sub-folder. A metric's file has one line a value: ``timestamp value step``, in old stores
``timestamp value``, and with a dataset ``timestamp value step name digest``.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.errors import TrackerError
from pth_tracker.plain_yaml import load_yaml
from pth_tracker.runs import History, RunError, RunRef, RunState, SourceRun
from pth_tracker.tracker import AUDIT_RUN_NAME
from pth_tracker_files.naming import as_text
from pth_tracker_files.sources import LoadedRun, open_regular, read_head, revision_of

KIND: Final = "MLflow file stores"
SEPARATE: Final = True

MAX_META: Final = 1 << 20
"""Of a ``meta.yaml``, a parameter or a tag, in bytes."""
MAX_METRIC: Final = 1 << 30
"""Of one metric's file, in bytes."""
MAX_NAMES: Final = 100_000
"""Parameters, tags or metrics of one run."""

_STATES: Final[dict[str, RunState]] = {
    "1": RunState.RUNNING,
    "2": RunState.RUNNING,
    "3": RunState.FINISHED,
    "4": RunState.FAILED,
    "5": RunState.KILLED,
    "RUNNING": RunState.RUNNING,
    "SCHEDULED": RunState.RUNNING,
    "FINISHED": RunState.FINISHED,
    "FAILED": RunState.FAILED,
    "KILLED": RunState.KILLED,
}
_EXPERIMENT_ID: Final = re.compile(rb"^experiment_id:", re.MULTILINE)
_RUN_ID: Final = re.compile(rb"^run_(?:uu)?id:", re.MULTILINE)
_OWN_TAGS: Final = ("mlflow.", "pth.")
_LIMITS: Final = {sys.float_info.max: math.inf, -sys.float_info.max: -math.inf}
"""MLflow's databases store infinity as the largest float; migrated file stores may hold it too."""


def claims(path: Path, head: bytes) -> bool:
    """Whether ``path`` is a store, one of its experiments, or one of its runs, by the ``meta.yaml`` that they hold."""
    if head or not path.is_dir():
        return False
    try:
        return _is_run(path) or _is_experiment(path) or any(_experiments(path))
    except OSError:
        return False


def load(paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
    """All runs of the stores, experiments and runs at ``paths``, without deleted ones and ``pth-audit`` runs.

    Those of one experiment come in the order of their creation.
    """
    for path in paths:
        if _is_run(path):
            yield from _load_run(path, _project(path.parent))
            continue
        for experiment in [path] if _is_experiment(path) else sorted(_experiments(path)):
            try:
                meta = _read_meta(experiment / "meta.yaml")
            except (TrackerError, OSError) as error:
                yield RunError(RunRef("", str(experiment)), as_text(experiment.name), str(error))
                continue
            if meta.get("lifecycle_stage") == "deleted":
                continue
            project = str(meta.get("name") or experiment.name)
            folders = [folder for folder in sorted(experiment.iterdir()) if _is_run(folder)]
            yield from sorted((one for folder in folders for one in _load_run(folder, project)), key=_age)


def _age(loaded: LoadedRun | RunError) -> tuple[bool, float]:
    """Orders runs by their creation; those of which it is not known come last."""
    created = loaded.run.created if isinstance(loaded, LoadedRun) else None
    return created is None, created.timestamp() if created else 0.0


def _experiments(store: Path) -> Iterator[Path]:
    for child in store.iterdir():
        if child.name != ".trash" and _is_experiment(child):
            yield child


def _is_experiment(folder: Path) -> bool:
    head = _meta_head(folder)
    return bool(_EXPERIMENT_ID.search(head)) and not _RUN_ID.search(head)


def _is_run(folder: Path) -> bool:
    head = _meta_head(folder)
    return bool(_EXPERIMENT_ID.search(head) and _RUN_ID.search(head))


def _meta_head(folder: Path) -> bytes:
    try:
        return read_head(folder / "meta.yaml")
    except OSError:
        return b""


def _project(experiment: Path) -> str:
    try:
        return str(_read_meta(experiment / "meta.yaml").get("name") or experiment.name)
    except (TrackerError, OSError):
        return as_text(experiment.name)


def _read_meta(path: Path) -> Mapping[str, object]:
    """The mapping in a ``meta.yaml``.

    Raises:
        TrackerError: it is no YAML mapping.
        OSError: it cannot be read.
    """
    try:
        meta = load_yaml(_read_text(path))
    except ValueError as error:
        raise TrackerError(f"{path} is no readable YAML ({error})") from error
    if not isinstance(meta, dict):
        raise TrackerError(f"{path} holds no mapping, so it describes no run and no experiment")
    return {str(key): value for key, value in meta.items()}


def _load_run(folder: Path, project: str) -> Iterator[LoadedRun | RunError]:
    """The run in ``folder``; nothing for a deleted one and for our own."""
    ref = RunRef(project, str(folder))
    name = as_text(folder.name)
    try:
        meta = _read_meta(folder / "meta.yaml")
        if meta.get("lifecycle_stage") == "deleted":
            return
        tags = {key: _read_text(path) for key, path in _named_files(folder / "tags")}
        name = tags.get("mlflow.runName") or str(meta.get("run_name") or name)
        if name == AUDIT_RUN_NAME:
            return
        params = dict(_named_files(folder / "params"))
        metrics = dict(_named_files(folder / "metrics"))
        points, notes = _read_metrics(metrics)
        history = History.from_points(points)
        evidence = [folder / "meta.yaml", *params.values(), *metrics.values()]
        evidence += [path for key, path in _named_files(folder / "tags") if not key.startswith("pth.")]
        run = SourceRun(
            ref=ref,
            name=name,
            state=_STATES.get(str(meta.get("status")), RunState.UNKNOWN),
            created=_moment(meta.get("start_time")),
            ended=_moment(meta.get("end_time")),
            config={key: _read_text(path) for key, path in params.items()},
            metric_keys=frozenset(history.values),
            last_step=int(history.step[-1]) if len(history) else None,
            revision=hashlib.sha256(revision_of(*evidence).encode()).hexdigest()[:32],
            tags=tuple(f"{key}={value}" for key, value in sorted(tags.items()) if not key.startswith(_OWN_TAGS)),
            user=tags.get("mlflow.user") or str(meta.get("user_id") or ""),
            program=tags.get("mlflow.source.name") or str(meta.get("source_name") or ""),
            commit=tags.get("mlflow.source.git.commit") or str(meta.get("source_version") or ""),
            parent_id=_parent(folder, tags.get("mlflow.parentRunId", "")),
            notes=tuple(notes),
        )
    except (TrackerError, OSError) as error:
        yield RunError(ref, name, str(error))
        return
    yield LoadedRun(run, history)


def _parent(folder: Path, run_id: str) -> str:
    """The reference's run id of the parent, which lies beside the run."""
    return str(folder.parent / run_id) if run_id else ""


def _named_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name (its sub-folders joined by ``/``) and path of each file below ``folder``, in order of the names."""
    found = []
    for place, _, files in os.walk(folder):
        for file in files:
            path = Path(place, file)
            found.append((as_text(path.relative_to(folder).as_posix()), path))
            if len(found) > MAX_NAMES:
                raise TrackerError(f"{folder} holds more than {MAX_NAMES} files, more than a run may have here")
    yield from sorted(found)


def _read_text(path: Path) -> str:
    raw = read_head(path, MAX_META + 1)
    if len(raw) > MAX_META:
        raise TrackerError(f"{path} is larger than {MAX_META >> 10} KiB, more than a value may be here")
    return raw.decode("utf-8", "replace")


def _moment(milliseconds: object) -> datetime | None:
    """The moment of a time in milliseconds since the epoch; None where there is none."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _read_metrics(files: Mapping[str, Path]) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], list[str]]:
    """The points of each metric in order of time, and what was left out.

    Raises:
        TrackerError: a line is no metric line; the message names it.
    """
    points = {}
    notes = []
    for name, path in files.items():
        with open(open_regular(path), "rb") as stream:
            if os.fstat(stream.fileno()).st_size > MAX_METRIC:
                raise TrackerError(f"{path} is larger than {MAX_METRIC >> 20} MiB, more than a metric may be here")
            data = stream.read(MAX_METRIC)
        lines = data.split(b"\n")
        if lines.pop():
            notes.append(f"the last line of metric {name!r} breaks off and was left out")
        rows = [_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
        times = np.asarray([row[0] for row in rows], dtype=np.float64)
        steps = np.asarray([row[2] for row in rows], dtype=np.int64)
        values = np.asarray([row[1] for row in rows], dtype=np.float64)
        if np.any(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            steps, values = steps[order], values[order]
        points[name] = (steps, values)
    return points, notes


def _read_line(path: Path, number: int, line: bytes) -> tuple[float, float, int]:
    """Time, value and step of one line; without a step (two fields) it is 0, as it is for MLflow.

    MLflow's own reader gives step 0 to lines with a dataset too (five fields); the step that they hold is used here.
    """
    fields = line.split()
    try:
        if len(fields) not in (2, 3, 5):
            raise ValueError
        time, value = float(fields[0]), float(fields[1])
        step = int(fields[2]) if len(fields) > 2 else 0
        if abs(step) >= 1 << 63:
            raise ValueError
    except ValueError as error:
        shown = line[:80].decode("utf-8", "replace")
        raise TrackerError(f"{path}, line {number} is no metric line (timestamp, value, step): {shown!r}") from error
    return time, _LIMITS.get(value, value), step

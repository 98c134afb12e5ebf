"""The ``trainer_state.json`` of Hugging Face Trainers (TRL among them): the rows of ``log_history``, by step.

Every checkpoint of a run holds the whole log up to its own step, so the ``checkpoint-*`` folders of one folder are one
run, read from the checkpoint with the most steps. Metric names stay as they are logged, without the ``train/`` that
W&B's integration adds. ``training_args.bin`` is a pickle, which could run any code, and is never opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pth_tracker.errors import TrackerError
from pth_tracker.runs import History, RunError, RunState, SourceRun
from pth_tracker_files.naming import names_below
from pth_tracker_files.sources import LoadedRun, open_regular, ref_for, revision_of

KIND: Final = "Hugging Face trainer states"
SEPARATE: Final = False

FILE_NAME: Final = "trainer_state.json"
MAX_BYTES: Final = 512 << 20
"""Larger files are refused."""
_MAX_STEP: Final = (1 << 63) - 1
_CHECKPOINT: Final = re.compile(r"checkpoint-[\w.-]+")
_NO_METRICS: Final = ("step", "epoch")
_SETTINGS: Final = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")
"""What the state itself says of the run's arguments."""


@dataclass(frozen=True)
class _State:
    path: Path
    raw: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]
    points: Mapping[str, tuple[list[int], list[float]]]
    skipped: int
    """Rows without a usable step."""

    @property
    def global_step(self) -> int:
        """How many steps were trained, by the state's own count or else by its last row."""
        step = _whole(self.raw.get("global_step"))
        return step if step is not None else max((max(steps) for steps, _ in self.points.values()), default=0)


def claims(path: Path, head: bytes) -> bool:
    """Whether ``path`` is a trainer's state: by its name, or as a JSON object that has the two telling keys."""
    if path.name == FILE_NAME:
        return not path.is_dir()
    return head.lstrip().startswith(b"{") and b'"log_history"' in head and b'"global_step"' in head


def load(paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
    """One run for each folder with states; ``checkpoint-*`` folders side by side are one run."""
    groups: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        folder = path.parent if path.name == FILE_NAME else path
        groups.setdefault(folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder, []).append(path)
    names = names_below(list(groups))
    for folder, files in groups.items():
        yield _load_group(folder, files, names[folder].removesuffix(".json"))


def _load_group(folder: Path, files: Sequence[Path], name: str) -> LoadedRun | RunError:
    states: list[_State] = []
    failed: list[str] = []
    for path in files:
        try:
            states.append(_read_state(path))
        except (TrackerError, OSError) as error:
            failed.append(str(error))
    if not states:
        return RunError(ref_for(folder), name, failed[0])
    states.sort(key=lambda state: (state.global_step, str(state.path)))
    state = states[-1]
    history = History.from_points(state.points)
    standing, notes = _standing(state)
    if state.skipped:
        notes.append(f"{state.skipped} rows of log_history have no usable step and were left out")
    notes += _contradictions(states) + [f"another checkpoint of the run is left out: {reason}" for reason in failed]
    if (state.path.parent / "training_args.bin").exists():
        notes.append(
            "training_args.bin holds the run's arguments as a pickle, which is not opened: they are unknown here"
        )
    run = SourceRun(
        ref=ref_for(folder),
        name=name,
        state=standing,
        config={key: state.raw[key] for key in _SETTINGS if state.raw.get(key) is not None} | _trial(state.raw),
        metric_keys=frozenset(history.values),
        last_step=int(history.step[-1]) if len(history) else None,
        revision=revision_of(*(state.path for state in states)),
        notes=tuple(notes),
    )
    return LoadedRun(run, history)


def _read_state(path: Path) -> _State:
    """The state in ``path``.

    Raises:
        TrackerError: it is no trainer's state, or too large.
        OSError: it cannot be read.
    """
    with open(open_regular(path), "rb") as stream:
        if os.fstat(stream.fileno()).st_size > MAX_BYTES:
            raise TrackerError(f"{path} is larger than {MAX_BYTES >> 20} MiB, more than a trainer's state may be here")
        text = stream.read(MAX_BYTES).decode("utf-8-sig", "replace")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrackerError(f"{path} is no readable JSON ({error}): was it written to the end?") from error
    rows = raw.get("log_history") if isinstance(raw, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TrackerError(f"{path} has no log_history, a list of rows, so it is no trainer's state")
    points: dict[str, tuple[list[int], list[float]]] = {}
    skipped = 0
    for row in rows:
        step = _whole(row.get("step"))
        if step is None:
            skipped += 1
            continue
        for key, value in row.items():
            if key in _NO_METRICS or not isinstance(value, int | float):
                continue
            steps, values = points.setdefault(key, ([], []))
            steps.append(step)
            values.append(_number(value))
    return _State(path, raw, rows, points, skipped)


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_STEP else None


def _number(value: float) -> float:
    """``value`` as a float; an integer too large for one is infinite, as it is in every tracker."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _standing(state: _State) -> tuple[RunState, list[str]]:
    """The run's state: finished once it trained all of its steps; else not known, with the reason."""
    planned = _whole(state.raw.get("max_steps"))
    if planned is None or planned <= 0:
        return RunState.UNKNOWN, []
    if state.global_step >= planned:
        return RunState.FINISHED, []
    return RunState.UNKNOWN, [f"stopped at {state.global_step} of {planned} steps, or still running"]


def _trial(raw: Mapping[str, object]) -> dict[str, object]:
    """The parameters of a hyperparameter search's trial, where the run is one."""
    found = raw.get("trial_params")
    return dict(found) if isinstance(found, dict) else {}


def _contradictions(states: Sequence[_State]) -> list[str]:
    """One note for each earlier checkpoint whose log differs from the last one's at a step that both hold."""
    last = History.from_points(states[-1].points)
    notes = []
    for state in states[:-1]:
        own = History.from_points(state.points)
        for key in own.values:
            theirs = dict(zip(*(part.tolist() for part in last.series(key))))
            differing = [
                step
                for step, value in zip(*(part.tolist() for part in own.series(key)))
                if step in theirs and theirs[step] != value and not (value != value and theirs[step] != theirs[step])
            ]
            if differing:
                notes.append(
                    f"{state.path.parent.name} and {states[-1].path.parent.name} disagree on {key!r} from step "
                    f"{int(differing[0])} on: the run was restarted, or two runs share a folder; the later one is used"
                )
                break
    return notes

"""TensorBoard event files: the files directly in one folder are one run, named by where the folder is.

Scalars are read from both forms in which they are written (``simple_value`` and one-element tensors). A configuration
comes from the hyperparameter plugin, from the ``args`` that the Hugging Face Trainer writes as JSON text, or from the
``hyperparameters`` table that CleanRL writes as text. A folder that ``add_hparams`` made below a run (its name is a
time) belongs to that run.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.errors import TrackerError
from pth_tracker.runs import History, RunError, SourceRun
from pth_tracker_files.event_files import EventFile, read_event_file, starts_with_event
from pth_tracker_files.naming import names_below
from pth_tracker_files.sources import LoadedRun, ref_for, revision_of

KIND: Final = "TensorBoard event files"
SEPARATE: Final = False

_NAME: Final = re.compile(r"\.tfevents\.(\d{1,11})\.?(.*)")
_HPARAMS_FOLDER: Final = re.compile(r"\d{9,11}\.\d+")
"""What ``SummaryWriter.add_hparams`` calls its folder: ``str(time.time())``."""
_JSON_TEXTS: Final = ("model_config/text_summary", "args/text_summary")
"""Written by the Hugging Face Trainer; the arguments win where both hold a key, as they do in W&B."""
_TABLE_TEXTS: Final = ("hyperparameters/text_summary",)
_TABLE_ROW: Final = re.compile(r"\|([^|]+)\|(.*)\|\s*")


def claims(path: Path, head: bytes) -> bool:
    """Whether ``path`` is an event file, by its first record; a damaged or empty one is known by its name.

    Folders are never claimed, so that what else is in them is still found; `load` joins the files of one folder.
    """
    return starts_with_event(head) or (".tfevents." in path.name and not path.is_dir())


def load(paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
    """One run for each folder that holds event files directly, its files merged in the order of their time."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(child for child in path.iterdir() if ".tfevents." in child.name and child.is_file())
            groups.setdefault(path, []).extend(files)
        else:
            groups.setdefault(path.parent, []).append(path)
    for folder in [folder for folder in groups if _HPARAMS_FOLDER.fullmatch(folder.name) and folder.parent in groups]:
        groups[folder.parent] += groups.pop(folder)
    names = names_below(list(groups))
    for folder, files in groups.items():
        yield _load_folder(folder, list(dict.fromkeys(files)), names[folder])


def _load_folder(folder: Path, files: Sequence[Path], name: str) -> LoadedRun | RunError:
    read: list[EventFile] = []
    failed: list[str] = []
    for path in files:
        try:
            read.append(read_event_file(path))
        except TrackerError as error:
            failed.append(str(error))
        except OSError as error:
            return RunError(ref_for(folder), name, f"{path} cannot be read ({error.strerror or error})")
    held = [file for file in read if file.records]
    if not held:
        reason = failed[0] if failed else f"{folder}: its event files are empty: nothing was logged, or not yet written"
        return RunError(ref_for(folder), name, reason)
    held.sort(key=lambda file: (_time(file), file.path.name))
    points: dict[str, tuple[array[int], array[float]]] = {}
    for file in held:
        for tag, (steps, values) in file.points.items():
            mine = points.setdefault(tag, (array("q"), array("d")))
            mine[0].extend(steps)
            mine[1].extend(values)
    history = History.from_points({tag: (np.asarray(s), np.asarray(v)) for tag, (s, v) in points.items()})
    notes = [note for file in held for note in file.notes()] + failed + _restarts(held)
    empty = len(read) - len(held)
    if empty:
        notes.append(f"{empty} empty event files were passed over")
    run = SourceRun(
        ref=ref_for(folder),
        name=name,
        created=_moment(_time(held[0])),
        config=_config(held),
        metric_keys=frozenset(history.values),
        last_step=int(history.step[-1]) if len(history) else None,
        revision=revision_of(*files),
        host=_host(held[-1].path),
        notes=tuple(notes),
    )
    return LoadedRun(run, history)


def _time(file: EventFile) -> float:
    """When the file was begun, in seconds since the epoch: by its first event, else by its name, else 0."""
    if math.isfinite(file.first_time):
        return file.first_time
    found = _NAME.search(file.path.name)
    return float(found[1]) if found else 0.0


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _host(path: Path) -> str:
    """The host's name out of ``events.out.tfevents.<time>.<host>.<process>.<number>``."""
    found = _NAME.search(path.name)
    return re.sub(r"(\.\d+)*(\.v2)?$", "", found[2]) if found else ""


def _restarts(files: Sequence[EventFile]) -> list[str]:
    """One note for each file that begins at or before the last step of the files before it."""
    notes = []
    last: dict[str, int] = {}
    for file in files:
        again = {tag: min(steps) for tag, (steps, _) in file.points.items() if tag in last and min(steps) <= last[tag]}
        if again:
            tag = min(again, key=lambda tag: again[tag])
            notes.append(
                f"{file.path.name} starts again at step {again[tag]} of {tag!r}, which an earlier file took to step "
                f"{last[tag]}: where both have a step, the later file's value is used"
            )
        for tag, (steps, _) in file.points.items():
            last[tag] = max(max(steps), last.get(tag, max(steps)))
    return notes


def _config(files: Sequence[EventFile]) -> Mapping[str, object]:
    config: dict[str, object] = {}
    for file in files:
        for tag in _JSON_TEXTS:
            if tag in file.texts:
                try:
                    found = json.loads(file.texts[tag])
                except (ValueError, RecursionError):
                    continue
                if isinstance(found, dict):
                    config.update(found)
        for tag in _TABLE_TEXTS:
            config.update(_table(file.texts.get(tag, "")))
        config.update(file.hparams)
    return config


def _table(text: str) -> Iterator[tuple[str, str]]:
    """The rows of a Markdown table of two columns, without its header."""
    rows = [found for line in text.splitlines() if (found := _TABLE_ROW.fullmatch(line.strip()))]
    ruled = [index for index, row in enumerate(rows) if set(row[1].strip()) <= set("-:") and set(row[2]) <= set("-: ")]
    for row in rows[ruled[0] + 1 :] if ruled else ():
        yield row[1].strip(), row[2].strip()

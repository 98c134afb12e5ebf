"""Result tables: each (method, task, seed) of a CSV, Parquet or JSON-lines table is one run.

A table has a column of steps (learning curves), or none (one row a result; then every row is a run of its own). The
columns are told by their names, or named by the user (`TableColumns`). Where no column names the method, the place of
the file does: ``<method>/<task>.csv``, or ``<method>.csv`` where all files are in one folder. Charts exported from W&B
are tables of their own form, see `wandb_export`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.errors import TrackerError, UsageError
from pth_tracker.runs import History, Ints, RunError, SourceRun
from pth_tracker.values import Value, canonical_value, show_value
from pth_tracker_files import wandb_export
from pth_tracker_files.naming import as_part, names_below
from pth_tracker_files.sources import LoadedRun, read_head, ref_for, revision_of
from pth_tracker_files.table_columns import ROLES, TableColumns
from pth_tracker_files.table_files import PARQUET_MAGIC, Table, first_row, header_of, parquet_columns, read_table

KIND: Final = "result tables and W&B exports"
SEPARATE: Final = False

MAX_RUNS: Final = 100_000
"""Of one table; more means that a column of measurements was taken for a seed."""
_METHODS: Final = ("method", "algorithm", "algo", "arm", "agent", "variant", "approach")
_SEEDS: Final = ("seed", "data_seed", "data.seed", "config.seed", "random_seed", "run_seed")
_TASKS: Final = ("task", "env", "environment", "env_id", "env_name", "game", "benchmark", "dataset")
_RUNS: Final = ("run", "run_name", "run_id", "experiment", "exp_name")
_STEPS: Final = (
    "step _step global_step train/global_step trainer/global_step training/global_step steps timestep timesteps "
    "total_timesteps time/total_timesteps env_step env_steps train_step training_step iteration iter update updates "
    "frame frames epoch"
).split()
_SAMPLES: Final = frozenset({"prompt", "response", "completion", "input", "output", "messages", "text", "question"})
"""Keys of JSON lines whose rows are texts to train on or dumped answers, so no results."""
_EXACT: Final = float(1 << 53)
_SHOWN: Final = 20


@dataclass
class NamedTables:
    """The source of tables whose columns the user named; satisfies `pth_tracker_files.sources.Source`."""

    columns: TableColumns
    KIND: str = KIND
    SEPARATE: bool = SEPARATE

    def claims(self, path: Path, head: bytes) -> bool:
        """Whether ``path`` is a table of results, by its names or by having a column that was named."""
        if claims(path, head):
            return True
        named = {getattr(self.columns, role) for role in ROLES} - {None}
        return bool(head) and not named.isdisjoint(_header(path))

    def load(self, paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
        """The runs of all tables."""
        return load(paths, self.columns)


@dataclass(frozen=True)
class _Layout:
    """The columns of one table by what they are; None where there is none."""

    method: str | None
    task: str | None
    run: str | None
    seed: str | None
    step: str | None
    metrics: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name for name in (self.method, self.task, self.run, self.seed) if name is not None)


def claims(path: Path, head: bytes) -> bool:
    """Whether ``path`` is a table of results: told by a column of steps or seeds, or a CSV's column of numbers."""
    if head[:4] == PARQUET_MAGIC:
        return _tells(parquet_columns(path))
    if _is_json(head):
        row = first_row(head)
        return _tells(tuple(row)) and not _SAMPLES & row.keys()
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    header, delimiter = header_of(head)
    if len(header) < 2:
        return False
    return _tells(header) or wandb_export.is_export(header) or _has_numbers(head, delimiter)


def _tells(names: Sequence[str]) -> bool:
    return _find(names, _STEPS) is not None or _find(names, _SEEDS) is not None


def _has_numbers(head: bytes, delimiter: str) -> bool:
    lines = head.decode("utf-8-sig", "replace").splitlines()[1:2]
    return any(isinstance(canonical_value(cell), int | float) for line in lines for cell in line.split(delimiter))


def load(paths: Sequence[Path], columns: TableColumns | None = None) -> Iterator[LoadedRun | RunError]:
    """The runs of all tables, and of all W&B exports, whose columns are joined by the runs' names."""
    columns = columns or TableColumns()
    exports: list[Table] = []
    places = _places(paths, columns)
    for path in paths:
        name, method, task = places[path]
        try:
            table = read_table(path)
            if wandb_export.is_export(table.columns):
                exports.append(table)
            else:
                yield from _runs(table, _layout(table, columns), name, method, task)
        except (TrackerError, UsageError, OSError) as error:
            yield RunError(ref_for(path), name, str(error))
    yield from wandb_export.load(exports)


def _places(paths: Sequence[Path], columns: TableColumns) -> dict[Path, tuple[str, str | None, str | None]]:
    """Name, method and task of each file by where it is among those of its form.

    A file that is alone of its form has neither method nor task by its place, which says nothing then.
    """
    forms: dict[tuple[bool, bool], list[Path]] = {}
    for path in paths:
        header = _header(path)
        seeded = columns.seed is not None or _find(header, _SEEDS) is not None
        forms.setdefault((seeded, columns.method is not None or _find(header, _METHODS) is not None), []).append(path)
    places: dict[Path, tuple[str, str | None, str | None]] = {}
    for files in forms.values():
        names = {path: name.rsplit(".", 1)[0] for path, name in names_below(files).items()}
        parts = {path: name.split("/") for path, name in names.items()}
        if len({part[-1] for part in parts.values()}) == 1 and all(len(part) > 1 for part in parts.values()):
            parts = {path: part[:-1] for path, part in parts.items()}
        for path, part in parts.items():
            known = (part[0], "/".join(part[1:]) or None) if len(files) > 1 else (None, None)
            places[path] = (names[path], *known)
    return places


def _header(path: Path) -> tuple[str, ...]:
    """The names of the columns by the first lines of the file; none where they cannot be read."""
    try:
        head = read_head(path)
    except OSError:
        return ()
    if head[:4] == PARQUET_MAGIC:
        return parquet_columns(path)
    return tuple(first_row(head)) if _is_json(head) else header_of(head)[0]


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def _find(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The first of ``names`` that is one of ``words``, earlier words first, whatever its case and spacing."""
    plain = {name.strip().casefold().replace(" ", "_"): name for name in reversed(names)}
    return next((plain[word] for word in words if word in plain), None)


def _layout(table: Table, columns: TableColumns) -> _Layout:
    """What each column is.

    Raises:
        UsageError: a named column does not exist, or what the table is about cannot be told.
    """
    for field in fields(columns):
        wanted = getattr(columns, field.name)
        if wanted is not None and wanted not in table.columns:
            raise UsageError(f"{table.path} has no column {wanted!r} for the {field.name}; it has {_listed(table)}")
    method = columns.method or _find(table.columns, _METHODS)
    task = columns.task or _find(table.columns, _TASKS)
    seed = columns.seed or _find(table.columns, _SEEDS)
    run = _find(table.columns, _RUNS)
    step = columns.step or _find(table.columns, _STEPS) or _guess_step(table)
    if not (step or seed or method):
        raise UsageError(
            f"which column of {table.path} is the step, the seed or the method cannot be told; it has "
            f"{_listed(table)}: name them, as in --columns step=NAME,seed=NAME,arm=NAME,value=NAME"
        )
    others = [name for name in table.columns if name not in (method, task, run, seed, step)]
    metrics = (columns.value,) if columns.value else tuple(name for name in others if table.numbers(name) is not None)
    if not any(_any_number(table, name) for name in metrics):
        raise UsageError(
            f"{table.path} has no column of numbers to judge besides its steps and seeds; it has {_listed(table)}: "
            "name the one that holds the results, as in --columns value=NAME"
        )
    return _Layout(method, task, run, seed, step, metrics)


def _any_number(table: Table, name: str) -> bool:
    found = table.numbers(name)
    return found is not None and bool(found[1].any())


def _listed(table: Table) -> str:
    shown = ", ".join(repr(name) for name in table.columns[:_SHOWN])
    more = len(table.columns) - _SHOWN
    return f"the columns {shown}" + (f" and {more} more" if more > 0 else "")


def _guess_step(table: Table) -> str | None:
    """The column whose name ends in ``step`` and which counts up in whole numbers from row to row.

    Raises:
        UsageError: there are several, and they differ.
    """
    found: dict[str, Ints] = {}
    for name in table.columns:
        if not name.casefold().endswith("step"):
            continue
        numbers = table.numbers(name)
        if numbers is None or not numbers[1].all() or not len(numbers[0]):
            continue
        values = numbers[0]
        if np.all(np.abs(values) < _EXACT) and np.all(values == np.floor(values)) and np.all(np.diff(values) > 0):
            found[name] = values.astype(np.int64)
    series = list(found.values())
    if any(not np.array_equal(other, series[0]) for other in series[1:]):
        raise UsageError(
            f"several columns of {table.path} count steps ({', '.join(map(repr, found))}) and they differ: name the "
            "one to use, as in --columns step=NAME"
        )
    return next(iter(found), None)


def _runs(
    table: Table, layout: _Layout, name: str, place_method: str | None, place_task: str | None
) -> Iterator[LoadedRun | RunError]:
    steps, usable = _steps(table, layout)
    metrics = {key: found for key in layout.metrics if (found := table.numbers(key)) is not None}
    if layout.method is None and layout.seed is None:
        place_method = place_task = None
    elif layout.method is not None and place_method is not None:
        place_method, place_task = None, "/".join(part for part in (place_method, place_task) if part)
    others = [c for c in table.columns if c not in (*layout.keys, layout.step, *layout.metrics)]
    texts = {key: column for key in others if any(column := table.texts(key))}
    revision = revision_of(table.path)
    for key, rows in _groups(table, layout, usable):
        cells = dict(zip(layout.keys, key))
        config: dict[str, Value] = {
            "method": _cell(cells, layout.method) or place_method,
            "task": _cell(cells, layout.task) or place_task,
            "seed": _whole(_cell(cells, layout.seed)),
        }
        config |= _constants(texts, rows)
        notes = [*table.notes, *_row_notes(layout, usable, steps[rows], texts, rows)]
        points = {
            key: (steps[rows][here], values[rows][here])
            for key, (values, present) in metrics.items()
            for here in [present[rows]]
        }
        history = History.from_points(points)
        part = "&".join(f"{as_part(role)}={as_part(text)}" for role, text in cells.items() if text is not None)
        if layout.step is None:
            part = "&".join(filter(None, (part, f"row={int(rows[0]) + 1}")))
        run = SourceRun(
            ref=ref_for(table.path, part),
            name=_name(config, _cell(cells, layout.run), name),
            config={role: value for role, value in config.items() if value is not None},
            metric_keys=frozenset(history.values),
            last_step=int(history.step[-1]) if len(history) else None,
            revision=revision,
            notes=tuple(notes),
        )
        yield LoadedRun(run, history)


def _cell(cells: Mapping[str, str | None], column: str | None) -> str | None:
    return cells.get(column) if column is not None else None


def _whole(text: str | None) -> Value:
    """A seed as a number where it is one (``3.0`` is 3), else as its text."""
    value = canonical_value(text)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _name(config: Mapping[str, Value], run: str | None, place: str) -> str:
    """``method/task seed N``, or what of it is known."""
    known = [str(config[role]) for role in ("method", "task") if config.get(role) is not None]
    stem = run or "/".join(known) or place
    return f"{stem} seed {config['seed']}" if config.get("seed") is not None else stem


def _steps(table: Table, layout: _Layout) -> tuple[Ints, np.ndarray]:
    """The ``(rows,)`` steps, 0 without such a column, and which rows have one.

    Raises:
        UsageError: a step is no whole number.
    """
    if layout.step is None:
        return np.zeros(table.rows, dtype=np.int64), np.ones(table.rows, dtype=bool)
    found = table.numbers(layout.step)
    if found is None:
        raise UsageError(
            f"the column {layout.step!r} of {table.path} holds text, so it counts no steps; it has {_listed(table)}: "
            "name the one that does, as in --columns step=NAME"
        )
    values, present = found
    odd = present & ~((np.abs(values) < _EXACT) & (values == np.floor(values)))
    if odd.any():
        shown = show_value(float(values[odd][0]))
        raise UsageError(
            f"the column {layout.step!r} of {table.path} holds {shown}, which is no whole number of steps: name "
            "another, as in --columns step=NAME"
        )
    return np.where(present, values, 0).astype(np.int64), present


def _groups(table: Table, layout: _Layout, usable: np.ndarray) -> Iterator[tuple[tuple[str | None, ...], np.ndarray]]:
    """The values of the key columns and the rows of each run, in the table's order.

    Raises:
        UsageError: there are too many to be runs.
    """
    numbered = np.flatnonzero(usable)
    if not layout.keys:
        groups: dict[tuple[str | None, ...], list[int]] = {(): numbered.tolist()}
    else:
        groups = {}
        cells = list(zip(*(table.texts(name) for name in layout.keys)))
        for row in numbered.tolist():
            groups.setdefault(cells[row], []).append(row)
    count = len(groups) if layout.step is not None else len(numbered)
    if count > MAX_RUNS:
        raise UsageError(
            f"{table.path} would be {count} runs by its columns {', '.join(map(repr, layout.keys))}: name those of the "
            "method, the seed and the step, as in --columns arm=NAME,seed=NAME,step=NAME"
        )
    for key, rows in groups.items():
        if layout.step is not None:
            yield key, np.asarray(rows, dtype=np.int64)
        else:
            yield from ((key, np.asarray([row], dtype=np.int64)) for row in rows)


def _constants(texts: Mapping[str, Sequence[str | None]], rows: np.ndarray) -> dict[str, Value]:
    """The columns of text that say one thing in all rows of a run: part of its configuration."""
    found: dict[str, Value] = {}
    for name, cells in texts.items():
        values = {cells[row] for row in rows.tolist()}
        if len(values) == 1 and (text := values.pop()) is not None:
            found[name] = canonical_value(text)
    return found


def _row_notes(
    layout: _Layout,
    usable: np.ndarray,
    steps: Ints,
    texts: Mapping[str, Sequence[str | None]],
    rows: np.ndarray,
) -> Iterator[str]:
    """What a reader should know of one run's rows: steps that are there twice, text that changes along the way."""
    if layout.step is None:
        return
    lost = int(np.sum(~usable))
    if lost:
        yield f"{lost} rows of the table have no {layout.step!r} and were left out"
    unique, counts = np.unique(steps, return_counts=True)
    if (counts > 1).any():
        yield f"{_times(unique[counts > 1])} there more than once: the later row is used"
    for name, cells in texts.items():
        own = [cells[row] for row in rows.tolist()]
        known = {cell for cell in own if cell is not None}
        joined = {cell for cell in known if "," in cell and all(part.strip() in known for part in cell.split(","))}
        if joined:
            several = np.unique(steps[np.asarray([cell in joined for cell in own])])
            yield f"{_times(several)} of several runs, says the column {name!r}: the table holds one value of each"
        elif _changes(own) == len(known) - 1 > 0 and 2 * sum(cell is not None for cell in own) >= len(own):
            shown = ", ".join(show_value(cell) for cell in dict.fromkeys(own) if cell is not None)
            yield f"the column {name!r} changes along the run: {shown}"


def _changes(cells: Sequence[str | None]) -> int:
    """How often the text differs from that before it; more than `_SHOWN` times: 0, for it is no part of a run."""
    known = [cell for cell in cells if cell is not None]
    count = sum(left != right for left, right in zip(known, known[1:]))
    return count if count <= _SHOWN else 0


def _times(steps: Ints) -> str:
    """``8 steps (100 to 103, 200 to 203) are``, in as few ranges as there are."""
    breaks = np.flatnonzero(np.diff(steps) != 1) + 1
    ranges = [(int(part[0]), int(part[-1])) for part in np.split(steps, breaks)]
    shown = ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in ranges[:_SHOWN])
    more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
    return f"{len(steps)} step{'s' * (len(steps) > 1)} ({shown}{more}) {'are' if len(steps) > 1 else 'is'}"

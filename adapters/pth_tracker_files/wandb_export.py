"""Charts exported from W&B as CSV: ``Step`` and, for each run, ``name - metric`` with ``__MIN`` and ``__MAX``.

The exports of several charts are joined by the runs' names, so that a run's metrics come together again. A value that
differs from its own minimum or maximum is an average (of a group of runs, or of several steps), which a note says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.errors import UsageError
from pth_tracker.runs import Floats, History, Ints, RunError, SourceRun
from pth_tracker_files.naming import as_part
from pth_tracker_files.sources import LoadedRun, ref_for, revision_of
from pth_tracker_files.table_files import Table

_SEPARATOR: Final = " - "
_RANGE: Final = ("__MIN", "__MAX")
_EXACT: Final = float(1 << 53)


@dataclass
class _Joined:
    """One run as it comes together from the exports of several charts."""

    paths: list[Path] = field(default_factory=list)
    points: dict[str, tuple[Ints, Floats]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_export(header: Sequence[str]) -> bool:
    """Whether these are the columns of an exported chart: an axis, then runs, each with its range."""
    names = set(header)
    return len(header) > 1 and any(
        _SEPARATOR in name and all(f"{name}{suffix}" in names for suffix in _RANGE) for name in header[1:]
    )


def load(tables: Sequence[Table]) -> Iterator[LoadedRun | RunError]:
    """One run for each name in the exports of one folder."""
    runs: dict[tuple[Path, str], _Joined] = {}
    for table in tables:
        try:
            _add(table, runs)
        except UsageError as error:
            yield RunError(ref_for(table.path), table.path.stem, str(error))
    for (_, name), joined in runs.items():
        history = History.from_points(joined.points)
        run = SourceRun(
            ref=ref_for(joined.paths[0], f"run={as_part(name)}"),
            name=name,
            metric_keys=frozenset(history.values),
            last_step=int(history.step[-1]) if len(history) else None,
            revision=revision_of(*joined.paths),
            notes=tuple(joined.notes),
        )
        yield LoadedRun(run, history)


def _add(table: Table, runs: dict[tuple[Path, str], _Joined]) -> None:
    """Adds one chart's columns to the runs they belong to.

    Raises:
        UsageError: its axis counts no steps.
    """
    axis = table.columns[0]
    found = table.numbers(axis)
    steps, counted = found if found is not None else (np.empty(0), np.empty(0, dtype=np.bool_))
    if found is None or np.any(counted & ~((np.abs(steps) < _EXACT) & (steps == np.floor(steps)))):
        raise UsageError(
            f"{table.path} is a W&B chart over {axis!r}, which does not count in whole steps: choose Step as the "
            "chart's x axis and export it again"
        )
    for column in table.columns[1:]:
        name, separator, metric = column.rpartition(_SEPARATOR)
        numbers = table.numbers(column)
        if not separator or metric == "_step" or column.endswith(_RANGE) or numbers is None:
            continue
        values, present = numbers
        here = present & counted
        joined = runs.setdefault((table.path.parent, name), _Joined())
        if table.path not in joined.paths:
            joined.paths.append(table.path)
        joined.points[metric] = (steps[here].astype(np.int64), values[here])
        averaged = _averaged(table, column, values, here)
        if averaged:
            joined.notes.append(
                f"{metric!r} differs from its own minimum or maximum at {averaged} of {int(here.sum())} steps: the "
                "chart shows averages of grouped runs or of several steps: export single runs, or audit the project"
            )


def _averaged(table: Table, column: str, values: Floats, here: np.ndarray) -> int:
    """At how many steps the value is neither its minimum nor its maximum, or these two differ."""
    differs = np.zeros(len(values), dtype=bool)
    for suffix in _RANGE:
        bound = table.numbers(f"{column}{suffix}") if f"{column}{suffix}" in table.columns else None
        if bound is not None:
            differs |= here & bound[1] & (bound[0] != values) & ~(np.isnan(bound[0]) & np.isnan(values))
    return int(differs.sum())

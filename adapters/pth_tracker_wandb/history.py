"""Exact histories of W&B runs: the server's parquet exports, and the rows that are not exported yet.

A run costs one request for the addresses of its exports, one for each file, and one more where it has live rows. The
SDK's own readers are not used: ``history`` samples, and ``scan_history`` mixes two meanings of ``keys``, asks twice as
often and leaves files in a shared cache that is never checked.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pth_tracker.errors import TrackerError
from pth_tracker.runs import History, RunRef
from pth_tracker_wandb.listing import is_internal
from pth_tracker_wandb.session import RequestFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from pth_tracker_wandb.session import Session

STEP: Final = "_step"
MAX_LIVE_PAGES: Final = 50
ATTEMPTS: Final = 2
"""Addresses of exports expire and a run may be exported while it is read: then once more from the start."""
_WORTH_ANOTHER: Final = (403, 404)
"""Of a download: its address has expired."""

EXPORTS_QUERY: Final = """
query PthTrackerExports($project: String!, $entity: String!, $run: String!, $liveKeys: [String!]!) {
  project(name: $project, entityName: $entity) {
    run(name: $run) {
      historyLineCount
      historyKeys
      parquetHistory(liveKeys: $liveKeys) { parquetUrls liveData }
    }
  }
}
"""
LIVE_QUERY: Final = """
query PthTrackerLiveRows(
  $project: String!, $entity: String!, $run: String!, $minStep: Int64!, $maxStep: Int64!, $samples: Int!
) {
  project(name: $project, entityName: $entity) {
    run(name: $run) { history(minStep: $minStep, maxStep: $maxStep, samples: $samples) }
  }
}
"""

Points = dict[str, list[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]]]


class Moved(Exception):
    """The run changed while it was read."""


def read_history(session: Session, ref: RunRef, keys: Collection[str] | None, folder: Path) -> History:
    """The exact history of ``keys`` (None: every metric) of one run, by way of files in ``folder``.

    Raises:
        TrackerError: it cannot be read in full.
    """
    reason = ""
    for attempt in range(ATTEMPTS):
        place = folder / str(attempt)
        place.mkdir(parents=True)
        try:
            return _read_once(session, ref, keys, place)
        except Moved as moved:
            reason = str(moved)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as error:
            raise TrackerError(f"its history cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
        except RequestFailed as error:
            if error.status not in _WORTH_ANOTHER or attempt + 1 == ATTEMPTS:
                raise
    raise TrackerError(f"its history cannot be read in full: {reason}; audit it again when it has settled")


def _read_once(session: Session, ref: RunRef, keys: Collection[str] | None, folder: Path) -> History:
    where = _where(ref)
    found = (session.graphql(EXPORTS_QUERY, {**where, "liveKeys": [STEP]}).get("project") or {}).get("run")
    if found is None:
        raise TrackerError("W&B no longer has this run: it was deleted or moved")
    exports = found.get("parquetHistory") or {}
    urls: list[str] = exports.get("parquetUrls") or []
    live = sorted({int(row[STEP]) for row in exports.get("liveData") or ()})
    points: Points = defaultdict(list)
    tables = []
    for index, url in enumerate(urls):
        path = folder / f"{index}.parquet"
        session.download(url, path)
        tables.append(_table(path, keys))
        path.unlink()
    for table in sorted(tables, key=_first_step):
        _add_table(points, table, keys)
    if live:
        _add_rows(points, _live_rows(session, where, live), keys)
    elif not urls and found.get("historyLineCount"):
        last = int((found.get("historyKeys") or {}).get("lastStep", -1))
        _add_rows(points, _page(session, where, 0, last, samples=max(last + 1, int(found["historyLineCount"]))), keys)
    return History.from_points({key: _joined(parts) for key, parts in points.items()})


def _where(ref: RunRef) -> dict[str, str]:
    entity, _, project = ref.project.partition("/")
    return {"entity": entity, "project": project, "run": ref.run_id}


def _joined(parts: Sequence[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]]) -> tuple[Any, Any]:
    return np.concatenate([steps for steps, _ in parts]), np.concatenate([values for _, values in parts])


# exported rows


def _table(path: Path, keys: Collection[str] | None) -> pa.Table:
    """The columns of one export that are asked for, and the step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if STEP not in names:
                raise TrackerError("one of its exports has no _step column")
            wanted = [name for name in names if name != STEP and _is_wanted(name, keys)]
            return file.read(columns=[STEP, *wanted])
    except pa.ArrowException as error:
        raise Moved(f"an export is damaged ({error})") from None


def _is_wanted(column: str, keys: Collection[str] | None) -> bool:
    """Whether a column holds a key or, being nested, the beginning of one."""
    if keys is None:
        return not is_internal(column)
    return column in keys or any(key.startswith(f"{column}.") for key in keys)


def _first_step(table: pa.Table) -> int:
    import pyarrow.compute as pc

    return int(pc.min(table.column(STEP)).as_py() or 0)


def _add_table(points: Points, table: pa.Table, keys: Collection[str] | None) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    steps = table.column(STEP).to_numpy()
    for name in table.column_names:
        if name == STEP and not (keys and STEP in keys):
            continue
        column = table.column(name)
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            logged = pc.is_valid(column).to_numpy()
            if logged.any():
                values = pc.cast(column.drop_null(), pa.float64(), safe=False).to_numpy()
                points[name].append((steps[logged], values))
        elif not pa.types.is_null(kind):
            rows = ({STEP: step, name: cell} for step, cell in zip(steps, column.to_pylist()))
            _add_rows(points, rows, keys)


# live rows


def _live_rows(session: Session, where: Mapping[str, str], steps: Sequence[int]) -> list[dict[str, Any]]:
    """The rows at all of ``steps``, which are known to be there.

    Raises:
        Moved: some are not returned however small the pages.
    """
    rows = _page(session, where, steps[0], steps[-1], samples=steps[-1] - steps[0] + 1)
    got = {int(row[STEP]) for row in rows}
    if got.issuperset(steps):
        return rows
    size = max(1, len(got))
    chunks = [steps[start : start + size] for start in range(0, len(steps), size)]
    if not got or len(chunks) > MAX_LIVE_PAGES:
        raise Moved(f"{len(steps)} rows are not exported yet and W&B returns {len(got)} of them")
    rows = [row for chunk in chunks for row in _page(session, where, chunk[0], chunk[-1], samples=2 * len(chunk))]
    if not {int(row[STEP]) for row in rows}.issuperset(steps):
        raise Moved("W&B does not return all rows that are not exported yet")
    return rows


def _page(session: Session, where: Mapping[str, str], first: int, last: int, samples: int) -> list[dict[str, Any]]:
    variables = {**where, "minStep": first, "maxStep": last + 1, "samples": min(samples, 2**31 - 1)}
    run = (session.graphql(LIVE_QUERY, variables).get("project") or {}).get("run") or {}
    rows = []
    for line in run.get("history") or ():
        row = json.loads(line, strict=False)
        if isinstance(row, dict) and isinstance(row.get(STEP), int | float):
            rows.append(row)
    return rows


def _add_rows(points: Points, rows: Iterable[Mapping[str, Any]], keys: Collection[str] | None) -> None:
    series: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for row in rows:
        step = int(row[STEP])
        for key, cell in _leaves(row):
            value = _number(cell)
            if value is not None and (key in keys if keys is not None else not is_internal(key)):
                steps, values = series[key]
                steps.append(step)
                values.append(value)
    for key, (steps, values) in series.items():
        points[key].append((np.asarray(steps, dtype=np.int64), np.asarray(values, dtype=np.float64)))


def _leaves(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A row's entries by dotted key; media objects (tables, histograms) have none."""
    for key, value in row.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif "_type" not in value and depth < 16:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)


_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(cell: object) -> float | None:
    """The number that a cell holds or spells, None for anything else."""
    if isinstance(cell, int | float):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    return _WORDS.get(cell) if isinstance(cell, str) else None

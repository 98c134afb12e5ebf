"""A table in a CSV, TSV, Parquet or JSON-lines file, as named columns of numbers or text.

CSV and JSON lines are read as text first and turned into numbers by column, so that a seed of 20 digits stays exact
and one odd cell never changes how the rest is read. An empty cell is absent; ``nan`` and ``inf`` are logged values.
PyArrow is imported on use.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from pth_tracker.errors import TrackerError
from pth_tracker.runs import Floats
from pth_tracker_files.sources import open_regular

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BYTES: Final = 2 << 30
"""Larger files, and Parquet files that unpack to more than four times this, are refused."""
MAX_COLUMNS: Final = 20_000
PARQUET_MAGIC: Final = b"PAR1"
ABSENT_WORDS: Final = ("", "NA", "N/A", "n/a", "null", "NULL", "None", "-")
"""Cells that mean "no value" in a column of numbers."""
_DELIMITERS: Final = ",;\t"
_PLACE: Final = re.compile(r"\s+")


@dataclass(frozen=True)
class Table:
    """The columns of one file; names are unique and in the file's order."""

    path: Path
    columns: tuple[str, ...]
    rows: int
    data: Any
    """A ``pyarrow.Table`` whose columns are in the order of `columns`."""
    decimal_comma: bool = False
    """Whether ``0,5`` is a half: so in files whose cells are separated by semicolons."""
    notes: tuple[str, ...] = ()
    """What was left out."""
    _known: dict[str, tuple[Floats, npt.NDArray[np.bool_]] | None] = field(default_factory=dict, repr=False)
    """The columns that were asked for as numbers: parsing text takes time."""

    def _column(self, name: str) -> pa.ChunkedArray:
        return self.data.column(self.columns.index(name))

    def texts(self, name: str) -> list[str | None]:
        """The column's cells as text without surrounding space; None where a cell is empty."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            column = self._column(name).cast(pa.string())
        except pa.ArrowException:
            return [None] * self.rows
        trimmed = pc.utf8_trim_whitespace(column)
        return [cell or None for cell in trimmed.to_pylist()]

    def numbers(self, name: str) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
        """The column as ``(rows,)`` numbers, and where it has any; None where some cell is no number."""
        if name not in self._known:
            self._known[name] = _numbers(self._column(name), self.decimal_comma)
        return self._known[name]


def _numbers(column: pa.ChunkedArray, decimal_comma: bool) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        trimmed = pc.utf8_trim_whitespace(column)
        absent = pc.is_in(trimmed, value_set=pa.array(ABSENT_WORDS, type=trimmed.type))
        column = _parse_numbers(pc.if_else(absent, pa.scalar(None, trimmed.type), trimmed), decimal_comma)
    elif not _is_numeric(column.type):
        return None
    if column is None:
        return None
    present = pc.is_valid(column).to_numpy()
    values = pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")).to_numpy()
    return np.asarray(values, dtype=np.float64), np.asarray(present, dtype=np.bool_)


def _is_numeric(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def _parse_numbers(column: pa.ChunkedArray, decimal_comma: bool) -> pa.ChunkedArray | None:
    """Text cells as numbers (``true`` and ``false`` count as 1 and 0); None where some cell is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    attempts: list[Callable[[], Any]] = [lambda: column.cast(pa.float64())]
    if decimal_comma:
        attempts.append(lambda: pc.replace_substring(column, ",", ".").cast(pa.float64()))
    attempts.append(lambda: pc.utf8_lower(column).cast(pa.bool_()))
    for attempt in attempts:
        try:
            return attempt()
        except pa.ArrowException:
            continue
    return None


def header_of(head: bytes) -> tuple[tuple[str, ...], str]:
    """The cells of a CSV's first line and their separator; no cells where ``head`` is no such text."""
    text, _ = _decoded(head)
    if not text or "\0" in text:
        return (), ","
    found: tuple[tuple[str, ...], str] = ((), ",")
    for delimiter in _DELIMITERS:
        try:
            row = next(csv.reader(io.StringIO(text), delimiter=delimiter), [])
        except csv.Error:
            continue
        if len(row) > len(found[0]):
            found = tuple(cell.strip() for cell in row), delimiter
    return found


def _decoded(head: bytes) -> tuple[str, str]:
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return head.decode(encoding, "replace"), "utf-16" if encoding == "utf-16" else "utf-8"


def first_row(head: bytes) -> dict[str, object]:
    """The object on the first line of JSON lines; empty where it is none."""
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return dict(_flatten(row)) if isinstance(row, dict) else {}


def parquet_columns(path: Path) -> tuple[str, ...]:
    """The names of a Parquet file's columns; none where it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open(open_regular(path), "rb") as stream:
            return tuple(pq.read_schema(stream).names)
    except (pa.ArrowException, OSError, ValueError):
        return ()


def read_table(path: Path) -> Table:
    """The table in ``path``, its format told by its first bytes.

    Raises:
        TrackerError: it is too large or cannot be parsed; the message names the row or line.
        OSError: it cannot be opened.
    """
    import pyarrow as pa

    with open(open_regular(path), "rb") as stream:
        if os.fstat(stream.fileno()).st_size > MAX_BYTES:
            raise TrackerError(f"{path} is larger than {MAX_BYTES >> 30} GiB: split it, or keep fewer columns")
        head = stream.read(1 << 16)
        stream.seek(0)
        try:
            if head[:4] == PARQUET_MAGIC:
                return _read_parquet(path, stream)
            if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
                return _read_json_lines(path, stream)
            return _read_csv(path, stream, head)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = _PLACE.sub(" ", str(error))[:300].rstrip(" .")
            raise TrackerError(f"{path} cannot be read as a table: {reason}") from error


def _read_csv(path: Path, stream: BinaryIO, head: bytes) -> Table:
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    header, delimiter = header_of(head)
    if not header:
        raise TrackerError(f"{path} is empty, or its first line names no columns")
    if len(header) > MAX_COLUMNS:
        raise TrackerError(f"{path} has more than {MAX_COLUMNS} columns: keep those of the runs to audit")
    data = pa_csv.read_csv(
        stream,
        read_options=pa_csv.ReadOptions(autogenerate_column_names=True, encoding=_decoded(head)[1], use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={f"f{index}": pa.string() for index in range(len(header))},
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    return _table(path, header, data.slice(1), decimal_comma=delimiter == ";")


def _read_parquet(path: Path, stream: BinaryIO) -> Table:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(stream)
    unpacked = file.metadata.num_rows * file.metadata.num_columns * 8
    if unpacked > 4 * MAX_BYTES or file.metadata.num_columns > MAX_COLUMNS:
        raise TrackerError(
            f"{path} holds {file.metadata.num_rows} rows of {file.metadata.num_columns} columns, more than fit in "
            "memory here: keep the columns of the runs to audit"
        )
    return _table(path, file.schema_arrow.names, file.read())


def _read_json_lines(path: Path, stream: BinaryIO) -> Table:
    import pyarrow as pa

    columns: dict[str, list[str | None]] = {}
    rows = 0
    notes: tuple[str, ...] = ()
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
            if not isinstance(row, dict):
                raise ValueError("it is no object")
            cells = dict(_flatten(row))
        except (ValueError, RecursionError) as error:
            if rows and not line.endswith(b"\n"):
                notes = (f"the last line of {path.name} breaks off and was left out",)
                break
            raise TrackerError(f"{path}, line {number} is no JSON object ({error})") from error
        for name, value in cells.items():
            column = columns.setdefault(name, [])
            column += [None] * (rows - len(column))
            column.append(value if value is None or isinstance(value, str) else str(value))
        if len(columns) > MAX_COLUMNS:
            raise TrackerError(f"{path}, line {number}: more than {MAX_COLUMNS} different keys, so it is no table")
        rows += 1
    for column in columns.values():
        column += [None] * (rows - len(column))
    arrays = [pa.array(column, type=pa.string()) for column in columns.values()]
    return _table(
        path, list(columns), pa.table(arrays, names=[f"f{index}" for index in range(len(arrays))]), notes=notes
    )


def _flatten(row: dict[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    for key, value in row.items():
        if isinstance(value, dict) and depth < 8:
            yield from _flatten(value, f"{prefix}{key}.", depth + 1)
        elif value is None or isinstance(value, str | int | float):
            yield f"{prefix}{key}", value


def _table(
    path: Path, names: Sequence[str], data: pa.Table, decimal_comma: bool = False, notes: tuple[str, ...] = ()
) -> Table:
    """Raises `TrackerError` where two columns have one name: which is meant could not be told."""
    cleaned = [name.strip() or f"(column {index})" for index, name in enumerate(names, 1)]
    twice = sorted({name for name in cleaned if cleaned.count(name) > 1}) if len(set(cleaned)) < len(cleaned) else []
    if twice:
        raise TrackerError(
            f"{path} has several columns named {twice[0]!r}: rename them, so that each can be told apart"
        )
    return Table(path, tuple(cleaned), data.num_rows, data, decimal_comma, notes)

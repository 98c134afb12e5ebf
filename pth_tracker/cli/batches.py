"""``pth-tracker batches``: check 3 on a list of batch identities, one for each update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color
from pth_tracker.errors import ExitCode, NothingSelected, UsageError

COLUMN: Final = "batch"
MAX_LINE: Final = 1 << 20
"""The longest line (characters) that is read."""

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="A .txt file with one identity a line, or a .csv or .jsonl file."),
]
Column = Annotated[
    str | None,
    opt.option("--column", metavar="NAME", help="The column of a .csv, or the key of a .jsonl. Default: batch."),
]
AllowRepeats = Annotated[
    bool,
    opt.option("--allow-repeats", help="The design trains on batches again: count repeats and blame none."),
]


def batches(
    file: File,
    column: Column = None,
    allow_repeats: AllowRepeats = False,
    exit_zero: opt.ExitZero = False,
    quiet: opt.Quiet = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Check a list of batch identities, one for each update in order.

    Counts the distinct batches and names the updates that trained on an earlier one again (check 3).
    """
    from pth_tracker.cli.session import show_report
    from pth_tracker.series import check_batch_ids

    ids = list(read_ids(file, column))
    if not ids:
        raise NothingSelected(f"{file} holds no batch identity: one is needed for each update")
    found = check_batch_ids(ids, expect_unique=not allow_repeats)
    show_report(found, quiet, color)
    if not found.stats["distinct_batches"]:
        return ExitCode.NOTHING
    return ExitCode.OK if found.ok or exit_zero else ExitCode.CHECK_FAILED


def read_ids(path: Path, named: str | None) -> Iterator[Any]:
    """The identities in a file, in order; ``named`` is the column or key that holds them.

    Raises:
        UsageError: it cannot be read, lacks the column or has none, or a line of it is wrong; names the line.
    """
    column = COLUMN if named is None else named
    if named is not None and path.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"{path} has one identity a line and no columns: leave out --column {named}")
    try:
        if not path.is_file() and not path.is_fifo() and not path.is_char_device():
            what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}: name a .txt, .csv or .jsonl file")
        with path.open(encoding="utf-8-sig", newline="" if path.suffix == ".csv" else None) as file:
            if path.suffix == ".csv":
                yield from _csv(path, file, column)
            elif path.suffix == ".jsonl":
                yield from _jsonl(path, file, column)
            else:
                yield from (line.strip() for _, line in _lines(path, file))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8") from error


def _lines(path: Path, file: IO[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise UsageError(f"{path}:{number}: this line is longer than {MAX_LINE:,} characters")
        if line.strip():
            yield number, line


def _csv(path: Path, file: IO[str], column: str) -> Iterator[str]:
    import csv

    rows = csv.reader(file, skipinitialspace=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if not header:
            return
        if column not in header:
            raise UsageError(f"{path} has no column {column!r}: name one with --column ({', '.join(header[:12])})")
        place = header.index(column)
        for row in rows:
            if row:
                yield row[place] if place < len(row) else ""
    except csv.Error as error:
        raise UsageError(f"{path}:{rows.line_num}: {error}") from error


def _jsonl(path: Path, file: IO[str], column: str) -> Iterator[Any]:
    import json

    for number, line in _lines(path, file):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: this line is no JSON") from error
        if not isinstance(entry, dict) or column not in entry:
            known = f" ({', '.join(map(str, list(entry)[:12]))})" if isinstance(entry, dict) else ""
            raise UsageError(f"{path}:{number}: there is no key {column!r}: name one with --column{known}")
        value = entry[column]
        yield value if value is None or isinstance(value, int | float | str) else json.dumps(value, sort_keys=True)

"""The rows of a local W&B history gathered into columns, as numbers by dotted metric name.

W&B writes a row as items: a path of keys and the JSON of one value, where a nested mapping is one item a leaf (older
releases: one item with the mapping's JSON). Its own names for nested values join the path with dots, and so do these.
Text, lists and media (mappings with ``_type``) are no metrics and are left out; a truth value counts as 0 or 1.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import History, Ints
from pth_tracker_wandb.wandb_messages import message_class

Bools: TypeAlias = npt.NDArray[np.bool_]
STEP: Final = "_step"
TIMESTAMP: Final = "_timestamp"
MAX_DEPTH: Final = 64
"""Metrics nested deeper than this are left out; no training loop logs any."""

_VALUE: Final = b"\x82\x01"
"""Tag of ``value_json`` (field 16) in a history item."""
_NESTED_KEY: Final = 0x12
_KEY: Final = 0x0A
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_LONGEST_WORD: Final = len('"-Infinity"')


class _Column:
    """The numbers of one metric: the row and value of each, or, where it is not wanted, only that there are any."""

    __slots__ = ("keep", "name", "numeric", "rows", "values")

    def __init__(self, name: str, keep: bool) -> None:
        self.name = name
        self.keep = keep
        self.numeric = False
        self.rows = array("q")
        self.values = array("d")

    def add(self, row: int, number: float) -> None:
        self.numeric = True
        if self.keep:
            self.rows.append(row)
            self.values.append(number)


class HistoryRows:
    """Rows of a history taken in one after the other; only ``wanted`` metrics are kept (None: all)."""

    def __init__(self, wanted: Collection[str] | None = ()) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._columns: dict[str, _Column] = {}
        self._by_head: dict[bytes, _Column] = {}
        self._media: set[str] = set()
        self._logged_steps = array("q")
        self._has_step = bytearray()
        self._steps: tuple[Ints, Bools] | None = None
        self.undecodable = 0
        """Items that are no protocol buffer and are left out."""

    def __len__(self) -> int:
        return len(self._has_step)

    def add_items(self, items: Iterable[bytes], step: int | None) -> None:
        """Takes in one row: W&B's ``HistoryItem`` messages, undecoded, and the step beside them, if any.

        An item is decoded in full once for each path of keys; after that, its leading bytes are the key to its column
        and the rest is the number, provided that the lengths say that there is nothing else in it.
        """
        row = self._start_row(step)
        known = self._by_head
        for item in items:
            place = 0
            try:
                while item[place] == _NESTED_KEY:
                    place += item[place + 1] + 2
                if item[0] == _KEY:
                    place = item[1] + 2
                plain = item[place : place + 2] == _VALUE and item[place + 2] == len(item) - place - 3 < 0x80
            except IndexError:
                plain = False
            column = known.get(item[:place]) if plain else None
            if column is None:
                self._add_unknown(item, row)
                continue
            if not column.keep and column.numeric:
                continue
            try:
                number = float(item[place + 3 :])
            except ValueError:
                self._add_json(column, item[place + 3 :], row)
                continue
            # As `_Column.add`, without the call: this line is passed once a logged number.
            column.numeric = True
            if column.keep:
                column.rows.append(row)
                column.values.append(number)

    def add_mapping(self, row: Mapping[str, object]) -> None:
        """Takes in one row of the oldest layout: a JSON object with the step as ``_step``."""
        number = self._start_row(None)
        for key, value in row.items():
            self._add_value(str(key), value, number, 0)

    def _start_row(self, step: int | None) -> int:
        self._steps = None
        self._has_step.append(step is not None)
        self._logged_steps.append(step or 0)
        return len(self._has_step) - 1

    def _add_unknown(self, item: bytes, row: int) -> None:
        from google.protobuf.message import DecodeError

        message = message_class("HistoryItem")()
        try:
            message.ParseFromString(item)
        except DecodeError:
            self.undecodable += 1
            return
        path = list(message.nested_key) or [message.key]
        column = self._column(".".join(part.decode(errors="replace") for part in path))
        value = message.value_json
        head = b"".join(bytes((_NESTED_KEY, len(part))) + part for part in path if len(part) < 0x80)
        if not message.nested_key and len(message.key) < 0x80:
            head = bytes((_KEY, len(message.key))) + message.key
        if len(value) < 0x80 and item == head + _VALUE + bytes((len(value),)) + value:
            self._by_head[head] = column
        self._add_json(column, value, row)

    def _add_json(self, column: _Column, text: bytes, row: int) -> None:
        if text[:1] == b"[" or (text[:1] == b'"' and len(text) > _LONGEST_WORD):
            return
        try:
            # As for an item whose path is known, so that a number counts alike wherever it stands.
            column.add(row, float(text))
            return
        except ValueError:
            pass
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        self._add_value(column.name, value, row, 0)

    def _add_value(self, name: str, value: object, row: int, depth: int) -> None:
        number = _number(value)
        if number is not None:
            self._column(name).add(row, number)
        elif isinstance(value, dict) and depth < MAX_DEPTH and "_type" not in value:
            for key, inner in value.items():
                self._add_value(f"{name}.{key}", inner, row, depth + 1)

    def _column(self, name: str) -> _Column:
        column = self._columns.get(name)
        if column is None:
            keep = self._wanted is None or name in self._wanted or name in (STEP, TIMESTAMP)
            column = self._columns[name] = _Column(name, keep)
            if name.endswith("._type"):
                self._media.add(name.removesuffix("_type"))
        return column

    def _resolved(self) -> tuple[Ints, Bools]:
        """Each row's step, ``_step`` before the field (which older files leave at 0), and whether it has one."""
        if self._steps is None:
            steps = np.array(self._logged_steps, dtype=np.int64)
            has = np.frombuffer(bytes(self._has_step), dtype=np.bool_).copy()
            logged = self._columns.get(STEP)
            if logged is not None:
                rows, values = np.array(logged.rows, dtype=np.int64), np.array(logged.values)
                whole = (np.abs(values) < 2.0**63) & (values == np.floor(values))
                steps[rows[whole]] = values[whole].astype(np.int64)
                has[rows[whole]] = True
            self._steps = steps, has
        return self._steps

    @property
    def stepless(self) -> int:
        """How many rows have no step and are left out."""
        return int(np.sum(~self._resolved()[1]))

    @property
    def last_step(self) -> int | None:
        """The highest step; None without any row."""
        steps, has = self._resolved()
        return int(steps[has].max()) if has.any() else None

    @property
    def last_timestamp(self) -> float:
        """The latest ``_timestamp`` in seconds since 1970; 0 without any."""
        column = self._columns.get(TIMESTAMP)
        finite = [value for value in column.values[-100:] if math.isfinite(value)] if column is not None else []
        return max(finite, default=0.0)

    @property
    def metric_keys(self) -> frozenset[str]:
        """The names under which a number was logged, without the step itself."""
        return frozenset(column.name for column in self._metrics() if column.name != STEP)

    def _metrics(self) -> Iterator[_Column]:
        return (c for c in self._columns.values() if c.numeric and not (self._media and self._is_media(c.name)))

    def _is_media(self, name: str) -> bool:
        dots = islice((place for place, char in enumerate(name) if char == "."), MAX_DEPTH)
        return any(name[: place + 1] in self._media for place in dots)

    def history(self) -> History:
        """The wanted metrics by step."""
        steps, has = self._resolved()
        points = {}
        for column in self._metrics():
            wanted = column.name != STEP if self._wanted is None else column.name in self._wanted
            if not wanted:
                continue
            rows, values = np.array(column.rows, dtype=np.int64), np.array(column.values)
            kept = has[rows]
            points[column.name] = (steps[rows[kept]], values[kept])
        return History.from_points(points)


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return _WORDS.get(value)
    if not isinstance(value, bool | int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

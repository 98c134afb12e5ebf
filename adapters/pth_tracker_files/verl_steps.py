"""The metrics of verl's step lines, read from the bytes of a console log.

verl prints one line a logger call, ``step:N - key:value - key:value ...``, with Ray's prefix of the printing process
before it and anything at all on the lines between. The whole file is searched for the few bytes ``step:``; a hit is a
step line only at the beginning of a line, after a Ray prefix or after a progress bar, and only with a metric name of
verl's own (model outputs print the strangest things). Lines of one logger call site have the same keys in the same
order, so that keys are compared as a whole and values are converted as a whole.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic_core import from_json

from pth_tracker.runs import History

ANSI: Final = rb"(?:\x1b\[[0-9;]*m)*"
PREFIX: Final = rb"\((?:raylet|(?:[A-Za-z_][\w:.]* ?)?pid=\d*)(?:, ?ip=[^)\s]*)?\)"
"""Ray's ``(TaskRunner pid=7, ip=10.0.0.1)``, without the colours around it."""
MAX_DIGITS: Final = 15
"""Of a step; a longer number is none, and every shorter one is exact."""
MAX_KEYS: Final = 20_000
"""More metric names than this in one file is no verl log."""
LOOK_BACK: Final = 300
"""How far before ``step:`` a prefix may begin (bytes)."""

ROOTS: Final = frozenset(
    "actor critic global_seqlen response_length response_length_non_aborted prompt_length response timing timing_s "
    "timing_per_token timing_per_token_ms perf mfu training train val val-core val-aux rollout_corr mismatch "
    "num_turns fully_async variance_proxy reward env state_tokens separate_async rollout_probs_diff batch".split()
)
"""What metric names of verl and its forks begin with, before the first ``/``."""

_START: Final = re.compile(
    rb"(?:^" + ANSI + rb"\s*"
    rb"|^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^ \n]* (?:\[?[A-Z]+\]?[ :|-]+)?"
    rb"|(?:it/s|s/it)[^\]\r\n]{0,99}\] ?"
    rb"|" + ANSI + rb"(" + PREFIX + rb")" + ANSI + rb" ?" + ANSI + rb")\Z"
)
_NUMBER: Final = rb"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)|True|False"
_PAIR: Final = re.compile(rb"(.*):(?:np\.\w+\()?(" + _NUMBER + rb")\)?\s*\Z", re.DOTALL)
_LAST_PAIR: Final = re.compile(rb"(.*?):(?:np\.\w+\()?(" + _NUMBER + rb")\)?(?=[\s\x1b(\[{]|\Z)", re.DOTALL)
_WRAPPER: Final = re.compile(rb"np\.\w+\(")
_FIXED: Final = re.compile(rb"-?\d+\.\d{3}")
_WORDS: Final = {b"True": b"1.0", b"False": b"0.0"}


class LineStarts:
    """Tells whether text begins at a position: at the beginning of a line, after a prefix or a progress bar."""

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes | None] = {}

    def tag(self, block: bytes, position: int) -> bytes | None:
        """The process by its prefix's name and number (b"" without one), or None where no text begins here."""
        if position == 0 or block[position - 1] in b"\r\n":
            return b""
        if block[position - 1] not in b" )m]\t":
            return None
        low = max(0, position - LOOK_BACK)
        line_start = max(block.rfind(b"\n", low, position), block.rfind(b"\r", low, position)) + 1
        before = block[line_start or low : position]
        if before in self._seen:
            return self._seen[before]
        match = _START.search(before)
        tag = None if match is None or (not line_start and low and match.start() == 0) else match[1] or b""
        if tag:
            tag = tag.strip(b"()").partition(b",")[0]
        if len(self._seen) < 1000:
            self._seen[before] = tag
        return tag


@dataclass
class _Layout:
    """The lines that hold the same keys in the same order."""

    keys: tuple[bytes, ...]
    steps: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class Segment:
    """Step lines of one process among which the step does not fall back."""

    tag: bytes
    """The process: ``TaskRunner pid=7``."""
    offset: int
    """Where its first line begins in the file (bytes)."""
    number: int
    """Of its first line among the step lines, from 0."""
    first: int
    last: int
    lines: int = 0
    fixed: int = 0
    """Values looked at that have exactly three decimals ..."""
    other: int = 0
    """... and that have not; NaN and infinity tell nothing and are not counted."""

    @property
    def task(self) -> bytes:
        """The process's name without its number."""
        return self.tag.partition(b"pid=")[0].strip()


class StepLines:
    """Collects step lines; `history` then gives what they hold."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.foreign = 0
        """Lines shaped like step lines that hold no metric name of verl's."""
        self.last_end = 0
        """Where the last step line ends in the file (bytes)."""
        self.cut = ""
        """The metric whose value was left out, since the file ends within it."""
        self._layouts: dict[tuple[bytes, ...], _Layout] = {}
        self._layout = _Layout(())
        self._keys: list[bytes] = []
        self._starts = LineStarts()
        self._open: dict[bytes, Segment] = {}
        self._known: set[bytes] = set()
        self._count = 0

    def scan(self, block: bytes, offset: int, at_end: bool) -> None:
        """Takes all step lines of a ``block`` of whole lines that begins at ``offset`` in its file."""
        find = block.find
        position = find(b"step:")
        while position >= 0:
            tag = self._starts.tag(block, position)
            if tag is None:
                position = find(b"step:", position + 5)
                continue
            end = find(b"\n", position)
            terminated = end >= 0
            if not terminated:
                end = len(block)
            if self._take(block[position + 5 : end], tag, offset + position, at_end and not terminated):
                self.last_end = offset + end
            position = find(b"step:", end)

    def _take(self, line: bytes, tag: bytes, offset: int, unterminated: bool) -> bool:
        carriage = line.find(b"\r")
        if carriage >= 0:
            line = line[:carriage]
        fields = line.replace(b" - ", b":").split(b":")
        if fields[1::2] != self._keys or not self._keys or not fields[0].isdigit() or len(fields[0]) > MAX_DIGITS:
            return self._take_slowly(line, tag, offset, unterminated)
        values = _convert(fields[2::2])
        if values is None:
            return self._take_slowly(line, tag, offset, unterminated)
        self._store(self._layout, int(fields[0]), values, tag, offset, line)
        return True

    def _take_slowly(self, line: bytes, tag: bytes, offset: int, unterminated: bool) -> bool:
        head, separator, rest = line.partition(b" - ")
        if not separator or not head.isdigit() or len(head) > MAX_DIGITS:
            return False
        pairs = _pairs(rest)
        if unterminated and len(pairs) > 1 and b":" in rest.rpartition(b" - ")[2] and self._is_cut(tuple(pairs)):
            self.cut = text_of(next(reversed(pairs)))
            pairs.popitem()
        keys = tuple(pairs)
        if not any(key.partition(b"/")[0].decode("ascii", "replace") in ROOTS and b"/" in key for key in keys):
            self.foreign += 1
            return False
        layout = self._layouts.get(keys)
        fresh = layout is None
        if layout is None:
            self._known.update(keys)
            if len(self._known) > MAX_KEYS:
                raise ValueError(f"it holds more than {MAX_KEYS} metric names, no verl log does")
            layout = self._layouts[keys] = _Layout(keys)
        self._layout, self._keys = layout, list(keys)
        self._store(layout, int(head), [float(value) for value in pairs.values()], tag, offset, line, look=fresh)
        return True

    def _is_cut(self, keys: tuple[bytes, ...]) -> bool:
        return any(len(known) > len(keys) and known[: len(keys)] == keys for known in self._layouts)

    def _store(
        self,
        layout: _Layout,
        step: int,
        values: list[float],
        tag: bytes,
        offset: int,
        line: bytes,
        look: bool = False,
    ) -> None:
        segment = self._open.get(tag)
        if segment is None or step < segment.last:
            segment = self._open[tag] = Segment(tag, offset, self._count, step, step)
            self.segments.append(segment)
            look = True
        if look:
            fixed, other = _forms(line)
            segment.fixed += fixed
            segment.other += other
        segment.last = step
        segment.lines += 1
        layout.steps.append(step)
        layout.lines.append(self._count)
        layout.values.fromlist(values)
        self._count += 1

    def __len__(self) -> int:
        return self._count

    @property
    def roots(self) -> frozenset[str]:
        """What the metric names begin with, before their first ``/``."""
        return frozenset(text_of(key).partition("/")[0] for key in self._known)

    def history(self, rounded: bool, since: int = 0) -> History:
        """The history of the lines from number ``since`` on; ``rounded``: they are printed with three decimals."""
        series: dict[bytes, list[tuple[_Layout, int]]] = {}
        for layout in self._layouts.values():
            for column, key in enumerate(layout.keys):
                series.setdefault(key, []).append((layout, column))
        tables = {
            id(layout): (
                np.asarray(layout.lines),
                np.asarray(layout.steps),
                np.asarray(layout.values).reshape(-1, len(layout.keys)),
            )
            for layout in self._layouts.values()
        }
        points = {}
        orders: dict[tuple[int, ...], tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]] = {}
        for key, places in series.items():
            members = tuple(id(layout) for layout, _ in places)
            if members not in orders:
                lines = np.concatenate([tables[member][0] for member in members])
                order = np.argsort(lines, kind="stable")
                orders[members] = order, int(np.searchsorted(lines[order], since))
            order, begin = orders[members]
            steps = np.concatenate([tables[member][1] for member in members])[order][begin:]
            values = np.concatenate([tables[id(layout)][2][:, column] for layout, column in places])[order][begin:]
            points[text_of(key)] = (steps, values)
        decimals = dict.fromkeys(points, 3) if rounded else {}
        return History.from_points(points, decimals)


def text_of(key: bytes) -> str:
    """A metric name as text."""
    return key.decode("utf-8", "replace").strip()


def _convert(fields: list[bytes]) -> list[float] | None:
    """The numbers that ``fields`` spell, or None where one is not spelt as verl does."""
    joined = b",".join(fields)
    if b"(" in joined:
        joined = _WRAPPER.sub(b"", joined.replace(b"np.float64(", b"")).replace(b")", b"")
    try:
        values = from_json(b"[" + joined + b"]")
    except ValueError:
        joined = joined.replace(b"nan", b"NaN").replace(b"inf", b"Infinity")
        joined = joined.replace(b"True", b"1.0").replace(b"False", b"0.0")
        try:
            values = from_json(b"[" + joined + b"]")
        except ValueError:
            return None
    if len(values) != len(fields):
        return None
    # Text, null and lists are valid JSON and no numbers; an integer may be too large for a float.
    try:
        return [float(value) for value in values] if set(map(type, values)) - {float, int} else _checked(values)
    except (TypeError, ValueError, OverflowError):
        return None


def _checked(values: list[float]) -> list[float] | None:
    return None if any(type(value) is int and abs(value) > 1 << 53 for value in values) else values


def _pairs(rest: bytes) -> dict[bytes, bytes]:
    """Each ``key:value`` of a line after its step; what is no such pair is left out, of equal keys the last counts."""
    pairs: dict[bytes, bytes] = {}
    items = rest.split(b" - ")
    for item in items[:-1]:
        match = _PAIR.match(item)
        if match:
            pairs.pop(match[1], None)
            pairs[match[1]] = _WORDS.get(match[2], match[2])
    match = _LAST_PAIR.match(items[-1])
    if match:
        pairs.pop(match[1], None)
        pairs[match[1]] = _WORDS.get(match[2], match[2])
    return pairs


def _forms(line: bytes) -> tuple[int, int]:
    """How many values of a line have exactly three decimals, and how many have not."""
    fixed = other = 0
    for value in _pairs(line.partition(b" - ")[2]).values():
        if _FIXED.fullmatch(value):
            fixed += 1
        elif math.isfinite(float(value)):
            other += 1
    return fixed, other

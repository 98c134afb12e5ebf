"""The metrics of verl's step lines, read from the bytes of a console log.

verl prints one line a logger call, ``step:N - key:value - key:value ...``, with Ray's prefix of the printing process
before it and anything at all on the lines between. The whole file is searched for the few bytes ``step:``; a hit is a
step line only where text begins (`LineStarts`), and only with a metric name of verl's own: model outputs print the
strangest things.

Nearly all lines of a log have the same keys in the same order. So the first line of each shape is taken apart with
care, and the others of that shape by the block: with all characters deleted that no number has, what remains of a
key is known, and what remains of the block is a list of numbers. Where it is not, each line is taken apart by itself.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic_core import from_json

from pth_tracker.runs import Floats, History, Ints
from pth_tracker_files.verl_lines import LOOK_BACK, LineStarts

MAX_DIGITS: Final = 15
"""Of a step; a longer number is none, and every shorter one is exact."""
MAX_KEYS: Final = 20_000
"""More metric names than this in one file is no verl log."""
ENOUGH_FORMS: Final = 10_000
"""Of so many values the form is looked at, in each segment."""
MAX_SHAPES: Final = 1000
"""Beyond so many shapes every line is taken apart by itself."""

ROOTS: Final = frozenset(
    "actor critic global_seqlen response_length response_length_non_aborted prompt_length response timing timing_s "
    "timing_per_token timing_per_token_ms perf mfu training train val val-core val-aux rollout_corr mismatch "
    "num_turns fully_async variance_proxy reward env state_tokens separate_async rollout_probs_diff batch".split()
)
"""What metric names of verl and its forks begin with, before the first ``/``."""

_NUMBER: Final = rb"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)|True|False"
_PAIR: Final = re.compile(rb"(.*):(?:np\.\w+\()?(" + _NUMBER + rb")\)?\s*\Z", re.DOTALL)
_LAST_PAIR: Final = re.compile(rb"(.*?):(?:np\.\w+\()?(" + _NUMBER + rb")\)?(?=[\s\x1b(\[{]|\Z)", re.DOTALL)
_WRAPPER: Final = re.compile(rb"np\.\w+\(")
_FIXED: Final = re.compile(rb"-?\d+\.\d{3}")
_WORDS: Final = {b"True": b"1.0", b"False": b"0.0"}

_IN_NUMBERS: Final = b"0123456789.+-eE"
_COMMAS: Final = bytes.maketrans(b"\n", b",")
_OTHERS: Final = bytes(code for code in range(256) if code not in _IN_NUMBERS + b":\n")
_NAN, _INF = 1.6180339887e308, 1.4142135623e308
"""Stand for what JSON has no numbers for while a block is converted; nothing logs these."""
_SPELT: Final = (
    (b":nan", f":{_NAN!r}".encode()),
    (b":inf", f":{_INF!r}".encode()),
    (b":-inf", f":-{_INF!r}".encode()),
    (b":True", b":1"),
    (b":False", b":0"),
)


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
    fixed: int = 0
    """Values looked at that have exactly three decimals ..."""
    other: int = 0
    """... and that have not; NaN and infinity tell nothing and are not counted."""

    @property
    def task(self) -> bytes:
        """The process's name without its number."""
        return self.tag.partition(b"pid=")[0].strip()


@dataclass
class _Layout:
    """The metrics of all lines that hold the same keys in the same order."""

    lines: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class _Shape:
    """Lines that are equal but for the characters of numbers, waiting to be converted together."""

    form: bytes
    """What they have in common."""
    ours: bool
    """Whether they hold a metric of verl's."""
    keys: tuple[bytes, ...]
    separators: list[bytes] = field(default_factory=list)
    """What remains of `` - key:``, longest first; none: each line is taken apart by itself."""
    spelt: bool = False
    """Whether some values are words (NaN, infinity, booleans) or wrapped (``np.float64(...)``)."""
    pending: list[bytes] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


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
        self._shapes: dict[bytes, _Shape] = {}
        self._shape = _Shape(b"", False, ())
        self._starts = LineStarts()
        self._open: dict[bytes, Segment] = {}
        self._known: set[bytes] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def roots(self) -> frozenset[str]:
        """What the metric names begin with, before their first ``/``."""
        return frozenset(text_of(key).partition("/")[0] for key in self._known)

    def scan(self, block: bytes, offset: int, at_end: bool) -> None:
        """Takes all step lines of a ``block`` of whole lines that begins at ``offset`` in its file."""
        find, starts = block.find, self._starts
        lines: list[bytes] = []
        places: list[tuple[bytes, int]] = []
        prefix, prefix_tag = b"\n", b""
        position = find(b"step:")
        while position >= 0:
            tag: bytes | None = None
            if block.startswith(prefix, position - len(prefix)) and position >= len(prefix):
                tag = prefix_tag
            elif block[position + 5 : position + 6].isdigit():
                tag = starts.tag(block, position)
                start = block.rfind(b"\n", max(0, position - LOOK_BACK), position)
                if tag and start >= 0:
                    prefix, prefix_tag = block[start:position], tag
            if tag is None:
                position = find(b"step:", position + 5)
                continue
            end = find(b"\n", position)
            if end < 0:
                self._take_many(lines, places)
                lines, places = [], []
                self._take(block[position + 5 :], tag, offset + position, unterminated=at_end)
                break
            lines.append(block[position + 5 : end])
            places.append((tag, offset + position))
            position = find(b"step:", end)
        self._take_many(lines, places)
        for shape in self._shapes.values():
            if shape.pending:
                self._convert(shape)

    def _take_many(self, lines: list[bytes], places: list[tuple[bytes, int]]) -> None:
        """Takes lines, all at once where they are of one shape and process and of steps that do not fall back."""
        table = self._table_of_all(lines) if len(lines) > 2 else None
        if table is not None:
            tag, steps = places[0][0], table[:, 0]
            segment = self._open.get(tag)
            if (
                segment
                and steps[0] >= segment.last
                and np.all(steps[1:] >= steps[:-1])
                and {t for t, _ in places} == {tag}
            ):
                self._append(self._shape, table, range(self._count, self._count + len(lines)))
                segment.last = int(steps[-1])
                self._count += len(lines)
                self.last_end = places[-1][1] + len(lines[-1]) + 5
                return
        for line, (tag, offset) in zip(lines, places):
            self._take(line, tag, offset)

    def _table_of_all(self, lines: list[bytes]) -> Floats | None:
        """The steps and values of lines that all have the shape of the line before them, (lines, 1 + keys)."""
        text = b"\n".join(lines)
        if not self._shape.separators or text.translate(None, _IN_NUMBERS) != b"\n".join(
            [self._shape.form] * len(lines)
        ):
            return None
        table = _numbers(text, self._shape, len(lines))
        if table is None or not np.all((table[:, 0] >= 0) & (table[:, 0] < 10**MAX_DIGITS) & (table[:, 0] % 1 == 0)):
            return None
        return table

    def _take(self, line: bytes, tag: bytes, offset: int, unterminated: bool = False) -> None:
        end = offset + 5 + len(line)
        head = line[: max(line.find(b" - "), 0)]
        if not head.isdigit() or len(head) > MAX_DIGITS:
            return
        if b"\r" in line:
            line = line[: line.find(b"\r")]
        form = line.translate(None, _IN_NUMBERS)
        shape = self._shapes.get(form)
        alone = shape is None or not shape.separators or unterminated
        pairs = _pairs(line) if alone else {}
        if shape is None:
            shape = _shape_of(line, form, pairs)
            # A broken line may have the form of sound ones, and speaks for none.
            if len(self._shapes) < MAX_SHAPES and len(pairs) == line.count(b" - "):
                self._shapes[form] = shape
        if not shape.ours:
            self.foreign += 1
            return
        if unterminated and self._is_cut(pairs, line):
            self.cut = text_of(pairs.popitem()[0])
        self._shape = shape
        step = int(head)
        self._follow(step, tag, offset, line, look=alone)
        if alone:
            self._store(pairs, step, self._count)
        else:
            shape.pending.append(line)
            shape.steps.append(step)
            shape.lines.append(self._count)
        self._count += 1
        self.last_end = end

    def _follow(self, step: int, tag: bytes, offset: int, line: bytes, look: bool) -> None:
        """Continues or begins a segment; where it begins, or to ``look``, the form of the line's numbers is noted."""
        segment = self._open.get(tag)
        if segment is None or step < segment.last:
            segment = self._open[tag] = Segment(tag, offset, self._count, step, step)
            self.segments.append(segment)
            look = True
        segment.last = step
        if look and segment.fixed + segment.other < ENOUGH_FORMS:
            fixed, other = _forms(_pairs(line))
            segment.fixed += fixed
            segment.other += other

    def _is_cut(self, pairs: dict[bytes, bytes], line: bytes) -> bool:
        """Whether the file ends within this line: other lines go on after its last key."""
        keys = tuple(pairs)
        if len(keys) < 2 or b":" not in line.rpartition(b" - ")[2]:
            return False
        return any(len(known) > len(keys) and known[: len(keys)] == keys for known in self._layouts)

    def _layout(self, keys: tuple[bytes, ...]) -> _Layout:
        if keys not in self._layouts:
            self._known.update(keys)
            if len(self._known) > MAX_KEYS:
                raise ValueError(f"it holds more than {MAX_KEYS} metric names, no verl log does")
            self._layouts[keys] = _Layout()
        return self._layouts[keys]

    def _store(self, pairs: dict[bytes, bytes], step: int, number: int) -> None:
        if not pairs:
            return
        layout = self._layout(tuple(pairs))
        layout.values.fromlist([float(value) for value in pairs.values()])
        layout.steps.append(step)
        layout.lines.append(number)

    def _append(self, shape: _Shape, table: Floats, lines: Iterable[int]) -> None:
        layout = self._layout(shape.keys)
        layout.values.frombytes(table[:, 1:].tobytes())
        layout.steps.frombytes(table[:, 0].astype(np.int64).tobytes())
        layout.lines.extend(lines)

    def _convert(self, shape: _Shape) -> None:
        """Converts and stores the pending lines of one shape."""
        table = _numbers(b"\n".join(shape.pending), shape, len(shape.pending))
        if table is not None and np.array_equal(table[:, 0], shape.steps):
            self._append(shape, table, shape.lines)
        else:
            for line, step, number in zip(shape.pending, shape.steps, shape.lines):
                self._store(_pairs(line), step, number)
        shape.pending, shape.steps, shape.lines = [], [], []

    def history(self, rounded: bool, since: int = 0) -> History:
        """The history of the lines from number ``since`` on; ``rounded``: they are printed with three decimals."""
        if len(self._layouts) == 1 and not since:
            ((keys, layout),) = self._layouts.items()
            direct = _direct_history(keys, layout, rounded)
            if direct is not None:
                return direct
        places: dict[bytes, list[tuple[_Layout, int]]] = {}
        for layout_keys, layout in self._layouts.items():
            for column, key in enumerate(layout_keys):
                places.setdefault(key, []).append((layout, column))
        tables = {
            id(layout): np.frombuffer(layout.values).reshape(-1, len(keys)) for keys, layout in self._layouts.items()
        }
        orders: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        points: dict[str, tuple[Ints, Floats]] = {}
        for key, holding in places.items():
            members = tuple(id(layout) for layout, _ in holding)
            if members not in orders:
                lines = np.concatenate([np.frombuffer(layout.lines, np.int64) for layout, _ in holding])
                steps = np.concatenate([np.frombuffer(layout.steps, np.int64) for layout, _ in holding])
                order = np.argsort(lines, kind="stable")
                order = order[np.searchsorted(lines[order], since) :]
                orders[members] = order, steps[order]
            order, steps = orders[members]
            values = np.concatenate([tables[id(layout)][:, column] for layout, column in holding])[order]
            points[text_of(key)] = (steps, values)
        return History.from_points(points, dict.fromkeys(points, 3) if rounded else {})


def _direct_history(keys: tuple[bytes, ...], layout: _Layout, rounded: bool) -> History | None:
    """What `History.from_points` makes of one table whose steps increase: the ordinary case, without its checks."""
    steps = np.array(layout.steps)
    names = [text_of(key) for key in keys]
    if np.any(steps[1:] <= steps[:-1]) or len(set(names)) < len(names):
        return None
    table = np.ascontiguousarray(np.frombuffer(layout.values).reshape(-1, len(keys)).T)
    bad = ~np.isfinite(table)
    nonfinite = {names[row]: steps[bad[row]] for row in np.flatnonzero(bad.any(axis=1))}
    return History(steps, dict(zip(names, table)), nonfinite, 0, dict.fromkeys(names, 3) if rounded else {})


def text_of(key: bytes) -> str:
    """A metric name as text."""
    return key.decode("utf-8", "replace").strip()


def _shape_of(line: bytes, form: bytes, pairs: dict[bytes, bytes]) -> _Shape:
    ours = any(b"/" in key and key.partition(b"/")[0].decode("ascii", "replace") in ROOTS for key in pairs)
    shape = _Shape(form, ours, tuple(pairs), spelt=any(word in line for word in (b"np.", *(w for w, _ in _SPELT))))
    if ours and len(pairs) == line.count(b" - ") == line.count(b":"):
        # A longer separator may end as a shorter one does.
        left = {_reduced(b" - " + key + b":") for key in pairs}
        shape.separators = sorted(left, key=len, reverse=True)
    return shape


def _reduced(text: bytes) -> bytes:
    """What is left of lines without the characters that no number has: ``22-:0.45-3:1E-06,23-:...``."""
    text = text.translate(_COMMAS, _OTHERS)
    # The letter e is frequent in keys; in numbers it is followed by a sign, always.
    return text.replace(b"e-", b"E-").replace(b"e+", b"E+").translate(None, b"e")


def _numbers(text: bytes, shape: _Shape, count: int) -> Floats | None:
    """The steps and values of ``count`` lines of one shape, (count, 1 + keys); None where they cannot be told."""
    if shape.spelt:
        text = text.replace(b"np.float64(", b"")
        if b"np." in text:
            text = _WRAPPER.sub(b"", text)
        for word, number in _SPELT:
            text = text.replace(word, number)
    text = _reduced(text)
    for separator in shape.separators:
        # Of the same length, since that is replaced in place.
        text = text.replace(separator, b" " * (len(separator) - 1) + b",")
    width = len(shape.keys) + 1
    try:
        numbers = from_json(b"[" + text + b"]")
        if len(numbers) != count * width:
            return None
        table = np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers)).reshape(count, width)
    except (ValueError, struct.error, OverflowError):
        return None
    if shape.spelt:
        table = table.copy()
        table[table == _NAN] = np.nan
        table[np.abs(table) == _INF] *= np.inf
    return table


def _pairs(line: bytes) -> dict[bytes, bytes]:
    """Each ``key:value`` after the step; what is no such pair is left out, and of equal keys the last counts."""
    pairs: dict[bytes, bytes] = {}
    _, *items, last = line.split(b" - ")
    for match in (*map(_PAIR.match, items), _LAST_PAIR.match(last)):
        if match:
            pairs.pop(match[1], None)
            pairs[match[1]] = _WORDS.get(match[2], match[2])
    return pairs


def _forms(pairs: dict[bytes, bytes]) -> tuple[int, int]:
    """How many values have exactly three decimals, and how many have not."""
    fixed = sum(_FIXED.fullmatch(value) is not None for value in pairs.values())
    finite = sum(math.isfinite(float(value)) for value in pairs.values())
    return fixed, finite - fixed

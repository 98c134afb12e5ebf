"""The metrics of verl's step lines, read from the bytes of a console log.

verl prints one line a logger call, ``step:N - key:value - key:value ...``, with Ray's prefix of the printing process
before it and anything at all on the lines between. The whole file is searched for ``step:N - ``; a hit is a step line
only where text begins (`LineStarts`), and only with a metric name of verl's own: model outputs print anything.

Nearly all lines of a log have the same keys in the same order. So the first line of each shape is taken apart with
care, and the others of that shape by the block: with all characters deleted that no number has, what remains of a
key is known, and what remains of the block is a list of numbers. Where it is not, each line is taken apart by itself.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic_core import from_json

from pth_tracker.runs import Floats, History, Ints
from pth_tracker_files.verl_lines import LOOK_BACK, LineStarts

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

_BEGINNING: Final = re.compile(rb"step:\d{1,15} - ")
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

    numbers: list[Ints] = field(default_factory=list)
    """Of the lines among all step lines, ``(n,)`` each."""
    tables: list[Floats] = field(default_factory=list)
    """Their steps and values, ``(n, 1 + keys)`` each."""

    def add(self, numbers: Ints, table: Floats) -> None:
        """Adds lines."""
        self.numbers.append(numbers)
        self.tables.append(table)

    def whole(self) -> tuple[Ints, Ints, Floats]:
        """The numbers ``(n,)``, steps ``(n,)`` and values ``(keys, n)`` of all lines."""
        table = np.concatenate(self.tables)
        return np.concatenate(self.numbers), table[:, 0].astype(np.int64), np.ascontiguousarray(table[:, 1:].T)


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
    words: tuple[tuple[bytes, bytes], ...] = ()
    """The words among the values (NaN, infinity, booleans) and the numbers that stand for them."""
    wrapped: bool = False
    """Whether some values are ``np.float64(...)``."""
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
        lines: list[bytes] = []
        tags: list[bytes] = []
        starts: list[int] = []
        prefix, prefix_tag, end = b"\n", b"", 0
        for match in _BEGINNING.finditer(block):
            start = match.start()
            if start < end:
                continue
            if start >= len(prefix) and block.startswith(prefix, start - len(prefix)):
                tag: bytes | None = prefix_tag
            else:
                tag = self._starts.tag(block, start)
                line_start = block.rfind(b"\n", max(0, start - LOOK_BACK), start)
                if tag and line_start >= 0:
                    prefix, prefix_tag = block[line_start:start], tag
            if tag is None:
                continue
            end = block.find(b"\n", start)
            if end < 0:
                end = len(block)
                self._take_many(lines, tags, starts)
                lines, tags, starts = [], [], []
                self._take(block[start + 5 :], tag, offset + start, unterminated=at_end)
            else:
                lines.append(block[start + 5 : end])
                tags.append(tag)
                starts.append(offset + start)
        self._take_many(lines, tags, starts)
        for shape in self._shapes.values():
            if shape.pending:
                self._convert(shape)

    def _take_many(self, lines: list[bytes], tags: list[bytes], starts: list[int]) -> None:
        """Takes lines, all at once where they are of one shape and process and of steps that do not fall back."""
        segment = self._open.get(tags[0]) if tags else None
        if segment is not None and len(lines) > 2 and tags.count(tags[0]) == len(tags):
            table = self._table_of_all(lines)
            if table is not None and table[0, 0] >= segment.last and np.all(table[1:, 0] >= table[:-1, 0]):
                self._layout(self._shape.keys).add(np.arange(self._count, self._count + len(lines)), table)
                segment.last = int(table[-1, 0])
                self._count += len(lines)
                self.last_end = starts[-1] + len(lines[-1]) + 5
                return
        for line, tag, start in zip(lines, tags, starts):
            self._take(line, tag, start)

    def _table_of_all(self, lines: list[bytes]) -> Floats | None:
        """The steps and values of lines that all have the shape of the line before them, (lines, 1 + keys)."""
        text = b"\n".join(lines)
        if not self._shape.separators or text.translate(None, _IN_NUMBERS) != b"\n".join(
            [self._shape.form] * len(lines)
        ):
            return None
        table = _numbers(text, self._shape, len(lines))
        return None if table is None or np.any(table[:, 0] % 1) else table

    def _take(self, line: bytes, tag: bytes, offset: int, unterminated: bool = False) -> None:
        end = offset + 5 + len(line)
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
        step = int(line[: line.index(b" ")])
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
        row = [float(step), *map(float, pairs.values())]
        self._layout(tuple(pairs)).add(np.array([number]), np.array([row]))

    def _convert(self, shape: _Shape) -> None:
        """Converts and stores the pending lines of one shape."""
        table = _numbers(b"\n".join(shape.pending), shape, len(shape.pending))
        if table is not None and np.array_equal(table[:, 0], shape.steps):
            self._layout(shape.keys).add(np.array(shape.lines), table)
        else:
            for line, step, number in zip(shape.pending, shape.steps, shape.lines):
                self._store(_pairs(line), step, number)
        shape.pending, shape.steps, shape.lines = [], [], []

    def history(self, rounded: bool, since: int = 0) -> History:
        """The history of the lines from number ``since`` on; ``rounded``: they are printed with three decimals."""
        whole = {keys: layout.whole() for keys, layout in self._layouts.items()}
        if len(whole) == 1 and not since:
            ((keys, (_, steps, table)),) = whole.items()
            direct = _direct_history([text_of(key) for key in keys], steps, table, rounded)
            if direct is not None:
                return direct
        places: dict[bytes, list[tuple[tuple[bytes, ...], int]]] = {}
        for keys in whole:
            for column, key in enumerate(keys):
                places.setdefault(key, []).append((keys, column))
        orders: dict[tuple[tuple[bytes, ...], ...], tuple[Ints, Ints]] = {}
        points: dict[str, tuple[Ints, Floats]] = {}
        for key, holding in places.items():
            members = tuple(keys for keys, _ in holding)
            if members not in orders:
                numbers = np.concatenate([whole[keys][0] for keys in members])
                order = np.argsort(numbers, kind="stable")
                order = order[np.searchsorted(numbers[order], since) :]
                orders[members] = order, np.concatenate([whole[keys][1] for keys in members])[order]
            order, steps = orders[members]
            points[text_of(key)] = (steps, np.concatenate([whole[keys][2][column] for keys, column in holding])[order])
        return History.from_points(points, dict.fromkeys(points, 3) if rounded else {})


def _direct_history(names: list[str], steps: Ints, table: Floats, rounded: bool) -> History | None:
    """What `History.from_points` makes of one table whose steps increase: the ordinary case, without its checks."""
    if np.any(steps[1:] <= steps[:-1]) or len(set(names)) < len(names):
        return None
    bad = ~np.isfinite(table)
    nonfinite = {names[row]: steps[bad[row]] for row in np.flatnonzero(bad.any(axis=1))}
    return History(steps, dict(zip(names, table)), nonfinite, 0, dict.fromkeys(names, 3) if rounded else {})


def text_of(key: bytes) -> str:
    """A metric name as text."""
    return key.decode("utf-8", "replace").strip()


def _shape_of(line: bytes, form: bytes, pairs: dict[bytes, bytes]) -> _Shape:
    ours = any(b"/" in key and key.partition(b"/")[0].decode("ascii", "replace") in ROOTS for key in pairs)
    bare = _WRAPPER.sub(b"", line)
    words = tuple((word, number) for word, number in _SPELT if word in bare)
    shape = _Shape(form, ours, tuple(pairs), words=words, wrapped=bare != line)
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
    if shape.wrapped:
        text = text.replace(b"np.float64(", b"")
        if b"np." in text:
            text = _WRAPPER.sub(b"", text)
    for word, number in shape.words:
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
    if shape.words:
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

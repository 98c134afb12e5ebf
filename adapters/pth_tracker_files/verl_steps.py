"""The metrics of verl's step lines, read from the bytes of a console log.

verl prints one line a logger call, ``step:N - key:value - key:value ...``, with Ray's prefix of the printing process
before it and anything at all on the lines between. The whole file is searched for ``step:N - ``; a hit is a step line
only where text begins (`LineStarts`), and only with a metric name of verl's own: model outputs print anything.

Nearly all lines of a log have the same keys in the same order. So the first line of each layout is taken apart with
care. The others are split at their spaces and colons, and their numbers are read by the block; where that could differ
from what care finds, care it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats, History, Ints
from pth_tracker_files.verl_lines import LOOK_BACK, LineStarts
from pth_tracker_files.verl_numbers import (
    MAX_STEP_DIGITS,
    forms_of,
    numbers_of,
    pairs_of,
    parts_of,
    row_of,
    text_of,
)
from pth_tracker_files.verl_skeleton import lines_table

MAX_KEYS: Final = 20_000
"""More metric names than this in one file is no verl log."""
ENOUGH_FORMS: Final = 10_000
"""Of so many values the form is looked at, in each segment."""
ROOTS: Final = frozenset(
    "actor critic global_seqlen response_length response_length_non_aborted prompt_length response timing timing_s "
    "timing_per_token timing_per_token_ms perf mfu training train val val-core val-aux rollout_corr mismatch "
    "num_turns fully_async variance_proxy reward env state_tokens separate_async rollout_probs_diff batch".split()
)
"""What metric names of verl and its forks begin with, before the first ``/``."""

_BEGINNING: Final = re.compile(rb"step:\d{1,%d} - " % MAX_STEP_DIGITS)


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
    """Values looked at that have exactly three decimals, until one has not ..."""
    other: int = 0
    """... and that have not; NaN and infinity tell nothing and are not counted."""

    @property
    def task(self) -> bytes:
        """The process's name without its number."""
        return self.tag.partition(b"pid=")[0].strip()

    def look(self, line: bytes) -> None:
        """Notes the form of the numbers of one of its lines."""
        if not self.other and self.fixed < ENOUGH_FORMS:
            fixed, other = forms_of(pairs_of(line))
            self.fixed += fixed
            self.other += other


@dataclass
class _Layout:
    """The metrics of all lines that hold the same keys in the same order."""

    keys: tuple[bytes, ...]
    plain: bool = True
    """Whether its lines can be split at their spaces and colons."""
    numbers: list[Ints] = field(default_factory=list)
    """Of the lines among all step lines, ``(n,)`` each."""
    tables: list[Floats] = field(default_factory=list)
    """Their steps and values, ``(n, 1 + keys)`` each."""

    def add(self, numbers: Ints, table: Floats) -> None:
        """Adds lines."""
        self.numbers.append(numbers)
        self.tables.append(table)

    def whole(self, since: int) -> tuple[Ints, Ints, Floats]:
        """The numbers and steps ``(n,)`` and values ``(keys, n)`` of the lines from number ``since`` on, in order."""
        if not self.numbers:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty((len(self.keys), 0))
        numbers, table = np.concatenate(self.numbers), np.concatenate(self.tables)
        if since or np.any(numbers[1:] < numbers[:-1]):
            order = np.argsort(numbers, kind="stable")
            order = order[np.searchsorted(numbers[order], since) :]
            numbers, table = numbers[order], table[order]
        return numbers, table[:, 0].astype(np.int64), np.ascontiguousarray(table[:, 1:].T)


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
        self._starts = LineStarts()
        self._open: dict[bytes, Segment] = {}
        self._known: set[bytes] = set()
        self._count = 0
        self._prefix = b"\n"
        """What was last seen before a step line, from the line feed on, ..."""
        self._prefix_tag = b""
        """... and its process."""
        self._recent: dict[int, _Layout] = {}
        """The layout of the last lines with so many colons that could be split, ..."""
        self._latest: _Layout | None = None
        """... and of the last of them all."""

    def __len__(self) -> int:
        return self._count

    @property
    def roots(self) -> frozenset[str]:
        """What the metric names begin with, before their first ``/``."""
        return frozenset(text_of(key).partition("/")[0] for key in self._known)

    def scan(self, block: bytes, offset: int, at_end: bool) -> None:
        """Takes all step lines of a ``block`` of whole lines that begins at ``offset`` in its file."""
        if self._take_uniform(block, offset):
            return
        lines: list[bytes] = []
        tags: list[bytes] = []
        starts: list[int] = []
        prefix, prefix_tag, end = self._prefix, self._prefix_tag, 0
        for start in _beginnings(block):
            if start < end:
                continue
            if start >= len(prefix) and block.startswith(prefix, start - len(prefix)):
                tag: bytes | None = prefix_tag
            else:
                tag = self._starts.tag(block, start)
                line_start = block.rfind(b"\n", max(0, start - LOOK_BACK), start)
                if tag is not None and line_start >= 0:
                    self._prefix, self._prefix_tag = prefix, prefix_tag = block[line_start:start], tag
            if tag is None:
                continue
            end = block.find(b"\n", start)
            if end < 0:
                end = len(block)
                self._take(lines, tags, starts)
                last = self._without_cut(block[start + 5 :]) if at_end else block[start + 5 :]
                lines, tags, starts = [last], [tag], [offset + start]
                break
            lines.append(block[start + 5 : end])
            tags.append(tag)
            starts.append(offset + start)
        self._take(lines, tags, starts)

    def _take_uniform(self, block: bytes, offset: int) -> bool:
        """Takes a block of nothing but lines that continue one segment in one layout, and says whether it is that."""
        mark, segment, layout = self._prefix + b"step:", self._open.get(self._prefix_tag), self._latest
        if not block.startswith(mark[1:]) or segment is None or layout is None or b"\r" in block:
            return False
        second = block.find(b"\n")
        if not block.endswith(b"\n") or not (second + 1 == len(block) or block.startswith(mark, second)):
            return False
        table = lines_table(block, self._prefix, layout.keys, len(block) // second)
        if table is None or table[0, 0] < segment.last or np.any(table[1:, 0] < table[:-1, 0]):
            return False
        segment.last = int(table[-1, 0])
        segment.look(block[len(mark) - 1 : block.index(b"\n")])
        layout.add(self._count + np.arange(len(table)), table)
        self._count += len(table)
        self.last_end = offset + len(block) - 1
        return True

    def _take(self, lines: list[bytes], tags: list[bytes], starts: list[int]) -> None:
        """Takes lines, those of each layout at once."""
        if not lines:
            return
        for index, line in enumerate(lines):
            if b"\r" in line:
                lines[index] = line.partition(b"\r")[0]
        steps = np.zeros(len(lines), np.int64)
        kept = np.zeros(len(lines), np.bool_)
        taken = list(self._tables(lines))
        for _, indices, table in taken:
            steps[indices], kept[indices] = table[:, 0], True
        numbers = self._count + np.cumsum(kept) - 1
        self._follow(lines, tags, starts, steps, kept, numbers, {indices[0] for _, indices, _ in taken})
        for layout, indices, table in taken:
            layout.add(numbers[indices], table)
        if taken:
            last = int(np.flatnonzero(kept)[-1])
            self._count += int(kept.sum())
            self.last_end = starts[last] + 5 + len(lines[last])

    def _tables(self, lines: Sequence[bytes]) -> Iterator[tuple[_Layout, list[int], Floats]]:
        """The layouts, line indices and steps with values ``(n, 1 + keys)`` of lines; what is not verl's is counted."""
        by_colons: dict[int, list[int]] = {}
        for index, line in enumerate(lines):
            by_colons.setdefault(line.count(b":"), []).append(index)
        others: list[int] = []
        for colons, indices in by_colons.items():
            own = [lines[index] for index in indices]
            layout = self._recent.get(colons) or self._layout_like(own[0])
            block = b"step:" + b"\nstep:".join(own) + b"\n"
            table = lines_table(block, b"\n", layout.keys, len(own)) if layout is not None else None
            if layout is None or table is None:
                others += indices
                continue
            self._recent[colons] = self._latest = layout
            yield layout, indices, table
        alike, unlike = self._sorted(lines, sorted(others))
        for layout, indices, values in alike:
            numbers = numbers_of(values)
            if numbers is not None:
                yield layout, indices, numbers.reshape(len(indices), 1 + len(layout.keys))
            else:
                unlike += indices
        for index in sorted(unlike):
            pairs = pairs_of(lines[index])
            if _is_ours(pairs):
                yield self._layout(tuple(pairs)), [index], np.array([row_of(lines[index], pairs)])
            else:
                self.foreign += 1

    def _layout_like(self, line: bytes) -> _Layout | None:
        """The layout of a line; None where it cannot be split."""
        parts = parts_of(line)
        layout = None if parts is None else self._layout_of(tuple(parts[2::3]), line, parts)
        return layout if layout is not None and layout.plain else None

    def _sorted(
        self, lines: Sequence[bytes], chosen: Sequence[int]
    ) -> tuple[list[tuple[_Layout, list[int], list[bytes]]], list[int]]:
        """The ``chosen`` lines by layout, each with indices and values in a row, and the indices of the others."""
        alike: dict[tuple[bytes, ...], tuple[_Layout, list[int], list[bytes]]] = {}
        unlike: list[int] = []
        last: tuple[bytes, ...] = ()
        for index in chosen:
            line = lines[index]
            parts = parts_of(line)
            if parts is None:
                unlike.append(index)
                continue
            keys = tuple(parts[2::3])
            if keys != last:
                last = keys
                if keys not in alike:
                    alike[keys] = self._layout_of(keys, line, parts), [], []
                layout, indices, values = alike[keys]
            if layout.plain:
                self._recent[line.count(b":")] = self._latest = layout
                indices.append(index)
                values += parts[::3]
            else:
                unlike.append(index)
        return [entry for entry in alike.values() if entry[1]], unlike

    def _layout_of(self, keys: tuple[bytes, ...], line: bytes, parts: Sequence[bytes]) -> _Layout:
        """The layout of a line that was split, made known if it is the first of its keys."""
        if keys in self._layouts:
            return self._layouts[keys]
        pairs = pairs_of(line)
        values = numbers_of(parts[::3])
        same = values is not None and np.array_equal(values, row_of(line, pairs), equal_nan=True)
        plain = same and tuple(pairs) == keys and _is_ours(keys)
        # A broken line may have the keys of sound ones, and speaks for none.
        return self._layout(keys) if plain else _Layout(keys, plain=False)

    def _follow(
        self,
        lines: list[bytes],
        tags: list[bytes],
        starts: list[int],
        steps: Ints,
        kept: npt.NDArray[np.bool_],
        numbers: Ints,
        fresh: set[int],
    ) -> None:
        """Continues and begins segments; where one begins, and in ``fresh`` lines, the form of the numbers is noted."""
        own = steps[kept]
        segment = self._open.get(tags[0])
        going_on = segment is not None and tags.count(tags[0]) == len(tags) and len(own) > 0
        if segment is not None and going_on and own[0] >= segment.last and np.all(own[1:] >= own[:-1]):
            segment.last = int(own[-1])
            for index in fresh:
                if kept[index]:
                    segment.look(lines[index])
            return
        for index in np.flatnonzero(kept).tolist():
            tag, step = tags[index], int(steps[index])
            segment = self._open.get(tag)
            begins = segment is None or step < segment.last
            if segment is None or begins:
                segment = self._open[tag] = Segment(tag, starts[index], int(numbers[index]), step, step)
                self.segments.append(segment)
            segment.last = step
            if begins or index in fresh:
                segment.look(lines[index])

    def _without_cut(self, line: bytes) -> bytes:
        """The last line of a file without its last value, where other lines go on after its last key."""
        pairs = pairs_of(line.partition(b"\r")[0])
        if b"\r" in line or not self._is_cut(tuple(pairs), line):
            return line
        self.cut = text_of(next(reversed(pairs)))
        return line.rpartition(b" - ")[0]

    def _is_cut(self, keys: tuple[bytes, ...], line: bytes) -> bool:
        if len(keys) < 2 or b":" not in line.rpartition(b" - ")[2]:
            return False
        return any(len(known) > len(keys) and known[: len(keys)] == keys for known in self._layouts)

    def _layout(self, keys: tuple[bytes, ...]) -> _Layout:
        if keys not in self._layouts:
            self._known.update(keys)
            if len(self._known) > MAX_KEYS:
                raise ValueError(f"it holds more than {MAX_KEYS} metric names, no verl log does")
            self._layouts[keys] = _Layout(keys)
        return self._layouts[keys]

    def history(self, rounded: bool, since: int = 0) -> History:
        """The history of the lines from number ``since`` on; ``rounded``: they are printed with three decimals."""
        whole = {keys: layout.whole(since) for keys, layout in self._layouts.items()}
        decimals = dict.fromkeys((text_of(key) for keys in whole for key in keys), 3) if rounded else {}
        direct = _direct_history(whole, decimals)
        if direct is not None:
            return direct
        pieces: dict[str, list[tuple[Ints, Ints, Floats]]] = {}
        for keys, (numbers, steps, table) in whole.items():
            for column, key in enumerate(keys):
                pieces.setdefault(text_of(key), []).append((numbers, steps, table[column]))
        points: dict[str, tuple[Ints, Floats]] = {}
        for name, parts in pieces.items():
            order = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]), kind="stable")
            steps = np.concatenate([steps for _, steps, _ in parts])[order]
            points[name] = (steps, np.concatenate([values for _, _, values in parts])[order])
        return History.from_points(points, decimals)


def _direct_history(
    whole: Mapping[tuple[bytes, ...], tuple[Ints, Ints, Floats]], decimals: Mapping[str, int]
) -> History | None:
    """What `History.from_points` makes of lines that each have a step of their own: the ordinary case, much faster."""
    if not whole:
        return None
    all_steps = np.concatenate([steps for _, steps, _ in whole.values()])
    order = np.argsort(np.concatenate([numbers for numbers, _, _ in whole.values()]))
    union = all_steps[order]
    names = [text_of(key) for keys in whole for key in keys]
    known = {key for keys in whole for key in keys}
    if np.any(union[1:] <= union[:-1]) or len(set(names)) < len(known):
        return None
    values: dict[str, Floats] = {}
    nonfinite: dict[str, Ints] = {}
    for keys, (_, steps, table) in whole.items():
        places = np.searchsorted(union, steps)
        bad = ~np.isfinite(table)
        for row in np.flatnonzero(bad.any(axis=1)).tolist():
            name = text_of(keys[row])
            nonfinite[name] = np.sort(np.append(nonfinite.get(name, steps[:0]), steps[bad[row]]))
        for column, key in zip(table, keys):
            name = text_of(key)
            if len(places) == len(union):
                values[name] = column
            else:
                values.setdefault(name, np.full(len(union), np.nan))[places] = column
    held = {name: column for name, column in values.items() if len(column)}
    return History(union, held, nonfinite, 0, {name: digits for name, digits in decimals.items() if name in held})


def _beginnings(block: bytes) -> Iterator[int]:
    """Where ``step:N - `` stands in ``block``."""
    data = np.frombuffer(block, np.uint8)
    colons = np.flatnonzero(data == ord(":"))
    # Far faster than searching for the whole text, which has no rare byte.
    for colon in colons[(data[colons - 1] == ord("p")) & (data[colons - 2] == ord("e"))].tolist():
        if colon >= 4 and _BEGINNING.match(block, colon - 4):
            yield colon - 4


def _is_ours(keys: Iterable[bytes]) -> bool:
    return any(b"/" in key and key.partition(b"/")[0].decode("ascii", "replace") in ROOTS for key in keys)

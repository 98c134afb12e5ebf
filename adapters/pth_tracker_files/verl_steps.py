"""The metrics of verl's step lines, read from the bytes of a console log.

verl prints one line a logger call, ``step:N - key:value - key:value ...``, with Ray's prefix of the printing process
before it and anything at all on the lines between. The whole file is searched for ``step:N - ``; a hit is a step line
only where text begins (`LineStarts`), and only with a metric name of verl's own: model outputs print anything.

Nearly all lines of a log have the same keys in the same order. So the first line of each shape is taken apart with
care, and the others of that shape by the block: with all characters deleted that no number has, what remains of a
key is known, and what remains of the block is a list of numbers. Where it is not, each line is taken apart by itself.
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
from pth_tracker_files.verl_numbers import IN_NUMBERS, Shape, forms_of, numbers_of, pairs_of, row_of, shape_of, text_of

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

    def look(self, line: bytes) -> None:
        """Notes the form of the numbers of one of its lines."""
        if self.fixed + self.other < ENOUGH_FORMS:
            fixed, other = forms_of(pairs_of(line))
            self.fixed += fixed
            self.other += other


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

    def whole(self, since: int) -> tuple[Ints, Ints, Floats]:
        """The numbers and steps ``(n,)`` and values ``(keys, n)`` of the lines from number ``since`` on, in order."""
        table, numbers = np.concatenate(self.tables), np.concatenate(self.numbers)
        # Lines of several shapes may hold one set of keys.
        order = np.argsort(numbers, kind="stable")
        order = order[np.searchsorted(numbers[order], since) :]
        table, numbers = table[order], numbers[order]
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
        self._shapes: dict[bytes, Shape] = {}
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
                self._take(lines, tags, starts)
                last = self._without_cut(block[start + 5 :]) if at_end else block[start + 5 :]
                lines, tags, starts = [last], [tag], [offset + start]
                break
            lines.append(block[start + 5 : end])
            tags.append(tag)
            starts.append(offset + start)
        self._take(lines, tags, starts)

    def _take(self, lines: list[bytes], tags: list[bytes], starts: list[int]) -> None:
        """Takes lines, each shape of them at once."""
        if not lines:
            return
        text = b"\n".join(lines)
        if b"\r" in text:
            lines = [line.partition(b"\r")[0] for line in lines]
            text = b"\n".join(lines)
        forms = text.translate(None, IN_NUMBERS).split(b"\n")
        groups: dict[bytes, list[int]] = {forms[0]: list(range(len(lines)))}
        if forms.count(forms[0]) < len(forms):
            groups = {}
            for index, form in enumerate(forms):
                groups.setdefault(form, []).append(index)
        steps = np.zeros(len(lines), np.int64)
        kept = np.zeros(len(lines), np.bool_)
        fresh: set[int] = set()
        parts: list[tuple[tuple[bytes, ...], list[int], Floats]] = []
        for form, indices in groups.items():
            if form not in self._shapes:
                fresh.add(indices[0])
            for keys, own, table in self._tables(form, [lines[index] for index in indices]):
                places = [indices[index] for index in own]
                steps[places], kept[places] = table[:, 0], True
                parts.append((keys, places, table))
        numbers = self._count + np.cumsum(kept) - 1
        self._follow(lines, tags, starts, steps, kept, numbers, fresh)
        for keys, places, table in parts:
            self._layout(keys).add(numbers[places], table)
        taken = int(kept.sum())
        self._count += taken
        if taken:
            last = int(np.flatnonzero(kept)[-1])
            self.last_end = starts[last] + 5 + len(lines[last])

    def _tables(self, form: bytes, lines: list[bytes]) -> Iterator[tuple[tuple[bytes, ...], Sequence[int], Floats]]:
        """The keys, line indices and steps with values ``(n, 1 + keys)`` of lines of one form."""
        shape = self._shapes.get(form)
        if shape is None:
            pairs = pairs_of(lines[0])
            shape = shape_of(lines[0], pairs)
            # A broken line may have the form of sound ones, and speaks for none.
            if len(self._shapes) < MAX_SHAPES and len(pairs) == lines[0].count(b" - "):
                self._shapes[form] = shape
        if shape.separators and _is_ours(shape.keys):
            table = numbers_of(lines, shape)
            if table is not None and not np.any(table[:, 0] % 1):
                yield shape.keys, range(len(lines)), table
                return
        for index, line in enumerate(lines):
            pairs = pairs_of(line)
            if _is_ours(pairs):
                yield tuple(pairs), [index], np.array([row_of(line, pairs)])
            else:
                self.foreign += 1

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
            self._layouts[keys] = _Layout()
        return self._layouts[keys]

    def history(self, rounded: bool, since: int = 0) -> History:
        """The history of the lines from number ``since`` on; ``rounded``: they are printed with three decimals."""
        whole = {keys: layout.whole(since) for keys, layout in self._layouts.items()}
        decimals = dict.fromkeys((text_of(key) for keys in whole for key in keys), 3) if rounded else {}
        direct = _direct_history(whole, decimals)
        if direct is not None:
            return direct
        pieces: dict[bytes, list[tuple[Ints, Ints, Floats]]] = {}
        for keys, (numbers, steps, table) in whole.items():
            for column, key in enumerate(keys):
                pieces.setdefault(key, []).append((numbers, steps, table[column]))
        points: dict[str, tuple[Ints, Floats]] = {}
        for key, parts in pieces.items():
            order = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]), kind="stable")
            steps = np.concatenate([steps for _, steps, _ in parts])[order]
            points[text_of(key)] = (steps, np.concatenate([values for _, _, values in parts])[order])
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


def _is_ours(keys: Iterable[bytes]) -> bool:
    return any(b"/" in key and key.partition(b"/")[0].decode("ascii", "replace") in ROOTS for key in keys)

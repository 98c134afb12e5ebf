"""The numbers of many step lines that differ in nothing else, read column by column.

Between two numbers such lines hold the same text, the same in every line. Its colons tell where it stands; it is then
compared many bytes at a time for all lines at once, and what is left are the numbers, which Arrow converts in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats, Ints
from pth_tracker_files.verl_numbers import MAX_STEP_DIGITS, table_of

_WORD: Final = 16
"""Bytes compared at once."""
MANY_LINES: Final = 16
"""So many lines of a block are read column by column."""
ENOUGH_VALUES: Final = 500_000
"""So many values must be read before importing Arrow pays."""
_WORD_TYPE: Final = f"V{_WORD}"
_WRAPPERS: Final = (b"np.float64(", b"np.float32(")
_NONFINITE: Final = frozenset((b"nan", b"inf", b"-inf"))
"""The only spellings that verl prints; Arrow knows others."""


_read = 0
"""Values that this process has met, up to `ENOUGH_VALUES`."""


def pays(values: int) -> bool:
    """Whether so many ``values``, with all this process has met before, are worth importing Arrow."""
    global _read
    _read = min(_read + values, ENOUGH_VALUES)
    return _read >= ENOUGH_VALUES or "pyarrow" in sys.modules


def lines_table(block: bytes, prefix: bytes, keys: tuple[bytes, ...], about: int) -> Floats | None:
    """The steps and values ``(lines, 1 + keys)`` of ``about`` so many lines; None where they are anything else."""
    if about >= MANY_LINES and pays(about * len(keys)):
        table = skeleton_of(prefix, keys).table(block)
        if table is not None:
            return table
    text = (b"\n" + block[:-1]).replace(prefix + b"step:", b"\n- step:")
    return table_of(text, keys, block.count(b"\n"))


@lru_cache(maxsize=64)
def skeleton_of(prefix: bytes, keys: tuple[bytes, ...]) -> Skeleton:
    """The skeleton of lines, made once."""
    return Skeleton(prefix, keys)


class Skeleton:
    """What lines of one process with the same keys in the same order have in common.

    Args:
        prefix: what precedes ``step:``, from the line feed on.
        keys: the metric names.
    """

    def __init__(self, prefix: bytes, keys: Sequence[bytes]) -> None:
        texts = [prefix + b"step:", *(b" - %b:" % key for key in keys)]
        self._columns = len(texts)
        self._lengths = np.array([len(text) for text in texts])
        colons = list(accumulate(text.count(b":") for text in texts))
        self._colons = colons[-1]
        self._last_colons = np.array(colons) - 1
        """Of the colons of a line, those that end a text, ``(texts,)``."""
        words = [(column, start) for column, text in enumerate(texts) for start in _word_starts(text)]
        self._word_columns = np.array([column for column, _ in words])
        self._word_offsets = np.array([start - (len(texts[column]) - 1) for column, start in words])
        """Where words begin, counted from the colon that ends their text, ``(words,)``."""
        self._words = _joined(_word(texts[column], start) for column, start in words)
        self._masks = _joined(_word(b"\xff" * len(texts[column]), start) for column, start in words)

    def table(self, block: bytes) -> Floats | None:
        """The steps and values ``(lines, 1 + keys)`` of a block of whole lines; None where it holds anything else."""
        bare = _unwrapped(block) if block.endswith(b"\n") else None
        if bare is None:
            return None
        text = b" " * _WORD + b"\n" + bare
        data = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(data == ord(":"))
        if not len(ends) or len(ends) % self._colons:
            return None
        ends = np.take(ends.reshape(-1, self._colons), self._last_colons, axis=1)
        windows = np.ndarray((len(text) - _WORD + 1,), _WORD_TYPE, text, 0, (1,))
        places = np.take(ends, self._word_columns, axis=1) + self._word_offsets
        if places.min() < 0 or np.any((windows[places].view(np.uint64) & self._masks) != self._words):
            return None
        begins = (ends + 1).ravel()
        stops = np.append((ends - self._lengths + 1).ravel()[1:], len(text) - 1)
        if np.any(stops <= begins):
            return None
        steps = [text[a:b] for a, b in zip(begins[:: self._columns], stops[:: self._columns])]
        if not b"".join(steps).isdigit() or max(map(len, steps)) > MAX_STEP_DIGITS:
            return None
        values = _converted(text, begins, stops)
        return None if values is None else values.reshape(-1, self._columns)


def _word_starts(text: bytes) -> list[int]:
    """Where in ``text`` the words begin that cover it; the last ends with it."""
    last = len(text) - _WORD
    return [*range(0, last, _WORD), last]


def _word(text: bytes, start: int) -> bytes:
    """One word of ``text``; what is before it is zero."""
    return text[start : start + _WORD] if start >= 0 else text.rjust(_WORD, b"\0")


def _joined(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(words), np.uint64)


def _unwrapped(block: bytes) -> bytes | None:
    """The block with NumPy's scalars as bare numbers; None where brackets are left over."""
    if b":np." not in block[: block.index(b"\n")]:
        return block  # where wrappers come later, no number is found in their place
    bare = block
    for wrapper in _WRAPPERS:
        bare = bare.replace(b":" + wrapper, b":")
    opened = sum(block.count(b":" + wrapper) for wrapper in _WRAPPERS)
    closed = bare.replace(b") - ", b" - ").replace(b")\n", b"\n")
    return closed if len(bare) - len(closed) == opened else None


def _converted(text: bytes, begins: Ints, stops: Ints) -> Floats | None:
    """The numbers ``(n,)`` between ``begins`` and ``stops``; None where one is none, or of no ordinary spelling."""
    import pyarrow as pa

    count = len(begins)
    # Numbers and the texts between them are the strings of one array, of which the texts are no values.
    offsets = np.column_stack((begins, stops)).astype(np.int32)
    valid = np.full(count // 4 + 1, 0b01010101, np.uint8)
    buffers = (pa.py_buffer(offsets), pa.py_buffer(text), pa.py_buffer(valid))
    try:
        numbers = pa.StringArray.from_buffers(2 * count - 1, *buffers).cast(pa.float64())
    except pa.ArrowInvalid:
        return None
    values: Floats = np.frombuffer(numbers.buffers()[1], np.float64)[: 2 * count - 1 : 2]
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        if text[begins[index] : stops[index]] not in _NONFINITE:
            return None
    return values

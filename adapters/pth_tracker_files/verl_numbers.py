"""The numbers of step lines: of one line with care, of many lines of one shape at once."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic_core import from_json

from pth_tracker.runs import Floats

_NUMBER: Final = rb"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)|True|False"
_PAIR: Final = re.compile(rb"(.*):(?:np\.\w+\()?(" + _NUMBER + rb")\)?\s*\Z", re.DOTALL)
_LAST_PAIR: Final = re.compile(rb"(.*?):(?:np\.\w+\()?(" + _NUMBER + rb")\)?(?=[\s\x1b(\[{]|\Z)", re.DOTALL)
_WRAPPER: Final = re.compile(rb"np\.\w+\(")
_FIXED: Final = re.compile(rb"-?\d+\.\d{3}")
_WORDS: Final = {b"True": b"1.0", b"False": b"0.0"}

IN_NUMBERS: Final = b"0123456789.+-eE"
_COMMAS: Final = bytes.maketrans(b"\n", b",")
_OTHERS: Final = bytes(code for code in range(256) if code not in IN_NUMBERS + b":\n")
_NAN, _INF = 1.6180339887e308, 1.4142135623e308
"""Stand for what JSON has no numbers for while a block is converted; nothing logs these."""
_SPELT: Final = (
    (b":nan", f":{_NAN!r}".encode()),
    (b":inf", f":{_INF!r}".encode()),
    (b":-inf", f":-{_INF!r}".encode()),
    (b":True", b":1"),
    (b":False", b":0"),
)


@dataclass(frozen=True)
class Shape:
    """Lines that are equal but for the characters of numbers, which are converted together."""

    keys: tuple[bytes, ...]
    separators: tuple[bytes, ...] = ()
    """What remains of `` - key:``, longest first; none: each line is taken apart by itself."""
    words: tuple[tuple[bytes, bytes], ...] = ()
    """The words among the values (NaN, infinity, booleans) and the numbers that stand for them."""
    wrapped: bool = False
    """Whether some values are ``np.float64(...)``."""


def text_of(key: bytes) -> str:
    """A metric name as text."""
    return key.decode("utf-8", "replace").strip()


def shape_of(line: bytes, pairs: Mapping[bytes, bytes]) -> Shape:
    """The shape of which ``line``, with its ``pairs``, is the first."""
    bare = _WRAPPER.sub(b"", line)
    words = tuple((word, number) for word, number in _SPELT if word in bare)
    whole = _PAIR.match(line.rpartition(b" - ")[2]) is not None
    if not whole or len(pairs) != line.count(b" - ") or len(pairs) != line.count(b":"):
        return Shape(tuple(pairs))
    # A longer separator may end as a shorter one does.
    separators = sorted({_reduced(b" - " + key + b":") for key in pairs}, key=len, reverse=True)
    shape = Shape(tuple(pairs), tuple(separators), words, bare != line)
    # The two ways of reading a line must agree.
    table = numbers_of([line], shape)
    same = table is not None and np.array_equal(table[0], row_of(line, pairs), equal_nan=True)
    return shape if same else Shape(tuple(pairs))


def _reduced(text: bytes) -> bytes:
    """What is left of lines without the characters that no number has: ``22-:0.45-3:1E-06,23-:...``."""
    text = text.translate(_COMMAS, _OTHERS)
    # The letter e is frequent in keys; in numbers it is followed by a sign, always.
    text = text.replace(b"e-", b"E-")
    return (text.replace(b"e+", b"E+") if b"e+" in text else text).translate(None, b"e")


def numbers_of(lines: Sequence[bytes], shape: Shape) -> Floats | None:
    """The steps and values of lines of one shape, ``(lines, 1 + keys)``; None where they cannot be told."""
    text, count = b"\n".join(lines), len(lines)
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


def pairs_of(line: bytes) -> dict[bytes, bytes]:
    """Each ``key:value`` after the step; what is no such pair is left out, and of equal keys the last counts."""
    pairs: dict[bytes, bytes] = {}
    _, *items, last = line.split(b" - ")
    for match in (*map(_PAIR.match, items), _LAST_PAIR.match(last)):
        if match:
            pairs.pop(match[1], None)
            pairs[match[1]] = _WORDS.get(match[2], match[2])
    return pairs


def row_of(line: bytes, pairs: Mapping[bytes, bytes]) -> list[float]:
    """The step and the values of a line."""
    return [float(line[: line.index(b" ")]), *map(float, pairs.values())]


def forms_of(pairs: dict[bytes, bytes]) -> tuple[int, int]:
    """How many values have exactly three decimals, and how many have not."""
    fixed = sum(_FIXED.fullmatch(value) is not None for value in pairs.values())
    finite = sum(math.isfinite(float(value)) for value in pairs.values())
    return fixed, finite - fixed

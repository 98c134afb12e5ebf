"""The numbers of step lines: of one line with care, of many lines in the ordinary spelling at once."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from pydantic_core import from_json

from pth_tracker.runs import Floats

_NUMBER: Final = rb"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)|True|False"
_PAIR: Final = re.compile(rb"(.*):(?:np\.\w+\()?(" + _NUMBER + rb")\)?\s*\Z", re.DOTALL)
_LAST_PAIR: Final = re.compile(rb"(.*?):(?:np\.\w+\()?(" + _NUMBER + rb")\)?(?=[\s\x1b(\[{]|\Z)", re.DOTALL)
_WRAPPER: Final = re.compile(rb",np\.\w+\(")
_FIXED: Final = re.compile(rb"-?\d+\.\d{3}")
_OTHER_SPACE: Final = (b"\t", b"\r", b"\v", b"\f")
MAX_STEP_DIGITS: Final = 15
_WORDS: Final = {b"True": b"1.0", b"False": b"0.0"}
_JSON_WORDS: Final = {**_WORDS, b"nan": b"NaN", b"inf": b"Infinity", b"-inf": b"-Infinity"}


def text_of(key: bytes) -> str:
    """A metric name as text."""
    return key.decode("utf-8", "replace").strip()


def parts_of(line: bytes) -> list[bytes] | None:
    """``12 - key:value - key:value`` as ``[12, -, key, value, -, key, value]``; None where it is not just that.

    Far faster than `pairs_of`, and right wherever that finds the same keys.
    """
    parts = line.replace(b":", b" ").split()
    dashes = parts[1::3]
    if len(parts) != 1 + 3 * len(dashes) or dashes.count(b"-") != len(dashes):
        return None
    return parts if _is_regular(line, len(dashes), 2 * len(dashes)) else None


def table_of(text: bytes, keys: Sequence[bytes], count: int) -> Floats | None:
    """The steps and values ``(count, 1 + keys)`` in lines ``- step:value - key:value``; None where they are not that.

    The lines are separated by line feeds.
    """
    columns = 1 + len(keys)
    if not _is_regular(text, columns * count, (2 * columns - 1) * count):
        return None
    parts = text.replace(b":", b" ").split()
    if len(parts) != 3 * columns * count or parts[::3].count(b"-") != columns * count:
        return None
    if parts[1::3] != [b"step", *keys] * count:
        return None
    steps = parts[2 :: 3 * columns]
    if not b"".join(steps).isdigit() or max(map(len, steps)) > MAX_STEP_DIGITS:
        return None
    numbers = numbers_of(parts[2::3])
    return None if numbers is None else numbers.reshape(count, columns)


def _is_regular(text: bytes, colons: int, spaces: int) -> bool:
    """Whether there are so many colons and spaces and no other white space within lines, so that none is misplaced."""
    if text.count(b":") != colons or text.count(b" ") != spaces:
        return False
    return not any(space in text for space in _OTHER_SPACE)


def numbers_of(values: Sequence[bytes]) -> Floats | None:
    """The values ``(n,)`` of their spellings; None where one has no ordinary spelling."""
    text = b",".join(values)
    if b"N" in text or b"I" in text:
        return None  # JSON's words, which are none of Python's
    try:
        try:
            numbers = from_json(b"[" + text + b"]")
        except ValueError:
            numbers = from_json(b"[" + _as_json(text) + b"]")
        if len(numbers) != len(values):
            return None
        return np.frombuffer(struct.pack(f"{len(numbers)}d", *numbers))
    except (ValueError, struct.error, OverflowError):
        return None


def _as_json(text: bytes) -> bytes:
    """Values joined by commas, the NumPy scalars taken out of their wrappers and the words spelt as JSON does."""
    bare = (b",%b," % text).replace(b",np.float64(", b",").replace(b"),", b",")
    if b"np." in bare:
        bare = _WRAPPER.sub(b",", bare)
    return b",".join([_JSON_WORDS.get(value, value) for value in bare[1:-1].split(b",")])


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


def forms_of(pairs: Mapping[bytes, bytes]) -> tuple[int, int]:
    """How many values have exactly three decimals, and how many have not."""
    fixed = sum(_FIXED.fullmatch(value) is not None for value in pairs.values())
    finite = sum(math.isfinite(float(value)) for value in pairs.values())
    return fixed, finite - fixed

"""Frozen records as bytes and back, exactly and safely: JSON and raw arrays, never anything that could run.

What is decoded may have been written by somebody else: only the record types that the reader names are made, arrays
hold plain numbers, sizes are bounded, and everything else raises `ValueError`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np

MAX_BYTES: Final = 64 << 20
"""More than any record unpacks to."""
_MAGIC: Final = b"pth1"
_HEAD: Final = struct.Struct("<4sI")
_ALIGNMENT: Final = 8
_KINDS: Final = "biuf"
"""Kinds of array elements: booleans, integers, floats."""
_NONFINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: object, types: Sequence[type]) -> bytes:
    """``value`` as compressed bytes: plain data, arrays, and the dataclasses and enumerations among ``types``.

    Raises:
        TypeError: something in it is none of these.
    """
    arrays: list[bytes] = []
    header = json.dumps(_tree(value, frozenset(types), arrays, [0]), allow_nan=False, separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, len(header)) + header
    padding = bytes(-len(head) % _ALIGNMENT)
    return zlib.compress(b"".join([head, padding, *arrays]), 1)


def _tree(value: object, types: frozenset[type], arrays: list[bytes], end: list[int]) -> Any:
    if isinstance(value, Enum):
        if type(value) not in types:
            raise TypeError(f"{type(value).__name__} is not kept")
        return {"e": [type(value).__name__, value.value]}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and type(value) is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, list):
        return [_tree(item, types, arrays, end) for item in value]
    if isinstance(value, tuple):
        return {"t": [_tree(item, types, arrays, end) for item in value]}
    if isinstance(value, Mapping):
        return {"d": [[_tree(key, types, arrays, end), _tree(item, types, arrays, end)] for key, item in value.items()]}
    if isinstance(value, frozenset):
        return {"s": sorted((_tree(item, types, arrays, end) for item in value), key=repr)}
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        raw = np.ascontiguousarray(value).tobytes()
        place = end[0]
        raw += bytes(-len(raw) % _ALIGNMENT)
        arrays.append(raw)
        end[0] += len(raw)
        return {"a": [value.dtype.str, list(value.shape), place]}
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return {"n": [value.dtype.str, value.tobytes().hex()]}
    if dataclasses.is_dataclass(value) and type(value) in types:
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {"c": [type(value).__name__, {name: _tree(item, types, arrays, end) for name, item in fields.items()}]}
    raise TypeError(f"{type(value).__name__} is not kept")


def decode(data: bytes, types: Sequence[type]) -> Any:
    """What `encode` was given; arrays may be written to.

    Raises:
        ValueError: the bytes are damaged, too many, or of other types than ``types``.
    """
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(data, MAX_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError("it is cut short or too large")
        magic, length = _HEAD.unpack_from(raw)
        start = _HEAD.size + length
        if magic != _MAGIC or start > len(raw):
            raise ValueError("it is no record of this kind")
        tree = json.loads(raw[_HEAD.size : start])
        arrays = memoryview(bytearray(raw[start + -start % _ALIGNMENT :]))
        return _value(tree, {one.__name__: one for one in types}, arrays)
    except (zlib.error, struct.error, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def _value(tree: Any, types: Mapping[str, type], arrays: memoryview) -> Any:
    if isinstance(tree, list):
        return [_value(item, types, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((tag, body),) = tree.items()
    if tag == "t":
        return tuple(_value(item, types, arrays) for item in body)
    if tag == "d":
        return {_value(key, types, arrays): _value(item, types, arrays) for key, item in body}
    if tag == "s":
        return frozenset(_value(item, types, arrays) for item in body)
    if tag == "f":
        return _NONFINITE[body]
    if tag == "a":
        kind, shape, place = body
        return _array(_number_type(kind), shape, place, arrays)
    if tag == "n":
        kind, content = body
        return np.frombuffer(bytes.fromhex(content), _number_type(kind))[0]
    name, content = body
    made = types[name]
    if tag == "e" and issubclass(made, Enum):
        return made(content)
    if tag == "c" and dataclasses.is_dataclass(made):
        return made(**{field: _value(item, types, arrays) for field, item in content.items()})
    raise ValueError(f"it holds an unknown mark {tag!r}")


def _number_type(kind: str) -> np.dtype[Any]:
    found = np.dtype(kind)
    if found.kind not in _KINDS:
        raise ValueError("it holds an array of something else than numbers")
    return found


def _array(kind: np.dtype[Any], shape: Sequence[int], place: int, arrays: memoryview) -> np.ndarray[Any, Any]:
    count = math.prod(shape)
    if place < 0 or count < 0 or place + count * kind.itemsize > len(arrays):
        raise ValueError("it is cut short")
    if not count:
        return np.empty(shape, kind)
    return np.frombuffer(arrays, kind, count, place).reshape(shape)

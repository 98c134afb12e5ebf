from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pth_tracker import codec
from pth_tracker.cache import KEPT_TYPES
from pth_tracker.examine import Examination


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Inner:
    values: npt.NDArray[np.float64]
    colour: Colour = Colour.RED


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    parts: tuple[Inner, ...] = ()
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)


TYPES = (Outer, Inner, Colour)


def same(left: Any, right: Any) -> bool:
    """Equality that tells types apart, looks into records, and holds NaN equal to itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, np.generic):
        return bool(left.tobytes() == right.tobytes())
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, one.name), getattr(right, one.name)) for one in dataclasses.fields(left))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right))
    if isinstance(left, float):
        return bool(left.hex() == right.hex())
    return bool(left == right)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.text() | st.integers())
    ),
    max_leaves=20,
)  # fmt: skip


@given(plain)
def test_plain_data_comes_back_exactly(value: object) -> None:
    assert same(codec.decode(codec.encode(value, TYPES), TYPES), value)


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "<i8", ">i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(0,), (5,), (3, 2), (0, 4)])
def test_arrays_come_back_exactly_and_may_be_written_to(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).astype(kind).reshape(shape)
    back = codec.decode(codec.encode([array, array[::-1]], TYPES), TYPES)
    assert same(back[0], array) and same(back[1], np.ascontiguousarray(array[::-1]))
    back[0][...] = 1


def test_records_enumerations_and_numpy_scalars_come_back_exactly() -> None:
    inner = Inner(np.array([1.5, np.nan, np.inf, -0.0]))
    value = Outer("a\ud800b", (inner,), {"n": np.float64(0.1), "k": np.int32(-4), "b": np.bool_(True), "x": math.nan})
    assert same(codec.decode(codec.encode(value, TYPES), TYPES), value)


@pytest.mark.parametrize("value", [{1, 2}, object(), Path("x"), 1j, np.array(["a"]), np.array([None]), b"x"])
def test_what_cannot_be_kept_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="is not kept"):
        codec.encode({"deep": [value]}, TYPES)


def test_only_the_types_that_the_reader_names_are_made() -> None:
    data = codec.encode(Outer("a"), TYPES)
    with pytest.raises(ValueError, match="Outer"):
        codec.decode(data, (Inner,))
    with pytest.raises(TypeError, match="Outer is not kept"):
        codec.encode(Outer("a"), (Inner,))


def hostile() -> Iterator[bytes]:
    def packed(header: bytes, arrays: bytes = b"") -> bytes:
        head = b"pth1" + len(header).to_bytes(4, "little") + header
        return zlib.compress(head + bytes(-len(head) % 8) + arrays)

    yield b""
    yield b"cos\nsystem\n(S'true'\ntR."  # a pickle
    yield zlib.compress(b"pth1")
    yield packed(b"{}")
    yield packed(b'{"c": ["Path", {}]}')
    yield packed(b'{"c": ["Outer", {"nothing": 1}]}')
    yield packed(b'{"c": ["Colour", {"value": 1}]}')
    yield packed(b'{"e": ["Outer", "red"]}')
    yield packed(b'{"e": ["Colour", "green"]}')
    yield packed(b'{"a": ["|O", [1], 0]}', bytes(8))
    yield packed(b'{"a": ["<f8", [9], 0]}', bytes(8))
    yield packed(b'{"a": ["<f8", [1], -8]}', bytes(8))
    yield packed(b'{"a": ["<f8", [-1], 0]}', bytes(8))
    yield packed(b'{"a": ["<f8", [1.5], 0]}', bytes(8))
    yield packed(b'{"n": ["|O", "00"]}')
    yield packed(b'{"f": "1"}')
    yield packed(b"[" * 50_000 + b"]" * 50_000)
    yield packed(b'[{"d": 3}]')
    yield zlib.compress(bytes(codec.MAX_BYTES + 1))
    good = codec.encode(Outer("a", (Inner(np.arange(9.0)),)), TYPES)
    yield good[: len(good) // 2]


def test_hostile_or_damaged_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 200_000)
    for data in hostile():
        with pytest.raises(ValueError):
            codec.decode(data, TYPES)


def reachable(kind: Any, seen: set[type]) -> set[type]:
    """The dataclasses and enumerations that the annotations of ``kind`` reach."""
    if isinstance(kind, type) and not get_args(kind):
        if kind not in seen and (dataclasses.is_dataclass(kind) or issubclass(kind, Enum)):
            seen.add(kind)
            for name, hint in get_type_hints(kind).items() if dataclasses.is_dataclass(kind) else ():
                assert name
                reachable(hint, seen)
    elif isinstance(kind, UnionType) or get_args(kind):
        for argument in get_args(kind):
            reachable(argument, seen)
    return seen


def test_everything_that_an_examination_can_hold_is_kept() -> None:
    assert reachable(Examination, set()) == set(KEPT_TYPES)

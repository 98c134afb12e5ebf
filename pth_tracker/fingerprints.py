"""What training loops hand over, as plain numbers: arrays of any kind, and content as a short fingerprint.

Arrays may be NumPy's, lists, or torch tensors of any floating type and device: a tensor is detached, copied to the
processor and widened there, so that bfloat16 and GPU tensors are taken by construction. Torch is never imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats

DIGITS: Final = 16
"""Hexadecimal digits of a fingerprint: 64 bits."""
ID_BITS: Final = 24
"""Bits of a batch's identity in one metric: stores that keep float32, such as TensorBoard, keep it exactly."""
MAX_DEPTH: Final = 32


def as_array(values: Any) -> npt.NDArray[Any]:
    """``values`` as a NumPy array of their own kind; a torch tensor is detached and copied to the processor.

    A floating tensor becomes float64, which holds bfloat16 and all others exactly.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.dtype.is_floating_point:
            values = values.double()
        return np.asarray(values.numpy())
    return np.asarray(values)


def as_floats(values: Any) -> Floats:
    """``values`` as float64, in their own shape.

    Raises:
        ValueError: they are None, or no numbers.
    """
    if values is None:
        raise ValueError("an array is wanted, and None was given")
    if isinstance(values, Sequence) and any(hasattr(item, "detach") for item in values):
        return np.stack([as_floats(item) for item in values])
    return np.asarray(as_array(values), dtype=np.float64)


def under_mask(values: Any, mask: Any = None) -> Floats:
    """``(k,)``: the entries of ``values`` at which ``mask`` is above 0; all of them without a mask.

    Raises:
        ValueError: the shapes differ.
    """
    array = as_floats(values)
    if mask is None:
        return array.reshape(-1)
    kept = as_floats(mask)
    if kept.shape != array.shape:
        raise ValueError(f"the mask has the shape {kept.shape} and the values {array.shape}: they must be equal")
    return array[kept > 0]


def content(value: Any, depth: int = 0) -> Iterator[bytes]:
    """Bytes that are equal exactly for equal content, whatever holds it.

    Numbers are equal by value: a list, a NumPy array and a tensor of one shape and the same numbers are one content,
    in whatever integer or floating type. Mappings are equal by their items in any order, other objects by their
    fields. Nothing is abbreviated, as a printed array would be.

    Raises:
        ValueError: it is nested more than 32 deep (it may hold itself).
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"the content is nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, str):
        yield f"{'none' if value is None else f'text {len(value)} {value}'};".encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | bytearray | memoryview):
        yield b"bytes %d " % len(bytes(value)) + bytes(value)
    elif isinstance(value, Mapping) or (hasattr(value, "items") and hasattr(value, "keys")):
        yield b"mapping %d;" % len(list(value.keys()))
        yield from sorted(
            b"".join((*content(key, depth + 1), *content(item, depth + 1))) for key, item in value.items()
        )
    elif isinstance(value, Set):
        yield b"set %d;" % len(value)
        yield from sorted(b"".join(content(item, depth + 1)) for item in value)
    elif isinstance(value, bool | int | float | complex | np.generic | np.ndarray) or hasattr(value, "detach"):
        yield from _numbers(as_array(value), depth)
    elif isinstance(value, Sequence):
        yield from _sequence(value, depth)
    else:
        yield from _object(value, depth)


def _sequence(value: Sequence[Any], depth: int) -> Iterator[bytes]:
    if value and all(isinstance(item, int | float | np.number | list | tuple | np.ndarray) for item in value):
        try:
            array = np.asarray(value)
        except ValueError:  # rows of unequal lengths
            array = np.asarray(None)
        if array.dtype.kind in "biuf":
            yield from _numbers(array, depth)
            return
    if value and all(hasattr(item, "detach") and not item.shape for item in value):
        yield from _numbers(np.stack([as_array(item) for item in value]), depth)
        return
    yield b"list %d;" % len(value)
    for item in value:
        yield from content(item, depth + 1)


def _numbers(array: npt.NDArray[Any], depth: int) -> Iterator[bytes]:
    shape = b"x".join(b"%d" % size for size in array.shape)
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        yield b"large numbers %s;" % shape
        yield np.ascontiguousarray(array, dtype=np.uint64).tobytes()
    elif array.dtype.kind in "biu":
        yield b"numbers %s;" % shape
        yield np.ascontiguousarray(array, dtype=np.int64).tobytes()
    elif array.dtype.kind == "f":
        floats = np.ascontiguousarray(array, dtype=np.float64)
        whole = np.isfinite(floats) & (floats == np.round(floats)) & (np.abs(floats) < 2**53)
        if whole.all():
            yield b"numbers %s;" % shape
            yield floats.astype(np.int64).tobytes()
        else:
            yield b"fractions %s;" % shape
            yield (floats + 0.0).tobytes()
    elif array.dtype.kind == "O" and array.ndim:
        yield b"objects %s;" % shape
        for item in array.reshape(-1).tolist():
            yield from content(item, depth + 1)
    elif array.dtype.kind in "US" and array.ndim:
        yield from _sequence(array.tolist(), depth)
    else:
        yield f"{array.dtype.str} {array.tolist()!r};".encode()


def _object(value: Any, depth: int) -> Iterator[bytes]:
    fields: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = getattr(cls, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                fields[name] = getattr(value, name)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if fields:
        yield f"object {kind};".encode()
        yield from content(fields, depth + 1)
    elif " at 0x" in (text := repr(value)):
        raise ValueError(f"{kind} has no content to tell it by: give the ids of its prompts or tokens")
    else:
        yield f"object {kind} {text};".encode("utf-8", "surrogatepass")


def fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits that are equal exactly for equal content (as `content` tells it).

    Raises:
        ValueError: content that cannot be told from other content.
    """
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        for piece in content(part):
            digest.update(piece)
        digest.update(b"\0")
    return digest.hexdigest()


def data_order_fingerprint(prompt_ids: Iterable[Any]) -> str:
    """16 hexadecimal digits that stand for the prompts of a run's first batches in their order.

    Args:
        prompt_ids: A stable identifier of each prompt, in the order of training: its index in the data set, an id, or
            its text. Numbers are equal by value, whether they come as Python's, NumPy's or in a tensor.
    """
    if hasattr(prompt_ids, "detach") or isinstance(prompt_ids, np.ndarray):
        prompt_ids = as_array(prompt_ids).reshape(-1).tolist()
    return fingerprint(*prompt_ids)


def batch_numbers(identity: str) -> tuple[int, int]:
    """A batch's identity as two integers below 2^24: 48 bits, each of which a float32 holds exactly."""
    number = int.from_bytes(hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=6).digest(), "big")
    return number & (2**ID_BITS - 1), number >> ID_BITS

"""One TensorBoard event file: its scalars, texts and hyperparameters, read without TensorBoard.

An event file is a sequence of TFRecords, each ``length (uint64) | masked CRC32C of the length | payload | masked CRC32C
of the payload``, little-endian; the payload is an ``Event`` protocol buffer. Both checksums are verified: the length's
always (lengths repeat, so that it costs nothing), the payload's for every record of at most `MAX_CHECKED` bytes and for
every record that holds a scalar; what is larger and holds none (images, graphs) is never used.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from pth_tracker.errors import TrackerError
from pth_tracker_files.sources import open_regular

MAX_FILE: Final = 8 << 30
"""Larger files (bytes) are refused."""
MAX_RECORD: Final = 64 << 20
"""Larger records (bytes) are passed over: images, videos, graphs."""
MAX_CHECKED: Final = 4096
MAX_TEXT: Final = 1 << 20
"""Of a text or tag, in bytes; longer ones are passed over."""

_HEADER: Final = struct.Struct("<QI")
_SCALARS: Final = "scalars"
_HPARAMS: Final = "hparams"
_TEXT: Final = "text"
_DT_STRING: Final = 7

Points: TypeAlias = "dict[str, tuple[array[int], array[float]]]"


@dataclass
class EventFile:
    """What one event file holds: scalars in the order in which they were logged, the last text of each tag."""

    path: Path
    points: Points = field(default_factory=dict)
    """Tag to ``(steps, values)``."""
    texts: dict[str, str] = field(default_factory=dict)
    hparams: dict[str, object] = field(default_factory=dict)
    first_time: float = math.nan
    """Seconds since the epoch at which the first event was written; NaN in an empty file."""
    records: int = 0
    bad_records: int = 0
    """Records left out because their checksum or content is wrong."""
    truncated_at: int | None = None
    """The byte at which the file breaks off inside a record."""
    unreadable_from: int | None = None
    """The byte from which on no record can be found, since a length is damaged."""
    size: int = 0
    plugins: dict[str, str] = field(default_factory=dict)
    """Tag to plugin, which only the first event of a tag names."""

    def notes(self) -> list[str]:
        """What a reader should know about losses, one sentence each."""
        found = []
        if self.truncated_at is not None:
            found.append(f"{self.path.name} breaks off inside its last record, at byte {self.truncated_at}")
        if self.unreadable_from is not None:
            lost = self.size - self.unreadable_from
            found.append(
                f"{self.path.name} is damaged at byte {self.unreadable_from}: the {lost} bytes after it are lost"
            )
        if self.bad_records:
            found.append(f"{self.path.name}: {self.bad_records} damaged records were left out")
        return found


class _Malformed(ValueError):
    """Bytes that are no protocol buffer of the expected kind."""


def _crc_table() -> tuple[int, ...]:
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC: Final = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecords carry: CRC32C (Castagnoli), rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    table = _CRC
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


_length_crc = lru_cache(maxsize=4096)(masked_crc32c)


def starts_with_event(head: bytes) -> bool:
    """Whether ``head`` begins as an event file does: a sound record whose event names a ``brain.Event`` version."""
    if len(head) < 12:
        return False
    length, check = _HEADER.unpack_from(head)
    return _length_crc(head[:8]) == check and b"brain.Event:" in head[12 : 12 + min(length, 64)]


def read_event_file(path: Path) -> EventFile:
    """All scalars, texts and hyperparameters of the event file at ``path``.

    A file that breaks off (a killed process, a file still being written) yields what it holds, and says so.

    Raises:
        TrackerError: it is too large, or is no event file.
        OSError: it cannot be opened or read.
    """
    with open(open_regular(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_FILE:
            raise TrackerError(f"{path} is larger than {MAX_FILE >> 30} GiB, more than an event file may be here")
        found = EventFile(path, size=size)
        for payload, check in _records(stream, found):
            _add_event(found, payload, check)
    if found.unreadable_from == 0:
        raise TrackerError(f"{path} is no TensorBoard event file, or is damaged at its first byte")
    return found


def _records(stream: BinaryIO, found: EventFile) -> Iterator[tuple[bytes, int]]:
    """The payloads with their checksums, up to the end or the first damage, which is recorded in ``found``."""
    offset = 0
    while header := stream.read(12):
        if len(header) < 12:
            found.truncated_at = offset
            return
        length, check = _HEADER.unpack(header)
        if _length_crc(header[:8]) != check:
            found.unreadable_from = offset
            return
        if length > found.size - offset - 16:
            found.truncated_at = offset
            return
        if length > MAX_RECORD:
            stream.seek(length + 4, 1)
        else:
            payload, footer = stream.read(length), stream.read(4)
            if len(payload) < length or len(footer) < 4:
                found.truncated_at = offset
                return
            yield payload, int.from_bytes(footer, "little")
        offset += 16 + length


def _add_event(found: EventFile, payload: bytes, check: int) -> None:
    found.records += 1
    sound = len(payload) > MAX_CHECKED or masked_crc32c(payload) == check
    try:
        if not sound:
            raise _Malformed
        time, step, summary = _event(payload)
        entries = list(_values(summary, found)) if summary else []
        if entries and len(payload) > MAX_CHECKED and masked_crc32c(payload) != check:
            raise _Malformed
    except _Malformed:
        found.bad_records += 1
        return
    if math.isnan(found.first_time):
        found.first_time = time
    for tag, value in entries:
        if isinstance(value, dict):
            found.hparams.update(value)
        elif isinstance(value, str):
            found.texts[tag] = value
        else:
            points = found.points.get(tag)
            if points is None:
                points = found.points[tag] = (array("q"), array("d"))
            points[0].append(step)
            points[1].append(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of one protocol buffer: number, and an int (varint) or the raw bytes (everything else)."""
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        if key < 0x80:
            at += 1
        else:
            key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind == 5:
            length = 4
        elif kind == 1:
            length = 8
        else:
            raise _Malformed
        if at + length > end or not number:
            raise _Malformed
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Malformed
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _as_bytes(value: int | bytes, length: int | None = None) -> bytes:
    if isinstance(value, int) or (length is not None and len(value) != length):
        raise _Malformed
    return value


def _as_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise _Malformed
    return value


def _text(value: int | bytes) -> str:
    raw = _as_bytes(value)
    if len(raw) > MAX_TEXT:
        raise _Malformed
    return raw.decode("utf-8", "replace")


def _double(value: int | bytes) -> float:
    return float(struct.unpack("<d", _as_bytes(value, 8))[0])


def _event(payload: bytes) -> tuple[float, int, bytes]:
    """Wall time, step and the summary's bytes of one ``Event`` (fields 1, 2 and 5)."""
    time, step, summary = math.nan, 0, b""
    for number, value in _fields(payload):
        if number == 1:
            time = _double(value)
        elif number == 2:
            step = _signed(_as_int(value))
        elif number == 5:
            summary = _as_bytes(value)
    return time, step, summary


def _values(summary: bytes, found: EventFile) -> Iterator[tuple[str, float | str | dict[str, object]]]:
    """Tag and scalar, text or hyperparameters of each ``Summary.Value``; other kinds are passed over."""
    for number, raw in _fields(summary):
        if number != 1:
            continue
        tag, simple, tensor, plugin, content = "", None, None, "", b""
        for inner, value in _fields(_as_bytes(raw)):
            if inner == 1:
                tag = _text(value)
            elif inner == 2:
                simple = float(struct.unpack("<f", _as_bytes(value, 4))[0])
            elif inner == 8:
                tensor = _as_bytes(value)
            elif inner == 9:
                plugin, content = _plugin(_as_bytes(value))
        plugin = found.plugins.setdefault(tag, plugin) if plugin else found.plugins.get(tag, "")
        if plugin == _HPARAMS:
            if content:
                yield tag, _hparams(content)
        elif simple is not None:
            yield tag, simple
        elif tensor is not None:
            held = _tensor_content(tensor)
            if isinstance(held, str) and plugin == _TEXT:
                yield tag, held
            elif isinstance(held, float) and plugin in (_SCALARS, ""):
                yield tag, held


def _plugin(metadata: bytes) -> tuple[str, bytes]:
    """Plugin name and content out of a ``SummaryMetadata`` (field 1: name 1, content 2)."""
    name, content = "", b""
    for number, value in _fields(metadata):
        if number == 1:
            for inner, part in _fields(_as_bytes(value)):
                if inner == 1:
                    name = _text(part)
                elif inner == 2:
                    content = _as_bytes(part)
    return name, content


_CONTENT: Final[dict[int, str]] = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 19: "e", 22: "I"}
"""Data type (``DT_FLOAT`` is 1 ...) to the struct code of one element of ``tensor_content``."""
_PACKED: Final[dict[int, str]] = {5: "f", 6: "d"}
"""Fields of ``TensorProto`` whose elements have a fixed width (``float_val``, ``double_val``)."""


def _tensor_content(tensor: bytes) -> float | str | None:
    """The one number or text of a ``TensorProto`` that has a single element; None for any other."""
    kind, content, value = 0, b"", None
    for number, raw in _fields(tensor):
        if number == 1:
            kind = _as_int(raw)
        elif number == 2 and _elements(_as_bytes(raw)) != 1:
            return None
        elif number == 4:
            content = _as_bytes(raw)
        elif number in _PACKED:
            code, packed = _PACKED[number], _as_bytes(raw)
            if len(packed) != struct.calcsize(f"<{code}"):
                return None
            value = float(struct.unpack(f"<{code}", packed)[0])
        elif number == 8 and kind in (0, _DT_STRING) and len(_as_bytes(raw)) <= MAX_TEXT:
            return _text(raw)
        elif number in (7, 10, 11, 13, 16, 17):
            bits = raw if isinstance(raw, int) else _varint(raw, 0)[0]
            value = _from_bits(bits, kind) if number == 13 else float(_signed(bits))
    if content and kind == 14 and len(content) == 2:
        return _from_bits(int.from_bytes(content, "little"), kind)
    code = _CONTENT.get(kind, "")
    if content and code and len(content) == struct.calcsize(f"<{code}"):
        return float(struct.unpack(f"<{code}", content)[0])
    return value


def _elements(shape: bytes) -> int:
    """The number of elements of a ``TensorShapeProto`` (field 2: a dimension, whose field 1 is its size)."""
    count = 1
    for number, dimension in _fields(shape):
        if number == 2:
            sizes = [_signed(_as_int(value)) for inner, value in _fields(_as_bytes(dimension)) if inner == 1]
            count *= sizes[-1] if sizes else 0
    return count


def _from_bits(bits: int, kind: int) -> float:
    """A half (``DT_HALF``) or bfloat16 from its 16 bits."""
    if kind == 14:
        return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])
    return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])


def _hparams(content: bytes) -> dict[str, object]:
    """The hyperparameters out of an ``HParamsPluginData`` (field 3: ``SessionStartInfo``, whose field 1 is a map)."""
    found: dict[str, object] = {}
    for number, session in _fields(content):
        if number != 3:
            continue
        for inner, entry in _fields(_as_bytes(session)):
            if inner == 1:
                parts = dict(_fields(_as_bytes(entry)))
                found[_text(parts.get(1, b""))] = _json_value(_as_bytes(parts.get(2, b"")))
    return found


def _json_value(data: bytes) -> object:
    """A ``google.protobuf.Value`` without its structures and lists, which the plugin does not write."""
    result: object = None
    for number, value in _fields(data):
        if number == 2:
            result = _double(value)
        elif number == 3:
            result = _text(value)
        elif number == 4:
            result = bool(_as_int(value))
    return result

"""The framing of W&B's transaction log, the ``.wandb`` file: raw records out of a file that may be damaged.

The file is a LevelDB log (https://github.com/google/leveldb/blob/main/doc/log_format.md) behind a header of 7 bytes:
``:W&B``, the magic number 0xBEE1 and the version 0. It is cut into blocks of 32 KiB. A record is one fragment or
several, none of which crosses a block: CRC-32 of type and data, length, type (full, first, middle, last), data. Up to
6 bytes that are left at the end of a block stay empty.

A process that was killed leaves a torn tail, a broken disk or copy leaves bad blocks. Both are counted in `Damage`
and what is whole is read, since a run that crashed is often the one that matters.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from pth_tracker.errors import TrackerError

BLOCK_SIZE: Final = 32 * 1024
HEADER: Final = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
FRAGMENT: Final = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAX_RECORD: Final = 64 * 1024 * 1024
"""A record beyond this size (bytes) is dropped and counted: W&B itself refuses far smaller ones."""

_GAP: Final = 0
_SEEDS: Final = (0, *(zlib.crc32(bytes([kind])) for kind in (FULL, FIRST, MIDDLE, LAST)))


@dataclass
class Damage:
    """What of one log could not be read, counted while it is read."""

    empty: bool = False
    """The file has nothing after its header, or not even all of that."""
    torn: int = 0
    """Bytes of an unfinished record at the end."""
    bad_blocks: int = 0
    """Blocks with a checksum or a length that does not hold: their remaining records are lost."""
    unreadable: int = 0
    """Whole records that do not decode."""
    stepless: int = 0
    """Rows of the history that carry no step."""

    def notes(self) -> tuple[str, ...]:
        """The damage in words, one sentence each; nothing for a whole file."""
        said = [
            (self.empty, "the log is empty: the process ended before W&B wrote anything"),
            (self.torn, f"the log ends inside a record: its last {self.torn} bytes were never completed"),
            (self.bad_blocks, f"the log has {counted(self.bad_blocks, 'corrupt block')}: the records in it are lost"),
            (self.unreadable, f"the log has {counted(self.unreadable, 'record')} that cannot be decoded, left out"),
            (self.stepless, f"the log has {counted(self.stepless, 'history row')} without a step, left out"),
        ]
        return tuple(text for so, text in said if so)


def counted(number: int, noun: str) -> str:
    """The number with its noun, in the plural where it is not one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_records(path: Path, damage: Damage) -> Iterator[bytes]:
    """The whole records of the log at ``path`` in order, undecoded; what is damaged is counted in ``damage``.

    One block and one record are held in memory.

    Raises:
        TrackerError: it cannot be opened, or is no W&B log of version 0.
    """
    try:
        with path.open("rb") as file:
            yield from _joined(_fragments(path, file, damage), damage)
    except OSError as error:
        raise TrackerError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its rights"
        ) from error


def _joined(fragments: Iterator[tuple[int, bytes]], damage: Damage) -> Iterator[bytes]:
    parts: list[bytes] | None = None
    size = 0
    after_gap = False
    for kind, data in fragments:
        if kind == _GAP:
            parts, after_gap = None, True
            continue
        if kind in (FULL, FIRST):
            if parts is not None:
                damage.unreadable += 1
            parts, after_gap = None, False
            if kind == FULL:
                yield data
            else:
                parts, size = [data], len(data)
            continue
        if parts is None:
            # The rest of a record whose start was lost: counted with the block that took it, or here once.
            if not after_gap:
                damage.unreadable += 1
                after_gap = True
            continue
        parts.append(data)
        size += len(data)
        if size > MAX_RECORD:
            damage.unreadable += 1
            parts, after_gap = None, True
        elif kind == LAST:
            yield b"".join(parts)
            parts = None
    if parts is not None:
        damage.torn += size


def _fragments(path: Path, file: BinaryIO, damage: Damage) -> Iterator[tuple[int, bytes]]:
    block = file.read(BLOCK_SIZE)
    _check_header(path, block)
    if len(block) <= len(HEADER):
        damage.empty = True
        return
    place = len(HEADER)
    zeros = False
    while block:
        is_last = len(block) < BLOCK_SIZE
        while place + FRAGMENT.size <= len(block):
            checksum, length, kind = FRAGMENT.unpack_from(block, place)
            if not (checksum or length or kind):
                zeros = True
                break
            end = place + FRAGMENT.size + length
            if end > len(block) and is_last:
                damage.torn += len(block) - place
                break
            data = block[place + FRAGMENT.size : end]
            if end > len(block) or not FULL <= kind <= LAST or zlib.crc32(data, _SEEDS[kind]) != checksum:
                damage.bad_blocks += 1
                yield _GAP, b""
                break
            if zeros:
                # Zeros were taken for space reserved at the end; since records follow, they overwrote some.
                damage.bad_blocks += 1
                zeros = False
                yield _GAP, b""
            yield kind, data
            place = end
        else:
            if is_last:
                damage.torn += len(block) - place
        place = 0
        block = file.read(BLOCK_SIZE)


def _check_header(path: Path, block: bytes) -> None:
    if HEADER.startswith(block[: len(HEADER)]):
        return
    if block.startswith(HEADER[:-1]):
        raise TrackerError(
            f"{path} is a W&B log of version {block[len(HEADER) - 1]}, and version 0 is read here: "
            "upgrade pth-tracker, or send the run to a server with `wandb sync` and audit it there"
        )
    raise TrackerError(f"{path} is no W&B log (it does not start with ':W&B'): name a run folder or its .wandb file")

"""What a source of runs in files is, and how the files under the user's paths find theirs.

A source is a module that knows one kind of file. It is asked about each path with `Source.claims`, which looks at the
content, and then loads the paths it claimed. A folder is offered as a whole (with an empty head) before anything in it
is, so that a folder of event files or a checkpoint can be one run. The order of `SOURCES` is the order of asking: the
most specific first, and the first to claim a path keeps it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, cast

from pth_tracker.runs import History, RunError, RunRef, SourceRun

HEAD_BYTES: Final = 1 << 16
"""How much of a file `Source.claims` is handed."""

SOURCES: Final[tuple[str, ...]] = ("mlruns", "tensorboard", "trainer_state", "jsonl", "verl_log", "tables")
"""Modules of this package, each satisfying `Source`; most specific first."""


@dataclass(frozen=True)
class LoadedRun:
    """One run as a source read it: what a listing shows, and its whole history."""

    run: SourceRun
    history: History


class Source(Protocol):
    """A module that reads one kind of file. It imports heavy libraries inside its functions only.

    Each run's ``ref`` comes from `ref_for`, its ``revision`` from `revision_of`. Neither function lets an error out for
    what a file holds: a file that turns out to be unreadable is a `RunError` (`OSError` may leave; the tracker makes it
    one). Text is decoded with ``errors="replace"``, reading is bounded, and only regular files are opened.
    """

    KIND: str
    """What it reads, in the plural, as a person would say it: ``verl console logs``."""
    SEPARATE: bool
    """Whether no run ever spans two paths, so that paths may be loaded one by one, in any order and in parallel."""

    def claims(self, path: Path, head: bytes) -> bool:
        """Whether ``path`` is of this kind, told by its content; ``head`` is b"" for a folder."""
        ...

    def load(self, paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
        """The runs in the claimed ``paths``; a path may hold several, and several paths may be joined to one."""
        ...


@cache
def all_sources() -> tuple[Source, ...]:
    """The source modules in the order in which they are asked."""
    return tuple(cast(Source, import_module(f"{__package__}.{name}")) for name in SOURCES)


def ref_for(path: Path, part: str = "") -> RunRef:
    """The reference of the run in ``path``, or of its ``part`` where a path holds several (``table.csv#seed=1``)."""
    return RunRef("", f"{path}#{part}" if part else str(path))


def revision_of(*paths: Path) -> str:
    """An opaque text that changes when one of the files does: sizes, times of change and inodes."""
    marks = []
    for path in paths:
        found = path.stat()
        marks.append(f"{found.st_size}.{found.st_mtime_ns}.{found.st_ino}")
    return "+".join(marks)


def open_regular(path: Path) -> int:
    """An open descriptor of a regular file; it never waits (a FIFO would).

    Raises:
        OSError: it cannot be opened, or is no regular file; the message says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(f"{path} is {kind}, no regular file")
    return descriptor


def read_head(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """The first ``limit`` bytes of a regular file.

    Raises:
        OSError: as for `open_regular`.
    """
    with open(open_regular(path), "rb") as file:
        return file.read(limit)

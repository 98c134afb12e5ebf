"""Which files under the user's paths hold runs, and which source reads each."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pth_tracker.errors import UsageError
from pth_tracker.runs import RunError
from pth_tracker_files.naming import as_text
from pth_tracker_files.sources import Source, all_sources, read_head, ref_for

MAX_FILES: Final = 50_000
MAX_DEPTH: Final = 16
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_SKIPPED_SUFFIXES: Final = frozenset(
    ".safetensors .pt .pth .bin .ckpt .distcp .npy .npz .pkl .so .pyc .png .jpg .jpeg .gif .svg .pdf .mp4 .zip .tar "
    ".gz .xz .zst .whl .arrow .py .sh .lock".split()
)
"""Never the record of a run, and often large or many."""


@dataclass
class Discovery:
    """What was found under the user's paths."""

    groups: list[tuple[Source, list[Path]]] = field(default_factory=list)
    """Each source with the paths it claimed, in the order in which they were found."""
    errors: list[RunError] = field(default_factory=list)
    """Files the user named, or found and not readable, that no source can be asked about."""
    notes: list[str] = field(default_factory=list)
    unrecognised: list[Path] = field(default_factory=list)
    sources: tuple[Source, ...] = ()
    """Which are asked, in order."""

    @property
    def paths(self) -> list[tuple[Source, Path]]:
        """All claimed paths with their sources."""
        return [(source, path) for source, paths in self.groups for path in paths]

    def add(self, source: Source, path: Path) -> None:
        """Takes down that ``source`` claimed ``path``."""
        for known, paths in self.groups:
            if known is source:
                paths.append(path)
                return
        self.groups.append((source, [path]))


def kinds() -> str:
    """What can be read, as words: ``verl console logs, ... or tables``."""
    names = [source.KIND for source in all_sources()]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def expand(location: str) -> list[tuple[Path, bool]]:
    """The paths that ``location`` (a path or a pattern) stands for, each with whether the user meant just it.

    Raises:
        UsageError: there is no such path, or nothing matches.
    """
    literal = os.path.expanduser(location)
    if os.path.lexists(literal):
        return [(Path(literal), True)]
    if "\0" in literal or not glob.has_magic(literal):
        raise UsageError(f"there is no file or folder {location!r}: check the path")
    matches = sorted(glob.glob(literal, recursive=True))
    if not matches:
        raise UsageError(f"no file or folder matches {location!r}: check the pattern, and quote it for the shell")
    meant = Path(literal).name.strip("*") != ""
    return [(Path(match), meant) for match in matches]


def discover(paths: Sequence[tuple[Path, bool]], sources: Sequence[Source] | None = None) -> Discovery:
    """The runs' files at and below ``paths``, each path with whether the user meant just it; every file once."""
    found = Discovery(sources=all_sources() if sources is None else tuple(sources))
    seen: set[tuple[int, int]] = set()
    for path, meant in paths:
        if path.is_dir():
            for inner in _walk(path, found, seen):
                _offer(inner, False, found, seen)
        else:
            _offer(path, meant, found, seen)
    if found.unrecognised:
        names = ", ".join(as_text(path.name) for path in found.unrecognised[:3])
        more = len(found.unrecognised) - 3
        found.notes.append(
            f"{len(found.unrecognised)} other files hold no runs: {names}{f' and {more} more' if more > 0 else ''}"
        )
    return found


def source_of(path: Path, head: bytes, sources: Sequence[Source]) -> Source | None:
    """The first of ``sources`` that reads ``path``, if one does."""
    for source in sources:
        try:
            if source.claims(path, head):
                return source
        except OSError:
            continue
    return None


def _offer(path: Path, meant: bool, found: Discovery, seen: set[tuple[int, int]]) -> None:
    problem, head = "", b""
    try:
        state = path.stat()
        if (state.st_dev, state.st_ino) in seen:
            return
        seen.add((state.st_dev, state.st_ino))
        head = read_head(path)
    except FileNotFoundError:
        problem = "is a link to nothing"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        meant = meant or isinstance(error, PermissionError)
    source = source_of(path, head, found.sources) if not problem else None
    if source is not None:
        found.add(source, path)
        return
    if not problem and not head:
        problem = "is empty"
    if meant:
        problem = problem or ("is binary" if b"\0" in head else "is of no known kind") + f": looked for {kinds()}"
        found.errors.append(RunError(ref_for(path), as_text(path.stem), f"{as_text(path)} {problem}"))
    elif problem:
        found.notes.append(f"{as_text(path)} {problem}")
    else:
        found.unrecognised.append(path)


def _walk(top: Path, found: Discovery, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The files below ``top`` in the order of their names; a folder that a source claims is taken as a whole."""
    pending: list[tuple[Path, int]] = [(top, 0)]
    files = 0
    while pending:
        folder, depth = pending.pop()
        try:
            state = folder.stat()
            if (state.st_dev, state.st_ino) in seen:
                continue
            seen.add((state.st_dev, state.st_ino))
            source = source_of(folder, b"", found.sources)
            if source is not None:
                found.add(source, folder)
                continue
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            found.notes.append(f"the folder {as_text(folder)} cannot be read: {error.strerror or error}")
            continue
        inner = [Path(entry.path) for entry in entries if _is_folder(entry)]
        if depth < MAX_DEPTH:
            pending += [(path, depth + 1) for path in reversed(inner) if _is_descended(path, found)]
        elif inner:
            found.notes.append(f"{as_text(folder)} is {MAX_DEPTH} folders deep: what is below was not looked at")
        for entry in entries:
            if _is_folder(entry) or entry.name.startswith("."):
                continue
            if os.path.splitext(entry.name)[1].lower() in _SKIPPED_SUFFIXES:
                continue
            files += 1
            if files > MAX_FILES:
                found.notes.append(f"{as_text(top)} holds more than {MAX_FILES} files: the rest was not looked at")
                return
            yield Path(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_descended(folder: Path, found: Discovery) -> bool:
    if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
        return False
    if is_wandb_folder(folder):
        found.notes.append(f"{as_text(folder)} is a W&B folder and was left out: audit it by naming it")
        return False
    return True


def is_wandb_folder(folder: Path) -> bool:
    """Whether W&B keeps its local runs in ``folder``, or it is one of these runs."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    runs = any(name.startswith(("run-", "offline-run-")) for name in names)
    return any(name.endswith(".wandb") for name in names) or (folder.name == "wandb" and runs)


def is_foreign(path: Path) -> bool:
    """Whether another adapter reads ``path``: a W&B folder or record, an SQLite store."""
    try:
        if path.is_dir():
            return is_wandb_folder(path)
        if path.suffix == ".wandb":
            return True
        return stat.S_ISREG(path.stat().st_mode) and read_head(path, 16) == b"SQLite format 3\0"
    except OSError:
        return False

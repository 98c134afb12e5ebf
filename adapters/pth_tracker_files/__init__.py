"""The files adapter's manifest: it reads runs from log files, event files and tables, and imports no reader itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pth_tracker.tracker import Candidate, Tracker

SUMMARY: Final = "runs in files: verl's console logs and JSONL, TensorBoard, Trainer states, CSV and Parquet tables"


def recognises(location: str) -> bool:
    """Whether ``location`` is an existing file or folder, or a pattern that matches some, and no other adapter's."""
    if "://" in location:
        return False
    from pth_tracker.errors import UsageError
    from pth_tracker_files.discover import expand, is_foreign

    try:
        paths = expand(location)
    except UsageError:
        return False
    return not any(is_foreign(path) for path, _ in paths)


def candidates() -> Iterable[Candidate]:
    """None: files are audited only where the user names them."""
    return ()


def open_tracker(locations: Sequence[str]) -> Tracker:
    """The tracker over these files, folders and patterns.

    Raises:
        UsageError: one does not exist.
    """
    from pth_tracker_files.tracker import FilesTracker

    return FilesTracker(locations)

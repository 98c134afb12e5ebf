"""The errors pth-tracker raises on purpose; each class knows the exit code it ends a command with.

    PthTrackerError
    |-- UsageError            2   a wrong option, configuration or argument
    |   |-- DesignError       2   a design file, located by file, line and key
    |   `-- ProjectNotFound   2   no such project or experiment
    |-- NothingSelected       3   no run to audit, or nothing that could be judged
    `-- TrackerError          4   the tracker failed: unreachable, refused, unreadable

Every message is one sentence that names the file, key or run and says what to do. Nothing else than these
(and `KeyboardInterrupt`) is expected to leave the package; `pth_tracker.cli.main` maps them to exit codes.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What a command's exit status means; part of the public interface."""

    OK = 0
    """Every judged check passed, or only warned."""
    CHECK_FAILED = 1
    """A check failed (with ``--strict``: or could not be judged)."""
    USAGE = 2
    """Wrong usage, configuration or design, or a project that does not exist."""
    NOTHING = 3
    """Nothing was selected, or nothing could be judged."""
    TRACKER = 4
    """The tracker failed: unreachable, refused, a run unreadable, a write refused."""
    INTERRUPTED = 130
    """Interrupted by the user."""


EXIT_PRIORITY: tuple[ExitCode, ...] = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.NOTHING,
    ExitCode.TRACKER,
    ExitCode.CHECK_FAILED,
    ExitCode.OK,
)
"""Highest first: where several apply, the first of these is the exit status."""


class PthTrackerError(Exception):
    """The base of every error that pth-tracker raises on purpose."""

    exit_code: ExitCode = ExitCode.USAGE


class UsageError(PthTrackerError):
    """A wrong option, argument, configuration file or address."""

    exit_code = ExitCode.USAGE


class DesignError(UsageError):
    """A design that cannot be used, with the place where it goes wrong."""

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None, key: str = "") -> None:
        where = ":".join(str(part) for part in (path, line) if part is not None)
        place = " at ".join(part for part in (where, key) if part)
        super().__init__(f"{place}: {message}" if place else message)
        self.path = path
        self.line = line
        self.key = key


class ProjectNotFound(UsageError):
    """The tracker answers, and has no such project or experiment."""


class NothingSelected(PthTrackerError):
    """No run was selected, or none of those selected could be judged."""

    exit_code = ExitCode.NOTHING


class TrackerError(PthTrackerError):
    """The tracker failed: unreachable, refused, unreadable, or of a schema that cannot be read."""

    exit_code = ExitCode.TRACKER


class AdapterUnavailable(TrackerError):
    """An adapter's SDK is missing or broken; the message gives the pip line that mends it."""

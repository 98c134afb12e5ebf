"""What every auditing command does around the engine: audit, write back, report, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pth_tracker.cli.options import Color, StdoutFormat
from pth_tracker.cli.output import Progress, check_writable, emit, note, terminal_width, use_color, write_atomically
from pth_tracker.errors import ExitCode, TrackerError, UsageError
from pth_tracker.render import FORMATS, attachments, format_of, render

if TYPE_CHECKING:
    from pth_tracker.engine import Examiner, Options
    from pth_tracker.model import Audit, Report, WriteBack
    from pth_tracker.tracker import Tracker


@dataclass(frozen=True)
class Reporting:
    """How a command reports: the options ``-o --format -q -v --color --strict --exit-zero``."""

    outputs: tuple[Path, ...] = ()
    format: StdoutFormat = StdoutFormat.TEXT
    quiet: bool = False
    verbose: bool = False
    color: Color = Color.AUTO
    strict: bool = False
    exit_zero: bool = False

    def check(self) -> None:
        """Refuses options that cannot work, before anything is done.

        Raises:
            UsageError: contradicting options, an unknown format, a file that cannot be written.
        """
        if self.quiet and self.verbose:
            raise UsageError("-q prints less and -v prints more: give one of them")
        for path in self.outputs:
            format_of(path)
        check_writable(self.outputs)


@dataclass(frozen=True)
class Writing:
    """Whether a command writes into the tracker: the options ``--dry-run --no-write --write-running``."""

    dry_run: bool = False
    no_write: bool = False
    write_running: bool = False

    def check(self) -> None:
        """Refuses both options at once.

        Raises:
            UsageError: both are given.
        """
        if self.dry_run and self.no_write:
            raise UsageError("--dry-run shows what would be written and --no-write plans nothing: give one of them")


def check_executor(named: str) -> None:
    """Refuses an ``--executor`` that is none, before anything is done; ``""`` is this machine as it sees fit.

    Raises:
        UsageError: it is none, or its library is not installed.
    """
    if named:
        from pth_tracker import executors

        executors.check_executor(named)


@contextmanager
def examiner(named: str) -> Iterator[Examiner]:
    """Who examines the runs: the workers of ``--executor``, let go at the end, or this machine as it sees fit."""
    if named:
        from pth_tracker.executors import Workers

        with Workers(named) as workers:
            yield workers
    else:
        from pth_tracker.forked import examine_forked

        yield examine_forked


def audit_and_report(
    tracker: Tracker, options: Options, chosen: str, reporting: Reporting, writing: Writing, executor: str = ""
) -> ExitCode:
    """Audits the runs in an opened tracker, writes the verdict back, reports, and yields the exit status."""
    from pth_tracker import engine

    progress = Progress(reporting.quiet)
    try:
        with examiner(executor) as examine:
            audit = engine.audit(tracker, options, chosen=chosen, progress=progress, examiner=examine)
        progress("writing back", 0, 0)
        audit.write_back = _write_back(tracker, audit, writing)
    finally:
        progress.clear()
    status = engine.exit_code(audit, strict=reporting.strict, exit_zero=reporting.exit_zero)
    if writing.dry_run and audit.write_back.planned:
        from pth_tracker.render.terminal import format_plan

        note("dry run, nothing is written: " + format_plan(audit.write_back, terminal_width()).rstrip("\n"))
    report(audit, reporting, status)
    return status


def _write_back(tracker: Tracker, audit: Audit, writing: Writing) -> WriteBack:
    from pth_tracker.model import WriteBack
    from pth_tracker.writeback import write_back

    if writing.no_write:
        return WriteBack(refused="--no-write was given")
    allow_running(tracker, writing.write_running)
    try:
        return write_back(tracker, audit, dry_run=writing.dry_run, files=lambda: attachments(audit))
    except TrackerError as error:
        return WriteBack(errors=(str(error),))


def allow_running(tracker: Tracker, write_running: bool) -> None:
    """Has ``tracker`` also edit runs that still run, where it would leave them out."""
    from pth_tracker.tracker import SparesRunning

    if isinstance(tracker, SparesRunning):
        tracker.write_running = write_running


def report(audit: Audit, reporting: Reporting, status: ExitCode) -> None:
    """Puts the report on standard output and into every file of ``-o``; one that fails keeps none of the others back.

    Raises:
        UsageError: a file, or standard output, cannot be written.
    """
    failed: list[UsageError] = []
    for path in reporting.outputs:
        try:
            write_atomically(path, render(audit, format_of(path), status))
        except UsageError as error:
            failed.append(error)
    _show_audit(audit, reporting, status)
    if failed:
        raise failed[0]


def _show_audit(audit: Audit, reporting: Reporting, status: ExitCode) -> None:
    if reporting.format is StdoutFormat.TEXT:
        from pth_tracker.render.terminal import format_audit

        color = use_color(reporting.color, sys.stdout)
        emit(
            format_audit(
                audit,
                width=terminal_width(),
                color=color,
                quiet=reporting.quiet,
                verbose=reporting.verbose,
                status=status,
            )
        )
    else:
        chosen = next(one for one in FORMATS if one.name == reporting.format)
        emit(render(audit, chosen, status))


def show_report(found: Report, quiet: bool, color: Color) -> None:
    """Puts a bare report, of one check, on standard output; ``quiet``: only what failed or warned."""
    levels = ("fail", "warn") if quiet else ("fail", "warn", "info")
    emit(found.format(levels, color=use_color(color, sys.stdout)) + "\n")

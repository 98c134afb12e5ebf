"""``pth-tracker audit``: the seven checks on a project or on paths, the report, and the verdict written back."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color, StdoutFormat
from pth_tracker.cli.session import Reporting, Writing, audit_and_report, check_executor
from pth_tracker.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pth_tracker.tracker import Tracker

Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Files or folders to audit, instead of --tracker.", show_default=False),
]


def audit(
    paths: Paths = None,
    project: opt.Project = "",
    tracker: opt.Trackers = None,
    design: opt.DesignFile = None,
    arm: opt.Arms = None,
    vary: opt.Vary = None,
    replicate: opt.Replicate = None,
    metric: opt.Metric = "",
    kl_tolerance: opt.KlTolerance = None,
    columns: opt.Columns = None,
    vocabulary: opt.Vocabularies = None,
    where: opt.Where = "",
    since: opt.Since = "",
    select: opt.Select = None,
    ignore: opt.Ignore = None,
    executor: opt.ExecutorName = "",
    dry_run: opt.DryRun = False,
    no_write: opt.NoWrite = False,
    write_running: opt.WriteRunning = False,
    strict: opt.Strict = False,
    exit_zero: opt.ExitZero = False,
    output: opt.Outputs = None,
    format: opt.ReportFormat = StdoutFormat.TEXT,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Audit the runs of a project, or of files and folders.

    Runs the seven checks, prints what is wrong by name, and writes the verdict into the tracker where it can
    (--dry-run and --no-write keep it from that). Without a design, arms, seeds and the metric are inferred and shown.

    Each option can also be set by an environment variable, PTH_TRACKER_PROJECT for --project and so on.
    """
    reporting = Reporting(tuple(output or ()), format, quiet, verbose, color, strict, exit_zero)
    writing = Writing(dry_run, no_write, write_running)
    reporting.check()
    writing.check()
    check_executor(executor)
    moment = opt.parse_since(since)
    from pth_tracker.design.load import load_design, with_command_line
    from pth_tracker.engine import Options

    declared = with_command_line(
        load_design(design) if design else None,
        arms=arm or (),
        vary=vary or (),
        replicate=replicate or (),
        metric=metric,
        kl_tolerance=kl_tolerance,
    )
    wanted = Options(
        project=project,
        design=declared,
        where=where,
        since=moment,
        select=opt.split_commas(select),
        ignore=opt.split_commas(ignore),
        vocabularies=opt.vocabulary_files(vocabulary),
    )
    opened, chosen = open_tracker(project, paths or [], tracker or [], columns or [])
    with closing(opened):
        return audit_and_report(opened, wanted, chosen, reporting, writing, executor)


def open_tracker(
    project: str, paths: list[str], trackers: list[str], columns: Sequence[str] = ()
) -> tuple[Tracker, str]:
    """The opened tracker and why it was chosen; the caller closes it.

    Raises:
        UsageError: nothing to audit is named, no project of a tracker that has some, or columns of what is no file.
    """
    from pth_tracker.tracker import find_tracker, with_columns

    if not (project or paths or trackers):
        raise UsageError("name what to audit: --project NAME, or the path of a file or folder")
    opened, chosen = find_tracker(project, [*trackers, *map(_as_path, paths)])
    opened = with_columns(opened, columns)
    if not (project or paths or all(map(_is_folder, trackers))):
        try:
            names = opened.projects()
        except BaseException:
            opened.close()
            raise
        if names:
            opened.close()
            raise UsageError(f"name the project to audit with --project; {opened.address} has {', '.join(names)}")
    return opened, chosen


def _as_path(argument: str) -> str:
    """A PATH argument as `find_tracker` takes it: the folder ``wandb`` is not the tracker of that name."""
    from pth_tracker.tracker import adapters

    return f"./{argument}" if argument in adapters() else argument


def _is_folder(location: str) -> bool:
    """Whether ``--tracker`` names a folder, which is audited as PATH would be."""
    return os.path.isdir(location) and _as_path(location) == location

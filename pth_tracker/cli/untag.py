"""``pth-tracker untag``: takes every mark of ours off the runs of a project."""

from __future__ import annotations

from contextlib import closing

from pth_tracker.cli import options as opt
from pth_tracker.cli.audit import open_tracker
from pth_tracker.cli.output import emit, note, terminal_width
from pth_tracker.errors import ExitCode, UsageError


def untag(
    project: opt.Project = "",
    tracker: opt.Trackers = None,
    where: opt.Where = "",
    since: opt.Since = "",
    dry_run: opt.DryRun = False,
    write_running: opt.WriteRunning = False,
) -> int:
    """Remove all marks of pth-tracker from the runs of a project.

    Tags and keys that pth-tracker wrote go, everything else stays; so does the audit run with its tables, which you
    may delete in the tracker like any other run.
    """
    if not project:
        raise UsageError("name the project whose marks go: --project NAME")
    moment = opt.parse_since(since)
    from pth_tracker.cli.session import allow_running
    from pth_tracker.render.terminal import format_plan
    from pth_tracker.render.text import counted, safe_text
    from pth_tracker.tracker import AUDIT_RUN_NAME, Query
    from pth_tracker.writeback import remove_marks

    opened, chosen = open_tracker(project, [], tracker or [])
    with closing(opened):
        note(f"reading {project} in {chosen}")
        allow_running(opened, write_running)
        done = remove_marks(opened, Query(project, where, moment), dry_run=dry_run)
    runs = counted(len(done.planned), "run")
    if done.refused:
        emit(f"Nothing was removed: {safe_text(done.refused)}\n")
        return ExitCode.TRACKER
    if dry_run:
        note(format_plan(done, terminal_width()).rstrip("\n"))
        emit(f"Dry run: the marks of {runs} would be removed.\n")
    else:
        emit(f"Removed the marks of {runs}; the audit run {AUDIT_RUN_NAME!r}, where there is one, stays.\n")
    for sentence in (*done.skipped, *done.errors):
        note(sentence)
    return ExitCode.TRACKER if done.errors else ExitCode.OK

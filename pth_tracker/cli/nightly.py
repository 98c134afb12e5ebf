"""``pth-tracker nightly``: all configured audits, once or on a schedule, reading only what is new."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color
from pth_tracker.cli.session import check_executor, examiner
from pth_tracker.errors import ExitCode, PthTrackerError, UsageError

if TYPE_CHECKING:
    from pth_tracker.nightly.config import Configuration, PlannedAudit
    from pth_tracker.nightly.run import Done, Settings
    from pth_tracker.nightly.watch import Health, Log


class LogFormat(StrEnum):
    """How lines of the log are written."""

    TEXT = "text"
    JSON = "json"


Config = Annotated[
    Path,
    opt.option("--config", metavar="FILE", default=True, help="The configuration file (YAML): which audits to do."),
]
Only = Annotated[
    list[str] | None,
    opt.option("--only", metavar="NAME", help="Do only the audit of this name. Repeatable."),
]
Cron = Annotated[
    str,
    opt.option("--cron", metavar="EXPR", help="Stay, and run at these times: five fields as in a crontab."),
]
Timezone = Annotated[
    str,
    opt.option("--timezone", metavar="ZONE", help="The time zone of --cron, such as UTC. Default: this machine's."),
]
NoCache = Annotated[
    bool,
    opt.option("--no-cache", help="Read every run again, keep nothing, and do not tell what is new."),
]
HealthFile = Annotated[
    Path | None,
    opt.option("--health-file", metavar="FILE", help="Keep a file (JSON) that tells a supervisor how things stand."),
]
LogFormatOption = Annotated[
    LogFormat,
    opt.option("--log-format", default=True, help="How lines on standard error are written."),
]
QuietNights = Annotated[
    bool,
    opt.option("-q", "--quiet", help="Print only audits in which something failed."),
]
WholeReports = Annotated[
    bool,
    opt.option("-v", "--verbose", help="Print every report as a whole."),
]


def nightly(
    config: Config = Path("pth-tracker.yaml"),
    only: Only = None,
    cron: Cron = "",
    timezone: Timezone = "",
    dry_run: opt.DryRun = False,
    no_write: opt.NoWrite = False,
    executor: opt.ExecutorName = "",
    no_cache: NoCache = False,
    cache: opt.CacheFolder = None,
    health_file: HealthFile = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    quiet: QuietNights = False,
    verbose: WholeReports = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Do all audits of a configuration file, reading only runs that changed.

    Each audit is done on its own account, tells what is new since the last time, writes the verdict back, and sends
    messages where something newly failed. Ends with the highest exit status of its audits. With --cron it stays and
    runs at these times; a signal to terminate ends it cleanly, with exit status 130.
    """
    if dry_run and no_write:
        raise UsageError("--dry-run shows what would be written and --no-write plans nothing: give one of them")
    if quiet and verbose:
        raise UsageError("-q prints less and -v prints more: give one of them")
    if timezone and not cron:
        raise UsageError("--timezone is that of --cron: give both")
    check_executor(executor)
    from pth_tracker.cache import cache_folder
    from pth_tracker.nightly.run import Settings
    from pth_tracker.nightly.watch import Health, Log, now

    trigger = None
    if cron:
        from pth_tracker.nightly.schedule import cron_trigger, stay

        trigger = cron_trigger(cron, timezone)
    configuration, planned = _planned(config, only)
    configuration.check_outputs(planned, touch=not dry_run)
    folder = cache_folder(cache)
    settings = Settings(None if no_cache else folder, dry_run, no_write)
    log = Log(log_format is LogFormat.JSON)
    health = Health(health_file, log)

    def once() -> ExitCode:
        with examiner(executor) as examine:
            night = replace(settings, examiner=examine)
            return _night(config, only, night, folder, log, health, lambda done: _show(done, quiet, verbose, color))

    with _terminable() as stopping:
        try:
            if trigger is None:
                return once()
            stay(trigger, lambda: _one_of_many(once, log, health), lambda following: _wait(following, log, health),
                 log, stopping)  # fmt: skip
        except KeyboardInterrupt:
            health.update(status="stopped", audit=None, next=None, last_end=now())
            log("stopped", "stopped by a signal", level="warning")
            raise
    return ExitCode.OK


def _planned(config: Path, only: list[str] | None) -> tuple[Configuration, tuple[PlannedAudit, ...]]:
    """The file, read anew, and its audits, or those of them that ``--only`` names.

    Raises:
        UsageError: the file is not sound, or has no audit of such a name.
    """
    from pth_tracker.nightly.config import load_configuration

    configuration = load_configuration(config)
    audits = configuration.audits
    known = {one.name: one for one in audits}
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise UsageError(f"--only {unknown[0]}: {config} has no audit of this name, but {', '.join(known)}")
    return configuration, tuple(known[name] for name in dict.fromkeys(only)) if only else audits


def _night(
    config: Path,
    only: list[str] | None,
    settings: Settings,
    folder: Path,
    log: Log,
    health: Health,
    show: Callable[[Done], None],
) -> ExitCode:
    from pth_tracker.nightly.run import highest, only_one, run_night
    from pth_tracker.nightly.watch import now

    _, planned = _planned(config, only)
    with only_one(config, folder) as alone:
        if not alone:
            log("already-running", f"another process does the audits of {config}: nothing is done", level="warning")
            return ExitCode.OK
        health.update(status="auditing", last_start=now())
        reached: set[ExitCode] = set()
        for done in run_night(planned, settings, log, health):
            reached.add(done.status)
            try:
                show(done)
            except PthTrackerError as error:  # standard output is full: the other audits go on
                log("trouble", str(error), level="error", facts={"audit": done.name})
                reached.add(error.exit_code)
        status = highest(reached)
        health.update(status="ended", audit=None, last_end=now(), last_exit=int(status))
        log("end", f"done, exit status {int(status)}", facts={"audits": len(planned), "exit": int(status)})
    return status


def _one_of_many(once: Callable[[], ExitCode], log: Log, health: Health) -> None:
    """A run on schedule: what is wrong with it is logged, and the next one is waited for."""
    from pth_tracker.nightly.watch import now

    try:
        once()
    except PthTrackerError as error:
        log("error", str(error), level="error", facts={"exit": int(error.exit_code)})
        health.update(audit=None, last_end=now(), last_exit=int(error.exit_code))
    except Exception:  # logged by the schedule
        health.update(audit=None, last_end=now(), last_exit=int(ExitCode.USAGE))
        raise


def _wait(following: datetime | None, log: Log, health: Health) -> None:
    moment = following.isoformat(timespec="seconds") if following else None
    if health["status"] != "waiting" or health["next"] != moment:
        log("waiting", f"the next run is at {moment}", facts={"next": moment})
    health.update(status="waiting", audit=None, next=moment)


@contextmanager
def _terminable() -> Iterator[Callable[[], bool]]:
    """Within, a signal to terminate interrupts as Ctrl-C does; yields what tells whether one came."""
    import threading

    asked: list[int] = []

    def end(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends at once
        asked.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(done: Done, quiet: bool, verbose: bool, color: Color) -> None:
    """Puts one audit on standard output: what it comes to and what is new, or the whole report."""
    from pth_tracker.cli.output import emit, note, terminal_width, use_color
    from pth_tracker.render import news
    from pth_tracker.render.summary import summary
    from pth_tracker.render.terminal import format_audit, format_plan
    from pth_tracker.render.text import wrap

    audit, width = done.audit, terminal_width()
    if audit is not None and audit.write_back and audit.write_back.planned and not audit.write_back.applied:
        note(f"{done.name}: dry run, nothing is written: {format_plan(audit.write_back, width)}".rstrip("\n"))
    if audit is None or (quiet and audit.ok and done.status == ExitCode.OK):
        return
    if verbose:
        text = format_audit(
            audit, width=width, color=use_color(color, sys.stdout), verbose=True, status=done.status
        )  # fmt: skip
        emit(f"{done.name}\n{text}\n")
        return
    verdict = summary(audit)
    lines = wrap(f"{done.name}: {verdict.word}{f': {verdict.reason}' if verdict.reason else ''}", width, "  ", "")
    if audit.since_last:
        lines += wrap(news.heading(audit.since_last), width, "    ", "  ")
    for line in news.lines(audit):
        lines += wrap(line, width, "      ", "    ")
    emit("\n".join(lines) + "\n")

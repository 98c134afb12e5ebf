"""Staying and running on a schedule, through APScheduler: cron expressions as cron reads them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pth_tracker.errors import UsageError
from pth_tracker.nightly.watch import BEAT_SECONDS, Forwarding, Log

REMEDY: Final = "pip install 'pth-tracker[nightly]'"
GRACE_SECONDS: Final = 3600
"""A run that could not start on time (the machine slept, the last one still went on) starts up to so much later."""
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def cron_trigger(expression: str, timezone: str = "") -> Any:
    """The APScheduler trigger of a cron expression of five fields, in ``timezone`` (``""``: this machine's).

    Weekdays are cron's, 0 and 7 being Sunday: APScheduler's own count starts at Monday.

    Raises:
        UsageError: APScheduler is missing, or the expression, or the time zone, is none.
    """
    if find_spec("apscheduler") is None:
        raise UsageError(f"--cron needs APScheduler: {REMEDY}")
    fields = expression.split()
    if len(fields) != 5:
        raise UsageError(
            f"--cron {expression!r} has {len(fields)} fields, and needs 5: minute, hour, day, month, weekday"
        )
    if fields[2] != "*" and fields[4] != "*":
        raise UsageError(
            f"--cron {expression!r} sets both day and weekday, which cron joins by or: start one process for each"
        )
    triggers: Any = import_module("apscheduler.triggers.cron")
    try:
        fields[4] = _weekdays(fields[4])
        trigger = triggers.CronTrigger(
            minute=fields[0],
            hour=fields[1],
            day=fields[2],
            month=fields[3],
            day_of_week=fields[4],
            timezone=_zone(timezone),
        )
        following = trigger.get_next_fire_time(None, datetime.now(UTC))
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--cron {expression!r} is no cron expression: {error}") from error
    if following is None:
        raise UsageError(f"--cron {expression!r} names a moment that never comes")
    return trigger


def _zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"--timezone {name!r} is no time zone: give one such as Europe/Berlin or UTC") from error


def _weekdays(field: str) -> str:
    """A weekday field by name, as APScheduler and cron both read it.

    >>> _weekdays("1-5"), _weekdays("7"), _weekdays("*/2"), _weekdays("*")
    ('mon,tue,wed,thu,fri', 'sun', 'sun,tue,thu,sat', '*')
    """
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start, end = (0, 6) if span == "*" else (_day(first), _day(last) if dash else 6 if step else _day(first))
        if start > end:
            raise ValueError(f"the weekdays {span!r} run backwards")
        days |= {day % 7 for day in range(start, end + 1, int(step) if step else 1)}
    return ",".join(name for number, name in enumerate(_DAYS) if number in days)


def _day(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    raise ValueError(f"{text!r} is no weekday")


def stay(
    trigger: Any,
    job: Callable[[], None],
    beat: Callable[[datetime | None], None],
    log: Log,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Runs ``job`` at the times of ``trigger``, in this thread, until it is interrupted.

    Times that passed while a run went on are made up for once. ``beat`` is called with the next time before the first
    run, after every one, and about every minute between them. ``stopping`` says that a signal asked for the end, also
    where the exception that it raised was caught on its way.

    Raises:
        KeyboardInterrupt: a signal asked for the end.
    """
    debug: Any = import_module("apscheduler.executors.debug")
    blocking: Any = import_module("apscheduler.schedulers.blocking")
    events: Any = import_module("apscheduler.events")
    # In this thread, so that a signal interrupts a run where it stands.
    scheduler = blocking.BlockingScheduler(
        executors={"default": debug.DebugExecutor()},
        timezone=trigger.timezone,
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": GRACE_SECONDS},
    )
    ended: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except Exception as error:
            log("job", f"the run ended with {type(error).__name__}: {error}", level="error")
        except BaseException as end:  # which APScheduler would only log
            ended.append(end)

    def after(event: Any) -> None:
        if ended or stopping():
            scheduler.shutdown(wait=False)
        else:
            beat(trigger.get_next_fire_time(None, datetime.now(UTC)))

    forwarding = Forwarding(log)
    logger = logging.getLogger("apscheduler")
    logger.addHandler(forwarding)
    logger.setLevel(logging.WARNING)
    scheduler.add_job(run, trigger, id="nightly")
    scheduler.add_job(lambda: None, "interval", seconds=BEAT_SECONDS, id="beat", misfire_grace_time=None)
    scheduler.add_listener(after, events.EVENT_JOB_SUBMITTED)
    try:
        beat(trigger.get_next_fire_time(None, datetime.now(UTC)))
        scheduler.start()
    finally:
        logger.removeHandler(forwarding)
    raise ended[0] if ended else KeyboardInterrupt

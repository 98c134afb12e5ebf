from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest

from pth_tracker.errors import UsageError
from pth_tracker.nightly import schedule
from pth_tracker.nightly.schedule import cron_trigger, stay
from pth_tracker.nightly.watch import Log


def fires(expression: str, timezone: str, after: datetime, count: int) -> list[datetime]:
    """The next times in UTC, each the first after the one before, as the scheduler asks for them."""
    trigger = cron_trigger(expression, timezone)
    found: list[datetime] = []
    previous, now = None, after
    for _ in range(count):
        previous = trigger.get_next_fire_time(previous, now)
        found.append(previous.astimezone(UTC))
        now = previous.astimezone(UTC) + timedelta(seconds=1)
    return found


def test_times_are_those_of_the_zone() -> None:
    (first,) = fires("0 3 * * *", "Europe/Berlin", datetime(2026, 7, 1, tzinfo=UTC), 1)
    assert first == datetime(2026, 7, 1, 1, tzinfo=UTC)
    (first,) = fires("0 3 * * *", "UTC", datetime(2026, 7, 1, tzinfo=UTC), 1)
    assert first == datetime(2026, 7, 1, 3, tzinfo=UTC)


def test_the_hour_that_comes_twice_in_autumn_fires_twice_and_three_oclock_once() -> None:
    """In Berlin, 02:00 to 03:00 comes twice on 25 October 2026: from 00:00 UTC (summer time) and from 01:00 UTC."""
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert fires("30 2 * * *", "Europe/Berlin", before, 3) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC),
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]
    assert fires("0 3 * * *", "Europe/Berlin", before, 2) == [
        datetime(2026, 10, 25, 2, tzinfo=UTC),
        datetime(2026, 10, 26, 2, tzinfo=UTC),
    ]
    assert fires("30 2 * * *", "UTC", before, 2)[0] == datetime(2026, 10, 25, 2, 30, tzinfo=UTC)


def test_the_hour_that_is_left_out_in_spring() -> None:
    """In Berlin, 02:00 to 03:00 does not exist on 29 March 2026; nights at three are not concerned."""
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert fires("0 3 * * *", "Europe/Berlin", before, 2) == [
        datetime(2026, 3, 29, 1, tzinfo=UTC),
        datetime(2026, 3, 30, 1, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("field", "weekdays"),
    [
        ("0", {6}), ("7", {6}), ("1", {0}), ("1-5", {0, 1, 2, 3, 4}), ("5-7", {4, 5, 6}), ("sun", {6}),
        ("mon-wed,sat", {0, 1, 2, 5}), ("*/2", {6, 1, 3, 5}), ("MON", {0}), ("2/2", {1, 3, 5}),
    ],
)  # fmt: skip
def test_weekdays_are_crons_and_not_apschedulers(field: str, weekdays: set[int]) -> None:
    """cron counts from Sunday, 0; APScheduler from Monday, as `datetime.weekday` does."""
    found = fires(f"0 3 * * {field}", "UTC", datetime(2026, 3, 1, 4, tzinfo=UTC), 14)
    assert {moment.weekday() for moment in found} == weekdays


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 3 * *", "has 4 fields, and needs 5"),
        ("@daily", "has 1 fields"),
        ("0 3 1 * 1", "sets both day and weekday"),
        ("61 3 * * *", "is no cron expression"),
        ("0 3 * * 8", "'8' is no weekday"),
        ("0 3 * * sat-mon", "run backwards"),
        ("0 3 * * */0", "is no cron expression"),
        ("x 3 * * *", "is no cron expression"),
        ("0 3 31 2 *", "names a moment that never comes"),
    ],
)
def test_what_is_no_schedule_is_refused(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match="--cron") as caught:
        cron_trigger(expression)
    assert message in str(caught.value)


@pytest.mark.parametrize("zone", ["Berlin", "../etc/passwd", "Europe/Berlin\0"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="is no time zone"):
        cron_trigger("0 3 * * *", zone)


def test_without_apscheduler_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'pth-tracker\[nightly\]'"):
        cron_trigger("0 3 * * *")


class Soon:
    """A trigger that is due at once, ``times`` times, as if that many nights had been missed on the way."""

    timezone = UTC

    def __init__(self, times: int) -> None:
        self.left = times

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        if previous is None:
            return now
        self.left -= 1
        return previous + timedelta(milliseconds=20) if self.left > 0 else None


def soon(times: int) -> Any:
    base: Any = import_module("apscheduler.triggers.base").BaseTrigger
    return type("SoonTrigger", (Soon, base), {})(times)


def test_runs_are_made_in_turn_and_a_failing_one_does_not_end_them() -> None:
    events: list[str] = []
    stream = io.StringIO()

    def job() -> None:
        events.append("run")
        if len(events) >= 6:
            raise KeyboardInterrupt
        raise RuntimeError("the disc is full")

    with pytest.raises(KeyboardInterrupt):
        stay(soon(9), job, lambda following: events.append("beat"), Log(True, stream))
    assert events[:4] == ["beat", "run", "beat", "run"] and events[-1] == "run"
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["message"] for line in lines} == {"the run ended with RuntimeError: the disc is full"}


def test_a_signal_whose_exception_was_swallowed_still_ends_it() -> None:
    asked: list[int] = []

    def job() -> None:
        asked.append(1)  # the handler ran, and what it raised was caught by somebody

    with pytest.raises(KeyboardInterrupt):
        stay(soon(9), job, lambda following: None, Log(stream=io.StringIO()), lambda: bool(asked))
    assert asked == [1]

"""What a supervisor sees of a night: lines of a log, and a health file that tells that the process lives."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from pth_tracker.atomic import write_atomically
from pth_tracker.errors import UsageError
from pth_tracker.redaction import without_environment
from pth_tracker.render.text import safe_text
from pth_tracker.values import to_json_value

BEAT_SECONDS: Final = 60
"""A health file that is much older than this was left by a process that hangs or is gone."""


class Log:
    """A log on standard error: one line an event, as text for people or as JSON for programs."""

    def __init__(self, as_json: bool = False, stream: TextIO | None = None) -> None:
        self._as_json = as_json
        self._stream = stream

    def __call__(
        self, event: str, message: str, *, level: str = "info", facts: Mapping[str, object] | None = None
    ) -> None:
        """Writes one line; the ``facts`` stand in JSON only. A log that is full or gone stops no audit."""
        stream = self._stream or sys.stderr
        message = without_environment(message)
        line = safe_text(message, newlines=True)
        if self._as_json:
            told = {"time": now(), "level": level, "event": event, "message": message, **(facts or {})}
            line = json.dumps(to_json_value(told), allow_nan=False)
        with suppress(OSError):
            stream.write(f"{line}\n")
            stream.flush()


class Forwarding(logging.Handler):
    """Hands what a library logs on to a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        self._log(record.name, record.getMessage(), level=record.levelname.lower())


class Health:
    """The health file, replaced as a whole at every change, and every minute while the work goes on."""

    def __init__(self, path: Path | None, log: Log) -> None:
        self._path = path
        self._log = log
        self._written = 0.0
        self._facts: dict[str, Any] = {
            "pid": os.getpid(),
            "status": "starting",
            "started": now(),
            "audit": None,
            "last_start": None,
            "last_end": None,
            "last_exit": None,
            "next": None,
        }

    def __getitem__(self, name: str) -> Any:
        return self._facts[name]

    def update(self, **facts: object) -> None:
        """Sets some of the facts and writes them all."""
        self._facts |= facts
        self._write()

    def beat(self) -> None:
        """Writes the same facts with a new time, at most once a minute."""
        if time.monotonic() - self._written >= BEAT_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._path is None:
            return
        facts = {**self._facts, "at": now()}
        try:
            write_atomically(self._path, json.dumps(to_json_value(facts), allow_nan=False, indent=2) + "\n")
        except UsageError as error:
            self._log("health", f"the health file: {error}", level="error")
            self._path = None


def now() -> str:
    """The present moment, as logs and the health file write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")

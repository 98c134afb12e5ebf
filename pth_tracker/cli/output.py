"""Where results go: the payload to standard output and files, everything else to standard error."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from pth_tracker.atomic import check_writable as check_writable
from pth_tracker.atomic import write_atomically as write_atomically
from pth_tracker.cli.options import Color
from pth_tracker.errors import UsageError

MAX_WIDTH: Final = 120
REDRAW_SECONDS: Final = 0.1


def note(text: str) -> None:
    """Prints one line for people, to standard error; where that is full or gone, the work goes on all the same."""
    from pth_tracker.redaction import without_environment
    from pth_tracker.render.text import safe_text

    with suppress(OSError):
        print(safe_text(without_environment(text), newlines=True), file=sys.stderr, flush=True)


def runnable(command: str) -> list[str]:
    """The words that start the installed ``command`` from any shell: its name where PATH finds it, else its path."""
    import shutil

    beside = Path(sys.executable).parent / command
    found = shutil.which(command)
    return [command] if not beside.exists() or (found and Path(found).samefile(beside)) else [str(beside)]


def emit(text: str) -> None:
    """Writes the payload to standard output; a reader that has gone away is no error.

    Raises:
        UsageError: it cannot be written, because a disk is full.
    """
    from pth_tracker.redaction import without_environment

    try:
        sys.stdout.write(_printable(without_environment(text), sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        raise UsageError(f"standard output cannot be written: {error.strerror or error}") from None


def _printable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def silence(stream: TextIO) -> None:
    """Points ``stream`` to nowhere, so that what is left in its buffer raises no error at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def use_color(choice: Color, stream: TextIO) -> bool:
    """Whether to colour what goes to ``stream``."""
    if choice is not Color.AUTO:
        return choice is Color.ALWAYS
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Columns of the terminal (or ``COLUMNS``), at most 120; 80 where there is none."""
    import shutil

    return min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)


class Progress:
    """One line on a terminal's standard error that says how far the work is; silent everywhere else."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._active = not quiet and self._stream.isatty()
        self._drawn = 0.0
        self._dirty = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Shows ``stage``, and ``done`` of ``total`` where the total is known (not 0)."""
        now = time.monotonic()
        if not self._active or (now - self._drawn < REDRAW_SECONDS and done != total):
            return
        from pth_tracker.render.text import safe_text

        line = f"{safe_text(stage)}{f': {done} of {total}' if total else ''}"
        self._stream.write(f"\r\x1b[K{line[: terminal_width() - 1]}")
        self._stream.flush()
        self._drawn, self._dirty = now, True

    def clear(self) -> None:
        """Takes the line away, so that what is printed next stands alone."""
        if self._dirty:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._dirty = False

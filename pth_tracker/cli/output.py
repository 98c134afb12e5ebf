"""Where results go: the payload to standard output and files, everything else to standard error."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from pth_tracker.cli.options import Color
from pth_tracker.errors import UsageError

MAX_WIDTH: Final = 120
REDRAW_SECONDS: Final = 0.1


def note(text: str) -> None:
    """Prints one line for people, to standard error."""
    from pth_tracker.render.text import safe_text

    print(safe_text(text, newlines=True), file=sys.stderr, flush=True)


def runnable(command: str) -> list[str]:
    """The words that start the installed ``command`` from any shell: its name where PATH finds it, else its path."""
    import shutil

    beside = Path(sys.executable).parent / command
    found = shutil.which(command)
    return [command] if not beside.exists() or (found and Path(found).samefile(beside)) else [str(beside)]


def emit(text: str) -> None:
    """Writes the payload to standard output; a reader that has gone away is no error."""
    try:
        sys.stdout.write(_printable(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


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


def check_writable(paths: Iterable[Path]) -> None:
    """Makes sure, before any work is done, that every file of ``-o`` can be written.

    Raises:
        UsageError: one cannot; names it and the reason.
    """
    import tempfile

    for path in paths:
        if path.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
        try:
            if _is_special(path):
                continue
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        except OSError as error:
            raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error


def write_atomically(path: Path, content: str) -> None:
    """Writes a UTF-8 file as a whole or not at all; pipes and devices are written in place.

    Raises:
        UsageError: it cannot be written.
    """
    import tempfile

    try:
        if _is_special(path):
            path.write_text(content, encoding="utf-8")
            return
        target = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(content)
            os.chmod(temporary, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


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

"""Files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pth_tracker.errors import UsageError


def check_writable(paths: Iterable[Path], *, touch: bool = True) -> None:
    """Makes sure, before any work is done, that every file of ``-o`` can be written.

    With ``touch`` a nameless file is made beside each, which tells most; without, only permissions are looked at.

    Raises:
        UsageError: one cannot; names it and the reason.
    """
    for path in paths:
        if path.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: it is a folder; name a file")
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
        try:
            if _is_special(path):
                continue
            if not touch:
                if not os.access(path.resolve().parent, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
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

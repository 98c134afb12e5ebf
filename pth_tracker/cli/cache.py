"""``pth-tracker cache``: how much ``nightly`` keeps, and how to let go of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from pth_tracker.cli import options as opt
from pth_tracker.errors import ExitCode, UsageError


class Action(StrEnum):
    """What to do with the cache."""

    INFO = "info"
    CLEAR = "clear"


Wanted = Annotated[Action, typer.Argument(metavar="info|clear", help="Show how much is kept, or remove it.")]


def cache(action: Wanted, cache: opt.CacheFolder = None) -> int:
    """Show or clear what nightly keeps between nights.

    That is the examinations of runs, so that unchanged ones are not read again, and past audits, from which it tells
    what is new. Without it the next night reads every run once more.
    """
    from pth_tracker.cache import Cache, cache_folder, clear_cache
    from pth_tracker.cli.output import emit, note
    from pth_tracker.render.text import counted

    folder = cache_folder(cache)
    if action is Action.CLEAR:
        try:
            freed = clear_cache(folder)
        except OSError as error:
            raise UsageError(f"the cache in {str(folder)!r} cannot be removed: {error.strerror or error}") from error
        emit(
            f"Removed what was kept in {folder}: {_megabytes(freed)} freed.\n"
            if freed
            else f"Nothing is kept in {folder}.\n"
        )
        return ExitCode.OK
    with Cache(folder, read_only=True) as held:
        info = held.info()
    for sentence in held.notes:
        note(sentence)
    if not info.size:
        emit(f"Nothing is kept in {folder}.\n")
        return ExitCode.OK
    runs, audits = counted(info.examinations, "run"), counted(info.audits, "past audit")
    emit(f"{info.path} keeps what was read of {runs} and what {audits} found, {_megabytes(info.size)}.\n")
    return ExitCode.OK


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"

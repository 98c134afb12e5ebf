"""What a tracker lists, within bounds: names that a person could read, and no more of them than a report can hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pth_tracker.runs import SourceRun
from pth_tracker.values import MAX_LITERAL, MAX_NAME, cut

MAX_WORDS: Final = 1_000
"""Tags, notes and markers of one run that are kept."""
MAX_ARGUMENTS: Final = 10_000
_NAMES: Final = ("name", "group", "job_type", "user", "host", "program", "commit", "url")
_WORDS: Final = ("tags", "notes", "log_markers")


def bounded(run: SourceRun) -> SourceRun:
    """``run`` with the middle of endless names left out; itself where there are none.

    A name of a megabyte would stand in a report once for every finding and rule it appears in.
    """
    changes: dict[str, object] = {}
    for field in _NAMES:
        if len(text := getattr(run, field)) > MAX_NAME:
            changes[field] = cut(text, MAX_NAME)
    for field in _WORDS:
        words: tuple[str, ...] = getattr(run, field)
        if len(words) > MAX_WORDS or any(len(word) > MAX_NAME for word in words):
            changes[field] = tuple(cut(word, MAX_NAME) for word in words[:MAX_WORDS])
    arguments = run.arguments
    if arguments and (len(arguments) > MAX_ARGUMENTS or any(len(one) > MAX_LITERAL for one in arguments)):
        changes["arguments"] = tuple(cut(one, MAX_LITERAL) for one in arguments[:MAX_ARGUMENTS])
    return replace(run, **changes) if changes else run  # type: ignore[arg-type]

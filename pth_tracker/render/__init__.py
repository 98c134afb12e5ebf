"""Renderers: each turns an `Audit` into one kind of text and does nothing else; loaded only when used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from pth_tracker.errors import ExitCode, UsageError
from pth_tracker.redaction import without_environment

if TYPE_CHECKING:
    from pth_tracker.model import Audit


@dataclass(frozen=True)
class Format:
    """One kind of report: its name, the suffix of its files and the function that makes it."""

    name: str
    suffix: str
    module: str
    function: str
    """``function(audit, status=ExitCode | None) -> str``."""
    attached: bool = False
    """Whether the project's audit run in the tracker gets a file of this format."""


FORMATS: Final = (
    Format("text", ".txt", "pth_tracker.render.terminal", "format_file", attached=True),
    Format("json", ".json", "pth_tracker.render.json_v1", "to_json", attached=True),
    Format("html", ".html", "pth_tracker.render.html", "to_html", attached=True),
    Format("markdown", ".md", "pth_tracker.render.markdown", "to_markdown"),
    Format("junit", ".xml", "pth_tracker.render.junit", "to_junit"),
)
"""Every format there is, by name and by suffix unique."""


def format_of(path: PurePath) -> Format:
    """The format that the suffix of ``path`` asks for.

    Raises:
        UsageError: no format has this suffix.
    """
    for one in FORMATS:
        if path.suffix.lower() == one.suffix:
            return one
    known = ", ".join(f"{one.suffix} ({one.name})" for one in FORMATS)
    raise UsageError(f"cannot tell a report format from the name {str(path)!r}: give it one of the suffixes {known}")


def render(audit: Audit, chosen: Format, status: ExitCode | None = None) -> str:
    """The report on ``audit`` in the format ``chosen``, ending in a newline, without secrets of the environment."""
    make: Callable[..., str] = getattr(import_module(chosen.module), chosen.function)
    return without_environment(make(audit, status=status))


def attachments(audit: Audit) -> dict[str, bytes]:
    """The files that the project's audit run gets in the tracker: name to content."""
    return {f"audit{one.suffix}": render(audit, one).encode() for one in FORMATS if one.attached}

"""``pth-tracker trend``: what past audits of a project came to, from what ``nightly`` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from pth_tracker.cli import options as opt
from pth_tracker.errors import NothingSelected, UsageError

if TYPE_CHECKING:
    from pth_tracker.past import PastAudit

SHOWN: Final = 20
"""Projects that an error names."""
COLUMNS = ("runs", "fail", "warn", "info", "not_judged", "errors", "new", "resolved")


class TrendFormat(StrEnum):
    """How the table is written."""

    TEXT = "text"
    JSON = "json"


Format = Annotated[TrendFormat, opt.option("--format", default=True, help="The format on standard output.")]
Limit = Annotated[
    int,
    opt.option("--last", metavar="N", default=True, help="At most so many audits of each kind, the latest."),
]


def trend(
    project: opt.Project = "",
    last: Limit = 30,
    cache: opt.CacheFolder = None,
    format: Format = TrendFormat.TEXT,
) -> int:
    """Show what past nightly audits of a project came to.

    One line an audit: how many runs there were, how many findings failed and warned, how many rules could not be
    judged, and what was new and resolved. Audits of other names, trackers or filters stand in tables of their own.
    """
    if last < 1:
        raise UsageError(f"--last {last}: give 1 or more")
    from pth_tracker.cache import Cache, cache_folder
    from pth_tracker.cli.output import emit, note

    with Cache(cache_folder(cache), read_only=True) as held:
        audits = held.audits(project)
        known = held.projects()
        for sentence in held.notes:
            note(sentence)
    if not audits:
        _refuse(project, known, held.path)
    kinds = [
        list(group)[-last:]
        for _, group in groupby(sorted(audits, key=lambda one: one.configuration), lambda one: one.configuration)
    ]
    kinds.sort(key=lambda kind: kind[-1].audited_at)
    if format is TrendFormat.JSON:
        import json

        emit(json.dumps([_row(one) for kind in kinds for one in kind], indent=2) + "\n")
    else:
        emit("\n".join(_table(kind) for kind in kinds))
    return 0


def _refuse(project: str, known: Sequence[str], path: Path) -> NoReturn:
    """Says what is there instead.

    Raises:
        UsageError: no project is named, and there are past audits of some.
        NothingSelected: there are none of this project, or none at all.
    """
    from pth_tracker.tracker import project_hint
    from pth_tracker.values import listed

    there = listed([name or "files" for name in known], SHOWN)
    if not known:
        raise NothingSelected(f"no past audits are kept in {path}: pth-tracker nightly keeps them")
    if not project:
        raise UsageError(f"name the project with --project; there are past audits of {there}")
    hint = project_hint(project, known)
    raise NothingSelected(f"no past audits of {project} are kept in {path}, but of {there}{hint}")


def _row(audit: PastAudit) -> dict[str, Any]:
    counts = {name: audit.counts.get(name, 0) for name in COLUMNS}
    told = {"audited_at": audit.audited_at.isoformat(), "project": audit.project, "tracker": audit.tracker}
    return {"name": audit.name, **told, "selection": audit.selection, "version": audit.version, **counts}


def _table(audits: Sequence[PastAudit]) -> str:
    from pth_tracker.render.text import safe_text

    latest = audits[-1]
    narrowed = f" ({latest.selection})" if latest.selection else ""
    head = ["audited", *(name.replace("_", " ") for name in COLUMNS)]
    rows = [[f"{one.audited_at:%Y-%m-%d %H:%M}", *(str(one.counts.get(name, 0)) for name in COLUMNS)] for one in audits]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    named = f"{latest.name}: " if latest.name else ""
    lines = [safe_text(f"{named}{latest.project or 'files'} in {latest.tracker}{narrowed}")]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows]]
    return "\n".join(lines) + "\n"

"""An audit as one HTML page that needs nothing else: no network, no library, and with its script switched off too.

Every text goes through `pth_tracker.render.text.safe_text` and is then escaped by the template engine; the only markup
that is put in is that of the pictures, which Matplotlib draws and `pth_tracker.render.svg` writes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import ExitCode
from pth_tracker.model import CHECK_TITLES, LEVELS, Audit, Level, Outcome
from pth_tracker.render import news, page, summary
from pth_tracker.render.picture import Picture
from pth_tracker.render.pictures import pictures
from pth_tracker.render.plots import Style
from pth_tracker.render.text import compact_names, counted, natural_key, safe_text
from pth_tracker.tracker import without_credentials

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES: Final = Path(__file__).parent / "templates"
MARKS: Final = {"fail": "✗", "warn": "!", "info": "i", "pass": "✓", "none": "–"}
"""What stands beside a colour, for those who do not see it."""
_SHAPES: Final = {
    "o": "M14 2.2a2.8 2.8 0 1 1-.01 0z",
    "s": "M11.4 2.4h5.2v5.2h-5.2z",
    "^": "M14 1.6l3.4 5.8h-6.8z",
    "D": "M14 1.4l3.6 3.6-3.6 3.6-3.6-3.6z",
    "v": "M14 8.4l3.4-5.8h-6.8z",
    "P": "M12.9 1.8h2.2v2.1h2.1v2.2h-2.1v2.1h-2.2v-2.1h-2.1v-2.2h2.1z",
    "x": "M11.6 2.6l4.8 4.8M16.4 2.6l-4.8 4.8",
}
"""A marker's path in a legend's swatch of 28 by 10."""
_CHECK_OF: Final = {bug: check for check, bug in enumerate(page.BUGS, 1)}
log = logging.getLogger(__name__)


def to_html(audit: Audit, status: ExitCode | None = None) -> str:
    """The whole report as one HTML page, ending in a newline; ``status`` is the command's exit status, where known."""
    verdict = summary.summary(audit)
    groups = page.groups(audit)
    drawn = [_drawn(picture, f"picture{place}-", groups) for place, picture in enumerate(pictures(audit), 1)]
    rows = page.run_order(audit)
    coverage = sorted(audit.coverage, key=lambda entry: (entry.check, entry.rule, natural_key(entry.subject)))
    text = _environment().get_template("report.html.j2").render(
        audit=audit,
        verdict=verdict,
        title=f"{verdict.word.capitalize()}: {audit.project or audit.subject or 'audit'}",
        subject=f"audit of project {audit.project}" if audit.project else audit.subject or "audit of these runs",
        place=_place(audit),
        status="" if status is None else summary.status_words(audit, status),
        tiles=_tiles(audit),
        since=news.heading(audit.since_last) if audit.since_last else "",
        news=news.lines(audit),
        matrix=page.matrix(audit),
        groups=groups,
        pictures=drawn,
        claims=page.claims(audit),
        design=page.design_rows(audit),
        runs=rows[: page.MOST_ROWS],
        runs_left=max(0, len(rows) - page.MOST_ROWS),
        coverage=coverage[: page.MOST_ROWS],
        coverage_left=max(0, len(coverage) - page.MOST_ROWS),
        unjudged=summary.unjudged(audit),
        explained=summary.explained(audit),
        ignored=summary.ignored(audit),
        passed=summary.passed(audit),
        not_counted=summary.not_counted(audit),
        notes=_notes(audit),
        written=None if audit.write_back is None else summary.written(audit.write_back),
        titles=CHECK_TITLES,
        levels=LEVELS,
        outcomes=Outcome,
    )  # fmt: skip
    return text.rstrip("\n") + "\n"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else safe_text(value)

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "lines": lambda text: [line for line in str(text).split("\n") if line.strip()],
        "counted": counted,
        "compact": compact_names,
        "url": page.safe_url,
    }
    environment.globals |= {
        "marks": MARKS,
        "shapes": _SHAPES,
        "names_of": page.names_of,
        "name_of": page.name_of,
        "dashes": _dashes,
        "outcome_level": _OUTCOME_LEVEL,
    }
    return environment


_OUTCOME_LEVEL: Final = {
    Outcome.FAILED: "fail",
    Outcome.WARNED: "warn",
    Outcome.IGNORED: "info",
    Outcome.EXPLAINED: "info",
    Outcome.PASSED: "pass",
    Outcome.NOT_JUDGED: "none",
}


def _dashes(style: Style) -> str:
    return " ".join(f"{1.6 * length:g}" for length in style.dashes) or "none"


def _drawn(picture: Picture, prefix: str, groups: Sequence[page.Group]) -> dict[str, Any]:
    """A picture with its markup and its home; one that cannot be drawn says so in its place."""
    from markupsafe import Markup

    try:
        svg: Markup | None = Markup(picture.svg(prefix))  # noqa: S704 - made by the drawing library, escaped there
    except Exception as error:  # a report has to come out, and its verdict to be written, whatever a run logged
        log.warning("the picture %s cannot be drawn: %s", safe_text(picture.title), safe_text(error))
        log.debug("how it failed", exc_info=True)
        svg = None
    return {"picture": picture, "svg": svg, "home": _home(picture, groups)}


def _home(picture: Picture, groups: Sequence[page.Group]) -> str:
    """The anchor of what the picture stands beside: its bug, else its check, else the other pictures."""
    titled = {group.title: group.anchor for group in groups}
    checked = {group.check: group.anchor for group in groups if group.title not in page.BUGS}
    return titled.get(picture.place) or checked.get(_CHECK_OF.get(picture.place, 0)) or "pictures"


def _place(audit: Audit) -> str:
    """Where the runs are, and how that was chosen."""
    if audit.address is None:
        return ""
    places = " ".join(without_credentials(place) for place in audit.address.locations)
    return audit.chosen or f"{audit.address.adapter} at {places}"


def _tiles(audit: Audit) -> list[tuple[int, str, str, str]]:
    """(number, words, level, where on the page) of each count."""
    counts, passed = audit.counts, len(summary.passed(audit))
    claimed = all(finding.rule in page.CLAIM_RULES for finding in audit.by_level(Level.FAIL))
    open_ = len({entry.rule for entry in audit.not_judged})
    tiles = [
        (counts["fail"], "failed", "fail", "claims" if counts["fail"] and claimed else "findings"),
        (counts["warn"], "warning" if counts["warn"] == 1 else "warnings", "warn", "findings"),
        (counts["info"], "for information", "info", "findings"),
        (passed, "rule passed" if passed == 1 else "rules passed", "pass", "coverage"),
        (
            open_,
            "not fully judged",
            "none",
            "not-judged" if open_ else "coverage",
        ),
        (counts["runs"], "run" if counts["runs"] == 1 else "runs", "none", "runs"),
    ]
    if counts["errors"]:
        tiles.append((counts["errors"], "unreadable", "fail", "errors"))
    return tiles


def _notes(audit: Audit) -> list[str]:
    by_note: dict[str, list[str]] = {}
    for run in audit.runs.values():
        for note in run.notes:
            by_note.setdefault(note, []).append(run.label)
    return [*audit.notes, *(f"{compact_names(labels)}: {note}" for note, labels in by_note.items())]

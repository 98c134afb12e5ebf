"""An audit as text that reads well at 80 columns, in a terminal and in a pipe; colour only repeats what words say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pth_tracker.errors import ExitCode
from pth_tracker.model import (
    LEVELS,
    Audit,
    Finding,
    Level,
    Report,
    WriteBack,
)
from pth_tracker.render import news
from pth_tracker.render.evidence import redacted
from pth_tracker.render.summary import (
    DECLARED_BY,
    explained,
    finding_facts,
    finding_order,
    ignored,
    not_counted,
    partly,
    passed,
    status_words,
    summary,
    tally,
    unjudged,
    unread,
    untested,
    written,
)
from pth_tracker.render.text import compact_names, counted, safe_text, wrap
from pth_tracker.tracker import without_credentials
from pth_tracker.values import show_value

_SGR: Final = {"FAIL": "1;31", "WARN": "33", "INFO": "36", "PASS": "32", "bold": "1"}
_INDENT: Final = " " * 6
_LABEL_WIDTH: Final = 10
MAX_ARMS: Final = 12
"""More arms than this are only counted, except with ``verbose``."""


def format_file(audit: Audit, status: ExitCode | None = None) -> str:
    """The report as it stands in a text file: 100 columns, everything listed, no colour."""
    return format_audit(audit, width=100, verbose=True, status=status)


def format_audit(
    audit: Audit,
    *,
    width: int = 80,
    color: bool = False,
    quiet: bool = False,
    verbose: bool = False,
    status: ExitCode | None = None,
) -> str:
    """The whole report, ending in a newline.

    Args:
        audit: What to report.
        width: Columns to fill; names longer than that are never broken.
        color: Whether to add ANSI colours.
        quiet: Only findings that fail or warn, claims that could not be tested, runs that could not be read, what a
            dry run would write, and the closing line.
        verbose: Every run, arm and rule by name, and the evidence behind each finding.
        status: The exit status that the command ends with, said in the closing line.
    """
    page = _Page(width, color, verbose)
    levels = (Level.FAIL, Level.WARN) if quiet else LEVELS
    nothing_read = unread(audit)
    if not quiet:
        _headline(page, audit)
        if nothing_read:
            _errors(page, audit)
        else:
            _design(page, audit)
        _news(page, audit)
    for level in levels:
        for finding in sorted(audit.by_level(level), key=finding_order):
            _finding(page, audit, finding)
    if not quiet:
        _explained(page, audit)
        _ignored(page, audit)
        if not nothing_read:
            _not_judged(page, audit)
            _passed(page, audit)
            _not_counted(page, audit)
    if quiet or not nothing_read:
        _errors(page, audit)
    if quiet:
        _untested(page, audit)
    elif verbose or not nothing_read:
        _notes(page, audit)
    if audit.write_back is not None and (not quiet or audit.write_back.errors or _is_plan(audit.write_back)):
        _written(page, audit.write_back)
    _closing(page, audit, status)
    return page.text()


def format_report(report: Report, levels: Sequence[Level] = LEVELS, color: bool = False) -> str:
    """A bare report (of a library call, of ``pth-tracker verl``) as text: subject, findings by level then check."""
    page = _Page(80, color, False)
    shown = sorted((f for f in report.findings if f.level in levels and f.counts), key=finding_order)
    if report.subject:
        page.add(page.paint(safe_text(report.subject), "bold"))
    for finding in shown:
        level = finding.level.upper()
        first, *more = wrap(f"{_named(finding)}: {finding.title}", page.width, _INDENT, f"{level}  ")
        page.add(page.level(finding) + first[len(level) :], *more)
        if finding.detail:
            page.add(*wrap(finding.detail, page.width, _INDENT, newlines=True))
        if finding.remedy:
            page.add(*page.labelled("remedy", finding.remedy))
    failed, warned = (counted(len(report.by_level(level)), "finding") for level in (Level.FAIL, Level.WARN))
    if report.by_level(Level.FAIL) or report.by_level(Level.WARN):
        page.add(f"{failed} failed, {warned} warned")
    else:
        page.add(page.paint("passed", "PASS"))
    return page.text().rstrip("\n")


def format_plan(write_back: WriteBack, width: int = 80) -> str:
    """Every edit of a write-back, one line or a few each, for people who want to see it before it happens."""
    lines: list[str] = []
    for edit in write_back.planned:
        steps = [f"set {name}={value}" for name, value in edit.set.items()]
        steps += [f"unset {name}" for name in edit.unset]
        steps += [f"add tag {tag}" for tag in edit.add_tags] + [f"remove tag {tag}" for tag in edit.remove_tags]
        lines += wrap(f"{edit.run} ({edit.run_id}): " + "; ".join(steps), width, "    ", "  ")
    return "\n".join([f"{counted(len(write_back.planned), 'planned edit')}{':' if lines else ''}", *lines]) + "\n"


class _Page:
    """Lines under construction, with the width and the colours in force."""

    def __init__(self, width: int, color: bool, verbose: bool) -> None:
        self.width = max(width, 40)
        self.color = color
        self.verbose = verbose
        self._lines: list[str] = []

    def add(self, *lines: str) -> None:
        self._lines += [line.rstrip() for line in lines]

    def gap(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def text(self) -> str:
        return "\n".join(self._lines).rstrip("\n") + "\n"

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.color else text

    def level(self, finding: Finding) -> str:
        return self.paint(finding.level.upper(), finding.level.upper())

    def heading(self, text: str) -> None:
        self.gap()
        self.add(*(self.paint(line, "bold") for line in wrap(text, self.width, "  ", "")))

    def labelled(self, label: str, text: str, indent: str = _INDENT) -> list[str]:
        return wrap(text, self.width, indent + " " * _LABEL_WIDTH, f"{indent}{label:<{_LABEL_WIDTH}}")

    def item(self, text: str) -> None:
        self.add(*wrap(text, self.width, "    ", "  "))

    def names(self, names: Iterable[str]) -> str:
        return compact_names(names, None if self.verbose else 8)


def _named(finding: Finding) -> str:
    name, *facts = finding_facts(finding)
    return f"{name} [{', '.join(facts)}]".lstrip()


def _headline(page: _Page, audit: Audit) -> None:
    verdict = summary(audit)
    word = verdict.word
    lines = wrap(f"{word}: {verdict.reason}", page.width, "  ", "")
    page.add(page.paint(lines[0][: len(word)], verdict.level) + lines[0][len(word) :], *lines[1:])
    tracker = ""
    if audit.address is not None:
        places = " ".join(without_credentials(place) for place in audit.address.locations)
        tracker = f" in {audit.chosen or f'{audit.address.adapter} at {places}'}"
    subject = "" if tracker else f" of {audit.subject or 'these runs'}"
    subject = f" of project {audit.project}" if audit.project else subject
    when = f", audited {audit.audited_at:%Y-%m-%d %H:%M %Z}" if audit.audited_at else ""
    page.add(*wrap(f"{counted(len(audit.runs), 'run')}{subject}{tracker}{when}", page.width, "  ", ""))


def _design(page: _Page, audit: Audit) -> None:
    design = audit.design
    page.heading(f"Design in force{f' ({design.source})' if design.source else ''}")
    arms = [
        f"{arm}: {counted(len(keys), 'run')}{' (baseline)' if arm == design.baseline else ''}"
        for arm, keys in design.arms.items()
    ]
    more = len(arms) - MAX_ARMS
    if more > 0 and not page.verbose:
        arms = [*arms[:MAX_ARMS], f"{more} more arms"]
    metric = ""
    if design.metric:
        direction = "higher is better" if design.higher_is_better else "lower is better"
        metric = f"{design.metric} ({design.at}, {direction})"
    rows = {
        "arms": "; ".join(arms) or "none recognised",
        "vary": ", ".join(design.vary),
        "replicate": ", ".join(design.replicate),
        "metric": metric,
        "task": ", ".join(design.task),
        "stress": design.stress,
    }
    for name, text in rows.items():
        if text:
            mark = f" [inferred; {DECLARED_BY[name]} declares it]" if name in design.inferred else ""
            page.add(*page.labelled(name, text + mark, "  "))
    if "baseline" in design.inferred and design.baseline:
        page.add(
            *page.labelled("baseline", f"{design.baseline} [inferred; {DECLARED_BY['baseline']} declares it]", "  ")
        )
    if design.tie_margin is not None:
        page.add(*page.labelled("margin", f"differences within {design.tie_margin:g} are a tie", "  "))
    for note in design.notes:
        page.item(note)


def _news(page: _Page, audit: Audit) -> None:
    if audit.since_last is not None:
        page.heading(news.heading(audit.since_last))
        for line in news.lines(audit):
            page.item(line)


def _finding(page: _Page, audit: Audit, finding: Finding) -> None:
    page.gap()
    level = finding.level.upper()
    first, *more = wrap(_named(finding), page.width, _INDENT, f"{level}  ")
    page.add(f"{page.level(finding)}{page.paint(first[len(level) :], 'bold')}", *more)
    page.add(*wrap(finding.title, page.width, _INDENT))
    if finding.arms:
        page.add(*page.labelled("arms", compact_names(finding.arms)))
    if finding.blames:
        page.add(*page.labelled("blames", page.names(audit.label(key) for key in finding.blames)))
    blamed = set(finding.blames)
    others = [key for key in finding.runs if key not in blamed]
    if others:
        label = "involves" if finding.blames else "runs"
        page.add(*page.labelled(label, page.names(audit.label(key) for key in others)))
    if finding.detail:
        page.add(*wrap(finding.detail, page.width, _INDENT, newlines=True))
    if page.verbose:
        for key, value in redacted(finding.evidence).items():
            page.add(*wrap(f"{key} = {show_value(value, 200)}", page.width, _INDENT + "  ", _INDENT))
    if finding.remedy:
        page.add(*page.labelled("remedy", finding.remedy))


def _explained(page: _Page, audit: Audit) -> None:
    causes = explained(audit)
    if causes:
        page.heading("Explained by another finding, not counted")
        for cause, rules in causes.items():
            page.item(f"explained by {cause}: {', '.join(rules)}")


def _ignored(page: _Page, audit: Audit) -> None:
    accepted = ignored(audit)
    if accepted:
        page.heading(f"Ignored by the design: {counted(len(accepted), 'finding')}")
        for finding in accepted:
            runs = page.names(audit.label(key) for key in finding.blames or finding.runs)
            where = f" on {runs}" if runs else ""
            page.item(f"{finding.rule} ({finding.level}){where}: {finding.title}; reason: {finding.ignored}")


def _not_judged(page: _Page, audit: Audit) -> None:
    if audit.not_judged:
        page.heading(f"Not judged: {counted(len({entry.rule for entry in audit.not_judged}), 'rule')}")
    for group in unjudged(audit):
        lacking = f"; missing {', '.join(group.missing)}" if group.missing else ""
        page.item(f"{', '.join(group.rules)} on {compact_names(group.subjects, None if page.verbose else 3)}{lacking}")
        if group.remedy:
            page.add(*wrap(group.remedy, page.width, "    "))


def _passed(page: _Page, audit: Audit) -> None:
    rules = passed(audit)
    if rules:
        page.heading(f"Passed: {counted(len(rules), 'rule')}")
        left = partly(audit)
        page.item(
            ", ".join(
                f"{rule} (not judged on {counted(left[rule], 'run')})" if rule in left else rule for rule in rules
            )
        )


def _untested(page: _Page, audit: Audit) -> None:
    for claim, why in untested(audit).items():
        page.gap()
        page.add(*wrap(f"NOT JUDGED  {claim}", page.width, _INDENT, ""))
        page.add(*wrap(why, page.width, _INDENT))


def _is_plan(write_back: WriteBack) -> bool:
    """Whether it is a dry run's, which was asked for to be seen."""
    return bool(write_back.planned) and not write_back.applied and not write_back.refused


def _not_counted(page: _Page, audit: Audit) -> None:
    reasons = not_counted(audit)
    if reasons:
        page.heading(f"Not counted in comparisons: {counted(sum(map(len, reasons.values())), 'run')}")
        for reason, labels in reasons.items():
            page.item(f"{page.names(labels)}: {reason}")


def _errors(page: _Page, audit: Audit) -> None:
    if audit.errors:
        page.heading(f"Could not be read: {counted(len(audit.errors), 'run')}")
        for error in audit.errors:
            page.item(f"{error.name or error.ref.run_id}: {error.message}")


def _notes(page: _Page, audit: Audit) -> None:
    by_note: dict[str, list[str]] = {}
    said = {error.message for error in audit.errors}
    for run in audit.runs.values():
        for note in run.notes:
            if note not in said:
                by_note.setdefault(note, []).append(run.label)
    if audit.notes or by_note:
        page.heading("Notes")
        for note in audit.notes:
            page.item(note)
        for note, labels in by_note.items():
            page.item(f"{page.names(labels)}: {note}")


def _written(page: _Page, write_back: WriteBack) -> None:
    heading, items = written(write_back)
    page.heading(heading)
    for item in items:
        page.item(item)


def _closing(page: _Page, audit: Audit, status: ExitCode | None) -> None:
    ending = "" if status is None else f"; {status_words(audit, status)}"
    page.gap()
    page.add(*wrap(f"{counted(len(audit.runs), 'run')}: {', '.join(tally(audit))}{ending}", page.width, "  ", ""))

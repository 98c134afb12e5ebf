"""Reports and runs as small pieces of HTML that a notebook shows: no script, no style sheet, every text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from pth_tracker.findings import Finding, Level
from pth_tracker.model import Audit, Report
from pth_tracker.render.page import safe_url
from pth_tracker.render.summary import finding_order, summary, tally
from pth_tracker.render.text import compact_names, counted, safe_text
from pth_tracker.runs import Run

MAX_ROWS: Final = 40
MAX_TEXT: Final = 300
_COLOURS: Final = {"FAIL": "#c62828", "WARN": "#b26a00", "INFO": "#33669a", "PASS": "#2e7d32"}
_CELL: Final = "text-align:left;vertical-align:top"


def report_html(report: Report) -> str:
    """A report, or an audit, as its verdict and a table of the findings that count, the worst first."""
    findings = sorted((finding for finding in report.findings if finding.counts), key=finding_order)
    rows = [_finding(report, finding) for finding in findings[:MAX_ROWS]]
    parts = [_heading(report)]
    if rows:
        parts.append(_table(("level", "finding", "what", "blames"), rows, len(findings) - len(rows), "finding"))
    if isinstance(report, Audit):
        counts = f"{counted(len(report.runs), 'run')}: {', '.join(tally(report))}"
        parts.append(f"<p>{_text(counts)}</p>")
        lacking = list(dict.fromkeys(entry.rule for entry in report.not_judged))
        if lacking:
            parts.append(f"<p>Not judged: {_text(', '.join(lacking), 2000)}</p>")
    return f"<div>{''.join(parts)}</div>"


def runs_html(runs: Sequence[Run]) -> str:
    """Runs as a table: name, state, framework, arm of the listing, last step."""
    rows = [
        (
            _linked(run.label or run.name or run.key, run.last.url),
            _text(run.state),
            _text(f"{run.framework} {run.version or ''}".strip()),
            _text(run.last.group),
            _text("" if run.last.last_step is None else run.last.last_step),
            _text(len(run.config)),
        )
        for run in runs[:MAX_ROWS]
    ]
    header = ("run", "state", "framework", "group", "last step", "settings")
    table = _table(header, rows, len(runs) - len(rows), "run") if rows else ""
    more = "as pandas: <code>.runs</code>, <code>.configs</code>, <code>.histories</code>"
    return f"<div><p><b>{counted(len(runs), 'run')}</b>; {more}</p>{table}</div>"


def _heading(report: Report) -> str:
    if isinstance(report, Audit):
        verdict = summary(report)
        word, level, reason = verdict.word, verdict.level, verdict.reason
        subject = f"project {report.project}" if report.project else report.subject
    else:
        failed, warned = (len(report.by_level(one)) for one in (Level.FAIL, Level.WARN))
        level = "FAIL" if failed else "WARN" if warned else "PASS"
        word = {"FAIL": "FAILED", "WARN": "PASSED WITH WARNINGS", "PASS": "PASSED"}[level]
        reason = f"{failed} failed, {counted(warned, 'warning')}" if failed or warned else ""
        subject = report.subject
    shown = f"<b>{_coloured(word, level)}</b>{f': {_text(reason, 1000)}' if reason else ''}"
    return f"<p>{shown}{f'<br>{_text(subject)}' if subject else ''}</p>"


def _finding(report: Report, finding: Finding) -> tuple[str, ...]:
    name = " ".join(dict.fromkeys(text for text in (finding.tag, finding.rule) if text)) or f"check {finding.check}"
    what = _text(finding.title)
    if finding.detail or finding.remedy:
        remedy = f"<br><b>remedy</b> {_text(finding.remedy, 1000)}" if finding.remedy else ""
        detail = "<br>".join(_text(line, 1000) for line in finding.detail.split("\n")[:12])
        what = f"<details><summary>{what}</summary>{detail}{remedy}</details>"
    names = [report.label(key) if isinstance(report, Audit) else key for key in finding.blames]
    level = finding.level.upper()
    return f"<b>{_coloured(level, level)}</b>", _text(name), what, _text(compact_names(names))


def _table(header: Iterable[str], rows: Sequence[Sequence[str]], more: int, noun: str) -> str:
    head = "".join(f'<th style="{_CELL}">{title}</th>' for title in header)
    lines = ("".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    rest = f"<p>and {counted(more, f'more {noun}')}</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _coloured(text: str, level: str) -> str:
    return f'<span style="color:{_COLOURS[level]}">{text}</span>'


def _text(text: object, limit: int = MAX_TEXT) -> str:
    plain = safe_text(text)
    return html.escape(plain if len(plain) <= limit else plain[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}")


def _linked(label: str, url: str) -> str:
    safe = safe_url(url)
    return f'<a href="{html.escape(safe)}" rel="noreferrer">{_text(label)}</a>' if safe else _text(label)

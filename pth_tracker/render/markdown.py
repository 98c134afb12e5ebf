"""An audit as Markdown for a pull-request comment or a job summary: short, with the evidence folded away.

A comment on GitHub holds 65,536 characters. What does not fit is left out whole, the least telling first, and the page
ends by saying what that was. Every text of the audit is escaped, for Markdown and for the HTML that Markdown allows.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from pth_tracker.errors import ExitCode
from pth_tracker.model import CHECK_TITLES, Audit, AuditedRun, Coverage, DesignInForce, Finding, Level, Verdict
from pth_tracker.render import news
from pth_tracker.render.evidence import redacted
from pth_tracker.render.page import safe_url
from pth_tracker.render.summary import (
    explained,
    finding_facts,
    finding_order,
    ignored,
    not_counted,
    status_words,
    summary,
    tally,
    unjudged,
)
from pth_tracker.render.text import compact_names, counted, safe_text
from pth_tracker.values import show_value

MAX_BYTES: Final = 65_000
"""GitHub refuses a comment of more than 65,536 characters; counted in bytes, a page fits whatever a forge counts."""
MAX_LINE: Final = 400
MAX_DETAIL: Final = 4_000
MAX_EVIDENCE: Final = 20
"""Entries of the evidence of one finding that are shown."""
MANY_NAMES: Final = 100
MAX_RUNS: Final = 60
"""Rows of the table of runs, the worst verdicts first."""
_MARKS: Final = {"FAIL": "\N{CROSS MARK}", "WARN": "\N{WARNING SIGN}\ufe0f", "PASS": "\N{WHITE HEAVY CHECK MARK}"}
_ORDER: Final = (Verdict.FAIL, Verdict.WARN, Verdict.NOT_JUDGED, Verdict.PASS)

_BREAK: Final = "&#8203;"
_STRUCTURE: Final = re.compile(r"[\\`*\[\]|~$^]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=www)\.")
_REFERENCES: Final = re.compile(r"(?<=[@#!%])(?=\w)|(?<=GH-)(?=\d)|(?<=:)(?=[\w+-]+:)")


@dataclass(frozen=True)
class _Block:
    """A piece of the page that is shown whole or left out."""

    text: str
    kind: str
    """What is left out with it, in the singular."""


def to_markdown(audit: Audit, status: ExitCode | None = None) -> str:
    """The audit as Markdown, ending in a newline; ``status`` is the command's exit status, where known."""
    findings = sorted((one for one in audit.findings if one.counts), key=finding_order)
    loud = [finding for finding in findings if finding.level is not Level.INFO]
    open_rules = len({entry.rule for entry in audit.not_judged})
    blocks = [
        _Block(_headline(audit), "headline"),
        *(_Block(_line(audit, finding), "finding") for finding in loud),
        *(_Block(text, "unreadable run") for text in _errors(audit)),
        *_folded(news.heading(audit.since_last) if audit.since_last else "", _news(audit), "list of what is new"),
        *(_Block(_evidence(audit, finding), "finding's evidence") for finding in loud),
        *_folded("For information", (_line(audit, one) for one in findings if one not in loud), "table of information"),
        *_folded(f"Not judged: {counted(open_rules, 'rule')}", _not_judged(audit), "list of what was not judged"),
        *_folded("Explained or ignored, not counted", _apart(audit), "list of what does not count"),
        *_folded("Design in force", _design(audit.design), "design in force"),
        *_folded("Coverage", _coverage(audit), "coverage table"),
        *_folded(f"Runs: {len(audit.runs)}", _runs(audit), "table of runs"),
        *_folded("Notes", _notes(audit), "list of notes"),
    ]  # fmt: skip
    closing = f"\n{counted(len(audit.runs), 'run')}: {', '.join(tally(audit))}"
    closing += f"; {escape(status_words(audit, status))}." if status is not None else "."
    return _fitted(blocks, closing)


def escape(text: object, limit: int = MAX_LINE) -> str:
    r"""``text`` as one line that Markdown and HTML show as it is, cut to ``limit`` characters.

    Character references cannot stand for structure (CommonMark 0.31, 6.2); a zero-width space keeps a forge from taking
    a name for a mention, an issue or an emoji, which it looks for after the references are resolved.

    >>> print(escape("<b>[x](javascript:1)|@all #12"))
    &lt;b&gt;&#91;x&#93;(javascript:1)&#124;@&#8203;all #&#8203;12
    """
    plain = safe_text(text)
    plain = plain if len(plain) <= limit else plain[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
    pieces = _REFERENCES.sub("\x00", plain)
    pieces = html.escape(pieces, quote=False)
    pieces = _STRUCTURE.sub(lambda match: f"&#{ord(match[0])};", pieces)
    return pieces.replace("\x00", _BREAK)


def _lines(text: str, limit: int = MAX_DETAIL) -> str:
    """``text`` whose line feeds stay breaks."""
    cut = text if len(text) <= limit else text[:limit] + "\N{HORIZONTAL ELLIPSIS}"
    return "<br>".join(escape(line, limit) for line in cut.split("\n"))


def _code(text: object) -> str:
    return f"<code>{escape(text, 200)}</code>"


def _named(audit: Audit, keys: Sequence[str]) -> str:
    """The labels of runs in short; of many, those made first, since sorting all for each finding takes long."""
    if len(keys) <= MANY_NAMES:
        return escape(compact_names(audit.label(key) for key in keys))
    return escape(f"{compact_names(audit.label(key) for key in keys[:8])} and {len(keys) - 8} more")


def _folded(title: str, lines: Iterable[str], kind: str) -> Iterator[_Block]:
    """A block that opens at a click; nothing where there are no lines."""
    content = "\n".join(lines)
    if content:
        yield _Block(f"\n<details><summary>{escape(title)}</summary>\n\n{content}\n\n</details>", kind)


def _fitted(blocks: Iterable[_Block], closing: str) -> str:
    """The blocks that fit, and a last line that counts those that do not."""
    room = MAX_BYTES - len(closing.encode()) - 1000
    kept: list[str] = []
    left: dict[str, int] = {}
    for block in blocks:
        size = len(block.text.encode()) + 1
        if size > room:
            left[block.kind] = left.get(block.kind, 0) + 1
            continue
        room -= size
        kept.append(block.text)
    if left:
        named = ", ".join(counted(number, kind, _plural(kind)) for kind, number in left.items())
        closing += f" Left out, to fit into a comment: {named}; a report as .txt, .json or .html has everything."
    return "\n".join([*kept, closing]) + "\n"


def _plural(kind: str) -> str:
    return "findings' evidence" if kind == "finding's evidence" else kind.replace("list of", "lists of") + "s"


def _headline(audit: Audit) -> str:
    verdict = summary(audit)
    where = f" of project {_code(audit.project)}" if audit.project else ""
    when = f", {audit.audited_at:%Y-%m-%d %H:%M} UTC" if audit.audited_at else ""
    version = f" {escape(audit.version)}" if audit.version else ""
    counts = audit.counts
    shown = {
        "failed": counts["fail"],
        "warnings": counts["warn"],
        "information": counts["info"],
        "rules not judged": len({entry.rule for entry in audit.not_judged}),
        "runs": counts["runs"],
        "unreadable": counts["errors"],
    }
    return "\n".join(
        [
            f"### {_MARKS[verdict.level]} pth-tracker: {verdict.word}",
            "",
            f"{escape(verdict.reason[:1].upper() + verdict.reason[1:])}.",
            "",
            f"| {' | '.join(shown)} |",
            f"|{' ---: |' * len(shown)}",
            f"| {' | '.join(map(str, shown.values()))} |",
            "",
            f"Audit{where}{when}, by pth-tracker{version}.",
            "",
        ]
    )


def _facts(finding: Finding) -> str:
    name, *facts = finding_facts(finding)
    return f"**{escape(name)}** ({', '.join(escape(fact) for fact in facts)})" if name else f"({escape(facts[0])})"


def _line(audit: Audit, finding: Finding) -> str:
    blamed = f"; blames {_named(audit, finding.blames)}" if finding.blames else ""
    level = f"{_MARKS.get(finding.level.upper(), '')} {finding.level.upper()}".strip()
    return f"- {level} {_facts(finding)}: {escape(finding.title)}{blamed}"


def _errors(audit: Audit) -> Iterator[str]:
    for error in audit.errors:
        yield f"- {_MARKS['WARN']} could not be read: {escape(error.name or error.ref.run_id)}: {escape(error.message)}"


def _news(audit: Audit) -> Iterator[str]:
    for line in news.lines(audit):
        yield f"- {escape(line)}"


def _evidence(audit: Audit, finding: Finding) -> str:
    name = " ".join(text for text in (finding.tag, finding.rule) if text) or finding.title
    blamed = set(finding.blames)
    others = [key for key in finding.runs if key not in blamed]
    lines = [
        f"- what: {escape(finding.title)}",
        *([f"- arms: {escape(compact_names(finding.arms))}"] if finding.arms else []),
        *([f"- blames: {_named(audit, finding.blames)}"] if finding.blames else []),
        *([f"- {'involves' if finding.blames else 'runs'}: {_named(audit, others)}"] if others else []),
        *([f"- detail: {_lines(finding.detail)}"] if finding.detail else []),
    ]
    evidence = list(redacted(finding.evidence).items())
    lines += [f"- {_code(key)}: {escape(_shown(value))}" for key, value in evidence[:MAX_EVIDENCE]]
    more = len(evidence) - MAX_EVIDENCE
    lines += [f"- and {more} more"] if more > 0 else []
    lines += [f"- **remedy**: {escape(finding.remedy, 1000)}"] if finding.remedy else []
    return next(_folded(f"{finding.level.upper()} {name}: evidence and remedy", lines, "")).text


def _shown(value: Any) -> str:
    """Plain data as short text: a mapping as its entries, numbers to four figures."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(entry)}" for key, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else show_value(value, 80)


def _not_judged(audit: Audit) -> Iterator[str]:
    for group in unjudged(audit):
        lacking = f"; missing {escape(', '.join(group.missing))}" if group.missing else ""
        remedy = f"<br>{escape(group.remedy, 1000)}" if group.remedy else ""
        yield f"- {escape(', '.join(group.rules))} on {escape(compact_names(group.subjects, 3))}{lacking}{remedy}"


def _apart(audit: Audit) -> Iterator[str]:
    for cause, rules in explained(audit).items():
        yield f"- explained by {escape(cause)}: {escape(', '.join(rules))}"
    for finding in ignored(audit):
        runs = _named(audit, finding.blames or finding.runs)
        where = f" on {runs}" if runs else ""
        reason = escape(finding.ignored)
        yield f"- ignored: {escape(finding.rule)} ({finding.level}){where}: {escape(finding.title)}; reason: {reason}"


def _design(design: DesignInForce) -> Iterator[str]:
    arms = [f"{arm}: {counted(len(keys), 'run')}" for arm, keys in design.arms.items()]
    rows = {
        "arms": compact_names(arms, 12),
        "baseline": design.baseline,
        "vary": ", ".join(design.vary),
        "replicate": ", ".join(design.replicate),
        "metric": f"{design.metric} ({design.at})" if design.metric else "",
        "task": ", ".join(design.task),
        "stress": design.stress,
        "source": design.source,
    }
    for name, text in rows.items():
        if text:
            yield f"- {name}: {escape(text)}{' (inferred)' if name in design.inferred else ''}"
    for note in design.notes:
        yield f"- note: {escape(note)}"


def _coverage(audit: Audit) -> Iterator[str]:
    """A table of check, rule and outcome, the subjects of one outcome together."""
    if not audit.coverage:
        return
    yield "| check | rule | outcome | subjects |"
    yield "| --- | --- | --- | --- |"

    def order(entry: Coverage) -> tuple[int, str, str]:
        return entry.check, entry.rule, str(entry.outcome)

    for (check, rule, outcome), entries in groupby(sorted(audit.coverage, key=order), key=order):
        title = CHECK_TITLES.get(check, "")
        subjects = compact_names((entry.subject for entry in entries), 3)
        yield f"| {check} {title} | {escape(rule)} | {outcome} | {escape(subjects)} |"


def _runs(audit: Audit) -> Iterator[str]:
    if not audit.runs:
        return
    ordered = sorted(audit.runs.values(), key=lambda run: _ORDER.index(run.verdict))
    yield "| run | arm | seed | updates | score | verdict | rules |"
    yield "| --- | --- | --- | ---: | ---: | --- | --- |"
    for run in ordered[:MAX_RUNS]:
        score = "" if run.score is None else f"{run.score:.4g}"
        updates = "" if run.last_update is None else str(run.last_update)
        cells = [_linked(run), escape(run.arm), escape(run.seed), updates, score, str(run.verdict)]
        yield f"| {' | '.join([*cells, escape(', '.join(run.rules))])} |"
    if len(ordered) > MAX_RUNS:
        yield f"\nand {counted(len(ordered) - MAX_RUNS, 'more run', 'more runs')}"


def _linked(run: AuditedRun) -> str:
    """The run's label, linked to its page where the tracker has one."""
    label = escape(run.label, 100)
    url = safe_url(run.url)
    return f"[{label}](<{quote(url, safe=':/?=&%#~.,-_;+@')}>)" if url and len(url) <= 500 else label


def _notes(audit: Audit) -> Iterator[str]:
    for note in audit.notes:
        yield f"- {escape(note)}"
    for reason, labels in not_counted(audit).items():
        yield f"- not counted: {escape(compact_names(labels))}: {escape(reason)}"
    by_note: dict[str, list[str]] = {}
    for run in audit.runs.values():
        for note in run.notes:
            by_note.setdefault(note, []).append(run.label)
    for note, labels in by_note.items():
        yield f"- {escape(compact_names(labels))}: {escape(note)}"
    for sentence in audit.write_back.errors if audit.write_back else ():
        yield f"- not written: {escape(sentence)}"

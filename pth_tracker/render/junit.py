"""An audit as JUnit XML, which every CI system shows: one test case for each rule and subject of the audit.

A test case *failed* where a finding that counts has the level ``fail``; it *passed* where it only warned, and says so
in its output; it was *skipped* where the rule could not be judged, with the reason; a run that could not be read is
an *error*. ``--strict`` changes the exit status of the command, not what became of a rule, so the file is the same.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pth_tracker.errors import ExitCode
from pth_tracker.model import CHECK_TITLES, Audit, Finding, Level, NotJudged, Outcome
from pth_tracker.render.summary import finding_order, summary
from pth_tracker.render.text import compact_names, safe_text

READING: Final = "Reading"
"""The suite of the runs that could not be read."""


@dataclass
class _Case:
    """One rule on one subject."""

    check: int
    rule: str
    subject: str
    judged: bool = False
    findings: list[Finding] = field(default_factory=list)
    reasons: list[NotJudged] = field(default_factory=list)
    """Why it could not be judged, on some of the runs or all."""


def to_junit(audit: Audit, status: ExitCode | None = None) -> str:
    """The audit as JUnit XML, ending in a newline; ``status`` is the command's exit status, where known."""
    cases = _cases(audit)
    root = ET.Element("testsuites", name="pth-tracker")
    for check in sorted({case.check for case in cases}):
        suite = ET.SubElement(root, "testsuite", name=f"{check} {CHECK_TITLES.get(check, '')}".rstrip())
        _properties(suite, audit, status)
        for case in (case for case in cases if case.check == check):
            _add(audit, suite, case)
        _count(suite, audit)
    if audit.errors or not cases:
        suite = ET.SubElement(root, "testsuite", name=READING)
        _properties(suite, audit, status)
        for error in audit.errors:
            place = f"{error.ref.project} {error.ref.run_id}".strip()
            element = ET.SubElement(suite, "testcase", classname="reading", name=_name(error.name or place), time="0")
            ET.SubElement(element, "error", message=safe_text(error.message), type="unreadable").text = _text(
                f"{error.name or place}: {error.message}"
            )
        _count(suite, audit)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ET.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(root, encoding='unicode')}\n"


def _cases(audit: Audit) -> list[_Case]:
    """Every rule on every subject of the coverage, and what stands in no coverage: nothing that was found is lost."""
    cases: dict[tuple[int, str, str], _Case] = {}

    def case(check: int, rule: str, subject: str) -> _Case:
        return cases.setdefault((check, rule, subject), _Case(check, rule, subject))

    told: set[int] = set()
    for entry in audit.coverage:
        own = case(entry.check, entry.rule, entry.subject)
        if entry.outcome is Outcome.NOT_JUDGED:
            continue
        own.judged = True
        for finding in audit.findings:
            if finding.rule == entry.rule and set(finding.runs) & set(entry.runs):
                told.add(id(finding))
                if not any(finding is known for known in own.findings):
                    own.findings.append(finding)
    for reason in audit.not_judged:
        case(reason.check, reason.rule, reason.subject).reasons.append(reason)
    for finding in audit.findings:
        if id(finding) not in told:
            own = case(finding.check, finding.rule or finding.title, compact_names(finding.arms) or "project")
            own.judged = True
            own.findings.append(finding)
    return list(cases.values())


def _properties(suite: ET.Element, audit: Audit, status: ExitCode | None) -> None:
    facts = {
        "project": audit.project,
        "tracker": audit.chosen,
        "verdict": summary(audit).word,
        "version": audit.version,
        "exit": "" if status is None else str(int(status)),
        **{f"counts.{name}": str(number) for name, number in audit.counts.items()},
    }
    properties = ET.SubElement(suite, "properties")
    for name, value in facts.items():
        if value:
            ET.SubElement(properties, "property", name=name, value=safe_text(value))


def _add(audit: Audit, suite: ET.Element, case: _Case) -> None:
    element = ET.SubElement(
        suite, "testcase", classname=f"check{case.check}.{_name(case.rule)}", name=_name(case.subject), time="0"
    )
    if not case.judged:
        why = _why(case.reasons) or "could not be judged"
        ET.SubElement(element, "skipped", message=safe_text(why), type="not judged")
        return
    findings = sorted(case.findings, key=lambda finding: (not finding.counts, *finding_order(finding)))
    failed = [one for one in findings if one.counts and one.level is Level.FAIL]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        kind = safe_text(failed[0].tag or failed[0].rule or "finding")
        failure = ET.SubElement(element, "failure", message=safe_text(failed[0].title + more), type=kind)
        failure.text = _text("\n\n".join(_told(audit, finding) for finding in failed))
    others = [_told(audit, finding) for finding in findings if finding not in failed]
    others += [f"not judged on some runs: {_why(case.reasons)}"] if case.reasons else []
    if others:
        ET.SubElement(element, "system-out").text = _text("\n\n".join(others))


def _why(reasons: Sequence[NotJudged]) -> str:
    """Why a rule was not judged, and what would make it judgeable."""
    words = []
    for reason in reasons:
        lacking = ", ".join(name.replace("|", " or ") for name in reason.missing)
        words += [f"missing {lacking}"] if lacking else []
        words += [reason.remedy] if reason.remedy else []
    return "; ".join(words)


def _told(audit: Audit, finding: Finding) -> str:
    """One finding in full."""
    apart = ""
    if finding.because_of:
        apart = f" (explained by {finding.because_of}, not counted)"
    elif finding.ignored:
        apart = f" (ignored by the design: {finding.ignored})"
    lines = [f"{finding.level.upper()} {finding.title}{apart}"]
    lines += _list(audit, "blames", finding.blames) if finding.blames else _list(audit, "runs", finding.runs)
    lines += [finding.detail] if finding.detail else []
    lines += [f"remedy: {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def _list(audit: Audit, label: str, keys: Sequence[str]) -> list[str]:
    return [f"{label}: {compact_names((audit.label(key) for key in keys), None)}"] if keys else []


def _count(suite: ET.Element, audit: Audit) -> None:
    for name, tag in (("tests", ""), ("failures", "/failure"), ("errors", "/error"), ("skipped", "/skipped")):
        suite.set(name, str(len(suite.findall(f"testcase{tag}"))))
    suite.set("time", "0")
    if audit.audited_at:
        suite.set("timestamp", audit.audited_at.replace(tzinfo=None, microsecond=0).isoformat())


def _name(text: str) -> str:
    return safe_text(text) or "unnamed"


def _text(text: str) -> str:
    """``text`` in which a character that XML 1.0 forbids, or that would steer a terminal, is written as an escape."""
    return safe_text(text, newlines=True)

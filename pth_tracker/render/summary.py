"""What reports for people say alike: the verdict in one line, how a finding is called, what could not be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pth_tracker.errors import ExitCode
from pth_tracker.model import CHECK_TITLES, Audit, Basis, Finding, Level, Outcome, WriteBack
from pth_tracker.render.text import counted, short_exit_words

DECLARED_BY: Final[Mapping[str, str]] = {
    "arms": "--arm NAME=GLOB",
    "vary": "--vary KEY",
    "replicate": "--replicate KEY",
    "metric": "--metric KEY",
    "higher_is_better": "metric.higher_is_better in a design file",
    "baseline": "baseline in a design file",
    "task": "task in a design file",
    "stress": "stress in a design file",
}
"""Part of the design to what declares it, where it was inferred."""


CLAIMS: Final = 7
"""The check of the design's claims."""


@dataclass(frozen=True)
class Summary:
    """The verdict on a whole audit."""

    word: str
    """``FAILED``, ``PASSED WITH WARNINGS``, ``NOT JUDGED`` or ``PASSED``."""
    level: str
    """``FAIL``, ``WARN`` or ``PASS``: how it is coloured."""
    reason: str
    """Why, in a few words."""


@dataclass(frozen=True)
class Unjudged:
    """Rules that could not judge some subjects for one and the same reason."""

    rules: tuple[str, ...]
    subjects: tuple[str, ...]
    missing: tuple[str, ...]
    """What they lack, alternatives joined by ``or``."""
    remedy: str


def summary(audit: Audit) -> Summary:
    """The verdict on ``audit``, as every report for people opens."""
    failed, warned = audit.by_level(Level.FAIL), audit.by_level(Level.WARN)
    if failed:
        return Summary("FAILED", "FAIL", by_name(failed))
    if warned:
        return Summary("PASSED WITH WARNINGS", "WARN", by_name(warned))
    if unread(audit):
        return Summary("NOT JUDGED", "WARN", f"{counted(len(audit.errors), 'run')} selected, and none could be read")
    if not audit.judged:
        return Summary("NOT JUDGED", "WARN", "nothing could be judged; what to log is listed below")
    rules = {entry.rule for entry in audit.coverage if entry.outcome is not Outcome.NOT_JUDGED}
    open_ = {entry.rule for entry in audit.not_judged} - rules
    rest = f"; {len(open_)} could not be judged" if open_ else ""
    rest += f"; {counted(len(audit.errors), 'run')} could not be read" if audit.errors else ""
    return Summary("PASSED", "PASS", f"no check failed or warned, of {counted(len(rules), 'rule')} judged{rest}")


def unread(audit: Audit) -> bool:
    """Whether every selected run is unreadable, so that the reasons are all there is to say."""
    failed = {error.ref for error in audit.errors}
    lost = all(failed.intersection(run.parts) for run in audit.runs.values())
    return bool(failed) and lost and not any(finding.counts for finding in audit.findings)


def by_name(findings: Iterable[Finding]) -> str:
    """``Idle Clip on 3 runs, lost-seed on 1 run``: bugs by name, other rules by slug."""
    runs: dict[str, set[str]] = {}
    for finding in sorted(findings, key=lambda finding: (not finding.tag, *finding_order(finding))):
        runs.setdefault(finding.tag or finding.rule or finding.title, set()).update(finding.blames)
    return ", ".join(f"{name} on {counted(len(keys), 'run')}" if keys else name for name, keys in runs.items())


def finding_order(finding: Finding) -> tuple[int, int, str]:
    """A sorting key: the worst first, then by check and rule."""
    return finding.level.rank, finding.check, finding.rule


def finding_facts(finding: Finding) -> list[str]:
    """How a finding is called and where it comes from: its tag and rule (whichever it has), check and basis."""
    known = f"{finding.check}: {CHECK_TITLES[finding.check]}" if finding.check in CHECK_TITLES else f"{finding.check}"
    name, *slug = [text for text in (finding.tag, finding.rule) if text] or [""]
    return [name, *slug, f"check {known}", *(["inferred"] if finding.basis is Basis.INFERRED else [])]


def unjudged(audit: Audit) -> list[Unjudged]:
    """What could not be judged, by what is lacking and what would mend it."""
    groups: dict[tuple[tuple[str, ...], str], tuple[dict[str, None], dict[str, None]]] = {}
    for entry in audit.not_judged:
        rules, subjects = groups.setdefault((entry.missing, entry.remedy), ({}, {}))
        rules[entry.rule] = None
        subjects[entry.subject] = None
    return [
        Unjudged(tuple(rules), tuple(subjects), tuple(name.replace("|", " or ") for name in missing), remedy)
        for (missing, remedy), (rules, subjects) in groups.items()
    ]


def explained(audit: Audit) -> dict[str, tuple[str, ...]]:
    """Rule to the rules whose findings follow from its own, and are therefore not counted."""
    found: dict[str, dict[str, None]] = {}
    for finding in audit.findings:
        if finding.because_of:
            found.setdefault(finding.because_of, {})[finding.rule or finding.title] = None
    return {cause: tuple(rules) for cause, rules in found.items()}


def ignored(audit: Audit) -> list[Finding]:
    """The findings that the design ignores, with a reason each."""
    return [finding for finding in audit.findings if finding.ignored and not finding.because_of]


def passed(audit: Audit) -> tuple[str, ...]:
    """The rules that judged something and found nothing."""
    found = {finding.rule for finding in audit.findings}
    rules = dict.fromkeys(entry.rule for entry in audit.coverage if entry.outcome is Outcome.PASSED)
    return tuple(rule for rule in rules if rule not in found)


def partly(audit: Audit) -> dict[str, int]:
    """Rules that judged some runs and could not judge others, with how many others."""
    judged: dict[str, set[str]] = {}
    lacking: dict[str, set[str]] = {}
    for entry in audit.coverage:
        held = lacking if entry.outcome is Outcome.NOT_JUDGED else judged
        held.setdefault(entry.rule, set()).update(entry.runs)
    left = {rule: len(runs - judged[rule]) for rule, runs in lacking.items() if rule in judged}
    return {rule: number for rule, number in left.items() if number}


def untested(audit: Audit) -> dict[str, str]:
    """Claims of the design that could not be tested, as they are called, with the reason."""
    claims = (entry for entry in audit.not_judged if entry.check == CLAIMS and entry.subject.startswith("claim "))
    return {entry.subject: entry.remedy for entry in claims}


def not_counted(audit: Audit) -> dict[str, list[str]]:
    """Reason to the labels of the runs that the comparisons do not count for it."""
    reasons: dict[str, list[str]] = {}
    for run in audit.runs.values():
        if not run.counted:
            reasons.setdefault(run.why_not or "no reason given", []).append(run.label)
    return reasons


def tally(audit: Audit) -> Sequence[str]:
    """The counts in words, each with what it counts; what there is none of is left out, but for failures.

    ``2 findings failed on 6 runs``, ``1 finding warned``, ``3 rules not judged``.
    """
    counts = audit.counts
    apart = sum(not finding.counts for finding in audit.findings)
    rules = len({entry.rule for entry in audit.not_judged})
    words = {
        f"{counted(counts['warn'], 'finding')} warned{_blamed(audit, Level.WARN)}": counts["warn"],
        f"{counts['info']} for information": counts["info"],
        f"{apart} explained or ignored": apart,
        f"{counted(rules, 'rule')} not judged": rules,
        f"{counted(counts['errors'], 'run')} unreadable": counts["errors"],
    }
    failed = f"{counted(counts['fail'], 'finding')} failed{_blamed(audit, Level.FAIL)}"
    return [failed, *(word for word, number in words.items() if number)]


def _blamed(audit: Audit, level: Level) -> str:
    blamed = {key for finding in audit.by_level(level) for key in finding.blames}
    return f" on {counted(len(blamed), 'run')}" if blamed else ""


def status_words(audit: Audit, status: ExitCode) -> str:
    """``exit status 1: a check failed``, with what made it so."""
    meaning = short_exit_words(status)
    if status is ExitCode.CHECK_FAILED and not audit.counts["fail"]:
        meaning = "a rule could not be judged"
    if status is ExitCode.OK and audit.counts["fail"]:
        meaning = "a check failed, which --exit-zero mutes"
    return f"exit status {int(status)}: {meaning}"


def written(write_back: WriteBack) -> tuple[str, list[str]]:
    """What was written into the tracker, or would be: in a line, and one line for each thing to know of it."""
    runs = counted(len({edit.run_id for edit in write_back.planned}), "run")
    changes = _changes(write_back)
    if write_back.refused:
        heading = f"Nothing written: {write_back.refused}"
    elif not write_back.applied and not (write_back.planned or write_back.errors or write_back.skipped):
        heading = "Dry run: all marks are up to date, nothing would change"
    elif not write_back.applied and not write_back.errors:
        heading = f"Dry run, nothing written; would change {runs}{changes}"
    elif not write_back.applied:
        heading = "Nothing written: the tracker failed"
    elif write_back.planned:
        heading = f"Written: marks of {runs}{changes}"
    elif write_back.errors or write_back.skipped:
        heading = "Written: no marks"
    else:
        heading = "Nothing to write: all marks are up to date"
    items = [f"audit run: {write_back.published}"] if write_back.published else []
    items += [f"left out: {skipped}" for skipped in write_back.skipped]
    return heading, items + [f"refused: {error}" for error in write_back.errors]


def _changes(write_back: WriteBack) -> str:
    verdicts = Counter(edit.set["verdict"] for edit in write_back.planned if "verdict" in edit.set)
    cleared = sum("verdict" in edit.unset for edit in write_back.planned)
    words = [f"{number} {verdict}" for verdict, number in verdicts.items()]
    words += [f"{cleared} cleared"] if cleared else []
    return f" ({', '.join(words)})" if words else ""

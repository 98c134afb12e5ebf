"""What the HTML page shows of an audit, as plain records for its template: nothing here is escaped yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pth_tracker.model import (
    CHECK_TITLES,
    IDLE_CLIP,
    LOST_SEED,
    ROGUE_NORMALISER,
    STUCK_BATCH,
    Audit,
    AuditedRun,
    Finding,
    Level,
    Outcome,
)
from pth_tracker.render.evidence import redacted
from pth_tracker.render.summary import DECLARED_BY, finding_order
from pth_tracker.render.text import counted, natural_key, safe_text
from pth_tracker.tracker import without_credentials
from pth_tracker.values import show_value

BUGS: Final[Mapping[str, str]] = {
    IDLE_CLIP: "The ratio's denominator is the learner's own recomputed policy: the clip cannot act, however far the "
    "sampler is behind. The log shows a clip fraction of 0.",
    LOST_SEED: "A data seed never reached an arm: runs that are labelled with several seeds replay one data order.",
    STUCK_BATCH: "A queue serves one batch again and again, while the logged age of the data looks as designed.",
    ROGUE_NORMALISER: "A loss divides by another normaliser than that of its written equation: the numbers are right, "
    "and the conclusion is wrong.",
}
"""The four bugs, each in a sentence or two."""
CHECKS: Final[Mapping[int, str]] = {
    1: "The policy in the ratio, against the sampler that generated the data.",
    2: "What is meant to vary varies, what is meant to be fixed matches, and every seed orders its own data.",
    3: "Which batch each update trains on, beside the age of the data.",
    4: "The implemented losses against their equations, value and gradient, on a fixed input.",
    5: "Where the baseline itself is stable, before anything is compared.",
    6: "Differences between arms, paired by seed.",
    7: "Every sentence of the claim, against the runs.",
}
NAMES: Final = 12
"""Runs that a finding names; the rest is counted."""
EVIDENCE_ROWS: Final = 12
EVIDENCE_COLUMNS: Final = 8
VALUE: Final = 140
"""Characters of one value of the evidence."""
MOST_ROWS: Final = 3000
"""Rows of one table; a longer one says what it leaves out."""
WIDE: Final = 7
"""More arms than this stand in rows and not in columns."""
CLAIM_RULES: Final[Mapping[str, tuple[str, Level | str]]] = {
    "claim-contradicted": ("contradicted", Level.FAIL),
    "claim-undermined": ("undermined", Level.FAIL),
    "claim-supported": ("supported", "pass"),
}


@dataclass(frozen=True)
class Name:
    """A run's name, and the page that shows it in the tracker."""

    text: str
    url: str = ""


@dataclass(frozen=True)
class Names:
    """The first few of some runs, and how many more there are."""

    shown: tuple[Name, ...]
    more: int


@dataclass(frozen=True)
class EvidenceTable:
    """A finding's evidence: a row a run where it was gathered from several, else a row a number."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


@dataclass(frozen=True)
class Shown:
    """One finding as the page shows it."""

    finding: Finding
    anchor: str
    blames: Names
    others: Names
    evidence: EvidenceTable


@dataclass(frozen=True)
class Group:
    """The findings of one bug, or the rest of one check."""

    anchor: str
    title: str
    about: str
    findings: tuple[Shown, ...]
    check: int

    @property
    def worst(self) -> Level:
        """The level of the worst finding."""
        return min((one.finding.level for one in self.findings), key=lambda level: level.rank)


@dataclass
class Cell:
    """What became of one check in one arm."""

    outcome: Outcome | None = None
    """None: the check has no rule for it."""
    found: dict[str, None] = field(default_factory=dict)
    """The bugs and rules found, the worst first."""
    judged: set[str] = field(default_factory=set)
    unjudged: set[str] = field(default_factory=set)

    @property
    def words(self) -> str:
        """What was found, or how much was judged, in a few words."""
        if self.found:
            return ", ".join(self.found)
        if self.outcome is Outcome.PASSED:
            return counted(len(self.judged), "rule")
        return ""

    @property
    def lacking(self) -> int:
        """How many rules could not be judged here."""
        return len(self.unjudged - self.judged)


@dataclass(frozen=True)
class Matrix:
    """The checks by arm."""

    checks: tuple[int, ...]
    arms: tuple[str, ...]
    cells: Mapping[tuple[int, str], Cell]

    @property
    def wide(self) -> bool:
        """Whether the arms are too many to be columns."""
        return len(self.arms) > WIDE


@dataclass(frozen=True)
class ClaimShown:
    """One sentence of the claim with what became of it."""

    text: str
    verdict: str
    level: str
    why: str
    remedy: str
    runs: Names
    evidence: EvidenceTable


@dataclass(frozen=True)
class DesignRow:
    """One part of the design in force."""

    name: str
    text: str
    declared_by: str
    """What would declare it; ``""``: it was not inferred."""


def safe_url(url: str) -> str:
    """``url`` where it leads to a web page and is what it looks like, without credentials; else ``""``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    plain = without_credentials(url)
    return plain if parts.scheme in ("http", "https") and parts.netloc and safe_text(plain) == plain else ""


def name_of(audit: Audit, key: str) -> Name:
    """The name of a run with its link."""
    run = audit.runs.get(key)
    return Name(run.label, safe_url(run.url)) if run else Name(key)


def names_of(audit: Audit, keys: Sequence[str]) -> Names:
    """These runs in the order of their names, cut where they are many."""
    ordered = sorted(keys, key=lambda key: natural_key(audit.label(key)))
    return Names(tuple(name_of(audit, key) for key in ordered[:NAMES]), max(0, len(keys) - NAMES))


def evidence_table(audit: Audit, finding: Finding) -> EvidenceTable:
    """The numbers behind a finding, without the values of secrets."""
    plain: dict[str, Any] = {key: value for key, value in redacted(finding.evidence).items() if key != "claim"}
    labels = {audit.label(key) for key in finding.runs}
    if len(plain) > 1 and all(key in labels and isinstance(value, dict) for key, value in plain.items()):
        columns = list(dict.fromkeys(column for row in plain.values() for column in row))[:EVIDENCE_COLUMNS]
        rows = [(key, *(_value(row[c]) if c in row else "" for c in columns)) for key, row in plain.items()]
        kept = tuple(rows[:EVIDENCE_ROWS])
        return EvidenceTable(("run", *columns), kept, len(rows) - len(kept))
    pairs = [(key, _value(value)) for key, value in plain.items()]
    return EvidenceTable((), tuple(pairs[: 2 * EVIDENCE_ROWS]), max(0, len(pairs) - 2 * EVIDENCE_ROWS))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and value and all(isinstance(one, float) for one in value):
        return ", ".join(f"{one:.4g}" for one in value)[:VALUE]
    return value[:VALUE] if isinstance(value, str) else show_value(value, VALUE)


def groups(audit: Audit) -> list[Group]:
    """The findings that count, those of the four bugs first, then by check; claims have a place of their own."""
    found: dict[str, list[Finding]] = {}
    for finding in sorted((one for one in audit.findings if one.counts), key=finding_order):
        if finding.rule not in CLAIM_RULES:
            found.setdefault(finding.tag if finding.tag in BUGS else f"check {finding.check}", []).append(finding)
    order = [*BUGS, *sorted(found.keys() - BUGS.keys(), key=lambda name: int(name.removeprefix("check ")))]
    number = 0
    made = []
    for name in (name for name in order if name in found):
        check = found[name][0].check
        shown = []
        for finding in found[name]:
            number += 1
            shown.append(_shown(audit, finding, f"finding-{number}"))
        about = BUGS.get(name) or CHECKS.get(check, "")
        title = name if name in BUGS else f"Check {check}: {CHECK_TITLES.get(check, '')}".rstrip(": ")
        made.append(Group(f"group-{name.lower().replace(' ', '-')}", title, about, tuple(shown), check))
    return made


def _shown(audit: Audit, finding: Finding, anchor: str) -> Shown:
    blamed = set(finding.blames)
    others = [key for key in finding.runs if key not in blamed]
    evidence = evidence_table(audit, finding)
    return Shown(finding, anchor, names_of(audit, finding.blames), names_of(audit, others), evidence)


def matrix(audit: Audit) -> Matrix:
    """What became of each check in each arm; runs in no arm have a column of their own."""
    arm_of = {key: run.arm for key, run in audit.runs.items()}
    arms = [*audit.design.arms, *([""] if "" in arm_of.values() or not audit.design.arms else [])]
    cells = {(check, arm): Cell() for check in CHECK_TITLES for arm in arms}

    def concerned(keys: Iterable[str]) -> list[str]:
        own = {arm_of[key] for key in keys if key in arm_of}
        return [arm for arm in arms if arm in own] or arms

    for entry in audit.coverage:
        for arm in concerned(entry.runs) if entry.check in CHECK_TITLES else ():
            cell = cells[entry.check, arm]
            judged = entry.outcome is not Outcome.NOT_JUDGED
            (cell.judged if judged else cell.unjudged).add(entry.rule)
    for cell in cells.values():
        cell.outcome = Outcome.PASSED if cell.judged else Outcome.NOT_JUDGED if cell.unjudged else None
    for finding in sorted(audit.findings, key=lambda one: (not one.counts, *finding_order(one))):
        if finding.level is Level.INFO or finding.check not in CHECK_TITLES:
            continue
        outcome = finding.outcome
        for arm in concerned(finding.blames or finding.runs):
            cell = cells[finding.check, arm]
            # What does not count is shown where nothing that does stands in its place.
            if finding.counts or cell.outcome in (Outcome.PASSED, outcome):
                cell.found[finding.tag or finding.rule or finding.title] = None
                cell.outcome = cell.outcome if cell.outcome is Outcome.FAILED else outcome
    return Matrix(tuple(CHECK_TITLES), tuple(arms), cells)


def claims(audit: Audit) -> list[ClaimShown]:
    """Every claim of the design with its verdict: those that the runs contradict first, those not tested last."""
    made = []
    for finding in sorted((one for one in audit.findings if one.rule in CLAIM_RULES), key=finding_order):
        verdict, level = CLAIM_RULES[finding.rule]
        text = str(finding.evidence.get("claim") or finding.title)
        runs, evidence = names_of(audit, finding.runs), evidence_table(audit, finding)
        made.append(ClaimShown(text, verdict, str(level), finding.detail, finding.remedy, runs, evidence))
    open_: dict[str, None] = {}
    for entry in audit.not_judged:
        if entry.rule in CLAIM_RULES and entry.subject not in open_ and entry.subject.startswith("claim "):
            open_[entry.subject] = None
            text = entry.subject.removeprefix("claim ").strip('"')
            runs = names_of(audit, entry.runs)
            made.append(ClaimShown(text, "not judged", "none", entry.remedy, "", runs, EvidenceTable((), ())))
    return made


def design_rows(audit: Audit) -> list[DesignRow]:
    """The design in force, part by part, and what would declare those that were inferred."""
    design = audit.design
    metric = ""
    if design.metric:
        metric = f"{design.metric} ({design.at}, {'higher' if design.higher_is_better else 'lower'} is better)"
    texts = {
        "arms": ", ".join(f"{arm} ({counted(len(keys), 'run')})" for arm, keys in design.arms.items())
        or "none recognised",
        "baseline": design.baseline,
        "vary": ", ".join(design.vary),
        "replicate": ", ".join(design.replicate),
        "metric": metric,
        "task": ", ".join(design.task),
        "stress": design.stress,
        "tie margin": "" if design.tie_margin is None else f"differences within {design.tie_margin:g} are a tie",
        "pairing": "required" if design.pairing == "required" else "",
    }
    return [
        DesignRow(name, text, DECLARED_BY.get(name, "a design file") if name in design.inferred else "")
        for name, text in texts.items()
        if text
    ]


def run_order(audit: Audit) -> list[AuditedRun]:
    """The runs, arms in the order of the design, as they were created within an arm; those in no arm last."""
    place = {arm: at for at, arm in enumerate(audit.design.arms)}
    return sorted(audit.runs.values(), key=lambda run: place.get(run.arm, len(place)))

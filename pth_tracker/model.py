"""What an audit says: its report, coverage, runs and the design in force. Records without any input or output.

A `Rule` declares what it needs; a judge yields `Finding`s; what could not be judged is a `NotJudged`; an `Audit`
gathers them with the coverage, the runs and the design in force. `Report` has the shape that users of the
``probe-the-harness`` package know. The names of `pth_tracker.findings` and `pth_tracker.rules` are also here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pth_tracker.findings import (
    CHECK_TITLES,
    IDLE_CLIP,
    LEVELS,
    LOST_SEED,
    ROGUE_NORMALISER,
    STUCK_BATCH,
    Basis,
    Finding,
    Level,
    Outcome,
    Scope,
    Verdict,
)
from pth_tracker.past import SinceLast
from pth_tracker.rules import FACTS, Branch, Plan, Rule, branch, no_facts
from pth_tracker.runs import Marks, RunError, RunRef
from pth_tracker.traces import Traces
from pth_tracker.tracker import Address
from pth_tracker.values import Value

__all__ = [
    "CHECK_TITLES",
    "FACTS",
    "IDLE_CLIP",
    "LEVELS",
    "LOST_SEED",
    "ROGUE_NORMALISER",
    "STUCK_BATCH",
    "Audit",
    "AuditedRun",
    "Basis",
    "Branch",
    "Coverage",
    "DesignInForce",
    "Finding",
    "HarnessCheckError",
    "Level",
    "NotJudged",
    "Outcome",
    "Plan",
    "PlannedEdit",
    "Report",
    "Rule",
    "Scope",
    "Verdict",
    "WriteBack",
    "branch",
    "no_facts",
]


@dataclass(frozen=True)
class NotJudged:
    """A rule that could not judge a subject, what it lacked, and what would make it judgeable."""

    rule: str
    check: int
    subject: str
    """A framework's runs, a cell, a pair of arms or ``project``, as shown to people."""
    missing: tuple[str, ...]
    """Names of the lacking quantities, roles or facts; alternatives joined by ``|``."""
    remedy: str
    runs: tuple[str, ...] = ()
    """Keys of the runs concerned."""


@dataclass(frozen=True)
class Coverage:
    """What became of one rule on one subject: no rule is ever silent."""

    rule: str
    check: int
    subject: str
    outcome: Outcome
    runs: tuple[str, ...]
    """Keys of the runs it covers."""
    branches: tuple[str, ...] = ()
    """The branches of its needs that were met."""
    unmet: tuple[str, ...] = ()
    """Those that were not."""


@dataclass(frozen=True)
class AuditedRun:
    """One logical run as the report shows it."""

    key: str
    label: str
    name: str
    parts: tuple[RunRef, ...]
    state: str
    framework: str
    version: str | None = None
    arm: str = ""
    """``""``: in no arm."""
    cell: str = ""
    seed: str = ""
    """The effective data seed as shown: ``43``, ``default order``, ``file order`` or ``""``."""
    last_update: int | None = None
    score: float | None = None
    counted: bool = True
    """Whether the comparisons count it."""
    why_not: str = ""
    """Why they do not."""
    verdict: Verdict = Verdict.NOT_JUDGED
    rules: tuple[str, ...] = ()
    """Slugs of the counted findings, warn or fail, that blame it."""
    url: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DesignInForce:
    """The design that an audit used, and which of its parts were inferred rather than declared."""

    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arm to the keys of its runs."""
    baseline: str = ""
    vary: tuple[str, ...] = ()
    replicate: tuple[str, ...] = ()
    """Configuration keys (or ``"seed in the name"``) whose values pair the runs."""
    metric: str = ""
    higher_is_better: bool = True
    at: str = "last"
    task: tuple[str, ...] = ()
    stress: str = ""
    tie_margin: float | None = None
    pairing: str = "sensible"
    ignore: tuple[Mapping[str, Value], ...] = ()
    inferred: frozenset[str] = frozenset()
    """Names of the fields above that were guessed."""
    source: str = ""
    """The design file's name, ``command line`` or ``""``."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the inference: alternatives, runs in no arm, the option that decides."""


@dataclass
class Report:
    """Findings with the measured statistics behind them."""

    findings: list[Finding] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    subject: str = ""

    def add(self, check: int, level: str, title: str, detail: str = "", tag: str = "", **evidence: Any) -> Finding:
        """Adds a finding made of these and returns it."""
        finding = Finding(check, Level(level), title, detail, dict(evidence), tag)
        self.findings.append(finding)
        return finding

    def extend(self, other: Report, prefix: str = "") -> Report:
        """Takes over the findings and statistics of ``other``, each title behind ``prefix``; returns this report."""
        self.findings += [replace(finding, title=f"{prefix}{finding.title}") for finding in other.findings]
        if other.stats:
            key = prefix.rstrip(": ") or other.subject or f"part{len(self.stats)}"
            self.stats[key] = other.stats
        return self

    def by_level(self, level: str) -> list[Finding]:
        """The findings of one level that count."""
        return [finding for finding in self.findings if finding.level == level and finding.counts]

    @property
    def ok(self) -> bool:
        """Whether no finding that counts has the level ``fail``."""
        return not self.by_level(Level.FAIL)

    def raise_on_fail(self) -> None:
        """Raises `HarnessCheckError` with the report as its text where a check failed."""
        if not self.ok:
            raise HarnessCheckError(str(self))

    def format(self, levels: Iterable[str] = LEVELS, color: bool = False) -> str:
        """The findings of these levels as text; ``color`` adds ANSI colours."""
        from pth_tracker.render.terminal import format_report

        return format_report(self, levels=tuple(Level(level) for level in levels), color=color)

    def __str__(self) -> str:
        return self.format()

    def _repr_html_(self) -> str:
        from pth_tracker.render.notebook import report_html

        return report_html(self)


class HarnessCheckError(AssertionError):
    """A check failed, raised by `Report.raise_on_fail`: an assertion, for use inside tests."""


@dataclass
class Audit(Report):
    """The result of one audit: the findings and everything a reader needs to trust them."""

    project: str = ""
    address: Address | None = None
    chosen: str = ""
    """Which tracker was read and why."""
    audited_at: datetime | None = None
    version: str = ""
    not_judged: list[NotJudged] = field(default_factory=list)
    coverage: list[Coverage] = field(default_factory=list)
    runs: dict[str, AuditedRun] = field(default_factory=dict)
    """By run key, in the order of creation."""
    design: DesignInForce = field(default_factory=DesignInForce)
    traces: Traces = field(default_factory=Traces)
    """What the pictures of a report show."""
    errors: list[RunError] = field(default_factory=list)
    """Runs that could not be read."""
    notes: list[str] = field(default_factory=list)
    """What concerns the whole audit: a store that can only be read, files that nothing recognised."""
    write_back: WriteBack | None = None
    since_last: SinceLast | None = None
    """What is new; None where no past audits are kept, as outside of ``nightly``."""
    listed_marks: Mapping[RunRef, Marks] = field(default_factory=dict)
    """Our marks on the runs as they were listed, where that was asked for and the tracker tells."""
    partial: str = ""
    """Why only some of the rules were judged, so that the verdicts on runs are not written; ``""``: all were."""

    @property
    def counts(self) -> dict[str, int]:
        """How many findings of each level count, how many rules were not judged, how many runs there are."""
        tally: dict[str, int] = {str(level): len(self.by_level(level)) for level in LEVELS}
        return {**tally, "not_judged": len(self.not_judged), "runs": len(self.runs), "errors": len(self.errors)}

    @property
    def judged(self) -> bool:
        """Whether anything was judged: a rule found something, or passed on runs of which any logged anything."""
        if not any(entry.outcome is not Outcome.NOT_JUDGED for entry in self.coverage):
            return False
        logged = not self.runs or any(run.last_update is not None for run in self.runs.values())
        return logged or bool(self.by_level(Level.FAIL) or self.by_level(Level.WARN))

    def label(self, key: str) -> str:
        """The name shown for the run ``key``."""
        run = self.runs.get(key)
        return run.label if run else key


@dataclass(frozen=True)
class WriteBack:
    """What an audit wrote or would write into the tracker."""

    planned: tuple[PlannedEdit, ...] = ()
    """The edits that were carried out; in a dry run, those that would be."""
    applied: bool = False
    """False: a dry run, or nothing may be written (see `refused`)."""
    refused: str = ""
    """Why nothing is written at all: a read-only source, ``--no-write``."""
    errors: tuple[str, ...] = ()
    """One sentence for each refused edit."""
    skipped: tuple[str, ...] = ()
    """One sentence for each run left out on purpose."""
    published: str = ""
    """Where the audit run is."""


@dataclass(frozen=True)
class PlannedEdit:
    """One run's edit as shown to people and in JSON."""

    run: str
    """The run's label."""
    run_id: str
    set: Mapping[str, str] = field(default_factory=dict)
    """Mark to value, by bare name."""
    unset: tuple[str, ...] = ()
    add_tags: tuple[str, ...] = ()
    remove_tags: tuple[str, ...] = ()

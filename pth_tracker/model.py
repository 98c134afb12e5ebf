"""What checks say: levels, rules, findings, reports and audits. Frozen records without any input or output.

A `Rule` declares what it needs; a judge yields `Finding`s; what could not be judged is a `NotJudged`; an `Audit`
gathers them with the coverage, the runs and the design in force. `Report` and the first six fields of `Finding` have
the shape that users of the ``probe-the-harness`` package know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pth_tracker.runs import RunError, RunRef
from pth_tracker.tracker import Address
from pth_tracker.values import Value

IDLE_CLIP: Final = "Idle Clip"
"""Check 1: the clip never acts, since the ratio's denominator is the learner's own recomputed policy."""
LOST_SEED: Final = "Lost Seed"
"""Check 2: a data seed that never reached an arm."""
STUCK_BATCH: Final = "Stuck Batch"
"""Check 3: updates that keep training on one batch."""
ROGUE_NORMALISER: Final = "Rogue Normaliser"
"""Check 4: a loss whose normaliser is not that of its written equation."""

CHECK_TITLES: Final[Mapping[int, str]] = {
    1: "Ratio",
    2: "Configuration, seeds and data",
    3: "Batches",
    4: "Loss",
    5: "Stable range",
    6: "Paired by seed",
    7: "Claims",
}


class Level(StrEnum):
    """How much a finding weighs."""

    FAIL = "fail"
    """The quantity that defines the comparison contradicts what the comparison claims."""
    WARN = "warn"
    """The comparison may not be what it seems; a person has to look."""
    INFO = "info"
    """A measurement worth keeping beside the results."""

    @property
    def rank(self) -> int:
        """0 for fail, 1 for warn, 2 for info: for sorting, the worst first."""
        return (Level.FAIL, Level.WARN, Level.INFO).index(self)


LEVELS: Final = tuple(Level)


class Basis(StrEnum):
    """What a finding stands on; it bounds the level that the finding may have."""

    DECLARED = "declared"
    """Somebody said so: a design file, ``--arm``, ``--vary``, a claim."""
    CONTRADICTION = "contradiction"
    """A run against its own label, arguments, configuration or history, or two runs that cannot both be right."""
    INFERRED = "inferred"
    """Arms, seeds or the metric were guessed: at most a warning."""


class Scope(StrEnum):
    """What a rule judges at a time."""

    RUN = "run"
    CELL = "cell"
    PAIR = "pair"
    PROJECT = "project"
    CLAIM = "claim"
    """A claim of the design, judged after all other rules are settled."""


class Verdict(StrEnum):
    """What an audit says of one run, as written into the tracker."""

    FAIL = "fail"
    WARN = "warn"
    PASS = "pass"
    NOT_JUDGED = "not-judged"


class Outcome(StrEnum):
    """What became of one rule on one subject."""

    FAILED = "failed"
    WARNED = "warned"
    PASSED = "passed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Finding:
    """One observation of one rule."""

    check: int
    """1 to 7."""
    level: Level
    title: str
    """One line: what is wrong, with the number that shows it."""
    detail: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Small plain data: the numbers behind the title."""
    tag: str = ""
    """One of the four bug names where the finding is that bug, else ``""``."""
    _: KW_ONLY
    rule: str = ""
    """The rule's slug."""
    basis: Basis = Basis.DECLARED
    runs: tuple[str, ...] = ()
    """Keys of the runs involved."""
    blames: tuple[str, ...] = ()
    """Keys of those that get tagged: a subset of `runs`."""
    arms: tuple[str, ...] = ()
    because_of: str = ""
    """The slug of the rule whose finding explains this one; such a finding is neither counted nor tagged."""
    ignored: str = ""
    """The reason the design gives for ignoring this finding; it is shown and counted apart."""
    remedy: str = ""
    """What to do about it, one sentence."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", Level(self.level))

    @property
    def counts(self) -> bool:
        """Whether it counts: neither explained by another finding nor ignored by the design."""
        return not self.because_of and not self.ignored


@dataclass(frozen=True)
class Branch:
    """One way for a rule to be judged: all of the groups, any one name of each.

    A name is a quantity, a configuration role, or a fact of the listing or the design (`FACTS`).
    """

    name: str
    groups: tuple[tuple[str, ...], ...]

    def missing(self, available: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of which nothing is available; empty: the branch is met."""
        have = set(available)
        return tuple(group for group in self.groups if not have.intersection(group))


FACTS: Final[Mapping[str, str]] = {
    "config": "log the resolved configuration with the run",
    "score": "name the metric with --metric",
    "exact_zeros": "log the clip fraction at full precision: this release prints three decimals",
    "testable_clip": "nothing: the loss in use has no clip whose fraction could be tested for zero",
    "lag_values": "train on: lag is told from 3 values of the sampler's KL",
    "enough_updates": "train on: a clip that never acts is told from 20 updates, where nothing makes the ratio 1",
    "seed_label": "put the seed into the run's name, or the data seed into its configuration",
    "replicate": "log the data seed, put it into the run's name, or name the pairing field with --replicate",
    "declared_vary": "name the field that is meant to vary with --vary or in a design file",
    "read_runs": "audit again once the histories of these runs can be read",
    "two_runs": "run an arm more than once",
    "two_configs": "log the resolved configuration with every run of the arm",
    "arm_configs": "log the resolved configuration with the runs of every arm",
    "common_seed": "run both arms on the same seeds, and score them",
    "comparable_pairs": "name two arms that ran the same task with --arm or in a design file",
    "synchronous": "nothing: an asynchronous trainer assembles batches by completion, so that no seed orders them",
    "whole_batches": "nothing: resumed runs, and batches from which prompts are filtered, have no order to compare",
    "runs_of_one_seed": "run both arms on one seed",
    "code_versions": "launch from a git checkout, so that the tracker records the commit",
    "exact_rates": "log the learning rate at full precision in both arms, for 10 updates or more",
    "logged_scores": "evaluate on held-out problems, and log the score, in both arms",
    "start_scores": "score both arms before the first update, on items that can be counted or over two seeds",
    "launch_arguments": "use a tracker that records the launch command (W&B does)",
    "sampler_windows": "train on: telling growth from level takes 5 updates with the sampler's KL",
    "refresh_in_quarters": "train longer: the first and the last quarter of the run have to hold a whole refresh "
    "interval of the sampler and 4 updates more each",
    "batch_spread": "log BatchLedger's fingerprint of each batch: too few updates differ in prompts, responses and "
    "scores for a repeat to be told from chance",
    "prompt_spread": "log BatchLedger's fingerprint of each batch: the prompt lengths tie too often to tell batches "
    "apart",
    "replay_marker": "nothing: no line of the log tells of replayed rollouts",
    "common_updates": "log the clip fraction and the share outside its range at the same updates",
    "varied_scores": "train on: telling advantages from scores takes 10 updates in which the scores vary",
    "evaluations": "evaluate at least 5 times during training: a collapse is told from the curve of the score",
    "training_curve": "log the training score at every update, for 10 updates or more",
    "length_curve": "log the mean response length at every update, for 10 updates or more",
    "truncation_seeds": "log the share of truncated responses, in two arms of two runs or more each",
    "stress_values": "run the baseline twice or more at two settings of the stress axis (named by stress in a design "
    "file), and evaluate it 5 times or more in each run",
    "launched_arms": "run both arms",
    "common_curve": "score both arms at updates that both reached",
    "evaluation_items": "nothing: the number of evaluated items cannot be read off the scores",
    "claims": "state the claims in a design file, as claims: [{text: ..., expect: {better: ours, than: theirs}}]",
    "testable_claim": "give the claim the runs and metrics that it speaks of",
    "designed_age": 'state the designed age of the data in a design file, as age: {expected: "min(update, 32)"}',
}
"""What a branch may name beside quantities and roles, with what would make it available."""


def branch(name: str, *groups: str | tuple[str, ...]) -> Branch:
    """A branch of needs; a bare name is a group of one.

    >>> branch("measured", "clip_fraction", ("sampler_k3_kl", "sampler_kl")).groups
    (('clip_fraction',), ('sampler_k3_kl', 'sampler_kl'))
    """
    return Branch(name, tuple((group,) if isinstance(group, str) else group for group in groups))


def no_facts(subject: object) -> tuple[str, ...]:
    """The facts of a rule that establishes none of its own."""
    return ()


@dataclass(frozen=True)
class Rule:
    """One rule of a check: what it needs and how it judges. Its documentation is `doc`."""

    slug: str
    check: int
    level: Level
    """The worst level it can give."""
    scope: Scope
    needs: tuple[Branch, ...]
    """Named alternatives; the judge gets the names of those that are met, and is not called where none is."""
    judge: Callable[..., Iterable[Finding]]
    """``judge(subject, met) -> findings``; a subject is a run view, a cell, a pair or the comparison, by `scope`."""
    explains: tuple[str, ...] = ()
    """Slugs of the rules whose findings follow from this one's."""
    blames_runs: bool = True
    """Whether its findings tag runs at all."""
    reads: tuple[str, ...] = ()
    """Quantities that it uses where they are logged and does not need."""
    facts: Callable[[Any], Iterable[str]] = no_facts
    """Those of `FACTS` that only its own reading of the subject can establish."""

    @property
    def doc(self) -> str:
        """The rule's documentation: the judge's docstring."""
        return self.judge.__doc__ or ""

    @property
    def names(self) -> frozenset[str]:
        """Everything its branches name."""
        return frozenset(name for one in self.needs for group in one.groups for name in group)


@dataclass(frozen=True)
class Plan:
    """What examining one run needs to know of the audit: frozen and picklable, never the design itself."""

    rules: tuple[str, ...]
    """Slugs of the rules of run scope to judge."""
    quantities: tuple[str, ...]
    """What to read: the union of the rules' needs and what the report shows."""
    metric: str = ""
    """The score's raw name as the design writes it."""
    higher_is_better: bool = True
    at: str | int = "last"
    """``last``, ``best``, or the length in updates of the window over which the score is averaged."""
    kl_tolerance: float = 0.05
    """Nats per token above which a sampler counts as lagging."""
    stress: str = ""
    """The configuration key of the design's stress axis, which declares a lag where it is above 1."""
    age: str = ""
    """The designed age of each update's data, an expression over ``update``; ``""``: none is designed."""
    batch_uses: int = 1
    """Updates that may train on one batch by design."""
    benchmarks: tuple[tuple[str, float], ...] = ()
    """Scores of one checkpoint whose mean is the score, each with the scale that divides it; empty: `metric` alone."""
    metrics: tuple[str, ...] = ()
    """Raw metrics beside the quantities of which claims want figures."""
    vocabularies: tuple[Path, ...] = ()
    """The user's own vocabulary files."""


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
    errors: list[RunError] = field(default_factory=list)
    """Runs that could not be read."""
    notes: list[str] = field(default_factory=list)
    """What concerns the whole audit: a store that can only be read, files that nothing recognised."""
    write_back: WriteBack | None = None
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

"""What a rule says: the checks, the levels, and a finding with the runs it concerns. Frozen records.

The first six fields of `Finding` have the shape that users of the ``probe-the-harness`` package know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Final

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
    IGNORED = "ignored"
    """It found something that the design ignores, with a reason."""
    EXPLAINED = "explained"
    """It found something that the finding of another rule explains."""
    PASSED = "passed"
    """It found nothing above information."""
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

    @property
    def outcome(self) -> Outcome:
        """What it makes of its rule: one that found something above information did not pass."""
        if self.level is Level.INFO:
            return Outcome.PASSED
        if self.because_of:
            return Outcome.EXPLAINED
        if self.ignored:
            return Outcome.IGNORED
        return Outcome.FAILED if self.level is Level.FAIL else Outcome.WARNED

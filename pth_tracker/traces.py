"""What a report draws: short curves of runs, compared scores and stable settings. Frozen records without any logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pth_tracker.runs import Floats, Ints


@dataclass(frozen=True)
class Trace:
    """One series of one run over its updates, at most 200 points of it."""

    key: str
    """The raw metric that held it."""
    step: Ints
    """``(n,)`` updates, increasing."""
    values: Floats
    """``(n,)`` values, as logged: not finite ones too."""
    count: int
    """How many values were logged."""
    whole: bool = True
    """False: evenly thinned from first to last, or the first ones alone where order is what it shows."""


@dataclass(frozen=True)
class RunTrace:
    """What can be drawn of one run; None: not logged."""

    clip: Trace | None = None
    """The clip fraction."""
    sampler: Trace | None = None
    """The distance of sampler and learner, in nats per token."""
    witness: Trace | None = None
    """The first updates of a metric that depends on the batch alone."""
    batches: Trace | None = None
    """The batch of each update, numbered from 1 in the order of first use."""
    score: Trace | None = None
    collapsed: bool = False
    stress: str = ""
    """The setting of the stress axis, as text."""


@dataclass(frozen=True)
class PairTrace:
    """Two arms compared by common seed, in the score's own unit."""

    subject: str
    a: str
    b: str
    seeds: tuple[str, ...]
    scores_a: Floats
    """``(n,)``, by seed."""
    scores_b: Floats
    """``(n,)``, by seed."""
    mean: float
    """Of ``a`` minus ``b``."""
    interval: tuple[float, float] | None
    """The 95% interval of the mean; None: there is none."""
    no_interval: str
    """Why there is none."""
    margin: float | None
    """Differences within it are a tie."""
    scale: float
    """What a difference is multiplied by where it is shown: 100 for rates."""
    unit: str


@dataclass(frozen=True)
class StableRange:
    """Over which settings of the stress axis an arm is stable, from the mildest on."""

    arm: str
    settings: tuple[str, ...]
    """All tested ones, the mildest first."""
    collapsed: tuple[int, ...]
    """Of each setting's runs."""
    runs: tuple[int, ...]
    stable: int
    """How many settings, from the first on, are stable."""


@dataclass(frozen=True)
class Traces:
    """Everything that the pictures of a report show."""

    runs: Mapping[str, RunTrace] = field(default_factory=dict)
    """By run key."""
    pairs: tuple[PairTrace, ...] = ()
    ranges: tuple[StableRange, ...] = ()
    kl_tolerance: float | None = None
    """Nats per token above which a sampler counts as lagging."""

"""The schema of a vocabulary file: what it may say of a framework, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Quantity(_Strict):
    """One quantity that checks may need."""

    about: str
    unit: str = ""
    estimator: Literal["", "k1", "k2", "k3", "exact", "abs"] = ""
    """The estimator that the canonical name stands for."""
    learner: bool = False
    """Whether it depends on the learner's weights (a loss, a gradient norm), so that equal series mean equal runs."""
    remedy: str
    """What to log, where the framework's own vocabulary has no better advice."""


class RoleAbout(_Strict):
    """One configuration role that checks may need."""

    about: str
    remedy: str


class Candidate(_Strict):
    """One metric that may hold a quantity, with what its value means."""

    key: str
    """The raw name as the framework logs it; ``*`` stands for any text."""
    without: tuple[str, ...] = ()
    """Patterns of names that ``key`` matches too and that are something else."""
    estimator: Literal["", "k1", "k2", "k3", "exact", "abs"] = ""
    sign: Literal[1, -1] = 1
    """-1: logged with the opposite sign."""
    minus: str = ""
    """The raw name of another metric that is taken from it, at the updates that have both."""
    offset: float = Field(default=0.0, allow_inf_nan=False)
    """What is added once the sign is right: with a sign of -1, 1 makes a share the share of the others."""
    clip: Literal["", "active_branch", "sign_aware", "outside_band", "not_testable"] = ""
    weights: Literal["", "pre", "post"] = ""
    """Importance weights before or after truncation."""
    zero: Literal["exact", "rounded", "not_computed"] = "exact"
    """What a logged 0 means; ``not_computed``: nothing at all, where every value is one."""
    not_computed: tuple[float, ...] = ()
    """Values by which the framework says that it computed none; they are left out."""
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The level up to which kernels and rounding alone bring it: with a ratio of 1, less of it says nothing."""
    versions: str = ""
    """Releases it holds for: ``>=0.6.1,<0.8``."""
    when: str = ""
    """An expression over roles and ``cfg(key, default)``; the candidate is left out where it is false."""


class Role(_Strict):
    """How one role is read from a configuration: the first of ``keys`` that is there, an expression or a function."""

    keys: tuple[str, ...] = ()
    default: Any = None
    """The value where no key is there; None: the role is missing."""
    expr: str = ""
    """Over the roles above it and ``cfg(key, default)``."""
    python: str = ""
    """A function of `pth_tracker.vocabulary.functions` by name, where a version table is needed."""

    @model_validator(mode="after")
    def _one_way(self) -> Role:
        if sum(bool(way) for way in (self.keys, self.expr, self.python)) != 1:
            raise ValueError("give exactly one of keys, expr and python")
        return self


class Inert(_Strict):
    """A setting under which the data seed decides nothing."""

    when: str
    order: str
    """The order that is read instead, in words: ``file order``; ``""``: another one at every launch."""
    why: str


class Switch(_Strict):
    """A setting under which other fields do nothing."""

    keys: tuple[str, ...]
    """Patterns of the fields."""
    when: str
    """An expression over roles and ``cfg(key, default)``."""
    why: str
    """Continues the field's name: ``does nothing while ...``."""


class DataSeed(_Strict):
    """Which key orders the training data, and what happens without it.

    What is told first decides: a function, ``uncontrolled``, ``inert``, the value itself, then what stands for none.
    """

    keys: tuple[str, ...] = ()
    default: Any = None
    """The seed in force where no key is there; None: see ``absent``."""
    absent: str = ""
    """The fixed order in force where the seed is absent or null, in words; ``""``: the order is then not controlled."""
    inert: tuple[Inert, ...] = ()
    uncontrolled: str = ""
    """Why no key controls the order at all."""
    uncontrolled_when_null: str = ""
    """Why a null seed leaves the order uncontrolled, another one at every launch; an absent seed is then unknown."""
    python: str = ""
    """A function of `pth_tracker.vocabulary.functions` by name that yields an `EffectiveSeed`."""


class Part(_Strict):
    """One of the processes that log one training as runs of their own."""

    name: str
    suffix: str
    """The end of its run's name, which the others have in its place."""
    config: tuple[str, ...]
    """Patterns of which its own configuration has one, where it logs any."""
    folder: str = ""
    """The key of its folder, which tells it where its name does not."""
    below: str = ""
    """Where its folder lies below that of the training: ``/run_default``."""


class Names(_Strict):
    """Names that say something only where all of them are there."""

    config: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


class Detect(_Strict):
    """How a framework is recognised; ``*`` stands for any text.

    It is recognised by its configuration (all of ``config_all`` and any of ``config_any``), by one of ``all_of``, or
    by its metrics (all of ``metrics_all`` and enough of ``metrics_any``), unless something excludes it.
    """

    config_all: tuple[str, ...] = ()
    config_any: tuple[str, ...] = ()
    config_none: tuple[str, ...] = ()
    metrics_all: tuple[str, ...] = ()
    metrics_any: tuple[str, ...] = ()
    metrics_at_least: int = Field(default=2, ge=1)
    """How many of ``metrics_any`` a run must log to be recognised by its metrics alone."""
    metrics_none: tuple[str, ...] = ()
    all_of: tuple[Names, ...] = ()
    """Sets of names, each of which is enough where all of it is there."""
    none_of: tuple[Names, ...] = ()
    """Sets of names, each of which excludes the framework where all of it is there."""
    when: str = ""
    """An expression over ``cfg(key, default)`` that a logged configuration must make true."""
    priority: int = 0
    """The higher wins among those that fit: a framework that wraps another one stands above it."""


class Head(_Strict):
    """What recognition needs of a vocabulary file; everything else of it is read for frameworks that are there."""

    framework: str
    extends: str = ""
    """A framework whose vocabulary holds here too: this file's entries replace the parent's of the same name (null
    takes one away), and its lists are added to the parent's (``!x`` takes ``x`` away). How it is recognised is never
    taken over."""
    prefixes: tuple[str, ...] = ()
    """What may stand in front of a metric's name in the file, in order of preference; none: nothing does."""
    detect: Detect = Detect()


class Framework(Head):
    """One training framework's vocabulary."""

    about: str
    version: str = ""
    """The name of a function of `pth_tracker.vocabulary.functions` that infers the release from the configuration."""
    parts: tuple[Part, ...] = ()
    """The processes that log one training as several runs; where they say different things, the last one is right."""
    evaluates_only: str = ""
    """An expression over roles and ``cfg(key, default)`` that is true of a run that evaluates and trains nothing."""
    axis: tuple[str, ...] = ()
    """Metrics that count what the trainer counts where a tracker counts rows; the first one that is logged is the step
    of everything beside it."""
    quantities: Mapping[str, tuple[Candidate, ...]] = {}
    roles: Mapping[str, Role] = {}
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Configuration key to the names it had in other releases; ``cfg`` and ``keys`` look them up as well."""
    data_seed: DataSeed = DataSeed()
    other_seeds: tuple[str, ...] = ()
    """Patterns of keys that seed something else than the data order."""
    task: tuple[str, ...] = ()
    """Keys that say which task is trained; runs are compared only where they are equal."""
    staleness: tuple[str, ...] = ()
    """Keys whose value sets how far the sampler lags; a stress axis where they take several values."""
    bookkeeping: tuple[str, ...] = ()
    """Patterns of keys that cannot change a result."""
    soft: tuple[str, ...] = ()
    """Patterns of keys that change speed, not meaning."""
    derived: tuple[str, ...] = ()
    """Patterns of keys that are computed at run time and differ between trackers."""
    secrets: tuple[str, ...] = ()
    witness: tuple[str, ...] = ()
    """Quantities that depend on the batch alone; empty: the framework logs none."""
    data: tuple[str, ...] = ()
    """Patterns of keys that decide, beside the data seed, which prompts a batch holds and how long they are."""
    evaluation: tuple[str, ...] = ()
    """Patterns of keys that decide what a score measures: files, samples, temperature, length limit, reward."""
    model: tuple[str, ...] = ()
    """Patterns of keys that say from which model training starts."""
    switches: tuple[Switch, ...] = ()
    clip_range: tuple[str, ...] = ()
    """Keys of the clip range."""
    normaliser: tuple[str, ...] = ()
    """Keys that declare the loss's normaliser."""
    remedies: Mapping[str, str] = {}
    """Quantity or role to the option of this framework that logs it."""

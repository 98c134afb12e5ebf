"""Vocabularies as checked data: what a framework calls things, and what its names mean.

``quantities.yaml`` lists the quantities and roles that checks may need; each file of ``frameworks/`` maps one training
framework's metric names to quantities (with their semantics) and its configuration keys to roles. A user's own file
has the same schema. A name that the code does not know is an error that names file and key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pth_tracker.errors import UsageError

FACT_PREFIX = "harness/"
"""Under this prefix `pth_tracker.probes` logs quantities by their canonical names, in every framework."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, in C where PyYAML was built with it: the files are read at the start of every command."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    estimator: Literal["", "k1", "k2", "k3", "exact", "abs"] = ""
    sign: Literal[1, -1] = 1
    """-1: logged with the opposite sign."""
    clip: Literal["", "active_branch", "sign_aware", "outside_band", "not_testable"] = ""
    weights: Literal["", "pre", "post"] = ""
    """Importance weights before or after truncation."""
    zero: Literal["exact", "rounded", "not_computed"] = "exact"
    """What a logged 0 means; ``not_computed``: nothing at all."""
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
    """The order that is read instead, in words: ``file order``."""
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
    """Which key orders the training data, and what happens without it."""

    keys: tuple[str, ...] = ()
    default: Any = None
    """The seed in force where no key is there; None: see ``absent``."""
    absent: str = ""
    """The fixed order in force where the seed is absent or null, in words; ``""``: the order is then not controlled."""
    inert: tuple[Inert, ...] = ()
    uncontrolled: str = ""
    """Why no key controls the order at all."""
    python: str = ""


class Detect(_Strict):
    """How a framework is recognised; ``*`` stands for any text."""

    config_all: tuple[str, ...] = ()
    config_any: tuple[str, ...] = ()
    config_none: tuple[str, ...] = ()
    metrics_any: tuple[str, ...] = ()
    metrics_at_least: int = Field(default=2, ge=1)
    """How many of ``metrics_any`` a run must log to be recognised by its metrics alone."""
    metrics_none: tuple[str, ...] = ()


class Framework(_Strict):
    """One training framework's vocabulary."""

    framework: str
    about: str
    detect: Detect = Detect()
    version: str = ""
    """The name of a function of `pth_tracker.vocabulary.functions` that infers the release from the configuration."""
    quantities: Mapping[str, tuple[Candidate, ...]] = {}
    roles: Mapping[str, Role] = {}
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


class Vocabulary:
    """All quantities, roles and frameworks, checked against each other."""

    def __init__(
        self,
        quantities: Mapping[str, Quantity],
        roles: Mapping[str, RoleAbout],
        frameworks: Mapping[str, Framework],
        digest: str,
    ) -> None:
        self.quantities = quantities
        self.roles = roles
        self.frameworks = frameworks
        self.digest = digest
        """Changes whenever any vocabulary file does."""

    def candidates(self, framework: str, quantity: str) -> tuple[Candidate, ...]:
        """What may hold ``quantity`` in ``framework``, the probes' own name first."""
        own = Candidate(key=f"{FACT_PREFIX}{quantity}", estimator=self.quantities[quantity].estimator)
        return (own, *self.frameworks[framework].quantities.get(quantity, ()))

    def remedy(self, framework: str, name: str) -> str:
        """What to do so that ``name`` can be judged: the framework's own option, else the general advice."""
        own = self.frameworks[framework].remedies.get(name)
        if own:
            return own
        known: Quantity | RoleAbout | None = self.quantities.get(name) or self.roles.get(name)
        return known.remedy if known else ""


def _read(path: Path | Any) -> tuple[Any, bytes]:
    raw: bytes = path.read_bytes()
    try:
        try:
            return yaml.load(raw, Loader=_Loader), raw
        except yaml.YAMLError:
            return yaml.safe_load(raw), raw  # which names the line more closely
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f":{place.line + 1}" if place else ""
        raise UsageError(f"{path.name}{line}: this vocabulary is no YAML: {error}".replace("\n", " ")) from error


def _framework(path: Any, data: Any) -> Framework:
    try:
        return Framework.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path.name} at {key}: {first['msg']}") from error


def _check(framework: Framework, name: str, quantities: Iterable[str], roles: Iterable[str]) -> None:
    from pth_tracker.vocabulary import functions

    unknown = [q for q in (*framework.quantities, *framework.witness) if q not in set(quantities)]
    unknown += [role for role in framework.roles if role not in set(roles)]
    unknown += [key for key in framework.remedies if key not in {*quantities, *roles}]
    named = [framework.version, framework.data_seed.python, *(role.python for role in framework.roles.values())]
    unknown += [function for function in named if function and function not in functions.FUNCTIONS]
    if unknown:
        raise UsageError(f"{name}: unknown name {unknown[0]!r}; quantities and roles are listed in quantities.yaml")


@cache
def load_vocabulary(extra: tuple[Path, ...] = ()) -> Vocabulary:
    """The built-in vocabulary with the user's own files on top (a file of a known framework's name replaces it).

    Raises:
        UsageError: a file cannot be read or does not fit the schema; names file and key.
    """
    base = resources.files("pth_tracker.vocabulary")
    data, raw = _read(base / "quantities.yaml")
    digest = hashlib.sha256(raw)
    quantities = {name: Quantity.model_validate(entry) for name, entry in data["quantities"].items()}
    roles = {name: RoleAbout.model_validate(entry) for name, entry in data["roles"].items()}
    frameworks: dict[str, Framework] = {}
    built_in = sorted((base / "frameworks").iterdir(), key=lambda path: path.name)
    sources: Sequence[Any] = [path for path in built_in if path.name.endswith(".yaml")]
    for path in [*sources, *extra]:
        if isinstance(path, Path) and not path.is_file():
            raise UsageError(f"{path}: there is no such vocabulary file")
        entry, raw = _read(path)
        digest.update(raw)
        framework = _framework(path, entry)
        _check(framework, path.name, quantities, roles)
        frameworks[framework.framework] = framework
    return Vocabulary(quantities, roles, frameworks, digest.hexdigest()[:16])

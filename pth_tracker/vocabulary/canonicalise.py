"""Raw metrics and configurations as quantities and roles: where the vocabulary meets one run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from pth_tracker.runs import Floats, History, Ints, Run
from pth_tracker.values import MISSING, Maybe, is_secret
from pth_tracker.vocabulary.detect import GENERIC, find_keys, matches_any
from pth_tracker.vocabulary.functions import FUNCTIONS
from pth_tracker.vocabulary.lens import MAX_NUMBER, EffectiveSeed, Lens, release, seed_text
from pth_tracker.vocabulary.load import Vocabulary
from pth_tracker.vocabulary.schema import Candidate, Framework

WIDENED: Final = {"batch_id": "batch_id_high"}
"""Quantity to the one that holds its upper bits, since a store that keeps float32 keeps 24 bits of each."""
LOW_BITS: Final = 24
LAG_NAME: Final = re.compile(
    r"lag|stale|sync|refresh|interval|delay|behind|ahead|prefetch|off_?(?:policy|by)|version|(?<![a-z])age(?![a-z])",
    re.IGNORECASE,
)
"""Names of settings whose value is by how many updates the sampler lags."""


@dataclass(frozen=True)
class Series:
    """One quantity of one run: the logged values with what they mean."""

    quantity: str
    key: str
    """The raw metric that holds it."""
    step: Ints
    """``(n,)``, strictly increasing."""
    values: Floats
    """``(n,)``, in the quantity's sign and unit; non-finite where a non-finite value was logged."""
    meaning: Candidate
    decimals: int | None = None
    """The fixed number of decimals it was printed with; None: full precision."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def exact_zeros(self) -> bool:
        """Whether a 0 in it is an exact zero."""
        return self.decimals is None and self.meaning.zero == "exact"


class Reading:
    """One run through its vocabulary: roles from the configuration, series from the history.

    Nothing in it needs the history but `series`, so that designs are inferred from the listing alone.
    """

    def __init__(self, vocabulary: Vocabulary, run: Run, history: History | None = None) -> None:
        self.vocabulary = vocabulary
        self.run = run
        self.history = history
        self._series: dict[str, Series | None] = {}

    @property
    def framework(self) -> Framework:
        """The run's framework."""
        return self.vocabulary.frameworks[self.run.framework]

    @cached_property
    def roles(self) -> Mapping[str, Any]:
        """Role to value; a role that the configuration does not tell is absent."""
        found: dict[str, Any] = {}
        for name, role in self.framework.roles.items():
            lens = self._lens(found)
            if role.python:
                value = FUNCTIONS[role.python](lens)
            elif role.expr:
                value = self._expression(role.expr, found)
            else:
                held = [value for key in role.keys if (value := lens.cfg(key)) is not None]
                value = held[0] if held else role.default
            if value is not MISSING and value is not None:
                found[name] = value
        return found

    def _lens(self, roles: Mapping[str, Any]) -> Lens:
        return Lens(self.run.config, self.run.version, roles, self.framework.aliases)

    def _expression(self, expression: str, roles: Mapping[str, Any]) -> Maybe:
        from pth_tracker.expressions import ExpressionError, evaluate

        lens = self._lens(roles)
        try:
            value: Maybe = evaluate(expression, roles, {"cfg": lens.cfg, "has": lens.has})
        except ExpressionError:
            return MISSING  # a role it stands on is missing
        return value

    def holds(self, expression: str) -> bool:
        """Whether an expression over roles and ``cfg(key, default)`` is true of the run."""
        return self._expression(expression, self.roles) is True

    def role(self, name: str) -> Any:
        """The role's value, or `MISSING`."""
        return self.roles.get(name, MISSING)

    def number(self, name: str) -> float | None:
        """The role's value where it is a number that can be counted with, else None."""
        return _finite(self.role(name))

    def designed_lag(self, stress: str = "") -> int | None:
        """By how many updates the sampler is designed to lag; 0: not at all, None: nothing says.

        ``stress`` is the key of a design's stress axis, which says so where the vocabulary does not know it and its
        name is that of a lag: others are batch sizes, lengths or coefficients.
        """
        told = self.number("staleness")
        known = stress in self.framework.staleness
        value = _finite(self.run.get(stress)) if stress and not (known and told is not None) else None
        if value is not None and (known or LAG_NAME.search(stress.rpartition(".")[2])):
            return int(value) if value > 1 else 0
        return None if told is None else int(told)

    @cached_property
    def seed(self) -> EffectiveSeed:
        """What orders the run's training data, as it takes effect."""
        rule = self.framework.data_seed
        if not self.run.config:
            return EffectiveSeed(key=rule.keys[0] if rule.keys else "", why="no configuration is logged")
        lens = self._lens({})
        if rule.python:
            found: EffectiveSeed = FUNCTIONS[rule.python](lens)
            return found
        named = tuple(name for key in rule.keys for name in lens.names(key))
        key = next((name for name in named if name in self.run.config), next(iter(named), ""))
        given = self.run.get(key) if key else MISSING
        if rule.uncontrolled:
            return EffectiveSeed(None, False, given, key, rule.uncontrolled, uncontrolled=True)
        for inert in rule.inert:
            if self._expression(inert.when, self.roles) is True:
                return EffectiveSeed(inert.order or None, False, given, key, inert.why, uncontrolled=not inert.order)
        if given is not MISSING and given is not None:
            return EffectiveSeed(seed_text(given), True, given, key)
        if given is None and rule.uncontrolled_when_null:
            return EffectiveSeed(None, False, given, key, rule.uncontrolled_when_null, uncontrolled=True)
        state = "absent" if given is MISSING else "null"
        if rule.default is not None:
            why = f"{key} is {state} and counts as {rule.default}"
            return EffectiveSeed(seed_text(rule.default), False, given, key, why)
        return EffectiveSeed(rule.absent or None, False, given, key, f"{key} is {state}" if key else "no seed is known")

    def candidates(self, quantity: str) -> Iterable[Candidate]:
        """What may hold the quantity in this run, by release and roles."""
        for candidate in self.vocabulary.candidates(self.run.framework, quantity):
            if candidate.versions and not _within(self.run.version, candidate.versions):
                continue
            if candidate.when and self._expression(candidate.when, self.roles) is not True:
                continue
            yield candidate

    def raw_keys(self, quantity: str) -> tuple[str, ...]:
        """The raw metrics of this run that may hold the quantity, in order of preference."""
        available = self.run.metric_keys
        names = (quantity, WIDENED[quantity]) if quantity in WIDENED else (quantity,)
        found: dict[str, None] = {}
        for one in (one for name in names for one in self.candidates(name)):
            found |= dict.fromkeys((*_keys_of(one, available), *(find_keys(one.minus, available) if one.minus else ())))
        return tuple(found)

    def series(self, quantity: str) -> Series | None:
        """The quantity's series from the first candidate with a logged value; None where there is none."""
        if quantity not in self._series:
            self._series[quantity] = self._find_series(quantity)
        return self._series[quantity]

    def _find_series(self, quantity: str) -> Series | None:
        if self.history is None:
            return None
        held = frozenset(self.history.values)
        for candidate in self.candidates(quantity):
            for key in _keys_of(candidate, held):
                step, values = _logged(candidate, key, self.history)
                if not len(step) or (candidate.zero == "not_computed" and not np.any(values != 0)):
                    continue
                meant = candidate.sign * values + candidate.offset
                found = Series(quantity, key, step, meant, candidate, self.history.decimals.get(key))
                high = self.series(WIDENED[quantity]) if quantity in WIDENED else None
                return found if high is None else _widened(found, high)
        return None

    def is_bookkeeping(self, key: str) -> bool:
        """Whether the configuration key cannot change a result; no secret does."""
        return matches_any(key, self.framework.bookkeeping) or is_secret(key, self.framework.secrets)

    def is_soft(self, key: str) -> bool:
        """Whether the configuration key changes speed, not meaning."""
        return matches_any(key, self.framework.soft)

    def is_derived(self, key: str) -> bool:
        """Whether the configuration key is computed at run time."""
        return matches_any(key, self.framework.derived)

    @cached_property
    def seed_keys(self) -> tuple[str, ...]:
        """The names, in any release, of the keys that order the training data."""
        lens = self._lens({})
        return tuple(name for key in self.framework.data_seed.keys for name in lens.names(key))

    @cached_property
    def usual_seeds(self) -> tuple[str, ...]:
        """The usual names of a seed to which the framework's own vocabulary gives no role."""
        generic = self.vocabulary.frameworks.get(GENERIC)
        usual = generic.data_seed.keys if generic else ()
        return tuple(
            key
            for key in usual
            if key not in self.seed_keys and not (self.is_bookkeeping(key) or self.is_soft(key) or self.is_derived(key))
        )

    def is_seed(self, key: str) -> bool:
        """Whether the configuration key holds a seed, of the data order or of anything else."""
        return key in self.seed_keys or key in self.usual_seeds or matches_any(key, self.framework.other_seeds)


def _finite(value: Any) -> float | None:
    """``value`` where it is a number that can be counted with, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
        return None
    return float(value)


def _logged(candidate: Candidate, key: str, history: History) -> tuple[Ints, Floats]:
    """The updates and values at which the candidate was computed, less those of the metric that it names with minus."""
    step, values = history.series(key)
    if candidate.not_computed:
        computed = ~np.isin(values, candidate.not_computed)
        step, values = step[computed], values[computed]
    if candidate.minus:
        other_step, other = history.series(next(iter(find_keys(candidate.minus, frozenset(history.values))), ""))
        step, own, place = np.intersect1d(step, other_step, assume_unique=True, return_indices=True)
        values = values[own] - other[place]
    return step, values


def _keys_of(candidate: Candidate, available: Iterable[str] | None) -> Iterable[str]:
    """The raw metrics in ``available`` that may hold what the candidate stands for."""
    found = find_keys(candidate.key, available)
    return (key for key in found if not matches_any(key, candidate.without)) if candidate.without else found


def _widened(series: Series, high: Series) -> Series:
    """The series with the upper bits of its whole numbers added, at the updates at which ``high`` holds them."""
    step, own, other = np.intersect1d(series.step, high.step, assume_unique=True, return_indices=True)
    if not len(step):
        return series
    with np.errstate(all="ignore"):
        return replace(series, step=step, values=series.values[own] + high.values[other] * 2.0**LOW_BITS)


def _within(version: str | None, bounds: str) -> bool:
    own = release(version)
    if not own:
        return True  # an unknown release rules nothing out
    for bound in bounds.split(","):
        text = bound.strip()
        operator = "".join(c for c in text if c in "<>=!")
        limit = release(text[len(operator) :])
        holds = {"<": own < limit, "<=": own <= limit, ">": own > limit, ">=": own >= limit, "==": own == limit}
        if not holds.get(operator, False):
            return False
    return True

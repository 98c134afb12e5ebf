"""What a claim expects of the runs: one kind of expectation each, told by its first key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from pth_tracker.values import Value, canonical_value


class _Expectation(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    kind: ClassVar[str] = ""
    """The key that tells it from the others; what `UNDERMINES` of check 7 speaks of."""
    where: Mapping[str, Any] = {}
    """Only runs with these configuration values: dotted key to value, such as that of the stress axis."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arms that it names."""
        return ()

    @property
    def conditions(self) -> dict[str, Value]:
        """`where` in canonical form."""
        return {key: canonical_value(value) for key, value in self.where.items()}


def _as_tuple(raw: Any) -> Any:
    return (raw,) if isinstance(raw, str) else raw


_Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Better(_Expectation):
    """One arm is better than another, paired by seed."""

    kind: ClassVar[str] = "better"
    better: str
    than: str
    every_seed: bool = False
    """It is ahead on every seed of either arm; no test of significance is asked for."""
    at_least: float | None = Field(default=None, gt=0)
    """By how much, in the metric's unit: on average, or with ``every_seed`` on every one."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """Both arms."""
        return (self.better, self.than)

    @model_validator(mode="after")
    def _two_arms(self) -> Better:
        if self.better == self.than:
            raise ValueError(f"an arm cannot be better than itself ({self.better!r})")
        return self


class Stable(_Expectation):
    """An arm does not collapse."""

    kind: ClassVar[str] = "stable"
    stable: str
    max_drop: float | None = Field(default=None, gt=0)
    """The drop from the best that counts as one, in the metric's unit."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arm."""
        return (self.stable,)


class OnlyDifferIn(_Expectation):
    """Arms differ in these fields and in no other."""

    kind: ClassVar[str] = "only_differ_in"
    only_differ_in: _Names = Field(min_length=1)
    arms: _Names = ()
    """Empty: all arms."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arms given."""
        return self.arms

    @model_validator(mode="after")
    def _several_arms(self) -> OnlyDifferIn:
        if len(self.arms) == 1:
            raise ValueError("two arms or more can differ: name another one, or none for all")
        return self


class _Bounded(_Expectation):
    above: float | None = None
    below: float | None = None
    between: tuple[float, float] | None = None
    """Both ends belong to it."""
    over: Literal["every", "mean"] = "every"
    """Whether every run has to hold it, or their mean."""

    @model_validator(mode="after")
    def _some_bound(self) -> _Bounded:
        if self.above is None and self.below is None and self.between is None:
            raise ValueError("give above, below or between")
        if self.between is not None and not self.between[0] <= self.between[1]:
            raise ValueError(f"between goes from the smaller to the larger number, not {list(self.between)}")
        return self

    def holds(self, value: float) -> bool:
        """Whether a value lies within the bounds; NaN never does."""
        low, high = self.between or (float("-inf"), float("inf"))
        above = self.above is None or value > self.above
        return above and (self.below is None or value < self.below) and low <= value <= high

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        parts = [
            f"{word} {bound:g}" for word, bound in (("above", self.above), ("below", self.below)) if bound is not None
        ]
        parts += [f"between {self.between[0]:g} and {self.between[1]:g}"] if self.between else []
        return " and ".join(parts)


class OfQuantity(_Bounded):
    """A logged quantity lies within bounds."""

    kind: ClassVar[str] = "quantity"
    quantity: str
    """A quantity of the vocabulary, or a raw metric's name."""
    reduced: Literal["first", "last", "mean", "median", "min", "max"] = "last"
    arms: _Names = ()
    """Empty: all arms."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arms given."""
        return self.arms


class OfValue(_Bounded):
    """An arm's score lies within bounds."""

    kind: ClassVar[str] = "value"
    value: str
    """The arm."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arm."""
        return (self.value,)


class NoFinding(_Expectation):
    """These rules find nothing, above information, on the runs."""

    kind: ClassVar[str] = "no_finding"
    no_finding: _Names = Field(min_length=1)
    arms: _Names = ()
    """Empty: all arms."""

    @property
    def named_arms(self) -> tuple[str, ...]:
        """The arms given."""
        return self.arms


EXPECTATIONS: Final[Mapping[str, type[_Expectation]]] = {
    one.kind: one for one in (Better, Stable, OnlyDifferIn, OfQuantity, OfValue, NoFinding)
}
"""Kind to its schema."""
TAGS: Final[Mapping[str, type[_Expectation]]] = {f"expect:{kind}": model for kind, model in EXPECTATIONS.items()}
"""The tags by which errors tell the kinds apart; no key of a design file is called so."""


def _kind(raw: Any) -> str:
    keys = set(raw) if isinstance(raw, Mapping) else {getattr(raw, "kind", "")}
    found = [kind for kind in EXPECTATIONS if kind in keys]
    return f"expect:{found[0]}" if found else ""


def _known(raw: Any) -> Any:
    if not isinstance(raw, Mapping | _Expectation):
        raise ValueError("an expectation is a mapping, such as {better: ours, than: theirs}")
    if not _kind(raw):
        raise ValueError(f"an expectation has one of the keys {', '.join(EXPECTATIONS)}")
    return raw


Expectation = Annotated[
    Annotated[Better, Tag("expect:better")]
    | Annotated[Stable, Tag("expect:stable")]
    | Annotated[OnlyDifferIn, Tag("expect:only_differ_in")]
    | Annotated[OfQuantity, Tag("expect:quantity")]
    | Annotated[OfValue, Tag("expect:value")]
    | Annotated[NoFinding, Tag("expect:no_finding")],
    Discriminator(_kind),
    BeforeValidator(_known),
]
"""Any of them."""

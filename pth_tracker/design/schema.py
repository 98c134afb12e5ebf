"""The design file's schema: what a comparison is meant to be, stated by its author."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, StringConstraints, model_validator

from pth_tracker.design.document import Document
from pth_tracker.design.expectations import Expectation
from pth_tracker.errors import DesignError
from pth_tracker.expressions import ExpressionError, evaluate
from pth_tracker.values import canonical_value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def _as_tuple(raw: Any) -> Any:
    return (raw,) if isinstance(raw, str) else raw


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""One name, or a list of them."""


def _as_scales(raw: Any) -> Any:
    if isinstance(raw, str | list | tuple):
        return dict.fromkeys((raw,) if isinstance(raw, str) else raw, 1.0)
    return raw


Scales = Annotated[Mapping[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]], BeforeValidator(_as_scales)]
"""Names with a positive scale each; a list of names has the scale 1."""


class ArmSelector(_Strict):
    """Which runs belong to an arm: all that is given has to hold."""

    name: Names = ()
    """Patterns of run names (``grpo-*``); any of them."""
    group: Names = ()
    tag: Names = ()
    job_type: Names = ()
    config: Mapping[str, Any] = {}
    """Dotted key to value."""

    @model_validator(mode="after")
    def _not_empty(self) -> ArmSelector:
        if not (self.name or self.group or self.tag or self.job_type or self.config):
            raise ValueError("an arm needs a name, group, tag, job_type or config to select its runs by")
        return self

    @property
    def values(self) -> dict[str, Any]:
        """The configuration values in canonical form."""
        return {key: canonical_value(value) for key, value in self.config.items()}


class MeanOver(_Strict):
    """A score that is the mean over a last stretch of updates."""

    mean_over: int = Field(ge=1)
    """Length of the window, in updates."""


class Metric(_Strict):
    """The score on which arms are compared."""

    key: str
    """Its name as the runs log it."""
    higher_is_better: bool = True
    at: Literal["last", "best"] | MeanOver = "last"
    """Which of a run's scores counts: the last, the best, or the mean over a last stretch."""


class Stress(_Strict):
    """The setting along which the comparison is made harder."""

    key: str
    """Its configuration key."""


class Age(_Strict):
    """The designed age of each update's data."""

    expected: str
    """An expression over ``update``, which counts from 0 at the run's first trained update, ``step``, the tracker's
    own count, and ``cfg(key)``, a value of the run's configuration."""

    @model_validator(mode="after")
    def _readable(self) -> Age:
        try:
            evaluate(self.expected, {"update": 0, "step": 0}, {"cfg": lambda key, default=7: default})
        except ExpressionError as error:
            raise ValueError(str(error)) from error
        return self


class Batches(_Strict):
    """What the design allows of batches."""

    uses: int = Field(default=1, ge=1)
    """Updates that may train on one batch: above 1 where the design trains on a batch again."""


class Claim(_Strict):
    """One sentence of the paper and what it means for the runs."""

    text: str = Field(min_length=1)
    expect: Expectation


class Ignore(_Strict):
    """Findings that the author knows of and accepts, with the reason."""

    rule: str
    arms: Names = ()
    """Only findings on these arms; empty: on any."""
    runs: Names = ()
    """Only findings on runs whose names match; empty: on any."""
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=3)]


class RuleSettings(_Strict):
    """Thresholds and levels."""

    kl_tolerance: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Nats per token above which the sampler counts as lagging."""
    levels: Mapping[str, Literal["fail", "warn", "info", "off"]] = {}
    """Rule to the level it is given instead of its own."""


class Design(_Strict):
    """What a comparison is meant to be. Everything may be left out; what is left out is inferred."""

    arms: Mapping[str, ArmSelector] = {}
    """Arm to the runs that belong to it; a run in two arms is an error."""
    baseline: str = ""
    """The arm that the others are compared with."""
    vary: Names = ()
    """Configuration keys that are meant to differ between arms; any other difference is a warning."""
    replicate: Names = ()
    """Configuration keys whose values pair the runs of the arms, such as ``data.seed``."""
    metric: Metric | None = None
    """The score that is compared."""
    task: Names = ()
    """Configuration keys that say what is trained: runs are compared where these are equal."""
    benchmarks: Scales = {}
    """Several scores of one checkpoint, averaged into one: name to the scale that divides it (100 for per cent)."""
    stress: Stress | None = None
    """The setting along which the comparison is made harder, such as the sampler's lag."""
    age: Age | None = None
    batches: Batches = Batches()
    tie_margin: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """In the metric's unit."""
    pairing: Literal["required", "sensible"] = "sensible"
    """``required``: arms without a common seed fail; ``sensible``: they are a warning."""
    claims: tuple[Claim, ...] = ()
    """Each sentence of the paper and what it means for the runs."""
    ignore: tuple[Ignore, ...] = ()
    """Findings that are known and accepted; they are shown and not counted."""
    rules: RuleSettings = RuleSettings()
    source: str = ""
    """Where it comes from, as shown: the file's name or ``command line``; set by the loader."""
    _document: Document | None = PrivateAttr(default=None)
    """The file, for errors that show only with the runs."""

    def located_in(self, document: Document | None) -> Design:
        """This design, whose errors name the place in ``document``."""
        placed = self.model_copy()
        placed._document = document
        return placed

    @property
    def document(self) -> Document | None:
        """The file that it was read from; None: none was."""
        return self._document

    def error(self, message: str, *place: str | int) -> DesignError:
        """What is wrong at ``place``, a path of keys and positions, with the file and its line where there is one."""
        if self._document is not None:
            return self._document.error(message, *place)
        return DesignError(message, path=self.source or None, key=".".join(str(part) for part in place))

    @model_validator(mode="after")
    def _baseline_is_an_arm(self) -> Design:
        if self.baseline and self.arms and self.baseline not in self.arms:
            raise ValueError(f"baseline {self.baseline!r} is none of the arms {', '.join(self.arms)}")
        if self.benchmarks and self.metric:
            raise ValueError("metric and benchmarks both say what the score is: give one of them")
        return self

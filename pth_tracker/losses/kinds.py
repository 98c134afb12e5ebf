"""What may be said of a difference between two gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats

Bools = npt.NDArray[np.bool_]


class Kind(StrEnum):
    """How an implemented loss differs from its equation; the order is that of its codes in logs and never changes."""

    EQUAL = "equal"
    GLOBAL_FACTOR = "global factor"
    SEQUENCE_FACTOR = "per-sequence factor"
    TOKEN_FACTOR = "per-token factor"
    SIGN = "sign"
    CLIP_REGION = "clip region"
    MASK = "mask"
    NO_GRADIENT = "no gradient"
    NOT_FINITE = "not finite"
    VALUE = "value only"
    UNRELATED = "unrelated"

    @property
    def code(self) -> int:
        """Its number in logs."""
        return list(Kind).index(self)


@dataclass(frozen=True)
class Diagnosis:
    """How the gradients in one input differ."""

    kind: Kind
    detail: str = ""
    """Sentences for people."""
    factors: tuple[float, float] | None = None
    """The smallest and the largest factor over the sequences (one and the same: a global one); None: there is none."""
    differing: int = 0
    """Tokens whose gradient no such factor explains."""
    max_difference: float = 0.0
    """Largest absolute difference of two entries."""
    relative: float = 0.0
    """That over the largest entry of the equation's gradient."""
    cosine: float = 1.0

    @property
    def rogue_normaliser(self) -> bool:
        """Whether the gradients agree, over all tokens or all but a few, up to a factor per sequence."""
        return self.factors is not None and self.factors[0] != self.factors[1]


@dataclass(frozen=True)
class Context:
    """What is known of the tokens beside their gradients."""

    rtol: float
    atol: float
    mask: Bools | None = None
    """``(batch, length)``."""
    sign: Floats | None = None
    """``(batch, length)``, the sign of the advantage."""
    log_ratios: Mapping[str, Floats] = field(default_factory=dict)
    """``(batch, length)`` log-ratios in nats by name, in which a clip may act."""

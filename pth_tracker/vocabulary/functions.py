"""Roles that need more than an expression: version tables and arithmetic over a framework's configuration.

Each function takes a `Lens` and returns a role's value, or `MISSING` where the configuration does not tell. The facts
are those of the frameworks' sources at the named releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from pth_tracker.values import MISSING, Maybe
from pth_tracker.vocabulary import prime_rl, rlhf, roll, verl
from pth_tracker.vocabulary.lens import Lens


def refresh_interval(lens: Lens) -> Maybe:
    """By how many updates the sampler may lag, by the names in general use: an interval above 1, or an age above 0."""
    for key in ("trainer.sync_interval", "sync_interval"):
        interval = lens.number(key)
        if interval is not None:
            return int(interval) if interval > 1 else 0
    for key in ("max_staleness", "staleness", "async_steps"):
        age = lens.number(key)
        if age is not None:
            return math.ceil(age) if age > 0 else 0
    return MISSING


MODULES: Final = (verl, prime_rl, roll, rlhf)
"""Modules of functions, one for each family of frameworks; each lists its own as ``FUNCTIONS``."""
FUNCTIONS: Final[Mapping[str, Callable[[Lens], Any]]] = {
    function.__name__: function
    for functions in ((refresh_interval,), *(one.FUNCTIONS for one in MODULES))
    for function in functions
}
"""By the names that vocabulary files use."""

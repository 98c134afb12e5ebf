"""Roles of prime-rl whose configuration holds lists: one entry for each environment that is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pth_tracker.values import MISSING
from pth_tracker.vocabulary.lens import EffectiveSeed, Lens, seed_text

_SECTIONS: Final = ("", "orchestrator.")
"""Where the orchestrator's settings lie: in its own configuration, or in that of the whole training."""


def prime_rl_data_order(lens: Lens) -> EffectiveSeed:
    """What orders the problems: ``buffer.seed`` up to 0.5, later the samplers of the curriculum.

    The orchestrator's own ``seed`` is read nowhere (0.2 to 0.5). A standard sampler of later releases takes the tasks
    in their own order, which no seed changes.
    """
    for section in _SECTIONS:
        key = f"{section}buffer.seed"
        given = lens.get(key)
        if given is not MISSING:
            if given is not None:
                return EffectiveSeed(seed_text(given), True, given, key)
            return EffectiveSeed(None, False, None, key, f"{key} is null, and nothing else seeds it", uncontrolled=True)
    key = "curriculum.sampler.seed"
    samplers = list(_samplers(lens))
    if not samplers:
        return EffectiveSeed(key="buffer.seed", why="the orchestrator's configuration is not logged with this run")
    seeds = {seed_text(one.get("seed", 42)) for one in samplers if one.get("type", "standard") != "standard"}
    if not seeds:
        return EffectiveSeed("the tasks' own order", False, MISSING, key, "the standard sampler takes tasks in order")
    if len(seeds) > 1:
        return EffectiveSeed(None, False, MISSING, key, "each environment has a seed of its own")
    own = seeds.pop()
    return EffectiveSeed(own, True, own, key)


def _samplers(lens: Lens) -> Iterator[Mapping[str, Any]]:
    """The sampler's settings for each environment that is trained on."""
    for section in _SECTIONS:
        sources = lens.get(f"{section}train.source")
        for source in sources if isinstance(sources, list) else ():
            curriculum = source.get("curriculum") if isinstance(source, Mapping) else None
            sampler = curriculum.get("sampler") if isinstance(curriculum, Mapping) else None
            yield sampler if isinstance(sampler, Mapping) else {}


FUNCTIONS: Final[tuple[Callable[[Lens], Any], ...]] = (prime_rl_data_order,)

"""Whether a verl release prints its metrics rounded, told from the configuration it printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SINCE_0_5: Final = (
    "trainer.use_legacy_worker_impl",
    "algorithm.rollout_is_threshold",
    "algorithm.rollout_correction",
    "trainer.use_v1",
    "distillation",
    "reward",
    "sandbox_fusion",
    "global_profiler",
    "ray_kwargs",
    "transfer_queue",
)
"""Keys of which releases from 0.5.0 on have at least one, and none before has any."""


def has_key(config: Mapping[str, object], dotted: str) -> bool:
    """Whether the nested ``config`` has the dotted key."""
    place: object = config
    for part in dotted.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return False
        place = place[part]
    return True


def prints_rounded(config: Mapping[str, object]) -> bool | None:
    """Whether the release prints three decimals (0.1 to 0.4.1) or full precision (0.5.0 on); None: it cannot be told.

    Only a complete configuration tells: one that holds the sections of every release.
    """
    if any(has_key(config, key) for key in _SINCE_0_5):
        return False
    complete = all(has_key(config, key) for key in ("actor_rollout_ref.rollout", "trainer", "data", "algorithm"))
    return True if complete else None

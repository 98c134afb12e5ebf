"""The launch script of the demo: which runs there are, and the overrides each is started with.

This is where the demo's Lost Seed is (see `overrides_of`), and where its Stuck Batch and its Rogue Normaliser are
put in (see `source_of` and `loss_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pth_tracker.demo.losses import PolicyLoss, anchored_clip, ppo_clip
from pth_tracker.demo.replay import BatchSource, delayed, delayed_while_filling

DATA_SEEDS: Final = (43, 44, 45)
REPLAY_DELAY: Final = 16
"""Updates that a full replay queue delays a batch."""


@dataclass(frozen=True)
class Arm:
    """One way of training, to be compared with others over the same data seeds."""

    name: str
    correction: tuple[str, float, int | None] | None = None
    """Importance sampling's recipe: level of the weights, threshold, and a seed for recipes that resample."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    own_loss: bool = False
    """Whether the arm's author wrote its loss anew."""


GRPO: Final = Arm("grpo")
"""PPO's loss with pi_old recomputed by the learner: one step a batch, so the ratio is 1 and nothing is corrected."""
TIS: Final = Arm("tis", correction=("token", 2.0, None))
"""Truncated importance sampling: the loss weighted by min(pi / q, 2), q the sampler's record."""
_ANCHORED: Final[Mapping[str, Any]] = {
    "algorithm.rollout_correction.bypass_mode": True,
    "+actor_rollout_ref.actor.use_rollout_log_probs": True,
}
PPO_CLIP: Final = Arm("ppo-clip", overrides=_ANCHORED, own_loss=True)
"""PPO's loss anchored at the sampler, pi_old being its record, so that the clip acts on the lag."""
REPLAY: Final = Arm("replay", overrides={**_ANCHORED, "+trainer.replay_delay": REPLAY_DELAY})
"""The same on data that a replay queue delays by further updates."""


def demo_arms(repaired: bool) -> tuple[Arm, ...]:
    """The arms of the demo; with its clip made to act, the baseline is the anchored variant."""
    return (PPO_CLIP, TIS, REPLAY) if repaired else (GRPO, TIS, PPO_CLIP, REPLAY)


def source_of(arm: Arm, repaired: bool) -> BatchSource:
    """What feeds the learner: the mended replay queue, or the one that sticks while it fills."""
    return delayed if repaired or "+trainer.replay_delay" not in arm.overrides else delayed_while_filling


def loss_of(arm: Arm, repaired: bool) -> PolicyLoss:
    """The policy loss: the trainer's, unless the arm has one of its own that divides by something else."""
    return anchored_clip if arm.own_loss and not repaired else ppo_clip


def experiment_name(repaired: bool) -> str:
    """The project or experiment that holds the demo's runs."""
    return "rl-stale-demo-repaired" if repaired else "rl-stale-demo"


def overrides_of(arm: Arm, seed: int, sampling_seed: int, repaired: bool) -> dict[str, Any]:
    """The overrides that start one run of an arm.

    The bug, as it was found in a real launch script: unpacking the correction's recipe assigns to ``seed``, which
    until then held the data seed. The run is named before that, so its name promises a seed that the recipe's own
    (None) has replaced. Arms without a correction are untouched.

    Args:
        arm: The arm.
        seed: The data seed.
        sampling_seed: Seeds the sampler's draws; another one for every run.
        repaired: Whether the recipe's seed goes into a name of its own.
    """
    chosen: dict[str, Any] = {
        "trainer.project_name": experiment_name(repaired),
        "trainer.experiment_name": f"{arm.name}-seed{seed}",
        "actor_rollout_ref.rollout.seed": sampling_seed,
    }
    if arm.correction is not None:
        if repaired:
            level, threshold, _ = arm.correction
        else:
            level, threshold, seed = arm.correction  # type: ignore[assignment]
        chosen["algorithm.rollout_correction.rollout_is"] = level
        chosen["algorithm.rollout_correction.rollout_is_threshold"] = threshold
    return chosen | dict(arm.overrides) | {"data.seed": seed}


def launches(
    arms: tuple[Arm, ...], seeds: tuple[int, ...], repaired: bool, extra: Mapping[str, Any]
) -> Iterator[tuple[Arm, dict[str, Any]]]:
    """Arm and overrides of every run: each arm over all data seeds, each launch with the next sampling seed."""
    for number, (arm, seed) in enumerate((arm, seed) for arm in arms for seed in seeds):
        yield arm, overrides_of(arm, seed, 1001 + number, repaired) | dict(extra)

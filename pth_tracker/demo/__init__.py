"""A small real trainer with a lagging sampler, whose broken harness the checks find by name.

A softmax policy learns digit transformations from a verifiable reward by GRPO, on a CPU, in about a second a run. The
sampler's weights are refreshed only at every 16th update. As launched by default, the harness carries an Idle Clip
(arm ``grpo``), a Lost Seed (``tis``), a Rogue Normaliser (``ppo-clip``) and a Stuck Batch (``replay``);
``repaired=True`` trains the same comparison with all four mended. The numbers come from the training: nothing is
scripted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pth_tracker.demo.launch import DATA_SEEDS, Arm, demo_arms, experiment_name, launches, loss_of, source_of
from pth_tracker.demo.metrics import ACCURACY
from pth_tracker.demo.settings import read_settings, resolve
from pth_tracker.demo.sinks import ConsoleSink, MemorySink, MlflowSink, Sink, WandbSink, embedded_store
from pth_tracker.demo.trainer import train

__all__ = [
    "ACCURACY",
    "DATA_SEEDS",
    "Arm",
    "ConsoleSink",
    "MemorySink",
    "MlflowSink",
    "Sink",
    "WandbSink",
    "demo_arms",
    "embedded_store",
    "experiment_name",
    "resolve",
    "run_demo",
    "train",
]


def run_demo(
    make_sink: Callable[[], Sink],
    *,
    repaired: bool = False,
    arms: Sequence[Arm] | None = None,
    seeds: Sequence[int] = DATA_SEEDS,
    updates: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[str]:
    """The names of the demo's runs, after every one has been trained and logged to a sink of its own.

    Args:
        make_sink: Makes the sink of one run.
        repaired: Whether to train the mended comparison.
        arms: The arms to train; those of the demo where None.
        seeds: The data seeds, each trained in every arm.
        updates: Updates a run; as configured where None.
        overrides: Further dotted settings of every run.
        progress: Told of each run when it has ended, in one line.

    Raises:
        UsageError: A setting is not one the demo builds; nothing has then been trained.
    """
    extra = dict(overrides or {}) | ({} if updates is None else {"trainer.total_training_steps": updates})
    chosen = tuple(demo_arms(repaired) if arms is None else arms)
    configs = [(arm, resolve(each)) for arm, each in launches(chosen, tuple(seeds), repaired, extra)]
    planned = [(arm, config, read_settings(config)) for arm, config in configs]
    for arm, config, settings in planned:
        begun = time.perf_counter()
        accuracy = train(config, make_sink(), source=source_of(arm, repaired), loss=loss_of(arm, repaired))
        if progress is not None:
            spent = time.perf_counter() - begun
            progress(f"{settings.name}: {settings.updates} updates in {spent:.1f} s, held-out accuracy {accuracy:.3f}")
    return [settings.name for *_, settings in planned]

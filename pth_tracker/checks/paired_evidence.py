"""What a paired comparison says beside its interval: equivalence, power, the bootstrap and the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pth_tracker import stats

if TYPE_CHECKING:
    from pth_tracker.checks.paired_results import PairedResult

Scores = Mapping[tuple[str, str], float]
"""(task, seed) to score."""


def further(
    result: PairedResult, margin: float | None, a: Scores, b: Scores, scale: float, unit: str
) -> tuple[list[str], dict[str, Any]]:
    """Sentences and evidence for those of these that the sizes allow; differences are shown times ``scale``."""
    lines: list[str] = []
    evidence: dict[str, Any] = {}
    if result.equivalence is not None:
        test = result.equivalence
        lines.append(
            f"Two one-sided tests against a margin of {test.margin * scale:g}{unit}: p {test.p:.3g}, 90% interval "
            f"{test.low * scale:+.2f} to {test.high * scale:+.2f}."
        )
        evidence["equivalence_interval"] = [test.low, test.high]
    needed = stats.seeds_needed(result.differences, margin) if margin is not None else None
    if needed is not None:
        lines.append(
            f"To show a difference of {needed.effect * scale:g}{unit} with power 0.8 takes {needed.low:,} to "
            f"{needed.high:,} common seeds, over the 80% bounds of s."
        )
        evidence["seeds_needed"] = [needed.low, needed.high]
    bootstrap = stats.bootstrap_interval(result.differences, rng=np.random.default_rng(0))
    if bootstrap is not None:
        lines.append(
            f"Bootstrap over seeds {bootstrap.low * scale:+.2f} to {bootstrap.high * scale:+.2f}; it does not decide."
        )
        evidence["bootstrap"] = [bootstrap.low, bootstrap.high]
    tasks = sorted({task for task, _ in a} & {task for task, _ in b})
    if len(tasks) > 1:
        evidence["tasks"] = len(tasks)
        lines.append(f"Each seed's difference is the mean over the tasks that both arms trained, {len(tasks)} in all.")
        middle = _iqm(result.seeds, tasks, a, b)
        if middle is not None:
            lines.append(f"Interquartile means over tasks and seeds differ by {middle.value * scale:+.2f}{unit}.")
            evidence["iqm"] = {"value": middle.value, "interval": [middle.low, middle.high]}
    return lines, evidence


def _iqm(seeds: tuple[str, ...], tasks: list[str], a: Scores, b: Scores) -> stats.Iqm | None:
    """The difference of the arms' interquartile means over the seeds that have every task in both arms."""
    whole = [seed for seed in seeds if all((task, seed) in scores for task in tasks for scores in (a, b))]
    if not whole:
        return None
    tables = [[[scores[task, seed] for seed in whole] for task in tasks] for scores in (a, b)]
    return stats.iqm_interval(*tables, rng=np.random.default_rng(0))

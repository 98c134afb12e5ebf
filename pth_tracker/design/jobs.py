"""Training runs told from the evaluation jobs and checkpoint uploads of a project, by the listing alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pth_tracker.runs import Run
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import GENERIC, matches_any
from pth_tracker.vocabulary.load import Vocabulary

JOB_TYPES: Final = frozenset(
    "eval evals evaluate evaluation evaluator test testing val validate validation benchmark checkpoint checkpoints "
    "ckpt upload dataset preprocess".split()
)
"""Job types, in lower case, by which a tracker says that a run trains nothing."""
EVALUATIONS: Final = tuple(
    f"{word}{joint}*" for word in ("eval", "evaluation", "val", "valid", "validation", "test") for joint in "/_-."
)
"""Patterns of metrics that an evaluation logs, where the framework's vocabulary does not make them something else."""
NEUTRAL: Final = ("_*", "system/*", "system.*", "epoch", "step", "global_step", "*/epoch", "*/global_step", "*/step")
"""Patterns of metrics that say nothing about what a job does."""


def tell_apart(vocabulary: Vocabulary, runs: Sequence[Run]) -> list[Run]:
    """The runs, those that train nothing with the reason why comparisons leave them aside.

    A run is an evaluation by its job type, by its framework's own switch, or because it logs evaluations only; the
    last counts only where other runs of its framework log their training (of any, where its own is not recognised).
    """
    readings = [Reading(vocabulary, run) for run in runs]
    training = {run.framework for run, own in zip(runs, readings) if _kind(own) == "training"}
    told = []
    for run, own in zip(runs, readings):
        said = _said(own)
        others = run.framework in training or (run.framework == GENERIC and training)
        if not said and others and _kind(own) == "evaluation":
            said = "it logs evaluations only: an evaluation job, or a run that stopped before it trained"
        told.append(replace(run, aside=said) if said else run)
    return told


def _said(reading: Reading) -> str:
    """Why the tracker or the configuration says that the run trains nothing; ``""``: neither does."""
    kind = reading.run.last.job_type
    if kind.lower() in JOB_TYPES:
        return f"its job type is {kind}: it trains nothing"
    switch = reading.framework.evaluates_only
    return "its configuration has it evaluate only" if switch and reading.holds(switch) else ""


def _kind(reading: Reading) -> str:
    """What the run's metrics are of: ``training``, ``evaluation``, or ``""`` where they do not tell."""
    telling = [key for key in reading.run.metric_keys or () if not matches_any(key, NEUTRAL)]
    if not telling:
        return ""
    ambiguous = [key for key in telling if matches_any(key, EVALUATIONS)]
    if len(ambiguous) < len(telling):
        return "training"
    trained = (name for name in reading.framework.quantities if name != "eval_score")
    learnt = {key for name in trained for key in reading.raw_keys(name)}
    return "training" if learnt.intersection(ambiguous) else "evaluation"

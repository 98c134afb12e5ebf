"""Check 3: which batch each update trains on, by its identity or by what ordinary metrics tell, beside its age."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pth_tracker.checks.batch_evidence import (
    BATCH_QUANTITIES,
    LEARNER,
    REPEATS_THAT_FAIL,
    PromptTuples,
    RepeatedTuples,
    batches_per_epoch,
    common_distance,
    longest_stretch,
    one_a_batch,
    prompt_tuples,
    repeated_tuples,
    replay_switch,
    reused_batches,
    starts_over,
)
from pth_tracker.checks.subjects import RunView
from pth_tracker.expressions import ExpressionError, evaluate
from pth_tracker.model import STUCK_BATCH, Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats
from pth_tracker.stats.repeats import latest_equal, period
from pth_tracker.vocabulary.canonicalise import Series
from pth_tracker.vocabulary.lens import Lens

STANDING_STILL: Final = 4
"""Updates through which a prompt tuple has to stand still."""
STILL_BY_CHANCE: Final = 2
"""The longest stretch that its own ties may predict."""
_BACK: Final = "the reused batches lie {} updates back, as in a further epoch or a resume that starts over"


def batch_facts(view: RunView) -> Iterator[str]:
    """What the run's own series establish for stuck-batch."""
    found = repeated_tuples(view)
    if found is not None and found.repeats.judged:
        yield "batch_spread"
    prompts = prompt_tuples(view)
    if prompts is not None and (prompts.by_chance <= STILL_BY_CHANCE or foreign_period(view, prompts)):
        yield "prompt_spread"
    if any(part.log_markers for part in view.run.parts):
        yield "replay_marker"


def age_facts(view: RunView) -> Iterator[str]:
    """What the run's own series establish for age-off-design."""
    if designed_ages(view) is not None:
        yield "designed_age"


def _by_identity(view: RunView, series: Series) -> tuple[str, dict[str, Any]] | None:
    """What the logged identities show, and the evidence."""
    finite = np.isfinite(series.values)
    ids, step = series.values[finite], series.step[finite]
    labels = np.unique(ids, return_inverse=True)[1].reshape(-1).astype(np.int64)
    begins = one_a_batch(labels, view.role("updates_per_batch"))
    ids, step, labels = ids[begins], step[begins], labels[begins]
    reused = reused_batches(ids, view.plan.batch_uses)
    if not np.any(reused):
        return None
    distinct, count = len(np.unique(labels)), int(np.count_nonzero(reused))
    longest, first, last = longest_stretch(step, labels)
    evidence: dict[str, Any] = {
        "batch_id": series.key,
        "updates": len(ids),
        "distinct": distinct,
        "reused": count,
        "longest": longest,
        "first_reuse": int(step[reused][0]),
        "uses_by_design": view.plan.batch_uses,
    }
    said = f"{series.key}: {distinct} distinct batches in {len(ids)} updates"
    if longest > 1:
        said += f"; updates {first} to {last} are {longest} in a row on one batch"
    common = common_distance((np.arange(len(ids)) - latest_equal(labels))[reused])
    if common:
        said += f"; {_BACK.format(common)}"
        evidence["distance"] = common
    allowed = "once" if view.plan.batch_uses == 1 else f"{view.plan.batch_uses} times"
    return f"{said}. The design lets an update use a batch {allowed}.", evidence


def judge_stuck_batch(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """Updates train again on a batch that was used before.

    What it does: looks for updates whose batch an earlier update has already trained on, by the batch's logged
    identity, or by the ordinary metrics that a batch of responses fixes.

    Why it matters: a replay queue that serves one batch until it has filled trains on that batch over and over, while
    the logged age of its data looks exactly as designed. The method is then judged on a fraction of the data.

    How it decides: with an identity, an update fails that uses a batch more often than the design allows (once, or
    ``batches.uses``). Without one, the tuple of prompt lengths, response lengths and scores (mean, max and min of
    each) has to repeat, at any distance, while the gradient norm changes. Such repeats count only where they are
    improbable: fewer than 0.01 expected by chance over all pairs of updates, from the ties that the run itself shows
    in the same stretches; where that cannot be had, neighbouring updates alone are searched. Stretches in which a
    quantity has no spread (a converged policy, a length limit) are left out; where too little remains it is not
    judged. One improbable repeat warns, three fail; where the loader's length is known, a repeat at a multiple of it
    does not count, and where it is not, repeats that all lie equally far back only warn. Prompts alone warn: their
    tuple stands still for 4 updates where its own ties predict 2 at most, or repeats with a period that is not the
    loader's length. A setting that reads rollouts from a dump, or its line in the log, confirms repeats, and warns
    where nothing else could tell.

    Example: 33 updates in a row with one tuple and 33 gradient norms, 68 distinct tuples in 100 updates.

    Remedy: look at the queue that serves the batches, and log each batch's identity. Two lines do it::

        ledger = pth_tracker.BatchLedger()  # before the loop
        ledger.record(update, batch["input_ids"], age=age)  # in it; log ledger.metrics() with the others

    Configuration: ``batches: {uses: 4}`` in the design allows an update to train on a batch up to 4 times; several
    epochs over a data set whose identities leave the responses out need it too.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 3; verl-project/verl#2602, #5556 (replayed
    rollouts).
    """
    switch = replay_switch(view)
    ids = view.series("batch_id")
    found = _by_identity(view, ids) if ids else None
    if found is not None:
        yield _stuck(view, Level.FAIL, f"{found[0]}{_because(switch)}", found[1])
        return
    metrics = repeated_tuples(view)
    count = 0 if metrics is None else len(metrics.at)
    if metrics is not None and count:
        epoch = metrics.loader is None and metrics.distance is not None and not switch
        level = Level.FAIL if switch or (count >= REPEATS_THAT_FAIL and not epoch) else Level.WARN
        yield _stuck(view, level, f"{_metric_words(metrics)}{_because(switch)}", _metric_evidence(metrics))
    elif metrics is not None and switch and metrics.still > REPEATS_THAT_FAIL:
        said = f"{', '.join(metrics.tuples.keys)} stand still for {metrics.still} updates while the learner changes"
        yield _stuck(view, Level.FAIL, f"{said}.{_because(switch)}", {"longest": metrics.still, "switch": switch})
    elif switch and (any(part.log_markers for part in view.run.parts) or met == {"switch"}):
        said = f"Rollouts may be read from a dump instead of sampled: {switch}."
        yield _stuck(view, Level.WARN, said, {"switch": switch}, "rollouts are read from a dump instead of sampled")
    elif met & {"metrics", "prompts"} and not ids:
        yield from _prompts_alone(view)


def _because(switch: str) -> str:
    return f" It is confirmed: {switch}." if switch else ""


def _metric_evidence(found: RepeatedTuples) -> dict[str, Any]:
    full = found.tuples.full
    longest, first, last = longest_stretch(found.tuples.step, full)
    return {
        "updates": len(full),
        "distinct": len(np.unique(full)),
        "repeats": len(found.at),
        "first_repeat": int(found.tuples.step[found.at[0]]),
        "longest": longest,
        "stretch": [first, last],
        "expected_by_chance": found.repeats.expected,
        "searched": found.repeats.search,
        "left_out": found.repeats.left_out,
        "metrics": list(found.tuples.keys),
    }


def _metric_words(found: RepeatedTuples) -> str:
    facts = _metric_evidence(found)
    said = (
        f"{facts['repeats']} of {facts['updates']} updates repeat prompts, response lengths and scores of an earlier "
        f"one ({', '.join(found.tuples.keys)}) while the learner changes; by chance {facts['expected_by_chance']:.1g} "
        f"would. There are {facts['distinct']} distinct batches"
    )
    if facts["longest"] > 1:
        first, last = facts["stretch"]
        said += f", and updates {first} to {last} are {facts['longest']} in a row on one of them"
    if found.distance is not None:
        said += f"; {_BACK.format(found.distance)}"
    return f"{said}."


def _stuck(view: RunView, level: Level, detail: str, evidence: dict[str, Any], title: str = "") -> Finding:
    return Finding(
        3,
        level,
        title or "updates train again on a batch that was used before",
        detail,
        evidence,
        "" if title else STUCK_BATCH,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="log each batch's identity with pth_tracker.BatchLedger() and look at the queue that serves the "
        "batches; if "
        "the design trains on a batch again, say how often in a design file, as batches: {uses: 2}",
    )


def foreign_period(view: RunView, prompts: PromptTuples) -> int | None:
    """The period with which the prompts repeat, where it is not the loader's length; None where that is not known."""
    length = batches_per_epoch(view)
    found = None if length is None else period(prompts.labels)
    return None if found is None or starts_over(found, length) else found


def _prompts_alone(view: RunView) -> Iterator[Finding]:
    """A prompt tuple that stands still, or a period that is not the loader's."""
    prompts = prompt_tuples(view)
    if prompts is None or not len(prompts.step):
        return
    longest, first, last = longest_stretch(prompts.step, prompts.labels)
    if longest >= max(STANDING_STILL, view.plan.batch_uses + 1) and prompts.by_chance <= STILL_BY_CHANCE:
        yield _stuck(
            view,
            Level.WARN,
            f"{', '.join(prompts.keys)} are the same from update {first} to {last} ({longest} updates), where their "
            f"own ties predict {prompts.by_chance} at most.",
            {"longest": longest, "by_chance": prompts.by_chance, "stretch": [first, last]},
            "the prompts stand still while the run goes on",
        )
        return
    found = foreign_period(view, prompts)
    if found is not None:
        length = batches_per_epoch(view) or np.inf
        loader = f"{length:g} batches" if np.isfinite(length) else "more batches than the run has updates"
        yield _stuck(
            view,
            Level.WARN,
            f"The prompts repeat every {found} updates, and an epoch has {loader}.",
            {"period": found, "batches_per_epoch": length if np.isfinite(length) else None},
            "the prompts repeat with a period that is not the loader's",
        )


@lru_cache(maxsize=1)
def designed_ages(view: RunView) -> tuple[Series, Floats] | None:
    """The logged data age with the ``(n,)`` ages designed for its updates; None where either is missing.

    An age that cannot be evaluated at an update is NaN; where it cannot at the first, the design does not fit the run.
    """
    series = view.series("data_age")
    if series is None or not view.plan.age:
        return None
    begins = [other.step[0] for name in ("data_age", *LEARNER, "clip_fraction") if (other := view.series(name))]
    first, lens = int(min(begins)), Lens(view.run.config)
    ages = np.full(len(series), np.nan)
    for place, step in enumerate(series.step.tolist()):
        try:
            age = evaluate(view.plan.age, {"update": step - first, "step": step}, {"cfg": lens.cfg})
            ages[place] = float(age)
        except (ExpressionError, TypeError, ValueError, OverflowError):
            continue
    return None if not len(ages) or np.all(np.isnan(ages)) else (series, ages)


def judge_age_off_design(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The logged age of the data is not the designed one.

    What it does: holds the data age of every update against the design's expression for it.

    Why it matters: the staleness of the data is the treatment of an off-policy comparison. Where the queue delivers
    another age, arms are compared at a lag that nobody meant.

    How it decides: the design states the age as an expression over ``update``, which counts from 0 at the run's first
    trained update. An update is off where the logged age differs by more than the logged precision (half a unit of
    the printed decimals; half an update where only whole ages are logged and the designed one is none), or is not
    finite. One such update fails.

    Example: designed ``min(update, 32)``, logged 0 at every update.

    Remedy: repair the queue, or state the age that was meant. Where the identity of the batches is not logged, log it
    too: a queue that serves one batch can have exactly the designed age.

    Configuration: ``age: {expected: "min(update, cfg('trainer.sync_interval'))"}`` in the design; ``step`` is the
    tracker's own step, for trainers that do not count updates.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 3.
    """
    found = designed_ages(view)
    if found is None:
        return
    series, ages = found
    whole = np.all(series.values[np.isfinite(series.values)] % 1 == 0)
    printed = 0.0 if series.decimals is None else 0.5 * 10.0**-series.decimals
    tolerance = np.maximum(printed, 1e-6 * np.maximum(1.0, np.abs(ages)))
    if whole:
        tolerance = np.where(ages % 1 == 0, tolerance, 0.5)
    off = ~np.isnan(ages) & ~(np.abs(series.values - ages) <= tolerance * (1 + 1e-9))
    if not np.any(off):
        return
    at = int(np.flatnonzero(off)[0])
    count = int(np.count_nonzero(off))
    logged, designed = float(series.values[at]), float(ages[at])
    yield Finding(
        3,
        Level.FAIL,
        "the age of the data is not the designed one",
        f"{series.key} is off the designed {view.plan.age} on {count} of {len(ages)} updates, first at update "
        f"{int(series.step[at])}: {logged:g} logged, {designed:g} designed.",
        {
            "data_age": series.key,
            "off": count,
            "updates": len(ages),
            "first_off": int(series.step[at]),
            "logged": logged,
            "designed": designed,
        },
        basis=Basis.DECLARED,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="repair the queue that serves the batches, or state the age that was meant in the design file, under "
        "age",
    )


RULES: Final = (
    Rule(
        "stuck-batch",
        3,
        Level.FAIL,
        Scope.RUN,
        (
            branch("identity", "batch_id"),
            branch("metrics", *(f"{name}_mean" for name in BATCH_QUANTITIES), LEARNER, "batch_spread"),
            branch(
                "prompts",
                *(f"{BATCH_QUANTITIES[0]}_{name}" for name in ("mean", "max", "min")),
                LEARNER,
                "prompt_spread",
            ),
            branch("switch", ("rollout_replay", "replay_marker")),
        ),
        judge_stuck_batch,
        explains=("unstable-data-order", "shared-data-order", "collapsed"),
        reads=(*(f"{name}_{end}" for name in BATCH_QUANTITIES for end in ("max", "min")), "batch_id_high", "epoch"),
        facts=batch_facts,
    ),
    Rule(
        "age-off-design",
        3,
        Level.FAIL,
        Scope.RUN,
        (branch("declared", "data_age", "designed_age"),),
        judge_age_off_design,
        reads=(*LEARNER, "clip_fraction"),
        facts=age_facts,
    ),
)

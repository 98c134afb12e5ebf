"""The map step: one run's history becomes its findings and a small digest; picklable, never raising for one run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from pth_tracker import stats
from pth_tracker.checks import run_rules, stamp
from pth_tracker.checks.batch_evidence import prompt_tuples, repeated_tuples
from pth_tracker.checks.stability import has_collapsed
from pth_tracker.checks.subjects import RunView
from pth_tracker.model import Finding, Plan
from pth_tracker.runs import Floats, History, Ints, Run, RunError, RunRef
from pth_tracker.stats.arrays import mean_of
from pth_tracker.stats.orders import BatchSeries, batch_series
from pth_tracker.stats.seams import Seam, lr_jump, replayed
from pth_tracker.stats.series import WINDOW, window_medians
from pth_tracker.tracker import Address, Tracker, open_address
from pth_tracker.vocabulary.canonicalise import Reading, Series
from pth_tracker.vocabulary.detect import find_keys
from pth_tracker.vocabulary.load import load_vocabulary

Number = TypeVar("Number", np.int64, np.float64)

EXAMINE_VERSION: Final = 6
"""Raised whenever examining the same history would yield something else: part of the cache's key."""
BLOCK: Final = 8
"""Updates a block of hashes."""
BLOCKS: Final = 128
"""Blocks that are hashed one by one; all that follows has one hash together."""
_SEED, _FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
"""Of the hash of one block: eight rounds of xor, multiply and shift, as in SplitMix64."""
CURVE_POINTS: Final = 200
SCORE_POINTS: Final = 2048
WITNESS_POINTS: Final = 512
BATCH_RUNS: Final = 512
"""Runs of equal batch identities that are kept."""
CURVES: Final = ("clip_fraction", "sampler_k3_kl", "sampler_kl", "sampler_abs_dlogp", "data_age", "lr")
"""Quantities whose curves are kept for the report."""


@dataclass(frozen=True)
class Unit:
    """One run to examine, with the raw metrics to read of each of its parts (None: all)."""

    run: Run
    keys: tuple[str, ...] | None


@dataclass(frozen=True)
class Digest:
    """What is kept of one quantity's series."""

    key: str
    """The raw metric that held it."""
    count: int
    first: int
    """The first update with a value."""
    last: int
    decimals: int | None
    estimator: str
    clip: str
    blocks: npt.NDArray[np.uint64]
    """``(k,)`` hashes of up to 128 blocks of 8 consecutive values, and one of all the rest where there is any."""
    step: Ints
    """The curve's updates: at most 200, evenly thinned; all of the first 512 of a witness, of batch identities and of
    what depends on the learner's weights."""
    values: Floats
    """The curve's values."""

    @property
    def single_blocks(self) -> npt.NDArray[np.uint64]:
        """The hashes of single blocks of 8 values, from the first on."""
        return self.blocks[: min(BLOCKS, self.count // BLOCK)]


@dataclass(frozen=True)
class BatchIds:
    """The batches that a run's updates trained on, run-length-coded where there are at most 512 runs of one batch."""

    updates: int
    distinct: int
    ids: Floats
    """``(k,)``: the identity of each run of equal batches; empty above 512 runs."""
    lengths: Ints
    """``(k,)``: how many updates each run lasts."""
    digest: str
    """A hash of all updates and identities."""


@dataclass(frozen=True)
class RuleOutcome:
    """What became of one rule of run scope on this run."""

    rule: str
    met: tuple[str, ...]
    unmet: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Where no branch was met: what the nearest branch lacks, alternatives joined by ``|``."""


@dataclass(frozen=True)
class Reduced:
    """One series in a few figures: those of its finite values, which are NaN where it has none."""

    count: int
    """Logged values, finite or not."""
    nonfinite: int
    first: float = math.nan
    last: float = math.nan
    mean: float = math.nan
    median: float = math.nan
    min: float = math.nan
    max: float = math.nan
    early: float = math.nan
    """The median of the first tenth, at least 5 values."""
    late: float = math.nan
    """The mean of the last tenth."""
    fell: bool | None = None
    """Whether it fell by 80% of its early median and stayed there; None below 10 values."""


@dataclass(frozen=True)
class Examination:
    """Everything that later steps know of one run's history; at most 150 KB."""

    run_key: str
    findings: tuple[Finding, ...] = ()
    outcomes: tuple[RuleOutcome, ...] = ()
    available: frozenset[str] = frozenset()
    """Quantities with a logged value, roles and facts: what rules of wider scope may need."""
    quantities: Mapping[str, Digest] = field(default_factory=dict)
    score: float | None = None
    score_key: str = ""
    score_step: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Updates of the score curve: all of them up to 2,048, else so many, evenly thinned."""
    score_values: Floats = field(default_factory=lambda: np.empty(0))
    score_decimals: int | None = None
    """The fixed number of decimals that the score was printed with; None: full precision."""
    evaluations: int = 0
    collapsed: bool | None = None
    """Whether the score, or else the training score, collapsed; None: neither could be judged."""
    reduced: Mapping[str, Reduced] = field(default_factory=dict)
    """Figures of each quantity and raw metric of which the plan wants figures, where it was logged."""
    last_update: int | None = None
    conflicts: int = 0
    batches: BatchIds | None = None
    """None where no batch's identity is logged."""
    told_step: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The first 512 of the updates whose batches other metrics tell apart: prompts, response lengths and scores."""
    told_batch: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Labels of their batches, equal where all those metrics are."""
    told_count: int = 0
    """How many such updates there are."""
    seams: tuple[Seam, ...] = ()
    """Of a resumed run: where each segment follows the ones before it."""
    restart_at: int | None = None
    """Index of the first segment that starts over instead of continuing; the run is then several attempts."""
    notes: tuple[str, ...] = ()


def examine_batch(address: Address, units: Sequence[Unit], plan: Plan) -> list[Examination | RunError]:
    """The examinations of ``units``, read from the tracker at ``address`` with this process's own credentials."""
    tracker = open_address(address)
    try:
        return list(examine(tracker, units, plan))
    finally:
        tracker.close()


def examine(tracker: Tracker, units: Sequence[Unit], plan: Plan) -> Iterator[Examination | RunError]:
    """One examination, or the reason why there is none, for each unit, in the order in which they become complete."""
    requests = [(ref, unit.keys) for unit in units for ref in unit.run.refs]
    waiting = {unit.run.key: unit for unit in units}
    owner = {ref: unit.run.key for unit in units for ref in unit.run.refs}
    got: dict[str, dict[RunRef, History | RunError]] = {key: {} for key in waiting}
    for ref, history in tracker.histories(requests):
        key = owner[ref]
        got[key][ref] = history
        if len(got[key]) == len(waiting[key].run.refs):
            yield _examine_parts(waiting.pop(key).run, got.pop(key), plan)
    for unit in waiting.values():
        yield RunError(unit.run.refs[0], unit.run.label, "the tracker gave no answer for this run; audit it again")


def _examine_parts(run: Run, parts: Mapping[RunRef, History | RunError], plan: Plan) -> Examination | RunError:
    histories: list[History] = []
    axes = load_vocabulary(plan.vocabularies).frameworks[run.framework].axis
    for segment in run.segments:
        beside: list[History] = []
        for source in segment:
            part = parts[source.ref]
            if isinstance(part, RunError):
                return RunError(part.ref, run.label, part.message)
            beside.append(_on_axis(part, axes))
        histories.append(_joined(beside))
    restart = _restart(histories)
    if restart is not None:
        return Examination(run.key, restart_at=restart)
    examined = examine_history(run, History.merge(histories), plan)
    return replace(examined, seams=_seams(run, histories, plan)) if len(histories) > 1 else examined


def _on_axis(history: History, axes: Sequence[str]) -> History:
    """The history against the trainer's own count, where one of ``axes`` holds it."""
    axis = next((key for key in axes if key in history.values), "")
    return history.on_axis(axis) if axis else history


def _joined(beside: Sequence[History]) -> History:
    """One history of parts that ran beside each other: what both log under one name is no conflict."""
    return replace(History.merge(beside), conflicts=sum(one.conflicts for one in beside))


def _seams(run: Run, histories: Sequence[History], plan: Plan) -> tuple[Seam, ...]:
    """Where each segment that logged anything follows the ones before it."""
    vocabulary = load_vocabulary(plan.vocabularies)
    seams: list[Seam] = []
    earlier: list[History] = []
    for history in histories:
        if not len(history):
            continue
        if earlier:
            before, after = (Reading(vocabulary, run, one) for one in (History.merge(earlier), history))
            rates = [(one.step, one.values) for side in (before, after) if (one := side.series("lr")) is not None]
            batches = [_batches_of(side) for side in (before, after)]
            again = replayed(batches[0], batches[1]) if batches[0] is not None and batches[1] is not None else None
            seams.append(
                Seam(
                    int(earlier[-1].step[-1]),
                    int(history.step[0]),
                    lr_jump(rates[0], rates[1]) if len(rates) == 2 else None,
                    again[1] if again else None,
                    again[0] if again else 0,
                )
            )
        earlier.append(history)
    return tuple(seams)


def _batches_of(reading: Reading) -> BatchSeries | None:
    held = [one for name in reading.framework.witness if (one := reading.series(name)) is not None]
    return batch_series([(one.step, one.values, one.decimals) for one in held])


def _restart(histories: Sequence[History]) -> int | None:
    """The index of the first part whose history overlaps an earlier one from its start."""
    begun: int | None = None
    for index, history in enumerate(histories):
        if not len(history):
            continue
        if begun is not None and int(history.step[0]) <= begun:
            return index
        begun = int(history.step[0]) if begun is None else begun
    return None


def examine_history(run: Run, history: History, plan: Plan) -> Examination:
    """The examination of one run whose exact history is at hand."""
    reading = Reading(load_vocabulary(plan.vocabularies), run, history)
    view = RunView(reading, plan)
    available = view.available
    score_key, score_step, score_values = view.score
    findings: list[Finding] = []
    outcomes: list[RuleOutcome] = []
    for rule in run_rules(plan.rules):
        found = available.union(rule.facts(view))
        lacking = {one.name: one.missing(found) for one in rule.needs}
        met = tuple(name for name, missing in lacking.items() if not missing)
        unmet = tuple(name for name, missing in lacking.items() if missing)
        if met:
            findings += stamp(rule, rule.judge(view, frozenset(met)))
            outcomes.append(RuleOutcome(rule.slug, met, unmet))
        else:
            nearest = min(lacking.values(), key=len)
            outcomes.append(RuleOutcome(rule.slug, (), unmet, tuple("|".join(group) for group in nearest)))
    known = reading.vocabulary.quantities
    exact = {
        "batch_id",
        "batch_id_high",
        *reading.framework.witness,
        *(name for name in plan.quantities if known[name].learner),
    }
    held = {name: series for name in plan.quantities if (series := reading.series(name)) is not None}
    told_step, told_batch = _told_batches(view)
    return Examination(
        run_key=run.key,
        findings=tuple(findings),
        outcomes=tuple(outcomes),
        available=available,
        quantities={name: _digest(series, name in exact, name in CURVES) for name, series in held.items()},
        score=_reduce(plan, score_step, score_values),
        score_key=score_key,
        score_step=_thin(score_step, SCORE_POINTS),
        score_values=_thin(score_values, SCORE_POINTS),
        score_decimals=view.score_decimals,
        evaluations=len(score_step),
        collapsed=has_collapsed(view) if plan.collapses else None,
        reduced={
            **{name: reduce_series(series.values) for name, series in held.items() if name in plan.figures},
            **{name: reduce_series(values) for name in plan.metrics if (values := _raw(history, name)) is not None},
        },
        last_update=_last_update(run, history, reading.framework.axis),
        conflicts=history.conflicts,
        batches=_batch_ids(held["batch_id"]) if "batch_id" in held else None,
        told_step=told_step[:WITNESS_POINTS].copy(),
        told_batch=told_batch[:WITNESS_POINTS].copy(),
        told_count=len(told_step),
    )


def _raw(history: History, name: str) -> Floats | None:
    """The values of a raw metric; None where none was logged."""
    return next((history.series(key)[1] for key in find_keys(name, frozenset(history.values))), None)


def reduce_series(values: Floats) -> Reduced:
    """The figures of a series' ``(n,)`` values."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Reduced(len(values), len(values))
    return Reduced(
        len(values),
        len(values) - len(finite),
        first=float(finite[0]),
        last=float(finite[-1]),
        mean=mean_of(finite),
        median=_median(finite),
        min=float(finite.min()),
        max=float(finite.max()),
        early=_median(finite[: max(WINDOW, math.ceil(len(finite) / 10))]),
        late=stats.last_tenth_mean(finite),
        fell=stats.falls_and_stays(finite),
    )


def _median(values: Floats) -> float:
    return float(window_medians(values, len(values))[0])


def _batch_ids(series: Series) -> BatchIds:
    ids = series.values
    starts = np.concatenate(([0], np.flatnonzero(ids[1:] != ids[:-1]) + 1))
    lengths = np.diff(np.concatenate((starts, [len(ids)])))
    kept = slice(0, BATCH_RUNS if len(starts) <= BATCH_RUNS else 0)
    digest = hashlib.blake2b(series.step.tobytes() + ids.tobytes(), digest_size=16).hexdigest()
    return BatchIds(len(ids), len(np.unique(ids)), ids[starts][kept], lengths[kept].astype(np.int64), digest)


def _told_batches(view: RunView) -> tuple[Ints, Ints]:
    """The ``(n,)`` updates whose batches metrics other than an identity tell apart, and the labels of the batches."""
    found = repeated_tuples(view)
    if found is not None:
        return found.tuples.step, found.tuples.full
    prompts = prompt_tuples(view)
    empty = np.empty(0, dtype=np.int64)
    return (empty, empty) if prompts is None else (prompts.step, prompts.labels)


def _last_update(run: Run, history: History, axes: Sequence[str]) -> int | None:
    """The last step at which anything was logged, read or not; in the trainer's own count where that is known."""
    own_count = any(key in history.values for key in axes)
    listed = [part.last_step for part in run.parts if part.last_step is not None and not own_count]
    return max([*listed, *history.step[-1:].tolist()], default=None)


def _reduce(plan: Plan, step: Ints, values: Floats) -> float | None:
    if not len(step):
        return None
    if plan.at == "best":
        finite = values[np.isfinite(values)]
        return float(finite.max() if plan.higher_is_better else finite.min()) if len(finite) else None
    if isinstance(plan.at, int):
        return float(values[step > step[-1] - plan.at].mean())
    return float(values[-1])


def _digest(series: Series, exact: bool, curve: bool) -> Digest:
    if exact:
        step, values = series.step[:WITNESS_POINTS], series.values[:WITNESS_POINTS]
    elif curve:
        step, values = _thin(series.step, CURVE_POINTS), _thin(series.values, CURVE_POINTS)
    else:
        step, values = series.step[:0], series.values[:0]
    return Digest(
        key=series.key,
        count=len(series),
        first=int(series.step[0]),
        last=int(series.step[-1]),
        decimals=series.decimals,
        estimator=series.meaning.estimator,
        clip=series.meaning.clip,
        blocks=block_hashes(series.values, series.decimals),
        step=step.copy(),
        values=values.copy(),
    )


def _thin(array: npt.NDArray[Number], most: int) -> npt.NDArray[Number]:
    if len(array) <= most:
        return array.copy()
    kept: npt.NDArray[Number] = array[_thinned(len(array), most)]
    return kept


@lru_cache(maxsize=8)
def _thinned(count: int, most: int) -> Ints:
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def block_hashes(values: Floats, decimals: int | None = None) -> npt.NDArray[np.uint64]:
    """Hashes of up to 128 blocks of 8 values and one of the rest: as printed with ``decimals``, else as float32."""
    coarse = np.round(values, decimals) if decimals is not None else values
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray((coarse + 0.0).astype(np.float32))
    whole = min(BLOCKS, len(stored) // BLOCK)
    hashes = np.full(whole, _SEED)
    for column in stored[: whole * BLOCK].view(np.uint32).reshape(whole, BLOCK).T.astype(np.uint64):
        hashes = (hashes ^ column) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    rest = stored[whole * BLOCK :].tobytes()
    if not rest:
        return hashes
    last = hashlib.blake2b(rest, digest_size=8).digest()
    return np.append(hashes, np.frombuffer(last, dtype=np.uint64))


def units_of(runs: Iterable[Run], plan: Plan) -> list[Unit]:
    """The runs to examine with the raw metrics that the plan needs of each."""
    vocabulary = load_vocabulary(plan.vocabularies)
    units = []
    for run in runs:
        reading = Reading(vocabulary, run)
        if run.metric_keys is None:
            units.append(Unit(run, None))
            continue
        names = [key for quantity in plan.quantities for key in reading.raw_keys(quantity)]
        names += (key for key in reading.framework.axis if key in run.metric_keys)
        for metric in (plan.metric, *(name for name, _ in plan.benchmarks), *plan.metrics):
            names += find_keys(metric, run.metric_keys) if metric else ()
        if plan.metric and not find_keys(plan.metric, run.metric_keys):
            names += reading.raw_keys("eval_score")[:1]  # by which it is judged alone
        units.append(Unit(run, tuple(dict.fromkeys(names))))
    return units

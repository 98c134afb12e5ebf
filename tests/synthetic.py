"""Runs made by hand, in verl 0.7.1's vocabulary, and a tracker that keeps them in memory.

`comparison` is a clean comparison: three arms over five data seeds, about which no rule has anything to say above
information. Faults are planted by changing single runs (`with_config`, `with_metrics`, `without_metrics`, `cut` ...)
or by making other ones with `make_run`. Everything is deterministic: data orders follow from the data seed, all other
series from the run's name.
"""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np
import yaml

from pth_tracker.design.schema import Design
from pth_tracker.engine import Options, audit
from pth_tracker.errors import ProjectNotFound, TrackerError
from pth_tracker.model import Audit, Coverage, Finding, NotJudged
from pth_tracker.runs import Floats, History, RunError, RunRef, RunState, SourceRun
from pth_tracker.tracker import Address, EditResult, MarkEdit, Marks, Publication, Query

PROJECT: Final = "synthetic"
START: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
UPDATES: Final = 60
EVALUATED_EVERY: Final = 5
TEST_ITEMS: Final = 1319

ACTOR: Final = "actor_rollout_ref.actor"
CORRECTION: Final = "algorithm.rollout_correction"
SCORE: Final = "val-core/openai/gsm8k/acc/mean@1"
CLIP: Final = "actor/pg_clipfrac"
LR: Final = "actor/lr"
K3: Final = "rollout_corr/k3_kl"
SEEDS: Final = (41, 42, 43, 44, 45)
ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ppo": {},
    "clip-higher": {f"{ACTOR}.clip_ratio_high": 0.28},
    "tis": {f"{CORRECTION}.rollout_is": "token"},
}
"""Arms of the clean comparison, each of four optimiser steps a batch, so that the clip acts."""
ONE_STEP: Final = {f"{ACTOR}.ppo_mini_batch_size": 64}
"""One optimiser step a batch: the ratio is 1 by construction."""

Values = float | Sequence[float] | Mapping[int, float] | Floats
"""A metric: one value at every update, values at the updates 1, 2, ..., or step to value."""


@dataclass(frozen=True)
class FakeRun:
    """One run of the memory tracker: what it lists and what its history holds."""

    source: SourceRun
    points: Mapping[str, tuple[tuple[int, ...], tuple[float, ...]]]
    """Raw metric to its steps and values, in the order in which they were logged."""
    decimals: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    """Why its history cannot be read; ``""``: it can."""

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def key(self) -> str:
        return self.source.ref.run_id

    @property
    def history(self) -> History:
        return History.from_points({key: (s, v) for key, (s, v) in self.points.items()}, self.decimals)


@cache
def _defaults() -> dict[str, Any]:
    text = files("pth_tracker.demo").joinpath("config.yaml").read_text()
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def verl_config(settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A resolved, nested configuration of verl 0.7.1 on GSM8K with dotted ``settings`` on top."""
    config = copy.deepcopy(_defaults())
    del config["trainer"]["sync_interval"]  # the demo's own key: released verl has none
    config["data"] |= {
        "train_files": "gsm8k/train.parquet",
        "val_files": "gsm8k/test.parquet",
        "train_batch_size": 64,
        "val_max_samples": -1,
    }
    config["actor_rollout_ref"]["actor"] |= {"ppo_mini_batch_size": 16}
    config["actor_rollout_ref"]["model"]["path"] = "Qwen/Qwen2.5-Math-1.5B"
    config["actor_rollout_ref"]["rollout"] |= {"name": "vllm", "seed": None, "response_length": 512}
    set_dotted(config, settings or {})
    return config


def set_dotted(config: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Puts dotted settings into a nested configuration; `ABSENT` takes a key out."""
    for key, value in settings.items():
        *path, leaf = key.split(".")
        place = config
        for part in path:
            place = place.setdefault(part, {})
        if value is ABSENT:
            place.pop(leaf, None)
        else:
            place[leaf] = value


class _Absent:
    pass


ABSENT: Final = _Absent()


def _rng(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("|".join(map(str, parts)).encode()))


def prompt_metrics(order: object, updates: int = UPDATES) -> dict[str, Values]:
    """Prompt lengths of the batches in a data ``order`` (a seed; None or `ABSENT`: the default order)."""
    fixed = order is None or order is ABSENT
    prompts = _rng("data", "default" if fixed else order).integers(60, 180, size=(updates, 64))
    return {
        "prompt_length/mean": prompts.mean(axis=1),
        "prompt_length/max": prompts.max(axis=1),
        "prompt_length/min": prompts.min(axis=1),
    }


def clean_metrics(name: str, order: object, updates: int = UPDATES) -> dict[str, Values]:
    """Metrics of a healthy run: prompts by the data ``order``, everything else by the run's ``name``."""
    own = _rng("run", name)
    responses = own.integers(80, 400, size=(updates, 512)) + own.integers(-20, 20, size=(updates, 1))
    progress = 1 - np.exp(-np.arange(updates) / 20)
    train_score = np.clip(0.35 + 0.4 * progress + own.normal(0, 0.03, updates), 0.05, 0.95)
    evaluated = range(0, updates + 1, EVALUATED_EVERY)
    return {
        CLIP: np.round(own.uniform(0.001, 0.02, updates), 6),
        "actor/ppo_kl": own.normal(0, 2e-3, updates),
        "actor/pg_loss": own.normal(0, 0.05, updates),
        "actor/grad_norm": own.uniform(0.1, 0.6, updates),
        "actor/entropy": 0.3 + own.uniform(0, 0.02, updates),
        LR: 2e-6,
        "rollout_corr/kl": own.normal(4e-4, 1e-4, updates),
        K3: own.uniform(3e-4, 6e-4, updates),
        **prompt_metrics(order, updates),
        "response_length/mean": responses.mean(axis=1),
        "response_length/max": responses.max(axis=1),
        "response_length/min": responses.min(axis=1),
        "response_length/clip_ratio": np.round(own.uniform(0, 0.01, updates), 4),
        "critic/score/mean": train_score,
        "critic/score/max": 1.0,
        "critic/score/min": 0.0,
        "critic/rewards/mean": train_score,
        "critic/advantages/max": own.uniform(1.5, 2.4, updates),
        "critic/advantages/min": own.uniform(-2.4, -1.5, updates),
        "training/global_step": np.arange(1, updates + 1),
        SCORE: {
            step: round((0.36 + 0.4 * (1 - np.exp(-step / 20)) + own.normal(0, 0.008) * (step > 0)) * TEST_ITEMS)
            / TEST_ITEMS
            for step in evaluated
        },
    }


def _points(values: Values, updates: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if isinstance(values, Mapping):
        return tuple(values), tuple(float(value) for value in values.values())
    listed = [values] * updates if isinstance(values, int | float) else list(values)
    return tuple(range(1, len(listed) + 1)), tuple(float(value) for value in listed)


def make_run(
    name: str,
    settings: Mapping[str, Any] | None = None,
    seed: object = 43,
    *,
    updates: int = UPDATES,
    metrics: Mapping[str, Values | None] | None = None,
    config: Mapping[str, Any] | None = None,
    score: float | None = None,
    number: int | None = None,
    decimals: Mapping[str, int] | None = None,
    **attributes: Any,
) -> FakeRun:
    """A run of verl 0.7.1, finished and healthy unless told otherwise.

    Args:
        name: Its name; its own series follow from it.
        settings: Dotted settings on top of `verl_config`; `ABSENT` takes a key out.
        seed: ``data.seed``, which decides the order of its prompts; `ABSENT` or None: the default order.
        updates: Its length.
        metrics: On top of `clean_metrics`; None takes a metric out.
        config: Replaces the configuration as a whole.
        score: The last value of the score; the others are moved along.
        number: Its place in time; by default, a number of its name.
        decimals: Metric to the decimals it was printed with.
        attributes: Of `SourceRun` (``state``, ``group``, ``tags``, ``created`` ...).
    """
    resolved = dict(config) if config is not None else verl_config({"data.seed": seed, **(settings or {})})
    logged: dict[str, Values | None] = {**clean_metrics(name, seed, updates), **(metrics or {})}
    curve = logged.get(SCORE)
    if score is not None and isinstance(curve, Mapping):
        shift = score - curve[max(curve)]
        logged[SCORE] = {step: score if step == max(curve) else value + shift for step, value in curve.items()}
    points = {key: _points(values, updates) for key, values in logged.items() if values is not None}
    created = START + timedelta(hours=number if number is not None else zlib.crc32(name.encode()) % 1000)
    facts: dict[str, Any] = {
        "state": RunState.FINISHED,
        "created": created,
        "ended": created + timedelta(minutes=50),
        **attributes,
    }
    run_id = facts.pop("run_id", f"id-{name}-{created:%m%d%H}")
    source = SourceRun(RunRef(facts.pop("project", PROJECT), run_id), name, config=resolved, **facts)
    return _listed(FakeRun(source, points, decimals or {}))


def _listed(run: FakeRun) -> FakeRun:
    """The run with metric keys, last step and revision as a tracker would list them."""
    last = max((max(steps) for steps, _ in run.points.values() if steps), default=None)
    revision = f"{zlib.crc32(repr((run.points, run.source.config, run.source.state)).encode()):08x}"
    return replace(
        run, source=replace(run.source, metric_keys=frozenset(run.points), last_step=last, revision=revision)
    )


def comparison(
    arms: Mapping[str, Mapping[str, Any]] | None = None, seeds: Sequence[int] = SEEDS, **options: Any
) -> list[FakeRun]:
    """A clean comparison: every arm over every data seed, named ``ARM-seedN``; ``options`` go to `make_run`."""
    pairs = [(arm, settings, seed) for arm, settings in (ARMS if arms is None else arms).items() for seed in seeds]
    return [
        make_run(f"{arm}-seed{seed}", settings, seed, number=number, **options)
        for number, (arm, settings, seed) in enumerate(pairs)
    ]


def change(runs: Iterable[FakeRun], glob: str, **attributes: Any) -> list[FakeRun]:
    """The runs, those whose names match with other attributes of `SourceRun`."""
    return [
        _listed(replace(run, source=replace(run.source, **attributes))) if fnmatchcase(run.name, glob) else run
        for run in runs
    ]


def with_config(runs: Iterable[FakeRun], glob: str, settings: Mapping[str, Any]) -> list[FakeRun]:
    """The runs, those whose names match with other dotted settings; with another ``data.seed``, other prompts."""
    changed = []
    for run in runs:
        if fnmatchcase(run.name, glob):
            config: dict[str, Any] = copy.deepcopy(dict(run.source.config))
            set_dotted(config, settings)
            points = dict(run.points)
            if "data.seed" in settings:
                other = prompt_metrics(settings["data.seed"])
                points |= {key: _points(values, UPDATES) for key, values in other.items() if key in points}
            run = _listed(replace(run, points=points, source=replace(run.source, config=config)))
        changed.append(run)
    return changed


def without_config(runs: Iterable[FakeRun], glob: str = "*") -> list[FakeRun]:
    """The runs, those whose names match without any configuration."""
    return change(runs, glob, config={})


def with_metrics(runs: Iterable[FakeRun], glob: str, metrics: Mapping[str, Values]) -> list[FakeRun]:
    """The runs, those whose names match with other metrics."""
    return [
        _listed(replace(run, points={**run.points, **{k: _points(v, UPDATES) for k, v in metrics.items()}}))
        if fnmatchcase(run.name, glob)
        else run
        for run in runs
    ]


def without_metrics(runs: Iterable[FakeRun], *metrics: str, glob: str = "*") -> list[FakeRun]:
    """The runs, those whose names match without the metrics that match one of the patterns."""
    return [
        _listed(
            replace(
                run,
                points={k: p for k, p in run.points.items() if not any(fnmatchcase(k, metric) for metric in metrics)},
            )
        )
        if fnmatchcase(run.name, glob)
        else run
        for run in runs
    ]


def cut(run: FakeRun, last: int, first: int = 0, **attributes: Any) -> FakeRun:
    """The part of a run from step ``first`` to ``last``."""
    points = {}
    for key, (steps, values) in run.points.items():
        kept = [(step, value) for step, value in zip(steps, values) if first <= step <= last]
        if kept:
            points[key] = (tuple(step for step, _ in kept), tuple(value for _, value in kept))
    return _listed(replace(run, points=points, source=replace(run.source, **attributes)))


def unreadable(run: FakeRun, why: str = "the server sends no history (HTTP 500)") -> FakeRun:
    """The run, its history refused."""
    return replace(run, error=why)


def as_mlflow(run: FakeRun) -> FakeRun:
    """The run as verl's MLflow backend logs it: flat text parameters, metric names that MLflow accepts."""
    from pth_tracker.demo.sinks import mlflow_metric_key, mlflow_params

    points = {mlflow_metric_key(key): series for key, series in run.points.items()}
    config: Mapping[str, object] = mlflow_params(run.source.config)
    return _listed(replace(run, points=points, source=replace(run.source, config=config)))


def sawtooth(interval: int, peak: float, updates: int = UPDATES, floor: float = 3e-4) -> list[float]:
    """The sampler's KL where its weights are refreshed at every ``interval``-th update."""
    return [floor + peak * (update % interval) / (interval - 1) for update in range(updates)]


def idle(**metrics: Values) -> dict[str, Values]:
    """Metrics of a clip that never acts under a sampler that lags by up to 16 updates."""
    return {CLIP: 0.0, "actor/ppo_kl": 0.0, K3: sawtooth(16, 2.0), "rollout_corr/kl": sawtooth(16, 1.0), **metrics}


class MemoryTracker:
    """A tracker in memory that keeps the whole contract of `pth_tracker.tracker.Tracker` and counts its requests."""

    def __init__(
        self,
        runs: Iterable[FakeRun],
        *,
        read_only: str = "",
        has_tags: bool = True,
        refused: Collection[str] = (),
        silent: Collection[str] = (),
        down: str = "",
    ) -> None:
        self._runs = list(runs)
        self._read_only = read_only
        self._has_tags = has_tags
        self._refused = frozenset(refused)
        self._silent = frozenset(silent)
        self.down = down
        """Why every request fails; ``""``: none does."""
        self.requests: Counter[str] = Counter()
        """Method to how often it was called."""
        self.wanted: dict[RunRef, Collection[str] | None] = {}
        """Run to the metrics that were asked for last."""
        self.held: dict[RunRef, Marks] = {}
        self.publications: list[Publication] = []
        self.closed = False

    @property
    def address(self) -> Address:
        return Address("memory", ("memory",))

    @property
    def read_only(self) -> str:
        return self._read_only

    @property
    def has_tags(self) -> bool:
        return self._has_tags

    def _request(self, method: str) -> None:
        assert not self.closed, "a closed tracker is not used"
        self.requests[method] += 1
        if self.down:
            raise TrackerError(self.down)

    def projects(self) -> Sequence[str]:
        self._request("projects")
        return sorted({run.source.ref.project for run in self._runs})

    def runs(self, query: Query) -> Iterator[SourceRun]:
        self._request("runs")
        if query.project and query.project not in {run.source.ref.project for run in self._runs}:
            raise ProjectNotFound(f"there is no project {query.project!r} in {self.address}")
        listed = [run.source for run in self._runs if query.project in ("", run.source.ref.project)]
        for source in sorted(listed, key=lambda one: (one.created is None, one.created or START, one.ref)):
            if query.where and not fnmatchcase(source.name, query.where):
                continue
            if query.since and (source.created is None or source.created < query.since):
                continue
            yield replace(source, marks=self.held.get(source.ref, Marks())) if query.marks else source

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        self._request("histories")
        by_ref = {run.source.ref: run for run in self._runs}
        for ref, keys in reversed(requests):  # any order is allowed
            self.wanted[ref] = keys
            run = by_ref[ref]
            if run.key in self._silent:
                continue
            if run.error:
                yield ref, RunError(ref, run.name, run.error)
                continue
            points = {key: series for key, series in run.points.items() if keys is None or key in keys}
            yield ref, History.from_points({k: (s, v) for k, (s, v) in points.items()}, run.decimals)

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        self._request("marks")
        return {ref: self.held.get(ref, Marks()) for ref in refs}

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        self._request("apply")
        assert not self._read_only, "nothing is written to a tracker that can only be read"
        by_ref = {run.source.ref: run for run in self._runs}
        for edit in edits:
            run = by_ref[edit.ref]
            if run.key in self._refused:
                yield EditResult(edit, error="the server refuses (HTTP 403)")
                continue
            if run.source.state is RunState.RUNNING:
                yield EditResult(edit, skipped="it is still running")
                continue
            now = self.held.get(edit.ref, Marks())
            values = {k: v for k, v in {**now.values, **edit.set_values}.items() if k not in edit.unset_values}
            self.held[edit.ref] = Marks(values, (now.tags | edit.add_tags) - edit.remove_tags)
            yield EditResult(edit)

    def publish(self, publication: Publication) -> str:
        self._request("publish")
        assert not self._read_only, "nothing is written to a tracker that can only be read"
        self.publications.append(publication)
        return "memory run pth-audit"

    def close(self) -> None:
        self.closed = True


def audit_of(
    runs: Iterable[FakeRun] | MemoryTracker, design: Design | Mapping[str, Any] | None = None, **options: Any
) -> Audit:
    """The audit of these runs; ``options`` are those of `pth_tracker.engine.Options`."""
    tracker = runs if isinstance(runs, MemoryTracker) else MemoryTracker(runs)
    declared = design if isinstance(design, Design) or design is None else Design.model_validate(design)
    return audit(tracker, Options(project=options.pop("project", PROJECT), design=declared, **options))


def findings(report: Audit, rule: str, *, counted: bool = False) -> list[Finding]:
    """The findings of one rule, with ``counted`` those only that count."""
    return [one for one in report.findings if one.rule == rule and (one.counts or not counted)]


def only(report: Audit, rule: str) -> Finding:
    """The one finding of a rule."""
    (found,) = findings(report, rule)
    return found


def covered(report: Audit, rule: str) -> list[Coverage]:
    """The coverage of one rule."""
    return [entry for entry in report.coverage if entry.rule == rule]


def outcomes(report: Audit, rule: str) -> set[str]:
    """What became of one rule, over all its subjects."""
    return {str(entry.outcome) for entry in covered(report, rule)}


def not_judged(report: Audit, rule: str) -> list[NotJudged]:
    """Where one rule could not judge."""
    return [entry for entry in report.not_judged if entry.rule == rule]


def labels(report: Audit, keys: Iterable[str]) -> list[str]:
    """The labels of run keys, sorted."""
    return sorted(report.label(key) for key in keys)


def loud(report: Audit) -> list[tuple[str, str, str]]:
    """(level, rule, title) of everything above information that counts."""
    return [(str(one.level), one.rule, one.title) for one in report.findings if one.counts and one.level != "info"]

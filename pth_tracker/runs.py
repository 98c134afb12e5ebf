"""Runs as every other module sees them: what a tracker lists, what a history holds, what people look at.

A `SourceRun` is one run as a tracker lists it. A `Run` is logical: one or several source runs stitched together (a
resumed run, a framework that logs one experiment as two). A `History` is the exact record of a run's metrics. All
three are frozen and picklable and hold no credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pth_tracker.values import MISSING, Maybe, Value, canonical_config

if TYPE_CHECKING:
    import pandas as pd

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
LARGEST_COUNT: Final = 2.0**53
"""Up to it a float tells every whole number from the next."""


class RunState(StrEnum):
    """How a run stands, in the words shared by all trackers."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CRASHED = "crashed"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class RunRef:
    """Which run it is, within the tracker at one `pth_tracker.tracker.Address`."""

    project: str
    """The project or experiment by name; for files, the folder or ``""``."""
    run_id: str
    """The tracker's own id of the run; for files, the path."""


@dataclass(frozen=True)
class Marks:
    """Our own marks on one run."""

    values: Mapping[str, str] = field(default_factory=dict)
    """By bare name (see `pth_tracker.tracker.MARK_NAMES`)."""
    tags: frozenset[str] = frozenset()
    """Our tags, with their prefix ``pth:``; empty on trackers without plain tags."""


@dataclass(frozen=True)
class SourceRun:
    """One run as its tracker lists it, before any history is read."""

    ref: RunRef
    name: str
    state: RunState = RunState.UNKNOWN
    created: datetime | None = None
    """Aware, UTC."""
    ended: datetime | None = None
    """Aware, UTC; for a run that has not ended, or a tracker that does not say, None."""
    config: Mapping[str, object] = field(default_factory=dict)
    """As the tracker gives it: nested or flat, typed or text (W&B's wrappers already taken off)."""
    metric_keys: frozenset[str] | None = None
    """Raw names of all metrics the run has logged; None where the listing does not tell."""
    last_step: int | None = None
    revision: str = ""
    """Opaque; changes when the run's evidence changes and not when our own marks do."""
    group: str = ""
    job_type: str = ""
    tags: tuple[str, ...] = ()
    """The user's tags, as plain words; MLflow's key-value tags are written ``key=value``. Never our own marks."""
    user: str = ""
    host: str = ""
    program: str = ""
    arguments: tuple[str, ...] | None = None
    """The launch command's arguments in order; None where the tracker does not record them."""
    commit: str = ""
    resume_id: str = ""
    """An id that segments of one resumed run share, where the tracker has one."""
    parent_id: str = ""
    """The run id of the parent, for nested runs."""
    url: str = ""
    """A page that shows the run, where there is one."""
    notes: tuple[str, ...] = ()
    """What the adapter saw and a reader should know ("truncated file: 3 records lost"); shown in the report."""
    log_markers: tuple[str, ...] = ()
    """Lines of a log that vocabularies know as evidence (verl's skip-rollout line), as found."""
    marks: Marks | None = None
    """Our own marks, as they were when the run was listed; None where the listing does not tell."""

    @cached_property
    def canonical(self) -> Mapping[str, Value]:
        """The configuration with dotted keys and canonical values."""
        return MappingProxyType(canonical_config(self.config))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "canonical"}


@dataclass(frozen=True)
class History:
    """The exact record of some metrics of one run, on the union of their steps; nothing is ever sampled."""

    step: Ints
    """``(n,)``, strictly increasing: the tracker's steps."""
    values: Mapping[str, Floats]
    """Raw metric name to ``(n,)`` values; NaN where the metric has none at that step, or a logged NaN."""
    nonfinite_at: Mapping[str, Ints] = field(default_factory=dict)
    """Raw metric name to the ``(k,)`` steps at which a NaN or infinity was *logged*: evidence, unlike absence."""
    conflicts: int = 0
    """How many values were replaced by a later, different one at the same step."""
    decimals: Mapping[str, int] = field(default_factory=dict)
    """Raw metric name to the fixed number of decimals it was printed with; absent: full precision."""

    @classmethod
    def from_points(
        cls,
        points: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
        decimals: Mapping[str, int] | None = None,
    ) -> History:
        """A history from each metric's ``(steps, values)`` in the order in which they were logged.

        Two values at one step: the later wins, and differing ones are counted in `conflicts`. A metric without any
        point is left out.
        """
        cleaned: dict[str, tuple[Ints, Floats]] = {}
        conflicts = 0
        for key, (raw_steps, raw_values) in points.items():
            steps = np.asarray(raw_steps, dtype=np.int64)
            values = np.asarray(raw_values, dtype=np.float64)
            if steps.shape != values.shape or steps.ndim != 1:
                raise ValueError(f"metric {key!r}: steps {steps.shape} and values {values.shape} must be equal vectors")
            if not len(steps):
                continue
            if np.any(steps[1:] <= steps[:-1]):
                order = np.argsort(steps, kind="stable")
                steps, values = steps[order], values[order]
                last = np.append(steps[1:] != steps[:-1], True)
                if not last.all():
                    kept = values[last][np.cumsum(last) - last]
                    conflicts += int(np.sum(~((values == kept) | (np.isnan(values) & np.isnan(kept)))))
                    steps, values = steps[last], values[last]
            cleaned[key] = (steps, values)
        return cls._on_union(cleaned, conflicts, decimals or {})

    @classmethod
    def _on_union(
        cls, series: Mapping[str, tuple[Ints, Floats]], conflicts: int, decimals: Mapping[str, int]
    ) -> History:
        grids = [steps for steps, _ in series.values()]
        if not grids:
            union = np.empty(0, dtype=np.int64)
        elif all(grid.shape == grids[0].shape and np.array_equal(grid, grids[0]) for grid in grids[1:]):
            union = grids[0]
        else:
            union = np.unique(np.concatenate(grids))
        values: dict[str, Floats] = {}
        nonfinite: dict[str, Ints] = {}
        for key, (steps, own) in series.items():
            if len(steps) == len(union):
                column = own
            else:
                column = np.full(len(union), np.nan)
                column[np.searchsorted(union, steps)] = own
            values[key] = column
            bad = steps[~np.isfinite(own)]
            if len(bad):
                nonfinite[key] = bad
        return cls(union, values, nonfinite, conflicts, {k: d for k, d in decimals.items() if k in values})

    def __len__(self) -> int:
        return len(self.step)

    def series(self, key: str) -> tuple[Ints, Floats]:
        """The steps and values at which ``key`` was logged, non-finite values included; ``(k,)`` each."""
        column = self.values.get(key)
        if column is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        logged = ~np.isnan(column)
        bad = self.nonfinite_at.get(key)
        if bad is not None:
            logged[np.searchsorted(self.step, bad)] = True
        return self.step[logged], column[logged]

    def on_axis(self, key: str) -> History:
        """The history against the values of the metric ``key`` instead of the tracker's own steps.

        For trackers that count rows where the trainer counts something else. A row without a value of it belongs to
        the last one before it (the first ones to the first). As it is where ``key`` holds no whole numbers, some that
        no float counts to, or most rows lack it, so that it counts something else.
        """
        axis = self.values.get(key)
        known = np.empty(0, dtype=bool) if axis is None else np.isfinite(axis)
        if axis is None or 2 * np.sum(known) < len(known) or not len(known):
            return self
        if not np.all((axis[known] == np.floor(axis[known])) & (np.abs(axis[known]) <= LARGEST_COUNT)):
            return self
        rows = np.maximum.accumulate(np.where(known, np.arange(len(axis)), -1))
        counts = axis[np.where(rows < 0, np.argmax(known), rows)].astype(np.int64)
        points = {}
        for name in self.values:
            steps, values = self.series(name)
            points[name] = (counts[np.searchsorted(self.step, steps)], values)
        moved = History.from_points(points, self.decimals)
        return History(moved.step, moved.values, moved.nonfinite_at, moved.conflicts + self.conflicts, moved.decimals)

    @staticmethod
    def merge(parts: Sequence[History]) -> History:
        """One history from the parts of a stitched run: the outer merge by step, the later part wins."""
        if len(parts) == 1:
            return parts[0]
        keys = dict.fromkeys(key for part in parts for key in part.values)
        points = {}
        decimals: dict[str, int] = {}
        for key in keys:
            pieces = [part.series(key) for part in parts]
            points[key] = (
                np.concatenate([steps for steps, _ in pieces]),
                np.concatenate([values for _, values in pieces]),
            )
            printed = [part.decimals[key] for part in parts if key in part.decimals]
            if printed:
                decimals[key] = min(printed)
        merged = History.from_points(points, decimals)
        return History(
            merged.step,
            merged.values,
            merged.nonfinite_at,
            merged.conflicts + sum(part.conflicts for part in parts),
            merged.decimals,
        )

    def to_frame(self) -> pd.DataFrame:
        """The history as a frame, one row a step, the raw metric names as columns."""
        import pandas as pd

        return pd.DataFrame(dict(self.values), index=pd.Index(self.step, name="step"))


@dataclass(frozen=True)
class Run:
    """One logical run: what the checks judge, from one or several source runs in the order they ran."""

    parts: tuple[SourceRun, ...]
    """In order of time, at least one; the last part's attributes and configuration speak for the run."""
    framework: str = "generic"
    """The vocabulary that reads it (a file name in ``vocabulary/frameworks``)."""
    version: str | None = None
    """The framework's release, where it can be told."""
    label: str = ""
    """The name shown to people, unique within an audit."""
    side_by_side: tuple[int, ...] = ()
    """How many parts ran beside each other in each segment, where a framework logs one training as several runs;
    ``()``: one."""
    common_name: str = ""
    """What the names of parts that ran beside each other share."""
    aside: str = ""
    """Why it is no training run, of which comparisons are made; ``""``: it is one."""

    @property
    def segments(self) -> tuple[tuple[SourceRun, ...], ...]:
        """The parts of each launch, in order of time."""
        ends = [sum(self.side_by_side[: place + 1]) for place in range(len(self.side_by_side))]
        starts = [0, *ends[:-1]]
        return tuple(self.parts[start:end] for start, end in zip(starts, ends)) or tuple((one,) for one in self.parts)

    @property
    def key(self) -> str:
        """The id by which findings name this run: the first part's run id, unique within a tracker."""
        return self.parts[0].ref.run_id

    @property
    def last(self) -> SourceRun:
        """The last part."""
        return self.parts[-1]

    @property
    def name(self) -> str:
        """The run's own name, which other runs may share."""
        return self.common_name or self.last.name

    @property
    def state(self) -> RunState:
        """The state of the last part; running while any part of the last segment is."""
        running = any(part.state is RunState.RUNNING for part in self.segments[-1])
        return RunState.RUNNING if running else self.last.state

    @property
    def refs(self) -> tuple[RunRef, ...]:
        """Where all parts are; marks go to every one."""
        return tuple(part.ref for part in self.parts)

    @cached_property
    def config(self) -> Mapping[str, Value]:
        """The resolved configuration: dotted keys, canonical values; an absent key is missing, None is a value.

        A part that broke off before it logged anything has no say in it.
        """
        telling = [part for part in self.parts if part is self.last or part.metric_keys != frozenset()]
        if len(telling) == 1:
            return self.last.canonical
        merged: dict[str, Value] = {}
        for part in telling:
            merged.update(part.canonical)
        return MappingProxyType(merged)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("config", "part_configs", "metric_keys")}

    @cached_property
    def part_configs(self) -> tuple[Mapping[str, Value], ...]:
        """Each part's own configuration."""
        return tuple(part.canonical for part in self.parts)

    @cached_property
    def metric_keys(self) -> frozenset[str] | None:
        """Raw names of the metrics of all parts; None where a part's listing does not tell."""
        known = [part.metric_keys for part in self.parts]
        return None if any(keys is None for keys in known) else frozenset().union(*(keys for keys in known if keys))

    @property
    def revision(self) -> str:
        """The revisions of all parts."""
        return "+".join(part.revision for part in self.parts)

    def get(self, key: str) -> Maybe:
        """The configuration's value at the dotted ``key``, or `MISSING`."""
        return self.config.get(key, MISSING)


@dataclass(frozen=True)
class RunError:
    """A run that could not be read: it stays in the report by name, and the others are audited."""

    ref: RunRef
    name: str
    message: str


class RunSet(Sequence[Run]):
    """The runs of an audit, with pandas views for people and notebooks.

    The frames are ordinary pandas: `runs` has one row a run, `configs` one column a dotted key, `histories` one row a
    run and step. Building them is all that this class does.
    """

    def __init__(self, runs: Iterable[Run], histories: Mapping[str, History] | None = None) -> None:
        self._runs = tuple(runs)
        self._histories = dict(histories or {})

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __repr__(self) -> str:
        return f"RunSet of {len(self)} runs"

    def _repr_html_(self) -> str:
        from pth_tracker.render.notebook import runs_html

        return runs_html(self)

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run: name, state, framework, version, group, created, ended, last step, parts, url."""
        import pandas as pd

        rows = [
            {
                "run": run.label or run.name,
                "id": run.key,
                "state": str(run.state),
                "framework": run.framework,
                "version": run.version,
                "group": run.last.group,
                "created": run.parts[0].created,
                "ended": run.last.ended,
                "last_step": run.last.last_step,
                "parts": len(run.parts),
                "url": run.last.url,
            }
            for run in self._runs
        ]
        columns = "run id state framework version group created ended last_step parts url".split()
        return pd.DataFrame(rows, columns=columns).set_index("run")

    @property
    def configs(self) -> pd.DataFrame:
        """One row a run, one column a dotted configuration key; a missing key is ``NA``, None stays None."""
        import pandas as pd

        keys = sorted({key for run in self._runs for key in run.config})
        rows = [[run.config.get(key, pd.NA) for key in keys] for run in self._runs]
        index = pd.Index([run.label or run.name for run in self._runs], name="run")
        return pd.DataFrame(rows, columns=keys, index=index, dtype=object)

    @property
    def histories(self) -> pd.DataFrame:
        """One row a run and step, the raw metric names as columns; runs without a history that was read are absent."""
        import pandas as pd

        frames = {
            run.label or run.name: self._histories[run.key].to_frame()
            for run in self._runs
            if run.key in self._histories
        }
        if not frames:
            return pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["run", "step"]))
        return pd.concat(frames, names=["run", "step"])

"""What both ways into MLflow share: one stored run, its revision, and points made into a history."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np

from pth_tracker.errors import ProjectNotFound
from pth_tracker.runs import Floats, History, Ints, RunRef, RunState, SourceRun
from pth_tracker.tracker import MARK_NAMES, Marks, project_hint

TAG_PREFIX: Final = "pth."
"""Every tag of ours starts so: MLflow's tags are key and value, and a dot is what its own tags use."""
ROLE_TAG: Final = "pth.role"
AUDIT_ROLE: Final = "audit"
MARK_TAGS: Final = {f"{TAG_PREFIX}{name}": name for name in MARK_NAMES}

_STATES: Final = {
    "RUNNING": RunState.RUNNING,
    "SCHEDULED": RunState.RUNNING,
    "FINISHED": RunState.FINISHED,
    "FAILED": RunState.FAILED,
    "KILLED": RunState.KILLED,
}
_LARGEST: Final = float(np.finfo(np.float64).max)
SYSTEM_METRICS: Final = "system/"
_NOBODY: Final = "unknown"
"""What MLflow's client writes for a run whose user it was not told."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run as MLflow stores it, whichever way it was read."""

    run_id: str
    experiment_id: str
    name: str
    status: str
    start_ms: int | None
    end_ms: int | None
    user: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)
    """Metric name to the step, timestamp (ms) and value of its last point."""

    @property
    def is_audit(self) -> bool:
        """Whether it is our own audit run. The tag alone decides: people may rename a run, or call theirs the same."""
        return self.tags.get(ROLE_TAG) == AUDIT_ROLE


def in_order(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """The runs in the order of their creation, each once."""
    once = {run.run_id: run for run in runs}
    return sorted(once.values(), key=lambda run: (run.start_ms or 0, run.run_id))


def revision(run: StoredRun) -> str:
    """A hash of the run's evidence: status, parameters and the last point of each metric.

    Tags are left out, since our own marks are tags; the end time too, which tools rewrite.
    """
    evidence = [
        run.status,
        sorted(run.params.items()),
        sorted((key, step, at, repr(from_storage(value))) for key, (step, at, value) in run.latest.items()),
    ]
    return hashlib.sha256(json.dumps(evidence).encode()).hexdigest()[:32]


def source_run(run: StoredRun, project: str, url: str = "") -> SourceRun:
    """The run as the rest of the package sees it."""
    steps = [step for key, (step, _, _) in run.latest.items() if not key.startswith(SYSTEM_METRICS)]
    steps = steps or [step for step, _, _ in run.latest.values()]
    own = {key: value for key, value in run.tags.items() if not key.startswith(("mlflow.", TAG_PREFIX))}
    return SourceRun(
        ref=RunRef(project, run.run_id),
        name=run.name or run.tags.get("mlflow.runName", "") or run.run_id,
        state=_STATES.get(run.status, RunState.UNKNOWN),
        created=_moment(run.start_ms),
        ended=_moment(run.end_ms),
        config=dict(run.params),
        metric_keys=frozenset(run.latest),
        last_step=max(steps, default=None),
        revision=revision(run),
        tags=tuple(f"{key}={value}" for key, value in sorted(own.items())),
        user=run.tags.get("mlflow.user", "") or ("" if run.user == _NOBODY else run.user),
        program=run.tags.get("mlflow.source.name", ""),
        commit=run.tags.get("mlflow.source.git.commit", ""),
        parent_id=run.tags.get("mlflow.parentRunId", ""),
        url=url,
        marks=marks_of(run.tags),
    )


def _moment(milliseconds: int | None) -> datetime | None:
    if not milliseconds:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def since_ms(since: datetime) -> int:
    """The first millisecond that is not before ``since``."""
    return math.ceil(since.timestamp() * 1000)


def marks_of(tags: Mapping[str, str]) -> Marks:
    """Our marks among a run's tags."""
    return Marks({name: tags[key] for key, name in MARK_TAGS.items() if key in tags})


def from_storage(value: float) -> float:
    """A stored value as it was logged: MLflow keeps infinity as the largest float."""
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST else value


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one metric of one run as they came, in any order; ``(n,)`` each."""

    step: Ints
    timestamp: Ints
    """Milliseconds."""
    value: Floats
    """NaN where NaN was logged; infinity still as MLflow stores it."""


def history(series: Mapping[str, Points]) -> History:
    """A history in which, of several values at one step, the one with the latest timestamp wins.

    At one step and one timestamp the larger value wins and NaN over all, as nothing tells which was logged last;
    MLflow's own "latest metric" decides so too.
    """
    ordered: dict[str, tuple[Ints, Floats]] = {}
    for key, points in series.items():
        value = points.value
        huge = np.abs(value) >= _LARGEST
        if huge.any():
            value = np.where(huge, np.copysign(np.inf, value), value)
        step = points.step
        if np.any(step[1:] <= step[:-1]):
            order = np.lexsort((value, points.timestamp, step))
            step, value = step[order], value[order]
        ordered[key] = (step, value)
    return History.from_points(ordered)


def joined(pieces: Sequence[Points]) -> Points:
    """Several pieces of one metric of one run as one."""
    if len(pieces) == 1:
        return pieces[0]
    return Points(
        np.concatenate([piece.step for piece in pieces]),
        np.concatenate([piece.timestamp for piece in pieces]),
        np.concatenate([piece.value for piece in pieces]),
    )


def no_such_experiment(
    name: str, existing: Collection[str] | None, where: str, deleted: bool = False
) -> ProjectNotFound:
    """The error for an experiment that is absent, with up to five of those that exist, the most alike first.

    ``existing`` is None where they cannot be listed.
    """
    if deleted:
        return ProjectNotFound(
            f"the experiment {name!r} in {where} is deleted: restore it with `mlflow experiments restore`"
        )
    if existing is None:
        return ProjectNotFound(f"there is no experiment {name!r} in {where}: check --project")
    if not existing:
        return ProjectNotFound(f"there is no experiment {name!r} in {where}, which holds none")
    alike = difflib.get_close_matches(name, sorted(existing), n=5, cutoff=0.4)
    shown = [*alike, *sorted(set(existing) - set(alike))][:5]
    more = len(existing) - len(shown)
    listed = ", ".join(map(repr, shown)) + (f" and {more} more" if more > 0 else "")
    asked = f"there is no experiment {name!r}" if name else "no experiment is named (--project)"
    return ProjectNotFound(f"{asked} in {where}, which holds {listed}{project_hint(name, sorted(existing))}")

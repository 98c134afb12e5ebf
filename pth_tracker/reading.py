"""The runs of a project with their configurations and exact histories, for a notebook to go on with."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from pth_tracker.bounds import bounded
from pth_tracker.design.stitch import stitch
from pth_tracker.errors import NothingSelected
from pth_tracker.runs import History, RunError, RunRef, RunSet
from pth_tracker.tracker import Query, Tracker
from pth_tracker.vocabulary.load import load_vocabulary

_log: Final = logging.getLogger(__name__)


def read_runs(
    tracker: Tracker,
    project: str = "",
    *,
    metrics: Collection[str] | None = None,
    where: str = "",
    since: datetime | None = None,
    vocabularies: Sequence[Path] = (),
) -> RunSet:
    """The runs of a project as an audit sees them, resumed segments joined, with pandas views.

    A run whose history cannot be read is named by `logging` and has no rows in ``histories``.

    Args:
        tracker: An opened tracker (`pth_tracker.find_tracker`).
        project: The project or experiment; files have none.
        metrics: Raw names of the metrics to read; None: all, and an empty collection: no history is read.
        where: A filter in the tracker's own syntax.
        since: Only runs created since.
        vocabularies: Vocabulary files of frameworks of your own.

    Raises:
        ProjectNotFound: there is no such project.
        NothingSelected: it has no run that is selected.
        TrackerError: the tracker failed as a whole.
    """
    sources = [bounded(run) for run in tracker.runs(Query(project, where, since))]
    if not sources:
        raise NothingSelected(f"{project or tracker.address} has no run that is selected")
    runs = stitch(load_vocabulary(tuple(vocabularies)), sources)
    if metrics is not None and not metrics:
        return RunSet(runs)
    parts: dict[RunRef, History] = {}
    for ref, history in tracker.histories([(ref, metrics) for run in runs for ref in run.refs]):
        if isinstance(history, RunError):
            _log.warning("%s could not be read: %s", history.name, history.message)
        else:
            parts[ref] = history
    complete = [run for run in runs if all(ref in parts for ref in run.refs)]
    return RunSet(runs, {run.key: History.merge([parts[ref] for ref in run.refs]) for run in complete})

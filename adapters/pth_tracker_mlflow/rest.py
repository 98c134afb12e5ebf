"""An MLflow server read over REST in few large requests, exactly: what a limit may have cut off is asked again.

Histories come from ``get-history-bulk``: one metric of up to 100 runs, at most 25,000 points, ordered by run, so that
all runs before the last one of a full answer are complete. Servers without it answer point lists run by run.
``get-history-bulk-interval`` is not used: it samples, and older servers sample by the steps of all runs together,
so that a short answer there does not prove that nothing was left out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from pth_tracker.errors import TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.tracker import MAX_PROJECTS, Address, EditResult, MarkEdit, Marks, Publication, Query
from pth_tracker_mlflow import sdk, write
from pth_tracker_mlflow.address import Store
from pth_tracker_mlflow.common import (
    Points,
    StoredRun,
    history,
    in_order,
    joined,
    marks_of,
    no_such_experiment,
    since_ms,
    source_run,
)
from pth_tracker_mlflow.http import AJAX, Refused, Server, understood

THREADS: Final = 4
RUNS_PER_PAGE: Final = 1000
RUNS_PER_REQUEST: Final = 100
POINTS_PER_REQUEST: Final = 25_000
"""The server's own limit, and the page size of single histories."""
_IDS_PER_FILTER: Final = 200
_PATIENCE: Final = 3
"""After so many runs that a server fails to answer for, with none that it answered for, the server is given up."""


class RestTracker:
    """A `pth_tracker.tracker.Tracker` on an MLflow server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._server = Server(store)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="mlflow")
        self._has_bulk = True
        self._numbers: dict[str, str] = {}

    @property
    def address(self) -> Address:
        """The server's address without its password."""
        return self._store.address

    @property
    def has_tags(self) -> bool:
        """MLflow has no plain tags."""
        return False

    @property
    def read_only(self) -> str:
        """A server says what it refuses when it is asked to write."""
        return ""

    def account(self) -> str:
        """The user, or the kind of credentials, that MLflow's own environment variables give."""
        user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
        return user or ("the owner of MLFLOW_TRACKING_TOKEN" if os.environ.get("MLFLOW_TRACKING_TOKEN") else "")

    def projects(self) -> Sequence[str]:
        """The names of the experiments that are not deleted, sorted."""
        return sorted(set(self._experiment_names()))

    def _experiment_names(self) -> Iterator[str]:
        token = ""
        while True:
            asked: dict[str, object] = {"max_results": RUNS_PER_PAGE, "view_type": "ACTIVE_ONLY"}
            page = self._server.post("/experiments/search", asked | ({"page_token": token} if token else {}))
            with understood(self._store):
                names = [str(experiment["name"]) for experiment in page.get("experiments", [])]
            yield from names
            token = page.get("next_page_token", "")
            if not token:
                return

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """The runs of an experiment; see `pth_tracker.tracker.Tracker.runs`."""
        experiment = self._experiment(query.project)
        conditions = [query.where] if query.where else []
        if query.since:
            conditions.append(f"attributes.start_time >= {since_ms(query.since)}")
        try:
            found = in_order(self._search(experiment, " AND ".join(conditions)))
        except Refused as error:
            if query.where and error.status == 400:
                raise UsageError(f"MLflow does not accept --where {query.where!r}: {error.reason}") from None
            raise
        for run in found:
            if not run.is_audit:
                yield source_run(run, query.project, self._page(experiment, run.run_id))

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """The exact histories, one metric of many runs a request; see `pth_tracker.tracker.Tracker.histories`."""
        for start in range(0, len(requests), RUNS_PER_REQUEST):
            yield from self._group(requests[start : start + RUNS_PER_REQUEST])

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """Our tags on these runs as they are now."""
        stored = self._by_id(refs)
        return {ref: marks_of(stored[ref.run_id].tags if ref.run_id in stored else {}) for ref in refs}

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Carries the edits out, several at a time."""
        return write.apply(self._change, self._store, edits, THREADS)

    def _change(self, edit: MarkEdit) -> None:
        """Sets and deletes one run's tags; MLflow's client would try for minutes on a server that has gone away."""
        run_id = edit.ref.run_id
        try:
            if tags := [{"key": key, "value": value} for key, value in write.new_tags(edit).items()]:
                self._server.post("/runs/log-batch", {"run_id": run_id, "tags": tags})
            for key in write.old_tags(edit):
                try:
                    self._server.post("/runs/delete-tag", {"run_id": run_id, "key": key})
                except Refused as error:
                    if not write.is_no_such_tag(error.code, error.reason):
                        raise
        except Refused as error:
            raise ValueError(str(error)) from error

    def publish(self, publication: Publication) -> str:
        """Brings the experiment's audit run up to date through MLflow's client."""
        self._server.check()
        experiment = self._experiment(publication.project)
        run_id = write.publish(sdk.client(self._store.uri), self._store, publication, experiment)
        return self._page(experiment, run_id)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _page(self, experiment: str, run_id: str) -> str:
        parts = urlsplit(self._store.public)
        place = parts.netloc.rpartition("@")[2]
        root = urlunsplit((parts.scheme, place, parts.path, "", ""))
        return f"{root}/#/experiments/{experiment}/runs/{run_id}"

    def _experiment(self, name: str) -> str:
        if name in self._numbers:
            return self._numbers[name]
        deleted = False
        if name:
            try:
                answer = self._server.get("/experiments/get-by-name", {"experiment_name": name})
                with understood(self._store):
                    found = answer["experiment"]
                    deleted = found.get("lifecycle_stage", "active") != "active"
                    number = str(found["experiment_id"])
                if not deleted:
                    self._numbers[name] = number
                    return number
            except Refused as error:
                if error.code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        raise no_such_experiment(name, self._some_names(name), str(self.address), deleted)

    def _some_names(self, asked: str) -> set[str] | None:
        """Names to tell instead of ``asked``, which is not there; None where they cannot be listed."""
        try:
            return set(islice(self._experiment_names(), MAX_PROJECTS))
        except TrackerError:
            if not asked:  # nothing else has reached the server
                raise
            return None

    def _search(self, experiment: str, condition: str, view: str = "ACTIVE_ONLY") -> Iterator[StoredRun]:
        asked: dict[str, object] = {
            "experiment_ids": [experiment],
            "filter": condition,
            "run_view_type": view,
            "max_results": RUNS_PER_PAGE,
            "order_by": ["attributes.start_time ASC"],
        }
        while True:
            page = self._server.post("/runs/search", asked)
            with understood(self._store):
                found = [_stored(run) for run in page.get("runs", [])]
            yield from found
            if not page.get("next_page_token"):
                return
            asked["page_token"] = page["next_page_token"]

    def _by_id(self, refs: Sequence[RunRef]) -> dict[str, StoredRun]:
        """These runs as they are now, those that no longer exist left out."""
        by_project: dict[str, list[str]] = defaultdict(list)
        for ref in refs:
            by_project[ref.project].append(ref.run_id)
        found: dict[str, StoredRun] = {}
        for project, ids in by_project.items():
            for start in range(0, len(ids), _IDS_PER_FILTER):
                listed = ", ".join(f"'{run_id}'" for run_id in ids[start : start + _IDS_PER_FILTER])
                runs = self._search(self._experiment(project), f"attributes.run_id IN ({listed})", "ALL")
                found.update((run.run_id, run) for run in runs)
        return found

    def _group(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        unlisted = [ref for ref, keys in requests if keys is None]
        stored = self._by_id(unlisted) if unlisted else {}
        wanted: dict[str, list[str]] = defaultdict(list)
        for ref, keys in requests:
            listed = stored[ref.run_id].latest if ref.run_id in stored else ()
            for key in listed if keys is None else set(keys):
                wanted[key].append(ref.run_id)
        series: dict[str, dict[str, list[Points]]] = defaultdict(lambda: defaultdict(list))
        failed: dict[str, str] = {}
        tasks = [self._pool.submit(self._metric, key, sorted(set(ids))) for key, ids in sorted(wanted.items())]
        try:
            for key, task in zip(sorted(wanted), tasks):
                points, errors = task.result()
                failed.update(errors)
                for run_id, piece in points:
                    series[run_id][key].append(piece)
        finally:
            for task in tasks:
                task.cancel()
        silent = [ref for ref, _ in requests if ref.run_id not in series and ref.run_id not in failed]
        present = set(stored) | (set(self._by_id(silent)) if silent else set())
        for ref, _ in requests:
            if ref.run_id in failed:
                yield ref, RunError(ref, ref.run_id, failed[ref.run_id])
            elif ref.run_id in series or ref.run_id in present:
                yield ref, history({key: joined(pieces) for key, pieces in series.get(ref.run_id, {}).items()})
            else:
                yield ref, RunError(ref, ref.run_id, f"{self.address} no longer holds run {ref.run_id}")

    def _metric(self, key: str, ids: list[str]) -> tuple[list[tuple[str, Points]], dict[str, str]]:
        """All points of one metric of these runs, and the runs that the server refuses with its reason."""
        points: list[tuple[str, Points]] = []
        failed: dict[str, str] = {}
        size = RUNS_PER_REQUEST
        while ids:
            batch = ids[:size]
            try:
                found, complete = self._some(key, batch)
            except Refused as error:
                size = 1
                if len(batch) > 1:
                    continue
                failed[batch[0]] = str(error)
                if error.status == 401 or (error.status >= 429 and len(failed) >= _PATIENCE and not points):
                    raise
                found, complete = [], batch
            points += found
            done = set(complete)
            ids = [run_id for run_id in ids if run_id not in done]
            size = len(complete) if len(complete) < len(batch) else min(2 * size, RUNS_PER_REQUEST)
        return points, failed

    def _some(self, key: str, ids: Sequence[str]) -> tuple[list[tuple[str, Points]], Sequence[str]]:
        """The points of the first of these runs, as many as one answer holds completely, and which runs those are."""
        if self._has_bulk:
            try:
                found, complete = self._bulk(key, ids)
                if complete:
                    return found, complete
            except Refused as error:
                if error.status not in (404, 405) or error.code:
                    raise
                self._has_bulk = False
        return self._single(key, ids[0]), ids[:1]

    def _bulk(self, key: str, ids: Sequence[str]) -> tuple[list[tuple[str, Points]], Sequence[str]]:
        """One request's points, and the runs that it holds completely: all, unless the answer is full."""
        params = [("run_id", run_id) for run_id in ids]
        params += [("metric_key", key), ("max_results", str(POINTS_PER_REQUEST))]
        rows = self._server.get("/metrics/get-history-bulk", params, AJAX, fresh=True).get("metrics", [])
        with understood(self._store):
            by_run: dict[str, list[Any]] = defaultdict(list)
            for row in rows:
                by_run[row["run_id"]].append(row)
            complete: Sequence[str] = ids
            if len(rows) >= POINTS_PER_REQUEST:
                complete = list(by_run)[:-1]
            return [(run_id, _points(by_run[run_id])) for run_id in complete if run_id in by_run], complete

    def _single(self, key: str, run_id: str) -> list[tuple[str, Points]]:
        """One run's points page by page; ``max_results`` always goes along, or releases 3.4 to 3.13 return nothing."""
        pieces: list[tuple[str, Points]] = []
        asked = {"run_id": run_id, "metric_key": key, "max_results": str(POINTS_PER_REQUEST)}
        seen: set[str] = set()
        while True:
            page = self._server.get("/metrics/get-history", asked)
            if rows := page.get("metrics", []):
                with understood(self._store):
                    pieces.append((run_id, _points(rows)))
            token = page.get("next_page_token", "")
            if not token:
                return pieces
            if token in seen:
                reason = f"it repeats a page of {key!r}, so that the history would not be exact"
                raise Refused(f"{self.address} cannot be read: {reason}", 0, "", reason)
            seen.add(token)
            asked["page_token"] = token


def _points(rows: Sequence[Mapping[str, Any]]) -> Points:
    count = len(rows)
    return Points(
        np.fromiter((int(row.get("step", 0)) for row in rows), np.int64, count),
        np.fromiter((int(row.get("timestamp", 0)) for row in rows), np.int64, count),
        np.fromiter((float(row.get("value", 0.0)) for row in rows), np.float64, count),
    )


def _stored(run: Mapping[str, Any]) -> StoredRun:
    info, data = run.get("info", {}), run.get("data", {})
    latest = {
        str(metric["key"]): (int(metric.get("step", 0)), int(metric.get("timestamp", 0)), float(metric["value"]))
        for metric in data.get("metrics", [])
    }
    return StoredRun(
        run_id=str(info.get("run_id") or info.get("run_uuid")),
        experiment_id=str(info.get("experiment_id", "")),
        name=str(info.get("run_name", "")),
        status=str(info.get("status", "")),
        start_ms=int(info["start_time"]) if info.get("start_time") else None,
        end_ms=int(info["end_time"]) if info.get("end_time") else None,
        user=str(info.get("user_id", "")),
        params={str(param["key"]): str(param.get("value", "")) for param in data.get("params", [])},
        tags={str(tag["key"]): str(tag.get("value", "")) for tag in data.get("tags", [])},
        latest=latest,
    )

"""Marks and the audit run, written through MLflow's own client: to a server or, unchanged, to a database."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from pth_tracker.errors import TrackerError, UsageError
from pth_tracker.tracker import AUDIT_RUN_NAME, EditResult, MarkEdit, Publication
from pth_tracker.values import to_json_value
from pth_tracker_mlflow.address import Store
from pth_tracker_mlflow.common import AUDIT_ROLE, ROLE_TAG, TAG_PREFIX

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

FOLDER: Final = "pth"
TABLE: Final = f"{FOLDER}/findings.json"
_LOGGED_ARTIFACTS: Final = "mlflow.loggedArtifacts"
_COUNTED: Final = f"{TAG_PREFIX}count."
_RUNS_PER_PAGE: Final = 5000


def search_ids(client: MlflowClient, store: Store, experiment: str, where: str) -> set[str]:
    """The ids of the runs that MLflow's filter ``where`` selects.

    Raises:
        UsageError: the filter is not one.
    """
    from mlflow.exceptions import MlflowException

    found: set[str] = set()
    token: str | None = None
    while True:
        try:
            page = client.search_runs([experiment], where, max_results=_RUNS_PER_PAGE, page_token=token)
        except MlflowException as error:
            raise UsageError(f"MLflow does not accept --where {where!r}: {store.scrub(error)}") from None
        found |= {run.info.run_id for run in page}
        token = page.token
        if not token:
            return found


def apply(client: MlflowClient, store: Store, edits: Sequence[MarkEdit], threads: int) -> Iterator[EditResult]:
    """One result an edit, in their order; one that is refused does not stop the others."""
    if threads == 1:
        yield from (_apply_one(client, store, edit) for edit in edits)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda edit: _apply_one(client, store, edit), edits)


def _apply_one(client: MlflowClient, store: Store, edit: MarkEdit) -> EditResult:
    from mlflow.entities import RunTag
    from mlflow.exceptions import MlflowException

    run_id = edit.ref.run_id
    try:
        tags = [RunTag(f"{TAG_PREFIX}{name}", value) for name, value in edit.set_values.items()]
        if tags:
            client.log_batch(run_id, tags=tags, synchronous=True)
        for name in sorted(edit.unset_values):
            try:
                client.delete_tag(run_id, f"{TAG_PREFIX}{name}")
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST" or "tag" not in str(error).lower():
                    raise
    except Exception as error:  # any refusal of a store, its driver or its plugins is this run's result
        return EditResult(edit, error=store.scrub(error))
    return EditResult(edit)


def publish(client: MlflowClient, store: Store, publication: Publication, experiment: str) -> str:
    """The id of the experiment's audit run, brought up to date: one more point of the trend, the table replaced.

    Raises:
        TrackerError: the store or the place of its artifacts refuses; what was written by then stays.
    """
    try:
        run = _audit_run(client, experiment)
        _record(client, run, publication)
    except Exception as error:  # stores, drivers and plugins raise anything
        raise TrackerError(
            f"{store.address} does not take the audit run of {publication.project!r}: {store.scrub(error)}"
        ) from error
    try:
        _attach(client, run, publication)
    except Exception as error:  # likewise the artifact stores
        place = store.scrub(run.info.artifact_uri)
        raise TrackerError(
            f"the artifact location of {publication.project!r}, {place}, cannot be written from here: "
            f"{store.scrub(error)}; the marks on the runs are written, the findings table is not"
        ) from error
    return str(run.info.run_id)


def _audit_run(client: MlflowClient, experiment: str) -> Run:
    condition = f"tags.`{ROLE_TAG}` = '{AUDIT_ROLE}'"
    found = client.search_runs([experiment], condition, max_results=1, order_by=["attributes.start_time ASC"])
    run = found[0] if found else client.create_run(experiment, run_name=AUDIT_RUN_NAME, tags={ROLE_TAG: AUDIT_ROLE})
    if run.info.status != "FINISHED":
        client.set_terminated(run.info.run_id, "FINISHED")
    return run


def _record(client: MlflowClient, run: Run, publication: Publication) -> None:
    from mlflow.entities import Metric, RunTag

    run_id = run.info.run_id
    steps = [point.step for point in client.get_metric_history(run_id, f"{_COUNTED}runs")]
    number = max(steps, default=0) + 1
    at = int(publication.audited_at.timestamp() * 1000)
    counts = {"runs": 0, **publication.counts}
    metrics = [Metric(f"{_COUNTED}{name}", float(count), at, number) for name, count in counts.items()]
    facts = {**publication.attributes, "audited_at": publication.audited_at.isoformat()}
    tags = [RunTag(f"{TAG_PREFIX}{name}", value) for name, value in facts.items() if f"{TAG_PREFIX}{name}" != ROLE_TAG]
    client.log_batch(run_id, metrics=metrics, tags=tags, synchronous=True)


def _attach(client: MlflowClient, run: Run, publication: Publication) -> None:
    run_id = run.info.run_id
    rows = [list(row) for row in publication.rows]
    table = to_json_value({"columns": list(publication.columns), "data": rows})
    files = {**publication.files, PurePosixPath(TABLE).name: json.dumps(table, allow_nan=False).encode()}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            file = Path(folder, PurePosixPath(name.replace("\\", "/")).name)
            file.write_bytes(content)
            client.log_artifact(run_id, str(file), FOLDER)
    logged = json.loads(run.data.tags.get(_LOGGED_ARTIFACTS, "[]"))
    entry = {"path": TABLE, "type": "table"}
    if entry not in logged:
        client.set_tag(run_id, _LOGGED_ARTIFACTS, json.dumps([*logged, entry]))

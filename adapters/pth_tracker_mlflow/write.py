"""Marks and the audit run, written through MLflow's own client: to a server or, unchanged, to a database."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
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


def apply(
    change: Callable[[MarkEdit], None], store: Store, edits: Sequence[MarkEdit], threads: int
) -> Iterator[EditResult]:
    """One result an edit, in their order; one that is refused does not stop the others.

    Once a whole tracker has gone away (`TrackerError`), the edits left are given up with its message.
    """
    gone: list[str] = []

    def one(edit: MarkEdit) -> EditResult:
        if gone:
            return EditResult(edit, error=gone[0])
        try:
            change(edit)
        except TrackerError as error:
            gone.append(str(error))
            return EditResult(edit, error=str(error))
        except Exception as error:  # any refusal of a store, its driver or its plugins is this run's result
            return EditResult(edit, error=store.scrub(error))
        return EditResult(edit)

    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(one, edits)


def new_tags(edit: MarkEdit) -> dict[str, str]:
    """The tags that the edit sets, by their full names."""
    return {f"{TAG_PREFIX}{name}": value for name, value in sorted(edit.set_values.items())}


def old_tags(edit: MarkEdit) -> list[str]:
    """The tags that the edit removes, by their full names."""
    return [f"{TAG_PREFIX}{name}" for name in sorted(edit.unset_values)]


def is_no_such_tag(code: str, message: str) -> bool:
    """Whether a refusal says that the tag to delete is not there, which is what was wanted."""
    return code == "RESOURCE_DOES_NOT_EXIST" and message.lower().startswith("no tag")


def change_with_client(client: MlflowClient, edit: MarkEdit) -> None:
    """Carries one edit out; status, end time and all other tags stay as they are."""
    from mlflow.entities import RunTag
    from mlflow.exceptions import MlflowException

    if tags := [RunTag(key, value) for key, value in new_tags(edit).items()]:
        client.log_batch(edit.ref.run_id, tags=tags, synchronous=True)
    for key in old_tags(edit):
        try:
            client.delete_tag(edit.ref.run_id, key)
        except MlflowException as error:
            if not is_no_such_tag(error.error_code, error.message):
                raise


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

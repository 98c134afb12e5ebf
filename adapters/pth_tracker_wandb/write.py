"""Writing to W&B: marks on audited runs, and the project's one audit run.

``Run.update()`` of the SDK sends back everything it read when the run was listed, so that tags, summary values and
configuration written by somebody else in the meantime are lost. Here a run is read again just before, only our own
names are changed, and only the changed attribute is sent. W&B has no compare-and-set: what is left is the moment
between that reading and the writing.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import TrackerError
from pth_tracker.runs import RunRef
from pth_tracker.tracker import AUDIT_RUN_NAME, KEY_PREFIX, TAG_PREFIX, EditResult, MarkEdit, Marks, Publication
from pth_tracker_wandb.listing import PAGE_SIZE, as_mapping, marks_of, pages
from pth_tracker_wandb.session import RequestFailed

if TYPE_CHECKING:
    from pth_tracker_wandb.session import Session

MAX_TAG: Final = 64
"""Characters; the SDK refuses longer tags, the server keeps them and other clients then trip over them."""
CONFIRM_SECONDS: Final = 30
LIVE_STATES: Final = ("running", "preempting", "pending")

MARKS_QUERY: Final = """
query PthTrackerMarks($project: String!, $entity: String!, $cursor: String, $perPage: Int, $filters: JSONString) {
  project(name: $project, entityName: $entity) {
    runs(filters: $filters, after: $cursor, first: $perPage, order: "+created_at") {
      edges { node { name tags summaryMetrics } }
      pageInfo { endCursor hasNextPage }
    }
  }
}
"""
RUN_QUERY: Final = """
query PthTrackerRun($project: String!, $entity: String!, $run: String!) {
  project(name: $project, entityName: $entity) {
    run(name: $run) { id state tags summaryMetrics }
  }
}
"""


def read_marks(session: Session, refs: Sequence[RunRef]) -> dict[RunRef, Marks]:
    """Our marks on those of ``refs`` that W&B has."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for ref in refs:
        wanted[ref.project].append(ref.run_id)
    found: dict[RunRef, Marks] = {}
    for name, ids in wanted.items():
        entity, _, project = name.partition("/")
        for start in range(0, len(ids), PAGE_SIZE):
            filters = {"name": {"$in": ids[start : start + PAGE_SIZE]}}
            for node in pages(session, MARKS_QUERY, entity, project, filters):
                found[RunRef(name, node["name"])] = marks_of(node)
    return found


def apply_edit(session: Session, edit: MarkEdit, write_running: bool) -> EditResult:
    """Carries out one edit: one request to read the run, one to write it, none where nothing changes."""
    foreign = [tag for tag in (*edit.add_tags, *edit.remove_tags) if not tag.startswith(TAG_PREFIX)]
    long = [tag for tag in edit.add_tags if len(tag) > MAX_TAG]
    if foreign or long:
        return EditResult(edit, error=f"the tag {(foreign or long)[0]!r} is not ours or over {MAX_TAG} characters")
    entity, _, project = edit.ref.project.partition("/")
    try:
        where = {"entity": entity, "project": project, "run": edit.ref.run_id}
        run = (session.graphql(RUN_QUERY, where).get("project") or {}).get("run")
        if run is None:
            return EditResult(edit, error="W&B no longer has this run: it was deleted or moved")
        if run.get("state") in LIVE_STATES and not write_running:
            return EditResult(
                edit, skipped=f"it is {run['state']}, and its own process may undo marks (--write-running)"
            )
        _write(session, run, edit)
    except RequestFailed as error:
        return EditResult(edit, error=str(error))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return EditResult(edit, error=f"its summary cannot be read and is left alone ({str(error)[:200]})")
    return EditResult(edit)


def _write(session: Session, run: Mapping[str, Any], edit: MarkEdit) -> None:
    """Sends the tags, the summary or both, whichever the edit changes."""
    tags = list(run.get("tags") or ())
    new_tags = [tag for tag in tags if tag not in edit.remove_tags]
    new_tags += [tag for tag in sorted(edit.add_tags) if tag not in new_tags]
    summary = json.loads(run.get("summaryMetrics") or "{}")
    unset = {KEY_PREFIX + name for name in edit.unset_values}
    new_summary = {key: value for key, value in summary.items() if key not in unset}
    new_summary.update({KEY_PREFIX + name: value for name, value in edit.set_values.items()})
    variables: dict[str, Any] = {"id": run["id"]}
    if new_tags != tags:
        variables["tags"] = new_tags
    if new_summary != summary:
        variables["summaryMetrics"] = json.dumps(new_summary)
    if len(variables) > 1:
        session.graphql(_mutation(variables), variables)


def _mutation(variables: Mapping[str, Any]) -> str:
    """The mutation that names only the attributes to be changed: W&B might take a null for an empty value."""
    types = {"id": "String!", "tags": "[String!]", "summaryMetrics": "JSONString"}
    declared = ", ".join(f"${name}: {types[name]}" for name in variables)
    given = ", ".join(f"{name}: ${name}" for name in variables)
    return f"mutation PthTrackerMark({declared}) {{ upsertBucket(input: {{{given}}}) {{ bucket {{ id }} }} }}"


def publish(session: Session, entity: str, project: str, publication: Publication) -> str:
    """Adds one audit to the project's audit run, which is resumed or made, and returns the run's URL.

    Raises:
        TrackerError: W&B does not take it.
    """
    import wandb

    with tempfile.TemporaryDirectory(prefix="pth-tracker-") as folder:
        settings = wandb.Settings(
            base_url=session.address.base_url,
            api_key=session.api.api_key,
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            init_timeout=session.timeout,
        )
        if "finish_timeout" in wandb.Settings.model_fields:  # new in 0.31; before it, finishing waits without end
            settings.finish_timeout, settings.finish_timeout_raises = 2.0 * session.timeout, True
        try:
            run = wandb.init(
                entity=entity,
                project=project,
                id=AUDIT_RUN_NAME,
                name=AUDIT_RUN_NAME,
                job_type=AUDIT_RUN_NAME,
                resume="allow",
                mode="online",
                reinit="create_new",
                dir=folder,
                settings=settings,
            )
            with run:
                _log(run, publication, Path(folder))
                url = run.url
        except TrackerError:
            raise
        except Exception as error:
            raise session.failure(error) from None
    _confirm(session, {"entity": entity, "project": project, "run": AUDIT_RUN_NAME}, publication)
    return url or f"{entity}/{project}/{AUDIT_RUN_NAME}"


def _confirm(session: Session, where: Mapping[str, str], publication: Publication) -> None:
    """Returns once the audit run shows this audit: the SDK says nothing when uploads fail through all its retries.

    Raises:
        TrackerError: it still does not show it.
    """
    deadline = time.monotonic() + min(CONFIRM_SECONDS, session.timeout)
    pause = 0.1
    while True:
        run = (session.graphql(RUN_QUERY, where).get("project") or {}).get("run") or {}
        if as_mapping(run.get("summaryMetrics")).get("audited_at") == publication.audited_at.isoformat():
            return
        if time.monotonic() > deadline:
            raise TrackerError(
                f"the audit run {where['entity']}/{where['project']}/{AUDIT_RUN_NAME} does not show this audit: W&B "
                "took the run and not its data; audit again"
            )
        time.sleep(pause)
        pause = min(2.0, 2 * pause)


def _log(run: Any, publication: Publication, folder: Path) -> None:
    import wandb

    table = wandb.Table(
        columns=list(publication.columns),
        data=[list(row) for row in publication.rows],
        allow_mixed_types=True,
    )
    row: dict[str, Any] = {**publication.counts, "findings": table}
    attached = wandb.Artifact(f"{AUDIT_RUN_NAME}-report", type="report")
    for name, content in publication.files.items():
        path = folder / Path(name).name
        path.write_bytes(content)
        attached.add_file(str(path), name=path.name)
        if path.suffix == ".html":
            row[path.stem] = wandb.Html(content.decode(), inject=False)
    run.log(row)
    run.summary.update({"audited_at": publication.audited_at.isoformat(), **publication.attributes})
    if publication.files:
        run.log_artifact(attached)

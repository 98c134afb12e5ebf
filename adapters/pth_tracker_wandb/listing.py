"""From W&B's run listing to `SourceRun`: one request for up to a thousand runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import ProjectNotFound, UsageError
from pth_tracker.runs import Marks, RunRef, RunState, SourceRun
from pth_tracker.tracker import AUDIT_RUN_NAME, KEY_PREFIX, TAG_PREFIX, Query
from pth_tracker.values import unwrap_wandb
from pth_tracker_wandb.session import RequestFailed

if TYPE_CHECKING:
    from pth_tracker_wandb.session import Session

PAGE_SIZE: Final = 1000

MARKS_FIELD: Final = "summaryMetrics"
"""What holds our marks beside the tags; large, and asked for only where they are wanted."""
RUNS_QUERY: Final = """
query PthTrackerRuns($project: String!, $entity: String!, $cursor: String, $perPage: Int, $filters: JSONString) {
  project(name: $project, entityName: $entity) {
    runs(filters: $filters, after: $cursor, first: $perPage, order: "+created_at") {
      edges {
        node {
          id name displayName state config group jobType commit createdAt heartbeatAt tags historyLineCount historyKeys
          user { username }
          runInfo { program args }
        }
      }
      pageInfo { endCursor hasNextPage }
    }
  }
}
"""

RUNS_AND_MARKS_QUERY: Final = RUNS_QUERY.replace("historyKeys\n", f"historyKeys {MARKS_FIELD}\n")

STATES: Final = {
    "running": RunState.RUNNING,
    "preempting": RunState.RUNNING,
    "pending": RunState.RUNNING,
    "preempted": RunState.KILLED,
    "finished": RunState.FINISHED,
    "failed": RunState.FAILED,
    "crashed": RunState.CRASHED,
    "killed": RunState.KILLED,
}
"""W&B's states; a pending run will run and a preempting one still does, a preempted one was stopped by the cluster."""


def server_filter(query: Query) -> dict[str, Any]:
    """The filter that W&B is sent: the user's own and the moment since when.

    Raises:
        UsageError: ``where`` is no JSON object.
    """
    parts: list[dict[str, Any]] = []
    if query.where:
        try:
            own = json.loads(query.where)
        except ValueError as error:
            raise UsageError(f"--where is no JSON ({error}); {_EXAMPLE}") from None
        if not isinstance(own, dict):
            raise UsageError(f"--where is {type(own).__name__}, not an object; {_EXAMPLE}")
        parts.append(own)
    if query.since is not None:
        moment = query.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        parts.append({"createdAt": {"$gte": moment}})
    return {"$and": parts} if len(parts) > 1 else parts[0] if parts else {}


_EXAMPLE: Final = """W&B filters are written like '{"state": "finished", "config.seed": {"$in": [1, 2]}}'"""


def pages(session: Session, document: str, entity: str, project: str, filters: Mapping[str, Any]) -> Iterator[Any]:
    """The nodes of a project's runs that pass the filter, page by page.

    Raises:
        ProjectNotFound: W&B shows no such project to this account.
        UsageError: W&B refuses the filter.
    """
    cursor: str | None = None
    while True:
        variables = {
            "entity": entity,
            "project": project,
            "cursor": cursor,
            "perPage": PAGE_SIZE,
            "filters": json.dumps(filters),
        }
        try:
            found = session.graphql(document, variables).get("project")
        except RequestFailed as error:
            if filters and error.status in (0, 400, 422) and not error.unreachable:
                raise UsageError(f"W&B refuses the filter {json.dumps(filters)}: {error}") from None
            raise
        if found is None:
            raise ProjectNotFound(
                f"W&B at {session.address.base_url} has no project {entity}/{project} that this account can see: "
                "check --project (ENTITY/PROJECT)"
            )
        try:
            nodes = [edge["node"] for edge in found["runs"]["edges"] if edge["node"]["name"]]
            page = found["runs"]["pageInfo"]
            more, end = page["hasNextPage"], page["endCursor"]
        except (KeyError, TypeError):
            raise session.not_understood() from None
        yield from nodes
        if not more or end in (None, cursor):
            return
        cursor = end


def source_run(node: Mapping[str, Any], entity: str, project: str, app_url: str) -> SourceRun | None:
    """One run of the listing; None for the runs in which audits are kept."""
    if node.get("jobType") == AUDIT_RUN_NAME:
        return None
    raw = as_mapping(node.get("config"))
    state = STATES.get(str(node.get("state")), RunState.UNKNOWN)
    lines = int(node.get("historyLineCount") or 0)
    keys = as_mapping(node.get("historyKeys"))
    info = node.get("runInfo") or {}
    ended = _moment(node.get("heartbeatAt")) if state is not RunState.RUNNING else None
    args = info.get("args")
    return SourceRun(
        ref=RunRef(f"{entity}/{project}", node["name"]),
        name=node.get("displayName") or node["name"],
        state=state,
        created=_moment(node.get("createdAt")),
        ended=ended,
        config=unwrap_wandb(raw),
        metric_keys=_metric_keys(keys, lines),
        last_step=_last_step(keys),
        revision=_revision(node, raw, keys, state),
        group=node.get("group") or "",
        job_type=node.get("jobType") or "",
        tags=tuple(tag for tag in node.get("tags") or () if not tag.startswith(TAG_PREFIX)),
        user=(node.get("user") or {}).get("username") or "",
        program=info.get("program") or "",
        arguments=None if args is None else tuple(str(arg) for arg in args),
        commit=node.get("commit") or "",
        url=f"{app_url}{entity}/{project}/runs/{node['name']}",
        marks=marks_of(node) if MARKS_FIELD in node else None,
    )


def marks_of(node: Mapping[str, Any]) -> Marks:
    """Our marks on one run, from its tags and its summary."""
    summary = as_mapping(node.get(MARKS_FIELD))
    values = {key[len(KEY_PREFIX) :]: str(value) for key, value in summary.items() if key.startswith(KEY_PREFIX)}
    return Marks(values, frozenset(tag for tag in node.get("tags") or () if tag.startswith(TAG_PREFIX)))


def _revision(node: Mapping[str, Any], config: Mapping[str, Any], keys: Mapping[str, Any], state: RunState) -> str:
    """A digest of what the run has logged, its state and its configuration.

    A run's heartbeat counts only while it runs: whether W&B moves it when somebody edits a tag is not documented,
    and our own marks must not make a run look changed. The summary of logged keys (how often, the last value) tells
    a history that was rewound and logged anew.
    """
    evidence = {
        "state": node.get("state"),
        "lines": node.get("historyLineCount"),
        "keys": keys,
        "config": config,
        "heartbeat": node.get("heartbeatAt") if state is RunState.RUNNING else None,
    }
    return hashlib.sha256(json.dumps(evidence, sort_keys=True).encode()).hexdigest()[:24]


def _metric_keys(keys: Mapping[str, Any], lines: int) -> frozenset[str] | None:
    if not keys:
        return None if lines else frozenset()
    return frozenset(key for key in as_mapping(keys.get("keys")) if not is_internal(key))


def is_internal(key: str) -> bool:
    """Whether a history key is W&B's own (``_step``, ``_runtime``, ``_timestamp``, ``_wandb.…``)."""
    return key.partition(".")[0] in ("_step", "_runtime", "_timestamp", "_wandb")


def _last_step(keys: Mapping[str, Any]) -> int | None:
    step = keys.get("lastStep")
    return int(step) if isinstance(step, int | float) and step >= 0 else None


def as_mapping(raw: object) -> dict[str, Any]:
    """JSON data or JSON text as a mapping; anything else is empty."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw, strict=False)
        except (ValueError, RecursionError):
            return {}
    return raw if isinstance(raw, dict) else {}


def _moment(text: object) -> datetime | None:
    """An ISO moment in UTC, which W&B writes with or without a zone."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)

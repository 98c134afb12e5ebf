"""Answers to the SDK's GraphQL queries and mutations, from a `Store`."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from graphql import ExecutionResult, GraphQLError, build_schema, execute_sync, parse, validate
from graphql.language import DocumentNode

from wandb_server.artifacts import ArtifactMutations, artifact_node
from wandb_server.filters import BadFilter, matches
from wandb_server.store import Store, StoredRun, dump, opaque_id

SCHEMA = build_schema(Path(__file__).with_name("schema.graphql").read_text())
PAGE_LIMIT = 1000
"""Most runs in one page, whatever `first` asks for."""

Node = dict[str, Any]


def page(nodes: Sequence[Any], after: str | None, first: int | None, limit: int = PAGE_LIMIT) -> Node:
    """A Relay connection over `nodes`; a cursor is the number of nodes before it."""
    start = int(after) if after else 0
    size = min(first if first is not None else 50, limit)
    part = nodes[start : start + size]
    edges = [{"node": node, "cursor": str(start + index + 1)} for index, node in enumerate(part)]
    end = start + len(part)
    return {
        "totalCount": len(nodes),
        "edges": edges,
        "pageInfo": {"endCursor": str(end), "hasNextPage": end < len(nodes)},
    }


class Resolvers:
    """The root object of the schema; `base_url` is where files are served."""

    def __init__(self, store: Store, base_url: Callable[[], str], entity: str) -> None:
        self.store = store
        self.base_url = base_url
        self.entity = entity
        self.artifacts = ArtifactMutations(store, base_url)
        self._documents: dict[str, DocumentNode | list[GraphQLError]] = {}

    def execute(self, query: str, variables: Mapping[str, Any]) -> ExecutionResult:
        """The result of one request; a field outside the schema is an error."""
        document = self._documents.get(query)
        if document is None:
            parsed = parse(query)
            document = validate(SCHEMA, parsed) or parsed
            self._documents[query] = document
        if isinstance(document, list):
            return ExecutionResult(data=None, errors=document)
        root = {**self._queries(), **self._mutations(), **self.artifacts.mutations()}
        with self.store.lock:
            return execute_sync(SCHEMA, document, root_value=root, variable_values=dict(variables))

    def _queries(self) -> Node:
        viewer = {
            "id": opaque_id("User", "1"),
            "entity": self.entity,
            "username": "ada",
            "name": "Ada",
            "email": "ada@example.org",
            "flags": "{}",
            "teams": {"edges": [{"node": {"id": opaque_id("Entity", self.entity), "name": self.entity}}]},
        }
        return {
            "viewer": viewer,
            "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None, "features": []},
            "entity": lambda info, name=None: {
                "id": opaque_id("Entity", name or self.entity),
                "name": name,
                "organization": None,
            },
            "models": self.models,
            "model": self.project,
            "project": self.project,
            "artifact": self.artifact,
            "clientIDMapping": self.artifacts.client_id_mapping,
        }

    def _mutations(self) -> Node:
        return {"upsertBucket": self.upsert_bucket, "createRunFiles": self.create_run_files}

    # projects and runs

    def models(self, info: Any, entityName: str | None = None, after: str | None = None, first: int = 50) -> Node:  # noqa: N803
        wanted = entityName or self.entity
        nodes = [self.project(info, project, entity) for entity, project in self.store.projects if entity == wanted]
        return page(nodes, after, first)

    def project(self, info: Any, name: str | None = None, entityName: str | None = None) -> Node | None:  # noqa: N803
        entity, project = entityName or self.entity, name or "uncategorized"
        runs = self.store.projects.get((entity, project))
        if runs is None:
            return None
        return {
            **self._project_facts(entity, project),
            "runCount": lambda info, filters=None: len(self._select(runs, filters)),
            "runs": lambda info, filters=None, after=None, first=50, order=None: page(
                [self.run_node(run) for run in self._select(runs, filters, order)], after, first
            ),
            "artifact": lambda info, name: self._artifact_by_name(project, name),
            "artifactCollection": lambda info, name: self.artifacts.collection(project, name),
            "run": lambda info, name: self.run_node(runs[name]) if name in runs else None,
            "bucket": lambda info, name, missingOk=False: self.run_node(runs[name]) if name in runs else None,
        }

    @staticmethod
    def _project_facts(entity: str, project: str) -> Node:
        return {
            "id": opaque_id("Project", "v1", project, entity),
            "internalId": opaque_id("ProjectInternalId", "7"),
            "name": project,
            "entityName": entity,
            "entity": {"id": opaque_id("Entity", entity), "name": entity},
            "createdAt": "2026-01-01T00:00:00Z",
            "isBenchmark": False,
            "readOnly": False,
        }

    @staticmethod
    def _select(runs: Mapping[str, StoredRun], filters: str | None, order: str | None = None) -> list[StoredRun]:
        query = json.loads(filters) if filters else {}
        try:
            found = [run for run in runs.values() if matches(run, query)]
        except BadFilter as error:
            raise GraphQLError(str(error)) from error
        order = order or "+created_at"
        if order.lstrip("+-") not in ("created_at", "createdAt"):
            raise GraphQLError(f"unknown order {order}")
        return sorted(found, key=lambda run: run.created, reverse=order.startswith("-"))

    def run_node(self, run: StoredRun) -> Node:
        return {
            "id": run.storage_id,
            "name": run.name,
            "displayName": run.display_name,
            "projectId": 7,
            "project": self._project_facts(run.entity, run.project),
            "sweepName": None,
            "state": run.state,
            "stopped": False,
            "config": lambda info: json.dumps(run.config),
            "wandbConfig": lambda info, keys=(): json.dumps(
                {key: run.config.get("_wandb", {}).get("value", {}).get(key) for key in keys}
            ),
            "group": run.group,
            "jobType": run.job_type,
            "commit": run.commit,
            "readOnly": False,
            "createdAt": run.created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "heartbeatAt": run.heartbeat.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "description": run.description,
            "notes": run.notes,
            "tags": list(run.tags),
            "user": {"id": opaque_id("User", run.user), "name": run.user.title(), "username": run.user},
            "runInfo": None if run.args is None and run.program is None else {"program": run.program, "args": run.args},
            "summaryMetrics": lambda info: run.raw_summary or dump(run.summary),
            "systemMetrics": "{}",
            "historyLineCount": len(run.rows),
            "eventsLineCount": run.events,
            "logLineCount": run.log_lines,
            "historyTail": lambda info: json.dumps([dump(row) for row in run.rows[-1:]]),
            "eventsTail": "[]",
            "historyKeys": lambda info: run.history_keys(),
            "history": lambda info, minStep=0, maxStep=None, samples=500: self._history(run, minStep, maxStep, samples),
            "sampledHistory": lambda info, specs: [self._sampled(run, json.loads(spec)) for spec in specs],
            "parquetHistory": lambda info, liveKeys: self._parquet(run, liveKeys),
            "fileCount": len(run.files),
            "files": lambda info, names=(), after=None, first=50, pattern=None: page(
                [self._file_node(run, name) for name in sorted(run.files) if self._wanted(name, names, pattern)],
                after,
                first,
            ),
            "outputArtifacts": lambda info, after=None, first=50: page(
                [artifact_node(item, self.base_url()) for item in self.store.artifacts if item.run is run], after, first
            ),
        }

    # history

    @staticmethod
    def _history(run: StoredRun, low: int, high: int | None, samples: int) -> list[str]:
        if run.raw_lines:
            return run.raw_lines
        rows = [row for row in run.live_rows if low <= row["_step"] and (high is None or row["_step"] < high)]
        samples = min(samples, run.history_cap or samples)
        if len(rows) > samples:
            stride = len(rows) / samples
            rows = [rows[int(index * stride)] for index in range(samples)]
        return [dump(row) for row in rows]

    @staticmethod
    def _sampled(run: StoredRun, spec: Mapping[str, Any]) -> list[Node]:
        keys = spec["keys"]
        low, high = spec.get("minStep", 0), spec.get("maxStep", run.last_step())
        rows = [row for row in run.rows if low <= row["_step"] <= high and all(key in row for key in keys)]
        stride = max(1, len(rows) // spec.get("samples", 500))
        return [{key: row[key] for key in keys} for row in rows[::stride]]

    def _parquet(self, run: StoredRun, keys: Sequence[str]) -> Node:
        urls = [
            f"{self.base_url()}/export/{run.entity}/{run.project}/{run.name}/{index}.parquet?signature=very-secret"
            for index in range(len(run.exports))
        ]
        live = [{key: float(row[key]) for key in keys} for row in run.live_rows if all(key in row for key in keys)]
        return {"parquetUrls": urls, "liveData": [] if run.hide_live_steps else live}

    # files

    @staticmethod
    def _wanted(name: str, names: Sequence[str], pattern: str | None) -> bool:
        if names:
            return name in names
        return pattern is None or fnmatch.fnmatchcase(name, pattern.replace("%", "*").replace("_", "?"))

    def _file_node(self, run: StoredRun, name: str) -> Node:
        content = run.files.get(name, b"")
        url = f"{self.base_url()}/file/{run.entity}/{run.project}/{run.name}/{name}"
        return {
            "id": opaque_id("File", run.name, name),
            "name": name,
            "url": lambda info, upload=False: url,
            "directUrl": url,
            "uploadUrl": url,
            "sizeBytes": len(content),
            "mimetype": "application/octet-stream",
            "updatedAt": run.heartbeat.isoformat(),
            "md5": hashlib.md5(content).hexdigest(),
        }

    def create_run_files(self, info: Any, input: Mapping[str, Any]) -> Node:
        run = self.store.find(input.get("entityName") or self.entity, input["projectName"], input["runName"])
        if run is None:
            raise GraphQLError("run not found")
        return {
            "runID": run.storage_id,
            "uploadHeaders": [],
            "files": [self._file_node(run, name) for name in input["files"]],
        }

    def _artifact_by_name(self, project: str, name: str) -> Node | None:
        bare = name.partition(":")[0]
        found = [item for item in self.store.artifacts if item.name == bare and item.run.project == project]
        return artifact_node(found[-1], self.base_url()) if found else None

    def artifact(self, info: Any, id: str) -> Node | None:
        found = self.store.artifact(id)
        return artifact_node(found, self.base_url()) if found else None

    # writing

    def upsert_bucket(self, info: Any, input: Mapping[str, Any]) -> Node:
        """Creates or updates a run; what the input leaves out or gives as null stays as it is."""
        inserted = False
        if input.get("id"):
            run = self.store.by_id(input["id"])
            if run is None:
                raise GraphQLError("run not found")
        else:
            entity, project = input.get("entityName") or self.entity, input.get("modelName") or "uncategorized"
            existing = self.store.find(entity, project, input["name"])
            inserted = existing is None
            run = existing or self.store.create(entity, project, input["name"])
        attributes = {
            "displayName": "display_name",
            "notes": "notes",
            "description": "description",
            "groupName": "group",
            "jobType": "job_type",
            "commit": "commit",
            "host": "host",
            "state": "state",
            "jobProgram": "program",
        }
        for given, kept in attributes.items():
            if input.get(given) is not None:
                setattr(run, kept, input[given])
        if input.get("tags") is not None:
            run.tags = list(input["tags"])
        if input.get("config") is not None:
            run.config.update(json.loads(input["config"]))
        if input.get("summaryMetrics") is not None:
            run.summary = json.loads(input["summaryMetrics"])
        return {"bucket": self.run_node(run), "inserted": inserted}

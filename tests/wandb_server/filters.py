"""The MongoDB-like filters of W&B's run listing, as far as its documentation names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from wandb_server.store import StoredRun

FIELDS: dict[str, Callable[[StoredRun], Any]] = {
    "name": lambda run: run.name,
    "displayName": lambda run: run.display_name,
    "display_name": lambda run: run.display_name,
    "state": lambda run: run.state,
    "group": lambda run: run.group,
    "jobType": lambda run: run.job_type,
    "host": lambda run: run.host,
    "username": lambda run: run.user,
    "tags": lambda run: run.tags,
    "createdAt": lambda run: run.created,
    "created_at": lambda run: run.created,
}


class BadFilter(ValueError):
    """A filter that the server refuses."""


def matches(run: StoredRun, query: Mapping[str, Any]) -> bool:
    return all(_clause(run, key, wanted) for key, wanted in query.items())


def _clause(run: StoredRun, key: str, wanted: Any) -> bool:
    if key == "$and":
        return all(matches(run, part) for part in wanted)
    if key == "$or":
        return any(matches(run, part) for part in wanted)
    if key == "$nor":
        return not any(matches(run, part) for part in wanted)
    if key.startswith("$"):
        raise BadFilter(f"unknown operator {key}")
    value = _lookup(run, key)
    if not isinstance(wanted, Mapping):
        wanted = {"$eq": wanted}
    return all(_operator(value, operator, operand) for operator, operand in wanted.items())


def _lookup(run: StoredRun, key: str) -> Any:
    if key in FIELDS:
        return FIELDS[key](run)
    root, _, path = key.partition(".")
    if root == "config":
        name = path.removesuffix(".value")
        entry = run.config.get(name)
        return entry.get("value") if isinstance(entry, dict) else None
    if root == "summary_metrics":
        return run.summary.get(path)
    raise BadFilter(f"unknown field {key}")


def _operator(value: Any, operator: str, operand: Any) -> bool:
    if isinstance(value, datetime) and isinstance(operand, str):
        operand = datetime.fromisoformat(operand)
    if operator == "$in":
        return any(item in operand for item in value) if isinstance(value, list) else bool(value in operand)
    if operator == "$nin":
        return not _operator(value, "$in", operand)
    if operator == "$eq":
        return operand in value if isinstance(value, list) else bool(value == operand)
    if operator == "$ne":
        return not _operator(value, "$eq", operand)
    if operator == "$exists":
        return (value is not None) == bool(operand)
    if operator == "$regex":
        return isinstance(value, str) and re.search(operand, value) is not None
    compare: dict[str, Callable[[Any, Any], bool]] = {
        "$gt": lambda a, b: a > b,
        "$gte": lambda a, b: a >= b,
        "$lt": lambda a, b: a < b,
        "$lte": lambda a, b: a <= b,
    }
    if operator not in compare:
        raise BadFilter(f"unknown operator {operator}")
    return value is not None and bool(compare[operator](value, operand))

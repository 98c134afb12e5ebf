from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from example_audits import AUDITS, full_audit, hostile_audit
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit
from pth_tracker.render.json_v1 import SCHEMA, to_dict, to_json
from synthetic import (
    as_mlflow,
    audit_of,
    comparison,
    cut,
    idle,
    unreadable,
    with_metrics,
    without_config,
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((files("pth_tracker.render") / "schema" / "audit_v1.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("name", AUDITS)
def test_every_audit_is_strict_json_of_the_committed_schema(
    name: str, validator: jsonschema.Draft202012Validator
) -> None:
    text = to_json(AUDITS[name](), ExitCode.CHECK_FAILED)
    assert text.isascii() and text.endswith("}\n")
    validator.validate(json.loads(text, parse_constant=refuse))


ODD = [math.nan, math.inf] * 50
SYNTHETIC: dict[str, Callable[[], Audit]] = {
    "clean": lambda: audit_of(comparison()),
    "idle clip": lambda: audit_of(with_metrics(comparison(), "grpo-*", idle())),
    "unreadable": lambda: audit_of([unreadable(run) if run.name.endswith("43") else run for run in comparison()]),
    "short": lambda: audit_of([cut(run, 5) for run in comparison()]),
    "no configuration": lambda: audit_of(without_config(comparison())),
    "from MLflow": lambda: audit_of([as_mlflow(run) for run in comparison()]),
    "not finite": lambda: audit_of(
        with_metrics(comparison(), "tis-*", {"critic/score/mean": [math.nan, math.inf] * 50})
    ),
    "one run": lambda: audit_of(comparison()[:1]),
}


@pytest.mark.parametrize("name", SYNTHETIC)
def test_audits_of_runs_are_strict_json_of_the_committed_schema(
    name: str, validator: jsonschema.Draft202012Validator
) -> None:
    audit = SYNTHETIC[name]()
    data = json.loads(to_json(audit, ExitCode.OK), parse_constant=refuse)
    validator.validate(data)
    assert len(data["runs"]) == len(audit.runs) and len(data["coverage"]) == len(audit.coverage) > 20


def every_object(schema: Any) -> list[dict[str, Any]]:
    found = []
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            found.append(schema)
        schema = list(schema.values())
    if isinstance(schema, list):
        found += [one for item in schema for one in every_object(item)]
    return found


def test_the_schema_allows_nothing_unnamed(validator: jsonschema.Draft202012Validator) -> None:
    objects = every_object(validator.schema)
    assert len(objects) >= 11
    for one in objects:
        assert one["additionalProperties"] is False and sorted(one["required"]) == sorted(one["properties"])


def test_runs_are_named_by_their_labels_and_numbers_survive() -> None:
    data = to_dict(full_audit(), ExitCode.CHECK_FAILED)
    assert data["schema"] == SCHEMA and data["exit"] == 1 and data["audited_at"] == "2026-03-01T04:30:00+00:00"
    assert data["counts"] == {"fail": 2, "warn": 1, "info": 1, "not_judged": 3, "runs": 7, "errors": 1}
    lost = data["findings"][0]
    assert lost["blames"] == ["tis-s42", "tis-s43", "tis-s44"] and lost["runs"][3:] == [
        "grpo-s42",
        "grpo-s43",
        "grpo-s44",
    ]
    assert lost["evidence"] == {"key": "data.seed", "effective": {"tis": ["default order"]}, "share": "NaN"}
    assert data["design"]["arms"]["grpo"] == ["grpo-s42", "grpo-s43", "grpo-s44"]
    assert data["design"]["inferred"] == ["arms", "baseline", "metric", "vary"]
    assert {run["label"] for run in data["runs"] if not run["counted"]} == {"tis-smoke"}
    assert data["write_back"]["planned"][0]["set"] == {"verdict": "fail", "rules": "idle-clip"}
    assert to_dict(full_audit())["exit"] is None


def test_no_secret_leaves() -> None:
    text = to_json(hostile_audit()) + to_json(full_audit())
    assert "sk-1234" not in text and "hunter2" not in text
    evidence = to_dict(hostile_audit())["findings"][1]["evidence"]
    assert evidence == {"key": "trainer.api_key", "left": "(redacted)", "count": 2}


def test_text_that_is_no_unicode_becomes_some() -> None:
    json.loads(to_json(hostile_audit())).__repr__().encode("utf-8")


def test_what_is_new_is_told_by_labels_and_absent_outside_of_nightly_audits() -> None:
    news = to_dict(full_audit())["since_last"]
    assert news["audited_at"] == "2026-02-28T04:30:00+00:00"
    assert [(one["rule"], one["tag"], one["runs"]) for one in news["new"]] == [
        ("lost-seed", "Lost Seed", ["tis-s42", "tis-s43", "tis-s44"])
    ]
    assert {key: [one["rule"] for one in news[key]] for key in ("still_open", "resolved", "unseen", "left")} == {
        "still_open": ["sampler-mismatch"],
        "resolved": ["stuck-batch"],
        "unseen": ["idle-clip"],
        "left": ["lr-differs"],
    }
    assert to_dict(AUDITS["passed"]())["since_last"] is None

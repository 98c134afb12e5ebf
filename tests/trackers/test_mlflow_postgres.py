"""The demo's store, copied to PostgreSQL table by table: the same audit, and the same marks written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from mlflow.tracking import MlflowClient

from pth_tracker import engine
from pth_tracker.render.json_v1 import to_json
from pth_tracker.tracker import Address, open_address
from pth_tracker.writeback import write_back
from pth_tracker_mlflow.address import parse

PROJECT = "rl-stale-demo"
DATABASE = "copied"


def copy_tables(source: sqlalchemy.Engine, target: sqlalchemy.Engine) -> dict[str, int]:
    """Copies the rows of every table, in the order of their foreign keys; yields the number of each table's rows."""
    there = sqlalchemy.MetaData()
    there.reflect(target)
    copied = {}
    with source.connect() as reading, target.begin() as writing:
        for table in reversed(there.sorted_tables):
            writing.execute(table.delete())
        for table in there.sorted_tables:
            # Read by the target's types: a flag is a number in SQLite and a boolean in PostgreSQL.
            rows = [dict(row._mapping) for row in reading.execute(sqlalchemy.select(table))]
            copied[table.name] = len(rows)
            if rows:
                writing.execute(table.insert(), rows)
    return copied


@pytest.fixture(scope="module")
def copied(demo_template: Path, postgres_url: str) -> Iterator[str]:
    """The address of a PostgreSQL database that holds what the demo's store holds."""
    server = sqlalchemy.create_engine(parse(postgres_url).uri, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {DATABASE}"))
    server.dispose()
    address = parse(postgres_url).uri.rpartition("/")[0] + f"/{DATABASE}"
    MlflowClient(address).search_experiments()  # MLflow makes its tables
    source, target = sqlalchemy.create_engine(f"sqlite:///{demo_template}"), sqlalchemy.create_engine(address)
    rows = copy_tables(source, target)
    assert rows["runs"] >= 10 and rows["metrics"] > 1000 and rows["params"] > 100
    source.dispose()
    target.dispose()
    yield address


def audited(location: str) -> dict[str, Any]:
    """The audit as JSON without what names the place and the time, its edits included, after they were made."""
    tracker = open_address(Address("mlflow", (location,)))
    try:
        audit = engine.audit(tracker, engine.Options(project=PROJECT))
        audit.write_back = write_back(tracker, audit, dry_run=False)
        assert audit.write_back.applied and not audit.write_back.errors
        again = engine.audit(tracker, engine.Options(project=PROJECT))
        assert not write_back(tracker, again, dry_run=True).planned
    finally:
        tracker.close()
    told: dict[str, Any] = json.loads(to_json(audit))
    for name in ("tracker", "audited_at", "subject"):
        told.pop(name, None)
    for run in told["runs"]:
        run.pop("url")
    told["write_back"].pop("published")  # the audit run is each store's own
    for edit in told["write_back"]["planned"]:
        edit["set"].pop("audited_at")
    return told


def test_the_same_audit_and_the_same_edits(demo_store: Path, copied: str) -> None:
    expected = audited(f"sqlite:///{demo_store}")
    assert {one["rule"] for one in expected["findings"] if one["level"] == "fail"} >= {"idle-clip", "lost-seed"}
    assert len(expected["write_back"]["planned"]) == len(expected["runs"])
    assert audited(copied) == expected

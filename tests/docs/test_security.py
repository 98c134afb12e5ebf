"""The least privileges that the page on security names are enough, and no more than it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from pth_tracker_mlflow.address import parse

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def as_auditor(postgres_url: str) -> Iterator[str]:
    """The address of a store in PostgreSQL for the role that the page makes, its password included."""
    admin = parse(postgres_url).uri
    address = admin.rpartition("/")[0] + "/mlflow"
    server = sqlalchemy.create_engine(admin, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql("CREATE DATABASE mlflow")
    client = MlflowClient(address)
    experiment = client.create_experiment("rl-stale")
    for seed in (1, 2):
        run = client.create_run(experiment, run_name=f"grpo-seed{seed}").info.run_id
        metrics = [Metric("reward", 0.1 * step, 0, step) for step in range(30)]
        client.log_batch(run, metrics, [Param("seed", str(seed))])
        client.set_terminated(run)
    block = re.search(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    store = sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT")
    with store.connect() as connection:
        for statement in block[1].split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql("ALTER ROLE pth_audit PASSWORD 'audit-word'")
    store.dispose()
    yield re.sub(r"//[^@]*@", "//pth_audit:audit-word@", postgres_url.rpartition("/")[0] + "/mlflow")
    server.dispose()


@pytest.mark.slow
def test_the_role_for_reading_audits_and_cannot_write(as_auditor: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["audit", "--project", "rl-stale", "--tracker", as_auditor]
    assert main([*command, "--no-write"]) == ExitCode.OK
    report = capsys.readouterr()
    assert "2 runs of project rl-stale" in " ".join(report.out.split())
    assert "audit-word" not in report.out + report.err
    assert main(command) == ExitCode.TRACKER
    refused = capsys.readouterr()
    assert "permission denied" in refused.out
    assert "audit-word" not in refused.out + refused.err

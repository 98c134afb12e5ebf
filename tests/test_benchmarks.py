"""The benchmarks run on small sizes, and their table tells what falls short."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "table.py"


def told(folder: Path, *names: str) -> list[str]:
    """The rows of the named benchmarks, at small sizes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    command = [sys.executable, str(TABLE), "--quick", *names]
    done = subprocess.run(command, env=plain, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    head, *rows = done.stdout.splitlines()
    assert head.startswith("what "), head
    return rows


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("table", TABLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "table", module)
    spec.loader.exec_module(module)
    return module


def test_requests_to_wandb_are_within_the_budget(tmp_path: Path) -> None:
    rows = told(tmp_path, "wandb")
    found = re.findall(r"^W&B, ([a-z ]+): ([a-z ]+?) +12 runs +(\d+)\.00 requests", "\n".join(rows), re.MULTILINE)
    requests = {(kind, stage): int(number) for kind, stage, number in found}
    assert len(requests) == 12
    assert requests["one file", "histories"] == 12 * 2, "the addresses and the one file"
    assert requests["live rows", "histories"] == 12 * 4, "the addresses, two files, and the live rows"
    for kind in ("one file", "live rows"):
        assert requests[kind, "opening"] + requests[kind, "listing"] == 3, "two at the start, one for up to 1,000 runs"
        assert requests[kind, "marks read"] == 1
        assert requests[kind, "marks written"] == 12 * 2, "read again, then written"
    assert [row[:27].strip() for row in rows[12:]] == ["W&B histories, server", "W&B history, offline folder"]


def test_the_bootstrap_agrees_with_a_plain_call(tmp_path: Path) -> None:
    apart = re.findall(r"bounds apart by ([\d.]+)", "\n".join(told(tmp_path, "bootstrap")))
    assert len(apart) == 2
    assert all(float(one) < 0.3 for one in apart), "of a standard error: BCa against percentiles"


@pytest.mark.slow
def test_every_other_benchmark_runs(tmp_path: Path) -> None:
    names = ("cold_start", "verl", "tensorboard", "mlflow", "compare", "growth")
    rows = told(tmp_path, *names)
    subjects = Counter(re.split(r"[ ,]", row)[0] for row in rows)
    assert subjects == {"pth-tracker": 2, "verl": 10, "TensorBoard": 1, "MLflow": 2, "compare": 2, "audit": 12}
    sizes = re.findall(
        r"^audit, growing in (runs|steps) +(\d+) runs x 6 metrics x (\d+) steps ", "\n".join(rows), re.MULTILINE
    )
    assert sizes == [("runs", "5", "60"), ("runs", "20", "60"), ("steps", "5", "100"), ("steps", "5", "1000")]


def test_an_unknown_benchmark_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TABLE), "speed"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no benchmark speed: choose among cold_start, ")


def test_what_falls_short_is_told(table: ModuleType) -> None:
    row = table.Row
    assert row("a", "", 2.0, "s", "b", 8.0, least=4).ratio == 4.0
    assert not row("a", "", 2.0, "s", "b", 8.0, least=4).missed
    assert row("a", "", 2.0, "s", "b", 7.9, least=4).missed
    assert not row("a", "", 2.0, "s", "b", 1.0).missed, "nothing is asked for"
    assert row("a", "", 301.0, "MB", most=300).missed and not row("a", "", 300.0, "MB", most=300).missed
    told = table.line(row("a", "", 301.0, "MB", most=300, note="of all processes"))
    assert told.endswith("  <= 300 MB, MISSED, of all processes")

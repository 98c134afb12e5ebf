"""The benchmarks of growth and of the bootstrap run on small sizes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def told(name: str, folder: Path) -> str:
    command = [sys.executable, str(BENCHMARKS / name), "--quick"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_growth_is_measured_in_runs_and_steps(tmp_path: Path) -> None:
    lines = re.findall(r"^ +(runs|steps) +(\d+) +(\d+) +[\d.]+ ", told("bench_growth.py", tmp_path), re.MULTILINE)
    assert lines == [("runs", "5", "60"), ("runs", "20", "60"), ("steps", "2", "100"), ("steps", "2", "1000")]


def test_the_bootstrap_agrees_with_a_plain_call(tmp_path: Path) -> None:
    apart = re.findall(r"^ +\d+ +\d+ .* ([\d.]+)$", told("bench_bootstrap.py", tmp_path), re.MULTILINE)
    assert len(apart) == 2
    assert all(float(one) < 0.3 for one in apart), "of a standard error: BCa against percentiles"

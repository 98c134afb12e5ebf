"""The benchmark of W&B on a few small runs: it runs, and requests stay within the budget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_wandb.py"


def test_requests_per_run_are_within_the_budget(tmp_path: Path) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick"], env=plain, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    stages = re.findall(r"^([a-z ]+?) +(\d+) +(\d+) +[\d.]+  ", done.stdout, re.MULTILINE)
    one_file, live_rows = (
        {stage: int(requests) / int(runs) for stage, runs, requests in stages[start : start + 6]} for start in (0, 6)
    )
    assert len(stages) == 12
    assert one_file["histories"] == 2, "the addresses and the one file"
    assert live_rows["histories"] == 4, "the addresses, two files, and the live rows"
    for found in (one_file, live_rows):
        assert (found["opening"] + found["listing"]) * 12 == 3, "two at the start and one for up to 1,000 runs"
        assert found["marks read"] * 12 == 1
        assert found["marks written"] == 2, "read again, then written"
    assert re.search(r"^server against scan_history\(\) +2000 ", done.stdout, re.MULTILINE)
    assert re.search(r"^folder against wandb leet +1000 ", done.stdout, re.MULTILINE)

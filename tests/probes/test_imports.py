"""pth_tracker.probes costs a training process NumPy and nothing else."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {
    "pandas",
    "scipy",
    "typer",
    "yaml",
    "pydantic",
    "torch",
    "mlflow",
    "wandb",
    "statsmodels",
    "matplotlib",
    "rich",
}
LOOP = """
import sys
import pth_tracker as pth
from pth_tracker import probes
ledger = probes.BatchLedger()
ledger.record(0, [1, 2, 3], age=1)
report = probes.ratio_report([-1.0, -2.0], [-1.0, -2.5], logp_old=[-1.0, -2.0])
report.metrics(), ledger.metrics(), ledger.report(), pth.check_batch_ids("ab"), pth.scan_clip_vs_kl({0: 0.0}, {0: 1.0})
third = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*sorted(third))
"""


def test_a_training_loop_imports_numpy_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & HEAVY
    at_start = {"editables", "sitecustomize", "usercustomize"}  # what an installation loads before any of this
    assert {name for name in loaded if not name.startswith("_")} - at_start == {"numpy", "pth_tracker"}

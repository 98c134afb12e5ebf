"""Audits reinforcement-learning comparisons where they are kept: in an experiment tracker.

The public names are loaded when they are first used, so that importing the package costs nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

_HOME: Final = {
    "Audit": "model",
    "BatchLedger": "probes",
    "Design": "design.schema",
    "Finding": "model",
    "HarnessCheckError": "model",
    "History": "runs",
    "IDLE_CLIP": "model",
    "LOST_SEED": "model",
    "Level": "model",
    "Options": "engine",
    "ROGUE_NORMALISER": "model",
    "Report": "model",
    "Run": "runs",
    "RunSet": "runs",
    "STUCK_BATCH": "model",
    "audit": "engine",
    "batch_fingerprint": "probes",
    "check_arms": "configurations",
    "check_batch_ids": "series",
    "check_data_orders": "configurations",
    "check_loss": "losses.compare",
    "data_order_fingerprint": "fingerprints",
    "find_tracker": "tracker",
    "flatten": "configurations",
    "identify_loss": "losses.identify",
    "load_config": "configurations",
    "load_design": "design.load",
    "paired_differences": "results",
    "random_batch": "losses.inputs",
    "ratio_report": "probes",
    "read_results_csv": "results",
    "read_runs": "reading",
    "scan_clip_vs_kl": "series",
}
"""Public name to the module that defines it."""

__all__ = [
    "Audit",
    "BatchLedger",
    "Design",
    "Finding",
    "HarnessCheckError",
    "History",
    "IDLE_CLIP",
    "LOST_SEED",
    "Level",
    "Options",
    "ROGUE_NORMALISER",
    "Report",
    "Run",
    "RunSet",
    "STUCK_BATCH",
    "audit",
    "batch_fingerprint",
    "check_arms",
    "check_batch_ids",
    "check_data_orders",
    "check_loss",
    "data_order_fingerprint",
    "find_tracker",
    "flatten",
    "identify_loss",
    "load_config",
    "load_design",
    "paired_differences",
    "random_batch",
    "ratio_report",
    "read_results_csv",
    "read_runs",
    "scan_clip_vs_kl",
]

if TYPE_CHECKING:
    from pth_tracker.configurations import check_arms, check_data_orders, flatten, load_config
    from pth_tracker.design.load import load_design
    from pth_tracker.design.schema import Design
    from pth_tracker.engine import Options, audit
    from pth_tracker.fingerprints import data_order_fingerprint
    from pth_tracker.losses.compare import check_loss
    from pth_tracker.losses.identify import identify_loss
    from pth_tracker.losses.inputs import random_batch
    from pth_tracker.model import (
        IDLE_CLIP,
        LOST_SEED,
        ROGUE_NORMALISER,
        STUCK_BATCH,
        Audit,
        Finding,
        HarnessCheckError,
        Level,
        Report,
    )
    from pth_tracker.probes import BatchLedger, batch_fingerprint, ratio_report
    from pth_tracker.reading import read_runs
    from pth_tracker.results import paired_differences, read_results_csv
    from pth_tracker.runs import History, Run, RunSet
    from pth_tracker.series import check_batch_ids, scan_clip_vs_kl
    from pth_tracker.tracker import find_tracker


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

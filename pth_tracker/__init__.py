"""Audits reinforcement-learning comparisons where they are kept: in an experiment tracker.

The public names are loaded when they are first used, so that importing the package costs nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

_HOME: Final = {
    "Audit": "model",
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
    "find_tracker": "tracker",
    "load_design": "design.load",
}
"""Public name to the module that defines it."""

__all__ = [
    "Audit",
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
    "find_tracker",
    "load_design",
]

if TYPE_CHECKING:
    from pth_tracker.design.load import load_design
    from pth_tracker.design.schema import Design
    from pth_tracker.engine import Options, audit
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
    from pth_tracker.runs import History, Run, RunSet
    from pth_tracker.tracker import find_tracker


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pth-tracker")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

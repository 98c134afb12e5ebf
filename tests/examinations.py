"""Examinations as something that can be compared, whatever arrays they hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from pth_tracker.examine import Examination
from pth_tracker.runs import RunError


def plain(value: Any) -> Any:
    """A dataclass as something that can be compared, arrays included."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return repr(value) if isinstance(value, float) else value


def by_run(results: list[Examination | RunError]) -> dict[str, Any]:
    return {one.ref.run_id if isinstance(one, RunError) else one.run_key: plain(one) for one in results}

"""The MLflow SDK, imported on first use, quiet and without telemetry; and what its installation says of schemas."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import AdapterUnavailable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

REMEDY: Final = "pip install 'mlflow>=3.5,<4,!=3.18.0'"
_QUIET: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_REVISION: Final = re.compile(r"^(down_revision|revision)\s*(?::[^=]+)?=\s*(.+)$", re.MULTILINE)
_QUOTED: Final = re.compile(r"[\"']([^\"']+)[\"']")


@cache
def _import() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow.tracking as tracking
    except Exception as error:  # a broken installation raises anything
        cause = " ".join(str(error).split())[:200]
        raise AdapterUnavailable(f"MLflow cannot be imported ({type(error).__name__}: {cause}): {REMEDY}") from error
    for name in ("mlflow", "alembic"):
        # Whatever a store refuses is told in one sentence; MLflow logs it too, with a traceback and all values.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return tracking


def load() -> None:
    """Imports MLflow with its telemetry, messages and progress bars off.

    Raises:
        AdapterUnavailable: it is missing or broken.
    """
    _import()


def client(uri: str) -> MlflowClient:
    """A client of the store at ``uri``, which for a database must have the installed schema: building it migrates."""
    made: MlflowClient = _import().MlflowClient(tracking_uri=uri)
    return made


@cache
def schema_revisions() -> tuple[frozenset[str], frozenset[str]]:
    """The head revisions of the installed MLflow's database schema, and all its revisions; empty without MLflow.

    The migration files are read as text: loading them through Alembic would import all of MLflow.
    """
    try:
        spec = importlib.util.find_spec("mlflow")
    except (ImportError, ValueError):
        spec = None
    known: set[str] = set()
    replaced: set[str] = set()
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(folder, "store", "db_migrations", "versions").glob("*.py"):
            for name, value in _REVISION.findall(file.read_text(encoding="utf-8", errors="replace")):
                (known if name == "revision" else replaced).update(_QUOTED.findall(value))
    return frozenset(known - replaced), frozenset(known)

"""The MLflow adapter's manifest: which locations it reads and how they are opened; it imports no SDK.

Two ways in give the same result. A database (``sqlite:///...``, ``postgresql://...``) is read with plain SQL, which
needs no MLflow and never changes it; a server (``http://...``) is read over REST. Marks go through MLflow's own client
in both cases.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pth_tracker.errors import UsageError
from pth_tracker.tracker import Candidate, without_credentials

if TYPE_CHECKING:
    from pth_tracker.tracker import Tracker

SUMMARY = "MLflow servers (http://...) and databases (sqlite:///..., postgresql://...)"

SQL_SCHEMES: Final = ("sqlite", "postgresql", "postgres", "mysql", "mssql")
_FOREIGN_HOSTS: Final = ("wandb", "coreweave")
_SQLITE_MAGIC: Final = b"SQLite format 3\0"


def kind_of(location: str) -> str:
    """``"sql"``, ``"http"`` or ``""``: what sort of MLflow address the text looks like."""
    scheme, separator, _ = location.partition("://")
    if not separator:
        return ""
    base = scheme.lower().partition("+")[0]
    return "http" if base in ("http", "https") else "sql" if base in SQL_SCHEMES else ""


def recognises(location: str) -> bool:
    """Whether MLflow keeps runs at ``location``: an address of a server or database, or the path of an SQLite store."""
    kind = kind_of(location)
    if kind == "http":
        host = (urlsplit(location).hostname or "").lower()
        other = os.environ.get("WANDB_BASE_URL", "").rstrip("/")
        if other and f"{location.rstrip('/')}/".startswith(f"{other}/"):
            return False  # the user's own W&B server, whatever its name
        return bool(host) and not any(foreign in host for foreign in _FOREIGN_HOSTS)
    return kind == "sql" or ("://" not in location and is_store_file(Path(location)))


def is_store_file(path: Path) -> bool:
    """Whether ``path`` is an SQLite database that holds experiments and runs."""
    import sqlite3

    from pth_tracker_mlflow.address import connect_read_only

    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                return False
        connection = connect_read_only(path)
        try:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            connection.close()
    except (OSError, ValueError, sqlite3.Error):
        return False
    return {"experiments", "runs"} <= tables


def candidates() -> Iterable[Candidate]:
    """``mlflow.db`` in the working folder, and the address in MLFLOW_TRACKING_URI."""
    if is_store_file(Path("mlflow.db")):
        yield Candidate("sqlite:///mlflow.db", "mlflow.db in this folder holds the project", 0)
    configured = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if configured and recognises(configured):
        from pth_tracker_mlflow.address import parse

        yield Candidate(parse(configured).public, "MLFLOW_TRACKING_URI is set", 1)
    elif configured:
        # Opening it says what is wrong with it; passing over it would audit another tracker than the one configured.
        yield Candidate(without_credentials(configured), "MLFLOW_TRACKING_URI is set", 1)


def open_tracker(locations: Sequence[str]) -> Tracker:
    """The MLflow server or database at the one location given.

    Raises:
        UsageError: several locations, a file that does not exist, or no MLflow address.
        AdapterUnavailable: the server's SDK or the database's driver is missing or broken.
        TrackerError: it cannot be reached or read.
    """
    if len(locations) != 1:
        named = ", ".join(map(without_credentials, locations))
        raise UsageError(f"one audit reads one MLflow address, these are {len(locations)}: {named}")
    from pth_tracker_mlflow.address import parse

    store = parse(locations[0])
    if store.kind == "http":
        from pth_tracker_mlflow.rest import RestTracker

        return RestTracker(store)
    from pth_tracker_mlflow.sql import SqlTracker

    return SqlTracker(store)

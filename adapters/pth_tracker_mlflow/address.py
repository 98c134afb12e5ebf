"""Addresses of MLflow stores: with credentials to connect, without them to show, store and hand to a worker."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pth_tracker.errors import TrackerError, UsageError
from pth_tracker.tracker import Address, without_credentials
from pth_tracker.values import hide_secrets, without_environment
from pth_tracker_mlflow import kind_of

_SECRET_FIELD = re.compile(r"(?:pass(?:word|wd)?|pwd|sslpassword|token|secret)$", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"(?i)\b(passw(?:or)?d|pwd|sslpassword)\s*=\s*[^\s;&'\"]+")
_TO_RECOVER = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True)
class Store:
    """One MLflow store: how to connect, and what may be shown."""

    kind: str
    """``sql`` or ``http``."""
    public: str
    """The address without credentials."""
    uri: str = field(repr=False)
    """The address to connect with; may hold a password and is never shown."""
    path: Path | None = None
    """The file, for SQLite."""

    @property
    def address(self) -> Address:
        """The address as other parts of the package know it."""
        return Address("mlflow", (self.public,))

    def scrub(self, text: object, limit: int = 300) -> str:
        """Foreign text on one line, free of control characters and of this store's password, cut at ``limit``."""
        plain = str(text).replace(self.uri, self.public)
        for secret in _secrets(self.uri):
            plain = plain.replace(secret, "***")
        plain = _SECRET_TEXT.sub(r"\1=***", without_credentials(_CONTROL.sub(" ", plain))).strip()
        plain = hide_secrets(without_environment(plain))
        return plain if len(plain) <= limit else f"{plain[:limit]}..."


def parse(location: str) -> Store:
    """The store at ``location``; a password left out of it is taken from MLFLOW_TRACKING_URI if that is its address.

    Raises:
        UsageError: it is no address of an MLflow store, or names a file that does not exist.
    """
    location = location.strip()
    if "://" not in location:
        return _sqlite(Path(location))
    kind = kind_of(location)
    if not kind:
        raise UsageError(
            f"{without_credentials(location)!r} is no MLflow address: sqlite:///FILE, postgresql://, http://"
        )
    public = _public(location, kind)
    if kind == "sql" and public.startswith("sqlite"):
        database = make_url(location).database
        if not database or database == ":memory:":
            raise UsageError(f"{location!r} names no file: write sqlite:///FILE")
        return _sqlite(Path(database))
    configured = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    if not _secrets(location) and kind_of(configured) == kind and _public(configured, kind) == public:
        location = configured
    return Store(kind, public, location.rstrip("/") if kind == "http" else _with_driver(location))


def _sqlite(path: Path) -> Store:
    try:
        there = path.exists()
    except OSError as error:  # a folder above it that may not be entered
        raise TrackerError(f"{path} cannot be read: {error.strerror}") from None
    if not there:
        raise UsageError(f"there is no file {path}: name an existing MLflow database or a server's address")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not an MLflow database: name the .db file in it")
    uri = f"sqlite:///{path.resolve()}"
    return Store("sql", uri, uri, path.resolve())


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot change the file: not its bytes, and not its schema.

    What a process that was killed while it wrote has left half-done, SQLite takes back first, as at any opening.

    Raises:
        sqlite3.OperationalError: that is needed, and the file or its folder cannot be written.
    """
    try:
        return _connect(path)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) not in _TO_RECOVER:
            raise
        if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise sqlite3.OperationalError(
                "a process was killed while it wrote, and what it left can be taken back only with write access: "
                "open the file once with it"
            ) from error
    with closing(sqlite3.connect(path, timeout=30)) as recovering:
        recovering.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=30, check_same_thread=False)
    try:
        connection.execute("PRAGMA cache_size = -32000")  # KiB: one run's pages, which lie among those of others
    except BaseException:
        connection.close()
        raise
    return connection


def _sql_url(uri: str) -> URL:
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError) as error:
        raise UsageError(f"{without_credentials(uri)!r} is no database address: postgresql://USER@HOST/NAME") from error
    if url.host and "@" in url.host:
        raise UsageError("the database address holds an @ in its password: write it as %40")
    return url


def _public(uri: str, kind: str) -> str:
    if kind == "http":
        parts = urlsplit(uri)
        try:
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
            place = host if parts.port is None else f"{host}:{parts.port}"
        except ValueError as error:
            raise UsageError(f"{without_credentials(uri)!r} is no server address: http://HOST:PORT") from error
        if not host:
            raise UsageError(f"{without_credentials(uri)!r} names no host: http://HOST:PORT")
        user = f"{parts.username}@" if parts.username else ""
        return urlunsplit((parts.scheme.lower(), f"{user}{place}", parts.path.rstrip("/"), "", ""))
    url = _sql_url(uri)
    shown = {key: value for key, value in url.query.items() if not _is_secret_field(key)}
    bare = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, shown)
    return bare.render_as_string(hide_password=False)


def _is_secret_field(key: str) -> bool:
    return bool(_SECRET_FIELD.search(key)) or key == "odbc_connect"


def _with_driver(uri: str) -> str:
    """``uri`` naming the PostgreSQL driver that is installed: SQLAlchemy 2.1 took another default than 2.0 has."""
    scheme, _, rest = uri.partition("://")
    if scheme not in ("postgres", "postgresql"):
        return uri
    installed = [driver for driver in ("psycopg", "psycopg2") if find_spec(driver)]
    return f"postgresql+{installed[0]}://{rest}" if installed else f"postgresql://{rest}"


def _secrets(uri: str) -> list[str]:
    if kind_of(uri) == "http":
        parts = urlsplit(uri)
        found = [parts.password or ""]
    else:
        url = make_url(uri)
        found = [str(url.password or "")]
        found += [str(value) for key, value in url.query.items() if _is_secret_field(key)]
    quoted = [quote(secret, safe="") for secret in found]
    return sorted({secret for secret in [*found, *quoted] if len(secret) > 2}, key=len, reverse=True)

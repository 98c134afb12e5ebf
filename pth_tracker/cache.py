"""What is kept between nights, in one SQLite file: examinations of runs, and past audits.

Only ``nightly`` writes it. A cache that cannot be used never stops an audit: a damaged file is moved aside and begun
anew, a folder that cannot be written means no cache, and either is said in `Cache.notes`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pth_tracker import __version__, codec
from pth_tracker.examine import EXAMINE_VERSION, BatchIds, Digest, Examination, Reduced, RuleOutcome, Unit
from pth_tracker.model import Basis, Finding, Level, Plan
from pth_tracker.past import PastAudit
from pth_tracker.redaction import without_environment
from pth_tracker.runs import SourceRun
from pth_tracker.stats.chance import Witness
from pth_tracker.stats.seams import Seam
from pth_tracker.tracker import Address
from pth_tracker.values import to_json_value
from pth_tracker.vocabulary.load import load_vocabulary

VARIABLE: Final = "PTH_TRACKER_CACHE"
"""The environment variable that names another folder."""
FILE_NAME: Final = "cache-1.sqlite3"
"""With the number of its schema: one that is changed is another file."""
KEPT_TYPES: Final = (Examination, Digest, BatchIds, RuleOutcome, Reduced, Seam, Witness, Finding, Level, Basis)
"""Everything that an examination is made of beside plain data and arrays."""
MAX_BYTES: Final = 2 << 30
"""Of all examinations together; above it, those used longest ago go."""
MAX_UNUSED_DAYS: Final = 180
MAX_AUDITS: Final = 1000
"""Past audits of one configuration that are kept."""
BUSY_SECONDS: Final = 30
"""How long to wait for another process that writes."""
_KEYS_PER_QUERY: Final = 500
_FLUSH: Final = 64
"""Examinations that are written together: at most so many are read again after a crash."""
_NOT_EXAMINED: Final = ("ended", "created", "url", "marks")
"""What a listing tells of a run that examining it does not read; our own marks may move the time it ended."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS examinations (
    key TEXT PRIMARY KEY, used REAL NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS examinations_used ON examinations (used);
CREATE TABLE IF NOT EXISTS audits (
    id INTEGER PRIMARY KEY, configuration TEXT NOT NULL, project TEXT NOT NULL, tracker TEXT NOT NULL,
    audited_at TEXT NOT NULL, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audits_configuration ON audits (configuration, id);
"""


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds."""

    path: Path
    examinations: int
    audits: int
    size: int
    """Bytes on disk."""


def cache_folder(named: Path | None = None) -> Path:
    """The folder ``named``, else that of PTH_TRACKER_CACHE, else pth-tracker's own below the user's cache folder."""
    text = os.environ.get(VARIABLE, "")
    if named is not None or text:
        return (named or Path(text)).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("pth-tracker")


def examination_key(address: Address, unit: Unit, plan: Plan) -> str:
    """A hash of everything on which examining a run depends; ``""`` where the tracker tells no revision.

    These are the tracker, the run's parts with their revisions and what else the listing tells of them, the plan, the
    vocabulary, and the version of the examination.
    """
    run = unit.run
    if not all(part.revision for part in run.parts):
        return ""
    told = {
        "common": _common(address, plan),
        "parts": [_listed(part) for part in run.parts],
        "run": {name: getattr(run, name) for name in run.__dataclass_fields__ if name != "parts"},
        "metrics": None if unit.keys is None else sorted(unit.keys),
    }
    return _hash(told)


def forget_files() -> None:
    """Has vocabulary files read anew: a process that stays sees what was edited in the meantime."""
    load_vocabulary.cache_clear()
    _common.cache_clear()


@lru_cache(8)
def _common(address: Address, plan: Plan) -> str:
    return _hash(
        {
            "address": [address.adapter, *address.locations],
            "plan": {name: value for name, value in asdict(plan).items() if name != "vocabularies"},
            "vocabulary": load_vocabulary(plan.vocabularies).digest,
            "version": [EXAMINE_VERSION, __version__],
        }
    )


def _hash(told: object) -> str:
    try:
        text = json.dumps(told, sort_keys=True, default=to_json_value)  # in C, but for what is no plain data
    except TypeError:
        text = json.dumps(to_json_value(told), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _listed(part: SourceRun) -> Mapping[str, object]:
    return {name: getattr(part, name) for name in part.__dataclass_fields__ if name not in _NOT_EXAMINED} | {
        "ref": [part.ref.project, part.ref.run_id]
    }


class Cache:
    """One cache file, opened to read and write or, where ``read_only`` or not possible otherwise, to read."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.path = folder / FILE_NAME
        self.notes: list[str] = []
        """What went wrong, one sentence each; the audit goes on without what is missing."""
        self.hits = 0
        """Examinations that were found."""
        self._read_only = read_only
        self._waiting: dict[str, bytes] = {}
        self._used: set[str] = set()
        self._connection: sqlite3.Connection | None = None
        self._open()

    @property
    def usable(self) -> bool:
        """Whether there is anything to read from or write to."""
        return self._connection is not None

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            if self._read_only:
                self._connection = _connect_to_read(self.path)
                return
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = _connect_to_write(self.path)
        except sqlite3.Error as error:
            self._failed(error)
        except OSError as error:
            self._give_up(error)

    def _failed(self, error: sqlite3.Error) -> None:
        """Moves aside a file that is no database of ours, and gives up on one that cannot be reached now."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        passing = isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
        if passing:
            self._give_up(error)
        else:
            self._move_aside(error)

    def _give_up(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        self._close_quietly()
        self.notes.append(f"no cache: {self.path} cannot be used ({reason}); name another folder in {VARIABLE}")

    def _move_aside(self, error: Exception) -> None:
        """A damaged file makes way for a new one; its other processes go on with the old one and lose nothing else."""
        self._close_quietly()
        if self._read_only:
            self.notes.append(f"the cache {self.path} is damaged ({error}): `pth-tracker cache clear` begins anew")
            return
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        try:
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            os.replace(self.path, aside)
            self._connection = _connect_to_write(self.path)
        except (OSError, sqlite3.Error) as again:
            self._give_up(again)
            return
        self.notes.append(f"the cache was damaged ({error}): it was moved to {aside.name} and begun anew")

    def _close_quietly(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    @contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection | None]:
        """The connection; whatever fails within ends in a note and never in an error."""
        try:
            yield self._connection
        except sqlite3.Error as error:
            self._failed(error)

    # examinations

    def found(self, address: Address, units: Sequence[Unit], plan: Plan) -> dict[str, Examination]:
        """The examinations that are kept of ``units``, by run key."""
        keys = {key: unit.run.key for unit in units if self.usable and (key := examination_key(address, unit, plan))}
        held: dict[str, Examination] = {}
        damaged: list[str] = []
        for part in _chunks(list(keys)):
            with self._guarded() as connection:
                if connection is None:
                    break
                marks = ",".join("?" * len(part))
                for key, body in connection.execute(f"SELECT key, body FROM examinations WHERE key IN ({marks})", part):
                    try:
                        one = codec.decode(body, KEPT_TYPES)
                    except ValueError:
                        one = None
                    if isinstance(one, Examination) and one.run_key == keys[key]:
                        held[one.run_key] = one
                        self._used.add(key)
                    else:
                        damaged.append(key)
        self.hits += len(held)
        if damaged:
            self.notes.append(f"{len(damaged)} kept examinations were damaged and are made again")
        return held

    def keep(self, address: Address, unit: Unit, plan: Plan, examination: Examination) -> None:
        """Keeps one examination, written soon and at the latest on closing."""
        key = examination_key(address, unit, plan) if self.usable and not self._read_only else ""
        if key:
            try:
                self._waiting[key] = codec.encode(examination, KEPT_TYPES)
            except TypeError as error:  # evidence of some rule: the run is read again every night
                self._note_once(f"an examination of {unit.run.label} cannot be kept: {error}")
            if len(self._waiting) >= _FLUSH:
                self.flush()

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def flush(self) -> None:
        """Writes what waits."""
        rows = [(key, time.time(), len(body), body) for key, body in self._waiting.items()]
        self._waiting = {}
        if rows:
            with self._guarded() as connection:
                if connection is not None:
                    with connection:
                        connection.executemany("INSERT OR REPLACE INTO examinations VALUES (?, ?, ?, ?)", rows)

    # past audits

    def last_audit(self, configuration: str) -> PastAudit | None:
        """The latest audit of this configuration that is kept."""
        return next(iter(self._audits("WHERE configuration = ? ORDER BY id DESC LIMIT 1", (configuration,))), None)

    def audits(self, project: str) -> list[PastAudit]:
        """The audits of ``project`` that are kept, the oldest first."""
        return list(self._audits("WHERE project = ? ORDER BY id", (project,)))

    def projects(self) -> list[str]:
        """The projects of which there are past audits, sorted."""
        with self._guarded() as connection:
            if connection is not None:
                return [name for (name,) in connection.execute("SELECT DISTINCT project FROM audits ORDER BY project")]
        return []

    def _audits(self, condition: str, values: tuple[str, ...]) -> Iterator[PastAudit]:
        rows: list[tuple[str]] = []
        with self._guarded() as connection:
            if connection is not None:
                rows = connection.execute(f"SELECT body FROM audits {condition}", values).fetchall()
        for (body,) in rows:
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                yield PastAudit.from_text(body)

    def add_audit(self, audit: PastAudit) -> None:
        """Keeps one audit, and of its configuration the latest thousand."""
        facts = (audit.configuration, audit.project, audit.tracker, audit.audited_at.isoformat())
        row = (*facts, without_environment(audit.to_text()))
        with self._guarded() as connection:
            if connection is not None and not self._read_only:
                with connection:
                    columns = "configuration, project, tracker, audited_at, body"
                    connection.execute(f"INSERT INTO audits ({columns}) VALUES (?, ?, ?, ?, ?)", row)
                    connection.execute(
                        "DELETE FROM audits WHERE configuration = ? AND id NOT IN "
                        "(SELECT id FROM audits WHERE configuration = ? ORDER BY id DESC LIMIT ?)",
                        (audit.configuration, audit.configuration, MAX_AUDITS),
                    )

    def forget_publication(self, configuration: str) -> None:
        """Has the next audit of this configuration publish, whatever becomes of the present one."""
        last = self.last_audit(configuration)
        with self._guarded() as connection:
            if last is not None and connection is not None and not self._read_only:
                with connection:
                    chosen = "id = (SELECT max(id) FROM audits WHERE configuration = ?)"
                    body = replace(last, publication="").to_text()
                    connection.execute(f"UPDATE audits SET body = ? WHERE {chosen}", (body, configuration))

    # the file as a whole

    def info(self) -> CacheInfo:
        """How much there is."""
        counts = [0, 0]
        with self._guarded() as connection:
            if connection is not None:
                for place, table in enumerate(("examinations", "audits")):
                    counts[place] = int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        return CacheInfo(self.path, counts[0], counts[1], sum(file.stat().st_size for file in _files(self.path)))

    def close(self) -> None:
        """Writes what waits, lets go of what is too old or too much, and closes."""
        self.flush()
        with self._guarded() as connection:
            if connection is not None and not self._read_only:
                with connection:
                    now = time.time()
                    used = [(now, key) for key in self._used]
                    connection.executemany("UPDATE examinations SET used = ? WHERE key = ?", used)
                    _evict(connection, now)
                connection.executescript("PRAGMA incremental_vacuum")  # one page a step, and `execute` takes one step
        self._close_quietly()


def clear_cache(folder: Path) -> int:
    """Removes the cache file, damaged ones before it too, and yields how many bytes that freed.

    Raises:
        OSError: it cannot be removed.
    """
    freed = 0
    for file in [*_files(folder / FILE_NAME), *folder.glob(f"{FILE_NAME}.damaged-*")]:
        freed += file.stat().st_size
        file.unlink()
    return freed


def _files(path: Path) -> list[Path]:
    return [file for suffix in ("", "-wal", "-shm") if (file := path.with_name(path.name + suffix)).is_file()]


def _connect_to_write(path: Path) -> sqlite3.Connection:
    new = not path.exists()
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
    try:
        if new:
            path.chmod(0o600)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute("SELECT count(*) FROM audits").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection | None:
    if not path.is_file():
        return None
    # Without write access to the folder, a file in WAL mode is readable only as one that nobody changes.
    frozen = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro{frozen}", uri=True, timeout=BUSY_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM audits").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _evict(connection: sqlite3.Connection, now: float) -> None:
    connection.execute("DELETE FROM examinations WHERE used < ?", (now - MAX_UNUSED_DAYS * 86_400,))
    total = int(connection.execute("SELECT coalesce(sum(size), 0) FROM examinations").fetchone()[0])
    if total <= MAX_BYTES:
        return
    gone = []
    for key, size in connection.execute("SELECT key, size FROM examinations ORDER BY used, key"):
        gone.append((key,))
        total -= size
        if total <= MAX_BYTES * 0.9:
            break
    connection.executemany("DELETE FROM examinations WHERE key = ?", gone)


def _chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        yield keys[start : start + _KEYS_PER_QUERY]

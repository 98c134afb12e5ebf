"""``pth-tracker.yaml``: what is audited every night. Secrets stand in environment variables, never in the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from pth_tracker.atomic import check_writable
from pth_tracker.checks import find_rule
from pth_tracker.design.document import Document, located, parse_mapping, read_text
from pth_tracker.design.schema import Names, RuleSettings
from pth_tracker.errors import DesignError, UsageError
from pth_tracker.moments import parse_since
from pth_tracker.render import format_of
from pth_tracker.tracker import local_from, without_credentials
from pth_tracker.values import is_secret

DEFAULT_FILE: Final = Path("pth-tracker.yaml")
_KIND: Final = "configuration file"
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_OPEN_SCHEMES: Final = frozenset(
    "json jsons xml xmls form forms mailto mailtos syslog dbus gnome kde windows macosx".split()
)
"""Kinds of notification address that hold no secret beside a password; all others may hold one anywhere."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AuditEntry(_Strict):
    """One audit of every night."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """What logs, messages and file names call it."""
    project: str = ""
    paths: Names = ()
    """Files and folders to audit, instead of a tracker."""
    tracker: Names = Field(default=(), repr=False)
    """Where the runs are, as ``--tracker``; ``${NAME}`` stands for an environment variable, and a relative path of a
    local store is one from the folder of the configuration."""
    design: str = ""
    """A design file; all files are found from the folder of the configuration."""
    vocabularies: Names = ()
    where: str = ""
    since: str = ""
    columns: Names = ()
    """Which column of a table is which, as ``--columns``: ``step=STEP,seed=SEED,arm=METHOD,task=TASK,value=SCORE``."""
    select: Names = ()
    ignore: Names = ()
    rules: RuleSettings | None = None
    """Thresholds and levels, in place of those of the design."""
    write: bool = True
    """Whether the verdict is written into the tracker."""
    write_running: bool = False
    strict: bool = False
    outputs: Names = ()
    """Reports to write, in the format of their suffix."""
    notify: Names | None = Field(default=None, repr=False)
    """Apprise addresses; left out: those of the file."""
    link: str | None = None
    """What a message links to; ``{name}`` and ``{project}`` are replaced. Left out: that of the file."""

    @model_validator(mode="after")
    def _names_something(self) -> AuditEntry:
        if not (self.project or self.paths or self.tracker):
            raise ValueError("name what to audit: project, or paths")
        if self.paths and self.tracker:
            raise ValueError("paths are audited instead of a tracker: give one of them")
        return self

    @field_validator("since")
    @classmethod
    def _is_moment(cls, value: str) -> str:
        try:
            parse_since(value, key="since")
        except UsageError as error:
            raise ValueError(str(error)) from error
        return value

    @field_validator("outputs")
    @classmethod
    def _has_format(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            for name in value:
                format_of(Path(name))
        except UsageError as error:
            raise ValueError(str(error)) from error
        return value


class _File(_Strict):
    audits: tuple[AuditEntry, ...] = Field(min_length=1)
    notify: Names = Field(default=(), repr=False)
    link: str = ""

    @model_validator(mode="after")
    def _unique(self) -> _File:
        names = [entry.name for entry in self.audits]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise ValueError(f"two audits are named {twice!r}: give each a name of its own")
        return self


@dataclass(frozen=True)
class Target:
    """Where messages go."""

    url: str = field(repr=False)
    """The Apprise address; may hold a secret and is never shown."""
    shown: str
    """What it is called: its place in the file and its kind."""


@dataclass(frozen=True)
class PlannedAudit:
    """One entry with everything in its place: paths found, variables replaced."""

    entry: AuditEntry
    number: int
    """Its place in the file."""
    locations: tuple[str, ...] = field(repr=False)
    """Of the tracker, or paths."""
    design: Path | None
    vocabularies: tuple[Path, ...]
    outputs: tuple[Path, ...]
    targets: tuple[Target, ...]
    link: str

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.entry.name


@dataclass(frozen=True)
class Configuration:
    """A configuration file, read and found sound."""

    document: Document
    audits: tuple[PlannedAudit, ...]

    def check_outputs(self, planned: Iterable[PlannedAudit], *, touch: bool) -> None:
        """Makes sure, before any audit is done, that all reports of ``planned`` can be written; see `check_writable`.

        Raises:
            DesignError: one cannot; names it, and the file, line and key.
        """
        for one in planned:
            for place, output in enumerate(one.outputs):
                try:
                    check_writable([output], touch=touch)
                except UsageError as error:
                    raise self.document.error(str(error), "audits", one.number, "outputs", place) from None


def load_configuration(path: Path, environment: Mapping[str, str] | None = None) -> Configuration:
    """The audits in the YAML file ``path``, with variables of ``environment`` (None: of this process).

    Raises:
        DesignError: it cannot be read, does not fit the schema, names a variable that is not set, or holds a secret;
            names file, line and key.
    """
    text = read_text(path, _KIND)
    data, root = parse_mapping(text, path, "a configuration file is a mapping of audits, notify and link")
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise located(error, root, path, _File) from error
    document = Document(path, root)
    reader = _Reader(document, path.absolute().parent, os.environ if environment is None else environment)
    return Configuration(document, tuple(reader.planned(file, place) for place in range(len(file.audits))))


class _Reader:
    """What replaces variables and finds files, and knows where in the file it is."""

    def __init__(self, document: Document, folder: Path, environment: Mapping[str, str]) -> None:
        self._document = document
        self._folder = folder
        self._environment = environment

    def _error(self, message: str, place: list[str | int]) -> DesignError:
        return self._document.error(message, *place)

    def planned(self, file: _File, number: int) -> PlannedAudit:
        entry = file.audits[number]
        own: list[str | int] = ["audits", number]
        trackers = [self._replaced(text, [*own, *place]) for place, text in _each("tracker", entry.tracker)]
        for place, text in _each("tracker", entry.tracker):
            if without_credentials(text) != text and urlsplit(text).password and not _VARIABLE.search(text):
                raise self._error(_SECRET_IN_FILE, [*own, *place])
        self._check_rules(entry, own)
        inherited = entry.notify is None
        notify = file.notify if entry.notify is None else entry.notify
        targets = [
            self._target(text, list(place) if inherited else [*own, *place]) for place, text in _each("notify", notify)
        ]
        link = file.link if entry.link is None else entry.link
        link = self._replaced(link, ["link"] if entry.link is None else [*own, "link"])
        link = link.replace("{name}", entry.name).replace("{project}", entry.project)
        return PlannedAudit(
            entry,
            number,
            (*(local_from(self._folder, text) for text in trackers), *(str(self._file(name)) for name in entry.paths)),
            self._file(entry.design) if entry.design else None,
            tuple(self._file(name) for name in entry.vocabularies),
            tuple(self._file(name) for name in entry.outputs),
            tuple(targets),
            link,
        )

    def _check_rules(self, entry: AuditEntry, own: list[str | int]) -> None:
        named: list[tuple[str, tuple[str | int, ...]]] = []
        for key, slugs in (("select", entry.select), ("ignore", entry.ignore)):
            named += [(slug, place) for place, slug in _each(key, slugs)]
        named += [(slug, ("rules", "levels", slug)) for slug in (entry.rules.levels if entry.rules else ())]
        for slug, place in named:
            try:
                find_rule(slug)
            except UsageError as error:
                raise self._error(str(error), [*own, *place]) from None

    def _file(self, name: str) -> Path:
        # In full: a folder "wandb" is not the tracker, and "logs" of one folder is not "logs" of another.
        return self._folder / Path(name).expanduser()

    def _target(self, text: str, place: list[str | int]) -> Target:
        scheme = text.partition("://")[0].lower() if "://" in text else ""
        if not _VARIABLE.search(text):
            if not scheme:
                raise self._error("this is no notification address, such as json://HOST:PORT/PATH or ${NAME}", place)
            if scheme not in _OPEN_SCHEMES or _holds_secret(text):
                raise self._error(_SECRET_IN_FILE, place)
        url = self._replaced(text, place)
        kind = url.partition("://")[0].lower() if "://" in url else "?"
        named = ".".join(str(part) for part in place)
        return Target(url, f"{named} ({kind if re.fullmatch(r'[a-z0-9]{1,20}', kind) else 'unknown'})")

    def _replaced(self, text: str, place: list[str | int]) -> str:
        def value(match: re.Match[str]) -> str:
            found = self._environment.get(match[1])
            if not found:
                raise self._error(f"the environment variable {match[1]} is not set, or is empty", place)
            return found

        return _VARIABLE.sub(value, text)


_SECRET_IN_FILE: Final = (
    "this address may hold a secret: put it, or the secret part, into an environment variable and write ${NAME} here"
)


def _holds_secret(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.password) or any(is_secret(key.lstrip(" +-:")) for key, _ in parse_qsl(parts.query))
    except ValueError:
        return True


def _each(name: str, values: tuple[str, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Each value with its place below ``name``."""
    for number, value in enumerate(values):
        yield (name, number), value

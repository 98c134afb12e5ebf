"""Vocabularies as checked data: what a framework calls things, and what its names mean.

``quantities.yaml`` lists the quantities and roles that checks may need; each file of ``frameworks/`` maps one training
framework's metric names to quantities (with their semantics) and its configuration keys to roles. A user's own file
has the same schema. A name that the code does not know is an error that names file and key.

A command starts by reading how every framework is recognised; the rest of a built-in file is read for the frameworks
that are there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from pth_tracker.errors import UsageError
from pth_tracker.plain_yaml import load_yaml
from pth_tracker.vocabulary.schema import Candidate, Framework, Head, Quantity, RoleAbout

Model = TypeVar("Model", bound=Head)

FACT_PREFIX = "harness/"
"""Under this prefix `pth_tracker.probes` logs quantities by their canonical names, in every framework."""
MAX_BYTES: Final = 1_000_000
"""The largest vocabulary file of a user's that is read."""
MAX_PARENTS: Final = 8
"""Frameworks that may extend one another in a row."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The safe loader, in C where PyYAML was built with it: the files are read at the start of every command."""
_SECTION: Final = re.compile(rb"^(?=[A-Za-z_])", re.MULTILINE)
_HEAD: Final = tuple(f"{name}:".encode() for name in Head.model_fields)


@dataclass(frozen=True)
class _Source:
    """One vocabulary file as bytes."""

    name: str
    raw: bytes

    def data(self) -> Any:
        """The file's content; a user's file has been read by `load_yaml` before."""
        return yaml.load(self.raw, Loader=_Loader)

    def head(self) -> Head:
        """The part that recognises the framework, without reading the rest: a built-in file's sections start lines."""
        parts = [part for part in _SECTION.split(self.raw) if part.startswith(_HEAD)]
        return Head.model_validate(yaml.load(b"".join(parts), Loader=_Loader))


class Frameworks(Mapping[str, Framework]):
    """Framework to its vocabulary, which is read on use."""

    def __init__(
        self,
        built_in: Mapping[str, _Source],
        own: Mapping[str, _Source],
        quantities: Collection[str],
        roles: Collection[str],
    ) -> None:
        self._built_in = built_in
        self._sources = {**built_in, **own}
        self._known = (quantities, roles)
        self._read: dict[str, Framework] = {}

    def __getitem__(self, name: str) -> Framework:
        if name not in self._read:
            source = self._sources[name]
            framework = _validated(source.name, self._merged(source.data(), source.name), Framework)
            _check(framework, source.name, *self._known)
            self._read[name] = _prefixed(framework)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def _merged(self, data: Any, name: str, depth: int = 0) -> Any:
        """``data`` on top of the vocabulary that it extends; a user's file may extend the built-in one it replaces."""
        parent = data.get("extends") if isinstance(data, Mapping) else None
        if not parent:
            return data
        known = self._built_in if parent == data.get("framework") else self._sources
        if parent not in known:
            raise UsageError(f"{name} at extends: {parent!r} is no known framework")
        if depth >= MAX_PARENTS:
            raise UsageError(f"{name} at extends: {parent!r} extends this one in turn")
        base = known[parent]
        return _on_top(self._merged(base.data(), base.name, depth + 1), data)


def _on_top(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``data`` over those of the vocabulary that it extends, by the rules of `Head.extends`."""
    merged = {key: value for key, value in base.items() if key != "detect"}
    for key, value in data.items():
        held = merged.get(key)
        if key != "data_seed" and isinstance(held, Mapping) and isinstance(value, Mapping):
            merged[key] = {name: entry for name, entry in {**held, **value}.items() if entry is not None}
        elif key != "prefixes" and isinstance(held, list) and isinstance(value, list):
            taken = {entry[1:] for entry in value if isinstance(entry, str) and entry.startswith("!")}
            kept = [entry for entry in held if not isinstance(entry, str) or entry not in taken]
            added = [entry for entry in value if entry not in held]
            merged[key] = [*kept, *(one for one in added if not (isinstance(one, str) and one.startswith("!")))]
        else:
            merged[key] = value
    return merged


class Vocabulary:
    """All quantities, roles and frameworks, checked against each other."""

    def __init__(
        self,
        quantities: Mapping[str, Quantity],
        roles: Mapping[str, RoleAbout],
        frameworks: Mapping[str, Framework],
        digest: str,
        heads: Mapping[str, Head] | None = None,
    ) -> None:
        self.quantities = quantities
        self.roles = roles
        self.frameworks = frameworks
        self.digest = digest
        """Changes whenever any vocabulary file does."""
        self.heads: Mapping[str, Head] = heads if heads is not None else dict(frameworks)
        """How each framework is recognised."""
        self._candidates: dict[tuple[str, str], tuple[Candidate, ...]] = {}

    def candidates(self, framework: str, quantity: str) -> tuple[Candidate, ...]:
        """What may hold ``quantity`` in ``framework``, the probes' own name first."""
        found = self._candidates.get((framework, quantity))
        if found is None:
            own, name = self.frameworks[framework], f"{FACT_PREFIX}{quantity}"
            estimator = self.quantities[quantity].estimator
            probed = (Candidate(key=key, estimator=estimator) for key in dict.fromkeys((name, *_forms(name, own))))
            found = self._candidates[framework, quantity] = (*probed, *own.quantities.get(quantity, ()))
        return found

    def remedy(self, framework: str, name: str) -> str:
        """What to do so that ``name`` can be judged: the framework's own option, else the general advice."""
        own = self.frameworks[framework].remedies.get(name)
        if own:
            return own
        known: Quantity | RoleAbout | None = self.quantities.get(name) or self.roles.get(name)
        return known.remedy if known else ""


def _forms(key: str, head: Head) -> tuple[str, ...]:
    return tuple(f"{prefix}{key}" for prefix in head.prefixes) or (key,)


def _prefixed(framework: Framework) -> Framework:
    """The framework with each of its metrics under every name that its prefixes give it."""
    if not framework.prefixes:
        return framework
    quantities = {
        name: tuple(one.model_copy(update={"key": key}) for one in candidates for key in _forms(one.key, framework))
        for name, candidates in framework.quantities.items()
    }
    return framework.model_copy(update={"quantities": quantities})


def _validated(name: str, data: Any, model: type[Model]) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = (
            first["msg"].removeprefix("Value error, ") if key else "a vocabulary is a mapping that names its framework"
        )
        raise UsageError(f"{name}{f' at {key}' if key else ''}: {said}") from error


def _check(framework: Framework, name: str, quantities: Collection[str], roles: Collection[str]) -> None:
    from pth_tracker.vocabulary import functions

    unknown = [q for q in (*framework.quantities, *framework.witness) if q not in quantities]
    unknown += [role for role in framework.roles if role not in roles]
    unknown += [key for key in framework.remedies if key not in quantities and key not in roles]
    named = [framework.version, framework.data_seed.python, *(role.python for role in framework.roles.values())]
    unknown += [function for function in named if function and function not in functions.FUNCTIONS]
    if unknown:
        raise UsageError(f"{name}: unknown name {unknown[0]!r}; quantities and roles are listed in quantities.yaml")


def _own_source(path: Path) -> tuple[str, _Source]:
    """A user's file by the name of the framework it tells of."""
    source = _Source(path.name, _own_bytes(path))
    try:
        data = load_yaml(source.raw)
    except ValueError as error:
        place = getattr(error.__cause__, "problem_mark", None)
        line = f":{place.line + 1}" if place else ""
        raise UsageError(f"{source.name}{line}: this vocabulary is no YAML: {error}") from error
    name = data.get("framework") if isinstance(data, Mapping) else None
    if not isinstance(name, str):
        _validated(source.name, data, Framework)  # which says what is wrong
        raise UsageError(f"{source.name} at framework: it names no framework")
    return name, source


def _own_bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such vocabulary file")
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: a vocabulary file may have {MAX_BYTES:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: this vocabulary file cannot be read: {error.strerror}") from error


def _with_prefixes(heads: Mapping[str, Head]) -> dict[str, Head]:
    """The heads, each with its parent's prefixes where it has none of its own."""
    found = {}
    for name, head in heads.items():
        above: Head | None = head
        for _ in range(MAX_PARENTS):
            if above is None or above.prefixes or not above.extends:
                break
            above = heads.get(above.extends)
        inherits = above is not None and above is not head and above.prefixes
        found[name] = head.model_copy(update={"prefixes": above.prefixes}) if above and inherits else head
    return found


@cache
def load_vocabulary(extra: tuple[Path, ...] = ()) -> Vocabulary:
    """The built-in vocabulary with the user's own files on top (a file of a known framework's name replaces it).

    The user's files are checked here, the built-in ones on use.

    Raises:
        UsageError: a file cannot be read or does not fit the schema; names file and key.
    """
    base = resources.files("pth_tracker.vocabulary")
    listed = _Source("quantities.yaml", (base / "quantities.yaml").read_bytes())
    data = listed.data()
    quantities = {name: Quantity.model_validate(entry) for name, entry in data["quantities"].items()}
    roles = {name: RoleAbout.model_validate(entry) for name, entry in data["roles"].items()}
    files = sorted((base / "frameworks").iterdir(), key=lambda path: path.name)
    sources = {
        path.name.removesuffix(".yaml"): _Source(path.name, path.read_bytes())
        for path in files
        if path.name.endswith(".yaml")
    }
    heads = _with_prefixes({name: source.head() for name, source in sources.items()})
    own = dict(map(_own_source, extra))
    frameworks = Frameworks(sources, own, quantities, roles)
    heads |= {name: frameworks[name] for name in own}
    digest = hashlib.sha256(b"".join(source.raw for source in (listed, *sources.values(), *own.values())))
    return Vocabulary(quantities, roles, frameworks, digest.hexdigest()[:16], heads)

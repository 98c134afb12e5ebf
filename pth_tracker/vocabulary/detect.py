"""Which framework trained a run, told from its configuration and the names of its metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from pth_tracker.values import Value
from pth_tracker.vocabulary.functions import FUNCTIONS
from pth_tracker.vocabulary.lens import Lens
from pth_tracker.vocabulary.load import Vocabulary
from pth_tracker.vocabulary.schema import Framework, Head, Names

GENERIC = "generic"
"""The framework of a run that no vocabulary recognises."""


@lru_cache(maxsize=4096)
def pattern(glob: str) -> re.Pattern[str]:
    """A pattern in which ``*`` stands for any text, anchored at both ends."""
    return re.compile("".join(".*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", glob)) + r"\Z")


def matches_any(key: str, globs: Iterable[str]) -> bool:
    """Whether ``key`` matches one of the patterns."""
    return _matches(key, tuple(globs))


@lru_cache(maxsize=1 << 16)  # the runs of a project have the same keys
def _matches(key: str, globs: tuple[str, ...]) -> bool:
    return any(pattern(glob).match(key) if "*" in glob else key == glob for glob in globs)


def _held(glob: str, keys: Collection[str]) -> bool:
    return any(map(pattern(glob).match, keys)) if "*" in glob else glob in keys


def _hits(globs: Iterable[str], keys: Collection[str], prefixes: Sequence[str] = ()) -> int:
    """How many of ``globs`` some key matches, with one of ``prefixes`` in front; ``keys`` is a set or mapping."""
    return sum(1 for glob in globs if any(_held(f"{prefix}{glob}", keys) for prefix in prefixes or ("",)))


def _score(head: Head, config: Collection[str], metrics: frozenset[str]) -> tuple[int, int, int] | None:
    """How well the framework fits: (priority, told by its configuration, by how many names); None: it does not."""
    detect, prefixes = head.detect, head.prefixes

    def all_there(names: Names) -> bool:
        return _hits(names.config, config) == len(names.config) and _hits(names.metrics, metrics, prefixes) == len(
            names.metrics
        )

    if _hits(detect.config_none, config) or _hits(detect.metrics_none, metrics, prefixes):
        return None
    if any(map(all_there, detect.none_of)):
        return None
    scores = [
        (detect.priority, int(bool(names.config)), len(names.config) + len(names.metrics))
        for names in detect.all_of
        if all_there(names)
    ]
    if detect.config_all or detect.config_any:
        all_hit, any_hit = _hits(detect.config_all, config), _hits(detect.config_any, config)
        if all_hit == len(detect.config_all) and (any_hit or not detect.config_any):
            scores.append((detect.priority, 1, all_hit + any_hit))
    if detect.metrics_all or detect.metrics_any:
        needed, told = _hits(detect.metrics_all, metrics, prefixes), _hits(detect.metrics_any, metrics, prefixes)
        if needed == len(detect.metrics_all) and (told >= detect.metrics_at_least or not detect.metrics_any):
            scores.append((detect.priority, 0, needed + told))
    return max(scores, default=None)


@lru_cache(maxsize=256)  # the runs of a project have the same keys
def _fitting(vocabulary: Vocabulary, config: frozenset[str], metrics: frozenset[str]) -> tuple[str, ...]:
    """The frameworks that fit by name, the best first."""
    scores = {name: _score(head, config, metrics) for name, head in vocabulary.heads.items()}
    return tuple(sorted((name for name in scores if scores[name]), key=lambda name: (scores[name], name), reverse=True))


def _allows(condition: str, config: Mapping[str, Value]) -> bool:
    from pth_tracker.expressions import ExpressionError, evaluate

    lens = Lens(config)
    try:
        return evaluate(condition, {}, {"cfg": lens.cfg, "has": lens.has}) is True
    except ExpressionError:
        return False


def detect_framework(vocabulary: Vocabulary, config: Mapping[str, Value], metrics: Iterable[str] | None) -> str:
    """The framework that fits best, else generic.

    By priority, by configuration before metrics, and by more names before fewer.
    """
    for name in _fitting(vocabulary, frozenset(config), frozenset(metrics or ())):
        condition = vocabulary.heads[name].detect.when
        if not condition or not config or _allows(condition, config):
            return name
    return GENERIC


def infer_version(framework: Framework, config: Mapping[str, Value]) -> str | None:
    """The release that the configuration's keys tell, where the framework has a way to."""
    if not framework.version:
        return None
    found = FUNCTIONS[framework.version](Lens(config))
    return str(found) if found else None


@lru_cache(maxsize=4096)
def mangled(key: str) -> tuple[str, ...]:
    """The names under which trackers may hold the metric ``key``, its own first.

    verl's MLflow backend writes ``@`` as ``_at_``, then every character that MLflow refuses as ``_``, then ``//`` as
    ``/``. Names are looked up this way round only: the way back is not unique.
    """
    at = key.replace("@", "_at_")
    plain = re.sub(r"[^/\w.\- :*]", "_", at)
    return tuple(dict.fromkeys((key, at, plain, plain.replace("//", "/"), key.replace("@", "_"))))


def find_keys(key: str, available: Iterable[str] | None) -> tuple[str, ...]:
    """The raw metric names in ``available`` that ``key`` (a name or pattern) stands for, sorted.

    Where the available names are unknown (None), the exact names that may hold it; a pattern then yields none.
    """
    names = mangled(key)
    if available is None:
        return () if "*" in key else names
    held = available if isinstance(available, frozenset | set) else frozenset(available)
    if "*" not in key:
        return next(((name,) for name in names if name in held), ())
    return tuple(sorted(one for one in held if matches_any(one, names)))

"""Which framework trained a run, told from its configuration and the names of its metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from pth_tracker.values import Value
from pth_tracker.vocabulary.functions import FUNCTIONS, Lens
from pth_tracker.vocabulary.load import Framework, Vocabulary

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


def _hits(globs: Iterable[str], keys: Collection[str]) -> int:
    """How many of ``globs`` some key matches; ``keys`` is a set or mapping, where a plain name is looked up."""
    return sum(1 for glob in globs if (any(map(pattern(glob).match, keys)) if "*" in glob else glob in keys))


def _score(framework: Framework, config: Mapping[str, Value], metrics: frozenset[str]) -> tuple[int, int] | None:
    """How well the framework fits: (told by its configuration, by how many names); None: it does not."""
    detect = framework.detect
    if _hits(detect.config_none, config) or _hits(detect.metrics_none, metrics):
        return None
    if detect.config_all or detect.config_any:
        all_hit = _hits(detect.config_all, config)
        any_hit = _hits(detect.config_any, config)
        if all_hit == len(detect.config_all) and (any_hit or not detect.config_any):
            return 1, all_hit + any_hit
    told = _hits(detect.metrics_any, metrics)
    return (0, told) if detect.metrics_any and told >= detect.metrics_at_least else None


def detect_framework(vocabulary: Vocabulary, config: Mapping[str, Value], metrics: Iterable[str] | None) -> str:
    """The framework that fits best, by configuration before metrics and by more names before fewer; else generic."""
    held = frozenset(metrics or ())
    scores = {name: _score(framework, config, held) for name, framework in vocabulary.frameworks.items()}
    fitting = sorted(((score, name) for name, score in scores.items() if score), key=lambda item: (item[0], item[1]))
    return fitting[-1][1] if fitting else GENERIC


def infer_version(framework: Framework, config: Mapping[str, Value]) -> str | None:
    """The release that the configuration's keys tell, where the framework has a way to."""
    if not framework.version:
        return None
    found = FUNCTIONS[framework.version](Lens(config))
    return str(found) if found else None


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

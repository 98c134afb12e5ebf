"""What Hydra leaves beside a log: the composed configuration and the overrides of the command line.

Hydra writes ``.hydra/config.yaml`` (before interpolations are resolved) and ``.hydra/overrides.yaml`` into the folder
it runs in, which is where a log usually lands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from pth_tracker.plain_yaml import load_yaml
from pth_tracker_files.sources import read_head

MAX_BYTES: Final = 1 << 20
MAX_HOPS: Final = 8
"""How many interpolations in a row are followed."""

_INTERPOLATION: Final = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")


@dataclass(frozen=True)
class HydraFiles:
    """The configuration and overrides of one Hydra run folder."""

    config: Mapping[str, object] = field(default_factory=dict)
    overrides: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    """The files read: they belong to the run's revision."""


def hydra_files(log: Path) -> HydraFiles:
    """What lies in ``.hydra`` beside ``log``, or beside the folder it is in; nothing where there is none."""
    for folder in (log.parent, log.parent.parent):
        try:
            if (folder / ".hydra").is_dir():
                return _read_folder(folder / ".hydra")
        except OSError:
            continue
    return HydraFiles()


@lru_cache(maxsize=256)
def _read_folder(folder: Path) -> HydraFiles:
    notes: list[str] = []
    paths: list[Path] = []
    loaded: dict[str, object] = {}
    for name in ("config.yaml", "overrides.yaml"):
        path = folder / name
        try:
            raw = read_head(path, MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise ValueError(f"is larger than {MAX_BYTES} bytes")
            loaded[name] = load_yaml(raw)
            paths.append(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            notes.append(f"{path} was not read: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    config = loaded.get("config.yaml")
    resolved = _resolve(config, config) if isinstance(config, dict) else {}
    overrides = loaded.get("overrides.yaml")
    listed = tuple(str(item) for item in overrides) if isinstance(overrides, list) else None
    return HydraFiles(resolved if isinstance(resolved, dict) else {}, listed, tuple(notes), tuple(paths))


def _resolve(value: object, root: object, depth: int = 0) -> object:
    """``value`` with plain interpolations (``${a.b}``) replaced; others stay as they are written."""
    if depth > 60:
        return "(nested too deeply)"
    if isinstance(value, dict):
        return {str(key): _resolve(item, root, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root, depth + 1) for item in value]
    for _ in range(MAX_HOPS):
        if not isinstance(value, str):
            break
        whole = _INTERPOLATION.fullmatch(value)
        if whole is None:
            return _resolve_within(value, root)
        found = _look_up(root, whole[1])
        if found is None:
            return value
        value = found[0]
    return _typed(value)


def _resolve_within(text: str, root: object) -> object:
    def written(match: re.Match[str]) -> str:
        found = _look_up(root, match[1])
        plain = found is not None and isinstance(found[0], str | int | float) and "${" not in str(found[0])
        return str(found[0]) if found is not None and plain else match[0]

    return _typed(_INTERPOLATION.sub(written, text) if len(text) < 10_000 else text)


def _typed(value: object) -> object:
    """YAML 1.1 reads ``1e-6`` as text; OmegaConf, like everybody, as a number."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _look_up(root: object, dotted: str) -> tuple[object] | None:
    place = root
    for part in dotted.split("."):
        if not isinstance(place, dict) or part not in place:
            return None
        place = place[part]
    return None if isinstance(place, dict | list) else (place,)

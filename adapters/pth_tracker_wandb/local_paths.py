"""Which run folders a path stands for; only looks at names, and imports no SDK."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Final

from pth_tracker.errors import UsageError

RUN_FOLDER: Final = re.compile(r"(?:offline-|dry)?run-(?P<time>\d{8}_\d{6})-(?P<id>.+)")
"""``run-``, ``offline-run-`` and, before release 0.10, ``dryrun-``, then the local time and the run's id."""
_EVIDENCE: Final = (
    "files/config.yaml",
    "files/wandb-metadata.json",
    "files/wandb-summary.json",
    "wandb-history.jsonl",
    "wandb-metadata.json",
)


@dataclass(frozen=True, slots=True)
class Place:
    """One run on disk."""

    path: Path
    """The run's folder; for a ``.wandb`` file that lies outside of one, the file. Absolute, symbolic links resolved."""
    log: Path | None
    """Its ``.wandb`` file; None where there is none."""

    @property
    def run_id(self) -> str:
        """W&B's id of the run as the names tell it, ``""`` where they do not."""
        match = RUN_FOLDER.fullmatch(self.path.name)
        if match:
            return match["id"]
        return self.log.stem.removeprefix("run-") if self.log else ""

    @property
    def folder(self) -> Path | None:
        """The run's folder; None for a lone file."""
        return None if self.path == self.log else self.path

    @property
    def named_time(self) -> datetime | None:
        """When the run began as its folder's name tells it, read in this machine's time zone."""
        match = RUN_FOLDER.fullmatch(self.path.name)
        try:
            return datetime.strptime(match["time"], "%Y%m%d_%H%M%S").astimezone(UTC) if match else None
        except (ValueError, OverflowError):
            return None


def recognises_path(path: Path) -> bool:
    """Whether ``path`` is a ``.wandb`` file, a run folder, a ``wandb`` folder, or a folder that contains one."""
    try:
        return next(_places(path), None) is not None
    except OSError:
        return False


def find_places(locations: Sequence[str]) -> tuple[Place, ...]:
    """The runs at these locations, each once, in the order of their names.

    Raises:
        UsageError: a location does not exist, cannot be listed, or holds no run.
    """
    found: dict[Path, Place] = {}
    for location in locations:
        path = Path(location).expanduser()
        try:
            here = list(_places(path))
        except OSError as error:
            raise UsageError(f"{location} cannot be listed ({error.strerror or error}): check its rights") from error
        if not here:
            missing = "there is no" if not exists(path) else "no W&B run is at"
            raise UsageError(
                f"{missing} {location}: name a wandb folder, a run folder (run-..., offline-run-...) or a .wandb file"
            )
        for place in here:
            found.setdefault(place.path, place)
    return tuple(sorted(found.values(), key=lambda place: (place.path.name, str(place.path))))


def _places(path: Path) -> Iterator[Place]:
    if path.suffix == ".wandb" and isfile(path):
        log = path.resolve()
        is_only = RUN_FOLDER.fullmatch(log.parent.name) and len(_logs(log.parent)) == 1
        yield Place(log.parent if is_only else log, log)
    elif isdir(path):
        path = path.resolve()
        if _is_run_folder(path):
            yield from _in_run_folder(path)
            return
        inner = path / "wandb"
        for folder in (path, inner) if isdir(inner) else (path,):
            for child in sorted(folder.iterdir()):
                if RUN_FOLDER.fullmatch(child.name) and isdir(child):
                    yield from _in_run_folder(child.resolve())


def _is_run_folder(path: Path) -> bool:
    return bool(RUN_FOLDER.fullmatch(path.name) or _logs(path)) or any(isfile(path / name) for name in _EVIDENCE)


def _in_run_folder(path: Path) -> Iterator[Place]:
    logs = _logs(path)
    if len(logs) > 1:
        yield from (Place(log, log) for log in logs)
    else:
        yield Place(path, logs[0] if logs else None)


def _logs(folder: Path) -> list[Path]:
    return sorted(child for child in folder.glob("*.wandb") if isfile(child))

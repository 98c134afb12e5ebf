"""Reads runs from W&B servers and from W&B's local run folders; the manifest, which imports no SDK.

``wandb`` names the server that the environment configures, an ``https://`` address a particular one, optionally with
the entity whose projects are meant (``wandb:my-team``, ``https://api.wandb.ai/my-team``). A path names local runs, as
the SDK writes them below ``wandb/``. The bare word ``wandb`` is always the server, whatever lies in the working
directory; a folder of that name is written ``./wandb`` or ``wandb/``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pth_tracker.errors import AdapterUnavailable, TrackerError, UsageError
from pth_tracker.tracker import Candidate, without_credentials
from pth_tracker_wandb.credentials import KNOWN_SERVERS, configured_base_url, has_netrc_entry, looks_like_entity

if TYPE_CHECKING:
    from pth_tracker.tracker import Tracker

SUMMARY: Final = "W&B servers and local run folders"
SDK: Final = "wandb>=0.30"


def recognises(location: str) -> bool:
    """Whether ``location`` is ``wandb``, the address of a W&B server, or a path that holds W&B runs."""
    if location == "wandb" or location.startswith("wandb:"):
        return True
    if location.startswith(("http://", "https://")):
        host = urlsplit(location).hostname or ""
        configured = urlsplit(configured_base_url() or "").hostname
        return "wandb" in host or "coreweave" in host or host == configured
    return _is_local(location)


def candidates() -> Iterable[Candidate]:
    """A folder of offline runs, then a server for which there are credentials."""
    folder = Path("wandb")
    if any(folder.glob("offline-run-*")) and not any(folder.glob("run-*")):
        yield Candidate("./wandb", "./wandb holds offline runs of this project", order=0)
    base = configured_base_url()
    if os.environ.get("WANDB_API_KEY"):
        yield Candidate(base or "wandb", "WANDB_API_KEY is set", order=2)
        return
    for server in [base] if base else KNOWN_SERVERS:
        if has_netrc_entry(server):
            yield Candidate(server, f"the netrc file holds a key for {server}", order=2)
            return


def open_tracker(locations: Sequence[str]) -> Tracker:
    """The tracker at a W&B server, or over local run folders.

    Raises:
        UsageError: no W&B address, or a server together with something else.
        AdapterUnavailable: the W&B SDK is missing or broken.
        TrackerError: the server cannot be reached or refuses the credentials.
    """
    if not locations:
        raise UsageError("no W&B address was given: name `wandb`, a server's https:// address or a run folder")
    servers = [location for location in locations if _is_server(location)]
    if servers and len(locations) > 1:
        named = f"{', '.join(map(without_credentials, locations))}{_folder_hint(servers)}"
        raise UsageError(f"one audit reads one W&B server, these are several locations: {named}")
    try:
        if servers:
            return _open_server(servers[0])
        from pth_tracker_wandb.local import LocalTracker

        return LocalTracker(locations)
    except ImportError as error:
        raise AdapterUnavailable(f"the W&B SDK cannot be loaded ({error}): pip install '{SDK}'") from error


def _open_server(location: str) -> Tracker:
    from pth_tracker_wandb.server import ServerTracker

    try:
        return ServerTracker(location)
    except TrackerError as error:
        hint = _folder_hint([location])
        if not hint:
            raise
        raise TrackerError(f"{error}{hint}") from None


def _folder_hint(servers: Sequence[str]) -> str:
    """What somebody may have meant who wrote ``wandb`` beside a folder of that name."""
    meant = "wandb" in servers and _is_local("wandb")
    return " (`wandb` is the server; the folder of that name here is `./wandb`)" if meant else ""


def _is_server(location: str) -> bool:
    if location == "wandb" or location.startswith(("http://", "https://")):
        return True
    return looks_like_entity(location) and not Path(location).exists() and not _is_local(location)


def _is_local(location: str) -> bool:
    from pth_tracker_wandb.local import recognises_path

    return recognises_path(Path(location).expanduser())

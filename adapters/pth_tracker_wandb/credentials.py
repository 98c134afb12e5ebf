"""Which W&B server is meant and whether there are credentials for it, found out without the SDK."""

from __future__ import annotations

import netrc
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pth_tracker.errors import UsageError
from pth_tracker.tracker import without_credentials
from pth_tracker.values import hide_secrets, without_environment

KNOWN_SERVERS: Final = ("https://api.wandb.ai", "https://api.forge.coreweave.com")
"""The public service's addresses; which one the SDK uses by default depends on its release."""

_APP_HOSTS: Final = {"wandb.ai": "https://api.wandb.ai", "www.wandb.ai": "https://api.wandb.ai"}
_ENTITY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_QUERY: Final = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]*")


@dataclass(frozen=True)
class ServerAddress:
    """A W&B server, and the entity whose projects are meant where none is given with the project."""

    base_url: str
    """``""``: whichever the environment and the user's W&B settings configure."""
    entity: str = ""

    def __str__(self) -> str:
        return f"{self.base_url}/{self.entity}" if self.entity else self.base_url


def configured_base_url() -> str:
    """The server that ``WANDB_BASE_URL`` names, ``""`` where it is unset."""
    return os.environ.get("WANDB_BASE_URL", "").rstrip("/")


def looks_like_entity(text: str) -> bool:
    """Whether ``text`` could be the name of a W&B user or team."""
    return _ENTITY.fullmatch(text) is not None


def parse_location(location: str) -> ServerAddress:
    """The server and entity that ``wandb``, ``wandb:ENTITY``, ``ENTITY`` or an address name.

    Raises:
        UsageError: the text is none of these.
    """
    bare = location.removeprefix("wandb:").strip("/") if location != "wandb" else ""
    if not bare:
        return ServerAddress(configured_base_url())
    if looks_like_entity(bare):
        return ServerAddress(configured_base_url(), bare)
    parts = urlsplit(bare)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise UsageError(
            f"{without_credentials(location)!r} is no W&B address: write `wandb`, `wandb:ENTITY` or https://HOST, and "
            "the API key into WANDB_API_KEY"
        )
    base = configured_base_url()
    if not (base and (bare == base or bare.startswith(f"{base}/"))):
        base = f"{parts.scheme}://{parts.netloc}"
    entity = bare.removeprefix(base).strip("/")
    if entity and not looks_like_entity(entity):
        raise UsageError(f"{location!r} names {entity!r}, which is no W&B entity: give the project with --project")
    return ServerAddress(_APP_HOSTS.get(base.partition("://")[2], base), entity)


def has_credentials(base_url: str) -> bool:
    """Whether an API key or an identity token for this server is configured, as the SDK would find it."""
    named = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
    return any(os.environ.get(name) for name in named) or has_netrc_entry(base_url)


def has_netrc_entry(base_url: str) -> bool:
    """Whether the netrc file (``NETRC``, else ``~/.netrc``) holds a key for this server."""
    named = os.environ.get("NETRC")
    places = [Path(named)] if named else [Path("~/.netrc"), Path("~/_netrc")]
    for place in places:
        try:
            entries = netrc.netrc(str(place.expanduser()))
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
        host = urlsplit(base_url).netloc
        known = [urlsplit(server).netloc for server in KNOWN_SERVERS]
        for name in [host, *(known if host in known else ())]:
            found = entries.authenticators(name)
            if found and found[2]:
                return True
    return False


def without_secrets(text: str, api_key: str | None = None) -> str:
    """``text`` on one line, without the API key and without the signatures in the query part of URLs."""
    for key in {api_key or "", os.environ.get("WANDB_API_KEY", "")}:
        if key:
            text = text.replace(key, "(redacted)")
    return hide_secrets(without_environment(" ".join(_QUERY.sub(r"\1", text).split())))

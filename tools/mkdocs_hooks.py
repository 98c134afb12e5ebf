"""Hooks of the documentation's builder: what is generated on the fly, and a navigation of the pages that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = "schema/audit_v1.json"
"""Where the site has the schema of the JSON report."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The configuration without the entries of the navigation whose pages are not written."""
    config.nav = _existing(config.nav, Path(config.docs_dir))
    return config


def _existing(entries: Any, docs: Path) -> Any:
    if isinstance(entries, str):
        return entries if (docs / entries).exists() else None
    if isinstance(entries, dict):
        kept = {title: _existing(entry, docs) for title, entry in entries.items()}
        return {title: entry for title, entry in kept.items() if entry} or None
    return [entry for entry in (_existing(one, docs) for one in entries) if entry]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of the site, the JSON report's schema among them."""
    source = ROOT / "pth_tracker" / "render" / SCHEMA
    files.append(File.generated(config, SCHEMA, content=source.read_bytes()))
    return files

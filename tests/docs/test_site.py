"""The documentation is built strictly, without a network, and has what it links to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import pth_tracker
from pth_tracker.checks import all_rules
from pth_tracker.design.schema import Design

ROOT = Path(__file__).resolve().parents[2]


class Loaded(HTMLParser):
    """The addresses that a browser loads for a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source"):
            self.addresses += [own["src"]] if own.get("src") else []
        if tag == "link" and own.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.addresses.append(own.get("href", ""))
        self.ids |= {own["id"]} if own.get("id") else set()

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), "a strict build says nothing"
    return folder


def pages(site: Path) -> dict[str, Loaded]:
    return {
        str(path.relative_to(site)): Loaded(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    found = pages(site)
    assert len(found) >= 18
    for name, page in found.items():
        outside = [one for one in page.addresses if re.match(r"(?:\w+:)?//", one)]
        assert not outside, f"{name} loads {outside}"


def test_every_page_is_built_and_every_rule_and_name_is_on_one(site: Path) -> None:
    found = pages(site)
    for source in (ROOT / "docs").rglob("*.md"):
        name = source.relative_to(ROOT / "docs").with_suffix("")
        wanted = "index.html" if str(name) == "index" else str(name.parent / name.name / "index.html")
        assert wanted in found, f"{source.name} is not on the site"
    assert {rule.slug for rule in all_rules()} <= found["rules/index.html"].ids
    api = found["api/index.html"]
    documented = {one.rsplit(".", 1)[1] for one in api.ids if one.startswith("pth_tracker.")}
    assert set(pth_tracker.__all__) <= documented
    design = found["design-file/index.html"].text
    assert all(f"\n{name}\n" in design for name in Design.model_fields if name != "source")


def test_the_schema_of_the_json_report_is_on_the_site(site: Path) -> None:
    published = json.loads((site / "schema" / "audit_v1.json").read_text(encoding="utf-8"))
    assert published == json.loads((ROOT / "pth_tracker/render/schema/audit_v1.json").read_text(encoding="utf-8"))
    text = pages(site)["reports/index.html"].text
    assert all(f"\n{name}\n" in text for name in published["properties"])

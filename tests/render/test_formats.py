"""What holds of every format: text from a tracker stays text, and is all there."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from example_audits import run
from pth_tracker.cli.options import StdoutFormat
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit, Coverage, Finding, Level, Outcome, Verdict
from pth_tracker.render import FORMATS, Format, render
from pth_tracker.render.text import safe_text

NAMES = [
    "<script>alert(1)</script>",
    "[red]x[/red]",
    '=HYPERLINK("https://evil.example";"x")',
    "\x1b[31mred\x1b[0m\x9b2J",
    "a|b`c`*d*_e_",
    "]]></failure><b>&amp;&lt;",
    "{{ 7*7 }}{% raw %}${x}",
    "</script><!-- --><img src=x onerror=alert(1)>",
]


def audit_of(name: str) -> Audit:
    """An audit in which every text that a tracker gives is ``name``."""
    return Audit(
        project=name,
        runs={"e": run("e", name, arm=name, verdict=Verdict.FAIL, rules=("idle-clip",))},
        findings=[
            Finding(1, Level.FAIL, name, name, {name: name}, rule="idle-clip", runs=("e",), blames=("e",), arms=(name,))
        ],
        coverage=[Coverage("idle-clip", 1, name, Outcome.FAILED, ("e",))],
        notes=[name],
    )


class Shown(HTMLParser):
    """The text of a page, without that of its own scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.scripts, self._silent = "", [""], False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent = tag in ("script", "style")
        assert not any(name.startswith("on") for name, _ in attrs), f"{tag} has a handler"
        assert tag != "img"
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if self._silent:
            self.scripts[-1] += data
        else:
            self.text += data


def from_html(text: str) -> str:
    page = Shown(text)
    assert not any("alert(1)" in script for script in page.scripts)
    return page.text


READERS: dict[str, Callable[[str], str]] = {
    "text": str,
    "json": lambda text: "\n".join(str(value) for value in json.loads(text)["findings"][0].values()),
    "html": from_html,
    "markdown": lambda text: from_html(
        MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    ).replace("\u200b", ""),
    "junit": lambda text: " ".join(f"{one.text} {' '.join(one.attrib.values())}" for one in ET.fromstring(text).iter()),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_text_of_a_tracker_stays_text_in_every_format(form: Format, name: str) -> None:
    shown = READERS[form.name](render(audit_of(name), form, ExitCode.CHECK_FAILED))
    wanted = name if form.name == "json" else safe_text(name)
    assert "".join(wanted.split()) in "".join(shown.split())
    if form.name != "json":
        assert all(char in "\n\t\ufe0f" or char.isprintable() for char in shown if char != "\xa0")


def test_every_format_can_be_asked_for_by_name() -> None:
    assert {one.name for one in FORMATS} == set(StdoutFormat) == set(READERS)
    assert len({one.suffix for one in FORMATS}) == len(FORMATS)

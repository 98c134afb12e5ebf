from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from example_audits import AUDITS, full_audit, run
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit, Finding, Level, Verdict
from pth_tracker.render.markdown import escape, to_markdown
from pth_tracker.render.text import safe_text

ALLOWED = set("h3 p ul li strong code br details summary table thead tbody tr th td a".split())
HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "| a | b |",
    "`code` ``x``",
    "line\n\n# heading\n- item",
    "@everyone and @octo-cat",
    "fixes #12, GH-12, group!7",
    '=HYPERLINK("https://evil.example";"x")',
    "\x1b[31mred\x1b[0m",
    "**bold** __bold__ ~~gone~~ $x$",
    "</details></summary><h1>",
    "&lt;script&gt; &#60;b&#62;",
    "https://evil.example/a_b www.evil.example a@b.example",
    "trailing backslash\\",
    "<!-- -->",
]


class Page(HTMLParser):
    """The tags, links and plain text of a page of HTML, and whether its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"still open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]
        assert {name for name, _ in attrs} <= {"href", "style"}
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment hides {data!r}")


def shown(markdown: str) -> Page:
    """What a forge shows of a page: CommonMark with tables, strikethrough and the HTML that it lets through."""
    return Page(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))


def plain(text: str) -> str:
    return text.replace("\u200b", "").strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text: str) -> None:
    for page in (
        f"- {escape(text)}",
        f"| a |\n| --- |\n| {escape(text)} |",
        f"<details><summary>{escape(text)}</summary>",
    ):
        if page.startswith("<details>"):
            page += "\n\nx\n\n</details>"
        found = shown(page)
        assert set(found.tags) <= {"ul", "li", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "p"}
        assert safe_text(text).strip() in plain(found.text)


@given(st.text(st.characters(exclude_characters="\u200b"), max_size=60))
def test_any_text_survives_as_text(text: str) -> None:
    found = shown(f"x{escape(text)}x")
    assert found.tags == ["p"]
    assert plain(found.text) == f"x{safe_text(text)}x"


def test_nobody_is_mentioned_and_no_issue_is_linked() -> None:
    text = shown(f"by {escape('@all, #12, !7, GH-3 and :tada:')}").text
    assert not re.search(r"@\w|#\d|!\d|GH-\d|:\w+:", text)
    assert plain(text) == "by @all, #12, !7, GH-3 and :tada:"


@pytest.mark.parametrize("name", AUDITS)
def test_a_page_has_only_tags_of_our_own(name: str) -> None:
    page = to_markdown(AUDITS[name](), ExitCode.CHECK_FAILED)
    assert page.endswith("\n") and all(char == "\n" or char.isprintable() or char == "\ufe0f" for char in page)
    assert set(shown(page).tags) <= ALLOWED
    assert "sk-1234" not in page and "hunter2" not in page


def test_the_page_opens_with_the_verdict_and_has_a_line_for_each_finding_that_counts() -> None:
    audit = full_audit()
    page = to_markdown(audit, ExitCode.CHECK_FAILED)
    first, _, reason, *_ = page.split("\n")
    assert first.startswith("### ") and first.endswith("pth-tracker: FAILED")
    assert reason == "Idle Clip on 3 runs, Lost Seed on 3 runs."
    visible = page.partition("<details>")[0]
    assert "| 2 | 1 | 1 | 3 | 7 | 1 |" in visible
    lines = [line for line in visible.split("\n") if line.startswith("- ")]
    assert [re.findall(r"FAIL|WARN|could not be read", line)[0] for line in lines] == [
        "FAIL",
        "FAIL",
        "WARN",
        "could not be read",
    ]
    assert "**Lost Seed** (lost-seed, check 2: Configuration, seeds and data): 3 runs are named" in visible
    assert "blames tis-{s42,s43,s44}" in visible
    whole = plain(shown(page).text)
    for words in (
        "Set data.seed where importance sampling is switched on",
        "sampler-mismatch, clip-misses-lag on verl runs; missing sampler_k3_kl or sampler_kl",
        "explained by idle-clip: ratio-one-by-construction",
        "reason: known, section 4",
        "stopped after 3 updates",
        "grpo-s43: the server refuses (HTTP 403)",
        "Since the last audit, 2026-02-28 04:30 UTC: 1 new, 1 still open, 1 resolved",
        "resolved: Stuck Batch on replay-s42: 33 updates",
        "exit status 1: a check failed",
    ):
        assert words in whole, words


def test_runs_link_to_their_pages_and_nothing_else_does() -> None:
    audit = Audit(
        runs={
            "a": run("a", "a", url="https://me:hunter2@w.example/p/runs/1?x=(1)[b]>"),
            "b": run("b", "b", url="javascript:alert(1)"),
            "d": run("d", "d", url="https://w.example/\n[b](javascript:alert(1))"),
            "e": run("e", "e", url="https:w.example"),
            "c": run("c", "c", verdict=Verdict.FAIL),
        }
    )
    assert shown(to_markdown(audit)).links == ["https://me@w.example/p/runs/1?x=%281%29%5Bb%5D%3E"]


@pytest.mark.parametrize("letter", ["x", "\u5b66"])
def test_a_large_audit_fits_into_a_comment_and_says_what_is_left_out(letter: str) -> None:
    audit = full_audit()
    runs = {f"k{i}": run(f"k{i}", f"{letter * 80}-{i}", notes=(f"{letter * 300} {i}",)) for i in range(1000)}
    audit.runs |= runs
    blamed = tuple(runs)
    audit.findings += [
        Finding(2, Level.FAIL, f"finding {i}", letter * 3000, rule="drift-within-arm", runs=blamed, blames=blamed)
        for i in range(300)
    ]
    page = to_markdown(audit, ExitCode.CHECK_FAILED)
    assert len(page.encode()) <= 65_536 and len(page) <= 65_536
    assert set(shown(page).tags) <= ALLOWED, "what does not fit is left out whole"
    said = re.search(r"Left out, to fit into a comment: (.*);", page)
    assert said is not None
    told = {kind: int(number) for number, kind in re.findall(r"(\d+) ([a-z' ]+)", said[1])}
    lines = len(re.findall(r"^- .* FAIL ", page, re.M))
    evidence = page.count("evidence and remedy</summary>")
    assert lines + told.get("findings", 0) == 302
    assert evidence + told["findings' evidence"] == 303
    assert "exit status 1" in page


def test_a_small_audit_leaves_nothing_out() -> None:
    assert "Left out" not in to_markdown(full_audit())
    quiet = replace(full_audit(), findings=[], not_judged=[], coverage=[], errors=[], notes=[], write_back=None)
    assert "<summary>Not judged" not in to_markdown(quiet)


def test_the_command_writes_markdown_by_name_and_by_suffix(
    demo_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", "--project", "rl-stale-demo", "--tracker", f"sqlite:///{demo_store}", "--no-write"]
    assert main([*command, "--format", "markdown", "-o", str(tmp_path / "x.md")]) == ExitCode.CHECK_FAILED
    out = capsys.readouterr().out
    assert "pth-tracker: FAILED\n\nIdle Clip on 3 runs, Lost Seed on 3 runs, Stuck Batch on 3 runs" in out
    when = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
    assert when.sub("", (tmp_path / "x.md").read_text(encoding="utf-8")) == when.sub("", out)
    shown(out)

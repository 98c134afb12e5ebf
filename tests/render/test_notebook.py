from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from example_audits import AUDITS, full_audit
from pth_tracker import Audit, Report, RunSet, find_tracker, read_runs
from pth_tracker.errors import NothingSelected, ProjectNotFound
from pth_tracker.model import Finding, Level
from pth_tracker.render.notebook import MAX_ROWS, report_html
from pth_tracker.render.text import safe_text
from pth_tracker.runs import Run, RunRef, RunState, SourceRun
from synthetic import PROJECT, MemoryTracker, comparison, unreadable

EVIL = "<script>alert(1)</script>\x1b[31m\u202e\" onmouseover='x' =HYPERLINK(1) [red]x[/red]"


class Piece(HTMLParser):
    """The tags, attributes and text of a piece of HTML whose tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str | None] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href"]
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


TAGS = set("div p b br span table thead tbody tr th td details summary code a".split())


def shown(thing: Report | RunSet) -> Piece:
    piece = Piece(thing._repr_html_())
    assert piece.tags <= TAGS and piece.attributes <= {"style", "href", "rel"}
    return piece


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_shows_itself_with_tags_of_our_own(name: str) -> None:
    assert "sk-1234" not in shown(AUDITS[name]()).text


def test_an_audit_shows_verdict_findings_and_what_was_not_judged() -> None:
    text = shown(full_audit()).text
    assert text.startswith("FAILED: Idle Clip on 3 runs, Lost Seed on 3 runs")
    assert text.index("Idle Clip idle-clip") < text.index("Lost Seed lost-seed") < text.index("too-few-seeds")
    assert "tis-{s42,s43,s44}" in text and "Set data.seed where importance sampling" in text
    assert "Not judged: sampler-mismatch, clip-misses-lag, rogue-normaliser" in text


def test_hostile_text_stays_text() -> None:
    report = Report(subject=EVIL)
    report.findings.append(Finding(1, Level.FAIL, EVIL, EVIL, rule=EVIL, remedy=EVIL, blames=(EVIL,)))
    source = SourceRun(RunRef("p", "r"), EVIL, RunState.FINISHED, group=EVIL, url="javascript:alert(1)")
    for piece in (shown(report), shown(RunSet([Run((source,), label=EVIL)]))):
        assert safe_text(EVIL) in piece.text
        assert not piece.links


@pytest.mark.parametrize(
    ("url", "links"),
    [
        ("https://w.example/r?a=1&b=2", ["https://w.example/r?a=1&b=2"]),
        ("https://me:hunter2@w.example/r", ["https://me@w.example/r"]),
        ("https://w.example/\x1b[2J", []),
        ("https:w.example", []),
        ("", []),
    ],
)
def test_only_web_pages_are_linked_and_without_credentials(url: str, links: list[str]) -> None:
    source = SourceRun(RunRef("p", "r"), "r", RunState.FINISHED, url=url)
    assert shown(RunSet([Run((source,), label="r")])).links == links


def test_a_report_of_the_library_and_long_tables_stay_small() -> None:
    report = Report(subject="check 6")
    assert shown(report).text == "PASSEDcheck 6"
    for number in range(1000):
        report.add(6, "warn", f"finding {number} " + "x" * 5000)
    page = report_html(report)
    assert len(page) < 60_000 and f"and {1000 - MAX_ROWS} more findings" in page
    assert "PASSED WITH WARNINGS: 0 failed, 1000 warnings" in Piece(page).text


def test_runs_of_a_tracker_are_read_as_plain_pandas(demo_store: Path) -> None:
    tracker, _ = find_tracker("rl-stale-demo", [f"sqlite:///{demo_store}"])
    runs = read_runs(tracker, "rl-stale-demo", metrics=["rollout_corr/k3_kl", "actor/pg_clipfrac"])
    assert len(runs) == 12 and "grpo-seed43" in shown(runs).text
    frame = runs.histories
    assert type(frame) is pd.DataFrame
    assert set(frame.columns) == {"rollout_corr/k3_kl", "actor/pg_clipfrac"}
    clipped = frame.xs("grpo-seed43")["actor/pg_clipfrac"]
    assert list(clipped) == [0.0] * 96
    assert [runs.configs["data.seed"][name] for name in ("tis-seed43", "grpo-seed43")] == [None, 43]
    assert runs.runs.loc["grpo-seed43", "framework"] == "verl"
    assert read_runs(tracker, "rl-stale-demo", metrics=()).histories.empty
    assert len(read_runs(tracker, "rl-stale-demo", metrics=[], where="attributes.run_name LIKE 'tis-%'")) == 3
    with pytest.raises(NothingSelected, match="rl-stale-demo has no run"):
        read_runs(tracker, "rl-stale-demo", where="attributes.run_name = 'none'")
    with pytest.raises(ProjectNotFound):
        read_runs(tracker, "nothing")
    tracker.close()


def test_a_run_that_cannot_be_read_is_named_and_has_no_history(caplog: pytest.LogCaptureFixture) -> None:
    first, *others = comparison()
    runs = read_runs(MemoryTracker([unreadable(first), *others]), PROJECT)
    assert len(runs) == 1 + len(others)
    assert set(runs.histories.index.get_level_values("run")) == {run.label for run in runs[1:]}
    assert caplog.messages == [f"{runs[0].name} could not be read: the server sends no history (HTTP 500)"]


def test_an_empty_audit_and_no_runs_show_something() -> None:
    assert shown(Audit()).text and shown(RunSet([])).text.startswith("0 runs")
    assert repr(RunSet([])) == "RunSet of 0 runs"

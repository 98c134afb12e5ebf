"""The HTML page: everything that a reader needs is on it, in order, and nothing of it is anything but text."""

from __future__ import annotations

import logging
import re
import unicodedata
from dataclasses import replace
from functools import cache

import pytest

from example_audits import AUDITS, full_audit, hostile_audit, passed_audit, run
from html_page import Node, read_page
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit, Coverage, DesignInForce, Finding, Level, NotJudged, Outcome
from pth_tracker.render import html, page, plots
from pth_tracker.render.html import to_html
from pth_tracker.render.svg import COLOURS
from pth_tracker.render.text import safe_text
from synthetic import ARMS, ONE_STEP, audit_of, comparison, idle, with_metrics

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
SEEDS = (41, 42, 43)


@cache
def full() -> Node:
    return read_page(to_html(full_audit(), ExitCode.CHECK_FAILED))


@cache
def drawn() -> Audit:
    """A real audit with pictures of both kinds."""
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS), "grpo-*", idle())
    return audit_of(runs)


def headings(node: Node, tag: str) -> list[str]:
    return [one.text for one in node.all(tag)]


@pytest.mark.parametrize("name", AUDITS)
@pytest.mark.parametrize("status", [None, ExitCode.CHECK_FAILED])
def test_every_audit_makes_a_whole_page_that_needs_nothing_else(name: str, status: ExitCode | None) -> None:
    text = to_html(AUDITS[name](), status)
    assert text.startswith("<!DOCTYPE html>\n") and text.endswith("</html>\n")
    assert text == to_html(AUDITS[name](), status), "the same audit gives the same page"
    tree = read_page(text)
    assert [meta.attrs["content"] for meta in tree.all("meta", http_equiv="Content-Security-Policy")] == [POLICY]
    assert tree.one("html").attrs["lang"] == "en" and tree.one("title").text and len(tree.all("h1")) == 1
    ids = [node.attrs["id"] for node in tree.walk() if "id" in node.attrs]
    assert len(ids) == len(set(ids))
    for node in tree.walk():
        assert not [name for name in node.attrs if name.startswith("on")], "no handler in an attribute"
        assert "src" not in node.attrs and node.tag not in ("iframe", "object", "embed", "base", "form")
        link = node.attrs.get("href", "")
        assert node.tag in ("a", "use", "link") or not link
        if link.startswith("#"):
            assert link[1:] in ids, link
        elif link:
            assert link == "data:," if node.tag == "link" else link.startswith(("http://", "https://"))


def test_a_page_with_pictures_is_whole_too() -> None:
    tree = read_page(to_html(drawn()))
    figures = tree.all("figure")
    assert len(figures) == 3
    for figure in figures:
        (svg,) = [one for one in figure.all("svg") if one.attrs.get("role") == "img"]
        words = [one.attrs["id"] for one in svg.walk() if one.tag in ("title", "desc")]
        assert svg.attrs["aria-labelledby"].split() == words
        assert figure.one("figcaption").text and figure.one("h4").text == svg.one("title").text
    group = tree.one("section", id="group-idle-clip")
    assert len(group.all("figure")) == 1 and "grpo-seed41" in group.one("ul", class_="legend").text
    assert len(tree.one("section", id="pictures").all("figure")) == 2


def test_a_picture_finds_a_place_whatever_its_finding_is_called() -> None:
    audit = replace(drawn(), findings=[replace(one, tag="") for one in drawn().findings])
    tree = read_page(to_html(audit))
    assert len(tree.one("section", id="group-check-1").all("figure")) == 1
    audit.findings = [replace(one, tag="", check=5) for one in audit.findings]
    assert len(read_page(to_html(audit)).one("section", id="pictures").all("figure")) == 3


def test_the_verdict_and_the_counts_come_first() -> None:
    banner = full().one("header", class_="banner")
    assert "fail" in banner.attrs["class"] and banner.one("h1").text == "✗ Failed"
    assert banner.one("p", class_="reason").text == "Idle Clip on 3 runs, Lost Seed on 3 runs"
    meta = banner.one("p", class_="meta").text
    assert "7 runs in mlflow at postgresql://audit@db/mlflow, chosen because MLFLOW_TRACKING_URI is set" in meta
    assert "2026-03-01 04:30 UTC" in meta and meta.endswith("version 0.1.0 · exit status 1: a check failed")
    assert [one.text for one in full().one("ul", class_="tiles").all("li")] == [
        "2 failed", "1 warning", "1 for information", "1 rule passed", "3 not fully judged", "7 runs",
        "1 unreadable",
    ]  # fmt: skip
    since = full().one("section", id="since")
    assert [one.text for one in since.all("li")] == [
        "new fail: Lost Seed on tis-{s42,s43,s44}: one order", "resolved: Stuck Batch on replay-s42: 33 updates",
        "not looked at again: Idle Clip on grpo-s45: 0 of 60",
    ]  # fmt: skip
    assert headings(full(), "h2") == [
        since.one("h2").text, "What was checked", "Findings", "Design in force", "Runs", "Not judged",
        "Passed, left out and noted", "Write-back",
    ]  # fmt: skip


def test_coverage_by_check_and_arm_blames_the_arm_and_not_its_comparison() -> None:
    rows = full().one("table", class_="matrix").table()
    assert rows[0] == ["Check", "grpo baseline", "tis", "in no arm"]
    assert rows[1] == ["1 Ratio", "✗ failed Idle Clip 1 not judged", "✓ passed 1 rule 1 not judged", "no rule"]
    assert rows[2] == ["2 Configuration, seeds and data", "no rule", "✗ failed Lost Seed", "no rule"]
    assert rows[3] == ["3 Batches", "✓ passed 1 rule", "✓ passed 1 rule", "no rule"]
    assert rows[6] == ["6 Paired by seed", "! warned too-few-seeds", "! warned too-few-seeds", "no rule"]
    assert len(rows) == 8
    every = full().one("table", id="rules-table").table()
    assert every[1:] == [
        ["1", "idle-clip", "verl runs", "✗ failed", "measured", "6"],
        ["1", "sampler-mismatch", "verl runs", "– not judged", "", "6"],
        ["3", "stuck-batch", "verl runs", "✓ passed", "metrics", "6"],
    ]


@pytest.mark.parametrize(("mark", "word"), [("because_of", "explained"), ("ignored", "ignored")])
def test_a_check_whose_finding_does_not_count_has_not_passed(mark: str, word: str) -> None:
    audit = Audit(runs={"a": run("a", "a", arm="grpo")})
    audit.design = DesignInForce(arms={"grpo": ("a",)})
    audit.coverage = [Coverage("collapsed", 5, "grpo", Outcome(word), ("a",))]
    found = Finding(5, Level.WARN, "it collapsed", rule="collapsed", runs=("a",), blames=("a",))
    audit.findings = [replace(found, **{mark: "stuck-batch"})]  # type: ignore[arg-type]
    rows = read_page(to_html(audit)).one("table", class_="matrix").table()
    assert rows[5][1].endswith(f"{word} collapsed")


def test_many_arms_stand_in_rows() -> None:
    audit = Audit(runs={f"k{i}": run(f"k{i}", f"r{i}", arm=f"arm{i}") for i in range(9)})
    audit.design = DesignInForce(arms={f"arm{i}": (f"k{i}",) for i in range(9)})
    audit.coverage = [Coverage("stuck-batch", 3, "arm4", Outcome.PASSED, ("k4",))]
    rows = read_page(to_html(audit)).one("table", class_="matrix").table()
    assert rows[0][:2] == ["Arm", "1 Ratio"] and len(rows) == 10
    assert rows[5] == ["arm4", "no rule", "no rule", "✓ passed 1 rule", *["no rule"] * 4]


def test_findings_are_grouped_by_bug_and_then_by_check() -> None:
    section = full().one("section", id="findings")
    assert headings(section, "h3") == ["Idle Clip", "Lost Seed", "Check 6: Paired by seed", "Found and not counted"]
    lost = section.one("section", id="group-lost-seed").one("article")
    assert "fail" in lost.attrs["class"] and lost.attrs["data-level"] == "fail"
    assert lost.one("h4").text == "3 runs are named after 3 data seeds and read their data in one order"
    assert [one.text for one in lost.all("dd")] == [
        "tis", "tis-s42 , tis-s43 , tis-s44", "grpo-s42 , grpo-s43 , grpo-s44"
    ]  # fmt: skip
    assert "data.seed is null in every run of tis, and 42, 43, 44 in grpo." in lost.text
    assert lost.one("p", class_="remedy").text.startswith("Remedy Set data.seed where importance sampling")
    assert lost.one("details", class_="evidence").one("table").table() == [
        ["key", "data.seed"], ["effective", "{'tis': ['default order']}"], ["share", "NaN"],
    ]  # fmt: skip
    paired = section.one("section", id="group-check-6").all("article")
    assert [one.attrs["data-level"] for one in paired] == ["warn", "info"]
    assert "inferred" in paired[0].one("header").text and "inferred" not in paired[1].one("header").text
    rest = section.all("section", class_="group")[-1].text
    assert "explained by idle-clip : ratio-one-by-construction" in rest
    assert "explained by lost-seed : no-common-seed" in rest
    assert "ignored by the design : collapsed (warn) on grpo-s42 , grpo-s43 , grpo-s44 : 3 of 3 runs" in rest
    assert "reason: known, section 4" in rest


def test_gathered_evidence_is_a_table_with_a_row_for_each_run() -> None:
    article = read_page(to_html(drawn())).one("section", id="group-idle-clip").one("article")
    rows = article.one("details").one("table").table()
    assert rows[0][:3] == ["run", "updates", "clip_fraction"]
    assert [row[:3] for row in rows[1:]] == [[f"grpo-seed{seed}", "60", "actor/pg_clipfrac"] for seed in SEEDS]


def test_the_design_says_what_was_inferred_and_what_declares_it() -> None:
    section = full().one("section", id="design")
    rows = dict(zip(headings(section, "dt"), headings(section, "dd")))
    assert rows["arms"] == "grpo (3 runs), tis (3 runs) inferred --arm NAME=GLOB declares it"
    assert rows["replicate"] == "data.seed"
    assert rows["metric"] == (
        "val-core/openai/gsm8k/acc/mean@1 (last, higher is better) inferred --metric KEY declares it"
    )
    assert rows["baseline"] == "grpo inferred baseline in a design file declares it"
    assert "1 run is in no arm: tis-smoke" in section.text
    declared = read_page(to_html(passed_audit())).one("section", id="design").text
    assert "Nothing of it was inferred." in declared


def test_runs_unjudged_rules_errors_notes_and_writing() -> None:
    rows = full().one("table", id="runs-table").table()
    assert [row[0] for row in rows[1:]] == [*(f"{a}-s{s}" for a in ("grpo", "tis") for s in (42, 43, 44)), "tis-smoke"]
    assert rows[1] == ["grpo-s42", "✗ fail", "grpo", "42", "0.1", "–", "finished", "verl", "idle-clip"]
    assert rows[7][-1] == "not counted: stopped after 3 updates"
    unjudged = full().one("table", id="unjudged-table").table()
    assert unjudged[1] == [
        "sampler-mismatch , clip-misses-lag", "verl runs", "sampler_k3_kl or sampler_kl",
        "Set calculate_log_probs=True.",
    ]  # fmt: skip
    assert full().one("div", id="errors").text == (
        "Could not be read: 1 run grpo-s45 : the server sends no history (HTTP 500)"
    )
    notes = full().one("section", id="rest").text
    assert "2 files were recognised by nothing" in notes and "tis-smoke: the log is cut short" in notes
    written = full().one("section", id="write-back").text
    assert "Written: marks of 2 runs (1 fail, 1 cleared)." in written and "audit run: run pth-audit" in written
    assert "refused: grpo-s43: the server refuses (HTTP 403)" in written


def test_claims_stand_apart_with_their_verdict() -> None:
    audit = passed_audit()
    told = {"claim": "TIS is stable", "collapsed": 0}
    audit.findings = [
        Finding(7, Level.INFO, 'supported: "TIS"', "0 of 3 collapsed.", told, rule="claim-supported", runs=("a",)),
        Finding(7, Level.FAIL, "the runs contradict", "-3 points.", {"claim": "Ours <b>"}, rule="claim-contradicted"),
    ]
    audit.not_judged = [
        NotJudged(rule, 7, 'claim "It scales"', ("testable_claim",), "no run at 128", ("a",))
        for rule in ("claim-contradicted", "claim-undermined", "claim-supported")
    ]
    tree = read_page(to_html(audit))
    articles = tree.one("section", id="claims").all("article")
    assert [(one.one("header").text, one.one("blockquote").text) for one in articles] == [
        ("✗ contradicted", "Ours <b>"), ("✓ supported", "TIS is stable"), ("– not judged", "It scales"),
    ]  # fmt: skip
    assert "no run at 128" in articles[2].text and articles[1].one("table").table() == [["collapsed", "0"]]
    assert not tree.one("section", id="findings").all("article")


NAMES = (
    "<script>alert(1)</script>",
    "[red]x[/red]",
    '=HYPERLINK("http://evil.example/","x")',
    "a\x1b[31mred\x1b[0m\u202egnp.exe\r\nPASSED",
    "</style></title><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "' onmouseover='alert(1)",
    "\ud800\u2028line",
)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_name_holds_stays_text(name: str) -> None:
    audit = full_audit()
    audit.runs = {key: replace(one, label=name, name=name) for key, one in audit.runs.items()}
    audit.findings = [replace(one, title=name, detail=name, remedy=name, arms=(name,)) for one in audit.findings]
    audit.design = replace(audit.design, arms={name: ("g42",)}, notes=(name,), metric=name)
    audit.project = audit.chosen = name
    text = to_html(audit)
    tree, plain = read_page(text), read_page(to_html(full_audit()))
    tags = [node.tag for node in tree.walk()]
    assert set(tags) <= {node.tag for node in plain.walk()} and tags.count("script") == 1
    assert tree.one("table", id="runs-table").table()[1][0] == " ".join(safe_text(name).split())
    assert all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)
    text.encode()
    assert 'href="http' not in text


def test_hostile_audits_show_no_secret_and_no_password() -> None:
    text = to_html(hostile_audit())
    assert "sk-1234" not in text and "(redacted)" in text
    audit = full_audit()
    audit.chosen = ""
    assert "hunter2" not in to_html(audit) and "mlflow at postgresql://" in to_html(audit)


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://wandb.ai/team/p/runs/1?a=1&b=<x>", "https://wandb.ai/team/p/runs/1?a=1&b=<x>"),
        ("http://127.0.0.1:5000/#/runs/1", "http://127.0.0.1:5000/#/runs/1"),
        ("https://me:secret@host/runs/1", "https://me@host/runs/1"),
        ("javascript:alert(1)", ""),
        ("data:text/html,<script>", ""),
        ("file:///etc/passwd", ""),
        ("//host/path", ""),
        ("https://host/\u202egnp", ""),
        ("https://[bad", ""),
        ("", ""),
    ],
)
def test_only_web_pages_are_linked_and_never_with_a_password(url: str, link: str) -> None:
    audit = passed_audit()
    audit.runs = {key: replace(one, url=url) for key, one in audit.runs.items()}
    audit.findings = [Finding(5, Level.WARN, "t", rule="collapsed", runs=("a",), blames=("a",))]
    tree = read_page(to_html(audit))
    links = [one.attrs["href"] for one in tree.all("a", class_="name")]
    assert links == ([link, link] if link else [])
    assert "secret" not in to_html(audit)


def test_long_lists_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tuple(f"k{i}" for i in range(40))
    audit = Audit(runs={key: run(key, f"sweep-{key}") for key in keys})
    evidence = {f"sweep-{key}": {"updates": 3} for key in keys}
    audit.findings = [Finding(2, Level.WARN, "t", rule="drift-within-arm", runs=keys, blames=keys, evidence=evidence)]
    audit.coverage = [Coverage("drift-within-arm", 2, f"s{i}", Outcome.WARNED, ()) for i in range(40)]
    monkeypatch.setattr(page, "MOST_ROWS", 30)
    tree = read_page(to_html(audit))
    article = tree.one("article")
    assert article.one("dd").text.endswith("sweep-k11 and 28 more")
    assert article.one("a", href="#runs").attrs["data-find"] == "drift-within-arm"
    assert "28 more left out" in article.text
    assert len(tree.one("table", id="runs-table").table()) == 31 and "10 more runs left out" in tree.text
    assert len(tree.one("table", id="rules-table").table()) == 31 and "10 more entries left out" in tree.text


def test_a_picture_that_cannot_be_drawn_does_not_take_the_report_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(plots, "ratio_figure", fail)
    with caplog.at_level(logging.WARNING, "pth_tracker"):
        tree = read_page(to_html(drawn()))
    assert "This picture could not be drawn" in tree.one("section", id="group-idle-clip").text
    assert len([one for one in tree.all("svg") if one.attrs.get("role") == "img"]) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the picture The clip never acts, while the sampler drifts away cannot be drawn: too large"
    ]


def test_colours_have_enough_contrast_in_both_schemes() -> None:
    sheet = (html.TEMPLATES / "report.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)) for part in sheet.split("@media", 2)[:2])
    assert light.keys() == dark.keys()
    for scheme in (light, dark):
        for name in ("ink", "muted", "link", "fail", "warn", "pass", "info", "none"):
            for ground in ("bg", "surface"):
                assert contrast(scheme[name], scheme[ground]) >= 4.5, (name, ground, scheme[name])
        for name in ("fail", "warn", "pass", "info", "none"):
            assert contrast(scheme[name], scheme[f"{name}-bg"]) >= 4.5, name
        for name in ("c1", "c2", "c3", "c4", "c5", "c6"):
            assert contrast(scheme[name], scheme["surface"]) >= 3, name


def contrast(one: str, two: str) -> float:
    """The contrast ratio of WCAG 2.1."""
    bright, dim = sorted((luminance(one), luminance(two)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_pictures_and_page_agree_on_their_colours() -> None:
    sheet = (html.TEMPLATES / "report.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", sheet.split("@media", 1)[0]))
    assert {name: light[name] for name in COLOURS} == dict(COLOURS)


@pytest.mark.parametrize(
    ("project", "subject", "expected"),
    [
        ("rl-stale", "audit of rl-stale", "audit of project rl-stale"),
        ("", "audit of files at logs", "audit of files at logs"),
        ("", "", "audit of these runs"),
    ],
)
def test_the_page_says_once_what_it_is_of(project: str, subject: str, expected: str) -> None:
    tree = read_page(to_html(replace(passed_audit(), project=project, subject=subject), None))
    assert [one.text for one in tree.all("p") if one.attrs.get("class") == "brand"] == [f"pth-tracker · {expected}"]

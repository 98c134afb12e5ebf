from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from example_audits import AUDITS, GRPO, full_audit, passed_audit, run
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit, Coverage, Finding, Level, NotJudged, Outcome
from pth_tracker.render.junit import to_junit
from pth_tracker.render.text import safe_text


def read(text: str) -> tuple[JUnitXml, dict[str, TestCase]]:
    """The file as junitparser reads it, and its test cases by class and name; the written counts are checked."""
    found = JUnitXml.fromstring(text.encode())
    suites: list[TestSuite] = list(found)
    cases = {}
    counts: Counter[str] = Counter()
    for suite in suites:
        own = Counter(kind_of(case) for case in suite)
        wanted = (suite.tests, suite.failures, suite.errors, suite.skipped)
        assert wanted == (sum(own.values()), own["failed"], own["error"], own["skipped"])
        counts += own
        for case in suite:
            key = f"{case.classname} on {case.name}"
            assert key not in cases, f"{key} stands twice"
            cases[key] = case
    assert (found.tests, found.failures, found.errors, found.skipped) == (
        sum(counts.values()),
        counts["failed"],
        counts["error"],
        counts["skipped"],
    )
    return found, cases


def kind_of(case: TestCase) -> str:
    kinds = {Failure: "failed", Error: "error", Skipped: "skipped"}
    results = case.result
    assert len(results) <= 1
    return kinds[type(results[0])] if results else "passed"


@pytest.mark.parametrize("name", AUDITS)
def test_every_audit_is_read_back_with_its_counts(name: str) -> None:
    audit = AUDITS[name]()
    found, cases = read(to_junit(audit, ExitCode.CHECK_FAILED))
    subjects = {(entry.rule, entry.subject) for entry in audit.coverage}
    subjects |= {(entry.rule, entry.subject) for entry in audit.not_judged}
    assert found.errors == len(audit.errors)
    assert found.tests >= len(subjects) + len(audit.errors)
    assert len(cases) == found.tests
    text = to_junit(audit)
    assert "sk-1234" not in text and "hunter2" not in text
    assert all(char == "\n" or char.isprintable() for char in text)


def test_each_outcome_becomes_what_a_ci_system_knows() -> None:
    _, cases = read(to_junit(full_audit()))
    assert {name: kind_of(case) for name, case in cases.items()} == {
        "check1.idle-clip on verl runs": "failed",
        "check1.sampler-mismatch on verl runs": "skipped",
        "check1.clip-misses-lag on verl runs": "skipped",
        "check1.ratio-one-by-construction on project": "passed",
        "check2.lost-seed on tis": "failed",
        "check3.stuck-batch on verl runs": "passed",
        "check4.rogue-normaliser on project": "skipped",
        "check5.collapsed on project": "passed",
        "check6.no-common-seed on project": "passed",
        "check6.too-few-seeds on project": "passed",
        "check6.paired-difference on grpo, tis": "passed",
        "reading on grpo-s45": "error",
    }
    lost = cases["check2.lost-seed on tis"].result[0]
    assert lost.type == "Lost Seed" and lost.message.startswith("3 runs are named after 3 data seeds")
    assert "blames: tis-{s42,s43,s44}" in lost.text and "remedy: Set data.seed where" in lost.text
    skipped = cases["check1.sampler-mismatch on verl runs"].result[0]
    assert skipped.message == "missing sampler_k3_kl or sampler_kl; Set calculate_log_probs=True."
    assert cases["check6.too-few-seeds on project"].system_out.startswith("WARN one pair only")
    assert "ignored by the design: known, section 4" in cases["check5.collapsed on project"].system_out
    assert "explained by lost-seed, not counted" in cases["check6.no-common-seed on project"].system_out
    assert cases["reading on grpo-s45"].result[0].message == "the server sends no history (HTTP 500)"


def test_a_warning_passes_whatever_the_exit_status() -> None:
    audit = passed_audit()
    audit.findings.append(Finding(3, Level.WARN, "w", rule="stuck-batch", runs=("a",), blames=("a",)))
    audit.coverage[0] = replace(audit.coverage[0], outcome=Outcome.WARNED)
    for status in (ExitCode.OK, ExitCode.CHECK_FAILED):
        found, cases = read(to_junit(audit, status))
        assert (found.failures, found.tests) == (0, 1)
        assert cases["check3.stuck-batch on verl runs"].system_out == "WARN w\nblames: base-s1"


def test_one_subject_judged_twice_is_one_case_with_the_worst() -> None:
    audit = Audit(
        runs={key: run(key, f"grpo-{key}") for key in GRPO},
        findings=[Finding(1, Level.FAIL, "zero", rule="idle-clip", runs=GRPO[:2], blames=GRPO[:2])],
        coverage=[
            Coverage("idle-clip", 1, "grpo", Outcome.FAILED, GRPO[:1], ("measured",)),
            Coverage("idle-clip", 1, "grpo", Outcome.FAILED, GRPO[1:2], ("declared",)),
            Coverage("idle-clip", 1, "grpo", Outcome.NOT_JUDGED, GRPO[2:]),
        ],
        not_judged=[NotJudged("idle-clip", 1, "grpo", ("clip_fraction",), "log it", GRPO[2:])],
    )
    found, cases = read(to_junit(audit))
    assert (found.tests, found.failures, found.skipped) == (1, 1, 0)
    case = cases["check1.idle-clip on grpo"]
    assert case.result[0].text.count("zero") == 1
    assert case.system_out == "not judged on some runs: missing clip_fraction; log it"


@given(st.text(st.characters(), min_size=1, max_size=40))
def test_any_text_is_legal_xml_and_visible(text: str) -> None:
    audit = Audit(findings=[Finding(1, Level.FAIL, text, text, rule="idle-clip", remedy=text)], project=text)
    _, cases = read(to_junit(audit))
    failure = cases["check1.idle-clip on project"].result[0]
    assert failure.message == safe_text(text)
    assert safe_text(text, newlines=True).strip() in failure.text


def test_the_demo_fails_once_for_each_of_its_bugs(
    demo_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", "--project", "rl-stale-demo", "--tracker", f"sqlite:///{demo_store}", "--no-write"]
    assert main([*command, "--format", "junit", "-o", str(tmp_path / "x.xml")]) == ExitCode.CHECK_FAILED
    out = capsys.readouterr().out
    assert JUnitXml.fromfile(str(tmp_path / "x.xml")).tests == JUnitXml.fromstring(out.encode()).tests
    _, cases = read(out)
    failed = {name: case.result[0].type for name, case in cases.items() if kind_of(case) == "failed"}
    assert failed == {
        "check1.idle-clip on grpo": "Idle Clip",
        "check2.lost-seed on project": "Lost Seed",
        "check3.stuck-batch on replay": "Stuck Batch",
        "check4.rogue-normaliser on ppo-clip": "Rogue Normaliser",
    }
    properties = dict(re.findall(r'<property name="([\w.]+)" value="([^"]*)"', out))
    assert properties["verdict"] == "FAILED" and properties["exit"] == "1" and properties["counts.fail"] == "4"

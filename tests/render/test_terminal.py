from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from example_audits import AUDITS, full_audit, hostile_audit, passed_audit, run
from pth_tracker.errors import ExitCode
from pth_tracker.model import (
    Audit,
    Coverage,
    DesignInForce,
    Finding,
    Level,
    NotJudged,
    Outcome,
    PlannedEdit,
    Report,
    WriteBack,
)
from pth_tracker.render import FORMATS, format_of, render
from pth_tracker.render.terminal import format_audit, format_plan, format_report
from pth_tracker.runs import RunError, RunRef

SGR = re.compile(r"\x1b\[[0-9;]*m")


def flat(text: str) -> str:
    return " ".join(text.split())


def test_full_report_names_everything_a_reader_needs() -> None:
    text = format_audit(full_audit(), status=ExitCode.CHECK_FAILED)
    words = flat(text)
    assert text.startswith("FAILED: Idle Clip on 3 runs, Lost Seed on 3 runs\n")
    assert "7 runs of project rl-stale in mlflow at postgresql://audit@db/mlflow" in words
    assert "chosen because MLFLOW_TRACKING_URI is set, audited 2026-03-01 04:30 UTC" in words
    assert "arms grpo: 3 runs (baseline); tis: 3 runs [inferred; --arm NAME=GLOB declares it]" in words
    assert (
        "replicate data.seed\n" in text.replace("  replicate data", "replicate data") and "data.seed [inf" not in words
    )
    assert "FAIL Lost Seed [lost-seed, check 2: Configuration, seeds and data]" in words
    assert "blames tis-{s42,s43,s44}" in words and "involves grpo-{s42,s43,s44}" in words
    assert "remedy Set data.seed where importance sampling is switched on, and run tis again." in words
    assert "WARN too-few-seeds [check 6: Paired by seed, inferred]" in words
    assert "explained by idle-clip: ratio-one-by-construction" in words
    assert "explained by lost-seed: no-common-seed" in words
    assert (
        "Ignored by the design: 1 finding collapsed (warn) on grpo-{s42,s43,s44}: 3 of 3 runs collapsed; "
        "reason: known, section 4" in words
    )
    assert (
        "sampler-mismatch, clip-misses-lag on verl runs; missing sampler_k3_kl or sampler_kl Set calculate_log_probs"
        in words
    )
    assert "Not judged: 3 rules" in words and "rogue-normaliser on project Check it in the code" in words
    assert "Passed: 1 rule stuck-batch" in words
    assert "Not counted in comparisons: 1 run tis-smoke: stopped after 3 updates" in words
    assert "Could not be read: 1 run grpo-s45: the server sends no history (HTTP 500)" in words
    assert "2 files were recognised by nothing" in words and "tis-smoke: the log is cut short" in words
    assert "Written: marks of 2 runs (1 fail, 1 cleared)" in words and "refused: grpo-s43: the server" in words
    assert words.endswith(
        "7 runs: 2 findings failed on 6 runs, 1 finding warned, 1 for information, 3 explained or ignored, 3 rules not "
        "judged, 1 run unreadable; "
        "exit status 1: a check failed"
    )


def test_findings_come_worst_first_and_by_check() -> None:
    text = format_audit(full_audit())
    places = [text.index(name) for name in ("[idle-clip,", "[lost-seed,", "  too-few-seeds [", "  paired-difference [")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", AUDITS)
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_pages_fit_their_width_and_carry_nothing_that_steers_a_terminal(name: str, verbose: bool, width: int) -> None:
    text = format_audit(AUDITS[name](), width=width, verbose=verbose)
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.split("\n"))
    assert all(char == "\n" or char.isprintable() for char in text)
    text.encode("utf-8")
    if name != "hostile":
        assert max(len(line) for line in text.split("\n")) <= width


def test_a_name_with_a_line_feed_cannot_forge_a_line() -> None:
    lines = format_audit(hostile_audit(), verbose=True).split("\n")
    assert [line for line in lines if line.lstrip().startswith("PASSED")] == [
        "PASSED WITH WARNINGS: drift-within-arm on 1 run",
        "      PASSED [bold red]x[/] \\ud800 \\u2028end",
    ], "only a detail keeps its line feeds, and those stay indented"


def test_colour_only_repeats_what_the_words_say() -> None:
    audit = full_audit()
    coloured = format_audit(audit, color=True)
    assert "\x1b[1;31mFAIL\x1b[0m" in coloured
    assert SGR.sub("", coloured) == format_audit(audit)


def test_quiet_keeps_what_failed_or_warned_what_was_unreadable_and_the_last_line() -> None:
    text = format_audit(full_audit(), quiet=True)
    assert re.findall(r"^(?:FAIL|WARN|INFO)  (.+) \[", text, re.M) == ["Idle Clip", "Lost Seed", "too-few-seeds"]
    assert "grpo-s45" in text and "2 findings failed on 6 runs" in text
    assert "Design in force" not in text and "Not judged" not in text and "paired-difference" not in text
    assert format_audit(passed_audit(), quiet=True).count("\n") == 1


def test_verbose_names_all_and_shows_evidence_but_no_secret() -> None:
    text = format_audit(full_audit(), verbose=True)
    assert "share = NaN" in text
    hostile = format_audit(hostile_audit(), verbose=True)
    assert "sk-1234" not in hostile and "api_key = (redacted)" in hostile and "'n_tokens': 3" in hostile


def test_password_of_a_store_is_never_shown() -> None:
    assert "hunter2" not in format_audit(replace_chosen(full_audit()), verbose=True)


def replace_chosen(audit: Audit) -> Audit:
    audit.chosen = ""
    return audit


def test_verdicts_in_words() -> None:
    assert format_audit(passed_audit()).startswith("PASSED: no check failed or warned, of 1 rule judged\n")
    assert format_audit(Audit()).startswith("NOT JUDGED: nothing could be judged")
    unread = passed_audit()
    unread.errors = [RunError(RunRef("p", f"r{number}"), f"r{number}", "gone") for number in range(2)]
    assert format_audit(unread).startswith(
        "PASSED: no check failed or warned, of 1 rule judged; 2 runs could not be read\n"
    )
    assert flat(format_audit(passed_audit(), status=ExitCode.OK)).endswith(
        " 1 run: 0 findings failed; exit status 0: every judged check passed, or only warned"
    )
    assert format_audit(Audit(), status=ExitCode.CHECK_FAILED).endswith("exit status 1: a rule could not be judged\n")
    audit = passed_audit()
    audit.findings.append(Finding(5, Level.WARN, "t", rule="collapsed", runs=("a",), blames=("a",)))
    assert format_audit(audit).startswith("PASSED WITH WARNINGS: collapsed on 1 run\n")


def test_what_was_written_is_told_in_every_case() -> None:
    audit = full_audit()
    assert audit.write_back is not None
    plan = replace(audit.write_back, applied=False, errors=())
    for write_back, words in (
        (WriteBack(applied=True), "Nothing to write: all marks are up to date"),
        (WriteBack(refused="the store can only be read"), "Nothing written: the store can only be read"),
        (WriteBack(), "Dry run: all marks are up to date, nothing would change"),
        (WriteBack(errors=("HTTP 503",)), "Nothing written: the tracker failed\n  refused: HTTP 503"),
        (plan, "Dry run, nothing written; would change 2 runs (1 fail, 1 cleared)"),
    ):
        audit.write_back = write_back
        assert words in format_audit(audit)
    assert format_plan(plan).split("\n") == [
        "2 planned edits:",
        "  grpo-s42 (g42): set verdict=fail; set rules=idle-clip; add tag pth:fail",
        "  tis-smoke (x1): unset verdict; remove tag pth:warn",
        "",
    ]
    assert format_plan(WriteBack()) == "0 planned edits\n"


def test_many_arms_and_runs_stay_short_unless_verbose() -> None:
    audit = Audit(runs={f"k{i}": run(f"k{i}", f"sweep-lr-{i}") for i in range(200)})
    audit.design = DesignInForce(arms={f"arm{i:02}": (f"k{i}",) for i in range(60)})
    audit.findings.append(Finding(2, Level.WARN, "t", rule="drift-within-arm", runs=tuple(audit.runs)))
    brief, full = format_audit(audit), format_audit(audit, verbose=True)
    assert "48 more arms" in brief and "sweep-lr-{0,1,2,3,4,5,6,7} and 192 more" in brief
    assert "arm59: 1 run" in full and "199}" in full


def test_a_rule_that_passed_on_some_runs_only_says_so() -> None:
    audit = passed_audit()
    audit.coverage += [
        Coverage("stuck-batch", 3, "generic runs", Outcome.NOT_JUDGED, ("b", "c"), (), ("metrics",)),
        Coverage("collapsed", 5, "verl runs", Outcome.PASSED, ("a", "b"), ("evaluated",)),
        Coverage("collapsed", 5, "another arm", Outcome.NOT_JUDGED, ("b",), (), ("evaluated",)),
    ]
    assert "Passed: 2 rules stuck-batch (not judged on 2 runs), collapsed" in flat(format_audit(audit))


@pytest.mark.parametrize("outcome", [Outcome.EXPLAINED, Outcome.IGNORED])
def test_a_rule_whose_finding_does_not_count_is_not_among_those_that_passed(outcome: Outcome) -> None:
    audit = passed_audit()
    audit.coverage.append(Coverage("collapsed", 5, "verl runs", outcome, ("a",), ("evaluated",)))
    assert "Passed: 1 rule stuck-batch" in flat(format_audit(audit))


def test_quiet_hides_neither_a_plan_nor_a_claim_that_could_not_be_tested() -> None:
    plan = WriteBack((PlannedEdit("grpo-s42", "g42", {"verdict": "fail"}),), applied=False)
    why = "The paired difference is undecided: +0.61 points over 3 seeds."
    audit = replace(
        full_audit(),
        write_back=plan,
        not_judged=[NotJudged("claim-contradicted", 7, 'claim "TIS is better"', ("testable_claim",), why)] * 2,
    )
    text = flat(format_audit(audit, quiet=True))
    assert "Dry run, nothing written; would change 1 run (1 fail)" in text
    assert f'NOT JUDGED claim "TIS is better" {why}' in text and text.count("undecided") == 1
    assert "sampler-mismatch" not in flat(format_audit(full_audit(), quiet=True))
    assert "Written" not in format_audit(replace(audit, write_back=replace(plan, applied=True)), quiet=True)


def test_report_of_the_library() -> None:
    report = Report(subject="run a")
    report.add(3, "info", "68 distinct batches", batches=68)
    report.add(1, "fail", "the clip never acts", "0 of 100 updates", tag="Idle Clip")
    report.add(2, "warn", "one seed")
    assert str(report).split("\n") == [
        "run a",
        "FAIL  Idle Clip [check 1: Ratio]: the clip never acts",
        "      0 of 100 updates",
        "WARN  [check 2: Configuration, seeds and data]: one seed",
        "INFO  [check 3: Batches]: 68 distinct batches",
        "1 finding failed, 1 finding warned",
    ]
    assert "one seed" not in report.format(levels=("fail",))
    assert format_report(Report()) == "passed"
    assert "\x1b[32mpassed" in Report().format(color=True)


def test_formats_are_told_by_suffix(tmp_path: Path) -> None:
    assert [format_of(Path(f"r{one.suffix.upper()}")) for one in FORMATS] == list(FORMATS)
    with pytest.raises(Exception, match=r"'r.docx'.*\.txt \(text\), \.json \(json\)"):
        format_of(Path("r.docx"))
    for one in FORMATS:
        assert render(full_audit(), one, ExitCode.OK).endswith("\n")

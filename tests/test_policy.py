from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from pth_tracker.design.comparison import Comparison
from pth_tracker.design.infer import infer
from pth_tracker.design.schema import Design
from pth_tracker.design.stitch import stitch
from pth_tracker.engine import exit_code
from pth_tracker.errors import DesignError, ExitCode, UsageError
from pth_tracker.model import Audit, Basis, Coverage, Finding, Level, NotJudged, Outcome, WriteBack
from pth_tracker.policy import apply_policy, gather, selected_rules
from pth_tracker.runs import RunError, RunRef
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import (
    ARMS,
    CORRECTION,
    ONE_STEP,
    FakeRun,
    audit_of,
    comparison,
    findings,
    idle,
    labels,
    loud,
    make_run,
    only,
    outcomes,
    with_config,
    with_metrics,
)

TWO = {"ppo": ARMS["ppo"], "tis": ARMS["tis"]}
IDLE = {"grpo": ONE_STEP, "tis": ARMS["tis"]}
SEEDS = (41, 42, 43)
REASON = "the uncorrected baseline, on purpose"


def idle_runs() -> list[FakeRun]:
    return with_metrics(comparison(IDLE, SEEDS), "grpo-*", idle())


def compared() -> Comparison:
    vocabulary = load_vocabulary()
    return infer(vocabulary, stitch(vocabulary, [run.source for run in comparison(TWO, SEEDS)]), None)


def keys(subject: Comparison, arm: str) -> tuple[str, ...]:
    return tuple(member.key for member in subject.arms[arm])


@pytest.mark.parametrize(
    ("basis", "level", "expected"),
    [
        (Basis.DECLARED, Level.FAIL, Level.FAIL),
        (Basis.CONTRADICTION, Level.FAIL, Level.FAIL),
        (Basis.INFERRED, Level.FAIL, Level.WARN),
        (Basis.INFERRED, Level.WARN, Level.WARN),
        (Basis.INFERRED, Level.INFO, Level.INFO),
    ],
)
def test_what_is_inferred_is_at_most_a_warning(basis: Basis, level: Level, expected: Level) -> None:
    subject = compared()
    blamed = keys(subject, "tis")
    finding = Finding(2, level, "x", rule="lost-seed", basis=basis, runs=blamed, blames=blamed)
    (settled,) = apply_policy([finding], subject, None)
    assert settled.level is expected and settled.blames == (() if expected is Level.INFO else blamed)


@pytest.mark.parametrize("level", ["fail", "warn", "info"])
def test_the_designs_levels_replace_the_rules(level: str) -> None:
    report = audit_of(idle_runs(), {"rules": {"levels": {"idle-clip": level}}})
    found = only(report, "idle-clip")
    assert str(found.level) == level and bool(found.blames) is (level != "info")
    verdicts = {str(run.verdict) for run in report.runs.values() if run.arm == "grpo"}
    assert verdicts == {level if level != "info" else "pass"}
    assert report.ok is (level != "fail")
    explained = only(report, "ratio-one-by-construction").because_of
    assert explained == ("idle-clip" if level != "info" else "")


def test_a_user_may_raise_what_is_inferred() -> None:
    runs = comparison({"low": ONE_STEP, "high": {**ONE_STEP, "actor_rollout_ref.actor.clip_ratio_high": 0.28}}, SEEDS)
    assert only(audit_of(runs), "clip-range-cannot-act").level is Level.WARN
    raised = audit_of(runs, {"rules": {"levels": {"clip-range-cannot-act": "fail"}}})
    assert only(raised, "clip-range-cannot-act").level is Level.FAIL


def test_a_rule_switched_off_is_not_judged_at_all() -> None:
    report = audit_of(idle_runs(), {"rules": {"levels": {"idle-clip": "off"}}})
    assert not findings(report, "idle-clip") and outcomes(report, "idle-clip") == set()
    assert only(report, "ratio-one-by-construction").because_of == ""
    report = audit_of(idle_runs(), ignore=("idle-clip",))
    assert outcomes(report, "idle-clip") == set()
    report = audit_of(idle_runs(), select=("idle-clip", "lost-seed"))
    assert {entry.rule for entry in report.coverage} == {"idle-clip", "lost-seed"}


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        Design.model_validate({"rules": {"levels": {"idle-clip": "error"}}})


@pytest.mark.parametrize(
    ("design", "words"),
    [
        (
            {"rules": {"levels": {"idle-clop": "warn"}}},
            "d.yaml at rules.levels.idle-clop: there is no rule 'idle-clop'",
        ),
        ({"ignore": [{"rule": "idleclip", "reason": REASON}]}, "d.yaml at ignore.0.rule: there is no rule 'idleclip'"),
    ],
)
def test_unknown_rules_of_a_design_are_located(design: dict[str, Any], words: str) -> None:
    with pytest.raises(DesignError, match="did you mean idle-clip") as caught:
        selected_rules(Design.model_validate({**design, "source": "d.yaml"}), (), ())
    assert str(caught.value).startswith(words)
    with pytest.raises(UsageError, match="did you mean idle-clip"):
        selected_rules(None, ("idle-clop",), ())


# ignore


def ignoring(**entry: Any) -> dict[str, Any]:
    return {"ignore": [{"rule": "idle-clip", "reason": REASON, **entry}]}


def test_an_ignored_finding_is_shown_with_its_reason_and_not_counted() -> None:
    report = audit_of(idle_runs(), ignoring())
    found = only(report, "idle-clip")
    assert found.ignored == REASON and not found.counts and found.level is Level.FAIL
    assert report.ok and loud(report) == [] and report.counts["fail"] == 0
    assert {str(run.verdict) for run in report.runs.values()} == {"pass"}
    assert outcomes(report, "idle-clip") == {"ignored", "passed"}
    assert report.design.ignore == ({"rule": "idle-clip", "arms": [], "runs": [], "reason": REASON},)
    assert only(report, "ratio-one-by-construction").because_of == ""
    assert exit_code(report) == ExitCode.OK


@pytest.mark.parametrize("reason", [None, "", "ok", "     "])
def test_a_reason_is_required(reason: str | None) -> None:
    entry = {"rule": "idle-clip"} | ({} if reason is None else {"reason": reason})
    with pytest.raises(ValidationError):
        Design.model_validate({"ignore": [entry]})


@pytest.mark.parametrize(
    ("filters", "ignored"),
    [
        ({"arms": ["grpo"]}, True),
        ({"arms": "grpo"}, True),
        ({"arms": ["tis", "grpo"]}, True),
        ({"arms": ["tis"]}, False),
        ({"runs": ["grpo-*"]}, True),
        ({"runs": ["tis-*"]}, False),
        ({"arms": ["grpo"], "runs": ["tis-*"]}, False),
    ],
)
def test_ignoring_by_arm_and_by_run(filters: dict[str, Any], ignored: bool) -> None:
    assert bool(only(audit_of(idle_runs(), ignoring(**filters)), "idle-clip").ignored) is ignored


def test_ignoring_one_run_leaves_the_others_of_its_arm() -> None:
    report = audit_of(idle_runs(), ignoring(runs=["grpo-seed42"]))
    by_reason = {found.ignored: labels(report, found.blames) for found in findings(report, "idle-clip")}
    assert by_reason == {"": ["grpo-seed41", "grpo-seed43"], REASON: ["grpo-seed42"]}
    verdicts = {run.name: str(run.verdict) for run in report.runs.values() if run.arm == "grpo"}
    assert verdicts == {"grpo-seed41": "fail", "grpo-seed42": "pass", "grpo-seed43": "fail"}
    assert report.counts["fail"] == 1


def test_ignoring_one_arm_leaves_a_finding_on_two() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"actor_rollout_ref.actor.optim.lr": 1e-6})
    base = {
        "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
        "vary": f"{CORRECTION}.rollout_is",
        "baseline": "ppo",
    }
    for arms, ignored in ((["tis"], False), (["ppo", "tis"], True)):
        entry = {"rule": "undeclared-difference", "arms": arms, "reason": REASON}
        assert bool(only(audit_of(runs, {**base, "ignore": [entry]}), "undeclared-difference").ignored) is ignored


# explained findings


def test_an_explained_finding_is_kept_and_neither_counted_nor_tagged() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None})
    report = audit_of(runs)
    explained = only(report, "no-common-seed")
    assert explained.because_of == "lost-seed" and explained in report.findings
    assert not explained.counts and report.counts["fail"] == 1
    assert all(run.rules == ("lost-seed",) for run in report.runs.values() if run.arm == "tis")
    assert all(run.rules == () for run in report.runs.values() if run.arm == "ppo")


def test_a_finding_is_explained_only_where_all_its_runs_are_blamed() -> None:
    runs = comparison(TWO, (41, 42, 43, 44))
    runs = with_config(runs, "tis-seed41", {"data.seed": 42})
    report = audit_of(runs, {"arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}, "baseline": "ppo"})
    assert labels(report, only(report, "lost-seed").blames) == ["tis-seed41", "tis-seed42"]
    attempts = only(report, "repeated-attempts")
    assert attempts.because_of == "lost-seed" and labels(report, attempts.blames) == ["tis-seed41", "tis-seed42"]
    assert only(report, "unpaired-runs").because_of == ""  # about ppo-seed41, whom nothing blames


def test_of_seeds_that_became_one_the_run_of_that_seed_is_no_second_attempt() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": 42})
    report = audit_of(runs)  # arms are inferred, so that tis-seed42 is not blamed
    assert "tis-seed42" not in labels(report, only(report, "lost-seed").blames)
    assert only(report, "repeated-attempts").because_of == "lost-seed"
    assert only(report, "too-few-seeds").because_of == "lost-seed"
    twice = audit_of([*runs, make_run("tis-again-seed42", ARMS["tis"], 42, number=900)])
    assert only(twice, "repeated-attempts").because_of == ""  # two runs rightly have that seed
    assert only(twice, "too-few-seeds").because_of == ""


def test_what_is_ignored_or_only_information_explains_nothing() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None})
    ignored = audit_of(runs, {"ignore": [{"rule": "lost-seed", "reason": REASON}]})
    assert only(ignored, "no-common-seed").because_of == ""
    informed = audit_of(runs, {"rules": {"levels": {"lost-seed": "info"}}})
    assert only(informed, "no-common-seed").because_of == ""


def test_a_warning_explains_no_failure_away() -> None:
    runs = with_config(comparison(TWO, SEEDS), "tis-*", {"data.seed": None})
    design = {"pairing": "required", "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}, "baseline": "ppo"}
    assert only(audit_of(runs, design), "no-common-seed").because_of == "lost-seed"
    lowered = audit_of(runs, {**design, "rules": {"levels": {"lost-seed": "warn"}}})
    assert only(lowered, "no-common-seed").because_of == "" and not lowered.ok


def explained(kind: str, blames: tuple[str, ...], runs: tuple[str, ...]) -> str:
    subject = compared()
    lost = Finding(2, Level.FAIL, "x", rule="lost-seed", basis=Basis.CONTRADICTION, runs=blames, blames=blames)
    other = Finding(
        2, Level.WARN, "y", evidence={"kind": kind}, rule="undeclared-difference", runs=runs, arms=("ppo", "tis")
    )
    return apply_policy([lost, other], subject, None)[1].because_of


def test_a_rule_may_explain_one_kind_of_anothers_findings() -> None:
    subject = compared()
    tis, ppo = keys(subject, "tis"), keys(subject, "ppo")
    assert explained("seed", tis, tis + ppo) == "lost-seed"
    assert explained("field", tis, tis + ppo) == ""
    assert explained("seed", tis[:2], tis + ppo) == ""


# gathering


def test_findings_on_single_runs_are_gathered_by_arm_level_and_words() -> None:
    subject = compared()
    names = {member.key: member.run.label for member in subject.members}
    runs = (*keys(subject, "ppo"), *keys(subject, "tis"))

    def finding(key: str, title: str = "t", detail: str = "d", level: Level = Level.FAIL) -> Finding:
        return Finding(1, level, title, detail, {"n": key}, rule="idle-clip", runs=(key,), blames=(key,))

    gathered = gather([finding(key) for key in runs], subject, names)
    assert [(one.arms, len(one.runs), one.detail) for one in gathered] == [(("ppo",), 3, "d"), (("tis",), 3, "d")]
    assert set(gathered[0].evidence) == {"ppo-seed41", "ppo-seed42", "ppo-seed43"}
    apart = gather([finding(runs[0]), finding(runs[1], "other"), finding(runs[2], level=Level.WARN)], subject, names)
    assert len(apart) == 3
    told = gather([finding(key, detail=f"d{key}") for key in runs[:2]], subject, names)
    assert told[0].detail.splitlines() == [f"ppo-seed41: d{runs[0]}", f"ppo-seed42: d{runs[1]}"]


# exit statuses


def audited(
    *levels: Level,
    judged: bool = True,
    missing: bool = False,
    unreadable: bool = False,
    refused: bool = False,
    **finding: Any,
) -> Audit:
    outcome = Outcome.PASSED if judged else Outcome.NOT_JUDGED
    return Audit(
        findings=[Finding(1, level, "x", rule="idle-clip", **finding) for level in levels],
        coverage=[Coverage("idle-clip", 1, "x", outcome, ())],
        not_judged=[NotJudged("lost-seed", 2, "x", ("config",), "log it")] if missing else [],
        errors=[RunError(RunRef("p", "a"), "a", "gone")] if unreadable else [],
        write_back=WriteBack(errors=("no",)) if refused else None,
    )


@pytest.mark.parametrize(
    ("audit", "options", "status"),
    [
        (audited(), {}, 0),
        (audited(Level.WARN, Level.INFO), {}, 0),
        (audited(Level.FAIL), {}, 1),
        (audited(Level.FAIL, because_of="lost-seed"), {}, 0),
        (audited(Level.FAIL, ignored=REASON), {}, 0),
        (audited(missing=True), {}, 0),
        (audited(missing=True), {"strict": True}, 1),
        (audited(), {"strict": True}, 0),
        (audited(Level.FAIL), {"exit_zero": True}, 0),
        (audited(missing=True), {"strict": True, "exit_zero": True}, 0),
        (audited(unreadable=True), {}, 4),
        (audited(refused=True), {}, 4),
        (audited(Level.FAIL, unreadable=True), {}, 4),
        (audited(Level.FAIL, refused=True), {"exit_zero": True}, 4),
        (audited(judged=False), {}, 3),
        (audited(judged=False, unreadable=True), {}, 3),
        (audited(judged=False), {"exit_zero": True}, 3),
        (audited(Level.FAIL, judged=False), {}, 3),
        (Audit(), {}, 3),
    ],
)
def test_exit_statuses(audit: Audit, options: Mapping[str, bool], status: int) -> None:
    assert exit_code(audit, **options) == status

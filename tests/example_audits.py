"""Audits made by hand, which renderers are tested on."""

from __future__ import annotations

from datetime import UTC, datetime

from pth_tracker.model import (
    IDLE_CLIP,
    LOST_SEED,
    STUCK_BATCH,
    Audit,
    AuditedRun,
    Basis,
    Coverage,
    DesignInForce,
    Finding,
    Level,
    NotJudged,
    Outcome,
    PlannedEdit,
    Verdict,
    WriteBack,
)
from pth_tracker.past import PastFinding, SinceLast
from pth_tracker.runs import RunError, RunRef
from pth_tracker.tracker import Address

GRPO = ("g42", "g43", "g44")
TIS = ("t42", "t43", "t44")


def run(key: str, name: str, **facts: object) -> AuditedRun:
    return AuditedRun(key, name, name, (RunRef("rl-stale", key),), "finished", "verl", **facts)  # type: ignore[arg-type]


def full_audit() -> Audit:
    """A failed audit in which everything that can be reported occurs at least once."""
    runs = [
        *(
            run(
                key, f"grpo-s{key[1:]}", arm="grpo", seed=key[1:], verdict=Verdict.FAIL, rules=("idle-clip",), score=0.1
            )
            for key in GRPO
        ),
        *(
            run(key, f"tis-s{key[1:]}", arm="tis", seed="default order", verdict=Verdict.FAIL, rules=("lost-seed",))
            for key in TIS
        ),
        run("x1", "tis-smoke", counted=False, why_not="stopped after 3 updates", notes=("the log is cut short",)),
    ]
    return Audit(
        findings=[
            Finding(
                2,
                Level.FAIL,
                "3 runs are named after 3 data seeds and read their data in one order",
                "data.seed is null in every run of tis, and 42, 43, 44 in grpo.",
                {"key": "data.seed", "effective": {"tis": ["default order"]}, "share": float("nan")},
                LOST_SEED,
                rule="lost-seed",
                basis=Basis.CONTRADICTION,
                runs=(*TIS, *GRPO),
                blames=TIS,
                arms=("tis",),
                remedy="Set data.seed where importance sampling is switched on, and run tis again.",
            ),
            Finding(
                1,
                Level.FAIL,
                "the clip fraction is exactly 0 on 100 of 100 updates while the sampler lags",
                tag=IDLE_CLIP,
                rule="idle-clip",
                basis=Basis.CONTRADICTION,
                runs=GRPO,
                blames=GRPO,
            ),
            Finding(1, Level.INFO, "the ratio is 1", rule="ratio-one-by-construction", because_of="idle-clip"),
            Finding(6, Level.FAIL, "no common seed", rule="no-common-seed", because_of="lost-seed", runs=TIS),
            Finding(
                5,
                Level.WARN,
                "3 of 3 runs collapsed",
                rule="collapsed",
                runs=GRPO,
                blames=GRPO,
                ignored="known, section 4",
            ),
            Finding(6, Level.WARN, "one pair only", rule="too-few-seeds", basis=Basis.INFERRED, runs=(*GRPO, *TIS)),
            Finding(6, Level.INFO, "tis - grpo = +0.61", rule="paired-difference", arms=("grpo", "tis")),
        ],
        project="rl-stale",
        address=Address("mlflow", ("postgresql://audit:hunter2@db/mlflow",)),
        chosen="mlflow at postgresql://audit@db/mlflow, chosen because MLFLOW_TRACKING_URI is set",
        audited_at=datetime(2026, 3, 1, 4, 30, tzinfo=UTC),
        version="0.1.0",
        not_judged=[
            NotJudged(
                "sampler-mismatch", 1, "verl runs", ("sampler_k3_kl|sampler_kl",), "Set calculate_log_probs=True."
            ),
            NotJudged(
                "clip-misses-lag", 1, "verl runs", ("sampler_k3_kl|sampler_kl",), "Set calculate_log_probs=True."
            ),
            NotJudged("rogue-normaliser", 4, "project", (), "Check it in the code: check_loss."),
        ],
        coverage=[
            Coverage("idle-clip", 1, "verl runs", Outcome.FAILED, GRPO + TIS, ("measured",)),
            Coverage("stuck-batch", 3, "verl runs", Outcome.PASSED, GRPO + TIS, ("metrics",), ("identity",)),
            Coverage("sampler-mismatch", 1, "verl runs", Outcome.NOT_JUDGED, GRPO + TIS, (), ("measured",)),
        ],
        runs={one.key: one for one in runs},
        design=DesignInForce(
            arms={"grpo": GRPO, "tis": TIS},
            baseline="grpo",
            vary=("algorithm.rollout_correction.rollout_is",),
            replicate=("data.seed",),
            metric="val-core/openai/gsm8k/acc/mean@1",
            inferred=frozenset({"arms", "vary", "metric", "baseline"}),
            notes=("1 run is in no arm: tis-smoke",),
        ),
        errors=[RunError(RunRef("rl-stale", "b1"), "grpo-s45", "the server sends no history (HTTP 500)")],
        notes=["2 files were recognised by nothing"],
        write_back=WriteBack(
            planned=(
                PlannedEdit("grpo-s42", "g42", {"verdict": "fail", "rules": "idle-clip"}, add_tags=("pth:fail",)),
                PlannedEdit("tis-smoke", "x1", unset=("verdict",), remove_tags=("pth:warn",)),
            ),
            applied=True,
            errors=("grpo-s43: the server refuses (HTTP 403)",),
            skipped=("grpo-s44 is still running",),
            published="run pth-audit",
        ),
        since_last=SinceLast(
            datetime(2026, 2, 28, 4, 30, tzinfo=UTC),
            new=(Finding(2, Level.FAIL, "one order", tag=LOST_SEED, rule="lost-seed", runs=TIS, blames=TIS),),
            still_open=(Finding(1, Level.WARN, "a gap", rule="sampler-mismatch", runs=GRPO, arms=("grpo",)),),
            resolved=(PastFinding("stuck-batch", 3, Level.FAIL, "33 updates", STUCK_BATCH, labels=("replay-s42",)),),
            unseen=(PastFinding("idle-clip", 1, Level.FAIL, "0 of 60", IDLE_CLIP, ("grpo",), ("b1",), ("grpo-s45",)),),
            left=(PastFinding("lr-differs", 2, Level.WARN, "two rates", labels=("old-s1",)),),
        ),
    )


def hostile_audit() -> Audit:
    """An audit in which all text from the tracker wants to harm the terminal or the reader."""
    evil = "run\x1b[2J\x9b31m\u202egnp.exe\r\nPASSED [bold red]x[/] \ud800 \u2028end"
    return Audit(
        findings=[
            Finding(
                2,
                Level.WARN,
                evil,
                evil,
                {evil: evil, "api_key": "sk-1234", "nested": {"wandb_token": ["sk-1234"], "n_tokens": 3}},
                rule="drift-within-arm",
                runs=("e",),
                blames=("e",),
                arms=(evil,),
                remedy=evil,
            ),
            Finding(
                2,
                Level.INFO,
                "x",
                evidence={"key": "trainer.api_key", "left": "sk-1234", "count": 2},
                rule="code-differs",
            ),
        ],
        project=evil,
        runs={"e": run("e", evil, counted=False, why_not=evil, notes=(evil,), score=float("inf"))},
        design=DesignInForce(arms={evil: ("e",)}, vary=(evil,), source=evil, notes=(evil,)),
        errors=[RunError(RunRef("p", "e2"), evil, evil)],
        notes=[evil],
        not_judged=[NotJudged("idle-clip", 1, evil, (evil,), evil)],
        write_back=WriteBack(planned=(PlannedEdit(evil, evil, {"verdict": evil}),), errors=(evil,), refused=evil),
        since_last=SinceLast(
            datetime(2026, 2, 28, tzinfo=UTC),
            new=(Finding(2, Level.WARN, evil, rule="drift-within-arm", runs=("e",), arms=(evil,)),),
            resolved=(PastFinding("idle-clip", 1, Level.FAIL, evil, arms=(evil,), labels=(evil,)),),
        ),
    )


def passed_audit() -> Audit:
    """An audit in which one rule was judged and passed."""
    return Audit(
        project="tidy",
        runs={"a": run("a", "base-s1", verdict=Verdict.PASS, last_update=60)},
        coverage=[Coverage("stuck-batch", 3, "verl runs", Outcome.PASSED, ("a",))],
        write_back=WriteBack(applied=True),
    )


AUDITS = {"full": full_audit, "hostile": hostile_audit, "passed": passed_audit, "empty": Audit}

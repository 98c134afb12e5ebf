"""ratio_report: its numbers by hand, its verdicts, and that it never breaks a training loop."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker import IDLE_CLIP, Level, probes

LOGP = np.log(np.array([[0.5, 0.25, 0.125], [0.2, 0.4, 0.9]]))
HALF = math.log(2)


def test_the_numbers_are_those_worked_out_by_hand() -> None:
    # The learner gives two of four tokens twice the sampler's probability, the others the same.
    sampler = np.log([[0.1, 0.2, 0.3, 0.4]])
    learner = sampler + np.array([[HALF, 0, HALF, 0]])
    stats = probes.ratio_report(learner, sampler).stats
    k3 = (2 * (2 - 1 - HALF)) / 4  # r - 1 - log r with r = 2, on half of the tokens
    assert stats["tokens"] == 4
    assert stats["kl_sampler_to_old"] == pytest.approx(k3)
    assert stats["mean_log_q_minus_log_old"] == pytest.approx(-HALF / 2)
    ratio = stats["ratio_to_sampler"]
    assert ratio["min"] == pytest.approx(1) and ratio["max"] == pytest.approx(2)
    assert ratio["p50"] == pytest.approx(1.5)  # between the sorted 1, 1, 2, 2
    assert ratio["outside_clip_range"] == 0.5
    assert ratio["max_abs_log_ratio"] == pytest.approx(HALF)


def test_metrics_have_canonical_names_and_the_learners_distance() -> None:
    sampler = LOGP - HALF
    report = probes.ratio_report(LOGP, sampler, logp_old=sampler)
    metrics = report.metrics()
    assert metrics == probes.ratio_metrics(report)
    # pi_old is the sampler's: the lag is the learner's distance, not that of pi_old, which is 0.
    assert report.stats["kl_sampler_to_old"] == 0
    assert metrics == {
        "harness/sampler_k3_kl": pytest.approx(1 - HALF),
        "harness/sampler_kl": pytest.approx(-HALF),
        "harness/sampler_abs_dlogp": pytest.approx(HALF),
        "harness/outside_sampler_range": 1.0,
        "harness/clip_fraction": 1.0,
    }
    assert "harness/clip_fraction" not in probes.ratio_report(LOGP, sampler).metrics()
    assert all(type(value) is float for value in metrics.values())


def test_metrics_are_quantities_of_the_vocabulary() -> None:
    from pth_tracker.vocabulary.load import FACT_PREFIX, load_vocabulary

    ledger = probes.BatchLedger()
    ledger.record(0, "a", age=1)
    logged = probes.ratio_report(LOGP, LOGP, logp_old=LOGP, is_weighted=True).metrics() | ledger.metrics()
    assert probes.PREFIX == FACT_PREFIX
    assert {key.removeprefix(FACT_PREFIX) for key in logged} <= set(load_vocabulary().quantities)


def test_a_ratio_of_1_beside_a_lag_is_the_idle_clip() -> None:
    report = probes.ratio_report(LOGP, LOGP - 0.5, logp_old=LOGP)
    (finding,) = report.findings
    assert (finding.level, finding.tag, finding.check) == (Level.FAIL, IDLE_CLIP, 1)
    assert finding.evidence["kl"] == pytest.approx(math.exp(0.5) - 1.5)
    assert not report.ok


@pytest.mark.parametrize(
    ("learner", "sampler", "old", "weighted", "level"),
    [
        (LOGP, LOGP, LOGP, False, Level.INFO),  # no lag
        (LOGP, LOGP - 0.5, LOGP, True, Level.INFO),  # corrected by weights
        (LOGP, LOGP - 0.5, LOGP - 0.5, False, Level.INFO),  # pi_old is the sampler's: the clip acts on it
        (LOGP, LOGP - 0.5, LOGP - 0.1, False, Level.WARN),  # moves, and sees none of the lag
        (LOGP, LOGP - 0.5, None, False, Level.WARN),  # lag, and nothing to hold it against
        (LOGP, LOGP, None, False, Level.INFO),
    ],
)
def test_other_setups_are_no_idle_clip(learner: Any, sampler: Any, old: Any, weighted: bool, level: Level) -> None:
    report = probes.ratio_report(learner, sampler, logp_old=old, is_weighted=weighted)
    assert [finding.level for finding in report.findings] == [level]
    assert not any(finding.tag for finding in report.findings)


def test_padding_does_not_count() -> None:
    mask = [[1, 1, 0], [1, 0, 0]]
    junk = LOGP.copy()
    junk[np.array(mask) == 0] = np.nan
    assert (
        probes.ratio_report(junk, LOGP - 1, mask).stats
        == probes.ratio_report(LOGP[np.array(mask) == 1], LOGP[np.array(mask) == 1] - 1).stats
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_any_floating_type_are_taken(dtype: torch.dtype) -> None:
    learner = torch.tensor(LOGP).to(dtype).requires_grad_()
    sampler = torch.tensor(LOGP - 0.5).to(dtype)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    report = probes.ratio_report(learner, sampler, mask, logp_old=learner)
    exact = probes.ratio_report(
        learner.detach().double().numpy(), sampler.double().numpy(), mask.numpy(), learner.detach().double().numpy()
    )
    assert report.stats == exact.stats and report.stats["tokens"] == 5
    assert learner.requires_grad and learner.grad is None


def test_lists_and_lists_of_tensors_are_taken() -> None:
    wanted = probes.ratio_report(LOGP, LOGP - 1).stats
    assert probes.ratio_report(LOGP.tolist(), (LOGP - 1).tolist()).stats == wanted
    assert probes.ratio_report([torch.tensor(row) for row in LOGP], LOGP - 1).stats == wanted


def test_a_double_tensor_keeps_its_precision() -> None:
    learner = torch.tensor([-20.0, -21.0], dtype=torch.float64)
    report = probes.ratio_report(learner, learner - 0.5, logp_old=learner - 1e-7)
    assert report.stats["ratio_to_old"]["max_abs_log_ratio"] == pytest.approx(1e-7)


def test_a_log_probability_that_is_no_number_is_said_and_not_called_close() -> None:
    odd = LOGP.copy()
    odd[0, 0] = np.nan
    report = probes.ratio_report(LOGP, odd, logp_old=LOGP)
    assert report.stats["nonfinite_tokens"] == 1 and math.isnan(report.stats["kl_sampler_to_old"])
    assert report.by_level("warn") and "1 of 6 tokens" in report.by_level("warn")[0].title
    assert math.isnan(report.metrics()["harness/sampler_k3_kl"])
    # The tokens that were measured still show an idle clip.
    assert not probes.ratio_report(LOGP, odd - 1, logp_old=LOGP).ok


def test_a_token_that_the_sampler_held_impossible_is_a_large_divergence() -> None:
    sampler = LOGP.copy()
    sampler[0, 0] = -np.inf
    report = probes.ratio_report(LOGP, sampler, logp_old=LOGP)
    assert not report.ok and math.isfinite(report.stats["kl_sampler_to_old"])


@pytest.mark.parametrize(
    "arguments",
    [
        ([], []),
        (LOGP, LOGP[:1]),
        (LOGP, LOGP, np.ones((3, 3))),
        (LOGP, LOGP, np.zeros_like(LOGP)),
        (None, LOGP),
        ("no numbers", LOGP),
        (LOGP, LOGP, None, "x"),
        (LOGP, LOGP, None, None, "wide"),
        (object(), object()),
    ],
)
def test_nothing_is_raised_and_the_failure_is_logged_once(
    arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes, "_told", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            report = probes.ratio_report(*arguments)
    assert [record.name for record in caplog.records] == ["pth_tracker.probes"]
    assert "ratio_report could not measure" in caplog.text
    assert [finding.level for finding in report.findings] == [Level.WARN]
    assert report.metrics() == {}
    assert math.isnan(report.stats["kl_sampler_to_old"])  # code that reads it goes on
    assert math.isnan(report.stats["ratio_to_sampler"]["p50"])


arrays = st.lists(
    st.tuples(*[st.floats(allow_nan=True, allow_infinity=True, width=32)] * 3), min_size=1, max_size=12
).map(lambda rows: np.array(rows, dtype=np.float64).T)


@given(arrays)
@settings(max_examples=100, deadline=None)
def test_any_numbers_give_a_report(rows: np.ndarray[Any, Any]) -> None:
    learner, sampler, old = rows
    report = probes.ratio_report(learner, sampler, logp_old=old)
    assert report.findings
    assert set(report.metrics()) >= {"harness/sampler_k3_kl", "harness/clip_fraction"}
    assert str(report)
    if report.stats["nonfinite_tokens"]:
        assert report.by_level("warn") or report.by_level("fail")
    kl = report.stats["kl_sampler_to_old"]
    assert math.isnan(kl) or kl >= 0

"""The demo's loss test against PyTorch's gradients of the written losses, and against losses with a known fault."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pth_tracker.demo.loss_check import check, written_loss
from pth_tracker.demo.losses import Loss, anchored_clip, ppo_clip
from pth_tracker.demo.settings import Settings, read_settings, resolve
from pth_tracker.losses.compare import LossReport
from pth_tracker.losses.inputs import random_arrays
from pth_tracker.losses.kinds import Kind
from pth_tracker.model import ROGUE_NORMALISER, Finding, Level

AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
CORRECTION = "algorithm.rollout_correction"


def settings_of(overrides: dict[str, Any] | None = None) -> Settings:
    return read_settings(resolve(overrides or {}))


def failed(report: LossReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.level is Level.FAIL]


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_the_equation_is_the_written_one_of_the_catalogue(aggregation: str) -> None:
    torch = pytest.importorskip("torch")
    from pth_tracker.losses import equations

    inputs = random_arrays()
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    logp = tensors["logp"].requires_grad_()
    ratio = equations.probability_ratio(logp, tensors["logp_old"], tensors["mask"])
    losses = -equations.clipped_objective(ratio, tensors["advantages"], 0.2, 0.2, 3.0)
    reduce = {
        "token-mean": equations.token_mean,
        "seq-mean-token-mean": equations.sequence_mean,
        "seq-mean-token-sum": equations.sequence_sum,
    }
    value = reduce[aggregation](losses, tensors["mask"])
    (gradient,) = torch.autograd.grad(value, logp)
    found = written_loss(inputs, settings_of({AGGREGATION: aggregation}))
    assert found.value == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(found.gradients["logp"], gradient.numpy(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("importance", [None, "token", "sequence"])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_trainers_loss_passes_in_every_setting(aggregation: str, importance: str | None, normalise: bool) -> None:
    correction = {f"{CORRECTION}.rollout_is": importance, f"{CORRECTION}.rollout_is_batch_normalize": normalise}
    report = check(ppo_clip, settings_of({AGGREGATION: aggregation} | correction))
    assert report.ok and report.worst.kind is Kind.EQUAL
    assert report.metrics()["harness/loss_check"] == 1.0


def test_the_anchored_loss_is_a_rogue_normaliser_by_the_length_of_a_response() -> None:
    report = check(anchored_clip, settings_of())
    assert [finding.tag for finding in failed(report)] == [ROGUE_NORMALISER]
    # 1 / (n |o_i|) for 1 / sum |o_i|: the mean length over the response's own.
    lengths = (random_arrays()["mask"] > 0).sum(axis=1)
    factors = lengths.mean() / lengths
    metrics = report.metrics()
    assert metrics["harness/loss_check"] == 0.0
    assert metrics["harness/loss_check_factor_min"] == pytest.approx(factors.min(), rel=1e-6)
    assert metrics["harness/loss_check_factor_max"] == pytest.approx(factors.max(), rel=1e-6)
    assert "in inverse proportion to the sequence's length" in failed(report)[0].detail
    assert check(anchored_clip, settings_of({AGGREGATION: "seq-mean-token-mean"})).ok


def twice(*arguments: Any) -> Loss:
    right = ppo_clip(*arguments)
    return Loss(2 * right.value, 2 * right.slope, right.metrics)


def unbounded(*arguments: Any) -> Loss:
    old, new, advantages, mask, weights, settings = arguments
    return ppo_clip(old, new, advantages, mask, weights, replace(settings, clip_low=0.9, clip_high=9.0))


def forgetful(old: Any, new: Any, advantages: Any, mask: Any, weights: Any, settings: Settings) -> Loss:
    return ppo_clip(old, new, advantages, mask, None, settings)


@pytest.mark.parametrize(
    ("loss", "kind"), [(twice, Kind.GLOBAL_FACTOR), (unbounded, Kind.CLIP_REGION), (forgetful, Kind.TOKEN_FACTOR)]
)
def test_other_faults_fail_by_what_they_are(loss: Any, kind: Kind) -> None:
    correction = {f"{CORRECTION}.rollout_is": "token"} if loss is forgetful else {}
    report = check(loss, settings_of(correction))
    assert report.worst.kind is kind
    assert not report.ok and not any(finding.tag for finding in failed(report))


@pytest.mark.parametrize("loss", [ppo_clip, anchored_clip])
def test_what_is_logged_are_plain_numbers(loss: Any) -> None:
    assert {type(value) for value in check(loss, settings_of()).metrics().values()} == {float}

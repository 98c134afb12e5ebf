"""A loss that has exactly one fault is told that fault, and nothing else; a loss that has none passes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pth
import pytest
import torch
from torch import Tensor

import pth_tracker
from pth_tracker.errors import UsageError
from pth_tracker.losses import equations
from pth_tracker.losses.compare import LossReport, check_loss
from pth_tracker.losses.evaluate import TOLERANCES
from pth_tracker.losses.inputs import random_batch
from pth_tracker.losses.kinds import Kind

Loss = Callable[..., Tensor]


def per_token(logp: Tensor, logp_old: Tensor, advantages: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    """The clipped loss of each token, written once more."""
    ratio, advantage = (logp - logp_old).exp(), advantages.unsqueeze(1)
    return torch.max(-ratio * advantage, -ratio.clamp(1 - low, 1 + high) * advantage)


def grpo(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **settings: Any) -> Tensor:
    losses = per_token(logp, logp_old, advantages, settings.get("low", 0.2), settings.get("high", 0.2))
    return ((losses * mask).sum(1) / mask.sum(1)).mean()


def token_mean(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    return (per_token(logp, logp_old, advantages) * mask).sum() / mask.sum()


def padded_length(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    return (per_token(logp, logp_old, advantages) * mask).mean()


def no_mask(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    return (per_token(logp, logp_old, advantages).sum(1) / mask.sum(1)).mean()


def no_mask_at_all(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    return per_token(logp, logp_old, advantages).mean()


def changed_mask(change: Callable[[Tensor], Tensor]) -> Loss:
    def loss(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
        kept = change(mask.clone())
        return ((per_token(logp, logp_old, advantages) * kept).sum(1) / mask.sum(1)).mean()

    return loss


def without_first(mask: Tensor) -> Tensor:
    mask[:, 0] = 0
    return mask


def without_last(mask: Tensor) -> Tensor:
    mask[torch.arange(len(mask)), mask.sum(1).long() - 1] = 0
    return mask


def without_second_sequence(mask: Tensor) -> Tensor:
    mask[1] = 0
    return mask


def shifted(mask: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], 1)


def by_position(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    discount = 0.9 ** torch.arange(mask.shape[1])
    return ((per_token(logp, logp_old, advantages) * mask * discount).sum(1) / mask.sum(1)).mean()


def by_sampler(
    logp: Tensor, logp_old: Tensor, logp_sampler: Tensor, advantages: Tensor, mask: Tensor, **_: Any
) -> Tensor:
    weight = (logp_old - logp_sampler).exp().detach()
    return ((weight * per_token(logp, logp_old, advantages) * mask).sum(1) / mask.sum(1)).mean()


def magnitude(advantages: Tensor, **inputs: Tensor) -> Tensor:
    """The sign of a negative advantage is lost in the gradient; the clip region is that of the true sign."""
    return grpo(advantages=advantages, **inputs) - 2 * grpo(advantages=advantages.clamp(max=0), **inputs)


def one_sided(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    """Clips whatever the sign of the advantage: without the minimum."""
    ratio = (logp - logp_old).exp().clamp(0.8, 1.2)
    return ((-ratio * advantages[:, None] * mask).sum(1) / mask.sum(1)).mean()


def detached(logp: Tensor, **inputs: Tensor) -> Tensor:
    return grpo(logp.detach(), **inputs)


def of_another(logp: Tensor, logp_ref: Tensor, mask: Tensor, **_: Any) -> Tensor:
    return ((logp - logp_ref).square() * mask).sum() / mask.sum()


def infinite(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    """0 times infinity outside the mask."""
    return grpo(logp, logp_old, advantages, mask) + (logp / mask * 0).sum()


CASES: list[tuple[Loss, Kind, tuple[float, float] | None]] = [
    (grpo, Kind.EQUAL, (1.0, 1.0)),
    (lambda **x: 3 * grpo(**x), Kind.GLOBAL_FACTOR, (3.0, 3.0)),
    (lambda **x: grpo(**x) / 4, Kind.GLOBAL_FACTOR, (0.25, 0.25)),
    (lambda **x: 1.001 * grpo(**x), Kind.GLOBAL_FACTOR, (1.001, 1.001)),
    (lambda **x: -grpo(**x), Kind.SIGN, (-1.0, -1.0)),
    (lambda **x: -2 * grpo(**x), Kind.SIGN, (-2.0, -2.0)),
    (magnitude, Kind.SIGN, None),
    (by_position, Kind.TOKEN_FACTOR, None),
    (by_sampler, Kind.TOKEN_FACTOR, None),
    (lambda **x: grpo(**x, high=0.28), Kind.CLIP_REGION, (1.0, 1.0)),
    (lambda **x: grpo(**x, low=0.3), Kind.CLIP_REGION, (1.0, 1.0)),
    (lambda **x: grpo(**x, low=0.1, high=0.1), Kind.CLIP_REGION, (1.0, 1.0)),
    (lambda **x: grpo(**x, low=9.0, high=9.0), Kind.CLIP_REGION, (1.0, 1.0)),
    (one_sided, Kind.CLIP_REGION, (1.0, 1.0)),
    (no_mask, Kind.MASK, (1.0, 1.0)),
    (no_mask_at_all, Kind.MASK, None),
    (changed_mask(without_first), Kind.MASK, (1.0, 1.0)),
    (changed_mask(without_last), Kind.MASK, (1.0, 1.0)),
    (changed_mask(shifted), Kind.MASK, (1.0, 1.0)),
    (changed_mask(without_second_sequence), Kind.MASK, (1.0, 1.0)),
    (detached, Kind.NO_GRADIENT, None),
    (of_another, Kind.UNRELATED, None),
    (infinite, Kind.NOT_FINITE, None),
]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("loss", "kind", "factors"), CASES)
def test_a_fault_is_told(loss: Loss, kind: Kind, factors: tuple[float, float] | None, seed: int) -> None:
    report = check_loss(loss, equations.grpo, random_batch(seed=seed))
    found = report.diagnoses["logp"]
    assert found.kind is kind, found
    if factors is not None:
        assert found.factors == pytest.approx(factors, rel=1e-9)
    assert report.ok is (kind is Kind.EQUAL)
    assert {one.tag for one in report.by_level("fail")} <= {""} or kind is Kind.MASK
    assert report.stats["kind[logp]"] == kind


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("loss", [token_mean, padded_length])
def test_another_normaliser_is_the_rogue_normaliser(loss: Loss, seed: int) -> None:
    batch = random_batch(seed=seed)
    lengths = batch["mask"].sum(1)
    # The mean over tokens weighs sequence i by G |o_i| / sum |o|, the mean over the width by |o_i| / T.
    whole = lengths.sum() / len(lengths) if loss is token_mean else batch["mask"].shape[1]
    report = check_loss(loss, equations.grpo, batch)
    (finding,) = report.by_level("fail")
    assert (finding.rule, finding.tag, finding.check) == ("rogue-normaliser", "Rogue Normaliser", 4)
    low, high = float(lengths.min() / whole), float(lengths.max() / whole)
    assert report.diagnoses["logp"].factors == pytest.approx((low, high))
    assert f"{low:.4g} to {high:.4g}" in finding.title
    assert "in proportion to the sequence's length" in finding.detail
    back = check_loss(equations.grpo, loss, batch)
    assert back.diagnoses["logp"].kind is Kind.SEQUENCE_FACTOR
    assert back.diagnoses["logp"].factors == pytest.approx((1 / high, 1 / low))
    assert "in inverse proportion" in back.findings[0].detail


def test_a_normaliser_and_a_clip_are_two_findings() -> None:
    report = check_loss(equations.dapo, equations.grpo)
    clip, normaliser = report.by_level("fail")
    assert (clip.rule, clip.tag) == ("loss-differs", "") and "clip region" in clip.title
    assert (normaliser.rule, normaliser.tag) == ("rogue-normaliser", "Rogue Normaliser")
    told = re.match(
        r"(\d) tokens? differs?, where pi / pi_old is 1\.2.*: (\d) kept that the equation clips\.", clip.detail
    )
    assert told and told[1] == told[2]
    logged = report.metrics()
    assert logged["harness/loss_check_kind"] == Kind.CLIP_REGION.code
    assert logged["harness/loss_check_factor_min"] < 1 < logged["harness/loss_check_factor_max"]


def test_a_weight_is_named_with_its_truncation() -> None:
    found = check_loss(equations.tis, equations.ppo_clip).diagnoses["logp"]
    assert found.kind is Kind.TOKEN_FACTOR
    assert re.fullmatch(
        r"The factor is pi_old / pi_sampler\. Besides: (\d) tokens differ, where pi_old / pi_sampler is 2\.[1-5]\d? to "
        r"2\.[1-5]\d?: \1 weighted differently\.",
        found.detail,
    )
    found = check_loss(equations.ppo_clip, equations.tis).diagnoses["logp"]
    assert "pi_old / pi_sampler inverted" in found.detail
    assert "depends on the token's position alone" in check_loss(by_position, equations.grpo).worst.detail


def test_which_sequences_have_the_wrong_sign_is_said() -> None:
    detail = check_loss(magnitude, equations.grpo).worst.detail
    assert "2 of 4 sequences point in opposite directions, those with a negative advantage" in detail


def test_a_clip_of_whole_sequences_is_no_mask() -> None:
    def unclipped(**inputs: Tensor) -> Tensor:
        own = {key: inputs[key] for key in ("logp", "logp_old", "advantages", "mask")}
        return equations.gspo(**own, clip_low=9, clip_high=9)

    for first, second in ((equations.gspo, unclipped), (unclipped, equations.gspo)):
        found = check_loss(first, second).worst
        assert found.kind is Kind.CLIP_REGION and "2 of 4 sequences" in found.detail


def test_a_value_that_differs_alone_is_said() -> None:
    report = check_loss(lambda **x: grpo(**x) + 1, equations.grpo)
    (finding,) = report.by_level("fail")
    assert finding.rule == "loss-differs" and "value differs" in finding.title
    assert report.metrics()["harness/loss_check_kind"] == Kind.VALUE.code
    assert report.diagnoses["logp"].kind is Kind.EQUAL


def test_one_token_of_thirty_is_enough() -> None:
    def loss(**inputs: Tensor) -> Tensor:
        weight = torch.ones_like(inputs["mask"])
        weight[2, 3] = 1.5
        inputs["mask"] = inputs["mask"] * weight
        losses = per_token(inputs["logp"], inputs["logp_old"], inputs["advantages"]) * inputs["mask"]
        return (losses.sum(1) / (inputs["mask"] > 0).sum(1)).mean()

    batch = random_batch(seed=1)
    report = check_loss(loss, equations.grpo, batch)
    assert not report.ok and report.diagnoses["logp"].differing == 1


# Types


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(equations.CATALOGUE))
def test_rounding_passes_and_stays_well_within_the_tolerance(name: str, dtype: torch.dtype) -> None:
    function = equations.CATALOGUE[name].function
    for seed in range(4):
        report = check_loss(function, function, random_batch(batch=8, length=40, seed=seed, dtype=dtype))
        assert report.ok, report
        assert report.diagnoses["logp"].relative < TOLERANCES[str(dtype).removeprefix("torch.")] / 2
        assert report.value_difference < TOLERANCES[str(dtype).removeprefix("torch.")] / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (token_mean, Kind.SEQUENCE_FACTOR),
        (lambda **x: 1.5 * grpo(**x), Kind.GLOBAL_FACTOR),
        (lambda **x: -grpo(**x), Kind.SIGN),
        (lambda **x: grpo(**x, high=0.28), Kind.CLIP_REGION),
        (no_mask, Kind.MASK),
        (by_sampler, Kind.TOKEN_FACTOR),
        (changed_mask(without_last), Kind.MASK),
    ],
)
def test_faults_show_through_rounding(loss: Loss, kind: Kind, dtype: torch.dtype) -> None:
    assert check_loss(loss, equations.grpo, random_batch(seed=2, dtype=dtype)).worst.kind is kind


def test_the_coarsest_type_decides_the_tolerance() -> None:
    batch = random_batch()
    batch["mask"] = batch["mask"].to(torch.bfloat16)
    assert check_loss(grpo, equations.grpo, batch).stats["rtol"] == TOLERANCES["bfloat16"]
    assert check_loss(grpo, equations.grpo).stats["rtol"] == TOLERANCES["float64"]
    assert check_loss(grpo, equations.grpo, rtol=1e-3).stats["rtol"] == 1e-3
    single = check_loss(lambda **x: grpo(**x).float(), equations.grpo)
    assert single.ok and single.stats["rtol"] == TOLERANCES["float32"]


def test_tolerances_of_ones_own_are_taken() -> None:
    off = lambda **x: 1.001 * grpo(**x)  # noqa: E731
    assert check_loss(off, equations.grpo, rtol=1e-2).ok
    assert check_loss(off, equations.grpo, rtol=0.0, atol=1e-2).ok
    assert not check_loss(off, equations.grpo, rtol=0.0, atol=1e-9).ok


# What a loss may do


def in_place(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
    ratio = logp.sub_(logp_old).exp()
    advantages.unsqueeze_(1)
    losses = torch.max(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    losses.mul_(mask)
    return (losses.sum(1) / mask.sum(1)).mean()


def test_a_loss_that_writes_into_its_inputs_is_checked_and_told() -> None:
    batch = random_batch()
    before = {key: value.clone() for key, value in batch.items()}
    report = check_loss(in_place, equations.grpo, batch)
    assert report.ok and report.diagnoses["logp"].kind is Kind.EQUAL
    assert all(torch.equal(before[key], batch[key]) for key in batch)
    assert all(value.grad is None and not value.requires_grad for value in batch.values())
    (warning,) = report.by_level("warn")
    assert warning.evidence["mutated"] == ["logp", "advantages"]
    assert not check_loss(grpo, equations.grpo, batch).by_level("warn")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loss_that_writes_in_place_is_checked_at_lower_precision(dtype: torch.dtype) -> None:
    batch = random_batch(seed=3, dtype=dtype)
    assert check_loss(in_place, equations.grpo, batch).ok
    assert check_loss(lambda **x: in_place(**x).mul_(1.5), equations.grpo, batch).worst.kind is Kind.GLOBAL_FACTOR


def test_inputs_with_gradients_of_their_own_are_left_alone() -> None:
    batch = random_batch()
    batch["logp"].requires_grad_()
    batch["logp_old"] = batch["logp_old"].requires_grad_() * 1.0
    with torch.no_grad():
        assert check_loss(grpo, equations.grpo, batch).ok
    assert batch["logp"].grad is None


def test_gradients_in_several_inputs() -> None:
    def stopped(logp_old: Tensor, **inputs: Tensor) -> Tensor:
        return grpo(logp_old=logp_old.detach(), **inputs)

    report = check_loss(stopped, equations.grpo, wrt=("logp", "logp_old", "logp_ref"))
    assert {key: found.kind for key, found in report.diagnoses.items()} == {
        "logp": Kind.EQUAL,
        "logp_old": Kind.NO_GRADIENT,
        "logp_ref": Kind.EQUAL,
    }
    (finding,) = report.by_level("fail")
    assert finding.title == "loss: no gradient reaches logp_old"
    assert "does not depend on logp_old" in finding.detail
    assert report.stats["max_grad_diff[logp_ref]"] == 0.0
    assert report.worst.kind is Kind.NO_GRADIENT


def test_a_gradient_in_the_advantages_has_one_entry_a_sequence() -> None:
    report = check_loss(token_mean, equations.grpo, wrt=("advantages",))
    assert report.diagnoses["advantages"].kind is Kind.TOKEN_FACTOR
    assert check_loss(grpo, equations.grpo, wrt="advantages").ok


def test_other_inputs_reach_the_loss_and_logits_have_three_dimensions() -> None:
    def of_logits(logits: Tensor, labels: Tensor, mask: Tensor, by_sequence: bool) -> Tensor:
        picked = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
        rows = (picked * mask).sum(1)
        return (rows / mask.sum(1)).mean() if by_sequence else rows.sum() / mask.sum()

    generator = torch.Generator().manual_seed(0)
    inputs = {
        "logits": torch.randn(3, 5, 7, generator=generator, dtype=torch.float64),
        "labels": torch.randint(0, 7, (3, 5), generator=generator),
        "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]]),
        "by_sequence": True,
    }
    assert check_loss(of_logits, of_logits, inputs, wrt=("logits",)).ok

    def mean(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return of_logits(logits, labels, mask, by_sequence=False)

    found = check_loss(mean, of_logits, inputs, wrt=("logits",)).worst
    assert found.kind is Kind.SEQUENCE_FACTOR
    assert found.factors == pytest.approx((2 * 3 / 10, 5 * 3 / 10))


def test_losses_written_for_one_type_alone_are_compared_in_it() -> None:
    weights = torch.full((12, 1), 0.1)  # float32

    def matrix(logp: Tensor, mask: Tensor) -> Tensor:
        return ((logp * mask) @ weights).mean()

    def sums(logp: Tensor, mask: Tensor) -> Tensor:
        return (logp * mask).sum() * 0.1 / len(mask)

    assert check_loss(sums, matrix, random_batch(dtype=torch.float32)).ok


# Inputs that show little


def test_what_an_input_cannot_show_is_said() -> None:
    batch = random_batch()
    assert not [one for one in check_loss(grpo, equations.grpo, batch).findings if "cannot show" in one.title]
    weak = {
        **batch,
        "mask": torch.ones(4, 12, dtype=torch.float64),
        "advantages": batch["advantages"].abs(),
        "logp_old": batch["logp"],
    }
    report = check_loss(token_mean, equations.grpo, weak)  # one length: the two means are one
    assert report.ok
    (told,) = [one for one in report.findings if "cannot show" in one.title]
    assert len(told.evidence["cannot_show"]) == 4
    assert "normaliser" in told.title and "mask" in told.title and "clip" in told.title


def test_infinite_inputs_and_results() -> None:
    batch = random_batch()
    batch["logp"][0, 0] = float("nan")
    report = check_loss(grpo, equations.grpo, batch)
    assert not report.ok and report.worst.detail == "The equation's own gradient is not finite on this input."
    batch = random_batch()
    batch["logp"] = batch["logp"].masked_fill(batch["mask"] == 0, float("-inf"))
    report = check_loss(grpo, equations.grpo, batch)  # exp(-inf) A times a mask of 0 is 0, its gradient too
    assert report.ok
    report = check_loss(lambda **x: grpo(**x) + (x["logp"] * x["mask"]).sum() * 0, equations.grpo, batch)
    assert report.worst.kind is Kind.NOT_FINITE or not report.ok
    assert all(math.isfinite(value) for value in report.metrics().values())


def test_an_infinite_gradient_is_placed() -> None:
    def root(**inputs: Tensor) -> Tensor:
        return grpo(**inputs) + ((inputs["logp"] - inputs["logp"].detach()).abs().sqrt() * (1 - inputs["mask"])).sum()

    found = check_loss(root, equations.grpo).worst
    assert found.kind is Kind.NOT_FINITE and "inside the mask" in found.detail


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        (lambda logp, **_: logp, {}, r"returns a tensor of shape \(4, 12\); a loss check needs a scalar tensor"),
        (lambda logp, **_: (logp.sum(), {}), {}, r"returns a tuple; .* for example lambda \*\*inputs: .*\[0\]"),
        (lambda logp, **_: {"loss": logp.sum()}, {}, r"returns a dict; .*\['loss'\]"),
        (lambda logp, **_: 1.0, {}, "returns a float; a loss check needs a scalar tensor"),
        (lambda logp, **_: (logp > 0).sum(), {}, "returns a tensor of type torch.int64"),
        (lambda logp, weights, **_: logp.sum(), {}, "needs weights, and the inputs hold logp, logp_old"),
        (grpo, {"wrt": ("logits",)}, "wrt names 'logits', and the inputs hold logp"),
        (grpo, {"wrt": ()}, "wrt names no input"),
        (
            grpo,
            {"inputs": {**random_batch(), "mask": torch.ones(4, 12).long()}, "wrt": ("mask",)},
            "no floating tensor",
        ),
    ],
)
def test_what_cannot_be_checked_is_said(loss: Loss, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_loss(loss, lambda **x: grpo(**x), **{"inputs": random_batch(), **arguments})


def test_an_input_that_nobody_takes_is_most_likely_misspelt() -> None:
    with pytest.raises(UsageError, match="neither .* takes the input 'clip_lo'"):
        check_loss(equations.grpo, equations.grpo, {**random_batch(), "clip_lo": 0.1})


# What is logged


def test_metrics_are_numbers_by_flat_name() -> None:
    assert check_loss(grpo, equations.grpo).metrics() == {
        "harness/loss_check": 1.0,
        "harness/loss_check_kind": 0.0,
        "harness/loss_check_value_difference": pytest.approx(0, abs=1e-12),
        "harness/loss_check_gradient_difference": pytest.approx(0, abs=1e-12),
        "harness/loss_check_factor_min": 1.0,
        "harness/loss_check_factor_max": 1.0,
    }
    failed = check_loss(lambda **x: 3 * grpo(**x), equations.grpo).metrics()
    assert failed["harness/loss_check"] == 0.0 and failed["harness/loss_check_kind"] == 1.0
    assert failed["harness/loss_check_gradient_difference"] == pytest.approx(2.0)
    assert failed["harness/loss_check_factor_min"] == pytest.approx(3.0)
    unrelated = check_loss(of_another, equations.grpo).metrics()
    assert unrelated["harness/loss_check_kind"] == 10.0 and "harness/loss_check_factor_min" not in unrelated


def test_the_codes_of_kinds_are_those_that_are_documented() -> None:
    text = LossReport.metrics.__doc__ or ""
    for kind in Kind:
        assert f"{kind.code} {kind}" in " ".join(text.split()), kind


# Beside the other package, which cannot differentiate a detached loss


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("loss", "kind", "factors"),
    [*(case for case in CASES if case[1] is not Kind.NO_GRADIENT), (token_mean, Kind.SEQUENCE_FACTOR, None)],
)
def test_verdict_tag_and_statistics_are_those_of_the_other_package(
    loss: Loss, kind: Kind, factors: tuple[float, float] | None, seed: int
) -> None:
    batch = pth.random_batch(seed=seed)
    equation = lambda **x: grpo(x["logp"], x["logp_old"], x["advantages"], x["mask"])  # noqa: E731
    theirs = pth.check_loss(loss, equation, batch, wrt=("logp",), name="mine")
    ours = pth_tracker.check_loss(loss, equation, batch, wrt=("logp",), name="mine")
    assert ours.ok == theirs.ok
    assert set(theirs.stats) <= set(ours.stats)
    for key in theirs.stats:
        assert ours.stats[key] == pytest.approx(theirs.stats[key], rel=1e-9, nan_ok=True), key
    rogue = {finding.tag for finding in theirs.findings} - {""}
    if kind in (Kind.SEQUENCE_FACTOR, Kind.GLOBAL_FACTOR, Kind.EQUAL):
        assert {finding.tag for finding in ours.findings} - {""} == rogue
    if not theirs.ok:
        with pytest.raises(pth_tracker.HarnessCheckError):
            ours.raise_on_fail()

"""The written losses against numbers worked out by hand and an independent computation token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pth_tracker.losses import equations
from pth_tracker.losses.inputs import random_batch

LN = math.log


def tiny(ratios: list[list[float]], lengths: list[int], advantages: list[float]) -> dict[str, Any]:
    """Two sequences whose ratios pi / pi_old are these; pi is 1/2 everywhere."""
    mask = torch.tensor([[1.0 if t < n else 0.0 for t in range(len(row))] for row, n in zip(ratios, lengths)])
    logp = torch.full((len(ratios), len(ratios[0])), LN(0.5), dtype=torch.float64)
    return {
        "logp": logp,
        "logp_old": logp - torch.tensor(ratios, dtype=torch.float64).log(),
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "mask": mask.double(),
    }


TINY = tiny([[1.5, 0.5, 1.0], [4.0, 0.5, 1.1]], [1, 3], [2.0, -1.0])
"""Objectives min(r A, clip(r, .8, 1.2) A): 2.4 | -4, -0.8, -1.1; bounded below by -3: 2.4 | -3, -0.8, -1.1."""


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("ppo_clip", {}, -(2.4 - 4 - 0.8 - 1.1) / 4),
        ("ppo_clip", {"clip_high": 0.5}, -(3.0 - 4 - 0.8 - 1.1) / 4),
        ("dual_clip", {}, -(2.4 - 3 - 0.8 - 1.1) / 4),
        ("dual_clip", {"bound": 2.0}, -(2.4 - 2 - 0.8 - 1.1) / 4),
        ("grpo", {}, -(2.4 / 1 + (-4 - 0.8 - 1.1) / 3) / 2),
        ("grpo", {"bound": 3.0}, -(2.4 / 1 + (-3 - 0.8 - 1.1) / 3) / 2),
        ("dapo", {}, -(2 * 1.28 - 4 - 0.8 - 1.1) / 4),
        ("dr_grpo", {}, -(2.4 - 4 - 0.8 - 1.1) / 2 / 3),
        ("dr_grpo", {"constant": 1.0}, -(2.4 - 4 - 0.8 - 1.1) / 2),
        # s = 1.5 and (4 * 0.5 * 1.1)^(1/3) = 2.2^(1/3) = 1.30059; clipped at 1.0004 and not.
        ("gspo", {}, -(2 * 1.0004 - 2.2 ** (1 / 3)) / 2),
        ("gspo", {"clip_high": 1.0}, -(2 * 1.5 - 2.2 ** (1 / 3)) / 2),
        # log pi = -ln 2; weights 1.2 | 1.2, 0.5, 1.1.
        ("cispo", {}, LN(2) * (1.2 * 2 - (1.2 + 0.5 + 1.1)) / 4),
        ("cispo", {"clip_low": 0.2}, LN(2) * (1.2 * 2 - (1.2 + 0.8 + 1.1)) / 4),
        ("reinforce", {}, LN(2) * (2 * 1 - 1 * 3) / 2),
    ],
)
def test_a_written_loss_has_the_value_worked_out_by_hand(name: str, settings: dict[str, Any], value: float) -> None:
    function = equations.CATALOGUE[name].function
    inputs = {key: held for key, held in TINY.items() if name != "reinforce" or key != "logp_old"}
    assert float(function(**inputs, **settings)) == pytest.approx(value, rel=1e-12)


def test_importance_weights_are_truncated_or_masked_and_masked_tokens_count() -> None:
    # pi_old / pi_sampler: 3 | 0.4, 2, 1; the objectives are those of TINY.
    weights = torch.tensor([[3.0, 1, 1], [0.4, 2, 1]], dtype=torch.float64)
    inputs = {**TINY, "logp_sampler": TINY["logp_old"] - weights.log()}
    assert float(equations.tis(**inputs)) == pytest.approx(-(2 * 2.4 - 0.4 * 4 - 2 * 0.8 - 1.1) / 4)
    assert float(equations.tis(**inputs, threshold=4.0)) == pytest.approx(-(3 * 2.4 - 0.4 * 4 - 2 * 0.8 - 1.1) / 4)
    # exp(log 2) may round to either side of 2, so the bounds are put beside the weights.
    masked = equations.masked_is(**inputs, lowest=0.5, highest=2.5)
    assert float(masked) == pytest.approx(-(0 + 0 - 2 * 0.8 - 1.1) / 4)


def test_kl_estimators_have_the_values_worked_out_by_hand() -> None:
    # pi = 1/2, pi_ref = 1/4: log(pi / pi_ref) = ln 2.
    logp, ref = torch.tensor([[LN(0.5)]]).double(), torch.tensor([[LN(0.25)]]).double()
    assert float(equations.k1(logp, ref)) == pytest.approx(LN(2))
    assert float(equations.k2(logp, ref)) == pytest.approx(LN(2) ** 2 / 2)
    assert float(equations.k3(logp, ref)) == pytest.approx(0.5 - 1 + LN(2))
    inputs = {**TINY, "logp_ref": TINY["logp"] - LN(2)}
    penalty = 0.5 - 1 + LN(2)
    plain = float(equations.grpo(**{key: held for key, held in inputs.items() if key != "logp_ref"}))
    assert float(equations.grpo(**inputs, kl_coef=0.04)) == pytest.approx(plain + 0.04 * penalty)


def test_estimators_k1_and_k3_average_to_the_divergence() -> None:
    """Over all outcomes of a distribution, weighted by it: E[k1] = E[k3] = KL(pi || pi_ref)."""
    pi, ref = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    divergence = float((pi * np.log(pi / ref)).sum())
    logs = torch.tensor(np.log(pi)), torch.tensor(np.log(ref))
    for estimator in (equations.k1, equations.k3):
        assert float((torch.tensor(pi) * estimator(*logs)).sum()) == pytest.approx(divergence)


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    scores = torch.tensor([1.0, 0.0, 0.0, 0.5, 1.5, 1.0])
    assert equations.leave_one_out(scores, 3).tolist() == pytest.approx([1.0, -0.5, -0.5, -0.75, 0.75, 0.0])


# The same losses once more, one token at a time in plain Python.


def tokens(batch: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
    for i, row in enumerate(batch["mask"]):
        for t in np.flatnonzero(row):
            found = {key: float(batch[key][i, t]) for key in ("logp", "logp_old", "logp_sampler", "logp_ref")}
            yield i, {**found, "A": float(batch["advantages"][i]), "n": float(row.sum())}


def clipped(token: dict[str, float], low: float, high: float) -> float:
    ratio = math.exp(token["logp"] - token["logp_old"])
    return min(ratio * token["A"], min(max(ratio, 1 - low), 1 + high) * token["A"])


def by_token(each: Callable[[dict[str, float]], float]) -> Callable[[dict[str, np.ndarray[Any, Any]]], float]:
    return lambda batch: -sum(each(token) for _, token in tokens(batch))


def geometric(batch: dict[str, np.ndarray[Any, Any]], low: float = 3e-4, high: float = 4e-4) -> float:
    total = 0.0
    for i in range(len(batch["mask"])):
        own = [token for row, token in tokens(batch) if row == i]
        mean = sum(token["logp"] - token["logp_old"] for token in own) / len(own)
        total += clipped({"logp": mean, "logp_old": 0.0, "A": own[0]["A"]}, low, high)
    return -total / len(batch["mask"])


def weight(token: dict[str, float]) -> float:
    return math.exp(token["logp_old"] - token["logp_sampler"])


def count(batch: dict[str, np.ndarray[Any, Any]]) -> float:
    return float(batch["mask"].sum())


PLAIN: dict[str, Callable[[dict[str, np.ndarray[Any, Any]]], float]] = {
    "ppo_clip": lambda b: by_token(lambda t: clipped(t, 0.2, 0.2))(b) / count(b),
    "dual_clip": lambda b: (
        by_token(lambda t: max(clipped(t, 0.2, 0.2), 3 * t["A"]) if t["A"] < 0 else clipped(t, 0.2, 0.2))(b) / count(b)
    ),
    "grpo": lambda b: by_token(lambda t: clipped(t, 0.2, 0.2) / t["n"])(b) / len(b["mask"]),
    "dapo": lambda b: by_token(lambda t: clipped(t, 0.2, 0.28))(b) / count(b),
    "dr_grpo": lambda b: by_token(lambda t: clipped(t, 0.2, 0.2))(b) / len(b["mask"]) / b["mask"].shape[1],
    "gspo": geometric,
    "reinforce": lambda b: by_token(lambda t: t["A"] * t["logp"])(b) / len(b["mask"]),
    "tis": lambda b: by_token(lambda t: min(weight(t), 2.0) * clipped(t, 0.2, 0.2))(b) / count(b),
    "masked_is": lambda b: (
        by_token(lambda t: weight(t) * clipped(t, 0.2, 0.2) if 0.5 <= weight(t) <= 2 else 0.0)(b) / count(b)
    ),
    "kl_penalty": lambda b: (
        -by_token(lambda t: math.exp(t["logp_ref"] - t["logp"]) - 1 - t["logp_ref"] + t["logp"])(b) / count(b)
    ),
    "cispo": lambda b: (
        by_token(lambda t: min(math.exp(t["logp"] - t["logp_old"]), 1.2) * t["A"] * t["logp"])(b) / count(b)
    ),
}


def arrays(batch: dict[str, Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return {key: value.numpy().copy() for key, value in batch.items()}


def called(name: str, batch: dict[str, Tensor]) -> Tensor:
    import inspect

    function = equations.CATALOGUE[name].function
    return function(**{key: held for key, held in batch.items() if key in inspect.signature(function).parameters})


def test_every_written_loss_is_recomputed() -> None:
    assert set(PLAIN) == set(equations.CATALOGUE)


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_written_loss_equals_its_computation_token_by_token(name: str, seed: int) -> None:
    batch = random_batch(batch=5, length=14, seed=seed)
    assert float(called(name, batch)) == pytest.approx(PLAIN[name](arrays(batch)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", sorted(set(PLAIN) - {"cispo", "reinforce"}))
def test_its_gradient_is_that_of_finite_differences(name: str) -> None:
    batch = random_batch(seed=3)
    batch["logp"].requires_grad_()
    (gradient,) = torch.autograd.grad(called(name, batch), batch["logp"])
    step = 1e-6
    for i, t in [(0, 0), (0, 4), (1, 2), (2, 5), (3, 1), (3, 11)]:
        up, down = arrays({k: v.detach() for k, v in batch.items()}), arrays({k: v.detach() for k, v in batch.items()})
        up["logp"][i, t] += step
        down["logp"][i, t] -= step
        slope = (PLAIN[name](up) - PLAIN[name](down)) / (2 * step)
        assert float(gradient[i, t]) == pytest.approx(slope, abs=1e-8), (i, t)


def test_the_weight_of_cispo_has_no_gradient_and_no_token_is_without() -> None:
    batch = random_batch(seed=3)
    batch["logp"].requires_grad_()
    (gradient,) = torch.autograd.grad(called("cispo", batch), batch["logp"])
    ratio = (batch["logp"] - batch["logp_old"]).exp().clamp(max=1.2).detach()
    expected = -ratio * batch["advantages"][:, None] * batch["mask"] / batch["mask"].sum()
    assert torch.allclose(gradient, expected, rtol=1e-12)
    assert bool((gradient != 0).eq(batch["mask"] != 0).all())


def test_gspo_at_the_sampled_policy_has_the_gradient_of_reinforce_over_the_lengths() -> None:
    batch = random_batch(seed=4)
    batch["logp_old"] = batch["logp"].clone()
    batch["logp"].requires_grad_()
    (ours,) = torch.autograd.grad(equations.gspo(**{k: batch[k] for k in TINY}), batch["logp"])
    (plain,) = torch.autograd.grad(called("reinforce", batch), batch["logp"])
    assert torch.allclose(ours, plain / batch["mask"].sum(1, keepdim=True), rtol=1e-12)


@pytest.mark.parametrize("name", sorted(PLAIN))
@pytest.mark.parametrize("padding", [float("nan"), float("-inf"), 1e4])
def test_what_stands_outside_the_mask_never_matters(name: str, padding: float) -> None:
    batch = random_batch()
    clean = called(name, batch)
    for key in ("logp", "logp_old", "logp_sampler", "logp_ref"):
        batch[key] = batch[key].masked_fill(batch["mask"] == 0, padding)
    batch["logp"].requires_grad_()
    dirty = called(name, batch)
    assert torch.equal(clean, dirty.detach())
    (gradient,) = torch.autograd.grad(dirty, batch["logp"])
    assert bool(gradient.isfinite().all())
    assert not bool(gradient[batch["mask"] == 0].any())


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_boolean_mask_does_as_well(name: str) -> None:
    batch = random_batch()
    plain = called(name, batch)
    assert float(called(name, {**batch, "mask": batch["mask"].bool()})) == pytest.approx(float(plain), rel=1e-12)


def test_every_entry_says_its_formula_and_its_paper() -> None:
    for entry in equations.CATALOGUE.values():
        text = entry.function.__doc__ or ""
        assert len(entry.about) > 20 and not entry.about.startswith(" ")
        assert entry.name == "kl_penalty" or any(mark in text for mark in ("arXiv", "1992", "2025")), entry.name

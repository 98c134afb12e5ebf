"""Implementations are named after the written loss that they are, or the nearest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pth_tracker
from pth_tracker.errors import UsageError
from pth_tracker.losses import equations
from pth_tracker.losses.identify import identify_loss
from pth_tracker.losses.inputs import random_batch
from pth_tracker.losses.kinds import Kind


@pytest.mark.parametrize("name", sorted(equations.CATALOGUE))
def test_every_written_loss_is_named_and_nothing_else(name: str) -> None:
    found = identify_loss(equations.CATALOGUE[name].function, random_batch(seed=1))
    assert found.exact and found.name == name and not found.nearest.settings
    assert str(found).startswith(name)
    assert {match.name for match in found.matches} == ({"dapo", "ppo_clip"} if name == "dapo" else {name})


@pytest.mark.parametrize("name", sorted(set(equations.CATALOGUE)))
def test_so_it_is_at_lower_precision(name: str) -> None:
    found = identify_loss(equations.CATALOGUE[name].function, random_batch(dtype=torch.bfloat16))
    assert found.exact and found.name == name


def verl_vanilla(mode: str, low: float = 0.2, high: float = 0.28, bound: float | None = 3.0) -> Callable[..., Tensor]:
    """The clipped loss in the form that trainers have it: losses instead of objectives, both clips, a mode of means."""

    def loss(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **_: Any) -> Tensor:
        weight = advantages[:, None].expand_as(logp)
        ratio = (logp - logp_old).clamp(-20, 20).exp()
        losses = torch.maximum(-weight * ratio, -weight * ratio.clamp(1 - low, 1 + high))
        if bound is not None:
            losses = torch.where(weight < 0, torch.minimum(losses, -weight * bound), losses)
        if mode == "token-mean":
            return (losses * mask).sum() / (mask.sum() + 1e-8)
        rows = (losses * mask).sum(-1)
        if mode == "seq-mean-token-sum":
            return rows.mean()
        return (rows / (mask.sum(-1) + 1e-8)).mean()

    return loss


@pytest.mark.parametrize(
    ("loss", "name", "settings"),
    [
        (verl_vanilla("token-mean"), "dual_clip", {"clip_high": 0.28}),
        (verl_vanilla("token-mean", bound=None), "dapo", {}),
        (verl_vanilla("seq-mean-token-mean"), "grpo", {"clip_high": 0.28, "bound": 3.0}),
        (verl_vanilla("seq-mean-token-mean", 0.2, 0.2, None), "grpo", {}),
        (verl_vanilla("seq-mean-token-sum", 0.2, 0.2, None), "dr_grpo", {"constant": 1.0}),
        (verl_vanilla("token-mean", 0.1, 0.1, None), "ppo_clip", {"clip_low": 0.1, "clip_high": 0.1}),
    ],
)
def test_what_a_trainer_computes_is_named_with_its_settings(
    loss: Callable[..., Tensor], name: str, settings: dict[str, float]
) -> None:
    found = identify_loss(loss)
    assert (found.name, dict(found.nearest.settings)) == (name, settings), str(found)
    assert found.exact


@pytest.mark.parametrize(
    ("loss", "name", "kind", "words"),
    [
        (lambda **x: 3 * verl_vanilla("token-mean", bound=None)(**x), "dapo", Kind.GLOBAL_FACTOR, "another scale"),
        (lambda **x: -verl_vanilla("token-mean", bound=None)(**x), "dapo", Kind.SIGN, "another sign"),
        (lambda **x: 1 + verl_vanilla("seq-mean-token-mean", 0.2, 0.2, None)(**x), "grpo", Kind.VALUE, "another value"),
        (verl_vanilla("token-mean", 0.05, 0.05, None), "ppo_clip", Kind.CLIP_REGION, "another clip"),
    ],
)
def test_the_nearest_is_named_with_the_difference(
    loss: Callable[..., Tensor], name: str, kind: Kind, words: str
) -> None:
    found = identify_loss(loss)
    assert not found.exact and not found.matches
    assert found.nearest.diagnosis.kind is kind
    # Sequence means and token means of one clip differ by a factor per sequence: the token mean is the nearer one.
    assert found.name == name
    assert str(found).startswith(f"no written loss; the nearest is {name}") and words in str(found)
    assert [match.name for match in found.ranking][0] == name
    assert len({match.name for match in found.ranking}) == len(equations.CATALOGUE)


def test_another_normaliser_is_said_to_be_one() -> None:
    def weighted_by_sequence(**x: Tensor) -> Tensor:
        """CISPO over sequence means, which nobody wrote down."""
        weight = (x["logp"] - x["logp_old"]).exp().clamp(max=1.2).detach()
        losses = -weight * x["advantages"][:, None] * x["logp"] * x["mask"]
        return (losses.sum(1) / x["mask"].sum(1)).mean()

    found = identify_loss(weighted_by_sequence)
    assert found.name == "cispo" and found.nearest.diagnosis.kind is Kind.SEQUENCE_FACTOR
    assert "with another normaliser" in str(found)


@pytest.mark.parametrize("estimator", sorted(equations.KL_ESTIMATORS))
@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_kl_term_is_found_with_its_coefficient(estimator: str, by_sequence: bool) -> None:
    def loss(**x: Tensor) -> Tensor:
        plain = verl_vanilla("seq-mean-token-mean", 0.2, 0.2, None)(**x)
        return plain + 0.04 * equations.kl_penalty(x["logp"], x["logp_ref"], x["mask"], estimator, by_sequence)

    found = identify_loss(loss)
    assert found.name == "grpo" and not found.exact
    mean = "sequence mean" if by_sequence else "token mean"
    assert str(found.nearest) == f"grpo plus 0.04 times the {mean} of {estimator} against the reference"


def test_settings_of_ones_own_are_tried() -> None:
    def loss(**x: Tensor) -> Tensor:
        own: dict[str, Any] = {key: x[key] for key in ("logp", "logp_old", "logp_sampler", "advantages", "mask")}
        return equations.tis(**own, threshold=1.5)

    assert not identify_loss(loss).exact
    found = identify_loss(loss, settings={"threshold": 1.5})
    assert found.exact and str(found) == "tis(threshold=1.5)"
    assert identify_loss(loss, candidates=["tis", "grpo"], settings={"threshold": 1.5}).name == "tis"


def test_losses_that_the_inputs_do_not_allow_are_left_out() -> None:
    batch = random_batch()
    plain = {key: batch[key] for key in ("logp", "logp_old", "advantages", "mask")}
    found = identify_loss(equations.grpo, plain)
    assert found.exact and not {"tis", "masked_is", "kl_penalty"} & {match.name for match in found.ranking}


def test_what_cannot_be_named_is_said() -> None:
    with pytest.raises(UsageError, match="no written loss is called 'gpro'; the catalogue has ppo_clip"):
        identify_loss(equations.grpo, candidates=["gpro"])
    with pytest.raises(UsageError, match="no written loss fits the inputs logp; name them as random_batch does"):
        identify_loss(lambda logp: logp.sum(), {"logp": torch.zeros(2, 3)})
    with pytest.raises(UsageError, match="returns a float"):
        identify_loss(lambda logp, **_: 1.0)


def test_a_loss_that_is_none_of_them_has_no_match() -> None:
    found = pth_tracker.identify_loss(lambda logp, mask, **_: (logp.sin() * mask).sum())
    assert not found.exact and not any(match.exact for match in found.ranking)
    assert str(found).startswith("no written loss; the nearest is ")

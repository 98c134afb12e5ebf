"""The fixed input: what it has to hold so that the faults of a loss show."""

from __future__ import annotations

from typing import Any

import pth
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pth_tracker
from pth_tracker.errors import UsageError
from pth_tracker.losses.inputs import random_batch

EDGES = (0.5, 0.7, 0.8, 0.9, 1.1, 1.2, 1.28, 2.0, 3.0)


def test_it_has_the_names_shapes_and_type_of_the_other_package() -> None:
    ours, theirs = pth_tracker.random_batch(batch=6, length=9, seed=1), pth.random_batch(batch=6, length=9, seed=1)
    assert list(ours) == list(theirs)
    assert {k: (v.shape, v.dtype) for k, v in ours.items()} == {k: (v.shape, v.dtype) for k, v in theirs.items()}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 1000))
def test_it_is_a_valid_input_of_any_size(batch: int, length: int, seed: int) -> None:
    found = random_batch(batch, length, seed)
    again = random_batch(batch, length, seed)
    assert all(torch.equal(found[key], again[key]) for key in found)
    for key in ("logp", "logp_old", "logp_sampler", "logp_ref"):
        assert found[key].shape == (batch, length)
        assert bool(((found[key] < 0) & (found[key] > -4)).all())
    lengths = found["mask"].sum(1)
    assert bool((lengths >= 1).all()) and int(lengths.max()) == length
    assert bool((found["mask"] == (torch.arange(length) < lengths[:, None])).all())
    ratio = (found["logp"] - found["logp_old"]).exp()
    assert all(bool(((ratio / edge - 1).abs() > 0.01).all()) for edge in EDGES)


@pytest.mark.parametrize("seed", range(10))
def test_the_default_size_shows_every_fault(seed: int) -> None:
    found = random_batch(seed=seed)
    inside, sign = found["mask"].bool(), found["advantages"].sign()
    assert found["mask"].sum(1).unique().numel() >= 2
    assert sorted(sign.tolist()) == [-1, -1, 1, 1]
    ratio, weight = (found["logp"] - found["logp_old"]).exp(), (found["logp_old"] - found["logp_sampler"]).exp()
    for one in (1, -1):
        own = ratio[inside & (sign == one)[:, None]]
        spans = [(0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 1.2), (1.2, 1.28), (1.28, 2), (3, 9)]
        for low, high in spans:
            assert bool(((own > low) & (own < high)).any()), (one, low, high)
    assert bool((weight[inside] > 2).any()) and bool((weight[inside] < 0.5).any())
    means = ((ratio.log() * inside).sum(1) / inside.sum(1)) * sign
    for one in (1, -1):  # a clip of the whole sequence's ratio takes one of each sign and leaves one
        assert sorted((means[sign == one] > 0).tolist()) == [False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_type_holds_the_same_numbers(dtype: torch.dtype) -> None:
    exact, rounded = random_batch(8, 20), random_batch(8, 20, dtype=dtype)
    for key in exact:
        assert rounded[key].dtype == dtype
        assert torch.equal(exact[key], rounded[key].double()), key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "positive whole number as batch, not 0"),
        ({"length": 2.5}, "positive whole number as length, not 2.5"),
        ({"batch": True}, "as batch, not True"),
        ({"dtype": torch.int64}, "floating type of PyTorch as dtype, not torch.int64"),
        ({"dtype": "float32"}, "floating type of PyTorch as dtype, not 'float32'"),
    ],
)
def test_what_it_cannot_make_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        random_batch(**arguments)

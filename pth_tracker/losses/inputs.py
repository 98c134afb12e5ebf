"""A fixed input on which the faults of a loss show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pth_tracker.errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from pth_tracker.runs import Floats

    Ints = npt.NDArray[np.int64]

GRID: Final = 64
"""Every number is a multiple of 1/64 and below 4 in magnitude, so that bfloat16 and float16 hold it exactly."""
RATIO_ZONES: Final = (
    (-76, -50), (-40, -26), (-20, -17), (-12, -9), (-4, 4), (8, 10), (13, 14), (19, 40), (50, 66), (76, 90),
)  # fmt: skip
"""Log-ratios in 64ths: between the clip bounds in use (0.5, 0.7, 0.8, 0.9, 1.1, 1.2, 1.28, 2, 3) and 2% off each."""
UNCLIPPED: Final = 10
"""Log-ratio times the sign of the advantage, in 64ths, up to which PPO keeps a token: below 1.2, or above 0.8."""
WEIGHT_ZONES: Final = ((-60, -50), (-12, 12), (-12, 12), (-12, 12), (50, 60))
"""Log importance weights in 64ths: most near 1, some truncated at 2 or masked below 0.5."""


def random_batch(batch: int = 4, length: int = 12, seed: int = 0, dtype: Any = None) -> dict[str, Any]:
    """A fixed input for loss checks: ragged masks, advantages of both signs, ratios on both sides of every clip range.

    The same arguments always yield the same tensors. No ratio lies within 2% of a clip bound in use, and all values are
    exact in bfloat16, so that the input is the same at every precision.

    Args:
        batch: Sequences; 4 or more show every fault.
        length: Tokens of the longest sequence; 12 or more show every fault.
        seed: Another seed, another input.
        dtype: The floating type of all tensors, by default ``torch.float64``.

    Returns:
        ``logp``, ``logp_old``, ``logp_sampler``, ``logp_ref``: ``(batch, length)`` log-probabilities in nats under the
        learner, the ratio's denominator, the sampler and a reference model; ``advantages``: ``(batch,)``; ``mask``:
        ``(batch, length)``, 1 on a response's tokens and 0 after them, where the log-probabilities are no less lively.

    Raises:
        UsageError: ``batch`` or ``length`` is no positive number, or PyTorch is not installed.
    """
    from pth_tracker.losses.evaluate import import_torch

    torch = import_torch()
    arrays = random_arrays(batch, length, seed)
    kind = torch.float64 if dtype is None else dtype
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise UsageError(f"random_batch needs a floating type of PyTorch as dtype, not {dtype!r}")
    return {name: torch.from_numpy(values).to(kind) for name, values in arrays.items()}


def random_arrays(batch: int = 4, length: int = 12, seed: int = 0) -> dict[str, Floats]:
    """The input of `random_batch` as NumPy arrays, for losses that write out their gradients.

    Raises:
        UsageError: ``batch`` or ``length`` is no positive number.
    """
    for name, value in (("batch", batch), ("length", length)):
        if type(value) is not int or value < 1:
            raise UsageError(f"random_batch needs a positive whole number as {name}, not {value!r}")
    rng = np.random.default_rng(seed)
    signs = np.where(np.arange(batch) % 2 == 0, 1, -1)
    lengths = _lengths(rng, batch, length)
    log_ratio = _log_ratios(rng, signs, lengths, length)
    mask = np.arange(length) < lengths[:, None]
    old = rng.integers(-172, -96, (batch, length), endpoint=True)
    arrays = {
        "logp": old + log_ratio,
        "logp_old": old,
        "logp_sampler": old - _from_zones(rng, WEIGHT_ZONES, batch * length).reshape(batch, length),
        "logp_ref": old + rng.integers(-24, 24, (batch, length), endpoint=True),
        "advantages": signs * rng.integers(20, 110, batch, endpoint=True),
        "mask": mask * GRID,
    }
    return {name: values / GRID for name, values in arrays.items()}


def _lengths(rng: np.random.Generator, batch: int, length: int) -> Ints:
    """One sequence of the full length, the others between half of it and one token less."""
    most = max(1, length - 1)
    lengths = rng.integers((length + 1) // 2 if length > 1 else 1, most, batch, endpoint=True)
    lengths[rng.integers(batch)] = length
    return np.asarray(lengths, dtype=np.int64)


def _from_zones(rng: np.random.Generator, zones: tuple[tuple[int, int], ...], count: int) -> Ints:
    """``(count,)`` draws in which every zone comes up before any comes up again."""
    rounds = max(1, -(-count // len(zones)))
    order = np.concatenate([rng.permutation(len(zones)) for _ in range(rounds)])[:count]
    bounds = np.array(zones)[order]
    return np.asarray(rng.integers(bounds[:, 0], bounds[:, 1], endpoint=True), dtype=np.int64)


def _log_ratios(rng: np.random.Generator, signs: Ints, lengths: Ints, length: int) -> Ints:
    """``(batch, length)`` in 64ths of a nat.

    The tokens inside the masks go through all zones for each sign of the advantage, a clip of whole sequences' ratios
    takes some sequences of each sign and leaves some, and no sequence begins or ends with a token that PPO clips, so
    that a mask that is off by one shows.
    """
    drawn = _from_zones(rng, RATIO_ZONES, len(signs) * length).reshape(len(signs), length)
    mask = np.arange(length) < lengths[:, None]
    for sign in (1, -1):
        rows = signs == sign
        inside = mask & rows[:, None]
        for _ in range(1000):
            drawn[inside] = _from_zones(rng, RATIO_ZONES, int(inside.sum()))
            sums = np.where(mask, drawn, 0).sum(axis=1)[rows]
            if len(sums) < 2 or sums.min() < -GRID / 8 < GRID / 8 < sums.max():
                break
    for row, sign, end in zip(drawn, signs, lengths):
        kept = np.flatnonzero(sign * row[:end] <= UNCLIPPED)
        if len(kept) > 1:
            row[[0, kept[0]]] = row[[kept[0], 0]]
            row[[end - 1, kept[-1]]] = row[[kept[-1], end - 1]]
    return drawn

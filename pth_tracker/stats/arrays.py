"""Checked and scaled arrays: what every other function of `pth_tracker.stats` starts from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats

RELATIVE_TOLERANCE: Final = 1e-6
"""Differences closer than this share of the largest are one difference.

Scores are ratios of small integers, often stored through float32 (2**-24 = 6e-8 of a score of 0.8 is 3e-6 of a
difference of 0.02), so that equal differences rarely come out equal to the last bit.
"""


def as_vector(values: npt.ArrayLike, name: str, *, least: int = 1, finite: bool = True) -> Floats:
    """``values`` as a float64 vector ``(n,)``.

    Raises:
        ValueError: it is not one-dimensional, not of numbers, shorter than ``least``, or (with ``finite``) holds NaN
            or infinity.
    """
    return _checked(values, name, 1, least, finite)


def as_table(values: npt.ArrayLike, name: str, *, least: int = 1) -> Floats:
    """``values`` as a finite float64 table ``(rows, columns)``, each side at least ``least``; ValueError otherwise."""
    return _checked(values, name, 2, least, True)


def _checked(values: npt.ArrayLike, name: str, dimensions: int, least: int, finite: bool) -> Floats:
    try:
        raw = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be numbers in rows of equal length") from None
    if raw.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, not {raw.dtype}")
    if raw.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimension(s), not {raw.ndim}")
    if min(raw.shape) < least:
        raise ValueError(f"{name} needs at least {least} value(s), and has the shape {raw.shape}")
    with np.errstate(over="ignore"):
        array: Floats = np.asarray(raw, dtype=np.float64)
    if finite and not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where = place[0] if len(place) == 1 else place
        raise ValueError(f"{name} holds {array[place]} at index {where}: leave out what was not measured")
    return array


def same_length(a: Floats, b: Floats, names: tuple[str, str]) -> None:
    """Raises ValueError where two arrays differ in shape."""
    if a.shape != b.shape:
        raise ValueError(f"{names[0]} and {names[1]} must have one shape, not {a.shape} and {b.shape}")


def scaled(*arrays: Floats) -> tuple[tuple[Floats, ...], int]:
    """The arrays divided by one power of two, so that the largest magnitude lies in [0.5, 1), and its exponent.

    Exact, and it keeps sums and squares of values near 1e308 or 1e-308 from overflowing or vanishing.
    """
    largest = max(float(np.abs(array).max()) for array in arrays)
    exponent = int(np.frexp(largest)[1])
    return tuple(np.ldexp(array, -exponent) for array in arrays), exponent


def unscaled(value: float, exponent: int) -> float:
    """``value`` times two to the ``exponent``; infinite where that is beyond the largest float64."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(np.float64(value), exponent))


def no_spread(values: Floats) -> bool:
    """Whether all values are equal up to rounding (`RELATIVE_TOLERANCE` of the largest magnitude)."""
    (unit,), _ = scaled(values)
    return bool(np.ptp(unit) <= RELATIVE_TOLERANCE * np.abs(unit).max())


def mean_of(values: Floats) -> float:
    """The mean without overflow; of equal values exactly that value."""
    (unit,), exponent = scaled(values)
    first = float(unit[0])
    return unscaled(first + float(np.mean(unit - first)), exponent)


def differences(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Paired differences ``a - b``, ``(n,)``, in the scores' unit; ``a[i]`` and ``b[i]`` share a seed.

    Raises:
        ValueError: unequal lengths, a value that is not finite, or a difference beyond the largest float64.
    """
    left, right = as_vector(a, "a"), as_vector(b, "b")
    same_length(left, right, ("a", "b"))
    with np.errstate(over="ignore"):
        result: Floats = left - right
    if not np.isfinite(result).all():
        raise ValueError("a - b is beyond the largest float64: divide both scores by a constant first")
    return result


def as_labels(labels: Sequence[Hashable], scores: Floats, name: str) -> list[Hashable]:
    """The labels as a list, one a score; ValueError where their number differs."""
    listed = list(labels)
    if len(listed) != len(scores):
        raise ValueError(f"{name} must be one a score: {len(listed)} for {len(scores)} scores")
    return listed

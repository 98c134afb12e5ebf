"""Data orders told from witness series: metrics that depend on the batch alone, such as its mean prompt length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats, Ints
from pth_tracker.stats.chance import SAME_ORDER_SHARE, Witness, tie_share, witness_evidence

WINDOW_UPDATES: Final = 8
"""Updates a window of the index of equal stretches."""
FILTERED_SHARE: Final = 0.5
"""The share of matches that tells one order where the trainer leaves prompts out of its batches (dynamic filtering)."""
LEAST_DISTINCT: Final = 4
"""Distinct values below which a window says too little to be looked up."""


@dataclass(frozen=True)
class BatchSeries:
    """What one run logged of its batches: ``(m,)`` updates and ``(m, k)`` values of its k witness series."""

    step: Ints
    """Strictly increasing."""
    values: Floats
    """Finite."""
    tolerance: tuple[float, ...] = ()
    """Half a unit of each series' last printed place; 0 or left out: full precision."""
    shiftable: bool = True
    """Whether another prompt template may shift the series by a constant (lengths), or not (identities)."""

    def __len__(self) -> int:
        return len(self.step)

    @property
    def rounding(self) -> Floats:
        """``(k,)``: how far a value may lie from the true one."""
        given = np.array(self.tolerance or (0.0,) * self.values.shape[1])
        largest = np.abs(self.values).max(axis=0) if len(self) else np.zeros(self.values.shape[1])
        if not self.shiftable:
            return np.spacing(largest)
        # One float32 ulp of the largest value on either side.
        ulp = np.ldexp(1.0, np.frexp(largest)[1] - 24)
        return np.asarray(np.where(given > 0, given * (1 + 1e-9) + 4 * np.spacing(largest), ulp))

    def columns(self, chosen: Sequence[int]) -> BatchSeries:
        """The series at these places."""
        kept = tuple(self.tolerance[place] for place in chosen) if self.tolerance else ()
        return replace(self, values=self.values[:, list(chosen)], tolerance=kept)


def batch_series(
    columns: Sequence[tuple[Ints, Floats, int | None]], *, shiftable: bool = True, least: int = 1
) -> BatchSeries | None:
    """The batch series of ``(updates, values, printed decimals)`` columns.

    It holds the updates at which all columns have a finite value; None where these are fewer than ``least``.
    """
    if not columns:
        return None
    step = columns[0][0]
    for own, _, _ in columns[1:]:
        step = np.intersect1d(step, own, assume_unique=True)
    values = np.stack([column[np.searchsorted(own, step)] for own, column, _ in columns], axis=1)
    finite = np.isfinite(values).all(axis=1)
    tolerance = tuple(0.0 if decimals is None else 0.5 * 10.0**-decimals for _, _, decimals in columns)
    return BatchSeries(step[finite], values[finite], tolerance, shiftable) if finite.sum() >= max(least, 1) else None


@dataclass(frozen=True)
class Alignment:
    """How two runs' batch series lie on each other, and what that is worth as evidence."""

    witness: Witness
    lag: int = 0
    """The first run's updates minus the second's, where their batches agree."""
    offset: tuple[float, ...] = ()
    """The constants by which the first run's series exceed the second's; all 0: equal as they stand."""
    parting: int | None = None
    """The first run's update at which they part for the first time; None: they do not."""


def common_rows(a: BatchSeries, b: BatchSeries, lag: int = 0) -> tuple[Ints, Floats, Floats]:
    """The updates of ``a`` that ``b`` holds ``lag`` updates earlier, with the ``(m, k)`` values of both."""
    step, left, right = np.intersect1d(a.step, b.step + lag, assume_unique=True, return_indices=True)
    return step, a.values[left], b.values[right]


def align(a: BatchSeries, b: BatchSeries, *, lag: int = 0, hypotheses: int = 1, pairs: int = 1) -> Alignment:
    """The alignment of two runs at one ``lag``, as they stand or off by one whole number per series.

    A match is a row that agrees in all series, within what was printed or two float32 ulp. A constant other than 0
    costs one match, since it was read off one. The chance of a match is the larger tie share of the two runs; the
    evidence is corrected for ``hypotheses`` alignments of ``pairs`` comparable pairs of runs, each tried with and
    without a constant.
    """
    step, left, right = common_rows(a, b, lag)
    if not len(step):
        return Alignment(Witness(0.0, 0, 0, 1.0), lag)
    apart = left - right
    slack = a.rounding + b.rounding
    plain = (np.abs(apart) <= slack).all(axis=1)
    matched, offset = plain, np.zeros(apart.shape[1])
    matches = int(plain.sum())
    tries = hypotheses
    if a.shiftable and b.shiftable:
        tries *= 2
        whole = np.rint(apart)
        near = (np.abs(apart - whole) <= slack).all(axis=1)
        if near.any():
            shifts, counts = np.unique(whole[near], axis=0, return_counts=True)
            best = shifts[np.argmax(counts)]
            if best.any() and counts.max() - 1 > matches:
                matched, offset = near & (whole == best).all(axis=1), best
                matches = int(counts.max()) - 1
    tie = max(tie_share(_rounded(left, slack)), tie_share(_rounded(right, slack)))
    witness = witness_evidence(matches, len(step), tie, hypotheses=tries, pairs=pairs)
    parting = None if matched.all() else int(step[np.argmin(matched)])
    return Alignment(witness, lag, tuple(float(value) for value in offset + 0.0), parting)


def _rounded(rows: Floats, slack: Floats) -> Floats:
    places = np.maximum(0, np.floor(-np.log10(2 * slack)).astype(int))
    return np.stack([np.round(rows[:, k], int(place)) for k, place in enumerate(places)], axis=1) + 0.0


def same_order(alignment: Alignment, *, filtered: bool = False) -> bool:
    """Whether the alignment tells one data order: 20 bits or more, and 0.8 of the updates (0.5 where filtered)."""
    return alignment.witness.same_order(FILTERED_SHARE if filtered else SAME_ORDER_SHARE)


def block_means(series: BatchSeries, ratio: int, kinds: Sequence[str]) -> BatchSeries:
    """The series of a trainer whose batches hold ``ratio`` of this one's, from the first update on.

    ``kinds`` says of each series how a larger batch's value comes from the smaller ones': ``mean``, ``max`` or
    ``min``. Only complete groups of consecutive updates count.
    """
    if ratio == 1 or not len(series):
        return series
    base = min(1, int(series.step[0]))
    group = (series.step - base) // ratio
    numbers, first, counts = np.unique(group, return_index=True, return_counts=True)
    whole = counts == ratio
    reduce: dict[str, Callable[[Floats], np.floating[Any]]] = {"mean": np.mean, "max": np.max, "min": np.min}
    rows = [
        [reduce[kind](series.values[start : start + ratio, k]) for k, kind in enumerate(kinds)]
        for start in first[whole]
    ]
    values = np.array(rows, dtype=np.float64).reshape(-1, series.values.shape[1])
    return replace(series, step=(numbers[whole] + base).astype(np.int64), values=values)


def length_codes(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Batch statistics of lengths ``(m,)`` or ``(m, k)`` as whole numbers, alike in full and printed to 3 decimals.

    They are hundredths, rounded up from .45 on: where three decimals round there too, and where means over batches of
    ordinary sizes have no ties, so that neither printing nor an added whole number moves one to another code.
    """
    array = np.asarray(values, dtype=np.float64)
    codes: npt.NDArray[np.int64] = np.floor(np.clip(array, -(2.0**50), 2.0**50) * 100 + 0.55).astype(np.int64)
    return codes


def printed_codes(values: npt.ArrayLike, decimals: int | None) -> npt.NDArray[np.int64]:
    """Values ``(m,)`` or ``(m, k)`` as whole numbers: as printed with so many decimals, as float32 where None."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore"):
        if decimals is None:
            return (array + 0.0).astype(np.float32).view(np.int32).astype(np.int64)
        codes: npt.NDArray[np.int64] = np.rint(np.clip(array * 10.0**decimals, -(2.0**60), 2.0**60)).astype(np.int64)
    return codes


def window_keys(
    step: Ints,
    codes: npt.NDArray[np.int64],
    *,
    width: int = WINDOW_UPDATES,
    aligned: bool = True,
    placed: bool = True,
    least: int = LEAST_DISTINCT,
) -> Iterator[tuple[int, int]]:
    """(first update, hash) of windows of ``width`` consecutive updates, equal for series that differ by a constant.

    The hash is of the differences of the codes ``(m,)`` or ``(m, k)`` within the window. ``aligned`` windows start at
    updates 1, 1 + width and so on, else at every update; ``placed`` hashes hold the window's place, so that only
    stretches at equal updates are equal. Windows with gaps and those with fewer than ``least`` distinct values are
    left out. Where steps count something else than updates, such as those of the environments, the commonest distance
    of two is that of two updates.
    """
    if len(step) < width:
        return
    table = codes[:, None] if codes.ndim == 1 else codes
    distances, counts = np.unique(np.diff(step), return_counts=True)
    stride = max(1, int(distances[counts.argmax()])) if len(distances) else 1
    starts = np.flatnonzero(step[width - 1 :] - step[: len(step) - width + 1] == (width - 1) * stride)
    if aligned:
        starts = starts[step[starts] // stride % width == 1 % width]
    windows = table[starts[:, None] + np.arange(width)]
    ordered = np.sort(windows[:, :, 0], axis=1)
    telling = (np.diff(ordered, axis=1) != 0).sum(axis=1) + 1 >= least
    windows, starts = windows[telling], starts[telling]
    if not len(starts):
        return
    rows = np.diff(windows, axis=1).reshape(len(starts), -1)
    mixed = np.full(len(starts), 0xCBF29CE484222325, dtype=np.uint64)
    if placed:
        mixed = _mix(mixed, step[starts])
    for column in rows.T:
        mixed = _mix(mixed, column)
    yield from zip(step[starts].tolist(), mixed.tolist())


def _mix(mixed: npt.NDArray[np.uint64], column: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """One step of a 64-bit FNV-1a hash with a final shift, over whole columns (Fowler, Noll and Vo 1991)."""
    with np.errstate(over="ignore"):
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x100000001B3)
        result: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(29))
    return result


def voted_lag(a: BatchSeries, b: BatchSeries) -> int | None:
    """The lag of ``a`` behind ``b`` at which most stretches of 8 updates agree; None: none does."""
    places: dict[int, list[int]] = {}
    for step, key in window_keys(b.step, length_codes(b.values[:, 0]), placed=False):
        places.setdefault(key, []).append(step)
    votes: dict[int, int] = {}
    for step, key in window_keys(a.step, length_codes(a.values[:, 0]), aligned=False, placed=False):
        for other in places.get(key, ())[:8]:
            votes[step - other] = votes.get(step - other, 0) + 1
    return max(votes, key=lambda lag: (votes[lag], -abs(lag))) if votes else None


def looks_like_counter(identities: npt.ArrayLike) -> bool:
    """Whether ``(m,)`` batch identities are numbers counted up, which say nothing of the order of another run.

    Fingerprints are spread over a large range in no order: identities that never fall, or that lie as densely as
    counting would put them, are counters.
    """
    ids = np.asarray(identities, dtype=np.float64)
    if len(ids) < 2 or bool(np.all(np.diff(ids) >= 0)):
        return True
    return bool(np.ptp(ids) < 1000 * len(np.unique(ids)))

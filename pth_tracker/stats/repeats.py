"""Repeats within one run: updates whose measurements equal an earlier update's, and how improbable that is.

The tie shares of `chance` hold for a whole series. Training moves, so that a pair of updates late in a run may tie far
more often than a pair taken anywhere: here ties are counted between stretches of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats, Ints
from pth_tracker.stats.arrays import as_vector
from pth_tracker.stats.chance import REPEATS_BY_CHANCE, floored_tie_share, tie_share, witness_evidence

STRETCH: Final = 16
"""Distinct updates in a stretch within which ties are counted."""
MOST_STRETCHES: Final = 64
STILL: Final = 8
"""Distinct updates in a row with one value of a quantity, which then has no spread there."""
NO_SPREAD: Final = 0.9
"""Tie share of one quantity within a stretch from which it has no spread there."""
LARGEST: Final = 1 << 62
"""What products of labels may reach, so that an int64 holds them."""
WIDEST: Final = 4
"""Numbers for each label up to which a table of all numbers is cheaper than sorting."""
LONGEST_PERIODIC: Final = 4096
"""Updates in which a period is looked for."""
PERIODIC_SHARE: Final = 0.8
"""Share of the updates that have to equal the one a period earlier."""

Search = Literal["all", "neighbours", "none"]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which updates repeat an earlier one, and how many would by chance."""

    earlier: Ints
    """``(n,)``: the latest earlier update with equal measurements among the pairs searched, else -1."""
    search: Search
    """Pairs that were searched: all, neighbouring updates only, or none since either would find repeats by chance."""
    expected: float
    """Repeats expected by chance among those pairs; for ``none``, among the neighbours."""
    left_out: int
    """Updates in stretches where some quantity has no spread."""

    @property
    def judged(self) -> bool:
        """Whether a repeat is improbable."""
        return self.search != "none"


def equal_levels(values: npt.ArrayLike, decimals: int | None = None) -> Ints:
    """``(n,)`` labels that two values share where they are one number as printed.

    Equal within half a unit of the last of ``decimals``, or within 2 float32 ulp of the largest value where None: a
    mean over the same batch in another order differs in its last bits.

    Raises:
        ValueError: a value that is not finite.
    """
    x = as_vector(values, "values", least=0)
    if not len(x):
        return np.empty(0, dtype=np.int64)
    exponent = int(np.frexp(np.abs(x).max())[1])
    tolerance = math.ldexp(1.0, max(exponent - 23, -148))
    if decimals is not None:
        tolerance = max(tolerance, 0.5 * 10.0**-decimals * (1 + 1e-9))
    order = np.argsort(x)
    with np.errstate(over="ignore"):
        steps = np.diff(x[order], prepend=x[order[0]]) > tolerance
    labels = np.empty(len(x), dtype=np.int64)
    labels[order] = np.cumsum(steps)
    return labels


def joint_labels(columns: Sequence[npt.ArrayLike]) -> Ints:
    """``(n,)`` labels of the tuples that several label columns ``(n,)`` make."""
    if not len(columns):
        raise ValueError("give at least one label column")
    joint, span = np.zeros(len(np.asarray(columns[0])), dtype=np.int64), 1
    for column in columns:
        own = np.asarray(column, dtype=np.int64)
        least, most = (int(own.min()), int(own.max())) if len(own) else (0, 0)
        if most - least >= LARGEST // max(len(own), 1):
            own = np.unique(own, return_inverse=True)[1].reshape(-1)
            least, most = 0, int(own.max())
        if span * (most - least + 1) > LARGEST:
            joint = np.unique(joint, return_inverse=True)[1].reshape(-1).astype(np.int64)
            span = len(joint)
        # One number a row, in the order of the rows: ranking them is far faster than ranking the rows.
        joint, span = joint * (most - least + 1) + (own - least), span * (most - least + 1)
    inverse: Ints = np.unique(joint, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return inverse


def ranks(labels: Ints) -> Ints:
    """``(n,)``: labels ``(n,)``, none of them negative, renumbered from 0 on in their order."""
    if not len(labels) or labels.max() >= WIDEST * len(labels):
        return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    numbers: Ints = (np.cumsum(np.bincount(labels) > 0) - 1)[labels]
    return numbers


def _stable_order(labels: Ints) -> Ints:
    """``(n,)``: the indices that sort ``labels`` and leave equal ones in their order."""
    narrow = len(labels) > 0 and labels.min() >= 0 and labels.max() <= np.iinfo(np.uint16).max
    # NumPy sorts these, and only these, by radix.
    return np.argsort(labels.astype(np.uint16) if narrow else labels, kind="stable")


def latest_equal(labels: npt.ArrayLike) -> Ints:
    """``(n,)``: the index of the latest earlier entry with the same label, -1 for a first one."""
    x = np.asarray(labels, dtype=np.int64)
    order = _stable_order(x)
    same = x[order][1:] == x[order][:-1]
    earlier = np.full(len(x), -1, dtype=np.int64)
    earlier[order[1:][same]] = order[:-1][same]
    return earlier


def occurrence(labels: npt.ArrayLike) -> Ints:
    """``(n,)``: 1 at the first entry with a label, 2 at the second, and so on."""
    x = np.asarray(labels, dtype=np.int64)
    order = _stable_order(x)
    begins = np.concatenate(([True], x[order][1:] != x[order][:-1])) if len(x) else np.empty(0, dtype=bool)
    place = np.arange(len(x))
    since = place - np.maximum.accumulate(np.where(begins, place, 0)) if len(x) else place
    count = np.empty(len(x), dtype=np.int64)
    count[order] = since + 1
    return count


def find_repeats(
    quantities: Sequence[npt.ArrayLike], *, full: Ints | None = None, below: float = REPEATS_BY_CHANCE
) -> Repeats:
    """The updates that repeat an earlier one in every quantity, where that is improbable.

    ``quantities`` are label columns ``(n,)`` as `joint_labels` makes them, one for each quantity, taken as
    independent within a stretch. The repeats expected by chance are the sum over all pairs of updates of the product,
    over quantities, of the share of ties between the two updates' stretches; a share is at least the run's own and at
    least what seeing no tie still allows. Ties are counted among distinct tuples only, or a stuck batch would excuse
    itself. Stretches in which a quantity has no spread are left out. Where all pairs would yield ``below`` repeats or
    more, neighbouring updates alone are searched. ``full`` are the tuples' own `joint_labels`, where they are at hand.

    Raises:
        ValueError: no quantity, or unequal lengths.
    """
    columns = [np.asarray(quantity, dtype=np.int64) for quantity in quantities]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("give at least one quantity, each with one label an update")
    full = joint_labels(columns) if full is None else full
    n = len(full)
    nothing = np.full(n, -1, dtype=np.int64)
    latest = latest_equal(full)
    firsts = _with_spread(columns, np.flatnonzero(latest < 0))
    if len(firsts) < 2:
        return Repeats(nothing, "none", math.inf, n)
    stretches = _stretches(len(firsts))
    chance = np.ones((stretches[-1] + 1, stretches[-1] + 1))
    for column in columns:
        own = column[firsts]
        chance *= np.maximum(_ties(own, stretches), floored_tie_share(tie_share(own), len(own)))
    stretch = np.full(full.max() + 1, -1, dtype=np.int64)
    stretch[full[firsts]] = stretches
    where = stretch[full]
    kept = where >= 0
    counts = np.bincount(where[kept], minlength=len(chance)).astype(np.float64)
    pairs = np.outer(counts, counts) / 2
    np.fill_diagonal(pairs, counts * (counts - 1) / 2)
    everywhere = float((pairs * chance).sum())
    beside = kept[1:] & kept[:-1]
    nearby = float(chance[where[:-1][beside], where[1:][beside]].sum())
    earlier = np.where(kept, latest, -1)
    left_out = int(np.count_nonzero(~kept))
    if everywhere < below:
        return Repeats(earlier, "all", everywhere, left_out)
    if nearby < below and np.any(beside):
        return Repeats(np.where(earlier == np.arange(n) - 1, earlier, -1), "neighbours", nearby, left_out)
    return Repeats(nothing, "none", nearby, left_out)


def _with_spread(columns: Sequence[Ints], firsts: Ints) -> Ints:
    """Those of the distinct updates ``firsts`` that lie where every quantity has spread.

    A quantity has none through 8 distinct updates in a row with one value, nor in a stretch of 90% ties.
    """
    kept = np.ones(len(firsts), dtype=bool)
    for column in columns:
        edges = np.flatnonzero(np.diff(column[firsts], prepend=np.nan, append=np.nan) != 0)
        lengths = np.diff(edges)
        kept &= np.repeat(lengths, lengths) < STILL
    firsts = firsts[kept]
    if not len(firsts):
        return firsts
    stretches = _stretches(len(firsts))
    spread = np.all([np.diag(_ties(column[firsts], stretches)) < NO_SPREAD for column in columns], axis=0)
    varied: Ints = firsts[spread[stretches]]
    return varied


def _stretches(distinct: int) -> Ints:
    """``(distinct,)``: the stretch of 16 or more in which each lies; the last may hold up to twice as many."""
    width = max(STRETCH, math.ceil(distinct / MOST_STRETCHES))
    numbers: Ints = np.minimum(np.arange(distinct) // width, max(distinct // width - 1, 0))
    return numbers


def _ties(column: Ints, stretch: Ints) -> Floats:
    """``(s, s)``: the share of equal labels among pairs of distinct updates, one of each stretch."""
    size = np.bincount(stretch).astype(np.float64)
    labels = ranks(column)
    tied = np.bincount(labels) >= 2  # most labels occur once and tie with none
    place = (np.cumsum(tied) - 1)[labels]
    chosen = tied[labels]
    held = np.zeros((len(size), np.count_nonzero(tied)))
    np.add.at(held, (stretch[chosen], place[chosen]), 1.0)
    equal = held @ held.T
    np.fill_diagonal(equal, np.diag(equal) - held.sum(axis=1))
    pairs = np.outer(size, size)
    np.fill_diagonal(pairs, np.maximum(size * (size - 1), 1))
    shares: Floats = equal / pairs
    return shares


def period(labels: npt.ArrayLike) -> int | None:
    """The shortest period of at least 2 with which ``labels`` ``(n,)`` repeat themselves, in updates; None: none.

    At least three times over, on 80% of the updates, with 20 bits of evidence over the series' own ties and all
    periods tried. A series that stands still has no period.
    """
    x = np.asarray(labels, dtype=np.int64)[:LONGEST_PERIODIC]
    tried = len(x) // 3 - 1
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    if np.count_nonzero(counts[inverse.reshape(-1)] > 1) < PERIODIC_SHARE * (len(x) - len(x) // 3):
        return None  # too few updates equal any other
    tie = tie_share(x.astype(np.float64)) if len(x) else 0.0
    for length in range(2, len(x) // 3 + 1):
        matches = int(np.count_nonzero(x[length:] == x[:-length]))
        updates = len(x) - length
        if (
            matches >= PERIODIC_SHARE * updates
            and witness_evidence(matches, updates, tie, hypotheses=tried).same_order()
        ):
            return length
    return None

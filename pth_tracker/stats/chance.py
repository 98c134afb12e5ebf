"""How improbable coincidences between series are: shared data orders and repeated batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.runs import Floats
from pth_tracker.stats.arrays import as_table, as_vector

SAME_ORDER_BITS: Final = 20.0
SAME_ORDER_SHARE: Final = 0.8
REPEATS_BY_CHANCE: Final = 0.01
"""Expected repeats below which an observed one is improbable."""


@dataclass(frozen=True, slots=True)
class Witness:
    """The evidence that two runs read their data in one order."""

    bits: float
    """-log2 of the chance of so many matches, less the searches made; negative: nothing."""
    matches: int
    updates: int
    chance: float
    """Of a match at one update."""

    @property
    def share(self) -> float:
        """Matches over updates compared; 0 where none were."""
        return self.matches / self.updates if self.updates else 0.0

    def same_order(self, least_share: float = SAME_ORDER_SHARE) -> bool:
        """Whether the evidence is 20 bits or more and the share at least 0.8 (0.5 under dynamic filtering)."""
        return self.bits >= SAME_ORDER_BITS and self.share >= least_share


def _rows(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values)
    return as_vector(array, "values", least=0)[:, None] if array.ndim == 1 else as_table(array, "values", least=0)


def tie_share(values: npt.ArrayLike) -> float:
    """The share of pairs of updates with equal values, of a series ``(m,)`` or of tuples ``(m, k)``; 0 if m < 2.

    Values are compared exactly: round them to what was printed first.

    Raises:
        ValueError: a value that is not finite.
    """
    rows = _rows(values)
    m = len(rows)
    if m < 2:
        return 0.0
    rows = rows[:, 0] if rows.shape[1] == 1 else rows
    counts = np.unique(rows, axis=0 if rows.ndim > 1 else None, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum()) / (m * (m - 1.0))


def floored_tie_share(observed: float, updates: int) -> float:
    """A tie share of m ``updates``, at least what seeing no tie still allows: max(observed, 3 / C(m, 2)), at most 1.

    The rule of three: 0 of C pairs is compatible, at 95%, with a share of 3 / C (Hanley and Lippman-Hand 1983).

    Raises:
        ValueError: ``observed`` is no share.
    """
    if not 0 <= observed <= 1:
        raise ValueError(f"a tie share lies between 0 and 1, not {observed}")
    pairs = updates * (updates - 1) / 2
    return min(1.0, max(observed, 3 / pairs)) if pairs > 0 else 1.0


def log2_binomial_tail(k: int, m: int, chance: float) -> float:
    """log2 P(Bin(m, chance) >= k), summed in logarithms: -8000 is as exact as -8.

    Raises:
        ValueError: k or m negative, or a chance outside 0 to 1.
    """
    if k < 0 or m < 0 or not 0 <= chance <= 1:
        raise ValueError(f"there is no binomial probability of {k} of {m} at {chance}")
    if k == 0 or (chance == 1 and k <= m):
        return 0.0
    if k > m or chance == 0:
        return -math.inf
    # SciPy's tail is the same sum; its import takes longer than a whole set of logs takes to check.
    hits = np.arange(k, m + 1, dtype=np.float64)
    ways = math.lgamma(m + 1) - np.array([math.lgamma(hit + 1) + math.lgamma(m - hit + 1) for hit in hits])
    terms = ways + hits * math.log(chance) + (m - hits) * math.log1p(-chance)
    most = float(terms.max())
    return min(0.0, (most + math.log(float(np.exp(terms - most).sum()))) / math.log(2))


def witness_evidence(matches: int, updates: int, tie: float, *, hypotheses: int = 1, pairs: int = 1) -> Witness:
    """The evidence, in bits, of ``matches`` equal tuples at ``updates`` equal updates of two runs.

    -log2 P(Bin(m, c) >= k) - log2(hypotheses * pairs) with c = max(tie, 3 / C(m, 2)), where ``tie`` is the larger
    `tie_share` of the two runs, ``hypotheses`` the alignments tried for the pair (lags, block means, with and without
    a constant) and ``pairs`` the comparable pairs of runs (Bonferroni).

    Raises:
        ValueError: more matches than updates, a count below 0 (searches: below 1), or a tie share that is none.
    """
    if not 0 <= matches <= updates:
        raise ValueError(f"{matches} matches cannot be found at {updates} updates")
    if hypotheses < 1 or pairs < 1:
        raise ValueError("at least one hypothesis on one pair of runs was looked at")
    chance = floored_tie_share(tie, updates)
    bits = -log2_binomial_tail(matches, updates, chance) - math.log2(hypotheses) - math.log2(pairs)
    return Witness(bits, matches, updates, chance)


def expected_repeats(quantities: Sequence[npt.ArrayLike], *, pairs: int | None = None) -> float:
    """How many pairs of updates would share all ``quantities`` by chance, by the run's own tie shares.

    Each quantity is ``(n,)`` or ``(n, k)``, for example prompt length as (mean, max, min) an update: columns of one
    quantity may depend on each other, quantities are taken as independent. The expectation is ``pairs`` (all C(n, 2)
    where None) times the product of their `floored_tie_share`. Ties are counted among *distinct* full tuples, or a
    stuck batch would excuse itself with the ties it made.

    Raises:
        ValueError: no quantity, unequal lengths, or a value that is not finite.
    """
    tables = [_rows(quantity) for quantity in quantities]
    if len({len(table) for table in tables}) != 1:
        raise ValueError("give at least one quantity, each with one row an update")
    n = len(tables[0])
    searched = n * (n - 1) // 2 if pairs is None else pairs
    if searched <= 0:
        return 0.0
    distinct = np.unique(np.concatenate(tables, axis=1), axis=0)
    expected, column = float(searched), 0
    for table in tables:
        own = distinct[:, column : column + table.shape[1]]
        expected *= floored_tie_share(tie_share(own), len(own))
        column += table.shape[1]
    return expected


def count_repeats(quantities: Sequence[npt.ArrayLike]) -> int:
    """How many updates repeat the full tuple of an earlier one, at any distance; ValueError as `expected_repeats`."""
    tables = [_rows(quantity) for quantity in quantities]
    if len({len(table) for table in tables}) != 1:
        raise ValueError("give at least one quantity, each with one row an update")
    return len(tables[0]) - len(np.unique(np.concatenate(tables, axis=1), axis=0))


def longest_run(values: npt.ArrayLike) -> int:
    """The longest stretch of consecutive equal values ``(n,)`` or tuples ``(n, k)``, in updates; 0 of none."""
    rows = _rows(values)
    if len(rows) == 0:
        return 0
    edges = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    return int(np.diff(np.concatenate(([0], edges, [len(rows)]))).max())


def longest_run_by_chance(updates: int, tie: float, *, below: float = REPEATS_BY_CHANCE) -> int:
    """The longest stretch of equal values that ties alone would still produce, in updates.

    The largest L for which the expected number of such stretches, updates * c^(L - 1) with c the
    `floored_tie_share`, reaches ``below``. ``tie`` should come from distinct stretches (`tie_share` of the values with
    immediate repeats taken out), or a standing series predicts itself.
    """
    if updates < 1:
        return 0
    chance = floored_tie_share(tie, updates)
    if chance == 1:
        return updates
    return min(updates, 1 + max(0, math.floor(math.log(below / updates) / math.log(chance) + 1e-12)))

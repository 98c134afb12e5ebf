"""Which runs read their data in one order: told from witness series through an index, never over all pairs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pth_tracker.design.comparison import Comparison, Member
from pth_tracker.stats.orders import (
    Alignment,
    BatchSeries,
    align,
    batch_series,
    block_means,
    length_codes,
    looks_like_counter,
    printed_codes,
    same_order,
    voted_lag,
    window_keys,
)

LEAST_UPDATES: Final = 8
"""Common updates below which two orders are not compared."""
IDENTITY: Final = ("batch_id", "batch_id_high")
"""Quantities that tell batches apart: an identity, or the lower and higher digits of one."""
FILTERED_WIDTH: Final = 3
"""Updates a window of the index where prompts are left out of batches: longer ones hardly ever agree as a whole."""


@dataclass(frozen=True)
class Batches:
    """What one run tells of its batches."""

    identity: BatchSeries | None
    """Logged fingerprints; None: none, or numbers counted up."""
    witness: BatchSeries | None
    kinds: tuple[str, ...]
    """``mean``, ``max`` or ``min`` for each witness series."""
    size: int | None
    """Prompts in a batch; None: unknown."""
    filtered: bool
    resumed: bool


@dataclass
class Orders:
    """The runs whose batches are known, and which of them share one data order."""

    runs: dict[str, Batches] = field(default_factory=dict)
    """By run key."""
    found: dict[tuple[str, str], Alignment] = field(default_factory=dict)
    """Pairs found to share one order, enough of them to join every group."""
    looked: int = 0
    """Pairs of runs that were compared."""
    stretches: list[tuple[str, ...]] = field(default_factory=list)
    """Runs that share the identities of a stretch of updates."""
    _parent: dict[str, str] = field(default_factory=dict)

    def share_identities(self, keys: Sequence[str]) -> bool:
        """Whether any two of these runs share a stretch of identities, which then are those of the data alone."""
        own = set(keys)
        return any(len(own.intersection(stretch)) > 1 for stretch in self.stretches)

    def root(self, key: str) -> str:
        """The run that stands for the group of runs with the order of ``key``."""
        while self._parent.get(key, key) != key:
            key = self._parent[key]
        return key

    def join(self, a: str, b: str, alignment: Alignment) -> None:
        """Records that two runs share one order."""
        self.found[a, b] = alignment
        self._parent[self.root(b)] = self.root(a)

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The runs of each order that several share."""
        held: dict[str, list[str]] = {}
        for key in self.runs:
            held.setdefault(self.root(key), []).append(key)
        return [tuple(keys) for keys in held.values() if len(keys) > 1]

    def evidence(self, keys: Sequence[str]) -> list[tuple[str, str, Alignment]]:
        """The pairs found among ``keys``, the strongest first."""
        own = set(keys)
        kept = [(a, b, alignment) for (a, b), alignment in self.found.items() if a in own and b in own]
        return sorted(kept, key=lambda item: -item[2].witness.bits)


def data_orders(comparison: Comparison) -> Orders:
    """The data orders of all runs of the comparison; computed once."""
    if "data_orders" not in comparison.memo:
        comparison.memo["data_orders"] = _find_orders(comparison.members)
    found: Orders = comparison.memo["data_orders"]
    return found


def read_batches(member: Member) -> Batches | None:
    """What the run tells of its batches; None: nothing, or an asynchronous trainer assembled them."""
    result = member.result
    if result is None or member.reading.role("asynchronous") is True:
        return None
    numbers = [result.quantities[name] for name in IDENTITY if name in result.quantities]
    identity = None
    if numbers and not looks_like_counter(numbers[0].values):
        columns = [(one.step, one.values, None) for one in numbers]
        identity = batch_series(columns, shiftable=False, least=LEAST_UPDATES)
    names = [name for name in member.reading.framework.witness if name in result.quantities]
    held = [result.quantities[name] for name in names]
    witness = batch_series([(one.step, one.values, one.decimals) for one in held], least=LEAST_UPDATES)
    if identity is None and witness is None:
        return None
    size = member.reading.number("batch_size")
    starts = [int(series.step[0]) for series in (identity, witness) if series is not None]
    return Batches(
        identity,
        witness,
        tuple(_kind(name) for name in names),
        int(size) if size is not None and size >= 1 else None,
        member.reading.role("filtered_batches") is True,
        len(member.run.segments) > 1 or min(starts) > 1,
    )


def _kind(name: str) -> str:
    return name.rsplit("_", 1)[-1] if name.endswith(("_max", "_min")) else "mean"


def _find_orders(members: Sequence[Member]) -> Orders:
    orders = Orders()
    for member in members:
        batches = read_batches(member)
        if batches is not None:
            orders.runs[member.key] = batches
    sizes = sorted({batches.size for batches in orders.runs.values() if batches.size})
    ways = (
        any(batches.filtered for batches in orders.runs.values()),
        any(batches.resumed for batches in orders.runs.values()),
    )
    index: dict[tuple[str, Hashable, int], list[str]] = {}
    for key, batches in orders.runs.items():
        for own in set(_keys(batches, sizes, *ways)):
            index.setdefault(own, []).append(key)
    orders.stretches = list({tuple(keys) for (way, _, _), keys in index.items() if way == "identity" and len(keys) > 1})
    _join(orders, index)
    return orders


def _keys(batches: Batches, sizes: Sequence[int], filtered: bool, resumed: bool) -> Iterator[tuple[str, Hashable, int]]:
    """Where the run stands in the index: (way of agreeing, batch size, hash of a stretch of its batches)."""
    if batches.identity is not None:
        for _, key in window_keys(batches.identity.step, printed_codes(batches.identity.values, 0)):
            yield "identity", 0, key
    witness = batches.witness
    if witness is None:
        return
    own = batches.size or 1
    for size in [size for size in sizes if size % own == 0] if batches.size else [0]:
        larger = block_means(witness, size // own, batches.kinds) if size else witness
        for _, key in window_keys(larger.step, length_codes(larger.values[:, 0])):
            yield "witness", size, key
    extremes = _extremes(batches)
    if filtered and extremes is not None:
        codes = length_codes(extremes.values)
        for _, key in window_keys(extremes.step, codes, width=FILTERED_WIDTH, aligned=False, least=2):
            yield "filtered", batches.size, key
    if resumed:
        codes = length_codes(witness.values[:, 0])
        for _, key in window_keys(witness.step, codes, aligned=not batches.resumed, placed=False):
            yield "resumed", batches.size, key


def _extremes(batches: Batches) -> BatchSeries | None:
    places = [place for place, kind in enumerate(batches.kinds) if kind != "mean"]
    return batches.witness.columns(places) if batches.witness is not None and len(places) > 1 else None


def _join(orders: Orders, index: Mapping[tuple[str, Hashable, int], Sequence[str]]) -> None:
    """Compares what shares a stretch, each run with one of every group of its stretch, and joins what is one order."""
    pairs = max(1, math.comb(len(orders.runs), 2))
    tested: set[tuple[str, str, str]] = set()
    for (way, _, _), keys in index.items():
        if len(keys) < 2:
            continue
        standing: dict[str, str] = {}
        for key in keys:
            for root in [root for root in standing if orders.root(root) != orders.root(key)]:
                other = standing[root]
                if orders.root(other) == orders.root(key) or (other, key, way) in tested:
                    continue
                tested.add((other, key, way))
                orders.looked += 1
                alignment = compare_batches(orders.runs[other], orders.runs[key], way, pairs)
                if alignment is not None:
                    orders.join(other, key, alignment)
            standing.setdefault(orders.root(key), key)


def compare_batches(a: Batches, b: Batches, way: str, pairs: int) -> Alignment | None:
    """The alignment of two runs where it tells one order, by one way of agreeing; None where it does not.

    The ways are ``identity`` (fingerprints), ``witness`` (equal updates, block means where one batch size is a
    multiple of the other), ``filtered`` (largest and smallest values alone) and ``resumed`` (at another update).
    """
    filtered = a.filtered or b.filtered
    if way == "identity":
        if a.identity is None or b.identity is None:
            return None
        found = align(a.identity, b.identity, pairs=pairs)
        return found if same_order(found) else None
    aligned = _on_one_batch_size(a, b)
    if aligned is None or (way == "resumed" and not (a.resumed or b.resumed)):
        return None
    left, right = aligned
    if way == "filtered" or filtered:
        extremes = _extremes(a), _extremes(b)
        if not filtered or extremes[0] is None or extremes[1] is None or a.size != b.size:
            return None
        found = align(extremes[0], extremes[1], pairs=pairs)
        return found if same_order(found, filtered=True) else None
    lag, tries = 0, 1
    if way == "resumed":
        voted = voted_lag(left, right) if a.resumed else voted_lag(right, left)
        if voted is None:
            return None
        lag, tries = voted if a.resumed else -voted, len(left) + len(right)
    found = align(left, right, lag=lag, hypotheses=tries, pairs=pairs)
    return found if found.witness.updates >= LEAST_UPDATES and same_order(found) else None


def _on_one_batch_size(a: Batches, b: Batches) -> tuple[BatchSeries, BatchSeries] | None:
    """Both witness series as batches of the larger size, on the series that both have; None: they cannot be."""
    if a.witness is None or b.witness is None:
        return None
    shared = [kind for kind in a.kinds if kind in b.kinds]
    if not shared:
        return None
    left = a.witness.columns([a.kinds.index(kind) for kind in shared])
    right = b.witness.columns([b.kinds.index(kind) for kind in shared])
    if not a.size or not b.size or a.size == b.size:
        return left, right
    small, large = sorted((a.size, b.size))
    if large % small:
        return None
    if a.size == small:
        return block_means(left, large // small, shared), right
    return left, block_means(right, large // small, shared)


def parted_orders(orders: Orders, keys: Sequence[str]) -> list[tuple[tuple[str, ...], Alignment | None]]:
    """The runs ``keys`` by the order they read, the commonest first, with how each other order parts from that one.

    Runs whose batches say too little to be told apart from the commonest order are left out. Identities that no two of
    them share anywhere tell nothing: they may hold the responses, which are others in every run.
    """
    held: dict[str, list[str]] = {}
    for key in keys:
        if key in orders.runs:
            held.setdefault(orders.root(key), []).append(key)
    groups = sorted(held.values(), key=len, reverse=True)
    if not groups:
        return []
    parted: list[tuple[tuple[str, ...], Alignment | None]] = [(tuple(groups[0]), None)]
    reference, by_identity = orders.runs[groups[0][0]], orders.share_identities(keys)
    for group in groups[1:]:
        alignment = _alignment(reference, orders.runs[group[0]], by_identity)
        if alignment is None or alignment.witness.updates < LEAST_UPDATES:
            continue
        if alignment.witness.share < 0.8 and alignment.witness.chance < 0.5:
            parted.append((tuple(group), alignment))
    return parted


def _alignment(a: Batches, b: Batches, by_identity: bool) -> Alignment | None:
    if by_identity and a.identity is not None and b.identity is not None:
        return align(a.identity, b.identity)
    aligned = _on_one_batch_size(a, b)
    return align(*aligned) if aligned is not None else None

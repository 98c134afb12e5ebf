"""Evidence of one data order: what matches, what it is worth, how rarely chance looks like it; and resumed runs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest

from pth_tracker.runs import Floats
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
from pth_tracker.stats.seams import lr_difference, lr_jump, replayed

KINDS = ("mean", "max", "min")
PROMPTS = 7473
"""Problems of GSM8K's training set."""


def dataset(kind: str, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Prompt lengths in tokens: word problems, a templated task of eight lengths, or lengths cut at a limit."""
    if kind == "wide":
        return np.clip(np.rint(rng.lognormal(4.6, 0.4, PROMPTS)), 20, 1024).astype(np.int64)
    if kind == "narrow":
        return rng.integers(60, 68, PROMPTS)
    return np.minimum(rng.lognormal(5.2, 0.6, PROMPTS), 256).astype(np.int64)


def witness(lengths: npt.NDArray[np.int64], batch: int, updates: int, seed: int) -> Floats:
    """``(updates, 3)``: mean, max and min prompt length of batches of a shuffled data set, epoch after epoch."""
    rng = np.random.default_rng(seed)
    epochs = math.ceil(batch * updates / len(lengths))
    order = np.concatenate([rng.permutation(len(lengths)) for _ in range(epochs)])[: batch * updates]
    rows = lengths[order].reshape(updates, batch)
    return np.stack([rows.mean(axis=1), rows.max(axis=1), rows.min(axis=1)], axis=1)


def at_updates(values: npt.ArrayLike, first: int = 1, tolerance: float = 0.0) -> BatchSeries:
    table = np.asarray(values, dtype=np.float64)
    return BatchSeries(
        np.arange(first, first + len(table), dtype=np.int64), table, (tolerance,) * table.shape[1] if tolerance else ()
    )


@pytest.mark.parametrize("kind", ["wide", "narrow", "capped"])
def test_of_700_pairs_of_different_orders_none_is_taken_for_one(kind: str) -> None:
    # Three generators together: 2,100 pairs over batch sizes 2 to 128 and lengths of 20 to 200 updates.
    rng = np.random.default_rng(["wide", "narrow", "capped"].index(kind))
    lengths = dataset(kind, rng)
    seeds = iter(range(10_000))
    flagged, best = 0, -math.inf
    for batch in (2, 4, 8, 16, 32, 64, 128):
        for updates in (20, 60, 200, 100):
            for _ in range(25):
                a, b = (at_updates(witness(lengths, batch, updates, next(seeds))) for _ in range(2))
                found = align(a, b)
                flagged += same_order(found)
                best = max(best, found.witness.bits if found.witness.share >= 0.8 else -math.inf)
    assert flagged == 0
    assert best == -math.inf, "no pair of different orders agreed on 0.8 of its updates"


@pytest.mark.parametrize("shift, decimals", [(0, None), (7, None), (0, 3), (-4, 3)])
@pytest.mark.parametrize("kind", ["wide", "narrow", "capped"])
def test_one_order_is_found_in_95_percent_of_pairs(kind: str, shift: int, decimals: int | None) -> None:
    rng = np.random.default_rng(5)
    lengths = dataset(kind, rng)
    found, pairs = 0, 0
    for batch in (2, 8, 64, 128):
        for updates in (12, 20, 60):
            for repeat in range(5):
                values = witness(lengths, batch, updates, 100 * repeat + batch + updates)
                other = values + shift if decimals is None else np.round(values, decimals) + shift
                b = at_updates(other, tolerance=0 if decimals is None else 0.5 * 10.0**-decimals)
                a = at_updates(values)
                keys = [{key for _, key in window_keys(one.step, length_codes(one.values[:, 0]))} for one in (a, b)]
                found += bool(keys[0] & keys[1]) and same_order(align(a, b))
                pairs += 1
    assert found >= 0.95 * pairs


def test_the_evidence_is_the_binomial_tail_less_the_searches() -> None:
    # 12 of 12 rows agree, no row repeats: c = 3 / C(12, 2) = 1/22, two alignments (with and without a constant).
    values = [[float(value), value + 10.0, value - 10.0] for value in (7, 3, 9, 1, 12, 5, 8, 2, 11, 4, 10, 6)]
    found = align(at_updates(values), at_updates(values), pairs=10)
    assert (found.witness.matches, found.witness.updates) == (12, 12)
    assert found.witness.chance == pytest.approx(1 / 22)
    assert found.witness.bits == pytest.approx(12 * math.log2(22) - math.log2(2) - math.log2(10))
    assert found.parting is None and found.offset == (0.0, 0.0, 0.0)


def test_a_constant_is_found_per_series_and_costs_one_match() -> None:
    values = witness(dataset("wide", np.random.default_rng(1)), 16, 30, 3)
    found = align(at_updates(values + [4, 6, 4]), at_updates(values))
    assert found.offset == (4.0, 6.0, 4.0)
    assert (found.witness.matches, found.witness.updates) == (29, 30)
    assert same_order(found)


def test_a_shift_by_a_broken_number_is_no_template() -> None:
    values = witness(dataset("wide", np.random.default_rng(1)), 16, 30, 3)
    assert align(at_updates(values + 0.3), at_updates(values)).witness.matches == 0


def test_a_match_is_the_whole_tuple() -> None:
    values = witness(dataset("wide", np.random.default_rng(1)), 16, 30, 3)
    other = values.copy()
    other[::2, 2] += np.arange(1, 16)  # every other smallest length differs, each by another number
    found = align(at_updates(values), at_updates(other))
    assert found.witness.matches == 15 and not same_order(found)


def test_orders_that_part_say_where() -> None:
    lengths = dataset("wide", np.random.default_rng(1))
    a, b = witness(lengths, 16, 40, 3), witness(lengths, 16, 40, 4)
    b[:25] = a[:25]
    found = align(at_updates(a), at_updates(b))
    assert found.parting == 26 and found.witness.matches == 25 and not same_order(found)


def test_a_series_without_spread_is_no_evidence() -> None:
    # Both runs stand at the limit: equal throughout, and worth nothing.
    found = align(at_updates(np.full((50, 3), 512.0)), at_updates(np.full((50, 3), 512.0)))
    assert found.witness.matches == 50 and found.witness.bits <= 0 and not same_order(found)


def test_only_common_updates_are_compared() -> None:
    values = witness(dataset("wide", np.random.default_rng(2)), 8, 40, 1)
    found = align(at_updates(values[:30]), at_updates(values[10:], first=11))
    assert (found.witness.matches, found.witness.updates) == (20, 20)
    assert align(at_updates(values[:10]), at_updates(values[20:], first=21)) == Alignment(
        found.witness.__class__(0.0, 0, 0, 1.0), 0
    )


def test_values_stored_through_float32_still_match() -> None:
    values = witness(dataset("wide", np.random.default_rng(2)), 96, 40, 1)
    found = align(at_updates(values.astype(np.float32)), at_updates(values))
    assert found.witness.matches == 40


def test_filtered_batches_need_half_of_their_extremes() -> None:
    # Dynamic filtering leaves prompts out: means differ, the largest and smallest survive on 60% of the updates.
    rng = np.random.default_rng(4)
    values = witness(dataset("wide", rng), 64, 80, 1)
    other = values.copy()
    other[:, 0] += rng.normal(0, 3, 80)
    lost = rng.permutation(80)[:32]
    other[lost, 1] -= rng.integers(1, 60, 32)
    extremes = align(at_updates(values[:, 1:]), at_updates(other[:, 1:]))
    assert extremes.witness.share == pytest.approx(0.6)
    assert same_order(extremes, filtered=True) and not same_order(extremes)
    assert not same_order(align(at_updates(values), at_updates(other)), filtered=True)


def test_filtered_extremes_of_different_orders_are_never_one() -> None:
    lengths = dataset("wide", np.random.default_rng(9))
    flagged = 0
    for batch in (2, 8, 32, 128):
        for pair in range(100):
            a, b = (at_updates(witness(lengths, batch, 100, 1000 * batch + 2 * pair + side)[:, 1:]) for side in (0, 1))
            flagged += same_order(align(a, b), filtered=True)
    assert flagged == 0


@pytest.mark.parametrize("ratio", [2, 4])
def test_means_of_blocks_are_the_larger_batch(ratio: int) -> None:
    lengths = dataset("wide", np.random.default_rng(3))
    small, large = witness(lengths, 16, 60, 8), witness(lengths, 16 * ratio, 60 // ratio, 8)
    grouped = block_means(at_updates(small), ratio, KINDS)
    assert grouped.step.tolist() == list(range(1, 60 // ratio + 1))
    assert same_order(align(grouped, at_updates(large)))


def test_incomplete_blocks_are_left_out() -> None:
    series = BatchSeries(np.array([1, 2, 3, 5, 6, 7]), np.arange(6.0)[:, None])
    grouped = block_means(series, 2, ("mean",))
    assert grouped.step.tolist() == [1, 3] and grouped.values[:, 0].tolist() == [0.5, 3.5]


def test_a_lag_is_voted_and_tried_with_its_price() -> None:
    values = witness(dataset("wide", np.random.default_rng(3)), 16, 60, 8)
    run, resumed = at_updates(values), at_updates(values[:40], first=101)
    assert voted_lag(resumed, run) == 100
    free, priced = align(resumed, run, lag=100), align(resumed, run, lag=100, hypotheses=100)
    assert same_order(priced) and free.witness.bits - priced.witness.bits == pytest.approx(math.log2(100))
    assert voted_lag(at_updates(witness(dataset("wide", np.random.default_rng(3)), 16, 60, 9)), run) is None


def test_identities_are_compared_exactly() -> None:
    ids = np.random.default_rng(0).integers(0, 2**53, 40).astype(np.float64)[:, None]
    a = BatchSeries(np.arange(40), ids, shiftable=False)
    assert align(a, a).witness.matches == 40
    assert align(a, BatchSeries(np.arange(40), ids + 4096, shiftable=False)).witness.matches == 0


@pytest.mark.parametrize(
    "ids, counter",
    [
        (range(100), True),
        ([0] * 30 + list(range(70)), True),
        (list(range(64)) * 3, True),
        (np.random.default_rng(1).integers(0, 2**24, 100), False),
        (np.random.default_rng(1).integers(0, 2**53, 100), False),
    ],
)
def test_numbers_counted_up_are_no_fingerprints(ids: Iterable[int], counter: bool) -> None:
    assert looks_like_counter(list(ids)) is counter


def test_columns_meet_where_all_are_logged_and_finite() -> None:
    columns = [
        (np.array([1, 2, 3, 4]), np.array([5.0, 6.0, math.nan, 8.0]), 3),
        (np.array([2, 3, 4, 5]), np.array([1.0, 2.0, 3.0, 4.0]), None),
    ]
    series = batch_series(columns)
    assert series is not None
    assert series.step.tolist() == [2, 4] and series.values.tolist() == [[6.0, 1.0], [8.0, 3.0]]
    assert series.tolerance == (0.0005, 0.0)
    assert batch_series(columns, least=3) is None and batch_series([]) is None


def test_windows_with_gaps_or_without_spread_are_not_indexed() -> None:
    step = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17])
    codes = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3])
    assert [first for first, _ in window_keys(step, codes)] == [1]
    assert not list(window_keys(np.arange(1, 17), np.ones(16, dtype=np.int64)))
    assert not list(window_keys(step[:7], codes[:7]))


def test_steps_that_count_environments_are_indexed_by_their_distance() -> None:
    codes = np.random.default_rng(1).integers(0, 1000, 24)
    updates = [first for first, _ in window_keys(np.arange(1, 25), codes)]
    assert updates == [1, 9, 17]
    for stride in (10, 512, 2048):
        assert [first for first, _ in window_keys(np.arange(1, 25) * stride, codes)] == [u * stride for u in updates]
    # A run that logs every tenth update from the fifth on has the same places from start to start.
    assert len(list(window_keys(np.arange(24) * 10 + 5, codes))) == 2


def test_keys_hold_the_place_or_not() -> None:
    codes = np.random.default_rng(0).integers(0, 1000, 8)
    here, there = np.arange(1, 9), np.arange(9, 17)
    placed = [dict(window_keys(step, codes)) for step in (here, there)]
    loose = [dict(window_keys(step, codes, placed=False)) for step in (here, there)]
    assert set(placed[0].values()).isdisjoint(placed[1].values())
    assert set(loose[0].values()) == set(loose[1].values())


@pytest.mark.parametrize("batch", [2, 3, 16, 24, 64, 80, 96, 128, 512])
def test_length_codes_are_those_of_the_printed_values(batch: int) -> None:
    means = np.arange(60 * batch, 90 * batch) / batch
    printed = np.array([float(f"{value:.3f}") for value in means])
    assert np.array_equal(length_codes(means), length_codes(printed))
    assert np.array_equal(length_codes(means + 7) - length_codes(means), np.full(len(means), 700))


def test_codes_of_extreme_values_are_bounded() -> None:
    assert printed_codes([1e300, -1e300], 3).tolist() == [2**60, -(2**60)]
    assert printed_codes([0.0, -0.0], None).tolist() == [0, 0]
    assert len(length_codes([1e308])) == 1


# seams


def rates(values: npt.ArrayLike, first: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
    array = np.asarray(values, dtype=np.float64)
    return np.arange(first, first + len(array), dtype=np.int64), array


def test_a_schedule_that_goes_on_has_no_jump() -> None:
    cosine = 1e-6 * 0.5 * (1 + np.cos(np.pi * np.arange(100) / 100))
    assert lr_jump(rates(cosine[:50]), rates(cosine[50:], 51)) is None
    warmup = 1e-6 * np.arange(1, 11) / 10  # from 1e-7 to 2e-7 is a doubling, and its schedule
    assert lr_jump(rates(warmup[:2]), rates(warmup[2:], 3)) is None
    assert lr_jump(rates([1e-6] * 5), rates([1e-6] * 5, 6)) is None


def test_a_warmup_that_starts_again_is_a_jump() -> None:
    warmup = np.minimum(1.0, np.arange(1, 51) / 10) * 1e-6
    jump = lr_jump(rates(warmup), rates(warmup, 51))
    assert jump is not None and jump == pytest.approx((1e-6, 1e-7))


def test_overlapping_segments_are_compared_at_their_common_updates() -> None:
    assert lr_jump(rates([1e-6] * 20), rates([1e-6] * 20, 11)) is None
    assert lr_jump(rates([1e-6] * 20), rates([2e-6] * 20, 11)) == (1e-6, 2e-6)


def test_batches_read_again_are_found_with_their_lag() -> None:
    lengths = dataset("wide", np.random.default_rng(3))
    values, others = witness(lengths, 16, 60, 8), witness(lengths, 16, 60, 9)
    again = replayed(at_updates(values), at_updates(values[:40], first=61))
    assert again is not None and again[0] == 60 and again[1].matches == 40
    assert replayed(at_updates(values), at_updates(others, first=61)) is None
    # Back to a checkpoint: updates 41 to 60 are trained a second time, on the same batches, and the run goes on.
    back = np.concatenate([values[40:], others[:20]])
    assert replayed(at_updates(values), at_updates(back, first=41)) is None


def test_learning_rates_differ_by_share_and_factor() -> None:
    a, b = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.04, 1.06, 4.0])
    assert lr_difference(a, b) == (0.5, 4.0)
    assert lr_difference(np.zeros(3), np.zeros(3)) == (0.0, math.inf)

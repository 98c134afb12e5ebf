"""Repeats within one run, their chance, and periods."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pth_tracker.stats.repeats import equal_levels, find_repeats, joint_labels, latest_equal, occurrence, period, ranks


def test_values_are_one_level_within_what_was_printed_or_two_float32_ulp() -> None:
    ulp = 2.0**-17  # of a float32 in [64, 128)
    assert equal_levels([100.0, 100.0 + ulp, 100.0, 101.0]).tolist() == [0, 0, 0, 1]
    assert len(set(equal_levels([100.0, 100.0 + 4 * ulp]).tolist())) == 2
    assert equal_levels([0.123, 0.124, 0.123], 3).tolist() == [0, 1, 0]
    assert equal_levels([]).tolist() == []
    assert equal_levels([0.0, -0.0, 0.0]).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="nan at index 1"):
        equal_levels([1.0, math.nan])


def test_labels_of_tuples_and_their_earlier_occurrences() -> None:
    full = joint_labels([[1, 1, 2, 1, 1], [5, 6, 5, 5, 5]])
    assert full[0] == full[3] == full[4] and len(set(full.tolist())) == 3
    assert latest_equal(full).tolist() == [-1, -1, -1, 0, 3]
    assert occurrence(full).tolist() == [1, 1, 1, 2, 3]
    assert occurrence([]).tolist() == [] and latest_equal([]).tolist() == []


def test_repeats_of_distinct_tuples_are_expected_by_the_rule_of_three_where_no_quantity_ties() -> None:
    n = 100
    found = find_repeats([np.arange(n)] * 3)
    share = 3 / (n * (n - 1) / 2)
    assert found.search == "all" and found.left_out == 0
    assert found.expected == pytest.approx(n * (n - 1) / 2 * share**3)
    assert np.all(found.earlier == -1)


def test_a_repeat_is_found_at_any_distance() -> None:
    source = np.arange(100)
    source[50], source[51] = 3, 3
    found = find_repeats([source] * 3)
    assert np.flatnonzero(found.earlier >= 0).tolist() == [50, 51]
    assert found.earlier[[50, 51]].tolist() == [3, 50]


def test_a_stuck_batch_does_not_excuse_itself_by_the_ties_it_makes() -> None:
    source = np.maximum(np.arange(100) - 32, 0)
    assert find_repeats([source] * 3).expected < 1e-4


def test_a_stretch_in_which_one_quantity_has_no_spread_is_left_out() -> None:
    rng = np.random.default_rng(1)
    prompts, lengths = rng.permutation(200), rng.permutation(200)
    scores = np.where(np.arange(200) < 96, np.arange(200), 0)  # converged from update 96 = 6 stretches of 16 on
    found = find_repeats([prompts, lengths, scores])
    assert found.judged and found.left_out == 104
    same = prompts.copy()
    same[150], lengths[150] = same[149], lengths[149]
    assert np.all(find_repeats([same, lengths, scores]).earlier == -1)


def test_a_quantity_without_spread_from_within_a_stretch_is_left_out_to_the_update() -> None:
    rng = np.random.default_rng(6)
    prompts, lengths, scores = (rng.permutation(300) for _ in range(3))
    lengths[100:], scores[100:] = 9, 1  # 100 is no multiple of 16
    prompts[102] = prompts[101]
    assert find_repeats([prompts, lengths, scores]).left_out == 200
    lengths[100:107] = np.arange(1000, 1007)
    # Seven updates in a row with one score are too few to tell.
    found = find_repeats([prompts[:107], lengths[:107], scores[:107]])
    assert found.left_out == 0 and found.judged


def test_nothing_is_judged_where_a_quantity_never_varies() -> None:
    found = find_repeats([np.zeros(50, dtype=int), np.arange(50), np.arange(50)])
    assert not found.judged and found.left_out == 50
    assert not find_repeats([np.zeros(50, dtype=int)] * 3).judged
    assert not find_repeats([np.empty(0, dtype=int)] * 3).judged


def test_neighbours_alone_are_searched_where_ties_are_common() -> None:
    rng = np.random.default_rng(2)
    columns = [rng.integers(0, 250, 400), rng.integers(0, 250, 400), rng.integers(0, 2, 400)]
    for column in columns:
        column[200] = column[199]
        column[300] = column[100]
    found = find_repeats(columns)
    # About 80,000 pairs x 1/250 x 1/250 x 1/2 = 0.6 against 399 neighbours x the same = 0.0032, and never less.
    assert found.search == "neighbours" and 0.003 < found.expected < 0.01
    assert np.flatnonzero(found.earlier >= 0).tolist() == [200]


def test_ties_are_counted_between_stretches_of_the_run() -> None:
    rng = np.random.default_rng(3)
    # A third of the run has 3 lengths and 3 scores: its own ties make a repeat likely there.
    late = np.arange(300) >= 200
    lengths = np.where(late, rng.integers(0, 3, 300), np.arange(300) + 10)
    scores = np.where(late, rng.integers(0, 3, 300), np.arange(300) + 10)
    prompts = rng.integers(0, 1000, 300)
    found = find_repeats([prompts, lengths, scores])
    # 4,950 late pairs x 1/9 x 1/1000 = 0.55; over the whole series the tie shares would say 44,850 x 0.04^2 / 1000.
    assert found.search != "all"


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one label an update"):
        find_repeats([[1, 2], [1]])
    with pytest.raises(ValueError, match="at least one quantity"):
        find_repeats([])


@pytest.mark.parametrize("length, times", [(2, 13), (5, 4), (33, 4)])
def test_a_period_is_found_from_three_times_and_20_bits_on(length: int, times: int) -> None:
    # 2: 24 matches of about one bit each less 3 bits for the 7 periods tried; 5: 15 of about 2.6 bits.
    assert period(np.tile(np.arange(length), times)) == length
    assert period(np.tile(np.arange(length), times)[2 * length :]) is None
    assert period(np.tile(np.arange(60), 2)) is None


def test_constant_series_noise_and_a_replay_after_a_resume_have_no_period() -> None:
    assert period(np.zeros(100, dtype=int)) is None
    assert period(np.random.default_rng(4).integers(0, 1000, 300)) is None
    assert period(np.concatenate([np.arange(100), np.arange(100)])) is None
    assert period([]) is None


def test_joint_labels_rank_rows_whatever_their_numbers() -> None:
    draw = np.random.default_rng(0)
    for spread in (2, 50, 2**40, 2**62):
        table = draw.integers(-spread, spread, size=(200, 4))
        table[100:150] = table[:50]
        expected = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        np.testing.assert_array_equal(joint_labels(list(table.T)), expected)
    assert joint_labels([[]]).tolist() == []


@pytest.mark.parametrize("span", [1, 3, 60, 1 << 40])
def test_renumbered_labels_keep_their_order(span: int) -> None:
    labels = np.random.default_rng(span).integers(0, span, 50)
    assert np.array_equal(ranks(labels), np.unique(labels, return_inverse=True)[1])
    assert not len(ranks(labels[:0]))


@pytest.mark.parametrize(("least", "most"), [(0, 5), (0, 1 << 16), (65_530, 65_540), (-3, 3), (-(1 << 62), 1 << 62)])
def test_labels_of_any_size_are_counted_in_their_order(least: int, most: int) -> None:
    labels = np.random.default_rng(3).integers(least, most, 40, endpoint=True).repeat(2)
    labels = np.concatenate((labels, labels[::-1]))
    earlier = [max((j for j in range(i) if labels[j] == labels[i]), default=-1) for i in range(len(labels))]
    assert latest_equal(labels).tolist() == earlier
    assert occurrence(labels).tolist() == [labels[: i + 1].tolist().count(labels[i]) for i in range(len(labels))]


def test_labels_of_the_tuples_at_hand_change_nothing() -> None:
    draw = np.random.default_rng(5)
    columns = [draw.integers(0, 400, 300) for _ in range(3)]
    alone, given = find_repeats(columns), find_repeats(columns, full=joint_labels(columns))
    assert alone.earlier.tolist() == given.earlier.tolist()
    assert (alone.search, alone.expected, alone.left_out) == (given.search, given.expected, given.left_out)

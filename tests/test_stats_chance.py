from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pth_tracker import stats


def _exact_tail_bits(k: int, m: int, chance: Fraction) -> float:
    """-log2 P(Bin(m, chance) >= k) in exact rational arithmetic."""
    total = sum(math.comb(m, j) * chance**j * (1 - chance) ** (m - j) for j in range(k, m + 1))
    tail = Fraction(total)
    return math.log2(tail.denominator) - math.log2(tail.numerator)


@pytest.mark.parametrize(
    ("k", "m", "chance"),
    [
        (1, 1, Fraction(1, 2)),
        (3, 10, Fraction(1, 4)),
        (40, 100, Fraction(1, 3)),
        (90, 100, Fraction(1, 1650)),
        (300, 300, Fraction(1, 15_000)),
        (511, 512, Fraction(3, 130_816)),
        (1, 400, Fraction(1, 2**40)),
    ],
)
def test_binomial_tail_in_bits_is_exact_however_small(k: int, m: int, chance: Fraction) -> None:
    bits = -stats.log2_binomial_tail(k, m, float(chance))
    assert bits == pytest.approx(_exact_tail_bits(k, m, chance), rel=1e-9)


def test_binomial_tail_at_the_ends() -> None:
    assert stats.log2_binomial_tail(0, 10, 0.3) == 0.0
    assert stats.log2_binomial_tail(0, 0, 0.3) == 0.0
    assert stats.log2_binomial_tail(10, 10, 1.0) == 0.0
    assert stats.log2_binomial_tail(1, 10, 0.0) == -math.inf
    assert stats.log2_binomial_tail(11, 10, 0.5) == -math.inf
    assert -1e-9 < stats.log2_binomial_tail(1, 5000, 0.9) <= 0.0
    for bad in ((-1, 3, 0.5), (1, -1, 0.5), (1, 3, 1.5), (1, 3, math.nan)):
        with pytest.raises(ValueError, match="binomial"):
            stats.log2_binomial_tail(*bad)


def test_tie_share_by_hand() -> None:
    assert stats.tie_share([1, 1, 1, 2]) == pytest.approx(3 / 6)
    assert stats.tie_share([[1, 5], [1, 6], [1, 5], [2, 5]]) == pytest.approx(1 / 6)
    assert stats.tie_share([1, 2, 3]) == 0.0
    assert stats.tie_share([4, 4]) == 1.0
    assert stats.tie_share([4]) == stats.tie_share([]) == 0.0
    with pytest.raises(ValueError, match="nan"):
        stats.tie_share([1, math.nan])
    assert stats.floored_tie_share(0.0, 100) == pytest.approx(3 / 4950)
    assert stats.floored_tie_share(0.2, 100) == 0.2
    assert stats.floored_tie_share(0.0, 3) == stats.floored_tie_share(0.0, 1) == 1.0
    with pytest.raises(ValueError, match="tie share"):
        stats.floored_tie_share(1.2, 10)


def test_witness_evidence_by_hand() -> None:
    # All of 10 with chance 1/2: ten bits, less three for eight hypotheses and two for four pairs.
    found = stats.witness_evidence(10, 10, 0.5, hypotheses=8, pairs=4)
    assert found.bits == pytest.approx(10 - 3 - 2)
    assert (found.share, found.chance) == (1.0, 0.5) and not found.same_order()
    # Without ties the chance is 3 / C(100, 2), and matching 100 of 100 is worth about 1068 bits.
    whole = stats.witness_evidence(100, 100, 0.0, hypotheses=2, pairs=10**30)
    assert whole.bits == pytest.approx(100 * math.log2(1650) - 1 - 30 * math.log2(10))
    assert whole.same_order()


def test_witness_evidence_of_little() -> None:
    assert stats.witness_evidence(0, 0, 0.0).bits == 0.0 and stats.witness_evidence(0, 0, 0.0).share == 0.0
    assert stats.witness_evidence(3, 3, 0.0).bits == 0.0  # three updates cannot show anything
    assert stats.witness_evidence(0, 50, 0.1, pairs=4).bits == pytest.approx(-2.0)
    constant = stats.witness_evidence(50, 50, 1.0)
    assert constant.bits == 0.0 and not constant.same_order()


def test_same_order_needs_bits_and_share() -> None:
    half = stats.witness_evidence(50, 100, 0.0)
    assert half.bits > 300 and not half.same_order() and half.same_order(0.5)
    assert not stats.witness_evidence(6, 6, 0.3).same_order()
    for bad in ((5, 4), (-1, 4)):
        with pytest.raises(ValueError, match="matches"):
            stats.witness_evidence(*bad, 0.1)
    with pytest.raises(ValueError, match="hypothesis"):
        stats.witness_evidence(1, 4, 0.1, pairs=0)


def test_witness_evidence_on_random_orders() -> None:
    """Prompt-length series of independent orders never reach 20 bits; the same order always does."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(40, 400, 5000)
    worst, same = -math.inf, math.inf
    for _ in range(200):
        orders = [rng.permutation(lengths)[: 60 * 16].reshape(60, 16) for _ in range(2)]
        tuples = [np.stack((x.mean(1).round(3), x.max(1), x.min(1)), axis=1) for x in orders]
        tie = max(stats.tie_share(t) for t in tuples)
        matches = int((tuples[0] == tuples[1]).all(axis=1).sum())
        worst = max(worst, stats.witness_evidence(matches, 60, tie, pairs=200).bits)
        same = min(same, stats.witness_evidence(60, 60, tie, pairs=200).bits)
    assert worst < 0 and same > 20


def _run(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    prompt = rng.integers(40, 400, (n, 16))
    response = rng.integers(100, 512, (n, 48))
    score = rng.random((n, 48)) < 0.6
    prompts = np.stack((prompt.mean(1), prompt.max(1), prompt.min(1)), axis=1)
    responses = np.stack((response.mean(1), response.max(1), response.min(1)), axis=1)
    return prompts, responses, score.mean(1)


def test_repeats_of_a_stuck_batch_are_improbable() -> None:
    prompts, responses, score = _run(np.random.default_rng(0), 100)
    healthy = [prompts, responses, score]
    assert stats.count_repeats(healthy) == 0
    assert stats.expected_repeats(healthy) < 0.01
    order = np.concatenate((np.zeros(33, dtype=int), np.arange(1, 68)))  # batch 0 for 33 updates, 68 distinct in all
    stuck = [x[order] for x in healthy]
    assert stats.count_repeats(stuck) == 32
    assert stats.expected_repeats(stuck) < 0.01  # it does not excuse itself by its own ties


def test_repeats_of_a_converged_policy_are_probable() -> None:
    rng = np.random.default_rng(1)
    prompts = rng.integers(0, 40, 100)
    capped = [prompts, np.full(100, 512.0), np.ones(100)]
    assert stats.count_repeats(capped) > 0
    assert stats.expected_repeats(capped) > 0.01
    assert stats.expected_repeats([np.ones(100)]) == 4950  # without any spread nothing is improbable


def test_expected_repeats_match_simulation() -> None:
    rng = np.random.default_rng(2)
    observed, expected = [], []
    for _ in range(200):
        a, b = rng.integers(0, 60, 80), rng.integers(0, 50, 80)
        pairs = np.stack((a, b), axis=1)
        observed.append(stats.tie_share(pairs) * 80 * 79 / 2)
        expected.append(stats.expected_repeats([a, b]))
    assert np.mean(observed) == pytest.approx(3160 / 3000, rel=0.15)
    assert np.mean(expected) == pytest.approx(3160 / 3000, rel=0.15)


def test_expected_repeats_by_hand() -> None:
    # Four distinct rows: the first column ties in 2 of 6 pairs and the second in 1 of 6, both below the floor of 3/6.
    assert stats.expected_repeats([[1, 1, 2, 2], [5, 6, 5, 7]]) == pytest.approx(6 * 0.5 * 0.5)
    assert stats.expected_repeats([[1, 1, 2, 2], [5, 6, 5, 7]], pairs=1) == pytest.approx(0.25)
    assert stats.expected_repeats([[1]]) == 0.0
    with pytest.raises(ValueError, match="one row an update"):
        stats.expected_repeats([[1, 2], [1]])
    with pytest.raises(ValueError, match="at least one quantity"):
        stats.count_repeats([])


def test_longest_run() -> None:
    assert stats.longest_run([1, 2, 2, 2, 1, 1]) == 3
    assert stats.longest_run([[1, 2], [1, 2], [1, 3]]) == 2
    assert stats.longest_run([7]) == 1 and stats.longest_run([]) == 0
    # 100 * c >= 0.01 > 100 * c^2 at the floor c = 1/1650: a stretch of two is possible, of three it is not.
    assert stats.longest_run_by_chance(100, 0.0) == 2
    assert stats.longest_run_by_chance(100, 0.1) == 5  # 100 * 0.1^4 = 0.01
    assert stats.longest_run_by_chance(10, 1.0) == 10 and stats.longest_run_by_chance(0, 0.5) == 0
    rng = np.random.default_rng(3)
    longest = [stats.longest_run(rng.integers(0, 10, 100)) for _ in range(1000)]
    assert np.mean(np.array(longest) > 5) < 0.01

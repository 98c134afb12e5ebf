import itertools

import numpy as np
import pytest

from pth_tracker.demo.tasks import BLANK, EOS, LONGEST, OPERATIONS, Problems, load_problems, reading_order, score
from pth_tracker.errors import UsageError


def problem(operation: str, digits: list[int], key: int = BLANK) -> Problems:
    row = np.full((1, LONGEST), BLANK)
    row[0, : len(digits)] = digits
    return Problems(np.array([OPERATIONS.index(operation)]), np.array([key]), row, np.array([len(digits)]))


@pytest.mark.parametrize(
    ("operation", "key", "answer", "prompt_tokens"),
    [
        ("copy", BLANK, [3, 1, 8], 5),
        ("reverse", BLANK, [8, 1, 3], 5),
        ("complement", BLANK, [6, 8, 1], 5),
        ("add", 4, [7, 5, 2], 6),
    ],
)
def test_each_operation_has_the_answer_worked_out_by_hand(
    operation: str, key: int, answer: list[int], prompt_tokens: int
) -> None:
    asked = problem(operation, [3, 1, 8], key)
    assert asked.answers()[0].tolist() == answer + [EOS] * (LONGEST + 1 - len(answer))
    assert asked.prompt_length.tolist() == [prompt_tokens]


@pytest.mark.parametrize(
    ("tokens", "right"),
    [
        ([3, 1, EOS], 1.0),
        ([3, 2, EOS], 0.0),
        ([3, EOS], 0.0),
        ([3, 1, 1, EOS], 0.0),
        ([3, 1], 0.0),  # cut off before it ended
        ([EOS], 0.0),
        ([3, 1] + [0] * 20, 0.0),
    ],
)
def test_only_the_exact_response_that_ends_itself_scores(tokens: list[int], right: float) -> None:
    mask = np.ones((1, len(tokens)), dtype=bool)
    assert score(problem("copy", [3, 1]), np.array([tokens]), mask).tolist() == [right]


def test_padding_after_a_response_does_not_count() -> None:
    tokens = np.array([[3, 1, EOS, EOS, EOS]])
    mask = np.array([[True, True, True, False, False]])
    assert score(problem("copy", [3, 1]), tokens, mask).tolist() == [1.0]


def test_the_three_sets_of_problems_share_none_and_never_change() -> None:
    first, second = load_problems(1024, 400), load_problems(1024, 400)
    assert [len(part) for part in first] == [1024, 400, 512]
    rows = [tuple(row) for p in first for row in np.column_stack([p.operation, p.key, p.digits]).tolist()]
    assert len(set(rows)) == len(rows)
    for ours, again in zip(first, second, strict=True):
        assert np.array_equal(ours.digits, again.digits)
    assert set(first[0].length.tolist()) == set(range(1, LONGEST + 1))


def test_more_problems_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data\.train_max_samples"):
        load_problems(100_000, 400)


def order(seed: int | None, shuffle: bool = True, batches: int = 6) -> list[list[int]]:
    return [i.tolist() for _, i in itertools.islice(reading_order(20, 6, seed, shuffle), batches)]


def test_no_seed_is_one_fixed_order_that_of_torch_s_default_seed() -> None:
    assert order(None) == order(None) == order(67280421310721)
    assert order(None) != order(43)


def test_a_seed_decides_the_order_and_every_epoch_is_shuffled_anew() -> None:
    batches = order(43)
    assert batches == order(43)
    assert batches != order(44)
    first, second = sum(batches[:3], []), sum(batches[3:], [])
    assert len(set(first)) == len(set(second)) == 18  # 20 problems, the incomplete batch dropped
    assert first != second
    assert [epoch for epoch, _ in itertools.islice(reading_order(20, 6, 43, True), 7)] == [0, 0, 0, 1, 1, 1, 2]


def test_without_shuffling_the_seed_acts_on_nothing() -> None:
    assert order(43, shuffle=False) == order(44, shuffle=False)
    assert order(43, shuffle=False)[0] == [0, 1, 2, 3, 4, 5]

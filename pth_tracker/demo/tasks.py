"""The demo's tasks: digit strings to transform, an exact-match reward, and the order in which problems are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pth_tracker.errors import UsageError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SOURCE: Final = "digits"
"""The data source's name, as it appears in the metric keys of the evaluation."""
OPERATIONS: Final = ("copy", "reverse", "complement", "add")
"""Output digit i is x[i], x[k-1-i], 9-x[i] or (x[i]+key) mod 10."""
ADD: Final = OPERATIONS.index("add")
BLANK: Final = 10
"""Stands where a problem has no digit (beyond its end, or no key)."""
EOS: Final = 10
"""The output token that ends a response; tokens 0 to 9 are digits."""
VOCABULARY: Final = 11
SHORTEST: Final = 1
LONGEST: Final = 9
LARGEST_KEY: Final = 4
LONGEST_PROMPT: Final = LONGEST + 3
"""Tokens of a prompt with operation, key, digits and the sign that ends it."""

_UNSEEDED: Final = 67280421310721
"""The seed of a torch ``Generator`` that nobody has seeded: fixed, so a null data seed is always one order."""
_PROBLEMS_SEED: Final = 20260316
_POOL: Final = 8192
_PRETRAINING: Final = 512


@dataclass(frozen=True)
class Problems:
    """A number of problems side by side; the prompt of each is operation, key (of "add" only), digits, "="."""

    operation: Ints
    """``(n,)``, indices into `OPERATIONS`."""
    key: Ints
    """``(n,)``, the digit to add, `BLANK` where there is none."""
    digits: Ints
    """``(n, LONGEST)``, `BLANK` beyond the end."""
    length: Ints
    """``(n,)``, digits in the input and in the answer."""

    def __len__(self) -> int:
        return len(self.operation)

    def __getitem__(self, index: Ints | slice) -> Problems:
        return Problems(self.operation[index], self.key[index], self.digits[index], self.length[index])

    @property
    def prompt_length(self) -> Ints:
        """``(n,)``, tokens in each prompt."""
        return np.asarray(self.length + 2 + (self.key != BLANK))

    def reversed_digits(self) -> Ints:
        """``(n, LONGEST)``, the digits from the last to the first, `BLANK` beyond the end."""
        index = self.length[:, None] - 1 - np.arange(LONGEST)
        return np.where(index >= 0, np.take_along_axis(self.digits, np.maximum(index, 0), axis=1), BLANK)

    def answers(self) -> Ints:
        """``(n, LONGEST + 1)``, the right response: the answer's digits, then `EOS` to the end of the row."""
        x = self.digits
        candidates = np.stack([x, self.reversed_digits(), 9 - x, (x + self.key[:, None]) % 10])
        chosen = np.take_along_axis(candidates, self.operation[None, :, None], axis=0)[0]
        inside = np.arange(LONGEST) < self.length[:, None]
        return np.pad(np.where(inside, chosen, EOS), ((0, 0), (0, 1)), constant_values=EOS)


def _pool() -> Problems:
    rng = np.random.default_rng(_PROBLEMS_SEED)
    operation = rng.integers(len(OPERATIONS), size=_POOL)
    key = np.where(operation == ADD, rng.integers(1, LARGEST_KEY + 1, size=_POOL), BLANK)
    length = rng.integers(SHORTEST, LONGEST + 1, size=_POOL)
    digits = np.where(np.arange(LONGEST) < length[:, None], rng.integers(10, size=(_POOL, LONGEST)), BLANK)
    rows = np.column_stack([operation, key, digits])
    _, first = np.unique(rows, axis=0, return_index=True)
    return Problems(operation, key, digits, length)[np.sort(first)]


def load_problems(train: int, test: int) -> tuple[Problems, Problems, Problems]:
    """The fixed training, held-out and pre-training problems, no two of them equal; always the same ones.

    Args:
        train: How many training problems.
        test: How many held-out problems.

    Raises:
        UsageError: More problems are asked for than there are.
    """
    pool = _pool()
    limit = len(pool) - _PRETRAINING
    if train + test > limit:
        raise UsageError(f"data.train_max_samples, data.val_max_samples: {train + test} problems of {limit}; use fewer")
    pretraining, rest = pool[:_PRETRAINING], pool[_PRETRAINING:]
    return rest[test : test + train], rest[:test], pretraining


def score(problems: Problems, responses: Ints, mask: Bools) -> npt.NDArray[np.float64]:
    """``(n,)``, 1 where a response is exactly the right one and 0 elsewhere.

    Args:
        problems: The ``n`` problems.
        responses: ``(n, T)`` tokens.
        mask: ``(n, T)``, true at the tokens of a response, its `EOS` included.
    """
    wanted = problems.answers()
    width = max(responses.shape[1], wanted.shape[1])
    given = np.full((len(problems), width), EOS)
    given[:, : responses.shape[1]] = np.where(mask, responses, EOS)
    target = np.full((len(problems), width), EOS)
    target[:, : wanted.shape[1]] = wanted
    ended = mask.sum(axis=1) == problems.length + 1
    return np.asarray(ended & (given == target).all(axis=1), dtype=np.float64)


def reading_order(size: int, batch: int, seed: int | None, shuffle: bool) -> Iterator[tuple[int, Ints]]:
    """Epoch and ``(batch,)`` problem indices of every batch, without end, as verl 0.7.1 reads its data.

    One generator, seeded with ``seed``, shuffles anew at every epoch; an incomplete last batch is dropped. Without a
    seed the generator keeps torch's fixed default seed, so every such run reads one and the same order.

    Args:
        size: Number of problems.
        batch: Problems in a batch.
        seed: ``data.seed``.
        shuffle: ``data.shuffle``; without it the order is the file's and the seed acts on nothing.
    """
    rng = np.random.default_rng(_UNSEEDED if seed is None else seed)
    epoch = 0
    while True:
        order = rng.permutation(size) if shuffle else np.arange(size)
        for start in range(0, size - batch + 1, batch):
            yield epoch, order[start : start + batch]
        epoch += 1

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pth_tracker.demo.replay import delayed, delayed_while_filling


class Clock:
    """Batches named after their place in the stream, and the update at which each was sampled."""

    def __init__(self) -> None:
        self.update = 0
        self.born: dict[int, int] = {}

    def stream(self) -> Iterator[Any]:
        place = 0
        while True:
            self.born[place] = self.update
            yield place
            place += 1


def served(
    queue: Callable[[Iterator[Any], int], Iterator[Any]], delay: int, updates: int
) -> tuple[list[int], list[int]]:
    """The batch of each update and its age."""
    clock = Clock()
    batches = queue(clock.stream(), delay)
    order, ages = [], []
    for clock.update in range(updates):
        order.append(next(batches))
        ages.append(clock.update - clock.born[order[-1]])
    return order, ages


@pytest.mark.parametrize("queue", [delayed, delayed_while_filling])
@pytest.mark.parametrize("delay", [0, 1, 16])
def test_both_queues_give_every_update_the_designed_age(queue: Any, delay: int) -> None:
    assert served(queue, delay, 40)[1] == [min(update, delay) for update in range(40)]


@pytest.mark.parametrize("delay", [0, 1, 16])
def test_the_mended_queue_serves_every_batch_once(delay: int) -> None:
    assert served(delayed, delay, 40)[0] == list(range(40))


def test_the_stuck_queue_serves_its_first_batch_until_it_has_filled() -> None:
    order, _ = served(delayed_while_filling, 32, 100)
    assert order == [0] * 33 + list(range(1, 68))
    assert len(set(order)) == 68  # as many as in the report that described it
    assert served(delayed_while_filling, 0, 5)[0] == list(range(5))

"""The replay queue of the demo, which makes every batch a designed number of updates old.

This is where the demo's Stuck Batch is: see `delayed_while_filling`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from pth_tracker.demo.policy import Rollouts

BatchSource = Callable[[Iterator[Rollouts], int], Iterator[Rollouts]]
"""What the learner trains on, out of the stream of fresh rollouts, ``trainer.replay_delay`` updates late.

A source takes one fresh batch from the stream at each update.
"""


def delayed(stream: Iterator[Rollouts], delay: int) -> Iterator[Rollouts]:
    """Every batch once, in order, ``min(update, delay)`` updates after it was sampled.

    The queue is filled by the first policy before the first update; the update counts from 0.
    """
    waiting = deque(islice(stream, delay))
    for fresh in stream:
        waiting.append(fresh)
        yield waiting.popleft()


def delayed_while_filling(stream: Iterator[Rollouts], delay: int) -> Iterator[Rollouts]:
    """The queue as it was built first: training begins with the first batch in it.

    The bug, as it was found in a real trainer: until the queue has filled nothing is taken out of it, and each update
    is served what is in front, batch 0. Its age at an update is ``min(update, delay)``, exactly as designed.
    """
    waiting: deque[Rollouts] = deque()
    for fresh in stream:
        waiting.append(fresh)
        yield waiting.popleft() if len(waiting) > delay else waiting[0]

"""How long reading TensorBoard's event files takes, against TensorBoard's own EventAccumulator, on one core.

Files as ``torch.utils.tensorboard`` or TensorBoard's own writer leave them: eight runs of five scalars and thousands
of updates. The accumulator is told to keep every point (``size_guidance`` 0), as a reader has to; both read one file
after another in this process, on a warm page cache, and yield the same values (the tests hold that).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import cpu_seconds
from table import Row

RUNS, UPDATES = 8, 5_000
QUICK_RUNS, QUICK_UPDATES = 2, 100
TAGS = ("train/loss", "train/reward", "train/approx_kl", "train/clip_fraction", "eval/score")


def write_run(folder: Path, updates: int) -> str:
    """A folder with one event file of five scalars at each update, written by TensorBoard's writer."""
    from tensorboard.summary import Writer  # type: ignore[import-not-found,unused-ignore]

    writer = Writer(str(folder))
    for step in range(updates):
        for number, tag in enumerate(TAGS):
            writer.add_scalar(tag, (step + number) / 7, step)
    writer.close()
    return str(folder)


def read_ours(folder: str) -> int:
    """The points of one folder, as the files adapter reads them."""
    from pth_tracker_files import tensorboard
    from pth_tracker_files.sources import LoadedRun

    (loaded,) = tensorboard.load([Path(folder)])
    if not isinstance(loaded, LoadedRun):
        raise RuntimeError(f"{folder} was not read: {loaded.message}")
    return sum(len(loaded.history.series(key)[0]) for key in loaded.history.values)


def read_theirs(folder: str) -> int:
    """The points of one folder, as TensorBoard's accumulator keeps them."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-not-found,unused-ignore]
        EventAccumulator,
    )

    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = sum(len(accumulator.Scalars(tag)) for tag in tags["scalars"])
    return scalars + sum(len(accumulator.Tensors(tag)) for tag in tags["tensors"])


def rows(quick: bool) -> Iterator[Row]:
    """One row, in processor seconds."""
    runs, updates = (QUICK_RUNS, QUICK_UPDATES) if quick else (RUNS, UPDATES)
    with tempfile.TemporaryDirectory() as temporary:
        folders = [write_run(Path(temporary) / f"run{number}", updates) for number in range(runs)]
        ours, found = cpu_seconds(read_ours, folders)
        theirs, reference = cpu_seconds(read_theirs, folders)
    points = sum(reference)
    if found != reference:
        raise RuntimeError(f"{sum(found)} points were read, and {points} by TensorBoard's accumulator")
    yield Row("TensorBoard histories", f"{runs} files, {points:,} points", ours, "CPU s", "EventAccumulator", theirs)

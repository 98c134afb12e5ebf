"""How long checking verl's console logs takes: 200 MB in 40 files, as whole commands, against ``pth verl``.

Two sets. *rollouts*: runs of 400 updates, between whose step lines stand sampled responses, progress bars and
warnings, as they do in logs of this size. *metrics*: step lines alone, which makes runs of thousands of updates.

Whole commands are timed by the clock, which tells nothing while other work shares the cores, and by the processor
seconds of all their processes. The reading alone is timed on one core (one process that reads each file once,
configuration and all, against what ``pth`` calls for one log), beside the floor of ``grep -c step:`` on the same files.
All are timed in one run, one after another, on a warm page cache. The whole commands differ in what they do: ``pth``
judges check 1 and 2, ours 1 to 4.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from measuring import ROUNDS, cpu_seconds, measured
from table import Row

import verl_logs

FILES, BYTES = 40, 200 << 20
QUICK_FILES, QUICK_BYTES = 4, 4 << 20
WHOLE, PER_CORE, MEMORY_MB = 4.0, 3.5, 300
UPDATES = 400
KEYS = tuple(verl_logs.metrics("0.7.1", 1))
_WORDS = "so the total is 48 / 2 = 24 clips and 48 + 24 = 72 therefore we have <<48+24=72>> #### answer".split()

_draw = np.random.default_rng(0)
RESPONSES = [" ".join(_draw.choice(_WORDS, length % 25).tolist()) for length in range(500)]
"""Lines of sampled responses, of 0 to 24 words."""


def write_log(path: Path, size: int, arm: str, seed: int, rollouts: bool) -> None:
    """A log of about ``size`` bytes of verl 0.7.1; every metric has its own value at every update."""
    draw = np.random.default_rng([seed, len(arm)])
    rollout_is = "token" if arm == "tis" else None
    changes: dict[str, Any] = {
        "data__seed": seed,
        "actor_rollout_ref__rollout__calculate_log_probs": True,
        "trainer__experiment_name": path.stem,
        "algorithm__rollout_correction": {"rollout_is": rollout_is, "rollout_is_threshold": 2.0},
    }
    log = verl_logs.make_log("0.7.1", 0, chatter=False, **changes)
    head = verl_logs.prefix("TaskRunner", 4711, "new")
    with path.open("w", encoding="utf-8") as file:
        written = file.write(log.text())
        step = 0
        while written < size:
            step += 1
            values = draw.random(len(KEYS)).tolist()
            metrics = " - ".join(f"{key}:{value!r}" for key, value in zip(KEYS, values))
            lines = [f"{head}step:{step} - {metrics}\n"]
            if rollouts:
                lines += other_lines(head, draw, step, size // UPDATES - len(lines[0]))
            written += file.write("".join(lines))


def other_lines(head: str, draw: np.random.Generator, step: int, size: int) -> list[str]:
    """About ``size`` characters of what stands between two step lines."""
    lines = [
        f"{head}\n",
        f"Training Progress:  16%|█▌        | {step}/{UPDATES} [04:25<21:45,  3.58s/it]\n",
        "(WorkerDict pid=9001) INFO 01-10 21:41:02 executor.py:205] 3 blocks are in use\n",
        "\x1b[36m(WorkerDict pid=9002)\x1b[0m   warnings.warn(\n",
    ]
    left = size - sum(map(len, lines))
    while left > 0:
        lines.append(f"{head}{RESPONSES[int(draw.integers(len(RESPONSES)))]}\n")
        left -= len(lines[-1])
    return lines


def write_set(folder: Path, files: int, size: int, rollouts: bool) -> list[str]:
    """The paths of a set of logs of two arms, the same seeds in each."""
    folder.mkdir()
    paths = []
    for index in range(files):
        arm = ("grpo", "tis")[index % 2]
        path = folder / f"{arm}-{index // 2}.txt"
        write_log(path, size // files, arm, index // 2, rollouts)
        paths.append(str(path))
    return paths


def read_ours(path: str) -> None:
    """One log, as the files adapter reads it."""
    from pth_tracker_files import verl_log

    (loaded,) = verl_log.load([Path(path)])
    if not hasattr(loaded, "history"):
        raise RuntimeError(f"{path} was not read")


def read_theirs(path: str) -> None:
    """One log, as ``pth`` reads it: configuration and metrics."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pth import verl as reference

    if not (reference.read_config(path) and reference.read_metrics(path)):
        raise RuntimeError(f"{path} was not read by pth")


def measure(name: str, paths: list[str], folder: Path) -> Iterator[Row]:
    """Rows for the whole commands, for reading alone, for the floor, and for the memory."""
    arms = [f"--arm={arm}={folder}/{arm}-*.txt" for arm in ("grpo", "tis")]
    options = [*arms, "--vary=algorithm.rollout_correction.rollout_is", "-q"]
    command = [sys.executable, "-m", "pth_tracker", "verl", *options]
    ours = [measured(command) for _ in range(ROUNDS)]
    theirs = [measured([sys.executable, "-m", "pth", "verl", *options]) for _ in range(ROUNDS)]
    floor = [measured(["grep", "-c", "step:", *paths]) for _ in range(ROUNDS)]
    wall, reference_wall, floor_wall = (min(one.seconds for one in rounds) for rounds in (ours, theirs, floor))
    cpu, reference_cpu = (min(one.cpu for one in rounds) for rounds in (ours, theirs))
    (reading, _), (reference, _) = cpu_seconds(read_ours, paths), cpu_seconds(read_theirs, paths)
    size = f"{len(paths)} logs, {sum(Path(path).stat().st_size for path in paths) / 2**20:.0f} MB"
    yield Row(f"verl logs of {name}: command", size, wall, "s", "pth verl", reference_wall, WHOLE)
    yield Row(f"verl logs of {name}: command, all cores", size, cpu, "CPU s", "pth verl", reference_cpu)
    yield Row(f"verl logs of {name}: reading", size, reading, "CPU s", "pth verl", reference, PER_CORE)
    yield Row(f"verl logs of {name}: command", size, wall, "s", "grep -c step:", floor_wall)
    yield Row(f"verl logs of {name}: peak memory", size, measured(command, memory=True).peak, "MB", most=MEMORY_MB)


def rows(quick: bool) -> Iterator[Row]:
    """The rows of both sets; ``quick`` takes small ones."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    files, size = (QUICK_FILES, QUICK_BYTES) if quick else (FILES, BYTES)
    for name in ("rollouts", "metrics"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / name
            yield from measure(name, write_set(folder, files, size, name == "rollouts"), folder)

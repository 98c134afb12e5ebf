"""The same logs read by us and by probe-the-harness: equal values where both read, and each difference has a reason."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

import verl_logs
from pth_tracker_files import verl_log
from pth_tracker_files.sources import LoadedRun

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pth import verl as reference


def ours(path: Path) -> tuple[dict[int, dict[str, float]], dict[str, object]]:
    (loaded,) = verl_log.load([path])
    assert isinstance(loaded, LoadedRun)
    rows: dict[int, dict[str, float]] = {int(step): {} for step in loaded.history.step}
    for key in loaded.history.values:
        for step, value in zip(*loaded.history.series(key), strict=True):
            rows[int(step)][key] = float(value)
    return rows, dict(loaded.run.config)


def same(left: dict[int, dict[str, float]], right: dict[int, dict[str, float]]) -> bool:
    if left.keys() != right.keys():
        return False
    for step, row in left.items():
        other = right[step]
        if row.keys() != other.keys():
            return False
        if any(not (row[k] == other[k] or (math.isnan(row[k]) and math.isnan(other[k]))) for k in row):
            return False
    return True


@pytest.mark.parametrize("style", ["new", "old", "plain", "none"])
@pytest.mark.parametrize("name", [name for name, release in verl_logs.RELEASES.items() if not release.numpy2])
def test_generated_logs_are_read_alike(tmp_path: Path, name: str, style: str) -> None:
    log = verl_logs.make_log(name, 25, style=style, chatter=style != "none")
    path = log.write(tmp_path / "log.txt")
    rows, config = ours(path)
    assert same(rows, reference.read_metrics(str(path)))
    assert config == reference.read_config(str(path)) == log.config


@pytest.mark.parametrize(
    "name", ["grpo_94_steps_taskrunner", "ppo_61_steps_main_task", "config_only_crashed", "crash_before_step_1"]
)
def test_real_logs_are_read_alike(shared_data: Path, name: str) -> None:
    path = shared_data / "verl" / f"{name}.log"
    rows, config = ours(path)
    assert same(rows, reference.read_metrics(str(path)))
    assert config == reference.read_config(str(path))


DIFFERENCES = {
    # What NumPy 2 prints is a number, and from 0.9 on the ordinary form.
    "numpy scalars": ("step:1 - actor/x:np.float64(0.5) - actor/y:2.0\n", {1: {"actor/x": 0.5, "actor/y": 2.0}}),
    # A boolean metric is 1 or 0.
    "booleans": ("step:1 - actor/x:True - actor/y:2.0\n", {1: {"actor/x": 1.0, "actor/y": 2.0}}),
    # Model outputs print anything: a step line begins where text begins and holds a metric of verl's.
    "text of a model": ("so step:7 - actor/x:9.0\nstep:8 - foo:1.0\nstep:1 - actor/y:2.0\n", {1: {"actor/y": 2.0}}),
    # What is glued to the last value is no part of it.
    "glued lines": ("step:1 - actor/y:2.0(TaskRunner pid=7) Saved\n", {1: {"actor/y": 2.0}}),
    # A restart is another run: its values are not mixed with those of the first attempt.
    "restarts": (
        "(T pid=1) step:1 - actor/y:2.0\n(T pid=1) step:2 - actor/y:3.0\n(T pid=2) step:1 - actor/y:4.0\n",
        {1: {"actor/y": 4.0}},
    ),
    # A number that the end of the file cuts is no number.
    "a cut last line": (
        "step:1 - actor/x:1.0 - actor/y:2.25 - actor/z:1.0\nstep:2 - actor/x:0.5 - actor/y:2.",
        {1: {"actor/x": 1.0, "actor/y": 2.25, "actor/z": 1.0}, 2: {"actor/x": 0.5}},
    ),
}


@pytest.mark.parametrize("reason", DIFFERENCES)
def test_where_the_two_differ_there_is_a_reason(tmp_path: Path, reason: str) -> None:
    text, expected = DIFFERENCES[reason]
    path = tmp_path / "log.txt"
    path.write_text(text)
    rows, _ = ours(path)
    assert rows == expected
    assert reference.read_metrics(str(path)) != expected


def test_a_configuration_between_foreign_lines_is_read_by_us(tmp_path: Path) -> None:
    config = verl_logs.config("0.6.1")
    lines = [f"(TaskRunner pid=7) {line}" for line in verl_logs.config_lines(config)]
    lines[3:3] = ["(TaskRunner pid=7) [not a part] of it"]
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\nstep:1 - actor/lr:0.5\n")
    assert ours(path)[1] == config
    assert reference.read_config(str(path)) is None

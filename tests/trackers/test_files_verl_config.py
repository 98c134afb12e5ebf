"""The configuration that verl prints, whole, disturbed and cut."""

from __future__ import annotations

import math
import pprint
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_logs
from pth_tracker_files.verl_config import MAX_BYTES, read_config
from pth_tracker_files.verl_version import prints_rounded

HEAD = "\x1b[36m(TaskRunner pid=7)\x1b[0m "


def read(lines: list[str]) -> dict[str, object] | None:
    data = ("\n".join(lines) + "\n").encode()
    return read_config(data, data.index(b"{'"))


def lines_of(config: dict[str, Any], head: str = HEAD) -> list[str]:
    return [head + line for line in pprint.pformat(config).split("\n")]


@pytest.mark.parametrize("release", verl_logs.RELEASES)
@pytest.mark.parametrize(
    "head", ["", HEAD, "(main_task pid=7, ip=10.0.0.1) ", "\x1b[2m\x1b[36m(main_task pid=7)\x1b[0m "]
)
def test_an_undisturbed_configuration_is_read(release: str, head: str) -> None:
    config = verl_logs.config(release)
    assert read(lines_of(config, head)) == config


STRANGERS = [
    "\x1b[36m(WorkerDict pid=8)\x1b[0m   'rope_theta': 1000000.0,",
    "(WorkerDict pid=8) {'a': 1}",
    "(TaskRunner pid=8) 'of another process': 1,",
    "\x1b[33m(raylet)\x1b[0m [2025-01-10 21:40:29] 95% full",
    f"{HEAD}/usr/lib/python3/dist-packages/x.py:1: UserWarning: 'no' {{bracket}}",
    f"{HEAD}  warnings.warn(",
    f"{HEAD}",
    "",
    "Training Progress:   0%|          | 0/1740 [00:00<?, ?it/s]",
    "2025-01-10 21:40:29,298\tINFO worker.py:1752 -- Started a local Ray instance.",
]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_strange_line_after_any_line_changes_nothing(stranger: str) -> None:
    config = verl_logs.config("0.6.1")
    lines = lines_of(config)
    for place in range(1, len(lines)):
        assert read([*lines[:place], stranger, *lines[place:]]) == config, place


def test_a_strange_line_that_looks_like_a_value_is_taken_back() -> None:
    lines = [f"{HEAD}{{'algorithm': {{'gamma': 1.0,", f"{HEAD}'stranger'", f"{HEAD}               'lam': 0.95}}}}"]
    assert read(lines) == {"algorithm": {"gamma": 1.0, "lam": 0.95}}


def test_pieces_on_lines_of_their_own_are_joined() -> None:
    config = verl_logs.config("0.3")
    draw = random.Random(3)
    lines = []
    for line in pprint.pformat(config).split("\n"):
        cut = line.find(": ")
        if cut > 0 and line.count("'") == 2 and draw.random() < 0.5:
            lines += [HEAD + line[: cut + 2], draw.choice([HEAD, ""]) + line[cut + 2 :]]
        else:
            lines.append(HEAD + line)
    assert read(lines) == config


def test_a_line_that_another_is_glued_to_is_taken_apart() -> None:
    config = verl_logs.config("0.3")
    lines = lines_of(config)
    for place in range(len(lines) - 1):
        glued = [*lines]
        glued[place] += "(main_task pid=9) /usr/lib/python3 'a': 1,"
        assert read(glued) == config
    place = next(i for i, line in enumerate(lines) if line.endswith("True,"))
    lines[place] += "WARNING: something else"
    assert read(lines) == config


def test_repeated_marks_are_no_part_of_it() -> None:
    lines = lines_of(verl_logs.config("0.3"))
    lines[4] += " [repeated 7x across cluster]"
    assert read(lines) == verl_logs.config("0.3")


def test_numbers_that_literals_lack_are_read() -> None:
    lines = [f"{HEAD}{{'algorithm': {{'a': inf, 'b': -inf, 'c': nan, 'd': [nan, 1e-06], 'info': 'inf nan'}}}}"]
    config = read(lines)
    assert config is not None
    inner = config["algorithm"]
    assert isinstance(inner, dict)
    assert (inner["a"], inner["b"], inner["info"]) == (math.inf, -math.inf, "inf nan")
    assert math.isnan(inner["c"]) and math.isnan(inner["d"][0]) and inner["d"][1] == 1e-06


@pytest.mark.parametrize(
    "value",
    [
        "None of it", "True: False", "a, None", "it's", 'a "quoted" word', "back\\slash", "new\nline", "{'a': 1}", "}",
        "x" * 300, "word " * 60, "(TaskRunner pid=7) ", "???", "nan", "ünï", [], {}, [None, True], {"a": [{"b": None}]},
        -1, 1e-06, 10**18,
    ],
)  # fmt: skip
@pytest.mark.parametrize("stranger", [[], ["(WorkerDict pid=8) noise"]])
def test_every_value_survives(value: object, stranger: list[str]) -> None:
    config: dict[str, Any] = {"actor_rollout_ref": {"model": {"path": value}}, "data": {"seed": 1}}
    lines = lines_of(config)
    read_back = read([lines[0], *stranger, *lines[1:]])
    if value == "(TaskRunner pid=7) ":
        return  # Ray's own prefix within a value cannot be told from a glued line.
    assert read_back == config


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=100)
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(NESTED, st.integers(0, 10_000))
def test_any_configuration_is_read_or_not_at_all(value: object, seed: int) -> None:
    config: dict[str, Any] = {"actor_rollout_ref": {"x": value}, "data": {"seed": seed}}
    draw = random.Random(seed)
    lines = []
    for line in pprint.pformat(config).split("\n"):
        lines.append(HEAD + line)
        if draw.random() < 0.3:
            lines.append(draw.choice(STRANGERS))
    read_back = read(lines)
    assert read_back == config or " pid=" in repr(value) or "raylet" in repr(value) or "repeated" in repr(value)


def test_a_configuration_that_is_cut_short_is_none() -> None:
    lines = lines_of(verl_logs.config("0.3"))
    for kept in range(1, len(lines)):
        assert read(lines[:kept]) is None


def test_endless_and_deep_literals_are_refused() -> None:
    assert read(["{'data': " + "[" * 100_000]) is None
    assert read(["{'data': {'a': [" + "1, " * MAX_BYTES]) is None
    assert read(["{'data': {'a': [", *(["1, " * 1000] * 700)]) is None
    assert read(["{'data': {'a': [" + "1, " * 600_000 + "]}}"]) is None
    assert read(["{'data': " + "{'a': " * 5000 + "1" + "}" * 5001]) is None


@pytest.mark.parametrize("release", verl_logs.RELEASES)
def test_the_release_tells_whether_values_are_rounded(release: str) -> None:
    expected = verl_logs.version_key(release) <= (0, 4, 1)
    assert prints_rounded(verl_logs.config(release)) is expected


def test_a_part_of_a_configuration_tells_nothing() -> None:
    assert prints_rounded({"actor_rollout_ref": {"rollout": {}}}) is None

"""Step lines read column by column: always what reading each line by itself yields."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from pth_tracker.runs import History
from pth_tracker_files import verl_skeleton, verl_steps
from pth_tracker_files.verl_skeleton import Skeleton
from pth_tracker_files.verl_steps import StepLines

PREFIX = "\x1b[36m(TaskRunner pid=1)\x1b[0m "
KEYS = ("actor/lr", "val/x", "critic/score/mean", "val-core/openai/gsm8k/acc/mean@16", "training/global_step")
Lines = list[str]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Has every block read column by column that can be; tells of each whether it could."""
    could: list[bool] = []
    table = Skeleton.table

    def noted(self: Skeleton, block: bytes) -> object:
        found = table(self, block)
        could.append(found is not None)
        return found

    monkeypatch.setattr(verl_skeleton, "MANY_LINES", 1)
    monkeypatch.setattr(verl_skeleton, "ENOUGH_VALUES", 0)
    monkeypatch.setattr(Skeleton, "table", noted)
    yield could


def told(steps: StepLines) -> tuple[object, ...]:
    """All that is known of step lines but their values."""
    history = steps.history(rounded=False)
    segments = [(one.tag, one.offset, one.number, one.first, one.last) for one in steps.segments]
    nonfinite = {key: at.tolist() for key, at in history.nonfinite_at.items()}
    return history.step.tolist(), history.conflicts, nonfinite, segments, len(steps), steps.foreign, steps.cut


def scanned(data: bytes, cuts: list[int]) -> StepLines:
    """Step lines of data that comes in blocks, cut after the line at each of ``cuts``."""
    steps, begin = StepLines(), 0
    for cut in cuts:
        end = data.find(b"\n", max(cut, begin)) + 1
        if begin < end < len(data):
            steps.scan(data[begin:end], begin, False)
            begin = end
    steps.scan(data[begin:], begin, True)
    return steps


def one_by_one(data: bytes, cuts: list[int]) -> StepLines:
    """The same, each line taken apart with care."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verl_steps, "parts_of", lambda line: None)
        return scanned(data, cuts)


def assert_same(data: bytes, cuts: list[int]) -> History:
    fast, slow = scanned(data, cuts), one_by_one(data, cuts)
    assert told(fast) == told(slow), data
    history, careful = fast.history(rounded=False), slow.history(rounded=False)
    assert history.values.keys() == careful.values.keys(), data
    for key, column in careful.values.items():
        assert np.array_equal(history.values[key], column, equal_nan=True), (key, data)
    return history


def plain(count: int, prefix: str = PREFIX, first: int = 0) -> Lines:
    draw = random.Random(first)
    lines = []
    for step in range(first, first + count):
        pairs = [f"{key}:{draw.choice([draw.random(), draw.gauss(0, 1e-6), draw.randrange(9)])!r}" for key in KEYS]
        lines.append(f"{prefix}step:{step} - " + " - ".join(pairs))
    return lines


def data_of(lines: Lines) -> tuple[bytes, list[int]]:
    """Lines as they stand in a file, and cuts: the layout becomes known with the first four of them."""
    data = ("\n".join(lines) + "\n").encode()
    return data, [len("\n".join(lines[:4]).encode())]


@pytest.mark.parametrize("prefix", [PREFIX, "", "(pid=1) ", "2025-06-04 10:00:00,123 INFO ", "(T pid=1, ip=10.0.0.1) "])
def test_plain_lines_are_read_column_by_column(columns: list[bool], prefix: str) -> None:
    history = assert_same(*data_of(plain(40, prefix)))
    assert any(columns) and all(columns)
    assert len(history) == 40 and sorted(history.values) == sorted(KEYS)


def test_what_is_read_is_what_was_printed(columns: list[bool]) -> None:
    printed = [0.1, 5e-324, -1.7976931348623157e308, 0.012345678901234567, 1e16, -0.0, 123456789012345678, 2**63]
    lines = [f"{PREFIX}step:{n} - actor/lr:{value!r} - val/x:{n}" for n, value in enumerate(printed * 3)]
    history = assert_same(*data_of(lines))
    assert columns and all(columns)
    assert history.values["actor/lr"].tolist() == [float(value) for value in printed * 3]
    assert math.copysign(1, history.values["actor/lr"][13]) == -1
    assert history.values["val/x"].tolist() == list(range(24))


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_read_column_by_column(columns: list[bool], text: str) -> None:
    lines = plain(20)
    lines[9] = f"{PREFIX}step:9 - " + " - ".join(f"{key}:{text if key == 'val/x' else 1.5}" for key in KEYS)
    history = assert_same(*data_of(lines))
    assert columns and all(columns)
    assert history.nonfinite_at["val/x"].tolist() == [9]


def test_wrapped_numbers_are_read_column_by_column(columns: list[bool]) -> None:
    lines = [
        f"{PREFIX}step:{n} - actor/lr:np.float64({n / 7!r}) - val/x:np.float32(nan) - critic/y:{n}" for n in range(20)
    ]
    history = assert_same(*data_of(lines))
    assert columns and all(columns)
    assert history.values["actor/lr"].tolist() == [n / 7 for n in range(20)]


VALUES = (
    "+5 5. .5 -.5 1e400 1E5 1_0 007 True False None infinity INF NaN -nan nan(1) nan() 0x1 1e - -- np.float64(0.5) "
    "np.float32(-inf) np.float64(0.5 0.5) np.int32(4) np.float64(np.float64(1)) np.float64() ٣ 1,5 [1] 1:2 a:2"
).split()


@pytest.mark.parametrize(
    "value", [*VALUES, "", " 0.5", "0.5 ", "0.5\t", "0.5\r", "0.5\x1b[0m", "0.5(TaskRunner pid=2) x"]
)
@pytest.mark.parametrize("column", [0, 2, 4])
def test_an_odd_spelling_changes_nothing_else(columns: list[bool], value: str, column: int) -> None:
    lines = plain(20)
    pairs = [f"{key}:{value if index == column else 0.25}" for index, key in enumerate(KEYS)]
    for place in (4, 11, 19):
        odd = [*lines]
        odd[place] = f"{PREFIX}step:{place} - " + " - ".join(pairs)
        assert_same(*data_of(odd))
    assert columns


@pytest.mark.parametrize(
    "step", ["1e1", "1e2", "+9", "009", "9.0", "-9", "", "9 ", "1234567890123456", "3", "nan", "9_0"]
)
def test_an_odd_step_is_none(columns: list[bool], step: str) -> None:
    lines = plain(20)
    for place in (4, 9, 19):
        odd = [*lines]
        odd[place] = odd[place].replace(f"step:{place} ", f"step:{step} ")
        assert_same(*data_of(odd))
    assert columns


BETWEEN = (
    "",
    "(WorkerDict pid=9) saved",
    f"{PREFIX}a response: step:3 - 5:1",
    f"{PREFIX}step:7 - my/own:0.5",
    f"{PREFIX}step:7 - actor/lr:0.5",
    plain(1, "(TaskRunner pid=2) ", 7)[0],
    plain(1, first=2)[0],
    plain(1, first=9)[0].replace("val/x", "val/y"),
    plain(1, first=9)[0].replace("mean@16", "mean@61"),
    plain(1, first=9)[0].replace(" - ", " -  ", 2),
    plain(1, first=9)[0].replace("training/global_step", "training/global step"),
    plain(1, first=9)[0] + " - actor/z:1.0",
    plain(1, first=9)[0] + plain(1, first=9)[0],
    plain(1, first=9)[0].rpartition(" - ")[0],
    plain(1, first=9)[0].replace(" - val/x:", " - actor/lr:"),
    plain(1, first=9)[0][:-30],
    "\x1b[0m" + plain(1, first=9)[0],
)


@pytest.mark.parametrize("line", BETWEEN)
def test_other_lines_between_change_nothing(columns: list[bool], line: str) -> None:
    for place in (4, 5, 10, 19, 20):
        lines = plain(20)
        lines.insert(place, line)
        assert_same(*data_of(lines))
    assert columns


def test_keys_that_change_for_good_are_followed(columns: list[bool]) -> None:
    later = [line.replace("val/x", "val/y") for line in plain(20, first=20)]
    history = assert_same(*data_of([*plain(20), *later]))
    assert np.isnan(history.values["val/y"][:20]).all() and np.isfinite(history.values["val/y"][20:]).all()


def test_a_last_line_cut_anywhere_is_read_as_by_itself(columns: list[bool]) -> None:
    data, cuts = data_of(plain(12))
    for end in range(data.rindex(b"\n", 0, -1), len(data)):
        assert_same(data[:end], cuts)
    assert any(columns)


def test_bytes_changed_anywhere_are_read_as_by_themselves(columns: list[bool]) -> None:
    draw = random.Random(7)
    for _ in range(400):
        data, cuts = data_of(plain(12))
        changed = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 5])):
            place = draw.randrange(cuts[0], len(changed))
            some = draw.choice(
                [b"", b":", b" ", b"-", b"\n", b"\r", b"e", b"5", b".", b" - ", b"np.float64(", b")", b"x"]
            )
            changed[place : place + draw.choice([0, 1, 1, 3])] = some
        assert_same(bytes(changed), cuts)
    assert True in columns and False in columns


def test_few_lines_are_not_worth_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_skeleton, "_read", 0)
    monkeypatch.setattr(verl_skeleton, "sys", type("sys", (), {"modules": {}}))
    worth = verl_skeleton.pays
    half = verl_skeleton.ENOUGH_VALUES // 2
    assert [worth(half - 1), worth(half), worth(1), worth(1)] == [False, False, True, True]

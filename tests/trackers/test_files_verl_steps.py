"""verl's step lines: what is one, what is none, and which numbers it holds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import verl_logs
from pth_tracker.runs import History
from pth_tracker_files import verl_steps
from pth_tracker_files.verl_steps import StepLines


def read(text: str | bytes, at_end: bool = True) -> History:
    data = text.encode() if isinstance(text, str) else text
    steps = StepLines()
    steps.scan(data, 0, at_end)
    return steps.history(rounded=False)


def points(history: History) -> dict[str, dict[int, float]]:
    return {key: dict(zip(*(column.tolist() for column in history.series(key)), strict=True)) for key in history.values}


PREFIXES = [
    "",
    "(main_task pid=28294) ",
    "(TaskRunner pid=7) ",
    "(TaskRunner pid=154645, ip=172.26.135.50) ",
    "(TaskRunnerV1 pid=1) ",
    "(FullyAsyncTrainer pid=9) ",
    "(FullyAsyncTaskRunner pid=9) ",
    "(OneStepTaskRunner pid=3) ",
    "(pid=) ",
    "(pid=12) ",
    "\x1b[36m(TaskRunner pid=1)\x1b[0m ",
    "\x1b[2m\x1b[36m(main_task pid=1)\x1b[0m ",
    "\x1b[2;38;5;208m(TaskRunner pid=1)\x1b[0m ",
    "2025-06-04 10:00:00,123 INFO ",
    "2025-06-04T10:00:00.123456Z ",
    "Training Progress:  16%|#6   | 71/435 [04:25<21:45,  3.58s/it]",
    "\rTraining Progress:  16%|#6   | 71/435 [04:25<21:45,  3.58s/it]\r",
    "'return_raw_input_ids': False,(main_task pid=13624) ",
    "slurm-3: \x1b[36m(TaskRunner pid=1)\x1b[0m ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_step_line_is_found_behind_every_prefix(prefix: str) -> None:
    lines = [f"{prefix}step:{n} - actor/lr:1e-06 - critic/score/mean:{n}.5\n" for n in range(1, 6)]
    assert points(read("noise\n" + "noise\n".join(lines)))["critic/score/mean"] == {n: n + 0.5 for n in range(1, 6)}


@pytest.mark.parametrize(
    "line",
    [
        "The answer is step:3 - actor/lr:0.5",
        "(TaskRunner pid=7) so step:3 - actor/lr:0.5",
        "(TaskRunner pid=7) step:3 - we add 5:3 - and so on:4",
        "(TaskRunner pid=7) step:three - actor/lr:0.5",
        "(TaskRunner pid=7) step:3: actor/lr:0.5",
        "(TaskRunner pid=7) step:3 - my/own:0.5",
        "(TaskRunner pid=7) step:12345678901234567890 - actor/lr:0.5",
        "step:",
        "step:5",
        "step:5 - ",
        "step:5 - actor/lr:",
        "step:5 - actor/lr:much",
    ],
)
def test_what_only_looks_like_a_step_line_is_left_out(line: str) -> None:
    real = "(TaskRunner pid=7) step:1 - actor/lr:0.25\n"
    assert points(read(f"{line}\n{real}{line}\n")) == {"actor/lr": {1: 0.25}}


def test_lines_without_a_metric_of_verls_are_counted() -> None:
    steps = StepLines()
    steps.scan(b"step:3 - my/own:0.5\nstep:4 - my/own:0.25\nstep:4 - my/own:0.25 - actor/lr:1.0\n", 0, True)
    assert (len(steps), steps.foreign) == (1, 2)
    assert points(steps.history(rounded=False)) == {"my/own": {4: 0.25}, "actor/lr": {4: 1.0}}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("0.0", 0.0),
        ("-0.000", 0.0),
        ("5", 5.0),
        ("9.9e-07", 9.9e-07),
        ("1e+16", 1e16),
        ("0.012345678901234567", 0.012345678901234567),
        ("5e-324", 5e-324),
        ("np.float64(0.25)", 0.25),
        ("np.float32(0.25)", 0.25),
        ("np.int32(2)", 2.0),
        ("np.float64(-1e-06)", -1e-06),
        ("np.float64(nan)", math.nan),
        ("nan", math.nan),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("np.float64(-inf)", -math.inf),
        ("True", 1.0),
        ("False", 0.0),
    ],
)
@pytest.mark.parametrize("lines", [1, 5])
def test_a_value_is_read_in_every_spelling(printed: str, value: float, lines: int) -> None:
    text = "".join(f"step:{n} - critic/score/mean:0.5 - actor/x:{printed} - actor/k3_kl:{n}\n" for n in range(lines))
    history = read(text)
    assert np.array_equal(history.values["actor/x"], np.full(lines, value), equal_nan=True)
    assert history.values["actor/k3_kl"].tolist() == list(range(lines))
    assert ("actor/x" in history.nonfinite_at) == (not math.isfinite(value))


def test_a_spelling_that_changes_from_line_to_line_changes_no_value() -> None:
    spellings = ["0.5", "np.float64(0.5)", "nan", "5e-01", "np.float32(0.5)", "inf", "0.5"]
    text = "".join(f"step:{n} - actor/x:{text} - actor/y:{n}.25\n" for n, text in enumerate(spellings))
    history = read(text)
    assert history.values["actor/x"].tolist()[:2] == [0.5, 0.5]
    assert np.isnan(history.values["actor/x"][2]) and history.values["actor/x"][5] == math.inf
    assert history.values["actor/y"].tolist() == [n + 0.25 for n in range(7)]


def test_keys_that_differ_in_digits_alone_are_kept_apart() -> None:
    rows = [("mean@1", 0.1), ("mean@16", 0.2), ("mean@1", 0.3), ("mean@61", 0.4)]
    text = "".join(f"step:{n} - val-core/a/{key}:{value} - actor/lr:0.5\n" for n, (key, value) in enumerate(rows))
    assert points(read(text)) == {
        "val-core/a/mean@1": {0: 0.1, 2: 0.3},
        "val-core/a/mean@16": {1: 0.2},
        "val-core/a/mean@61": {3: 0.4},
        "actor/lr": dict.fromkeys(range(4), 0.5),
    }


@pytest.mark.parametrize(
    "key",
    [
        "val-core/openai/gsm8k/acc/mean@1",
        "val-aux/a set - with dashes/reward/best@4/mean".replace(" - ", "-"),
        "val-core/ns:gsm8k/acc/mean@1",
        "actor/lr(1e-4)",
        "val-core/1e-3/acc",
        "rollout_corr/rollout_is_p25",
        "critic/größe",
        "timing_s/e-e",
    ],
)
def test_unusual_keys_are_read_as_they_are(key: str) -> None:
    text = "".join(f"step:{n} - actor/loss:-0.5 - {key}:{n}.125 - actor/lr:1e-06\n" for n in range(6))
    assert points(read(text))[key] == {n: n + 0.125 for n in range(6)}


@pytest.mark.parametrize(
    "junk", ["(TaskRunner pid=7) Saved", " [repeated 2x across cluster]", "\x1b[0m", "\rTraining", " "]
)
def test_text_glued_to_the_end_of_a_line_is_no_part_of_its_value(junk: str) -> None:
    text = "".join(f"step:{n} - actor/lr:0.5 - perf/throughput:957.672{junk if n == 3 else ''}\n" for n in range(6))
    assert points(read(text))["perf/throughput"] == dict.fromkeys(range(6), 957.672)


@pytest.mark.parametrize("first", ["(TaskRunner pid=) Saved", "(TaskRunner pid=7) Saved", " [x]"])
def test_text_glued_to_every_line_lends_no_digits(first: str) -> None:
    glued = [first, "(TaskRunner pid=8) Saved", "(TaskRunner pid=9) Saved", " [5x]", " [6x]", first]
    text = "".join(f"step:{n} - actor/lr:0.5 - perf/throughput:2.0{glue}\n" for n, glue in enumerate(glued))
    assert points(read(text))["perf/throughput"] == dict.fromkeys(range(6), 2.0)


def test_several_lines_of_one_step_are_merged_and_the_later_wins() -> None:
    history = read("step:1 - actor/a:1.0 - actor/b:2.0\nstep:1 - actor/b:3.0\nstep:1 - timing_s/c:4.0\n")
    assert points(history) == {"actor/a": {1: 1.0}, "actor/b": {1: 3.0}, "timing_s/c": {1: 4.0}}
    assert history.conflicts == 1


def test_a_key_twice_on_a_line_counts_once() -> None:
    text = "".join(f"step:{n} - actor/a:1.0 - actor/b:5.0 - actor/a:2.0\n" for n in range(4))
    assert points(read(text))["actor/a"] == dict.fromkeys(range(4), 2.0)


def test_validation_lines_between_training_lines_keep_the_order_of_the_log() -> None:
    lines = []
    for n in range(40):
        lines.append(f"step:{n} - actor/a:{n}.0 - critic/b:0.5" + (f" - val-core/x/acc:{n}.5" if n % 5 == 0 else ""))
    lines += [f"step:{n} - actor/a:{n}.25 - critic/b:0.5" for n in range(20, 30)]
    history = read("\n".join(lines) + "\n")
    assert points(history)["actor/a"] == {n: n + (0.25 if 20 <= n < 30 else 0.0) for n in range(40)}
    assert points(history)["val-core/x/acc"] == {n: n + 0.5 for n in range(0, 40, 5)}
    assert history.conflicts == 10


def test_a_last_line_that_breaks_off_loses_the_value_that_may_be_cut() -> None:
    whole = "step:1 - actor/a:1.25 - actor/b:2.25 - actor/c:3.25\n"
    steps = StepLines()
    steps.scan(f"{whole}step:2 - actor/a:1.5 - actor/b:2.".encode(), 0, True)
    assert points(steps.history(rounded=False)) == {
        "actor/a": {1: 1.25, 2: 1.5},
        "actor/b": {1: 2.25},
        "actor/c": {1: 3.25},
    }
    assert steps.cut == "actor/b"


def test_a_last_line_without_a_line_feed_that_is_whole_is_read_whole() -> None:
    assert points(read("step:1 - actor/a:1.25\nstep:2 - actor/a:1.5"))["actor/a"] == {1: 1.25, 2: 1.5}
    assert points(read("step:2 - actor/a:1.5 - actor/b:2.5"))["actor/b"] == {2: 2.5}


def test_more_names_than_any_log_has_are_refused() -> None:
    text = "".join(f"step:{n} - " + " - ".join(f"actor/m{n}_{k}:1.0" for k in range(500)) + "\n" for n in range(41))
    with pytest.raises(ValueError, match="20000 metric names"):
        read(text)


@pytest.mark.parametrize("name", verl_logs.RELEASES)
def test_every_value_of_every_release_is_read_exactly(name: str) -> None:
    log = verl_logs.make_log(name, 50, with_config=False)
    assert points(read(log.text())) == log.points


def test_blocks_are_taken_apart_anywhere_between_lines() -> None:
    log = verl_logs.make_log("0.9.1", 12, with_config=False)
    data = log.text().encode()
    for cut in (i + 1 for i, byte in enumerate(data) if byte == 10):
        steps = StepLines()
        steps.scan(data[:cut], 0, False)
        steps.scan(data[cut:], cut, True)
        assert points(steps.history(rounded=False)) == log.points


def mixture(seed: int) -> bytes:
    """Step lines of several processes, shapes and spellings, some with text glued to them."""
    draw = random.Random(seed)
    keys = [f"actor/{letter}{draw.choice(['', '1', '16', 'e', '-e', '.5', '@1', 'x-1e'])}" for letter in "abcdefg"]

    def spelt() -> str:
        value = draw.choice(
            [draw.random(), draw.gauss(0, 1e-6), draw.randrange(10**6), 1e16 * draw.random(), 0.0, -0.0]
        )
        words = ["nan", "inf", "-inf", "True", "np.float64(nan)"]
        forms = [repr(value)] * 16 + [f"np.float64({value!r})"] * 2 + [f"{value:.3f}", draw.choice(words)]
        return draw.choice(forms)

    lines, step = [], 0
    for _ in range(draw.randint(1, 60)):
        step = max(0, step + draw.choice([1, 1, 1, 1, 0, -3]))
        chosen = keys if draw.random() < 0.8 else draw.sample(keys, draw.randint(1, 7))
        head = draw.choice(["(T pid=1) ", "(T pid=1) ", "(T pid=2) ", ""])
        tail = draw.choice(["", "", "", "", "(T pid=3) 1", "\x1b[0m", " "])
        lines.append(f"{head}step:{step} - " + " - ".join(f"{key}:{spelt()}" for key in chosen) + tail)
    return ("\n".join(lines) + "\n").encode()


def test_reading_many_lines_at_once_is_reading_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        data = mixture(seed)
        with monkeypatch.context() as patch:
            patch.setattr(verl_steps, "parts_of", lambda line: None)
            one_by_one = read(data)
        at_once = read(data)
        assert points(at_once).keys() == points(one_by_one).keys()
        assert at_once.step.tolist() == one_by_one.step.tolist()
        for key, column in one_by_one.values.items():
            assert np.array_equal(at_once.values[key], column, equal_nan=True), (seed, key)
        assert at_once.conflicts == one_by_one.conflicts
        assert {key: steps.tolist() for key, steps in at_once.nonfinite_at.items()} == {
            key: steps.tolist() for key, steps in one_by_one.nonfinite_at.items()
        }


@pytest.mark.parametrize("other", [b"\x1cactor/lr", b"actor/lr\x1f", b"\x0bactor/lr"])
def test_bytes_that_are_no_part_of_a_name_part_no_series(other: bytes) -> None:
    lines = [
        b"step:%d - actor/pg_loss:0.1 - %s:%d.5\n" % (step, other if step == 2 else b"actor/lr", step)
        for step in range(4)
    ]
    assert points(read(b"".join(lines)))["actor/lr"] == {step: step + 0.5 for step in range(4)}


def test_names_that_are_no_text_and_read_alike_lose_no_value() -> None:
    lines = [
        b"step:%d - actor/lr:1.0 - actor/%s:%d.5\n" % (step, [b"\xff", b"\xfe"][step % 2], step) for step in range(4)
    ]
    assert points(read(b"".join(lines)))["actor/\ufffd"] == {step: step + 0.5 for step in range(4)}

from __future__ import annotations

from pathlib import Path

import pytest

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

Capture = pytest.CaptureFixture[str]
# The reference results at interval 64: TIS .763 .785 .808, uncorrected GRPO .743 .778 .777, by data seed.
REFERENCE = """method,seed,value
tis,default,.763
tis,43,.785
tis,44,.808
grpo,default,.743
grpo,43,.778
grpo,44,.777
"""


def results(text: str = REFERENCE) -> str:
    Path("results.csv").write_text(text)
    return "results.csv"


def shown(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_the_reference_results_paired_by_seed(capsys: Capture) -> None:
    assert main(["paired", results(), "tis", "grpo", "--scale", "100"]) == ExitCode.OK
    text = shown(capsys)
    # 2.0, 0.7 and 3.1 points: mean 1.933, s 1.201, t(.975, 2) = 4.303, half width 2.985.
    assert "mean +1.93 over 3 seeds, 95% interval -1.05 to +4.92" in text
    assert "43: +0.7, 44: +3.1, default: +2. tis is ahead on 3, grpo on 0." in text


def test_no_common_seed_fails(capsys: Capture) -> None:
    file = results("method,seed,value\na,1,.5\nb,2,.6\n")
    assert main(["paired", file, "a", "b"]) == ExitCode.CHECK_FAILED
    assert "no seed in common" in shown(capsys)
    assert main(["paired", file, "a", "b", "--exit-zero"]) == ExitCode.OK


def test_seeds_of_one_arm_only_are_named(capsys: Capture) -> None:
    assert main(["paired", results(REFERENCE + "tis,45,.9\n"), "tis", "grpo", "-q"]) == ExitCode.OK
    text = shown(capsys)
    assert "Only tis: 45; only grpo: none" in text and "mean" not in text


def test_several_rows_of_one_seed_count_by_their_mean_and_are_named(capsys: Capture) -> None:
    file = results("method,seed,value\na,1,.5\na,1,.7\nb,1,.5\n")
    assert main(["paired", file, "a", "b"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "+0.1 over 1 seed" in captured.out and "a seed 1" in captured.err


def test_columns_of_other_names(capsys: Capture) -> None:
    file = results(REFERENCE.replace("method,seed,value", "algo, data_seed, acc"))
    names = ["--method", "algo", "--seed", "data_seed", "--value", "acc"]
    assert main(["paired", file, "tis", "grpo", *names]) == ExitCode.OK
    assert "+0.0193" in shown(capsys)


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (REFERENCE, ["tis", "tis"], "'tis' is compared with itself: name two methods"),
        (REFERENCE, ["tis", "ppo"], "has no results of 'ppo': its methods are tis, grpo"),
        (REFERENCE, ["tis", "grpo", "--scale", "nan"], "--scale is a factor"),
        (REFERENCE, ["tis", "grpo", "--scale", "0"], "--scale is a factor"),
        (REFERENCE, ["tis"], "Missing argument"),
        ("a,b\n", ["tis", "grpo"], "no column 'method': its columns are a, b"),
        ("", ["tis", "grpo"], "no column 'method': its columns are none"),
        ("method,seed,value\ntis,1,high\n", ["tis", "grpo"], "results.csv:2: 'high' is no number"),
        ("method,seed,value\ntis,1\n", ["tis", "grpo"], "results.csv:2: this row has 2 of 3 columns"),
        ("\udcff", ["tis", "grpo"], "is no CSV file in UTF-8"),
        (None, ["tis", "grpo"], "cannot be read: No such file"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    content: str | None, arguments: list[str], said: str, capsys: Capture
) -> None:
    if content is not None:
        Path("results.csv").write_text(content, encoding="utf-8", errors="surrogateescape")
    assert main(["paired", "results.csv", *arguments]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_scores_that_are_no_numbers_are_left_out_and_said(capsys: Capture) -> None:
    file = results("method,seed,value\na,1,nan\na,2,.7\nb,1,.5\nb,2,.6\n")
    assert main(["paired", file, "a", "b"]) == ExitCode.OK
    text = shown(capsys)
    assert "score of a is no finite number at seed 1" in text and "+0.1 over 1 seed" in text
    file = results("method,seed,value\na,1,1e308\na,2,1e308\nb,1,-1e308\nb,2,-1e308\n")
    assert main(["paired", file, "a", "b", "--scale", "1e9"]) == ExitCode.USAGE
    assert "too large" in capsys.readouterr().err

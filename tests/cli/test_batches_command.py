from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

Capture = pytest.CaptureFixture[str]
STUCK = ["a", "a", "a", "b", "c"]


def written(path: str, ids: list[str], column: str = "batch") -> str:
    file = Path(path)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps({"step": n, column: one}) + "\n\n" for n, one in enumerate(ids)))
    elif file.suffix == ".csv":
        file.write_text("\ufeff" + f"step, {column}\n" + "".join(f"{n},{one}\n" for n, one in enumerate(ids)))
    else:
        file.write_text("".join(f"  {one}\n\n" for one in ids))
    return path


@pytest.mark.parametrize("name", ["ids.txt", "ids.csv", "ids.jsonl", "ids"])
def test_a_stuck_batch_is_named_from_every_format(name: str, capsys: Capture) -> None:
    assert main(["batches", written(name, STUCK)]) == ExitCode.CHECK_FAILED
    shown = " ".join(capsys.readouterr().out.split())
    assert "Stuck Batch" in shown and "2 of 5 updates train on an earlier batch" in shown
    assert "Updates 0 to 2, 3 in a row" in shown


def test_distinct_batches_pass(capsys: Capture) -> None:
    assert main(["batches", written("ids.txt", ["a", "b", "c"])]) == ExitCode.OK
    assert "3 updates trained on 3 distinct batches" in capsys.readouterr().out


def test_repeats_by_design_are_no_failure(capsys: Capture) -> None:
    assert main(["batches", written("ids.txt", STUCK), "--allow-repeats"]) == ExitCode.OK
    assert "5 updates trained on 3 distinct batches" in capsys.readouterr().out
    assert main(["batches", written("ids.txt", STUCK), "--exit-zero"]) == ExitCode.OK


def test_quiet_leaves_information_out(capsys: Capture) -> None:
    assert main(["batches", written("ids.txt", ["a", "b"]), "-q"]) == ExitCode.OK
    assert "distinct" not in capsys.readouterr().out


def test_a_text_has_no_columns_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batches", written("ids.txt", STUCK), "--column", "batch"]) == ExitCode.USAGE
    assert "one identity a line and no columns: leave out --column batch" in capsys.readouterr().err


def test_the_column_is_named_by_an_option_or_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ids.csv", "ids.jsonl"):
        assert main(["batches", written(name, STUCK, "uid"), "--column", "uid"]) == ExitCode.CHECK_FAILED
    monkeypatch.setenv("PTH_TRACKER_COLUMN", "uid")
    assert main(["batches", "ids.csv"]) == ExitCode.CHECK_FAILED


def test_numbers_are_one_batch_however_they_are_spelt() -> None:
    Path("ids.jsonl").write_text('{"batch": 7}\n{"batch": 7.0}\n')
    assert main(["batches", "ids.jsonl"]) == ExitCode.CHECK_FAILED
    Path("ids.jsonl").write_text('{"batch": [1, 2]}\n{"batch": [2, 1]}\n')
    assert main(["batches", "ids.jsonl"]) == ExitCode.OK


def test_a_row_without_an_identity_is_no_repeat(capsys: Capture) -> None:
    Path("ids.csv").write_text("step,batch\n0,a\n1,\n2\n3,b\n")
    assert main(["batches", "ids.csv"]) == ExitCode.OK
    assert "2 of 4 updates is not known" in capsys.readouterr().out
    Path("ids.jsonl").write_text('{"batch": null}\n')
    assert main(["batches", "ids.jsonl"]) == ExitCode.NOTHING


@pytest.mark.parametrize("name", ["ids.txt", "ids.csv", "ids.jsonl"])
def test_an_empty_file_is_nothing_to_judge(name: str, capsys: Capture) -> None:
    Path(name).write_text("")
    assert main(["batches", name]) == ExitCode.NOTHING
    said = "holds no batch identity: one is needed for each update"
    assert capsys.readouterr().err == f"pth-tracker: error: {name} {said}\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ids.csv", b"step,id\n0,a\n", "no column 'batch': name one with --column (step, id)"),
        ("ids.jsonl", b'{"id": 1}\n', "ids.jsonl:1: there is no key 'batch': name one with --column (id)"),
        ("ids.jsonl", b'{"batch": 1}\n\n{"batch":\n', "ids.jsonl:3: this line is no JSON"),
        ("ids.jsonl", b"[" * 100_000, "ids.jsonl:1: this line is no JSON"),
        ("ids.jsonl", b"[1]\n", "ids.jsonl:1: there is no key 'batch'"),
        ("ids.txt", b"\xff\xfe\x00", "is no text in UTF-8"),
        ("ids.txt", b"x" * (1 << 21), "ids.txt:1: this line is longer"),
        ("ids.csv", b"batch\n" + b"x" * (1 << 18) + b"\n", "ids.csv:2: field larger"),
        ("folder", None, "is a folder"),
        ("missing.txt", None, "missing.txt does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    name: str, content: bytes | None, said: str, capsys: Capture
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    elif name == "folder":
        Path(name).mkdir()
    assert main(["batches", name]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_broken_link_is_one_sentence(capsys: Capture) -> None:
    os.symlink("nowhere", "ids.txt")
    assert main(["batches", "ids.txt"]) == ExitCode.USAGE
    assert "ids.txt does not exist" in capsys.readouterr().err


def test_it_loads_neither_pandas_nor_scipy() -> None:
    written("ids.csv", STUCK)
    code = (
        "import sys; from pth_tracker.cli import main; main(['batches', 'ids.csv']);"
        "print({n.partition('.')[0] for n in sys.modules} & {'pandas', 'scipy', 'statsmodels', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"

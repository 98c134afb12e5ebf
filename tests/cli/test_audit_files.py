"""``pth-tracker audit`` on files: columns named by the user, MLflow file stores, and what is said of the paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

Capture = pytest.CaptureFixture[str]


def report(capsys: Capture, *arguments: str) -> dict[str, Any]:
    """The JSON report of an audit; whether a check fails does not matter here."""
    capsys.readouterr()
    assert main(["audit", *arguments, "--format", "json", "--exit-zero"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def table(path: str = "scores.csv") -> str:
    rows = [(x, who, rep, 0.5 + 0.01 * rep + 0.1 * (who == "b")) for who in "ab" for rep in range(3) for x in range(3)]
    Path(path).write_text("x,who,rep,points\n" + "".join(f"{x},{who},{rep},{points}\n" for x, who, rep, points in rows))
    return path


def test_columns_of_a_table_are_named_by_an_option(capsys: Capture) -> None:
    found = report(capsys, table(), "--columns", "step=x,arm=who", "--columns", "seed=rep,value=points")
    assert sorted(run["name"] for run in found["runs"]) == [f"{who} seed {rep}" for who in "ab" for rep in range(3)]
    assert {run["last_update"] for run in found["runs"]} == {2}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("steps=x", "--columns takes step=NAME, seed=NAME, arm=NAME"),
        ("step=where", "has no column 'where' for the step; it has the columns 'x', 'who'"),
    ],
)
def test_columns_that_cannot_be_used_are_named(columns: str, said: str, capsys: Capture) -> None:
    assert main(["audit", table(), "--columns", columns]) != ExitCode.OK
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())


def test_only_tables_have_columns(capsys: Capture, demo_store: Path) -> None:
    assert (
        main(["audit", "--tracker", f"sqlite:///{demo_store}", "--project", "rl-stale-demo", "--columns", "step=x"])
        == ExitCode.USAGE
    )
    assert "--columns names the columns of tables" in capsys.readouterr().err


def experiment(store: Path, number: int, name: str, runs: int) -> None:
    """An experiment of an MLflow file store; its runs have one name, the youngest the first id."""
    folder = store / str(number)
    folder.mkdir(parents=True)
    (folder / "meta.yaml").write_text(f"experiment_id: '{number}'\nname: {name}\nlifecycle_stage: active\n")
    for index in range(runs):
        began = 1_700_000_000_000 + index * 86_400_000
        run_id = f"{runs - index:x}{number}".ljust(32, "0")
        run = folder / run_id
        (run / "metrics").mkdir(parents=True)
        (run / "meta.yaml").write_text(
            f"run_id: {run_id}\nexperiment_id: '{number}'\nrun_name: ppo\nstatus: 3\n"
            f"start_time: {began}\nend_time: {began + 60_000}\n"
        )
        (run / "metrics" / "loss").write_text("".join(f"{1_700_000_000_000 + n} 0.{n + index} {n}\n" for n in range(9)))


def test_an_experiment_of_a_file_store_is_a_project(capsys: Capture, tmp_path: Path) -> None:
    experiment(tmp_path / "mlruns", 1, "first", 3)
    experiment(tmp_path / "mlruns", 2, "second", 2)
    store = str(tmp_path / "mlruns")
    assert len(report(capsys, store)["runs"]) == 5
    # In the order of their creation, and told apart by the beginning of their ids.
    labels = [run["label"] for run in report(capsys, store, "--project", "first")["runs"]]
    assert labels == ["ppo (3100)", "ppo (2100)", "ppo (1100)"]
    assert main(["audit", store, "--project", "third"]) == ExitCode.USAGE
    assert "there is no experiment 'third' in these files; they hold first, second" in capsys.readouterr().err
    assert main(["audit", store, "--project", "secnd"]) == ExitCode.USAGE
    assert "they hold first, second; did you mean 'second'?" in capsys.readouterr().err


def test_a_project_of_files_that_have_none_is_refused(capsys: Capture) -> None:
    assert main(["audit", table(), "--columns", "step=x,arm=who,seed=rep", "--project", "p"]) == ExitCode.USAGE
    assert "files have no projects: leave out 'p'" in capsys.readouterr().err


def test_what_was_left_out_of_a_folder_is_in_the_report(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    table(str(folder / "scores.csv"))
    (folder / "gone.csv").symlink_to(tmp_path / "nowhere.csv")
    (folder / "notes.txt").write_text("so far so good\n")
    notes = report(capsys, str(folder), "--columns", "step=x,arm=who,seed=rep")["notes"]
    assert any("gone.csv is a link to nothing" in note for note in notes)
    assert any("1 other files hold no runs: notes.txt" in note for note in notes)


def test_the_headline_names_the_paths_once_and_few_of_them(capsys: Capture) -> None:
    paths = [table(f"scores{number}.csv") for number in range(6)]
    main(["audit", *paths, "--columns", "step=x,arm=who,seed=rep"])
    head = " ".join(capsys.readouterr().out.split("Design in force")[0].split())
    assert "36 runs in files at scores0.csv scores1.csv scores2.csv and 3 more, as named" in head
    assert head.count("scores1.csv") == 1


def test_the_tolerance_of_the_sampler_is_an_option_of_audit(capsys: Capture) -> None:
    for nats in ("0", "-1", "nan"):
        assert main(["audit", table(), "--kl-tolerance", nats]) == ExitCode.USAGE
        assert "the KL tolerance has to be above 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "verl"])
def test_files_of_which_none_can_be_read_are_reported_by_their_reason_alone(command: str, capsys: Capture) -> None:
    Path("notdb.txt").write_text("hello\n")
    assert main([command, "notdb.txt"]) == ExitCode.NOTHING
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NOT JUDGED: 1 run selected, and none could be read"
    assert lines[2:4] == ["", "Could not be read: 1 run"]
    text = " ".join(" ".join(lines).split())
    assert text.count("is of no known kind") == 1
    assert "Design in force" not in text and "Not judged: " not in text and "--metric" not in text
    assert lines[-2].startswith("1 run: 0 findings failed")


def test_one_file_that_can_be_read_keeps_the_whole_report(capsys: Capture) -> None:
    Path("notdb.txt").write_text("hello\n")
    Path("scores.csv").write_text("step,score\n" + "".join(f"{step},{0.5 + step / 100}\n" for step in range(9)))
    main(["audit", "scores.csv", "notdb.txt", "--exit-zero"])
    text = capsys.readouterr().out
    assert "Design in force" in text and "Could not be read: 1 run" in text and "Not judged: " in text

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pth_tracker import demo, engine, tracker, writeback
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode, TrackerError
from pth_tracker.tracker import Address, Marks, Query, open_address

if TYPE_CHECKING:
    from conftest import DemoRuns

Capture = pytest.CaptureFixture[str]
PROJECT = "rl-stale-demo"
GRPO = [f"grpo-seed{seed}" for seed in demo.DATA_SEEDS]
TIS = [f"tis-seed{seed}" for seed in demo.DATA_SEEDS]
CLIP = [f"ppo-clip-seed{seed}" for seed in demo.DATA_SEEDS]
REPLAY = [f"replay-seed{seed}" for seed in demo.DATA_SEEDS]
SAID = "FAILED: Idle Clip on 3 runs, Lost Seed on 3 runs, Stuck Batch on 3 runs, Rogue Normaliser on 3 runs "


def uri(store: Path) -> str:
    return f"sqlite:///{store}"


def audit(store: Path, *options: str) -> int:
    return main(["audit", "--project", PROJECT, "--tracker", uri(store), *options])


def marks(store: Path) -> dict[str, Marks]:
    """Our marks by run name."""
    opened = open_address(Address("mlflow", (uri(store),)))
    names = {run.ref: run.name for run in opened.runs(Query(PROJECT))}
    found = {names[ref]: marks for ref, marks in opened.marks(list(names)).items()}
    opened.close()
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_audit_names_the_bugs_marks_the_runs_and_ends_with_1(demo_store: Path, capsys: Capture) -> None:
    assert audit(demo_store, "-o", "report.json", "-o", "report.txt") == ExitCode.CHECK_FAILED
    captured = capsys.readouterr()
    assert " ".join(captured.out.split()).startswith(SAID) and captured.err == ""
    assert "exit status 1: a check failed" in " ".join(captured.out.split())
    assert {name: (m.values["verdict"], m.values["rules"]) for name, m in marks(demo_store).items()} == {
        **dict.fromkeys(GRPO, ("fail", "idle-clip")),
        **dict.fromkeys(TIS, ("fail", "lost-seed")),
        **dict.fromkeys(CLIP, ("fail", "rogue-normaliser")),
        **dict.fromkeys(REPLAY, ("fail", "stuck-batch")),
    }
    data = json.loads(Path("report.json").read_text())
    schema = json.loads((files("pth_tracker.render") / "schema" / "audit_v1.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(data)
    loud = [one for one in data["findings"] if one["level"] != "info" and not one["because_of"]]
    assert {one["tag"]: sorted(one["blames"]) for one in loud} == {
        "Idle Clip": GRPO, "Lost Seed": TIS, "Stuck Batch": REPLAY, "Rogue Normaliser": CLIP
    }  # fmt: skip
    assert {one["level"] for one in loud} == {"fail"}
    assert data["exit"] == 1 and data["write_back"]["applied"] and len(data["write_back"]["planned"]) == 12
    assert " ".join(Path("report.txt").read_text().split()).startswith(SAID)


def test_a_second_audit_has_nothing_to_write_and_untag_takes_all_away(demo_store: Path, capsys: Capture) -> None:
    audit(demo_store)
    capsys.readouterr()
    assert audit(demo_store) == ExitCode.CHECK_FAILED
    assert "Nothing to write: all marks are up to date" in capsys.readouterr().out
    untag = ["untag", "--project", PROJECT, "--tracker", uri(demo_store)]
    before = digest(demo_store)
    assert main([*untag, "--dry-run"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.out == "Dry run: the marks of 12 runs would be removed.\n" and "unset verdict" in captured.err
    assert digest(demo_store) == before
    assert main(untag) == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith("Removed the marks of 12 runs;") and "'pth-audit'" in said and "stays" in said
    assert list(marks(demo_store).values()) == [Marks()] * 12


@pytest.mark.parametrize("option", ["--dry-run", "--no-write"])
def test_nothing_is_written_where_that_was_asked_for(option: str, demo_store: Path, capsys: Capture) -> None:
    before = digest(demo_store)
    assert audit(demo_store, option, "--format", "json") == ExitCode.CHECK_FAILED
    assert digest(demo_store) == before
    captured = capsys.readouterr()
    write_back = json.loads(captured.out)["write_back"]
    assert write_back["applied"] is False
    if option == "--dry-run":
        assert [edit["set"]["verdict"] for edit in write_back["planned"]] == ["fail"] * 12
        assert captured.err.startswith("dry run, nothing is written: 12 planned edits:\n  grpo-seed43 (")
    else:
        assert write_back["planned"] == [] and write_back["refused"] == "--no-write was given" and captured.err == ""


def test_exit_zero_mutes_a_failed_check_only(demo_store: Path, capsys: Capture) -> None:
    assert audit(demo_store, "--exit-zero", "--no-write", "--format=json") == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["exit"] == 0 and data["counts"]["fail"] == 4
    assert main(["audit", "--project", "none", "--tracker", uri(demo_store), "--exit-zero"]) == ExitCode.USAGE
    assert audit(demo_store, "--exit-zero", "--since", "2100-01-01") == ExitCode.NOTHING


def test_every_option_can_come_from_the_environment(
    demo_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, value in {
        "PROJECT": PROJECT,
        "TRACKER": uri(demo_store),
        "ARM": "a=grpo-* b=tis-*",
        "SELECT": "idle-clip,lost-seed",
        "IGNORE": "lost-seed",
        "OUTPUT": "one.json:two.txt",
        "NO_WRITE": "1",
        "QUIET": "1",
        "FORMAT": "json",
    }.items():
        monkeypatch.setenv(f"PTH_TRACKER_{name}", value)
    assert main(["audit"]) == ExitCode.CHECK_FAILED
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads(Path("one.json").read_text()) and Path("two.txt").exists()
    assert {finding["rule"] for finding in data["findings"]} == {"idle-clip"}
    assert {arm: sorted(runs) for arm, runs in data["design"]["arms"].items()} == {"a": GRPO, "b": TIS}
    assert data["write_back"]["refused"]


def test_a_design_on_the_command_line_is_in_force_and_not_inferred(demo_store: Path, capsys: Capture) -> None:
    key = "algorithm.rollout_correction.rollout_is"
    audit(demo_store, "--no-write", "--arm", "ours=tis-*", "--arm", "base=grpo-*", "--vary", key, "--format=json")
    design = json.loads(capsys.readouterr().out)["design"]
    assert sorted(design["arms"]["ours"]) == TIS and design["vary"] == [key]
    assert not {"arms", "vary"} & set(design["inferred"])


def test_a_tracker_without_a_project_lists_those_it_has(demo_store: Path, capsys: Capture) -> None:
    assert main(["audit", "--tracker", uri(demo_store)]) == ExitCode.USAGE
    assert f"name the project to audit with --project; mlflow at {uri(demo_store)} has" in capsys.readouterr().err


def test_the_store_in_this_folder_is_found_and_the_choice_is_told(demo_store: Path, capsys: Capture) -> None:
    assert main(["audit", "--project", PROJECT, "--no-write"]) == ExitCode.CHECK_FAILED
    assert "chosen because mlflow.db in this folder holds the project" in " ".join(capsys.readouterr().out.split())


def test_console_logs_are_audited_by_their_paths(demo_runs: DemoRuns, tmp_path: Path, capsys: Capture) -> None:
    for name, (config, history) in demo_runs.items():
        sink = demo.ConsoleSink(tmp_path / "logs" / f"{name}.txt")
        sink.start(name, config)
        for step, metrics in history.items():
            sink.log(step, metrics)
        sink.finish()
    for arguments in (["logs"], ["--tracker", "logs"], [f"logs/{name}.txt" for name in demo_runs]):
        assert main(["audit", *arguments]) == ExitCode.CHECK_FAILED
        text = capsys.readouterr().out
        assert " ".join(text.split()).startswith(SAID)
        assert "Nothing written: log files are only read" in text


class Closing:
    """A tracker that counts how often it was closed."""

    def __init__(self, inner: tracker.Tracker) -> None:
        self._inner = inner
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self.closed += 1
        self._inner.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Closing]:
    """Every tracker that a command opens from now on."""
    found: list[Closing] = []
    find: Callable[[str, Sequence[str]], tuple[tracker.Tracker, str]] = tracker.find_tracker

    def find_tracker(project: str, locations: Sequence[str]) -> tuple[Any, str]:
        inner, chosen = find(project, locations)
        found.append(Closing(inner))
        return found[-1], chosen

    monkeypatch.setattr(tracker, "find_tracker", find_tracker)
    return found


def test_a_tracker_is_closed_whatever_happens(
    demo_store: Path, opened: list[Closing], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert audit(demo_store, "--no-write") == ExitCode.CHECK_FAILED
    assert main(["audit", "--tracker", uri(demo_store)]) == ExitCode.USAGE
    assert main(["untag", "--project", "none", "--tracker", uri(demo_store)]) == ExitCode.USAGE
    for error, status in ((TrackerError("gone"), ExitCode.TRACKER), (KeyboardInterrupt(), ExitCode.INTERRUPTED)):

        def failing(*_: object, raised: BaseException = error, **__: object) -> None:
            raise raised

        monkeypatch.setattr(engine, "audit", failing)
        assert audit(demo_store) == status
    assert [one.closed for one in opened] == [1] * 5


def test_a_failing_write_back_still_gives_the_report(
    demo_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def write_back(*_: object, **__: object) -> None:
        raise TrackerError("the server is gone (HTTP 503)")

    monkeypatch.setattr(writeback, "write_back", write_back)
    assert audit(demo_store) == ExitCode.TRACKER
    text = capsys.readouterr().out
    assert text.startswith("FAILED: Idle Clip") and "refused: the server is gone (HTTP 503)" in text
    assert "exit status 4: the tracker failed" in " ".join(text.split())


def test_unwritable_output_is_refused_before_the_tracker_is_asked(opened: list[Closing], capsys: Capture) -> None:
    assert main(["audit", "--project", PROJECT, "-o", "none/report.json"]) == ExitCode.USAGE
    assert opened == []


def test_reports_are_attached_to_the_audit_run(demo_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attached: dict[str, bytes] = {}
    real = writeback.write_back

    def write_back(*arguments: Any, files: Callable[[], dict[str, bytes]], **options: Any) -> Any:
        attached.update(files())
        return real(*arguments, files=attached, **options)

    monkeypatch.setattr(writeback, "write_back", write_back)
    audit(demo_store)
    assert json.loads(attached["audit.json"])["counts"]["fail"] == 4
    assert attached["audit.txt"].startswith(b"FAILED: Idle Clip")
    assert attached["audit.html"].startswith(b"<!DOCTYPE html>") and attached["audit.html"].count(b"<figure>") == 7
    assert set(attached) == {"audit.json", "audit.txt", "audit.html"}


def test_the_demo_says_how_it_ended_and_how_to_repeat_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "run_demo", partial(demo.run_demo, updates=40))
    assert main(["demo", "--folder", "a demo", "--console-log", "logs"]) == ExitCode.CHECK_FAILED
    captured = capsys.readouterr()
    assert " ".join(captured.out.split()).startswith(SAID)
    assert "The audit ended with exit status 1: a check failed." in captured.err
    repeat = next(line.strip() for line in captured.err.split("\n") if " audit --project " in line)
    assert repeat.endswith(f"pth-tracker audit --project {PROJECT} --tracker 'sqlite:///{tmp_path}/a demo/mlflow.db'")
    done = subprocess.run(repeat, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.CHECK_FAILED and "all marks are up to date" in done.stdout
    assert sorted(path.stem for path in Path("logs").iterdir()) == sorted(GRPO + TIS + CLIP + REPLAY)
    assert len(marks(tmp_path / "a demo" / "mlflow.db")) == 12


def test_the_demo_refuses_what_cannot_work_before_it_trains(capsys: Capture) -> None:
    Path("file").write_text("")
    assert main(["demo", "--console-log", "file/logs"]) == ExitCode.USAGE
    assert main(["demo", "--folder", "file"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 2 and "training" not in captured.err

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from pth_tracker import demo
from pth_tracker.cli import main
from pth_tracker.design.load import load_design
from pth_tracker.errors import ExitCode

if TYPE_CHECKING:
    from conftest import DemoRuns

Capture = pytest.CaptureFixture[str]
PROJECT = "rl-stale-demo"
VOCABULARY = """\
framework: mine
about: A trainer of my own.
detect: {config_all: [trainer.sync_interval], config_any: [actor_rollout_ref.actor.clip_ratio]}
quantities:
  clip_fraction: [{key: my/clip, clip: active_branch}]
"""


def where(store: Path) -> list[str]:
    return ["--project", PROJECT, "--tracker", f"sqlite:///{store}"]


def loud(text: str) -> set[tuple[str, str]]:
    return {
        (one["rule"], run)
        for one in json.loads(text)["findings"]
        if one["level"] == "fail" and not one["because_of"]
        for run in one["blames"]
    }


def test_the_written_file_audits_to_the_same_bugs_as_no_file(demo_store: Path, capsys: Capture) -> None:
    assert main(["init", *where(demo_store)]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "Wrote design.yaml, guessed from 12 runs" in said and "4 arms: grpo, ppo-clip, replay, tis" in said
    assert said.rstrip().endswith("--design design.yaml")
    text = Path("design.yaml").read_text()
    assert f"pth-tracker audit {' '.join(where(demo_store))} --design design.yaml" in text
    assert yaml.safe_load(text)["arms"] == {
        arm: {"name": f"{arm}-seed*"} for arm in ("grpo", "ppo-clip", "replay", "tis")
    }
    found = []
    for design in ([], ["--design", "design.yaml"]):
        assert main(["audit", *where(demo_store), "--no-write", "--format=json", *design]) == ExitCode.CHECK_FAILED
        found.append(capsys.readouterr().out)
    assert len(loud(found[0])) == 12 and loud(found[0]) <= loud(found[1])
    assert "arms" in json.loads(found[0])["design"]["inferred"]
    assert not {"arms", "baseline", "metric", "task"} & set(json.loads(found[1])["design"]["inferred"])


def test_an_edited_file_is_not_overwritten_unless_that_was_asked_for(demo_store: Path, capsys: Capture) -> None:
    Path("design.yaml").write_text("mine")
    assert main(["init", *where(demo_store)]) == ExitCode.USAGE
    assert "'design.yaml' exists already" in capsys.readouterr().err and Path("design.yaml").read_text() == "mine"
    assert main(["init", *where(demo_store), "--force", "-q"]) == ExitCode.OK
    assert capsys.readouterr().out == "" and load_design(Path("design.yaml")).arms


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "report.json"], "'report.json' has to end in .yaml"),
        (["-o", "none/design.yaml"], "there is no folder 'none'"),
        (["--since", "yesterday"], "--since 'yesterday'"),
        (["--project", "none"], "none"),
        (["--vocabulary", "none.yaml"], "none.yaml: there is no such vocabulary file"),
    ],
)
def test_what_cannot_work_leaves_no_file(demo_store: Path, options: list[str], words: str, capsys: Capture) -> None:
    assert main(["init", *where(demo_store), *options]) == ExitCode.USAGE
    assert words in capsys.readouterr().err and not list(Path().glob("**/*.yaml"))


def test_no_run_is_no_design(demo_store: Path, capsys: Capture) -> None:
    assert main(["init", *where(demo_store), "--since", "2100-01-01"]) == ExitCode.NOTHING
    assert "has no run to infer a design from" in capsys.readouterr().err and not Path("design.yaml").exists()
    assert main(["init"]) == ExitCode.USAGE


def test_files_and_filters_are_named_in_the_command(demo_runs: DemoRuns, tmp_path: Path, capsys: Capture) -> None:
    for name, (config, history) in list(demo_runs.items())[:6]:
        sink = demo.ConsoleSink(tmp_path / "my logs" / f"{name}.txt")
        sink.start(name, config)
        for step, metrics in history.items():
            sink.log(step, metrics)
        sink.finish()
    assert main(["init", "my logs", "-o", "a design.yaml"]) == ExitCode.OK
    assert "pth-tracker audit 'my logs' --design 'a design.yaml'" in Path("a design.yaml").read_text()
    assert main(["audit", "my logs", "--design", "a design.yaml"]) == ExitCode.CHECK_FAILED


def test_a_password_does_not_reach_the_file(demo_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from pth_tracker import tracker

    find = tracker.find_tracker
    monkeypatch.setattr(tracker, "find_tracker", lambda project, _: find(project, [f"sqlite:///{demo_store}"]))
    address = "postgresql://audit:hunter2@db/mlflow"
    assert main(["init", "--project", PROJECT, "--tracker", address]) == ExitCode.OK
    assert "hunter2" not in Path("design.yaml").read_text() + capsys.readouterr().out


# a vocabulary of the user's own


@pytest.mark.parametrize("command", ["init", "audit"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("clip_fraction", "clip_fractoin"), "mine.yaml: unknown name 'clip_fractoin'"),
        (("clip: active_branch", "clip: sometimes"), "mine.yaml at quantities.clip_fraction.0.clip"),
        (("about: A", "abuot: A"), "mine.yaml at"),
        (("framework: mine", "framework: ["), "mine.yaml:"),
    ],
)
def test_a_wrong_vocabulary_is_named_with_file_and_key(
    demo_store: Path, command: str, change: tuple[str, str], words: str, capsys: Capture
) -> None:
    Path("mine.yaml").write_text(VOCABULARY.replace(*change))
    assert main([command, *where(demo_store), "--vocabulary", "mine.yaml"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_vocabulary_of_ones_own_takes_the_place_of_a_built_in_one(demo_store: Path, capsys: Capture) -> None:
    Path("mine.yaml").write_text(VOCABULARY.replace("framework: mine", "framework: verl"))
    own = ["--vocabulary", "mine.yaml"]
    found = []
    for options in ([], own):
        main(["audit", *where(demo_store), "--no-write", "--format=json", *options])
        found.append({one["rule"] for one in json.loads(capsys.readouterr().out)["findings"]})
    assert "idle-clip" in found[0] and "idle-clip" not in found[1]  # no such metric is logged
    assert main(["init", *where(demo_store), *own]) == ExitCode.OK
    assert "--vocabulary mine.yaml" in Path("design.yaml").read_text()

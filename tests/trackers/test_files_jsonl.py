"""verl's and EasyR1's JSONL metric files, and what Hydra leaves beside a log."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import yaml

import verl_logs
from pth_tracker_files import jsonl, verl_log
from pth_tracker_files.hydra import hydra_files
from pth_tracker_files.sources import LoadedRun


def load(path: Path) -> LoadedRun:
    (loaded,) = jsonl.load([path])
    assert isinstance(loaded, LoadedRun), loaded
    return loaded


def test_every_value_is_read(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    rows = [
        (n, {"actor/lr": 1e-06, "val-core/gsm8k/acc/mean@1": n / 7, "training/global_step": n}) for n in range(1, 6)
    ]
    path.write_text(verl_logs.jsonl(rows))
    assert jsonl.claims(path, path.read_bytes())
    loaded = load(path)
    assert loaded.history.step.tolist() == [1, 2, 3, 4, 5]
    assert loaded.history.values["val-core/gsm8k/acc/mean@1"].tolist() == [n / 7 for n in range(1, 6)]
    assert loaded.history.decimals == {}
    assert (loaded.run.name, loaded.run.last_step, loaded.run.notes) == ("exp", 5, ())


def test_several_rows_of_one_step_are_merged_and_the_later_wins(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    path.write_text(verl_logs.jsonl([(1, {"a/x": 1.0}), (1, {"a/x": 2.0, "a/y": 3.0}), (2, {"a/x": 4})]))
    history = load(path).history
    assert (history.values["a/x"].tolist(), history.series("a/y")[1].tolist(), history.conflicts) == (
        [2.0, 4.0],
        [3.0],
        1,
    )


def test_nan_is_a_value_and_null_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    path.write_text(
        '{"step": 1, "data": {"a/x": NaN, "a/y": null}}\n{"step": 2, "data": {"a/x": Infinity, "a/y": 1}}\n'
    )
    loaded = load(path)
    assert loaded.history.nonfinite_at["a/x"].tolist() == [1, 2]
    assert math.isnan(loaded.history.values["a/x"][0]) and loaded.history.values["a/x"][1] == math.inf
    assert [step.tolist() for step in loaded.history.series("a/y")] == [[2], [1.0]]
    assert loaded.run.notes == ("1 values are null (verl writes NaN so) and were left out",)


def test_broken_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    good = '{"step": 1, "data": {"a/x": 1.0, "text": "no number", "list": [1], "flag": true}}\n'
    path.write_text(good + '[1]\nnonsense\n{"step": "2", "data": {}}\n\n{"step": 3, "data": 4}\n{"step": 2, "da')
    loaded = load(path)
    assert {key: column.tolist() for key, column in loaded.history.values.items()} == {"a/x": [1.0], "flag": [1.0]}
    assert loaded.run.notes == ("5 lines are no metrics of one step and were left out",)


def test_an_integer_beyond_all_floats_is_infinite(tmp_path: Path) -> None:
    path = tmp_path / "exp.jsonl"
    path.write_text('{"step": 1, "data": {"a/x": 1' + "0" * 400 + "}}\n")
    assert load(path).history.values["a/x"].tolist() == [math.inf]


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"step": 1}', '{"step": 1, "input": "2+2?", "output": "4"}', '{"step": "a", "data": {}}', "[" * 70_000],
)
def test_other_json_is_not_claimed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    assert not jsonl.claims(path, path.read_bytes()[:65536])


def test_a_first_line_longer_than_what_is_looked_at_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(verl_logs.jsonl([(1, {f"actor/metric_number_{n}": 0.5 for n in range(5000)})]))
    assert jsonl.claims(path, path.read_bytes()[:65536])
    assert len(load(path).history.values) == 5000


def test_easyr1_nests_metrics_and_keeps_its_configuration_beside(tmp_path: Path) -> None:
    path = tmp_path / "experiment_log.jsonl"
    path.write_text('{"step": 1, "actor": {"pg_loss": 0.5, "lr": 1e-06}, "reward": {"overall": 0.25}}\n')
    (tmp_path / "experiment_config.json").write_text(json.dumps({"data": {"seed": 3}}))
    assert jsonl.claims(path, path.read_bytes())
    loaded = load(path)
    assert {key: column.tolist() for key, column in loaded.history.values.items()} == {
        "actor/pg_loss": [0.5],
        "actor/lr": [1e-06],
        "reward/overall": [0.25],
    }
    assert loaded.run.config == {"data": {"seed": 3}}


def hydra_folder(folder: Path) -> Path:
    (folder / ".hydra").mkdir(parents=True)
    config = {
        "actor_rollout_ref": {"actor": {"n": "${actor_rollout_ref.rollout.n}", "lr": "1e-6"}, "rollout": {"n": 5}},
        "critic": {"path": "/ckpt/${trainer.project}/x", "rollout_n": "${actor_rollout_ref.actor.n}"},
        "loop": {"a": "${loop.b}", "b": "${loop.a}"},
        "data": {"seed": 3, "other": "${oc.env:HOME}", "whole": "${trainer}"},
        "trainer": {"project": "p"},
    }
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / ".hydra" / "overrides.yaml").write_text("- data.seed=3\n- actor_rollout_ref.rollout.n=5\n")
    return folder


def test_hydras_files_give_a_log_without_configuration_one(tmp_path: Path) -> None:
    folder = hydra_folder(tmp_path / "outputs" / "12-00-00")
    log = verl_logs.make_log("0.6.1", 4, with_config=False).write(folder / "main_ppo.log")
    (loaded,) = verl_log.load([log])
    assert isinstance(loaded, LoadedRun)
    actor = loaded.run.config["actor_rollout_ref"]
    assert actor == {"actor": {"n": 5, "lr": 1e-06}, "rollout": {"n": 5}}
    assert loaded.run.config["critic"] == {"path": "/ckpt/p/x", "rollout_n": 5}
    assert loaded.run.config["data"] == {"seed": 3, "other": "${oc.env:HOME}", "whole": "${trainer}"}
    assert loaded.run.arguments == ("data.seed=3", "actor_rollout_ref.rollout.n=5")
    assert any(".hydra/config.yaml" in note for note in loaded.run.notes)
    assert loaded.run.revision.count("+") == 2


def test_a_printed_configuration_goes_before_hydras(tmp_path: Path) -> None:
    folder = hydra_folder(tmp_path / "run")
    log = verl_logs.make_log("0.6.1", 4, data__seed=9)
    (loaded,) = verl_log.load([log.write(folder / "logs" / "out.log")])
    assert isinstance(loaded, LoadedRun)
    assert loaded.run.config == log.config
    assert loaded.run.arguments == ("data.seed=3", "actor_rollout_ref.rollout.n=5")


def test_a_jsonl_file_takes_its_configuration_from_hydra(tmp_path: Path) -> None:
    folder = hydra_folder(tmp_path / "run")
    (folder / "exp.jsonl").write_text(verl_logs.jsonl([(1, {"actor/lr": 1.0})]))
    run = load(folder / "exp.jsonl").run
    assert run.config["trainer"] == {"project": "p"}
    assert run.arguments == ("data.seed=3", "actor_rollout_ref.rollout.n=5")


@pytest.mark.parametrize(
    "text", ["a: [", "!!python/object/apply:os.system ['true']", "- just\n- a list\n", "x: " + "[" * 5000, "\0"]
)
def test_a_broken_hydra_file_is_a_note_or_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(text)
    found = hydra_files(tmp_path / "x.log")
    assert found.config == {}
    assert len(found.notes) == (0 if text.startswith("-") else 1)


def test_a_pipe_where_hydras_file_should_be_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    os.mkfifo(tmp_path / ".hydra" / "config.yaml")
    assert "pipe" in hydra_files(tmp_path / "x.log").notes[0]

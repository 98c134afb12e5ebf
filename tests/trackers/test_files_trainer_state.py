"""Hugging Face trainer states: written here in the Trainer's form, and the shared public checkpoints."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.runs import RunError, RunState
from pth_tracker_files import trainer_state
from pth_tracker_files.sources import LoadedRun, read_head


def state(rows: Sequence[Mapping[str, object]], step: int, planned: int = 100) -> dict[str, object]:
    return {"epoch": 0.5, "global_step": step, "log_history": list(rows), "max_steps": planned, "train_batch_size": 6}


def write(folder: Path, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def load(paths: Sequence[Path]) -> list[LoadedRun]:
    loaded = list(trainer_state.load(paths))
    assert all(isinstance(item, LoadedRun) for item in loaded), loaded
    return [item for item in loaded if isinstance(item, LoadedRun)]


def rows(*values: float) -> list[dict[str, object]]:
    return [{"step": 5 * i, "epoch": i / 10, "reward": value} for i, value in enumerate(values, 1)]


def test_the_rows_are_kept_under_their_raw_names(tmp_path: Path) -> None:
    log: list[dict[str, object]] = [
        {"step": 5, "epoch": 0.1, "loss": 0.25, "rewards/r1": 1, "note": "text"},
        {"step": 10, "epoch": 0.2, "loss": 0.5, "eval_reward": 0.75},
        {"step": 10, "epoch": 0.2, "train_runtime": 12.5},
    ]
    (loaded,) = load([write(tmp_path / "run", state(log, 10))])
    assert loaded.run.name == "run"
    assert loaded.run.metric_keys == frozenset({"loss", "rewards/r1", "eval_reward", "train_runtime"})
    assert loaded.history.step.tolist() == [5, 10]
    assert loaded.history.values["loss"].tolist() == [0.25, 0.5]
    assert loaded.run.config == {"max_steps": 100, "train_batch_size": 6}


def test_a_run_is_finished_once_it_trained_all_its_steps(tmp_path: Path) -> None:
    done = write(tmp_path / "done", state(rows(1.0), 100))
    stopped = write(tmp_path / "stopped", state(rows(1.0), 50))
    unplanned = write(tmp_path / "unplanned", state(rows(1.0), 50, planned=-1))
    found = {item.run.name: item.run for item in load([done, stopped, unplanned])}
    assert found["done"].state is RunState.FINISHED and found["done"].notes == ()
    assert found["stopped"].state is RunState.UNKNOWN
    assert found["stopped"].notes[0].startswith("stopped at 50 of 100 steps")
    assert found["unplanned"].state is RunState.UNKNOWN and found["unplanned"].notes == ()


def test_the_checkpoints_of_one_folder_are_one_run(tmp_path: Path) -> None:
    nine = write(tmp_path / "tis" / "checkpoint-9", state(rows(1.0), 9))
    hundred = write(tmp_path / "tis" / "checkpoint-100", state(rows(1.0, 2.0), 100))
    other = write(tmp_path / "grpo" / "checkpoint-9", state(rows(7.0), 9))
    loaded = load([hundred, nine, other])
    assert [item.run.name for item in loaded] == ["tis", "grpo"]
    assert loaded[0].history.values["reward"].tolist() == [1.0, 2.0]
    assert loaded[0].run.state is RunState.FINISHED
    assert loaded[0].run.notes == ()


def test_a_checkpoint_that_contradicts_the_last_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "r" / "checkpoint-10", state(rows(1.0, 2.0), 10))
    write(tmp_path / "r" / "checkpoint-15", state(rows(1.0, 2.5, 3.0), 15, planned=15))
    (loaded,) = load(sorted((tmp_path / "r").glob("*/*")))
    (note,) = loaded.run.notes
    assert "checkpoint-10 and checkpoint-15 disagree on 'reward' from step 10 on" in note
    assert loaded.history.values["reward"].tolist() == [1.0, 2.5, 3.0]


def test_a_broken_checkpoint_leaves_the_others(tmp_path: Path) -> None:
    write(tmp_path / "r" / "checkpoint-10", state(rows(1.0, 2.0), 10, planned=10))
    broken = write(tmp_path / "r" / "checkpoint-15", '{"global_step": 15, "log_history": [')
    (loaded,) = load(sorted((tmp_path / "r").glob("*/*")))
    (note,) = loaded.run.notes
    assert str(broken) in note and "is no readable JSON" in note
    assert len(loaded.history) == 2


def test_nan_infinity_and_huge_integers(tmp_path: Path) -> None:
    text = (
        '{"global_step": 3, "max_steps": 3, "log_history": [{"step": 1, "kl": NaN, "n": 1' + "0" * 400 + "},"
        '{"step": 2.0, "kl": Infinity, "n": -1' + "0" * 400 + '}, {"step": 3, "kl": 0.5, "ok": true},'
        '{"kl": 1.0}, {"step": 99999999999999999999999, "kl": 2.0}, {"step": true, "kl": 3.0}]}'
    )
    (loaded,) = load([write(tmp_path, text)])
    assert loaded.history.step.tolist() == [1, 2, 3]
    assert loaded.history.nonfinite_at["kl"].tolist() == [1, 2]
    assert loaded.history.values["n"][:2].tolist() == [math.inf, -math.inf]
    assert loaded.history.values["ok"][2] == 1.0
    assert "3 rows of log_history have no usable step and were left out" in loaded.run.notes


class Bomb:
    """Its unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path(self.path),)  # type: ignore[return-value]


def test_the_pickled_arguments_are_never_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "r" / "checkpoint-5", state(rows(1.0), 5, planned=5))
    witness = tmp_path / "exploded"
    bomb = path.parent / "training_args.bin"
    bomb.write_bytes(pickle.dumps(Bomb(witness)))
    pickle.loads(bomb.read_bytes())
    assert witness.exists()
    witness.unlink()
    (loaded,) = load([path])
    assert not witness.exists()
    (note,) = loaded.run.notes
    assert "training_args.bin" in note and "not opened" in note


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no readable JSON"),
        ("[" * 200_000, "is no readable JSON"),
        ("[1, 2]", "has no log_history"),
        ('{"log_history": 7}', "has no log_history"),
        ('{"log_history": [7]}', "has no log_history"),
        ('{"log_history": [{"step": ' + "9" * 5000 + "}]}", "is no readable JSON"),
    ],
)
def test_what_is_no_state_is_an_error_by_name(tmp_path: Path, content: str, said: str) -> None:
    path = write(tmp_path, content)
    assert trainer_state.claims(path, read_head(path))
    (error,) = trainer_state.load([path])
    assert isinstance(error, RunError)
    assert said in error.message and str(path) in error.message


def test_too_large_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    with path.open("wb") as stream:
        stream.truncate(trainer_state.MAX_BYTES + 1)
    (error,) = trainer_state.load([path])
    assert isinstance(error, RunError) and "larger than 512 MiB" in error.message


def test_a_state_is_known_by_its_keys_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "grpo-seed1.json"
    path.write_text(json.dumps(state(rows(1.0), 100)))
    other = tmp_path / "config.json"
    other.write_text('{"model_type": "qwen2"}')
    assert trainer_state.claims(path, read_head(path))
    assert not trainer_state.claims(other, read_head(other))
    assert load([path])[0].run.name == "grpo-seed1"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["step", "kl", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    log=json_values | st.lists(st.dictionaries(st.sampled_from(["step", "kl", "epoch"]), json_values)), step=json_values
)
def test_no_json_lets_an_error_out(tmp_path_factory: pytest.TempPathFactory, log: object, step: object) -> None:
    path = write(tmp_path_factory.mktemp("hf"), {"global_step": step, "max_steps": step, "log_history": log})
    (item,) = trainer_state.load([path])
    assert isinstance(item, LoadedRun | RunError)


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_lets_an_error_out(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("hf") / "trainer_state.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    (item,) = trainer_state.load([path])
    assert isinstance(item, LoadedRun | RunError)


def test_the_three_public_runs(shared_data: Path) -> None:
    paths = sorted((shared_data / "trl").rglob("trainer_state.json"))
    found = {item.run.name: item for item in load(paths)}
    assert set(found) == {"a2_vi_42", "a3_enlang_42", "reproduce_openrs_rs2_42"}
    for item in found.values():
        assert item.history.step.tolist() == list(range(5, 51, 5))
        assert item.run.state is RunState.UNKNOWN
        assert any("stopped at 50 of 100 steps" in note for note in item.run.notes)
    # Read in the files by eye: the first row of a2, the last row of a3.
    assert found["a2_vi_42"].history.values["kl"][0] == 0.0001974892865291622
    assert found["a3_enlang_42"].history.values["rewards/r5_lang_consistency"][-1] == 1.0
    assert "rewards/r5_lang_consistency" not in found["a2_vi_42"].history.values

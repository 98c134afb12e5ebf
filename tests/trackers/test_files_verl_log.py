"""verl's console logs as runs: releases, rounding, restarts, states, notes, and real logs."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import verl_logs
from pth_tracker.runs import RunError, RunState
from pth_tracker_files import verl_log
from pth_tracker_files.sources import LoadedRun


def load(path: Path) -> LoadedRun:
    (loaded,) = verl_log.load([path])
    assert isinstance(loaded, LoadedRun), loaded
    return loaded


def points(loaded: LoadedRun) -> dict[str, dict[int, float]]:
    history = loaded.history
    return {key: dict(zip(*(column.tolist() for column in history.series(key)), strict=True)) for key in history.values}


STYLES = ["new", "old", "plain", "none"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", verl_logs.RELEASES)
def test_a_log_of_every_release_holds_what_was_logged(tmp_path: Path, name: str, style: str) -> None:
    log = verl_logs.make_log(name, 30, style=style, data__seed=7)
    loaded = load(log.write(tmp_path / "a run.log"))
    assert points(loaded) == log.points
    assert loaded.run.config == log.config
    assert loaded.run.metric_keys == frozenset(log.points)
    assert loaded.run.last_step == max(max(series) for series in log.points.values())
    rounded = verl_logs.RELEASES[name].rounded
    assert loaded.history.decimals == (dict.fromkeys(log.points, 3) if rounded else {})
    assert (loaded.run.name, loaded.run.ref.run_id) == ("a run", str(tmp_path / "a run.log"))
    assert loaded.run.notes == ()


@pytest.mark.parametrize("name", verl_logs.RELEASES)
def test_a_log_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    whole = verl_logs.make_log(name, 3).write(tmp_path / "anything")
    assert verl_log.claims(whole, whole.read_bytes()[:65536])
    steps = verl_logs.make_log(name, 3, with_config=False, style="none").write(tmp_path / "steps")
    assert verl_log.claims(steps, steps.read_bytes())


@pytest.mark.parametrize(
    "text",
    ["", "hello\n", "the actor_rollout_ref of step:3 - actor/lr:0.5\n", "\0" * 100, '{"step": 1}\n', "a,b\n1,2\n"],
)
def test_other_files_are_not_claimed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.log"
    path.write_text(text)
    assert not verl_log.claims(path, text.encode())


def test_a_log_that_begins_with_much_else_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "late.log"
    line = "step:1 - actor/lr:0.5\n"
    path.write_text("noise about nothing\n" * 10_000 + line)
    assert verl_log.claims(path, path.read_bytes()[:65536])
    path.write_text("noise about nothing\n" * 400_000 + line)
    assert verl_log.claims(path, path.read_bytes()[:65536])


@pytest.mark.parametrize(
    ("release", "values", "rounded"),
    [
        (None, ["0.140", "0.000", "nan"], True),
        (None, ["0.140", "0.5", "0.000"], False),
        ("0.3", ["0.140"], True),
        ("0.4.1", ["0.140"], True),
        ("0.5.0", ["0.140"], False),
        ("0.9.1", ["0.125"], False),
        ("0.3", ["0.14035087719298245"], False),
        ("0.9.1", ["0.140", "0.141", "0.142", "0.143", "0.144", "0.145", "0.146", "0.147"], True),
    ],
)
def test_rounding_is_told_by_form_and_where_little_was_logged_by_release(
    tmp_path: Path, release: str | None, values: list[str], rounded: bool
) -> None:
    head = verl_logs.config_lines(verl_logs.config(release)) if release else []
    line = "step:1 - " + " - ".join(f"val-core/{n}/acc:{value}" for n, value in enumerate(values))
    path = tmp_path / "log.txt"
    path.write_text("\n".join([*head, line, ""]))
    decimals = load(path).history.decimals
    assert decimals == (dict.fromkeys((f"val-core/{n}/acc" for n in range(len(values))), 3) if rounded else {})


def test_what_a_model_prints_does_not_tell_how_values_are_rounded(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.3", 400, rollout_text=["step:3 - my/own:0.51234 - some/other:7"])
    loaded = load(log.write(tmp_path / "log.txt"))
    assert loaded.history.decimals == dict.fromkeys(log.points, 3)
    assert points(loaded) == log.points
    assert any(note.startswith("400 lines look like step lines") for note in loaded.run.notes)


def test_the_table_at_the_end_mends_rounded_zeros_of_the_last_step(tmp_path: Path) -> None:
    keys = ("actor/a", "actor/b", "actor/c", "actor/d", "actor/e")
    rows = [f"(main_task pid=1) step:{n} - " + " - ".join(f"{key}:0.000" for key in keys) for n in (1, 2)]
    table = ["actor/a 0.00036", "actor/b 0.0", "actor/c 0.0049", "actor/d -4e-05", "other/x 0.0001", "actor/e nonsense"]
    end = [f"(main_task pid=1) wandb: {text}" for text in ("Run history:", "actor/a ▁▂", "Run summary:")]
    end += [f"(main_task pid=1) wandb:   {row}" for row in table]
    path = tmp_path / "log.txt"
    path.write_text("\n".join([*rows, *end, ""]))
    loaded = load(path)
    assert points(loaded) == {
        "actor/a": {1: 0.0, 2: 0.00036},
        "actor/b": {1: 0.0, 2: 0.0},
        # 0.0049 would have been printed 0.005: it is of another step.
        "actor/c": {1: 0.0, 2: 0.0},
        "actor/d": {1: 0.0, 2: -4e-05},
        "actor/e": {1: 0.0, 2: 0.0},
    }
    assert set(loaded.history.decimals.values()) == {3}


def joined(path: Path, *logs: verl_logs.Log) -> Path:
    path.write_text("".join(log.text() for log in logs))
    return path


def test_a_run_resumed_into_its_file_is_one_run_with_a_note(tmp_path: Path) -> None:
    first = verl_logs.make_log("0.6.1", range(1, 31), pid=1)
    second = verl_logs.make_log("0.6.1", range(21, 41), pid=2, seed=1)
    loaded = load(joined(tmp_path / "log.txt", first, second))
    expected = {key: first.points[key] | second.points[key] for key in first.points}
    assert points(loaded) == expected
    assert loaded.history.conflicts > 0
    (note,) = loaded.run.notes
    assert note.startswith("resumed at step 21 after step 30")


@pytest.mark.parametrize("pid", [1, 2])
def test_a_run_started_again_in_its_file_is_its_last_attempt(tmp_path: Path, pid: int) -> None:
    first = verl_logs.make_log("0.6.1", range(1, 31), pid=1, data__seed=1)
    second = verl_logs.make_log("0.6.1", range(1, 11), pid=pid, seed=1, data__seed=2)
    loaded = load(joined(tmp_path / "log.txt", first, second))
    assert points(loaded) == second.points
    assert loaded.run.config == second.config
    assert any("earlier attempt that reached step 30" in note for note in loaded.run.notes)
    assert any("differing: data.seed" in note for note in loaded.run.notes)


def test_a_crash_before_the_first_step_and_a_second_start_is_one_run(tmp_path: Path) -> None:
    crashed = verl_logs.make_log("0.6.1", 0, pid=1, data__seed=1)
    second = verl_logs.make_log("0.6.1", 10, pid=2, data__seed=2)
    loaded = load(joined(tmp_path / "log.txt", crashed, second))
    assert (points(loaded), loaded.run.config) == (second.points, second.config)
    assert ["data.seed" in note for note in loaded.run.notes] == [True]


def test_a_configuration_after_the_last_step_is_not_the_runs(tmp_path: Path) -> None:
    first = verl_logs.make_log("0.6.1", 10, pid=1, data__seed=1)
    started = verl_logs.make_log("0.6.1", 0, pid=2, data__seed=2)
    loaded = load(joined(tmp_path / "log.txt", first, started))
    assert loaded.run.config == first.config


def test_a_truncated_configuration_gives_way_to_a_whole_one(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.6.1", 10, style="none", chatter=False)
    broken = ["{'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,", "Killed"]
    path = tmp_path / "log.txt"
    path.write_text("\n".join([*log.lines[:1], *broken, *log.lines[1:], ""]))
    assert load(path).run.config == log.config
    path.write_text("\n".join([*broken, "step:1 - actor/lr:0.5", ""]))
    loaded = load(path)
    assert loaded.run.config == {}
    assert any("cut short" in note for note in loaded.run.notes)


def test_asynchronous_trainers_that_fall_back_by_a_step_have_not_been_restarted(tmp_path: Path) -> None:
    lines = []
    for n in range(1, 20):
        lines.append(f"(FullyAsyncTrainer pid=1) step:{n} - actor/lr:1e-06 - fully_async/count/staleness_samples:{n}")
        lines.append(f"(FullyAsyncRollouter pid=2) step:{max(n - 1, 1)} - val-core/gsm8k/acc:0.{n}")
        lines.append(f"(FullyAsyncTrainer pid=1) step:{n} - timing_s/step:{n}.5")
    path = tmp_path / "log.txt"
    path.write_text("\n".join([*lines, ""]))
    loaded = load(path)
    assert loaded.run.notes == ()
    assert len(loaded.history) == 19
    assert set(loaded.history.values) == {
        "actor/lr",
        "fully_async/count/staleness_samples",
        "val-core/gsm8k/acc",
        "timing_s/step",
    }


TRACE = (
    'Traceback (most recent call last):\n  File "main_ppo.py", line 1, in main\n    trainer.fit()\nRuntimeError: no\n'
)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("", RunState.UNKNOWN),
        (TRACE, RunState.CRASHED),
        ("(TaskRunner pid=1) Final validation metrics: {'val-core/acc': 0.5}\n", RunState.FINISHED),
        ("(TaskRunner pid=1) Final validation metrics: {'val-core/acc': 0.5}\n" + TRACE, RunState.FINISHED),
        ("Training Progress: 100%|####| 10/10 [00:01<00:00]\n", RunState.FINISHED),
        (TRACE + "KeyboardInterrupt\n", RunState.KILLED),
        ("^C\n", RunState.KILLED),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
            RunState.KILLED,
        ),
    ],
)
def test_the_state_is_what_the_end_of_the_log_tells(tmp_path: Path, end: str, state: RunState) -> None:
    log = verl_logs.make_log("0.6.1", 10)
    path = tmp_path / "log.txt"
    path.write_text(log.text() + end)
    assert load(path).run.state == state


def test_an_error_amid_a_run_that_goes_on_is_no_crash(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.6.1", 10, rollout_text=TRACE.splitlines())
    assert load(log.write(tmp_path / "log.txt")).run.state == RunState.UNKNOWN


def test_arguments_come_from_hydras_error_or_the_shells_trace(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.6.1", 2)
    path = tmp_path / "log.txt"
    path.write_text(log.text() + "Error executing job with overrides: ['data.seed=3', \"+a.b='x, y'\"]\n" + TRACE)
    assert load(path).run.arguments == ("data.seed=3", "+a.b='x, y'")
    command = "+ python3 -m verl.trainer.main_ppo data.seed=4 'trainer.logger=[\"console\"]' +a.b=1 --config-name=x\n"
    path.write_text("+ set -e\n" + command + log.text())
    assert load(path).run.arguments == ("data.seed=4", 'trainer.logger=["console"]', "+a.b=1")
    path.write_text(log.text())
    assert load(path).run.arguments is None


def test_the_line_of_a_replayed_rollout_is_kept_as_a_marker(tmp_path: Path) -> None:
    marker = "[RolloutSkip()] Successfully load pre-generated data from /tmp/rollout_dump"
    log = verl_logs.make_log("0.6.1", 5, rollout_text=[marker], actor_rollout_ref__rollout__skip_rollout=True)
    assert load(log.write(tmp_path / "log.txt")).run.log_markers == (marker,)
    bare = verl_logs.make_log("0.6.1", 5, rollout_text=[marker], with_config=False)
    assert load(bare.write(tmp_path / "log.txt")).run.log_markers == (marker,)


def test_an_sft_log_says_that_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "sft.log"
    path.write_text(
        "".join(f"step:{n} - train/loss:0.5 - train/lr(1e-3):0.01\nstep:{n} - val/loss:0.25\n" for n in range(9))
    )
    loaded = load(path)
    assert any("(SFT)" in note for note in loaded.run.notes)
    assert set(loaded.history.values) == {"train/loss", "train/lr(1e-3)", "val/loss"}


def test_an_easyr1_console_log_is_named_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "easy.log"
    lines = ["Config", "algorithm:", "  adv_estimator: grpo", "Step 1", "actor:", "  lr: 1.0e-06", "  pg_loss: 0.012"]
    path.write_text("".join(f"\x1b[36m(Runner pid=77)\x1b[0m {line}\n" for line in lines))
    assert verl_log.claims(path, path.read_bytes())
    (error,) = verl_log.load([path])
    assert isinstance(error, RunError)
    assert "EasyR1" in error.message and "experiment_log.jsonl" in error.message


def test_a_page_that_tells_how_to_start_verl_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("Run `python3 -m verl.trainer.main_ppo data.seed=1`, see verl/trainer/main_ppo.py\n")
    assert not verl_log.claims(path, path.read_bytes())


def test_a_log_without_steps_says_why(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.6.1", 0, trainer__logger=["wandb"])
    loaded = load(log.write(tmp_path / "log.txt"))
    assert (len(loaded.history), loaded.run.last_step, loaded.run.metric_keys) == (0, None, frozenset())
    assert loaded.run.notes == ("the log holds no step lines: trainer.logger is ['wandb'], without 'console'",)


def test_a_revision_changes_with_the_file(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.6.1", 3)
    path = log.write(tmp_path / "log.txt")
    before = load(path).run.revision
    assert load(path).run.revision == before
    with path.open("a") as file:
        file.write("more\n")
    assert load(path).run.revision != before


def test_windows_line_ends_and_progress_bars_change_nothing(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.7.1", 20)
    path = tmp_path / "log.txt"
    path.write_bytes(log.text().replace("\n", "\r\n").encode())
    loaded = load(path)
    assert (points(loaded), loaded.run.config) == (log.points, log.config)


def test_a_huge_line_and_a_hole_are_passed_over(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.7.1", 20)
    path = tmp_path / "log.txt"
    half = len(log.lines) // 2
    with path.open("wb") as file:
        file.write(("\n".join(log.lines[:half]) + "\n").encode())
        file.write(b"x" * (verl_log.MAX_LINE + 3 * verl_log.BLOCK_BYTES) + b"\n")
        file.write(("\n".join(log.lines[half:]) + "\n").encode())
    loaded = load(path)
    assert points(loaded) == log.points
    assert loaded.run.notes == ("1 lines longer than 8 MB were passed over",)
    with path.open("wb") as file:
        file.write(log.text().encode())
        file.truncate(100 << 20)
    assert points(load(path)) == log.points


def test_the_blocks_of_a_file_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = verl_logs.make_log("0.9.1", 10, seed=2)
    path = log.write(tmp_path / "log.txt")
    for size in (997, 4096, 10_007):
        monkeypatch.setattr(verl_log, "BLOCK_BYTES", size)
        loaded = load(path)
        assert (points(loaded), loaded.run.config) == (log.points, log.config)


@pytest.fixture(scope="module")
def mutable() -> bytes:
    return (verl_logs.make_log("0.3", 6).text() + verl_logs.make_log("0.9.1", 6, seed=1).text()).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_log_never_raises(mutable: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(mutable)
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(damaged)))
        kind = data.draw(st.sampled_from(["insert", "delete", "cut", "digits"]))
        if kind == "insert":
            damaged[place:place] = data.draw(st.binary(max_size=20))
        elif kind == "delete":
            del damaged[place : place + data.draw(st.integers(1, 3000))]
        elif kind == "digits":
            damaged[place:place] = data.draw(st.text("0123456789.-+einfa:[]{}'()", max_size=12)).encode()
        else:
            del damaged[place:]
    path = tmp_path / "log.txt"
    path.write_bytes(damaged)
    verl_log.claims(path, bytes(damaged[:65536]))
    (loaded,) = verl_log.load([path])
    assert isinstance(loaded, LoadedRun)
    assert all(len(column) == len(loaded.history) for column in loaded.history.values.values())


def test_what_cannot_be_opened_is_an_unreadable_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    for path in (tmp_path / "pipe.log", tmp_path / "absent.log", tmp_path):
        (error,) = verl_log.load([path])
        assert isinstance(error, RunError)
        assert str(path) in error.message


def test_the_94_step_log(shared_data: Path) -> None:
    loaded = load(shared_data / "verl" / "grpo_94_steps_taskrunner.log")
    assert loaded.history.step.tolist() == list(range(1, 95))
    clip = loaded.history.values["actor/pg_clipfrac"]
    assert int(np.sum(clip == 0)) == 30
    assert loaded.history.decimals["actor/pg_clipfrac"] == 3
    actor = loaded.run.config["actor_rollout_ref"]
    assert isinstance(actor, dict)
    assert actor["actor"]["checkpoint"] == {"contents": ["model", "optimizer", "extra"]}
    assert actor["actor"]["clip_ratio"] == 0.2
    assert loaded.run.state == RunState.UNKNOWN


def test_the_61_step_log(shared_data: Path) -> None:
    loaded = load(shared_data / "verl" / "ppo_61_steps_main_task.log")
    assert loaded.history.step.tolist() == list(range(61))
    assert set(loaded.history.decimals.values()) == {3}
    assert loaded.run.state == RunState.KILLED


def test_the_logs_without_steps(shared_data: Path) -> None:
    crashed = load(shared_data / "verl" / "crash_before_step_1.log").run
    assert (crashed.state, crashed.last_step, crashed.notes) == (
        RunState.CRASHED,
        None,
        ("the log holds no step lines",),
    )
    assert crashed.config
    assert crashed.arguments is not None
    assert crashed.arguments[0] == "data.train_files=/home/user/data/maze/train.parquet"
    bare = load(shared_data / "verl" / "config_only_crashed.log").run
    assert (bare.state, bare.last_step) == (RunState.UNKNOWN, None)
    assert bare.config
    assert any("without 'console'" in note for note in bare.notes)
    assert any("Search-R1" in note for note in bare.notes)


def test_shuffled_pieces_of_real_logs_never_raise(shared_data: Path, tmp_path: Path) -> None:
    draw = random.Random(5)
    lines = (shared_data / "verl" / "grpo_94_steps_taskrunner.log").read_bytes().split(b"\n")
    for _ in range(5):
        draw.shuffle(lines)
        path = tmp_path / "log.txt"
        path.write_bytes(b"\n".join(lines))
        assert load(path).history.step.tolist() == list(range(1, 95))

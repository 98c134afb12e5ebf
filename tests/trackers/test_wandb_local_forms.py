"""Local W&B runs in forms that today's SDK does not write offline: old rows, online folders, hostile files."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pth_tracker.runs import History, RunError, RunRef, RunState
from pth_tracker.tracker import Query
from pth_tracker.values import canonical_config
from pth_tracker_wandb.local import LocalTracker
from trackers.wandb_local_runs import (
    answer,
    exit_record,
    framed,
    history_record,
    only_history,
    only_run,
    points,
    record,
    run_record,
    write_run,
)


def test_metadata_of_an_online_folder_adds_arguments_and_commit(tmp_path: Path) -> None:
    run = write_run(tmp_path, [run_record(config={"lr": "0.5"}), exit_record()])
    (run / "files").mkdir()
    metadata = {
        "args": ["--lr", "0.5", "trainer.n=2"],
        "program": "/code/train.py",
        "host": "gpu-1",
        "username": "ada",
        "git": {"remote": "git@host:x.git", "commit": "c0ffee"},
        "startedAt": "2024-05-01T10:00:00.5Z",
    }
    (run / "files" / "wandb-metadata.json").write_text(json.dumps(metadata))
    (run / "files" / "config.yaml").write_text("lr:\n  value: 99\n")
    found = only_run(run)
    assert found.arguments == ("--lr", "0.5", "trainer.n=2")
    assert (found.program, found.host, found.user, found.commit) == ("/code/train.py", "gpu-1", "ada", "c0ffee")
    assert found.created == datetime(2024, 5, 1, 10, 0, 0, 500_000, tzinfo=UTC)
    assert found.config == {"lr": 0.5}


def test_environment_record_gives_arguments(tmp_path: Path) -> None:
    environment = {"args": ["--seed", "1"], "program": "t.py", "username": "bo", "git": {"commit": "ab"}, "host": "h"}
    named = only_run(write_run(tmp_path / "a", [run_record(), record(environment=environment), exit_record()]))
    assert named.arguments == ("--seed", "1")
    assert (named.program, named.user, named.commit, named.host) == ("t.py", "bo", "ab", "h")
    assert only_run(write_run(tmp_path / "b", [run_record(), exit_record()])).arguments is None


def test_old_rows_take_their_step_from_the_step_key(tmp_path: Path) -> None:
    rows = [{"_step": 4, "loss": 0.5, "nested": {"deep": {"x": 1}, "img": {"_type": "image-file", "width": 9}}}]
    rows += [{"loss": 0.25, "_step": 6}]
    payloads = [history_record(row, step=0, nested=False) for row in rows]
    run = write_run(tmp_path, [run_record(), *payloads, exit_record()])
    history = only_history(run)
    assert points(history, "loss") == [(4, 0.5), (6, 0.25)]
    assert points(history, "nested.deep.x") == [(4, 1.0)]
    assert set(history.values) == {"loss", "nested.deep.x"}


def test_step_field_alone_is_used_and_a_row_without_any_is_counted(tmp_path: Path) -> None:
    payloads = [history_record({"a": 1}, step=3), history_record({"a": 2}), history_record({"a": 5}, step=3)]
    run = write_run(tmp_path, [run_record(), *payloads, exit_record()])
    history = only_history(run)
    assert points(history, "a") == [(3, 5.0)]
    assert history.conflicts == 1
    assert any("1 history row without a step" in note for note in only_run(run).notes)


def test_media_and_text_are_no_metrics(tmp_path: Path) -> None:
    items = [
        {"nested_key": ["img", "_type"], "value_json": '"image-file"'},
        {"nested_key": ["img", "width"], "value_json": "4"},
        {"nested_key": ["imgs"], "value_json": "4"},
        {"nested_key": ["quoted"], "value_json": '"-Infinity"'},
        {"nested_key": ["number text"], "value_json": '"12"'},
        {"nested_key": ["null"], "value_json": "null"},
        {"nested_key": ["long" * 50], "value_json": "7"},
    ]
    run = write_run(tmp_path, [run_record(), record(history={"item": items, "step": {"num": 1}}), exit_record()])
    assert only_run(run).metric_keys == frozenset(["imgs", "quoted", "long" * 50])
    assert points(only_history(run), "quoted") == [(1, -math.inf)]
    assert points(only_history(run), "long" * 50) == [(1, 7.0)]


def test_a_value_that_imitates_an_item_is_not_read_as_one(tmp_path: Path) -> None:
    fake = "\x12\x04loss\x82\x01\x0299"
    items = [
        {"nested_key": ["loss"], "value_json": "1"},
        {"nested_key": ["loss", "loss"], "value_json": "2"},
        {"nested_key": ["said"], "value_json": json.dumps(fake, ensure_ascii=False)},
        {"nested_key": [fake], "value_json": "3"},
    ]
    row = record(history={"item": items, "step": {"num": 0}})
    run = write_run(tmp_path, [run_record(), row, row, exit_record()])
    history = only_history(run, ["loss", "loss.loss", fake])
    assert {key: points(history, key) for key in history.values} == {
        "loss": [(0, 1.0)],
        "loss.loss": [(0, 2.0)],
        fake: [(0, 3.0)],
    }


def test_long_values_and_repeated_fields_of_a_known_key_are_read_in_full(tmp_path: Path) -> None:
    short: dict[str, object] = {"m": 1}
    long: dict[str, object] = {"m": {"inner": 2, "pad": "x" * 150}}
    repeated = wandb_item(b"m", b"3") + wandb_value(b"4")
    rows = [history_record(row, step=step) for step, row in enumerate([short, short, long])]
    last = b"\x0a" + bytes([len(repeated)]) + repeated + b"\x12\x02\x08\x09"
    rows.append(b"\x12" + bytes([len(last)]) + last)
    history = only_history(write_run(tmp_path, [run_record(), *rows, exit_record()]))
    assert points(history, "m") == [(0, 1.0), (1, 1.0), (9, 4.0)]
    assert points(history, "m.inner") == [(2, 2.0)]


def wandb_item(key: bytes, value: bytes) -> bytes:
    return b"\x12" + bytes([len(key)]) + key + wandb_value(value)


def wandb_value(value: bytes) -> bytes:
    return b"\x82\x01" + bytes([len(value)]) + value


def test_a_run_ended_when_its_records_say_so_not_when_its_file_was_copied(tmp_path: Path) -> None:
    row = history_record({"a": 1, "_timestamp": 1_700_000_100.5}, step=0)
    stats = record(stats={"timestamp": {"seconds": 1_700_000_090}})
    late = record(stats={"timestamp": {"seconds": 1_700_000_115}})
    done = only_run(write_run(tmp_path / "done", [run_record(), stats, row, exit_record()]))
    assert done.ended == datetime.fromtimestamp(1_700_000_100.5, UTC)
    assert done.created == datetime.fromtimestamp(1_700_000_000, UTC)
    copied = only_run(write_run(tmp_path / "copied", [run_record(), stats, row, late]))
    assert copied.ended == datetime.fromtimestamp(1_700_000_115, UTC)
    assert copied.state is RunState.CRASHED
    assert "silent since 2023-11-14 22:15 UTC" in copied.notes[0]


def test_config_records_set_and_remove_nested_keys(tmp_path: Path) -> None:
    update = [
        {"nested_key": ["a", "b"], "value_json": "2"},
        {"nested_key": ["c", "d", "e"], "value_json": "[1]"},
        {"key": "broken", "value_json": "{"},
    ]
    changes = [
        record(config={"update": update, "remove": [{"key": "gone"}, {"nested_key": ["a", "x"]}, {"key": "absent"}]}),
        record(run={"run_id": "abc", "display_name": "renamed", "config": {"update": []}}),
    ]
    start = {"a": '{"b": 1, "x": 0}', "gone": "1", "_wandb": '{"m": []}'}
    run = only_run(write_run(tmp_path, [run_record(config=start), *changes, exit_record()]))
    assert run.config == {"a": {"b": 2}, "c": {"d": {"e": [1]}}, "broken": "{"}
    assert run.name == "renamed"


def test_preempted_run_is_killed(tmp_path: Path) -> None:
    run = only_run(write_run(tmp_path, [run_record(), record(preempting={})]))
    assert run.state is RunState.KILLED


def test_revision_follows_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [run_record(), history_record({"a": 1}, step=0), exit_record()])
    (log,) = folder.glob("*.wandb")
    first = only_run(folder).revision
    assert only_run(folder).revision == first
    log.write_bytes(log.read_bytes() + framed([history_record({"a": 2}, step=1)], start=b""))
    assert only_run(folder).revision != first


def test_oldest_layout_is_read_from_its_text_files(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "run-20190301_100000-old1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(
        "wandb_version: 1\n_wandb:\n  desc: null\n  value: {cli_version: 0.8.0}\n"
        "lr:\n  desc: null\n  value: 1e-06\nseed:\n  desc: null\n  value: 3\n"
    )
    rows = [
        '{"_step": 0, "loss": 2.5, "val": {"acc": NaN}}',
        "{broken",
        '{"_step": 5, "loss": 1, "s": "x"}',
        '{"a": 1}',
    ]
    (run / "wandb-history.jsonl").write_text("\n".join(rows) + "\n")
    metadata = {"args": [], "state": "finished", "project": "ancient", "startedAt": "2019-03-01T10:00:00"}
    (run / "wandb-metadata.json").write_text(json.dumps(metadata))
    found = only_run(tmp_path)
    assert canonical_config(found.config) == {"lr": 1e-6, "seed": 3}
    assert found.ref.project == "ancient"
    assert found.state is RunState.FINISHED
    assert found.arguments == ()
    assert found.created == datetime(2019, 3, 1, 10, tzinfo=UTC)
    assert (found.metric_keys, found.last_step) == (frozenset(["loss", "val.acc", "a"]), 5)
    notes = " | ".join(found.notes)
    assert "no .wandb file" in notes and "1 line without" in notes and "1 row without a step" in notes
    history = only_history(tmp_path)
    assert points(history, "loss") == [(0, 2.5), (5, 1.0)]
    assert history.nonfinite_at["val.acc"].tolist() == [0]


def test_folder_without_a_log_lists_its_config_and_refuses_its_history(tmp_path: Path) -> None:
    run = tmp_path / "run-20240101_100000-gone"
    (run / "files").mkdir(parents=True)
    (run / "files" / "config.yaml").write_text("lr:\n  value: 0.5\n")
    (run / "files" / "wandb-summary.json").write_text('{"loss": 1.5, "_step": 3, "name": "x"}')
    found = only_run(run)
    assert found.config == {"lr": 0.5}
    assert found.metric_keys == frozenset(["loss"])
    assert found.state is RunState.UNKNOWN
    assert any("history is not in the folder" in note for note in found.notes)
    refused = answer(run)
    assert isinstance(refused, RunError)
    assert "no .wandb file" in refused.message and "copy the folder anew" in refused.message


def test_empty_run_folder_is_listed_with_what_is_missing(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "run-20240101_100000-void"
    run.mkdir(parents=True)
    found = only_run(tmp_path)
    assert found.name == "void" and found.state is RunState.UNKNOWN and found.config == {}
    assert any("configuration is not in the folder" in note for note in found.notes)
    assert isinstance(answer(tmp_path), RunError)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", "a: [", "no valid YAML"),
        ("config.yaml", "- 1\n", "no mapping"),
        ("config.yaml", "a: !!python/object/apply:os.system [x]\n", "no valid YAML"),
        ("config.yaml", "[" * 5000, "no valid YAML"),
        ("config.yaml", "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)), "more than 200,000 values"),
        ("config.yaml", "a: &a [*a]\n", "an alias holds itself"),
        ("config.yaml", "x" * (2 * 1024 * 1024 + 1), "larger than 2 MiB"),
        ("wandb-metadata.json", "{", "no valid JSON"),
        ("wandb-metadata.json", "[]", "no JSON object"),
        ("wandb-metadata.json", "[" * 100_000, "no valid JSON"),
    ],
    ids=range(10),
)  # fmt: skip
def test_hostile_text_files_become_notes(tmp_path: Path, name: str, content: str, said: str) -> None:
    run = tmp_path / "run-20240101_100000-bad"
    (run / "files").mkdir(parents=True)
    (run / "files" / name).write_text(content)
    found = only_run(run)
    assert any(said in note for note in found.notes), found.notes
    assert found.config == {}


def test_unknown_ref_is_an_error_for_that_run_alone(tmp_path: Path) -> None:
    tracker = LocalTracker([str(write_run(tmp_path, [run_record(), exit_record()]))])
    (run,) = tracker.runs(Query())
    stranger = RunRef("p", "/elsewhere/run-1")
    answers = dict(tracker.histories([(stranger, None), (run.ref, None)]))
    refused = answers[stranger]
    assert isinstance(refused, RunError) and "list them again" in refused.message
    assert isinstance(answers[run.ref], History)

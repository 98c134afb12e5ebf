import ast
import math
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from mlflow import MlflowClient

from pth_tracker.demo import ConsoleSink, MlflowSink, WandbSink, embedded_store, resolve
from pth_tracker.demo.sinks import Sink, mlflow_metric_key, mlflow_params
from pth_tracker.errors import UsageError

DemoRuns = dict[str, tuple[dict[str, Any], dict[int, dict[str, float]]]]


def replay(sink: Sink, name: str, run: tuple[dict[str, Any], dict[int, dict[str, float]]]) -> None:
    config, history = run
    sink.start(name, config)
    for step, metrics in history.items():
        sink.log(step, metrics)
    sink.finish()


def test_importing_the_demo_imports_no_sdk() -> None:
    program = "import sys, pth_tracker.demo; print([m for m in ('mlflow', 'wandb', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_mlflow_parameters_are_those_of_json_normalize_over_expanded_lists() -> None:
    config = resolve({"data.seed": None, "actor_rollout_ref.actor.optim.lr": 1e-6})

    def expanded(value: Any) -> Any:
        if isinstance(value, list):
            return {"list_len": len(value)} | {str(i): expanded(item) for i, item in enumerate(value)}
        return {key: expanded(item) for key, item in value.items()} if isinstance(value, dict) else value

    frame = pd.json_normalize(expanded(config), sep="/").to_dict(orient="records")[0]
    got = mlflow_params(config)
    assert got == {key: str(value) for key, value in frame.items()}
    assert got["data/seed"] == "None"
    assert got["actor_rollout_ref/actor/optim/lr"] == "1e-06"
    assert got["actor_rollout_ref/actor/optim/betas/list_len"] == "2"
    assert got["actor_rollout_ref/actor/optim/betas/1"] == "0.999"


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("val-core/digits/acc/mean@1", "val-core/digits/acc/mean_at_1"),
        ("a//b", "a/b"),
        ("loss (mean)", "loss _mean_"),
        ("x.y-z: 1_", "x.y-z: 1_"),
    ],
)
def test_mlflow_metric_names(key: str, kept: str) -> None:
    assert mlflow_metric_key(key) == kept


def test_an_mlflow_run_holds_every_value(demo_runs: DemoRuns, mlflow_sqlite: Path) -> None:
    uri = f"sqlite:///{mlflow_sqlite}"
    run = demo_runs["tis-seed43"]
    replay(MlflowSink(uri, "rl", (mlflow_sqlite.parent / "artifacts").as_uri()), "tis-seed43", run)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("rl")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "tis-seed43"
    assert logged.data.params == mlflow_params(run[0])
    keys = {key for metrics in run[1].values() for key in metrics}
    assert set(logged.data.metrics) == {mlflow_metric_key(key) for key in keys}
    for key in ("rollout_corr/k3_kl", "val-core/digits/acc/mean@1", "actor/pg_clipfrac"):
        points = client.get_metric_history(logged.info.run_id, mlflow_metric_key(key))
        want = {step: metrics[key] for step, metrics in run[1].items() if key in metrics}
        assert {point.step: point.value for point in points} == want
        assert len(points) == len(want)


def test_a_failed_mlflow_run_keeps_what_it_had(mlflow_sqlite: Path) -> None:
    uri = f"sqlite:///{mlflow_sqlite}"
    sink = MlflowSink(uri, "rl")
    sink.finish()  # nothing was started: nothing to close
    sink.start("broken", {"a": 1})
    sink.log(1, {"x": math.nan, "y": 2.0})
    sink.finish(failed=True)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("rl")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FAILED"
    assert logged.data.metrics["y"] == 2.0


def test_the_embedded_store_makes_its_own_experiment_anew_and_leaves_others(
    mlflow_template: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pth demo"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(mlflow_template.read_bytes())
    uri = embedded_store(folder)
    assert uri == f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    for experiment in ("rl-stale-demo", "theirs"):
        replay(MlflowSink(uri, experiment), "one", ({"a": 1}, {1: {"x": 1.0}}))
    theirs = client.get_experiment_by_name("theirs")
    assert theirs is not None
    replay(MlflowSink(uri, "theirs"), "binned", ({"a": 1}, {1: {"x": 1.0}}))
    binned = next(r for r in client.search_runs([theirs.experiment_id]) if r.info.run_name == "binned")
    client.delete_run(binned.info.run_id)

    assert embedded_store(folder) == uri
    again = client.get_experiment_by_name("rl-stale-demo")
    assert again is not None
    assert client.search_runs([again.experiment_id], run_view_type=3) == []
    assert Path(again.artifact_location.removeprefix("file://").replace("%20", " ")).parent.parent == folder
    names = {e.name for e in client.search_experiments(view_type=3)}
    assert names == {"Default", "rl-stale-demo", "theirs"}
    kept = client.search_runs([theirs.experiment_id], run_view_type=3)
    assert sorted(run.info.run_name or "" for run in kept) == ["binned", "one"]

    client.delete_experiment(again.experiment_id)  # by a user, from the pages
    embedded_store(folder)
    embedded_store(folder, repaired=True)
    assert {e.name for e in client.search_experiments()} == names | {"rl-stale-demo-repaired"}


def test_a_place_that_cannot_hold_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file: cannot make the demo's store here"):
        embedded_store(tmp_path / "file")
    with pytest.raises(UsageError, match=r"cannot have '\?'"):
        embedded_store(tmp_path / "what?")
    (tmp_path / "folder" / "mlflow.db").mkdir(parents=True)
    with pytest.raises(UsageError, match="choose another folder"):
        embedded_store(tmp_path / "folder")


def test_a_console_log_reads_back_as_configuration_and_values(demo_runs: DemoRuns, tmp_path: Path) -> None:
    run = demo_runs["tis-seed43"]
    path = tmp_path / "logs" / "tis.txt"
    replay(ConsoleSink(path, pid=77), "tis-seed43", run)
    lines = path.read_text().splitlines()
    assert all(line.startswith("(TaskRunner pid=77) ") for line in lines)
    bare = [line.removeprefix("(TaskRunner pid=77) ") for line in lines]
    first = next(i for i, line in enumerate(bare) if line.startswith("step:"))
    assert bare[0].startswith("{'actor_rollout_ref': {")
    assert all(len(line) <= 80 for line in bare[:first])
    assert ast.literal_eval("\n".join(bare[:first])) == run[0]
    read: dict[int, dict[str, float]] = {}
    for line in bare[first:]:
        step, *pairs = line.split(" - ")
        found = [re.fullmatch(r"(.+):([-+\d.e]+)", pair) for pair in pairs]
        read[int(step.removeprefix("step:"))] = {m[1]: float(m[2]) for m in found if m}
    assert read == run[1]


def wandb_records(path: Path) -> list[Any]:
    """The records of a run's transaction log: a LevelDB log of 32 KiB blocks behind a 7-byte header."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    data, position, whole, found = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(whole))
            whole = b""
    return found


def test_an_offline_wandb_run_holds_every_value(
    demo_runs: DemoRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    run = demo_runs["grpo-seed44"]
    replay(WandbSink("rl", "offline", tmp_path), "grpo-seed44", run)
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = wandb_records(log)
    deadline = time.monotonic() + 60
    while records[-1].WhichOneof("record_type") != "exit" and time.monotonic() < deadline:
        # wandb-core may still be writing when `finish` has returned (wandb 0.31, on a busy machine).
        time.sleep(0.1)
        records = wandb_records(log)
    started = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (started.project, started.display_name) == ("rl", "grpo-seed44")
    sections = {item.key for item in started.config.update}
    assert set(run[0]) <= sections
    rows = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    read = {}
    for row in rows:
        values = {item.key or "/".join(item.nested_key): float(item.value_json) for item in row.item}
        read[int(values["_step"])] = {key: value for key, value in values.items() if not key.startswith("_")}
    assert read == run[1]

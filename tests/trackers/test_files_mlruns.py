"""MLflow file stores: one that MLflow itself wrote, ones written here by hand, and the shared public store."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.runs import RunError, RunState
from pth_tracker.values import canonical_config
from pth_tracker_files import mlruns
from pth_tracker_files.sources import LoadedRun

ROOT_META = "experiment_id: '1'\nlifecycle_stage: active\nname: stale\n"
RUN_META = (
    "experiment_id: '1'\nrun_id: {id}\nlifecycle_stage: active\nstatus: {status}\nstart_time: 1000\nend_time: null\n"
)


def add_run(store: Path, name: str = "a" * 32, status: object = 3, meta: str = RUN_META) -> Path:
    folder = store / "1" / name
    for part in ("metrics", "params", "tags"):
        (folder / part).mkdir(parents=True)
    (store / "1" / "meta.yaml").write_text(ROOT_META)
    (folder / "meta.yaml").write_text(meta.format(id=name, status=status))
    return folder


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(*paths: Path) -> list[LoadedRun]:
    loaded = list(mlruns.load(paths))
    assert all(isinstance(item, LoadedRun) for item in loaded), loaded
    return [item for item in loaded if isinstance(item, LoadedRun)]


def listing(store: Path) -> list[tuple[str, int, int]]:
    found = []
    for place, folders, files in os.walk(store):
        for name in folders + files:
            path = Path(place, name)
            found.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
    return sorted(found)


@pytest.fixture(scope="module")
def written_by_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that MLflow's own `FileStore` wrote."""
    from mlflow.entities import Metric, Param, RunStatus, RunTag
    from mlflow.store.tracking.file_store import FileStore

    root = tmp_path_factory.mktemp("mlflow") / "mlruns"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        store: Any = FileStore(str(root), str(root))  # type: ignore[no-untyped-call]
    kept, dropped = store.create_experiment("stale weights"), store.create_experiment("dropped")

    def run(experiment: str, name: str, tags: dict[str, str] | None = None) -> str:
        made = store.create_run(experiment, "ana", 1_700_000_000_000, [RunTag(*t) for t in (tags or {}).items()], name)
        return str(made.info.run_id)

    parent = run(kept, "sweep")
    child = run(kept, "tis", {"mlflow.parentRunId": parent, "team": "rl", "pth.verdict": "fail"})
    for step, value in enumerate([1.0, math.nan, math.inf, -math.inf, 2.5]):
        store.log_metric(child, Metric("val-core/acc", value, 1_700_000_000_000 + step, step))
    store.log_metric(child, Metric("val-core/acc", 3.5, 1_700_000_000_100, 4))
    store.log_metric(child, Metric("eval/loss", 0.5, 1, 7, dataset_name="gsm8k", dataset_digest="d1", run_id=child))
    store.log_param(child, Param("actor/lr", "1e-06"))
    store.log_param(child, Param("seed", "43"))
    store.update_run_info(child, RunStatus.KILLED, 1_700_000_600_000, "tis")
    store.delete_run(run(kept, "deleted"))
    run(kept, "pth-audit")
    run(dropped, "in a deleted experiment")
    store.delete_experiment(dropped)
    return root


def test_what_mlflow_wrote_is_read(written_by_mlflow: Path) -> None:
    before = listing(written_by_mlflow)
    assert mlruns.claims(written_by_mlflow, b"")
    found = {item.run.name: item for item in load(written_by_mlflow)}
    assert listing(written_by_mlflow) == before
    assert set(found) == {"sweep", "tis"}
    run, history = found["tis"].run, found["tis"].history
    assert run.ref.project == "stale weights"
    assert Path(run.ref.run_id).is_dir()
    assert (run.state, run.user) == (RunState.KILLED, "ana")
    assert run.created == datetime.fromtimestamp(1_700_000_000, UTC)
    assert run.ended == datetime.fromtimestamp(1_700_000_600, UTC)
    assert canonical_config(run.config) == {"actor.lr": 1e-6, "seed": 43}
    assert run.tags == ("team=rl",)
    assert run.parent_id == found["sweep"].run.ref.run_id
    steps, values = history.series("val-core/acc")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(values, [1.0, math.nan, math.inf, -math.inf, 3.5])
    assert history.nonfinite_at["val-core/acc"].tolist() == [1, 2, 3]
    assert history.conflicts == 1
    assert [part.tolist() for part in history.series("eval/loss")] == [[7], [0.5]]
    assert run.metric_keys == frozenset({"val-core/acc", "eval/loss"})
    assert (found["sweep"].run.state, found["sweep"].run.last_step) == (RunState.RUNNING, None)


def test_an_experiment_or_a_run_may_be_named_alone(written_by_mlflow: Path) -> None:
    (child,) = [Path(item.run.ref.run_id) for item in load(written_by_mlflow) if item.run.name == "tis"]
    assert mlruns.claims(child, b"") and mlruns.claims(child.parent, b"")
    assert [item.run.ref for item in load(child)] == [
        item.run.ref for item in load(child.parent) if item.run.name == "tis"
    ]
    assert not mlruns.claims(child / "metrics", b"")
    assert not mlruns.claims(child / "meta.yaml", (child / "meta.yaml").read_bytes())


def test_a_store_without_write_permission_is_read(tmp_path: Path) -> None:
    store = tmp_path / "mlruns"
    put(add_run(store) / "metrics", "loss", "1 0.5 1\n")
    places = [store, *(Path(place) for place, _, _ in os.walk(store))]
    for place in places:
        place.chmod(0o555)
    try:
        before = listing(store)
        (loaded,) = load(store)
        assert listing(store) == before
    finally:
        for place in places:
            place.chmod(0o755)
    assert loaded.history.values["loss"].tolist() == [0.5]


def test_lines_of_two_three_and_five_fields(tmp_path: Path) -> None:
    folder = add_run(tmp_path)
    put(folder / "metrics", "old", "1000 0.25\n")
    put(folder / "metrics", "new", "1000 0.25 3\n1001 1e-05 4\n")
    put(folder / "metrics", "with/dataset", "1000 0.25 5 gsm8k abc123\n")
    put(folder / "metrics", "exploration rate", "1000 nan -2\n")
    put(folder / "metrics", "empty", "")
    (loaded,) = load(tmp_path)
    found = {key: [part.tolist() for part in loaded.history.series(key)] for key in loaded.history.values}
    assert found["old"] == [[0], [0.25]]
    assert found["new"] == [[3, 4], [0.25, 1e-5]]
    assert found["with/dataset"] == [[5], [0.25]]
    assert loaded.history.nonfinite_at["exploration rate"].tolist() == [-2]
    assert "empty" not in found


def test_the_largest_float_is_infinity_and_time_orders_the_values_of_a_step(tmp_path: Path) -> None:
    folder = add_run(tmp_path)
    put(folder / "metrics", "a", "1 1.7976931348623157e+308 1\n2 -1.7976931348623157e+308 2\n3 1e308 3\n")
    put(folder / "metrics", "b", "9 2.0 1\n5 1.0 1\n")
    (loaded,) = load(tmp_path)
    assert loaded.history.values["a"].tolist() == [math.inf, -math.inf, 1e308]
    assert loaded.history.series("b")[1].tolist() == [2.0]
    assert loaded.history.conflicts == 1


def test_a_line_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    put(add_run(tmp_path) / "metrics", "loss", "1 0.5 1\n2 0.25 12")
    (loaded,) = load(tmp_path)
    assert loaded.history.step.tolist() == [1]
    assert loaded.run.notes == ("the last line of metric 'loss' breaks off and was left out",)


@pytest.mark.parametrize("line", ["1 0.5 1 x", "now 0.5 1", "1 half 1", "1 0.5 1.5", f"1 0.5 {1 << 63}", "\x00\xff"])
def test_a_line_that_is_none_is_an_error_naming_it(tmp_path: Path, line: str) -> None:
    path = put(add_run(tmp_path) / "metrics", "loss", f"1 0.5 1\n{line}\n")
    good = add_run(tmp_path / "other")
    error, loaded = mlruns.load([tmp_path, tmp_path / "other"])
    assert isinstance(error, RunError) and isinstance(loaded, LoadedRun)
    assert f"{path}, line 2 is no metric line" in error.message
    assert loaded.run.ref.run_id == str(good)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (1, RunState.RUNNING),
        (2, RunState.RUNNING),
        (3, RunState.FINISHED),
        (4, RunState.FAILED),
        (5, RunState.KILLED),
        ("FINISHED", RunState.FINISHED),
        ("SCHEDULED", RunState.RUNNING),
        ("KILLED", RunState.KILLED),
        ("'3'", RunState.FINISHED),
        (17, RunState.UNKNOWN),
        ("[1]", RunState.UNKNOWN),
    ],
)
def test_numeric_and_textual_states(tmp_path: Path, status: object, state: RunState) -> None:
    add_run(tmp_path, status=status)
    assert load(tmp_path)[0].run.state is state


def test_the_revision_changes_with_the_evidence_and_not_with_our_marks(tmp_path: Path) -> None:
    folder = add_run(tmp_path)
    revisions = [load(tmp_path)[0].run.revision]
    put(folder / "tags", "pth.verdict", "fail")
    assert load(tmp_path)[0].run.revision == revisions[0]
    assert load(tmp_path)[0].run.tags == ()
    for part, name, text in (("metrics", "loss", "1 0.5 1\n"), ("params", "seed", "1"), ("tags", "team", "rl")):
        put(folder / part, name, text)
        revisions.append(load(tmp_path)[0].run.revision)
    assert len(set(revisions)) == 4


BROKEN_METAS = [
    "experiment_id: '1'\nrun_id: x\n\tname: [\n",
    "experiment_id: '1'\nrun_id: !!python/object/apply:os.system ['true']\n",
    "experiment_id: '1'\nrun_id: x\nstart_time: 2001-99-99\n",
]


@pytest.mark.parametrize("meta", BROKEN_METAS)
def test_a_broken_description_is_an_error_naming_it(tmp_path: Path, meta: str) -> None:
    folder = add_run(tmp_path)
    (folder / "meta.yaml").write_text(meta)
    (error,) = mlruns.load([tmp_path])
    assert isinstance(error, RunError)
    assert str(folder / "meta.yaml") in error.message and "\n" not in error.message


def test_odd_times_are_no_times(tmp_path: Path) -> None:
    for index, time in enumerate(["null", "yesterday", "-5", "1e300", "99999999999999999999", ".nan", "true"]):
        add_run(tmp_path, name=f"{index:032}", meta=RUN_META.replace("1000", time))
    assert [item.run.created for item in load(tmp_path)] == [None] * 7


def test_other_folders_are_not_claimed(tmp_path: Path) -> None:
    put(tmp_path / "models" / "m-1", "meta.yaml", "experiment_id: '1'\nmodel_id: m-1\nsource_run_id: abc\n")
    put(tmp_path / "prometheus", "meta.yaml", "name: something else\n")
    assert not mlruns.claims(tmp_path, b"")
    assert not mlruns.claims(tmp_path / "absent", b"")


@settings(deadline=None)
@given(raw=st.binary(max_size=80))
def test_no_bytes_let_an_error_out(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    store = tmp_path_factory.mktemp("store")
    folder = add_run(store)
    (folder / "metrics" / "loss").write_bytes(raw)
    (folder / "params" / "p").write_bytes(raw)
    other = add_run(store, name="b" * 32)
    (other / "meta.yaml").write_bytes(b"experiment_id: 1\nrun_id: 2\n" + raw)
    loaded = list(mlruns.load([store]))
    assert all(isinstance(item, LoadedRun | RunError) for item in loaded)
    assert len(loaded) >= 1


def test_the_three_public_runs(shared_data: Path) -> None:
    store = shared_data / "mlflow" / "mlruns"
    before = listing(store)
    assert mlruns.claims(store, b"")
    found = {Path(item.run.ref.run_id).name: item for item in load(store)}
    assert listing(store) == before
    assert len(found) == 3
    assert {item.run.ref.project for item in found.values()} == {"DQN"}
    assert {item.run.name for item in found.values()} == {"qb"}
    main = found["770cc011eb214ea997501cabcfe12f58"]
    assert main.run.state is RunState.FINISHED
    assert main.run.commit == "8855254d201ebd6e6b7dd5f7a5ef8b46b1775c29"
    # Read in the file: "1675439144259 -295.181266 720" is the first line of rollout/ep_rew_mean.
    steps, values = main.history.series("rollout/ep_rew_mean")
    assert (int(steps[0]), float(values[0]), len(steps)) == (720, -295.181266, 30)
    assert main.history.series("train/n_updates")[1][:2].tolist() == [439.0, 1159.0]
    assert len(main.run.config) == 26 and "seed" not in main.run.config
    assert main.run.config["lr"] == "0.0001"
    assert [item.run.state for key, item in sorted(found.items()) if key != main.run.ref.run_id][1:] == [
        RunState.FAILED
    ] * 2

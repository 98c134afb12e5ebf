import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import pth_tracker_wandb.local as local
from pth_tracker.errors import ProjectNotFound, UsageError
from pth_tracker.runs import History, RunRef, RunState
from pth_tracker.tracker import MarkEdit, Marks, Publication, Query, Tracker
from pth_tracker_wandb.local import LocalTracker, recognises_path
from trackers.wandb_local_runs import only_history, only_run, points

MAKE_RUNS = """
import math, sys, wandb
quiet = wandb.Settings(console="off", silent=True)
run = wandb.init(
    mode="offline", dir=sys.argv[1], project="stale", entity="lab", name="grpo 43", group="grpo", job_type="train",
    tags=["paper", "pth:fail"], id="full", settings=quiet,
    config={"value": {"value": 3, "desc": "mine"}, "lr": 1e-6, "layers": [1, 2, {"a": 1}], "none": None,
            "optimiser": {"adam": {"beta": 0.9}}, "limit": math.inf, "flag": True, "text": "1e-06", "gone": 1},
)
run.config.update({"late": 5, "lr": 2e-6}, allow_val_change=True)
run.define_metric("custom/*", step_metric="global_step")
run.log({"loss": 1.5, "actor": {"kl": {"mean": 0.25}, "bad": math.nan}, "grad": math.inf, "said": "text",
         "hist": wandb.Histogram([1, 2, 3]), "done": True, "none": None, "d.ot": 1, "sl/ash": -2e-7})
run.log({"loss": 2, "custom/x": 3, "global_step": 640}, step=7)
run.log({"big": 2**60, "list": [1, 2], "grad": -math.inf}, step=9)
run.log({"one": 1}, step=12, commit=False)
run.log({"two": 2}, step=12)
run.summary["best"] = 3
run.finish()
for attempt in range(2):
    run = wandb.init(mode="offline", dir=sys.argv[1], project="other", id="again", resume="allow", settings=quiet)
    run.log({"loss": float(attempt)})
    run.finish(exit_code=attempt)
run = wandb.init(mode="offline", dir=sys.argv[1], project="stale", job_type="pth-audit", settings=quiet)
run.finish()
"""
MAKE_KILLED = """
import glob, os, sys, time, wandb
run = wandb.init(mode="offline", dir=sys.argv[1], project="stale", id="killed", config={"seed": 43},
                 settings=wandb.Settings(console="off", silent=True))
log, = glob.glob(sys.argv[1] + "/wandb/*-killed/*.wandb")
step = 0
while os.path.getsize(log) < 65536:
    run.log({"loss": step / 8})
    step += 1
    time.sleep(0.0005)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="session")
def sdk_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``wandb/`` holds runs that the real SDK wrote offline."""
    home = tmp_path_factory.mktemp("wandb-home")
    folder = tmp_path_factory.mktemp("sdk")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB")}
    environment |= {"WANDB_ERROR_REPORTING": "false", "HOME": str(home), "WANDB_DATA_DIR": str(home)}
    for script, status in ((MAKE_RUNS, 0), (MAKE_KILLED, -9)):
        command = [sys.executable, "-c", script, str(folder)]
        done = subprocess.run(
            [*command, "--lr", "2e-6"], env=environment, cwd=home, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == status, done.stderr
    return folder


def find(folder: Path, run_id: str) -> Path:
    return next(folder.glob(f"wandb/*-{run_id}"))


def test_attributes_of_a_run_are_those_it_was_started_with(sdk_folder: Path) -> None:
    path = find(sdk_folder, "full")
    run = only_run(path)
    assert run.ref == RunRef("stale", str(path.resolve()))
    assert (run.name, run.group, run.job_type, run.resume_id) == ("grpo 43", "grpo", "train", "full")
    assert run.tags == ("paper",)
    assert run.state is RunState.FINISHED
    assert run.notes == ()
    assert run.program == "<python with no main file>"
    assert run.created is not None and run.ended is not None
    assert timedelta(0) <= run.ended - run.created < timedelta(minutes=2)
    assert abs(datetime.now(UTC) - run.created) < timedelta(hours=1)


def test_config_is_as_logged_with_later_updates_and_own_value_keys(sdk_folder: Path) -> None:
    assert only_run(find(sdk_folder, "full")).config == {
        "value": {"value": 3, "desc": "mine"},
        "lr": 2e-6,
        "layers": [1, 2, {"a": 1}],
        "none": None,
        "optimiser": {"adam": {"beta": 0.9}},
        "limit": math.inf,
        "flag": True,
        "text": "1e-06",
        "gone": 1,
        "late": 5,
    }


def test_history_is_exact(sdk_folder: Path) -> None:
    path = find(sdk_folder, "full")
    history = only_history(path)
    metrics = {key: points(history, key) for key in history.values if not key.startswith("_")}
    assert math.isnan(metrics.pop("actor.bad")[0][1])
    assert metrics == {
        "loss": [(0, 1.5), (7, 2.0)],
        "actor.kl.mean": [(0, 0.25)],
        "grad": [(0, math.inf), (9, -math.inf)],
        "done": [(0, 1.0)],
        "d.ot": [(0, 1.0)],
        "sl/ash": [(0, -2e-7)],
        "custom/x": [(7, 3.0)],
        "global_step": [(7, 640.0)],
        "big": [(9, 2.0**60)],
        "one": [(12, 1.0)],
        "two": [(12, 2.0)],
    }
    assert {key: steps.tolist() for key, steps in history.nonfinite_at.items()} == {"actor.bad": [0], "grad": [0, 9]}
    run = only_run(path)
    assert run.metric_keys == frozenset(history.values)
    assert {"_runtime", "_timestamp"} <= frozenset(history.values)
    assert run.last_step == 12


def test_only_the_named_metrics_are_returned(sdk_folder: Path) -> None:
    history = only_history(find(sdk_folder, "full"), ["actor.kl.mean", "loss", "absent", "said"])
    assert set(history.values) == {"actor.kl.mean", "loss"}
    assert history.step.tolist() == [0, 7]


def test_rows_agree_with_wandbs_own_reader(sdk_folder: Path) -> None:
    path = find(sdk_folder, "full")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(path)]
    environment = os.environ | {"WANDB_ERROR_REPORTING": "false"}
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True).stdout
    expected = {}
    for line in printed.splitlines():
        entry = json.loads(line)
        if entry["type"] == "history":
            for key, value in entry["history"]["item"].items():
                number = float(value) if value in ("NaN", "Infinity", "-Infinity") else value
                if isinstance(number, int | float) and key != "_step":
                    expected[entry["history"]["step"]["num"], key] = float(number)
    history = only_history(path)
    ours = {(step, key): value for key in history.values for step, value in points(history, key)}
    assert len(expected) > 15
    assert ours.keys() == expected.keys()
    for place, value in expected.items():
        np.testing.assert_equal(ours[place], value)


def test_segments_of_a_resumed_run_share_the_resume_id(sdk_folder: Path) -> None:
    runs = list(LocalTracker([str(sdk_folder)]).runs(Query(project="other")))
    assert [run.resume_id for run in runs] == ["again", "again"]
    assert len({run.ref for run in runs}) == 2
    assert [run.state for run in runs] == [RunState.FINISHED, RunState.FAILED]
    assert "exit code 1" in runs[1].notes[0]
    created = [run.created for run in runs]
    assert created[0] is not None and created[1] is not None and created[0] < created[1]
    tracker = LocalTracker([str(sdk_folder)])
    histories = dict(tracker.histories([(run.ref, ["loss"]) for run in runs]))
    losses = [histories[run.ref] for run in runs]
    assert [points(history, "loss") for history in losses if isinstance(history, History)] == [[(0, 0.0)], [(0, 1.0)]]


def test_a_killed_run_is_running_until_its_log_falls_silent(sdk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = find(sdk_folder, "killed")
    monkeypatch.setattr(local, "QUIET_AFTER", timedelta(days=1))
    run = only_run(path)
    assert run.state is RunState.RUNNING
    assert run.ended is None
    assert any("no exit record and is being written" in note for note in run.notes)
    monkeypatch.setattr(local, "QUIET_AFTER", timedelta(0))
    later = only_run(path)
    assert later.state is RunState.CRASHED
    assert later.ended is not None
    assert later.revision != run.revision
    assert any("no exit record and is silent since" in note for note in later.notes)
    assert later.config == {"seed": 43}
    history = only_history(path, ["loss"])
    assert len(history) > 100
    assert history.step.tolist() == list(range(len(history)))
    assert history.values["loss"].tolist() == [step / 8 for step in range(len(history))]
    assert later.last_step == len(history) - 1


def test_projects_are_listed_filtered_and_missed(sdk_folder: Path) -> None:
    tracker = LocalTracker([str(sdk_folder)])
    assert list(tracker.projects()) == ["other", "stale"]
    assert [run.resume_id for run in tracker.runs(Query(project="stale"))] == ["full", "killed"]
    assert [run.resume_id for run in tracker.runs(Query(project="lab/stale"))] == ["full"]
    with pytest.raises(ProjectNotFound, match=r"belongs to 'rl'; its projects: other, stale"):
        list(tracker.runs(Query(project="rl")))
    with pytest.raises(ProjectNotFound, match="did you mean 'stale'"):
        list(tracker.runs(Query(project="lab/stael")))


def test_runs_come_in_order_of_time_without_audit_runs_and_since_cuts(sdk_folder: Path) -> None:
    tracker = LocalTracker([str(sdk_folder)])
    runs = list(tracker.runs(Query()))
    assert [run.resume_id for run in runs] == ["full", "again", "again", "killed"]
    assert list(tracker.runs(Query(since=runs[2].created))) == runs[2:]


def test_where_is_refused(sdk_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--where 'config\.lr > 1' is evaluated by a W&B server"):
        list(LocalTracker([str(sdk_folder)]).runs(Query(where="config.lr > 1")))


@pytest.mark.parametrize("inside", ["", "wandb", "wandb/latest-run"])
def test_folders_are_recognised_and_no_run_counts_twice(sdk_folder: Path, inside: str) -> None:
    path = sdk_folder / inside
    assert recognises_path(path)
    runs = list(LocalTracker([str(path), str(sdk_folder / "wandb")]).runs(Query()))
    assert len({run.ref for run in runs}) == len(runs) == 4


def test_a_log_file_named_by_itself_is_its_folders_run(sdk_folder: Path, tmp_path: Path) -> None:
    folder = find(sdk_folder, "full")
    (log,) = folder.glob("*.wandb")
    assert recognises_path(log)
    assert only_run(log) == only_run(folder)
    lone = tmp_path / "run-full.wandb"
    lone.write_bytes(log.read_bytes())
    run = only_run(lone)
    assert run.ref == RunRef("stale", str(lone.resolve()))
    assert points(only_history(lone), "loss") == [(0, 1.5), (7, 2.0)]


def test_other_paths_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "run.log").write_text("step:1")
    for path in (tmp_path, tmp_path / "run.log", tmp_path / "absent", tmp_path / "absent.wandb"):
        assert not recognises_path(path)
    with pytest.raises(UsageError, match=r"no W&B run is at .*: name a wandb folder"):
        LocalTracker([str(tmp_path)])
    with pytest.raises(UsageError, match=r"there is no .*absent"):
        LocalTracker([str(tmp_path / "absent")])


def test_nothing_is_ever_written(sdk_folder: Path) -> None:
    tracker = LocalTracker([str(sdk_folder)])
    assert isinstance(tracker, Tracker)
    assert "wandb sync" in tracker.read_only
    assert not tracker.has_tags
    before = {path: path.stat().st_mtime_ns for path in sdk_folder.rglob("*")}
    refs = [run.ref for run in tracker.runs(Query())]
    assert tracker.marks(refs) == {ref: Marks() for ref in refs}
    edit = MarkEdit(refs[0], "grpo 43", set_values={"verdict": "fail"})
    (result,) = tracker.apply([edit])
    assert result.edit == edit and "only read" in result.error
    with pytest.raises(UsageError, match="only read"):
        tracker.publish(Publication("stale", datetime.now(UTC), (), (), {}))
    tracker.close()
    assert {path: path.stat().st_mtime_ns for path in sdk_folder.rglob("*")} == before


def test_importing_the_reader_imports_no_sdk() -> None:
    script = "import sys, pth_tracker_wandb.local; sys.exit('wandb' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0

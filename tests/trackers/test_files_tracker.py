"""The tracker over files: what it finds, what it refuses, what it never does (wait, raise, import much)."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import pth_tracker_files
import verl_logs
from pth_tracker.errors import NothingSelected, ProjectNotFound, UsageError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.tracker import MarkEdit, Query, Tracker, adapter_for, open_address
from pth_tracker_files import discover, verl_log
from pth_tracker_files import tracker as tracker_module
from pth_tracker_files.sources import Source, all_sources, read_head
from pth_tracker_files.tracker import FilesTracker


def write_log(path: Path, steps: int = 5, seed: int = 0, release: str = "0.6.1") -> verl_logs.Log:
    log = verl_logs.make_log(release, steps, seed=seed, data__seed=seed)
    log.write(path)
    return log


def listed(*locations: Path | str) -> list[SourceRun]:
    return list(FilesTracker([str(location) for location in locations]).runs(Query()))


def messages(tracker: FilesTracker) -> dict[str, str]:
    refs = [run.ref for run in tracker.runs(Query())]
    answers = tracker.histories([(ref, None) for ref in refs])
    return {Path(ref.run_id).name: answer.message for ref, answer in answers if isinstance(answer, RunError)}


def test_it_is_a_tracker_and_writes_nothing(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log")
    tracker = pth_tracker_files.open_tracker([str(tmp_path)])
    assert isinstance(tracker, Tracker)
    assert tracker.read_only and not tracker.has_tags and list(tracker.projects()) == []
    ref = RunRef("", "x")
    (result,) = tracker.apply([MarkEdit(ref, "x")])
    assert result.error == f"{tracker.read_only}: nothing can be written back to them"
    assert not tracker.marks([ref])[ref].values
    assert open_address(tracker.address).address == tracker.address


def test_all_sources_satisfy_the_protocol() -> None:
    sources: tuple[Source, ...] = all_sources()
    assert len({source.KIND for source in sources}) == len(sources) >= 2


def test_files_folders_and_patterns_are_found_once_in_order(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "deep/er/c.txt", "deep/z.out"):
        write_log(tmp_path / name)
    (tmp_path / "notes.md").write_text("nothing\n")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.log")
    assert [run.name for run in listed(tmp_path)] == ["a", "b", "z", "c"]
    assert [run.name for run in listed(tmp_path / "b.log", tmp_path / "a.log", tmp_path / "b.log")] == ["b", "a"]
    assert [run.name for run in listed(f"{tmp_path}/?.log")] == ["a", "b"]
    assert sorted(run.name for run in listed(f"{tmp_path}/**/*.*")) == ["a", "b", "c", "notes", "z"]


def test_names_are_made_unique_with_the_folders_above(tmp_path: Path) -> None:
    for name in ("tis/seed1/out.log", "tis/seed2/out.log", "grpo/seed1/out.log", "grpo/single.log"):
        write_log(tmp_path / name)
    names = sorted(run.name for run in listed(tmp_path))
    assert names == ["grpo/seed1/out", "single", "tis/seed1/out", "tis/seed2/out"]


def test_a_file_named_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    write_log(tmp_path / "run[1].log")
    assert [run.name for run in listed(tmp_path / "run[1].log")] == ["run[1]"]


def test_what_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    for location in (str(tmp_path / "absent.log"), f"{tmp_path}/*.log", "a\0b"):
        with pytest.raises(UsageError):
            FilesTracker([location])


def test_a_folder_without_runs_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello\n")
    with pytest.raises(NothingSelected, match=r"looked for .*verl console logs.*readme\.txt"):
        listed(tmp_path)


def test_a_project_or_a_filter_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log")
    tracker = FilesTracker([str(tmp_path)])
    with pytest.raises(ProjectNotFound):
        list(tracker.runs(Query(project="x")))
    with pytest.raises(UsageError):
        list(tracker.runs(Query(where="x = 1")))


def test_since_leaves_out_files_last_written_before(tmp_path: Path) -> None:
    write_log(tmp_path / "old.log")
    write_log(tmp_path / "new.log")
    os.utime(tmp_path / "old.log", (1_600_000_000, 1_600_000_000))
    since = datetime.now(UTC) - timedelta(days=1)
    assert [run.name for run in FilesTracker([str(tmp_path)]).runs(Query(since=since))] == ["new"]


def test_unreadable_files_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    write_log(tmp_path / "good.log")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "broken.log").symlink_to(tmp_path / "absent")
    (tmp_path / "loop.log").symlink_to(tmp_path / "loop.log")
    (tmp_path / "nul.log").write_bytes(b"\0" * 1_000_000)
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 100)
    paths = sorted(tmp_path.iterdir())
    tracker = FilesTracker([str(path) for path in paths])
    found = messages(tracker)
    assert sorted(found) == ["binary.log", "broken.log", "empty.log", "loop.log", "nul.log", "pipe.log"]
    assert "pipe" in found["pipe.log"] and "empty" in found["empty.log"] and "binary" in found["nul.log"]
    assert "link to nothing" in found["broken.log"]
    runs = list(tracker.runs(Query()))
    assert [run.name for run in runs if run.metric_keys] == ["good"]
    # Below a folder that the user named, they are notes.
    below = FilesTracker([str(tmp_path)])
    assert messages(below) == {} and len(list(below.runs(Query()))) == 1
    assert sum(name in " ".join(below.notes) for name in ("pipe.log", "broken.log", "loop.log", "empty.log")) == 4


def test_a_forbidden_file_is_an_error_even_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "good.log")
    write_log(tmp_path / "secret.log")
    (tmp_path / "secret.log").chmod(0)
    if os.geteuid() == 0:  # Root may read everything.
        whole = read_head

        def forbidding(path: Path) -> bytes:
            if path.name == "secret.log":
                raise PermissionError(13, "Permission denied")
            return whole(path)

        monkeypatch.setattr(discover, "read_head", forbidding)
    found = messages(FilesTracker([str(tmp_path)]))
    assert found == {"secret.log": f"{tmp_path}/secret.log cannot be read: Permission denied"}


def test_a_source_that_breaks_is_one_unreadable_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "a.log")
    write_log(tmp_path / "b.log")
    whole = verl_log._load_log

    def broken(path: Path) -> object:
        if path.name == "a.log":
            raise RuntimeError("out of luck")
        return whole(path)

    monkeypatch.setattr(verl_log, "_load_log", broken)
    assert messages(FilesTracker([str(tmp_path)])) == {"a.log": f"{tmp_path}/a.log cannot be read: out of luck"}


def test_histories_are_exact_and_hold_what_was_asked_for(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.log", 20)
    fresh = FilesTracker([str(tmp_path)])
    ref = RunRef("", str(tmp_path / "a.log"))
    ((_, history),) = fresh.histories([(ref, ["actor/lr", "critic/score/mean", "absent"])])
    assert isinstance(history, History)
    assert set(history.values) == {"actor/lr", "critic/score/mean"}
    assert (
        dict(zip(history.step.tolist(), history.values["critic/score/mean"].tolist(), strict=True))
        == (log.points["critic/score/mean"])
    )
    ((_, gone),) = fresh.histories([(RunRef("", str(tmp_path / "gone.log")), None)])
    assert isinstance(gone, RunError)


def test_a_chosen_metric_brings_only_its_own_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("step:1 - actor/a:1.0\nstep:2 - actor/a:nan\nstep:3 - critic/b:1.0\n")
    ref = RunRef("", str(path))
    ((_, history),) = FilesTracker([str(path)]).histories([(ref, ["actor/a"])])
    assert isinstance(history, History)
    assert history.step.tolist() == [1, 2]
    assert history.nonfinite_at["actor/a"].tolist() == [2]


def test_references_and_addresses_go_to_other_processes(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log", 7)
    tracker = FilesTracker([str(tmp_path)])
    (run,) = tracker.runs(Query())
    address, ref = pickle.loads(pickle.dumps((tracker.address, run.ref)))
    ((_, history),) = open_address(address).histories([(ref, None)])
    assert isinstance(history, History) and len(history) == 7


def test_wandb_folders_below_are_left_to_their_adapter(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log")
    write_log(tmp_path / "wandb" / "run-20250101_000000-abc" / "files" / "output.log")
    tracker = FilesTracker([str(tmp_path)])
    assert [run.name for run in tracker.runs(Query())] == ["a"]
    assert any("W&B" in note for note in tracker.notes)
    output = tmp_path / "wandb" / "run-20250101_000000-abc" / "files" / "output.log"
    assert [run.name for run in listed(output)] == ["output"]


def test_recognises_files_and_leaves_other_stores_alone(tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "a.log")
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    (tmp_path / "run-1.wandb").write_bytes(b":W&B")
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    for location in ("logs", "logs/a.log", "logs/*.log", "pipe"):
        assert pth_tracker_files.recognises(str(tmp_path / location)), location
    for location in ("mlflow.db", "run-1.wandb", "wandb", "absent", "absent/*.log"):
        assert not pth_tracker_files.recognises(str(tmp_path / location)), location
    for location in ("sqlite:///mlflow.db", "http://localhost:5000", "https://api.example.org", "wandb", ""):
        assert not pth_tracker_files.recognises(location), location
    assert adapter_for(str(tmp_path / "logs")) == "files"
    assert list(pth_tracker_files.candidates()) == []


def test_a_folder_that_contains_itself_ends(tmp_path: Path) -> None:
    write_log(tmp_path / "logs" / "a.log")
    (tmp_path / "logs" / "again").symlink_to(tmp_path / "logs")
    deep = tmp_path / "logs"
    for level in range(20):
        deep = deep / str(level)
    write_log(deep / "too_deep.log")
    tracker = FilesTracker([str(tmp_path)])
    assert [run.name for run in tracker.runs(Query())] == ["a"]
    assert any("folders deep" in note for note in tracker.notes)


@pytest.mark.parametrize("threads", [False, True])
def test_several_processes_read_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    logs = {f"run{n}": write_log(tmp_path / f"run{n}.log", 20 + n, n) for n in range(4)}
    monkeypatch.setattr(tracker_module, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    if threads:
        monkeypatch.setattr(threading, "active_count", lambda: 2)
    tracker = FilesTracker([str(tmp_path)])
    runs = list(tracker.runs(Query()))
    assert [run.name for run in runs] == sorted(logs)
    for run in runs:
        ((_, history),) = tracker.histories([(run.ref, None)])
        assert isinstance(history, History)
        points = logs[run.name].points["actor/grad_norm"]
        assert np.array_equal(history.values["actor/grad_norm"], np.array(list(points.values())))


def test_a_huge_sparse_file_is_read_in_little_memory(tmp_path: Path) -> None:
    log = write_log(tmp_path / "sparse.log", 20)
    with (tmp_path / "sparse.log").open("r+b") as file:
        file.truncate(300 << 20)
    with (tmp_path / "zeros.log").open("wb") as file:
        file.truncate(300 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracker = FilesTracker([str(tmp_path / "zeros.log")])
    assert list(messages(tracker)) == ["zeros.log"]
    (run,) = listed(tmp_path / "sparse.log")
    assert run.last_step == max(log.points["actor/lr"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell a process's memory")
def test_a_log_of_a_gigabyte_is_read_whole_in_little_memory(tmp_path: Path) -> None:
    log = verl_logs.make_log("0.7.1", 40)
    half = len(log.lines) // 2
    answer = "".join(f"(TaskRunner pid=4711) {'so the total is 48 / 2 = 24 clips, ' * 9}{n}\n" for n in range(99))
    answer += "(TaskRunner pid=4711) and so the answer is step:7 - 5:3\n"
    path = tmp_path / "large.log"
    with path.open("w", encoding="utf-8") as file:
        file.write("\n".join(log.lines[:half]) + "\n")
        for _ in range(1 + (1 << 30) // (100 * len(answer))):
            file.write(answer * 100)
        file.write("\n".join(log.lines[half:]) + "\n")
    code = (
        "import re\nfrom pathlib import Path\nfrom pth_tracker.tracker import find_tracker, Query\n"
        f"tracker, _ = find_tracker('', [{str(path)!r}])\n(run,) = tracker.runs(Query())\n"
        "((_, history),) = tracker.histories([(run.ref, None)])\n"
        "print(len(history), sum(history.values['actor/lr']), len(history.values), len(run.config))\n"
        # Not getrusage: its maximum holds that of the process from which this one was forked.
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert shown[:4] == ["40", str(sum(log.points["actor/lr"].values())), str(len(log.points)), str(len(log.config))]
    assert int(shown[4]) < 150 << 10  # kilobytes


def test_reading_a_log_imports_neither_pandas_nor_scipy_nor_an_sdk(tmp_path: Path) -> None:
    write_log(tmp_path / "a.log")
    code = (
        "import sys\nfrom pth_tracker.tracker import find_tracker, Query\n"
        f"tracker, _ = find_tracker('', [{str(tmp_path)!r}])\n"
        "assert len(list(tracker.runs(Query()))) == 1\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"pandas", "scipy", "pyarrow", "mlflow", "wandb", "matplotlib"} & set(shown)


def test_the_real_logs_together(shared_data: Path) -> None:
    runs = {run.name: run for run in listed(shared_data / "verl")}
    assert {name: run.last_step for name, run in runs.items()} == {
        "ppo_61_steps_main_task": 60,
        "grpo_94_steps_taskrunner": 94,
        "config_only_crashed": None,
        "crash_before_step_1": None,
    }

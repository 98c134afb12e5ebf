"""Result tables and W&B exports: written here, and the shared public ones."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.errors import UsageError
from pth_tracker.runs import RunError
from pth_tracker_files import table_files, tables
from pth_tracker_files.sources import LoadedRun, read_head
from pth_tracker_files.table_columns import TableColumns


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def load(paths: Sequence[Path], columns: TableColumns | None = None) -> list[LoadedRun]:
    loaded = list(tables.load(paths, columns))
    assert all(isinstance(item, LoadedRun) for item in loaded), loaded
    return [item for item in loaded if isinstance(item, LoadedRun)]


def refused(path: Path, columns: TableColumns | None = None) -> str:
    (error,) = tables.load([path], columns)
    assert isinstance(error, RunError), error
    assert error.ref.run_id == str(path) and "\n" not in error.message
    return error.message


def claimed(path: Path) -> bool:
    return tables.claims(path, read_head(path))


def points(item: LoadedRun, key: str) -> dict[int, float]:
    steps, values = item.history.series(key)
    return dict(zip(steps.tolist(), values.tolist()))


def test_heavy_libraries_are_imported_on_use_only() -> None:
    code = (
        "import sys, pth_tracker_files.tables, pth_tracker_files.mlruns, pth_tracker_files.tensorboard, "
        "pth_tracker_files.trainer_state; "
        "sys.exit(', '.join({'pandas', 'pyarrow', 'mlflow', 'wandb', 'torch'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_rows_of_method_seed_and_value_are_one_run_each(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "Method,Seed,Acc\ngrpo,1,0.5\ngrpo,2,0.25\ntis,1,0.75\n")
    assert claimed(path)
    loaded = load([path])
    assert [item.run.name for item in loaded] == ["grpo seed 1", "grpo seed 2", "tis seed 1"]
    assert [dict(item.run.config) for item in loaded][0] == {"method": "grpo", "seed": 1}
    assert [points(item, "Acc") for item in loaded] == [{0: 0.5}, {0: 0.25}, {0: 0.75}]
    assert len({item.run.ref for item in loaded}) == 3


def test_a_result_twice_is_two_runs_and_never_one_chosen_in_silence(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "method,seed,lr,acc\ngrpo,1,a,0.5\ngrpo,1,b,0.75\n")
    loaded = load([path])
    assert [item.run.name for item in loaded] == ["grpo seed 1"] * 2
    assert [item.run.config["lr"] for item in loaded] == ["a", "b"]
    assert loaded[0].run.ref != loaded[1].run.ref


def test_curves_are_grouped_by_method_task_and_seed(tmp_path: Path) -> None:
    text = (
        "step,task,algo,seed,reward,loss\n2,walk,sac,1,20,\n1,walk,sac,1,10,0.5\n1,run,sac,1,30,1\n1,walk,td3,1,40,1\n"
    )
    loaded = load([put(tmp_path / "curves.csv", text)])
    assert [item.run.name for item in loaded] == ["sac/walk seed 1", "sac/run seed 1", "td3/walk seed 1"]
    assert points(loaded[0], "reward") == {1: 10.0, 2: 20.0}
    assert points(loaded[0], "loss") == {1: 0.5}
    assert loaded[0].run.config == {"method": "sac", "task": "walk", "seed": 1}
    assert loaded[0].run.last_step == 2


def test_method_and_task_come_from_the_place_where_no_column_names_them(tmp_path: Path) -> None:
    text = "step,reward,seed\n0,1,3\n"
    nested = [put(tmp_path / "a" / f"{m}/{t}.csv", text) for m in ("sac", "tdmpc") for t in ("walk", "run")]
    assert [item.run.name for item in load(nested)] == [
        "sac/walk seed 3",
        "sac/run seed 3",
        "tdmpc/walk seed 3",
        "tdmpc/run seed 3",
    ]
    flat = [put(tmp_path / "b" / f"{m}.csv", text) for m in ("grpo", "tis")]
    assert [dict(item.run.config) for item in load(flat)] == [
        {"method": "grpo", "seed": 3},
        {"method": "tis", "seed": 3},
    ]
    same = [put(tmp_path / "c" / m / "progress.csv", text) for m in ("grpo", "tis")]
    assert [item.run.config["method"] for item in load(same)] == ["grpo", "tis"]
    (alone,) = load([flat[0]])
    assert alone.run.name == "grpo seed 3" and dict(alone.run.config) == {"seed": 3}


def test_other_tables_in_the_tree_do_not_change_what_a_place_says(tmp_path: Path) -> None:
    text = "step,reward,seed\n0,1,3\n"
    curves = [put(tmp_path / "tables" / f"{method}/walk.csv", text) for method in ("sac", "tdmpc")]
    history = put(tmp_path / "exports" / "history.csv", "_step,kl\n0,1\n")
    named = put(tmp_path / "summary.csv", "method,seed,acc\nsac,3,1\n")
    names = [item.run.name for item in load([history, *curves, named])]
    assert names == ["history", "sac seed 3", "tdmpc seed 3", "sac seed 3"]


def test_references_stay_apart_from_their_paths(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "method,seed,acc\na/b#c&d=e,1,0.5\na/b#c&d=f,1,0.5\n")
    refs = [item.run.ref.run_id for item in load([path])]
    assert len(set(refs)) == 2
    assert [ref.rpartition("#")[0] for ref in refs] == [str(path)] * 2
    assert not any("/" in ref.rpartition("#")[2] for ref in refs)


def test_a_history_without_seed_and_method_is_one_run_by_its_file(tmp_path: Path) -> None:
    text = "_step,_runtime,kl,note\n0,1.5,0.1,a\n1,2.5,nan,a\n2,3.5,,a\n"
    a, b = put(tmp_path / "grpo/seed1.csv", text), put(tmp_path / "tis/seed1.csv", text)
    first, second = load([a, b])
    assert (first.run.name, second.run.name) == ("grpo/seed1", "tis/seed1")
    assert dict(first.run.config) == {"note": "a"}
    assert first.history.nonfinite_at["kl"].tolist() == [1]
    assert 2 not in points(first, "kl")


def test_a_byte_order_mark_quotes_and_line_ends_inside_quotes(tmp_path: Path) -> None:
    text = '\ufeff"step","seed","method","return, mean"\r\n"0","1","a ""b""\nc","0.5"\r\n'
    (loaded,) = load([put(tmp_path / "t.csv", text)])
    assert loaded.run.config["method"] == 'a "b"\nc'
    assert points(loaded, "return, mean") == {0: 0.5}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_semicolons_with_decimal_commas_and_tabs(tmp_path: Path, encoding: str) -> None:
    semicolons = put(tmp_path / "s.csv", "step;seed;acc\n0;1;0,5\n1;1;1\n".encode(encoding))
    tabs = put(tmp_path / "t.tsv", "step\tseed\tacc\n0\t1\t0.5\n1\t1\t1\n".encode(encoding))
    for path in (semicolons, tabs):
        assert claimed(path)
        (loaded,) = load([path])
        assert points(loaded, "acc") == {0: 0.5, 1: 1.0}


def test_huge_integers_nan_and_infinity(tmp_path: Path) -> None:
    seed = 12345678901234567890123
    text = f"step,seed,n,kl,ok\n1,{seed},{10**30},NaN,True\n2,{seed},-1e999,inf,False\n3,{seed},7, 0.5 ,N/A\n"
    (loaded,) = load([put(tmp_path / "t.csv", text)])
    assert loaded.run.config["seed"] == seed
    assert points(loaded, "n") == {1: 1e30, 2: -math.inf, 3: 7.0}
    assert loaded.history.nonfinite_at["kl"].tolist() == [1, 2]
    assert points(loaded, "ok") == {1: 1.0, 2: 0.0}


def test_formulas_and_markup_stay_text(tmp_path: Path) -> None:
    hostile = '=HYPERLINK("x")'
    text = 'method,seed,acc,note\n"=HYPERLINK(""x"")",1,0.5,<script>\n'
    (loaded,) = load([put(tmp_path / "t.csv", text)])
    assert loaded.run.config == {"method": hostile, "seed": 1, "note": "<script>"}


def test_a_step_twice_is_named_and_the_later_row_is_used(tmp_path: Path) -> None:
    rows = [(step, 1.0) for step in range(10)] + [(step, 2.0) for step in (3, 4, 5, 8)]
    path = put(tmp_path / "t.csv", "step,reward\n" + "".join(f"{s},{v}\n" for s, v in rows) + ",9\n")
    (loaded,) = load([path])
    assert points(loaded, "reward")[4] == 2.0 and points(loaded, "reward")[6] == 1.0
    assert loaded.history.conflicts == 4
    assert loaded.run.notes == (
        "1 rows of the table have no 'step' and were left out",
        "4 steps (3 to 5, 8) are there more than once: the later row is used",
    )


def test_columns_are_taken_as_named(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "x,who,rep,score,cost,where\n1,grpo,7,0.5,3,gsm8k\n2,grpo,7,0.75,4,gsm8k\n")
    (loaded,) = load([path], TableColumns(method="who", seed="rep", value="score", step="x", task="where"))
    assert loaded.run.name == "grpo/gsm8k seed 7"
    assert loaded.run.metric_keys == frozenset({"score"})
    assert points(loaded, "score") == {1: 0.5, 2: 0.75}
    assert "has no column 'reward' for the value; it has the columns 'x', 'who'" in refused(
        path, TableColumns(value="reward")
    )


def test_columns_are_named_in_one_text() -> None:
    parsed = TableColumns.parse("step=x, arm=who,seed=rep")
    assert parsed == TableColumns(step="x", method="who", seed="rep")
    assert TableColumns.parse("value=acc, mean,task=where") == TableColumns(value="acc, mean", task="where")


@pytest.mark.parametrize("text", ["", "steps=x", "step", "step=", "=x", "step=a,step=b", "arm=a,method=b"])
def test_a_text_that_names_no_column_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--columns"):
        TableColumns.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,y\n1,2\n", "is the step, the seed or the method cannot be told; it has the columns 'x', 'y'"),
        ("step,seed,note\n1,2,good\n", "has no column of numbers to judge besides its steps and seeds"),
        ("step,seed,acc\n1,2,\n", "has no column of numbers to judge"),
        ("step,acc\n1.5,2\n", "the column 'step' of"),
        ("step,acc\n1e300,2\n", "is no whole number of steps"),
        ("step,acc\nfirst,2\n", "holds text, so it counts no steps"),
        ("a_step,b_step,acc\n1,5,0\n2,7,0\n", "several columns of"),
        ("step,acc\n1,2\n3\n", "cannot be read as a table: CSV parse error: Row #3: Expected 2 columns, got 1"),
        ("step,acc,acc\n1,2,3\n", "has several columns named 'acc'"),
        ("", "is empty, or its first line names no columns"),
        ("step,acc\n1,\xff\n", "cannot be read as a table"),
    ],
)
def test_what_cannot_be_told_is_one_clear_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = put(tmp_path / "t.csv", text.encode("latin-1"))
    message = refused(path)
    assert said in message and str(path) in message


def test_columns_that_count_the_same_steps_are_one(tmp_path: Path) -> None:
    (loaded,) = load([put(tmp_path / "t.csv", "a_step,b_step,acc\n1,1,0.5\n2,2,0.75\n")])
    assert points(loaded, "acc") == {1: 0.5, 2: 0.75}


def test_a_parquet_table_says_what_the_csv_says(tmp_path: Path) -> None:
    table = pa.table(
        {
            "step": pa.array([0, 1, 0, 1], pa.int32()),
            "seed": pa.array([1 << 60, 1 << 60, 2, 2], pa.int64()),
            "method": pa.array(["a", "a", "b", "b"]).dictionary_encode(),
            "acc": pa.array([0.1, None, float("nan"), 0.4], pa.float64()),
            "half": pa.array(np.array([1.5, 2.5, 3.5, 4.5], np.float16)),
            "ok": pa.array([True, False, None, True]),
            "tags": pa.array([["x"], [], ["y"], None]),
        }
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    assert claimed(path)
    a, b = load([path])
    assert a.run.config == {"method": "a", "seed": 1 << 60}
    assert points(a, "acc") == {0: 0.1}
    assert b.history.nonfinite_at["acc"].tolist() == [0]
    assert points(b, "half") == {0: 3.5, 1: 4.5}
    assert points(a, "ok") == {0: 1.0, 1: 0.0}
    path.write_bytes(path.read_bytes()[:-20])
    assert not claimed(path)
    assert "cannot be read as a table" in refused(path)
    pq.write_table(pa.table({"prompt": ["a"], "answer": ["b"]}), path)
    assert not claimed(path)


def test_json_lines(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "seed": 3, "config": {"method": "tis"}, "acc": 0.1},
        {"step": 1, "seed": 3, "config": {"method": "tis"}, "acc": float("nan"), "extra": [1, 2]},
        {"step": 2, "seed": 3, "config": {"method": "tis"}, "acc": None, "kl": 1e-7},
    ]
    path = put(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n\n" for row in rows))
    assert claimed(path)
    (loaded,) = load([path])
    assert loaded.run.config == {"seed": 3, "config.method": "tis"}
    assert loaded.history.nonfinite_at["acc"].tolist() == [1]
    assert points(loaded, "kl") == {2: 1e-7}


@pytest.mark.parametrize(
    ("line", "said"),
    [("{broken}", "is no JSON object"), ("[1]", "is no object"), ('{"step": ' + "9" * 5000 + "}", "is no JSON object")],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, line: str, said: str) -> None:
    path = put(tmp_path / "t.jsonl", '{"step": 1, "acc": 1}\n' + line + '\n{"step": 2, "acc": 1}\n')
    message = refused(path)
    assert f"{path}, line 2" in message and said in message


def test_a_last_line_that_breaks_off_is_left_out(tmp_path: Path) -> None:
    (loaded,) = load([put(tmp_path / "t.jsonl", '{"step": 1, "acc": 1}\n{"step": 2, "ac')])
    assert points(loaded, "acc") == {1: 1.0}
    assert loaded.run.notes == ("the last line of t.jsonl breaks off and was left out",)


def test_what_is_no_table_of_results_is_not_claimed(tmp_path: Path) -> None:
    for name, text in {
        "dataset.csv": "question,answer\nwhat?,that\n",
        "dump.jsonl": '{"step": 1, "input": "what?", "output": "that", "score": 1}\n',
        "config.json": '{"seed_everything": 1}\n',
        "notes.txt": "step,seed\n1,2\n",
        "empty.csv": "",
        "one.csv": "acc\n1\n",
    }.items():
        assert not claimed(put(tmp_path / name, text)), name


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as stream:
        stream.truncate(table_files.MAX_BYTES + 1)
    assert "is larger than 2 GiB" in refused(path)


def test_too_many_runs_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{index},0.5\n" for index in range(tables.MAX_RUNS + 1))
    assert "would be 100001 runs by its columns 'seed'" in refused(put(tmp_path / "t.csv", "seed,acc\n" + rows))


EXPORT = '"Step","grpo - lr 1 - reward","grpo - lr 1 - reward__MIN","grpo - lr 1 - reward__MAX"\n'


def test_exported_charts_are_joined_by_the_runs_names(tmp_path: Path) -> None:
    reward = put(tmp_path / "r.csv", EXPORT + '"0","0.5","0.5","0.5"\n"1","","",""\n"2","NaN","NaN","NaN"\n')
    kl = put(tmp_path / "k.csv", EXPORT.replace("reward", "train/kl") + "0,1,1,1\n7,2,2,2\n")
    assert claimed(reward)
    (loaded,) = load([reward, kl])
    assert loaded.run.name == "grpo - lr 1"
    assert points(loaded, "train/kl") == {0: 1.0, 7: 2.0}
    assert loaded.history.nonfinite_at["reward"].tolist() == [2]
    assert 1 not in points(loaded, "reward")
    assert loaded.run.metric_keys == frozenset({"reward", "train/kl"})
    assert loaded.run.notes == ()


def test_averages_in_an_exported_chart_are_said(tmp_path: Path) -> None:
    (loaded,) = load([put(tmp_path / "r.csv", EXPORT + "0,0.5,0.5,0.5\n1,0.7,0.6,0.8\n2,0.7,0.7,0.9\n")])
    (note,) = loaded.run.notes
    assert note.startswith("'reward' differs from its own minimum or maximum at 2 of 3 steps")


def test_a_chart_over_time_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "r.csv", EXPORT.replace("Step", "Relative Time (Process)") + "0.25,1,1,1\n")
    (error,) = tables.load([path])
    assert isinstance(error, RunError)
    assert "'Relative Time (Process)'" in error.message and "choose Step" in error.message


def test_two_runs_of_one_name_in_a_chart_cannot_be_told_apart(tmp_path: Path) -> None:
    header = EXPORT.strip() + "," + EXPORT.strip().split(",", 1)[1]
    assert "has several columns named 'grpo - lr 1 - reward'" in refused(
        put(tmp_path / "r.csv", header + "\n0" + ",1" * 6 + "\n")
    )


@settings(deadline=None)
@given(
    raw=st.binary(max_size=120),
    start=st.sampled_from([b"", b"step,seed,acc\n", b'{"step": 1}\n', b"PAR1", b"\xff\xfe"]),
)
def test_no_bytes_let_an_error_out(tmp_path_factory: pytest.TempPathFactory, raw: bytes, start: bytes) -> None:
    path = put(tmp_path_factory.mktemp("tables") / "t.csv", start + raw)
    assert claimed(path) in (True, False)
    assert all(isinstance(item, LoadedRun | RunError) for item in tables.load([path]))


cells = st.sampled_from(["", "0", "1", "2", "-1", "nan", "inf", "1e5", "0.5", "a", '"a,b"', "1e400", "None", "true"])


@settings(deadline=None)
@given(
    header=st.lists(
        st.sampled_from(["step", "seed", "method", "acc", "x - y", "x - y__MIN", "x - y__MAX"]), min_size=1
    ),
    rows=st.lists(st.lists(cells, min_size=1, max_size=5), max_size=6),
)
def test_no_table_lets_an_error_out(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], rows: list[list[str]]
) -> None:
    width = len(header)
    text = "\n".join(",".join(row) for row in [header, *((row * width)[:width] for row in rows)]) + "\n"
    path = put(tmp_path_factory.mktemp("tables") / "t.csv", text)
    assert all(isinstance(item, LoadedRun | RunError) for item in tables.load([path]))


def test_the_public_tables_are_paired_runs(shared_data: Path) -> None:
    paths = sorted((shared_data / "tables").glob("*/*.csv"))
    assert all(claimed(path) for path in paths)
    loaded = load(paths)
    assert len(loaded) == 36
    found = {tuple(item.run.config[role] for role in ("method", "task", "seed")): item for item in loaded}
    methods = {"dreamerv3", "sac", "tdmpc", "tdmpc2"}
    tasks = {"acrobot-swingup", "cartpole-swingup", "walker-run"}
    assert set(found) == {(method, task, seed) for method in methods for task in tasks for seed in (1, 2, 3)}
    # Read in the file by eye: dreamerv3/acrobot-swingup.csv begins with 0,0.3,3 and 100000,85.3,3.
    steps, values = found["dreamerv3", "acrobot-swingup", 3].history.series("reward")
    assert steps[:2].tolist() == [0, 100_000] and values[:2].tolist() == [0.3, 85.3]
    assert found["tdmpc2", "walker-run", 2].history.series("reward")[1][:2].tolist() == [20.7, 718.3]
    lines = sum(len(path.read_text().split()) - 1 for path in paths)
    assert sum(len(item.history) for item in loaded) == lines
    assert all(item.run.notes == () for item in loaded)


def test_the_public_stitched_export_names_its_double_steps(shared_data: Path) -> None:
    path = shared_data / "wandb_csv" / "stitched_from_three_runs.csv"
    assert claimed(path)
    (loaded,) = load([path])
    assert len(loaded.history) == 1097 and loaded.run.last_step == 1096
    doubles = [note for note in loaded.run.notes if "of several runs" in note]
    assert len(doubles) == 1 and "8 steps (100 to 103, 200 to 203)" in doubles[0]
    assert any("'source/segment' changes along the run: crashed_segment_1" in note for note in loaded.run.notes)
    assert points(loaded, "source/runtime")[2] == 260.869595263

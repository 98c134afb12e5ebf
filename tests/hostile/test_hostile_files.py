"""Hostile files in every format: one sentence naming the file, or a run that can be audited; bounded, and all text."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile.hostile_text import NAMES
from hostile.test_hostile_audits import shows
from pth_tracker.configurations import load_config
from pth_tracker.design.load import load_design
from pth_tracker.engine import Options, audit
from pth_tracker.errors import PthTrackerError
from pth_tracker.plain_yaml import load_yaml
from pth_tracker.render import FORMATS
from pth_tracker.tracker import adapter_for, load_adapter
from pth_tracker.vocabulary.load import load_vocabulary

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 15))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 15))
BOMBS = {
    "aliases": LAUGHS,
    "merges": MERGES,
    "itself": "a: &a [*a]\n",
    "brackets": "[" * 400_000,
    "braces": "{a: " * 200_000,
    "dashes": "- " * 400_000,
    "questions": "? " * 400_000,
    "closed in text": "[ ']', " * 100_000,
    "a date that is none": "a: 2024-99-99\n",
    "a time that is none": "a: !!timestamp x\n",
    "digits": "a: " + "9" * 5_000,
    "objects": "a: !!python/object/apply:os.system [id]\n",
    "NUL": "a: '\0'\n",
    "two documents": "a: 1\n---\nb: 2\n",
    "unhashable": "? [a]\n: 1\n",
    "no UTF-8": "\udcff\udcfe",
}


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
    return path


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("read", [load_design, load_config, lambda path: load_vocabulary((path,))], ids=range(3))
def test_a_bomb_in_our_own_files_is_one_sentence_naming_the_file(
    tmp_path: Path, read: Callable[[Path], object], kind: str
) -> None:
    path = written(tmp_path / "mine.yaml", BOMBS[kind])
    with pytest.raises(PthTrackerError, match=r"mine\.yaml") as refused:
        read(path)
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", BOMBS)
def test_no_bomb_is_data(kind: str) -> None:
    with pytest.raises(ValueError):
        load_yaml(BOMBS[kind])


def test_aliases_within_bounds_are_read() -> None:
    assert load_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}\n") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


def looks_sane(*paths: Path) -> None:
    """Audits the paths as the command does: our own error, or reports that show nothing but text."""
    location = str(paths[0])
    try:
        tracker = load_adapter(adapter_for(location)).open_tracker([str(path) for path in paths])
        try:
            found = audit(tracker, Options())
        finally:
            tracker.close()
    except PthTrackerError as error:
        assert len(str(error)) < 5_000
        return
    for form in FORMATS:
        shows(found, form)


def rows(key: str) -> list[dict[str, object]]:
    return [{"step": step, key: step / 2, "loss": 1.5, "text": key} for step in range(1, 4)]


def jsonl(folder: Path, key: str) -> list[Path]:
    lines = [json.dumps(row) for row in rows(key)]
    lines += ["[" * 100_000, '{"step": 4, "loss": ' + "9" * 5_000 + "}", '{"step": 5, "loss": 1, "loss": 2}', "\0"]
    lines += ['{"step": "6", "loss": true}', '{"step": 1e400, "loss": 1}', '{"step": NaN, "loss": NaN}']
    return [written(folder / "run.jsonl", "\n".join(lines))]


def csv(folder: Path, key: str) -> list[Path]:
    quoted = '"' + key.replace('"', '""') + '"'
    text = f"step,loss,{quoted},loss\n1,0.5,{quoted},2\n2,nan,9e999,x\n{'9' * 5000},1,1,1\n"
    return [written(folder / "run.csv", text)]


def parquet(folder: Path, key: str) -> list[Path]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = key.encode(errors="replace").decode()
    table = pa.table({"step": [1, 2, 3], name: [0.5, float("nan"), 1e308], "loss": pa.nulls(3), "text": [name] * 3})
    pq.write_table(table, folder / "run.parquet")
    return [folder / "run.parquet"]


def trainer_state(folder: Path, key: str) -> list[Path]:
    log: list[dict[str, object]] = [{"step": step, "epoch": 0.1, key: 1.5, "loss": step} for step in range(1, 4)]
    log += [{"step": "4", "loss": True}, {"step": 1 << 70, "loss": 1 << 4000}, {"step": None}]
    state = {"global_step": 3, "max_steps": 3, "log_history": log, "trial_name": key}
    return [written(folder / "checkpoint-3" / "trainer_state.json", json.dumps(state))]


def verl(folder: Path, key: str) -> list[Path]:
    import verl_logs

    text = verl_logs.make_log("0.7.1", 3, trainer__experiment_name=key).text()
    text += f"step:4 - actor/pg_loss:1.0 - actor/{key}:2 - actor/lr:{'9' * 5000}\nstep:{'9' * 400} - actor/lr:1\n"
    return [written(folder / "log.txt", text.encode(errors="replace").decode())]


def hydra(folder: Path, key: str) -> list[Path]:
    import verl_logs

    written(folder / ".hydra" / "config.yaml", f"{json.dumps(key)}: [{json.dumps(key)}]\nseed: 0x{'f' * 5000}\n")
    written(folder / ".hydra" / "overrides.yaml", LAUGHS)
    text = verl_logs.make_log("0.7.1", 3, with_config=False).text()
    return [written(folder / "main.log", text)]


def tensorboard(folder: Path, key: str) -> list[Path]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in (1, 2, -5, 2**62):
        values = [
            Summary.Value(tag=name, simple_value=1e38) for name in (key.encode(errors="replace").decode(), "loss")
        ]
        writer.add_event(Event(step=step, wall_time=1e300, summary=Summary(value=values)))
    writer.close()
    return [folder]


def wandb_folder(folder: Path, key: str) -> list[Path]:
    from trackers.wandb_local_runs import exit_record, history_record, record, run_record, write_run

    name = key.encode(errors="replace").decode()
    config = {name: json.dumps(key), "deep": "[" * 5_000, "big": "9" * 5_000, "list": "[" + "1," * 5_000 + "1]"}
    update = [{"nested_key": ["a"] * 5_000, "value_json": "1"}, {"nested_key": [name, name], "value_json": "2"}]
    start = run_record(config=config, display_name=name, tags=[name, name], run_group=name, job_type=name, host=name)
    history = [history_record({name: step, f"{name}._type": 1, "loss": step / 2}, step=step) for step in range(3)]
    return [write_run(folder, [start, record(config={"update": update}), *history, exit_record()])]


WRITERS = [jsonl, csv, parquet, trainer_state, verl, hydra, tensorboard, wandb_folder]


@pytest.mark.parametrize("kind", [kind for kind in NAMES if kind != "empty"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_hostile_names_in_every_file_format(
    tmp_path: Path, write: Callable[[Path, str], list[Path]], kind: str
) -> None:
    looks_sane(*write(tmp_path, NAMES[kind]))


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_the_writers_of_these_tests_write_runs(tmp_path: Path, write: Callable[[Path, str], list[Path]]) -> None:
    paths = [str(path) for path in write(tmp_path, "plain")]
    tracker = load_adapter(adapter_for(paths[0])).open_tracker(paths)
    try:
        assert list(audit(tracker, Options()).runs)
    finally:
        tracker.close()


def bounded(code: str, megabytes: int, *arguments: Path) -> str:
    """What ``code`` prints in a process that may take so much memory for data."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({megabytes << 20},) * 2)\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


READ = """
    import sys
    from pth_tracker.errors import PthTrackerError
    from pth_tracker.tracker import Query, load_adapter
    tracker = load_adapter("files").open_tracker(sys.argv[1:])
    try:
        runs = list(tracker.runs(Query()))
        for ref, history in tracker.histories([(run.ref, None) for run in runs]):
            print(type(history).__name__)
        print(len(runs), "runs")
    except PthTrackerError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_compressed_parquet_bomb_takes_bounded_memory(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "bomb.parquet"
    chunk = pa.table({"step": pa.array(range(1 << 20)), **{f"k{n}": pa.array([0.0] * (1 << 20)) for n in range(4)}})
    text = pa.array(["x" * (1 << 20)] * 64).dictionary_encode()
    with pq.ParquetWriter(path, chunk.schema, compression="zstd") as writer:
        for _ in range(16):
            writer.write_table(chunk)
    pq.write_table(pa.table({"step": list(range(64)), "loss": [1.0] * 64, "t": text}), tmp_path / "text.parquet")
    assert path.stat().st_size < 80 << 20
    told = bounded(READ, 3_000, path, tmp_path / "text.parquet")
    assert "Error" in told or "runs" in told


def test_a_gzipped_file_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"step": 1, "loss": 2}\n' * 1_000_000))
    assert "Error" in bounded(READ, 1_000, path)


@pytest.mark.parametrize("name", ["config.yaml", "overrides.yaml"])
def test_a_hydra_file_of_brackets_takes_little_memory(tmp_path: Path, name: str) -> None:
    import verl_logs

    log = written(tmp_path / "main.log", verl_logs.make_log("0.7.1", 3, with_config=False).text())
    written(tmp_path / ".hydra" / name, "[" * 1_000_000)
    assert "1 runs" in bounded(READ, 1_000, log)

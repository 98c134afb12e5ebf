"""TensorBoard event files: bytes of real writers, bytes encoded here, and the shared public runs."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.runs import RunError, RunState
from pth_tracker_files import event_files, tensorboard
from pth_tracker_files.sources import LoadedRun, read_head

# Written by tensorboardX 2.6.5: SummaryWriter.add_scalar("a", 0.25, 7, walltime=1e9).
WRITTEN_BY_TENSORBOARDX = bytes.fromhex(
    "1800000000000000a37f4b22090ab714e969c3da411a0d627261696e2e4576656e743a327c2afd61"
    "1700000000000000e7cef81e090000000065cdcd4110072a0a0a080a0161150000803e0658c753"
)
# Written by TensorBoard 2.21: a float64 tensor 0.1 of tag "t" at step -1, then hparams lr=0.1, opt="adam", f=True.
WRITTEN_BY_TENSORBOARD = bytes.fromhex(
    "4800000000000000fe92489d09a4e31ae969c3da411a0d627261696e2e4576656e743a32522e0a2c74656e736f72626f6172642e73756d6d"
    "6172792e7772697465722e6576656e745f66696c655f7772697465720537d5043a000000000000001295eae2090000000065cdcd4110ffff"
    "ffffffffffffff012a240a220a0174420e0802120032089a9999999999b93f4a0d0a090a077363616c6172732001324a69a9bc0000000000"
    "0000cb8f6b3f090000000065cdcd412ab0010aad010a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f4206080112"
    "0212004a84010a81010a0768706172616d7312761a740a070a0166120220010a0f0a026c721209119a9999999999b93f0a0d0a036f707412"
    "061a046164616d22403638396133353939303536336536663937396261643633356139373334373537353365633339616165303364663332"
    "343239353664306438343866646461376329000000000000f03f01513d24"
)


def crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial's definition: independent of the table in the package."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, *values: bytes, time: float = 1e9) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return record(b"\x09" + struct.pack("<d", time) + field(2, step) + field(5, summary))


def version(time: float = 1e9) -> bytes:
    return record(b"\x09" + struct.pack("<d", time) + field(3, b"brain.Event:2"))


def simple(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, content: bytes, plugin: str = "scalars") -> bytes:
    return field(1, tag.encode()) + field(8, content) + field(9, field(1, field(1, plugin.encode())))


def write(folder: Path, *records: bytes, name: str = "events.out.tfevents.1000000000.host.7.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(records))
    return path


def load(paths: Sequence[Path]) -> list[LoadedRun]:
    loaded = list(tensorboard.load(paths))
    assert all(isinstance(item, LoadedRun) for item in loaded), loaded
    return [item for item in loaded if isinstance(item, LoadedRun)]


def series(run: LoadedRun, key: str) -> dict[int, float]:
    steps, values = run.history.series(key)
    return dict(zip(steps.tolist(), values.tolist()))


def test_the_checksum_is_that_of_the_standards_example() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    for data in (b"", b"123456789", bytes(range(256)) * 3):
        assert event_files.masked_crc32c(data) == struct.unpack("<I", masked(data))[0]


def test_a_file_of_tensorboardx_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "run", WRITTEN_BY_TENSORBOARDX, name="events.out.tfevents.1796056523.gpu-3.example")
    assert tensorboard.claims(path, read_head(path))
    (loaded,) = load([path])
    assert series(loaded, "a") == {7: 0.25}
    assert loaded.run.name == "run"
    assert loaded.run.state is RunState.UNKNOWN
    assert loaded.run.host == "gpu-3.example"
    assert loaded.run.last_step == 7
    assert loaded.run.metric_keys == frozenset({"a"})
    assert loaded.run.notes == ()


def accumulated(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that TensorBoard's own accumulator finds in ``folder``, in the order in which it was written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    found = {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        values = [(one.step, tensor_util.make_ndarray(one.tensor_proto)) for one in accumulator.Tensors(tag)]
        found[tag] = [(step, float(value)) for step, value in values if value.ndim == 0 and value.dtype.kind == "f"]
    return {tag: points for tag, points in found.items() if points}


LOGGED: dict[str, list[tuple[int, float]]] = {
    "loss/policy": [(step, math.sin(step) / 7) for step in range(400)],
    "eval/score": [(step, step / 3) for step in range(0, 400, 50)],
    "odd": [(0, math.nan), (1, math.inf), (2, -math.inf), (3, -0.0), (4, 1e-40), (2**40, 3e38)],
}


def same_as_accumulated(folder: Path) -> None:
    """Asserts that our reader and TensorBoard's find the same tags, steps and values, and all that was logged."""
    (loaded,) = load([folder])
    theirs = accumulated(folder)
    assert loaded.run.metric_keys == frozenset(theirs) == frozenset(LOGGED)
    for tag, points in theirs.items():
        steps, values = loaded.history.series(tag)
        assert steps.tolist() == [step for step, _ in points] == [step for step, _ in LOGGED[tag]]
        assert np.array_equal(values, [value for _, value in points], equal_nan=True), tag
        logged = np.array([value for _, value in LOGGED[tag]]).astype(np.float32).astype(np.float64)
        assert np.array_equal(values, logged, equal_nan=True), tag


def test_tensorboards_writer_and_its_accumulator_agree_with_us(tmp_path: Path) -> None:
    summary = pytest.importorskip("tensorboard.summary")
    writer = summary.Writer(str(tmp_path / "run"))
    for tag, points in LOGGED.items():
        for step, value in points:
            writer.add_scalar(tag, np.float32(value), step)
    writer.close()
    same_as_accumulated(tmp_path / "run")


@pytest.mark.slow
def test_torchs_writer_and_tensorboards_accumulator_agree_with_us(tmp_path: Path) -> None:
    written = pytest.importorskip("torch.utils.tensorboard")
    writer = written.SummaryWriter(str(tmp_path / "run"))
    for tag, points in LOGGED.items():
        for step, value in points:
            writer.add_scalar(tag, value, step)
    writer.close()
    same_as_accumulated(tmp_path / "run")


def test_tensors_and_hyperparameters_of_tensorboard_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "run", WRITTEN_BY_TENSORBOARD)
    (loaded,) = load([path])
    assert series(loaded, "t") == {-1: 0.1}
    assert loaded.run.config == {"lr": 0.1, "opt": "adam", "f": True}
    assert loaded.run.host == "host"


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (field(1, 1) + field(5, struct.pack("<f", 1.5)), 1.5),
        (field(1, 1) + field(4, struct.pack("<f", 1.5)), 1.5),
        (field(1, 2) + field(6, struct.pack("<d", 0.1)), 0.1),
        (field(1, 2) + field(4, struct.pack("<d", 0.1)), 0.1),
        (field(1, 19) + field(13, varint(0x3E00)), 1.5),
        (field(1, 19) + field(4, struct.pack("<e", 1.5)), 1.5),
        (field(1, 14) + field(13, varint(0x3FC0)), 1.5),
        (field(1, 14) + field(4, b"\xc0\x3f"), 1.5),
        (field(1, 3) + field(7, varint(-5)), -5.0),
        (field(1, 9) + field(4, struct.pack("<q", -7)), -7.0),
        (field(1, 10) + field(11, varint(1)), 1.0),
        (field(1, 1) + field(2, field(2, field(1, 1))) + field(4, struct.pack("<f", 2.5)), 2.5),
    ],
)
def test_every_type_of_scalar_tensor_is_read(tmp_path: Path, content: bytes, value: float) -> None:
    (loaded,) = load([write(tmp_path, event(3, tensor("x", content)))])
    assert series(loaded, "x") == {3: value}


def test_vectors_images_and_texts_are_no_scalars(tmp_path: Path) -> None:
    vector = field(1, 1) + field(2, field(2, field(1, 2))) + field(4, struct.pack("<2f", 1.0, 2.0))
    path = write(
        tmp_path,
        event(
            1, tensor("vector", vector), tensor("curve", field(1, 1) + field(5, struct.pack("<f", 1.0)), "pr_curves")
        ),
        event(2, field(1, b"image") + field(4, b"\x08\x01"), simple("loss", 2.0)),
        event(3, tensor("note", field(1, 7) + field(8, b"hello"), "text")),
        # Only the first event of a tag names its plugin.
        event(4, field(1, b"curve") + field(8, field(1, 1) + field(5, struct.pack("<f", 1.0)))),
    )
    (loaded,) = load([path])
    assert loaded.run.metric_keys == frozenset({"loss"})
    assert loaded.run.notes == ()


def test_logged_nan_and_infinity_are_evidence(tmp_path: Path) -> None:
    path = write(tmp_path, *(event(i, simple("kl", v)) for i, v in enumerate([1.0, math.nan, math.inf, 2.0])))
    (loaded,) = load([path])
    assert loaded.history.nonfinite_at["kl"].tolist() == [1, 2]
    assert loaded.history.values["kl"][2] == math.inf


def test_texts_of_hugging_face_and_cleanrl_are_the_configuration(tmp_path: Path) -> None:
    def text(tag: str, content: str) -> bytes:
        return tensor(tag, field(1, 7) + field(2, field(2, field(1, 1))) + field(8, content.encode()), "text")

    hf = write(
        tmp_path / "hf",
        event(0, text("args/text_summary", json.dumps({"seed": 42, "temperature": 0.9, "deepspeed": None}))),
        event(0, text("model_config/text_summary", json.dumps({"temperature": 1.0, "vocab_size": 5}))),
    )
    cleanrl = write(
        tmp_path / "cleanrl",
        event(0, text("hyperparameters/text_summary", "|param|value|\n|-|-|\n|env_id|CartPole-v1|\n|seed|7|\n|a|b|c|")),
    )
    other = write(tmp_path / "other", event(0, text("args/text_summary", "[" * 100_000), simple("x", 1.0)))
    found = {item.run.name: item.run.config for item in load([hf, cleanrl, other])}
    assert found["hf"] == {"seed": 42, "temperature": 0.9, "deepspeed": None, "vocab_size": 5}
    assert found["cleanrl"] == {"env_id": "CartPole-v1", "seed": "7", "a": "b|c"}
    assert found["other"] == {}


def test_the_folder_that_add_hparams_makes_belongs_to_its_run(tmp_path: Path) -> None:
    outer = write(tmp_path / "ppo", WRITTEN_BY_TENSORBOARDX)
    inner = write(tmp_path / "ppo" / "1648087114.1234567", WRITTEN_BY_TENSORBOARD)
    (loaded,) = load([outer, inner])
    assert loaded.run.config["opt"] == "adam"
    assert series(loaded, "a") == {7: 0.25}


def test_files_of_one_folder_are_one_run_and_the_later_file_wins(tmp_path: Path) -> None:
    # The names are in the other order: only the events' own times tell which is later.
    first = write(
        tmp_path / "r", version(100.0), *(event(i, simple("x", i), time=100.0) for i in range(5)), name="b.tfevents.2"
    )
    second = write(
        tmp_path / "r",
        version(200.0),
        *(event(i, simple("x", -i), time=200.0) for i in range(3, 7)),
        name="a.tfevents.1",
    )
    (loaded,) = load([first, second])
    assert series(loaded, "x") == {0: 0, 1: 1, 2: 2, 3: -3, 4: -4, 5: -5, 6: -6}
    assert loaded.history.conflicts == 2
    assert loaded.run.created == datetime.fromtimestamp(100, UTC)
    (note,) = loaded.run.notes
    assert "a.tfevents.1 starts again at step 3 of 'x'" in note
    assert "to step 4" in note


def test_a_continued_file_is_no_restart(tmp_path: Path) -> None:
    write(tmp_path, *(event(i, simple("x", i), time=100.0) for i in range(3)), name="a.tfevents.1")
    write(tmp_path, *(event(i, simple("x", i), time=200.0) for i in range(3, 6)), name="b.tfevents.2")
    (loaded,) = load([tmp_path])
    assert loaded.run.notes == ()
    assert len(loaded.history) == 6


def test_names_are_places_below_the_common_folder(tmp_path: Path) -> None:
    seeds = [
        write(tmp_path / "CartPole" / policy / f"seed{s}", event(1, simple("r", 1))) for policy in "ab" for s in (0, 10)
    ]
    names = [item.run.name for item in load(seeds)]
    assert names == ["a/seed0", "a/seed10", "b/seed0", "b/seed10"]
    root = write(tmp_path / "CartPole", event(1, simple("r", 1)))
    assert [item.run.name for item in load([root, seeds[0]])] == ["CartPole", "CartPole/a/seed0"]


@pytest.mark.parametrize("cut", [1, 5, 13, 30])
def test_a_file_that_breaks_off_keeps_what_it_holds(tmp_path: Path, cut: int) -> None:
    whole = [event(i, simple("x", i)) for i in range(4)]
    path = write(tmp_path, *whole)
    path.write_bytes(path.read_bytes()[:-cut])
    (loaded,) = load([path])
    assert series(loaded, "x") == {0: 0, 1: 1, 2: 2}
    (note,) = loaded.run.notes
    assert "breaks off inside its last record" in note
    assert str(sum(map(len, whole[:3]))) in note


def test_a_wrong_length_checksum_ends_the_file_and_says_how_much_is_lost(tmp_path: Path) -> None:
    whole = [event(i, simple("x", i)) for i in range(4)]
    bad = bytearray(whole[2])
    bad[8] ^= 0xFF
    path = write(tmp_path, whole[0], whole[1], bytes(bad), whole[3])
    (loaded,) = load([path])
    assert series(loaded, "x") == {0: 0, 1: 1}
    (note,) = loaded.run.notes
    assert f"the {len(bad) + len(whole[3])} bytes after it are lost" in note


def test_a_record_with_a_wrong_checksum_is_left_out(tmp_path: Path) -> None:
    whole = [event(i, simple("x", i)) for i in range(3)]
    bad = bytearray(whole[1])
    bad[-6] ^= 1
    large = event(9, simple("x", 1.0), *(field(1, b"image") + field(4, bytes(3000)) for _ in range(2)))
    assert len(large) > event_files.MAX_CHECKED
    large = large[:-1] + bytes([large[-1] ^ 1])
    (loaded,) = load([write(tmp_path, whole[0], bytes(bad), whole[2], large)])
    assert series(loaded, "x") == {0: 0, 2: 2}
    (note,) = loaded.run.notes
    assert "2 damaged records were left out" in note


def test_what_is_no_event_file_is_an_error_by_name(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty")
    foreign = write(tmp_path / "foreign", b"this is text, not an event file, whatever its name says")
    huge = write(tmp_path / "huge")
    with huge.open("wb") as stream:
        stream.truncate(event_files.MAX_FILE + 1)
    good = write(tmp_path / "good", WRITTEN_BY_TENSORBOARDX)
    assert all(tensorboard.claims(path, read_head(path)) for path in (empty, foreign, good))
    loaded = list(tensorboard.load([empty, foreign, huge, good]))
    messages = [item.message for item in loaded if isinstance(item, RunError)]
    assert [item.name for item in loaded if isinstance(item, RunError)] == ["empty", "foreign", "huge"]
    assert "are empty" in messages[0]
    assert "is no TensorBoard event file" in messages[1] and str(foreign) in messages[1]
    assert "larger than 8 GiB" in messages[2]
    assert isinstance(loaded[-1], LoadedRun)


def test_only_event_files_are_claimed(tmp_path: Path) -> None:
    renamed = write(tmp_path, WRITTEN_BY_TENSORBOARDX, name="log.bin")
    other = write(tmp_path, record(b"a TFRecord of training data"), name="train.tfrecord")
    assert tensorboard.claims(renamed, read_head(renamed))
    assert not tensorboard.claims(other, read_head(other))
    assert not tensorboard.claims(tmp_path, b"")


def test_the_revision_changes_with_the_files(tmp_path: Path) -> None:
    path = write(tmp_path, event(1, simple("x", 1)))
    before = load([path])[0].run.revision
    assert load([path])[0].run.revision == before
    path.write_bytes(path.read_bytes() + event(2, simple("x", 1)))
    assert load([path])[0].run.revision != before


@settings(deadline=None)
@given(payload=st.binary(max_size=200), tail=st.binary(max_size=40))
def test_no_payload_lets_an_error_out(tmp_path_factory: pytest.TempPathFactory, payload: bytes, tail: bytes) -> None:
    folder = tmp_path_factory.mktemp("events")
    path = write(
        folder, record(payload), event(1, payload), event(2, tensor("x", payload)), event(3, simple("y", 1)), tail
    )
    (loaded,) = load([path])
    assert series(loaded, "y") == {3: 1.0}


@settings(deadline=None)
@given(data=st.data())
def test_no_damage_lets_an_error_out(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(WRITTEN_BY_TENSORBOARD)
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)):
        whole[place] = data.draw(st.integers(0, 255))
    path = write(tmp_path_factory.mktemp("events"), bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    for item in tensorboard.load([path]):
        assert isinstance(item, LoadedRun | RunError)


def test_the_twelve_public_runs(shared_data: Path) -> None:
    folders = sorted((shared_data / "tensorboard").iterdir())
    runs = {item.run.name: item for item in load(folders)}
    assert len(runs) == 12
    assert {name.rsplit("_", 1)[1] for name in runs} == {"0", "10", "100"}
    walker = runs["env_BipedalWalker-v3_Beta_number_2_seed_0"]
    # Read off a hex dump by hand: steps 10 87 27, 10 8f 4e, 10 97 75; values 15 0000b8c2, 0000b6c2, 0000bac2.
    steps, values = walker.history.series("step_rewards_BipedalWalker-v3")
    assert steps[:3].tolist() == [4999, 9999, 14999]
    assert values[:3].tolist() == [-92.0, -91.0, -93.0]
    assert all(len(item.history) == 600 and item.run.last_step == 2_999_999 for item in runs.values())
    assert all(
        item.run.notes == () and np.isfinite(next(iter(item.history.values.values()))).all() for item in runs.values()
    )

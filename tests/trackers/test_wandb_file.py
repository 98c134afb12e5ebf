"""The ``.wandb`` framing and its records: damage of every kind is counted, and nothing but our errors comes out."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pth_tracker.errors import TrackerError
from pth_tracker.runs import History, RunError, RunState
from pth_tracker.tracker import Query
from pth_tracker_wandb.local import LocalTracker
from pth_tracker_wandb.wandb_file import Damage, read_records
from pth_tracker_wandb.wandb_messages import MESSAGES, message_class, record_kind
from pth_tracker_wandb.wandb_records import read_log
from trackers.wandb_local_runs import BLOCK, HEADER, exit_record, framed, history_record, record, run_record

ROWS = 2000
LOG = framed(
    [
        run_record(config={"lr": "0.5"}),
        *(history_record({"loss": step / 4, "pad": "x" * 40}, step=step) for step in range(ROWS)),
        exit_record(),
    ]
)
SMALL = framed(
    [
        run_record(config={"lr": "0.5", "deep": '{"a": [1]}'}, display_name="n", tags=["t"]),
        record(environment={"args": ["-x"], "program": "p"}),
        record(stats={"timestamp": {"seconds": 1_700_000_100}}),
        *(history_record({"loss": step / 4, "_step": step, "_timestamp": 1.7e9}, step=step) for step in range(5)),
        history_record({"loss": {"a": 1}, "text": "x"}, step=9, nested=False),
        exit_record(),
    ]
)


def read(tmp_path: Path, data: bytes) -> tuple[list[bytes], Damage]:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    damage = Damage()
    return list(read_records(path, damage)), damage


def losses(tmp_path: Path, data: bytes) -> tuple[list[int], Damage]:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    log = read_log(path, ["loss"])
    history = log.rows.history()
    steps = history.step.tolist()
    assert [value * 4 for value in history.values.get("loss", [])] == steps
    return steps, log.damage


def test_records_of_every_length_come_back(tmp_path: Path) -> None:
    # Lengths around one and two blocks, and those that leave 0 to 8 bytes at the end of the first one.
    lengths = [0, 1, BLOCK - 14, BLOCK, 2 * BLOCK, 3 * BLOCK + 5, *(BLOCK - 21 - rest for rest in range(9)), 7]
    payloads = [bytes([number]) * length for number, length in enumerate(lengths)]
    for start in range(len(payloads)):
        got, damage = read(tmp_path, framed(payloads[start:]))
        assert got == payloads[start:]
        assert damage == Damage()


def test_our_messages_are_wandbs() -> None:
    from wandb.proto import wandb_internal_pb2

    seconds = wandb_internal_pb2.StatsRecord.DESCRIPTOR.fields_by_name["timestamp"].message_type  # type: ignore[attr-defined]
    checked = 0
    for name in MESSAGES:
        theirs = seconds if name == "Timestamp" else getattr(wandb_internal_pb2, name).DESCRIPTOR
        for own in message_class(name).DESCRIPTOR.fields:
            other = theirs.fields_by_name[own.name]
            assert (own.number, own.is_repeated) == (other.number, other.is_repeated), (name, own.name)
            # Type 12 is bytes: a string (9) or message (11) of theirs, left undecoded.
            assert own.type == other.type or (own.type == 12 and other.type in (9, 11)), (name, own.name)
            if own.type == 11:
                assert own.message_type.name == other.message_type.name
            checked += 1
    assert checked == sum(len(fields.split()) for fields in MESSAGES.values())


def test_kind_of_a_record_is_its_content_whatever_comes_first() -> None:
    assert record_kind(record(num=20_000, summary={})) == 3
    assert record_kind(record(num=1, control={"mailbox_slot": "s" * 300}, uuid="u", exit={"exit_code": 1})) == 18
    assert record_kind(record(num=5)) == 0
    for junk in (b"", b"\x08", b"\xff" * 30, b"\x0d\x01\x02\x03\x04\x12\x00"):
        assert record_kind(junk) == 0


@pytest.mark.parametrize("size", range(len(HEADER) + 1))
def test_log_that_was_never_begun_is_an_empty_crashed_run(tmp_path: Path, size: int) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(HEADER[:size])
    tracker = LocalTracker([str(path)])
    (run,) = tracker.runs(Query())
    assert run.state in (RunState.RUNNING, RunState.CRASHED)
    assert any("the log is empty" in note for note in run.notes)
    ((_, history),) = tracker.histories([(run.ref, None)])
    assert isinstance(history, History) and len(history) == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"not a log", "no W&B log"), (HEADER[:6] + b"\x01" + LOG[7:], "of version 1"), (bytes(100), "no W&B log")],
)
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    tracker = LocalTracker([str(path)])
    (run,) = tracker.runs(Query())
    assert run.state is RunState.UNKNOWN
    assert any(said in note for note in run.notes)
    ((_, refused),) = tracker.histories([(run.ref, None)])
    assert isinstance(refused, RunError) and said in refused.message and str(path) in refused.message


def test_unreadable_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TrackerError, match=r"cannot be read \(Is a directory\)"):
        list(read_records(tmp_path, Damage()))


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 40, 100, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 7, 2 * BLOCK + 11])
def test_a_torn_tail_leaves_every_whole_row(tmp_path: Path, cut: int) -> None:
    steps, damage = losses(tmp_path, LOG[:-cut])
    assert steps == list(range(len(steps)))
    assert len(steps) >= ROWS - 2 - cut // 60
    assert damage.bad_blocks == damage.unreadable == 0


@pytest.mark.parametrize("size", [BLOCK - 3, BLOCK, BLOCK + 3, BLOCK + 7, BLOCK + 8])
def test_a_record_torn_at_a_block_boundary_is_told(tmp_path: Path, size: int) -> None:
    payloads = [b"whole", b"y" * (BLOCK + 500)]
    got, damage = read(tmp_path, framed(payloads)[:size])
    assert got == [b"whole"]
    assert damage.torn > 0
    assert "ends inside a record" in damage.notes()[0]


def test_zeros_at_the_end_are_no_records(tmp_path: Path) -> None:
    steps, damage = losses(tmp_path, LOG + bytes(3 * BLOCK))
    assert steps == list(range(ROWS))
    assert damage.bad_blocks == damage.unreadable == 0


@pytest.mark.parametrize("what", ["data", "checksum", "length", "type", "zeros"])
def test_a_corrupt_block_is_skipped_and_counted(tmp_path: Path, what: str) -> None:
    log = bytearray(LOG)
    place = 2 * BLOCK
    # The first whole record of the third block: past the fragment with which that block begins.
    place += 7 + struct.unpack_from("<IHB", log, place)[1]
    if what == "zeros":
        log[place : 3 * BLOCK] = bytes(3 * BLOCK - place)
    else:
        at = {"data": 9, "checksum": 0, "length": 5, "type": 6}[what]
        log[place + at] ^= 0xFF
    steps, damage = losses(tmp_path, bytes(log))
    assert damage.bad_blocks == 1
    assert damage.unreadable == damage.torn == 0
    missing = sorted(set(range(ROWS)) - set(steps))
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert BLOCK // 100 < len(missing) < BLOCK // 60
    assert "1 corrupt block:" in damage.notes()[0]


def test_a_record_with_a_corrupt_middle_is_dropped_whole(tmp_path: Path) -> None:
    log = bytearray(framed([b"a", b"b" * (3 * BLOCK), b"c"]))
    log[BLOCK + 500] ^= 1
    got, damage = read(tmp_path, bytes(log))
    assert got == [b"a", b"c"]
    assert (damage.bad_blocks, damage.unreadable, damage.torn) == (1, 0, 0)


def test_a_record_that_does_not_decode_is_counted(tmp_path: Path) -> None:
    good = history_record({"loss": 0.25}, step=1)
    bad = [b"\x12\x05\x0a\x7f", b"\xff\xff", b"", record(num=1)]
    steps, damage = losses(tmp_path, framed([run_record(), *bad, good, exit_record()]))
    assert steps == [1]
    assert damage.unreadable == len(bad)


def test_an_orphaned_fragment_is_counted_once(tmp_path: Path) -> None:
    whole = framed([b"a" * 100, b"b" * (3 * BLOCK), b"c"])
    # A log whose first block was cut away begins in the middle of a record.
    got, damage = read(tmp_path, HEADER + bytes(BLOCK - 7) + whole[BLOCK:])
    assert got == [b"c"]
    assert damage.bad_blocks == 1
    assert damage.unreadable == 0


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=8), st.integers(0, len(SMALL)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_bytes_raise_nothing_but_our_errors(tmp_path: Path, edits: list[tuple[int, int]], end: int) -> None:
    data = bytearray(SMALL)
    for place, byte in edits:
        data[place] = byte
    check_survives(tmp_path, bytes(data[:end]) if len(edits) % 2 else bytes(data))


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([exit_record(), history_record({"a": 1}, step=2)]), max_size=6)
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_payload_raises_nothing_but_our_errors(tmp_path: Path, payloads: list[bytes]) -> None:
    check_survives(tmp_path, framed([*payloads, *(b"\x12" + bytes([len(p)]) + p for p in payloads if len(p) < 128)]))


@given(st.lists(st.binary(max_size=40), max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_item_raises_nothing_but_our_errors(tmp_path: Path, items: list[bytes]) -> None:
    history = message_class("HistoryRecord")(item=items, step={"num": 1}).SerializeToString()
    head = b"\x12" + bytes([len(history) % 128 + 128, len(history) // 128])
    check_survives(tmp_path, framed([run_record(), head + history, exit_record()]))


def check_survives(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    tracker = LocalTracker([str(path)])
    (run,) = tracker.runs(Query())
    ((_, answer),) = tracker.histories([(run.ref, None)])
    assert isinstance(answer, History | RunError)
    if isinstance(answer, History):
        assert run.metric_keys is None or set(answer.values) <= run.metric_keys

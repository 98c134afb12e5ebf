"""BatchLedger, fingerprints and check_batch_ids: what is one batch and what is another."""

from __future__ import annotations

import logging
import math
import tracemalloc
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker import STUCK_BATCH, Level, probes
from pth_tracker.fingerprints import batch_numbers, data_order_fingerprint
from pth_tracker.series import check_batch_ids

IDS = np.arange(12, dtype=np.int64).reshape(3, 4)


@dataclass
class Batch:
    input_ids: Any
    name: str = "train"


class Slotted:
    __slots__ = ("input_ids",)

    def __init__(self, input_ids: Any) -> None:
        self.input_ids = input_ids


@pytest.mark.parametrize(
    "same",
    [
        IDS.astype(np.int32),
        IDS.astype(np.uint8),
        IDS.astype(np.float32),
        IDS.tolist(),
        tuple(map(tuple, IDS.tolist())),
        [row for row in IDS],
        torch.tensor(IDS),
        torch.tensor(IDS, dtype=torch.int32),
        torch.tensor(IDS, dtype=torch.bfloat16),
        np.asfortranarray(IDS),
        np.repeat(IDS, 2, axis=1)[:, ::2],
    ],
    ids=lambda value: type(value).__name__,
)
def test_equal_numbers_are_one_batch_whatever_holds_them(same: Any) -> None:
    assert probes.batch_fingerprint(same) == probes.batch_fingerprint(IDS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (IDS, IDS.reshape(4, 3)),
        (IDS, IDS.T.copy()),
        (IDS, IDS + 1),
        (["a", "bc"], ["ab", "c"]),
        ([1, [2, 3]], [[1, 2], 3]),
        ({"x": 1, "y": 2}, {"x": 2, "y": 1}),
        ("1", 1),
        (b"1", "1"),
        (None, "None"),
        (0.1, 0.2),
        (2**63 + 1, 2**63 + 2),
        (np.array([2**63 + 1], dtype=np.uint64), np.array([2**63 + 2], dtype=np.uint64)),
        (Batch(IDS), Batch(IDS + 1)),
        (Slotted(IDS), Slotted(IDS + 1)),
        ({1, 2}, {1, 3}),
        # As printed these are abbreviated, and would be one.
        ({"input_ids": np.arange(5000)}, {"input_ids": np.where(np.arange(5000) == 2500, 0, np.arange(5000))}),
        ([torch.arange(5000)], [torch.arange(5000).index_fill(0, torch.tensor([2500]), 0)]),
    ],
)
def test_other_content_is_another_batch(one: Any, other: Any) -> None:
    assert probes.batch_fingerprint(one) != probes.batch_fingerprint(other) != ""
    assert probes.batch_fingerprint(one, other) != probes.batch_fingerprint(other, one)


def test_mappings_are_equal_by_their_items_and_objects_by_their_fields() -> None:
    plain = {"input_ids": IDS, "name": "x"}
    same = [OrderedDict(reversed(plain.items())), UserDict(plain), {"name": "x", "input_ids": torch.tensor(IDS)}]
    assert {probes.batch_fingerprint(one) for one in [plain, *same]} == {probes.batch_fingerprint(plain)}
    assert probes.batch_fingerprint(Batch(IDS)) == probes.batch_fingerprint(Batch(IDS.tolist()))
    assert probes.batch_fingerprint({3, 1, 2}) == probes.batch_fingerprint({2, 1, 3})


@given(st.lists(st.integers(-(2**62), 2**62), max_size=8), st.lists(st.integers(-(2**62), 2**62), max_size=8))
@settings(deadline=None)
def test_fingerprints_are_equal_exactly_for_equal_lists(one: list[int], other: list[int]) -> None:
    assert (probes.batch_fingerprint(one) == probes.batch_fingerprint(other)) == (one == other)
    assert len(probes.batch_fingerprint(one)) == 16


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(nested)
@settings(deadline=None)
def test_any_plain_content_has_a_fingerprint(value: Any) -> None:
    assert len(probes.batch_fingerprint(value)) == 16


def test_what_cannot_be_told_is_logged_once_and_is_no_repeat(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes, "_told", set())
    endless: list[Any] = []
    endless.append(endless)
    ledger = probes.BatchLedger()
    with caplog.at_level(logging.WARNING):
        for update, batch in enumerate([object(), object(), endless, endless, lambda: None]):
            assert ledger.record(update, batch) == ""
    assert len(caplog.records) == 1
    report = ledger.report()
    assert report.ok and "not known" in report.by_level("warn")[0].title
    assert report.stats["repeated_batches"] == 0
    assert ledger.metrics() == {}


def test_a_record_that_is_none_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(probes, "_told", set())
    ledger = probes.BatchLedger()
    with caplog.at_level(logging.WARNING):
        assert ledger.record("first", "a") == ""  # type: ignore[arg-type]
        assert ledger.record(0, "a", age="old") == ""  # type: ignore[arg-type]
    assert ledger.rows == [] and ledger.metrics() == {}
    assert len(caplog.records) == 1


def test_a_designed_age_that_fails_does_not_break_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_told", set())
    ledger = probes.BatchLedger()
    ledger.record(0, "a", age=1)

    def broken(update: int) -> int:
        raise RuntimeError("no design")

    report = ledger.report(broken)
    assert [finding.level for finding in report.findings] == [Level.WARN]


def test_the_queue_that_serves_one_batch_until_it_is_full_is_a_stuck_batch() -> None:
    # 33 updates on batch 0, then a new one each: 68 distinct batches in 100 updates.
    ledger = probes.BatchLedger()
    for update in range(100):
        ledger.record(update, IDS + max(0, update - 32), age=min(update, 32))
    report = ledger.report(expected_age=lambda update: min(update, 32))
    assert report.stats == {
        "updates": 100,
        "distinct_batches": 68,
        "longest_repeat": 33,
        "repeated_batches": 1,
        "age_min": 0,
        "age_max": 32,
    }
    (failed,) = report.by_level("fail")
    assert failed.tag == STUCK_BATCH and failed.evidence == {"first_repeat_update": 1}
    assert "0 to 32" in failed.detail
    assert "follows the design" in report.by_level("info")[0].title


def test_rows_are_what_was_recorded() -> None:
    ledger = probes.BatchLedger()
    first = ledger.record(7, IDS, age=np.int64(2))  # type: ignore[arg-type]
    assert ledger.record(torch.tensor(8), "mine") == "mine"  # type: ignore[arg-type]
    ledger.record(9, IDS, age=0.5)
    assert ledger.rows == [
        {"update": 7, "batch": first, "age": 2},
        {"update": 8, "batch": "mine", "age": None},
        {"update": 9, "batch": first, "age": 0.5},
    ]


def test_metrics_are_exact_in_float32_and_tell_batches_apart() -> None:
    ledger = probes.BatchLedger()
    seen = set()
    for update in range(5000):
        ledger.record(update, IDS + update, age=3)
        metrics = ledger.metrics()
        assert set(metrics) == {"harness/batch_id", "harness/batch_id_high", "harness/data_age"}
        assert all(float(np.float32(value)) == value and 0 <= value < 2**24 for value in metrics.values())
        seen.add((metrics["harness/batch_id"], metrics["harness/batch_id_high"]))
    assert len(seen) == 5000
    ledger.record(5000, IDS + 4999)
    again = ledger.metrics()
    assert (again["harness/batch_id"], again["harness/batch_id_high"]) in seen
    assert "harness/data_age" not in again


def test_both_numbers_are_48_bits_of_the_identity() -> None:
    import hashlib

    whole = int.from_bytes(hashlib.blake2b(b"abc", digest_size=6).digest(), "big")
    low, high = batch_numbers("abc")
    assert high * 2**24 + low == whole and low < 2**24 and high < 2**24


def test_a_ledger_keeps_little_for_each_update() -> None:
    ledger = probes.BatchLedger()
    for update in range(100):
        ledger.record(update, IDS)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for update in range(20_000):
            ledger.record(update, f"{update:016x}", age=1)
        kept = tracemalloc.get_traced_memory()[0] - before
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert kept / 20_000 < 300
    assert peak < 3 * kept


def test_ids_are_equal_by_value() -> None:
    assert check_batch_ids([7, 7.0, "7", np.int64(7)]).stats["distinct_batches"] == 1
    assert check_batch_ids(["a", " a\n"]).stats["distinct_batches"] == 1
    assert check_batch_ids([0.5, 0.25]).stats["distinct_batches"] == 2


def test_ids_that_are_not_known_are_no_repeats() -> None:
    report = check_batch_ids([1, None, math.nan, None, 2, ""])
    assert report.ok and report.stats["distinct_batches"] == 2
    assert "4 of 6" in report.by_level("warn")[0].title


def test_repeats_that_the_design_allows_are_counted_and_not_blamed() -> None:
    report = check_batch_ids("aabb", expect_unique=False)
    assert report.ok and report.stats["repeated_batches"] == 2


def test_ages_that_are_not_logged_are_not_held_against_the_design() -> None:
    report = check_batch_ids("abc", ages=[0, None, math.nan], expected_age=lambda update: 0)
    assert report.ok and "follows" in report.findings[-1].title
    assert not check_batch_ids("abc", ages=[0, 1, 1], expected_age=lambda update: 0).ok
    assert "no update" in check_batch_ids("a", ages=[None], expected_age=lambda update: 0).by_level("warn")[0].title


def test_sequences_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="3 batch ids and 2 updates"):
        check_batch_ids("abc", updates=[0, 1])
    with pytest.raises(ValueError, match="3 batch ids and 1 ages"):
        check_batch_ids("abc", ages=[0])


def test_data_orders_are_equal_by_value() -> None:
    ids = [3, 1, 2]
    assert (
        data_order_fingerprint(ids)
        == data_order_fingerprint(np.array(ids))
        == data_order_fingerprint(torch.tensor(ids))
    )
    assert data_order_fingerprint(ids) == data_order_fingerprint(np.int32(one) for one in ids)
    assert data_order_fingerprint(ids) != data_order_fingerprint(sorted(ids))
    assert data_order_fingerprint(["a", "b"]) != data_order_fingerprint(["ab"])

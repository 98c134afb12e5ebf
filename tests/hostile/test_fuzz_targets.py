"""The fuzz targets import and run on their seeds without Atheris, and what they found stays mended."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"


@pytest.fixture(params=["fuzz_verl_log", "fuzz_wandb_file"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FUZZ))
    return import_module(request.param)


def test_every_seed_passes(target: ModuleType) -> None:
    seeds = list(target.seeds())
    assert len(set(seeds)) == len(seeds) >= 6
    for seed in seeds:
        target.check(seed)
    assert "atheris" not in sys.modules


def test_damaged_seeds_pass(target: ModuleType) -> None:
    for seed in target.seeds():
        for place in range(1, len(seed), max(1, len(seed) // 8)):
            target.check(seed[:place])
            target.check(seed[:place] + bytes([seed[place] ^ 0x15]) + seed[place + 1 :])


NUMBERS = [b"1_0", b"+5", b" 5", b".5", b"5.", b"nan", b"infinity", b"07", b"9" * 400, b"9" * 5000, b"1\x0002"]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_counts_alike_wherever_it_stands(number: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FUZZ))
    fuzz_wandb_file = import_module("fuzz_wandb_file")
    from pth_tracker_wandb.wandb_messages import message_class
    from trackers.wandb_local_runs import history_record, run_record

    item = message_class("HistoryItem")(nested_key=[b"loss"], value_json=number).SerializeToString()
    row = message_class("HistoryRecord")(item=[item], step={"num": 7}).SerializeToString()
    length = bytes([len(row)]) if len(row) < 128 else bytes([len(row) % 128 + 128, len(row) // 128])
    for records in ([b"\x12" + length + row], [history_record({"loss": 1.5}, step=1), b"\x12" + length + row]):
        whole = [run_record(), *records]
        fuzz_wandb_file.check(b"\1" + b"".join(len(one).to_bytes(2, "little") + one for one in whole))

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from pth_tracker.namespaces import MAX_TEXT, parse_namespace
from pth_tracker.values import canonical_config, show_value


class Shape:
    def __repr__(self) -> str:
        return "<Shape 'of 2' at 0x7f3a>"


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e-06, "epochs": 1, "name": "a, b='c' (d)", "path": None, "on": True, "off": -3},
        {"betas": (0.9, 0.95), "gpus": [0, 1], "extra": {"a": 1, "b": [None]}, "text": '<b> it\'s\n"so"\\'},
        {},
    ],
)
def test_what_python_prints_is_read_back(settings: dict[str, Any]) -> None:
    assert parse_namespace(repr(SimpleNamespace(**settings))) == settings
    nested = SimpleNamespace(own=SimpleNamespace(**settings), kind="x")
    assert parse_namespace(repr(nested)) == {"own": settings, "kind": "x"}


def test_what_is_no_literal_stays_text() -> None:
    printed = repr(SimpleNamespace(kind=int, shape=Shape(), top=math.inf, low=-math.inf))
    read = parse_namespace(printed)
    assert read == {"kind": "<class 'int'>", "shape": "<Shape 'of 2' at 0x7f3a>", "top": math.inf, "low": "-inf"}
    assert parse_namespace("namespace(a=__import__('os').system('x'), b=1)") == {
        "a": "__import__('os').system('x')",
        "b": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        "namespace(",
        "namespace(1, 2)",
        "namespace(a=)",
        "namespace(a=1, **b)x",
        "namespace(a=1) + namespace(b=2)",
        "namespace(" * 500 + ")" * 500,
        "namespace(a=" * 3000 + "1" + ")" * 3000,
        f"namespace(a='{'x' * MAX_TEXT}')",
        "namespace(a=" + "<'" * 40_000 + ")",
        "system('x')",
    ],
)
def test_hostile_text_is_kept_as_it_is(text: str) -> None:
    assert not parse_namespace(text)
    assert canonical_config({"actor": text}) == {"actor": text}


def test_a_printed_configuration_is_one_of_dotted_keys() -> None:
    printed = {"train": "namespace(batch_size=128, seed=42)", "actor": "namespace(adam=namespace(lr='1e-6'), tag='')"}
    assert canonical_config(printed) == {
        "train.batch_size": 128,
        "train.seed": 42,
        "actor.adam.lr": 1e-6,
        "actor.tag": "",
    }


@pytest.mark.parametrize("end", ["", ")", ", 1)", ") + x"])
def test_a_key_in_a_namespace_that_cannot_be_read_is_not_shown(end: str) -> None:
    shown = show_value(f"namespace(wandb=namespace(key='abc123', entity='me'){end}", 500)
    assert "abc123" not in shown and "entity='me'" in shown

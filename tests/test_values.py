from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.demo.sinks import mlflow_params
from pth_tracker.values import (
    MAX_DEPTH,
    MISSING,
    Value,
    all_same,
    canonical_config,
    canonical_value,
    identity_text,
    is_secret,
    listed,
    same_value,
    show_value,
    to_json_value,
    unwrap_wandb,
    value_key,
)

numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=True, allow_infinity=True))
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, words, st.sampled_from(["None", "True", "1e-06", "[1, 2]", "nan"])
)
keys = st.text("abcdefgh_", min_size=1, max_size=6).filter(lambda key: key != "list_len")
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(keys, inner, min_size=1, max_size=4)
    ),
    max_leaves=10,
)  # fmt: skip
configs = st.dictionaries(keys, values, min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("None", None),
        ("null", None),
        ("True", True),
        ("false", False),
        ("1e-06", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-3", -3),
        ("+3", 3),
        ("007", "007"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("", ""),
        ("v1.2", "v1.2"),
        ("1.2.3", "1.2.3"),
        ("[1, 'a', None]", [1, "a", None]),
        ("{'a': [1]}", {"a": [1]}),
        ("(1, 2)", [1, 2]),
        ("(1)", "(1)"),
        ("[1,", "[1,"),
        ("[__import__('os')]", "[__import__('os')]"),
        ("inf", math.inf),
        (" 5 ", 5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1, 2]), [1, 2]),
        ((1, "2"), [1, 2]),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00+00:00"),
    ],
)
def test_canonical_values(raw: object, value: Value) -> None:
    got = canonical_value(raw)
    assert same_value(got, value) and type(got) is type(value)


def test_parsing_is_bounded() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH * 3):
        deep = [deep]
    assert "nested too deeply" in repr(canonical_value(deep))
    assert isinstance(canonical_value("[" * 5000 + "]" * 5000), str)
    assert isinstance(canonical_value("[" + "1," * 50_000 + "]"), str)
    assert isinstance(canonical_value("9" * 5000), str)
    assert canonical_value("1e9999") == "1e9999" or canonical_value("1e9999") == math.inf


@given(values)
def test_canonical_values_are_fixed_points(raw: Any) -> None:
    once = canonical_value(raw)
    if not any(isinstance(leaf, str) for leaf in _leaves(once)):  # text may spell further text
        assert same_value(canonical_value(once), once)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


@given(configs)
@settings(max_examples=300, deadline=None)
def test_mlflows_flat_text_gives_the_same_configuration(nested: dict[str, Any]) -> None:
    direct, through_mlflow = canonical_config(nested), canonical_config(mlflow_params(nested))
    shared = direct.keys() & through_mlflow.keys()
    for key in shared:
        assert same_value(direct[key], through_mlflow[key]), key
    # MLflow's backend drops only what holds an empty mapping; every other key is on both sides.
    assert direct.keys() ^ through_mlflow.keys() == set()


@pytest.mark.parametrize(
    "raw",
    [
        {"a": {"b": {"c": 1}}},
        {"a.b.c": 1},
        {"a/b/c": "1"},
        {"a": {"b.c": 1}},
        {"a/b": {"c": 1.0}},
    ],
)
def test_every_way_of_nesting_gives_dotted_keys(raw: Mapping[str, object]) -> None:
    assert {key: same_value(value, 1) for key, value in canonical_config(raw).items()} == {"a.b.c": True}


@pytest.mark.parametrize(
    ("raw", "config"),
    [
        ({"a/list_len": "0"}, {"a": []}),
        ({"a/list_len": "2", "a/0": "1", "a/1": "x"}, {"a": [1, "x"]}),
        ({"a/list_len": "1", "a/0/b": "1", "a/0/c/d": "2"}, {"a": [{"b": 1, "c": {"d": 2}}]}),
        ({"a/list_len": "1", "a/0/list_len": "1", "a/0/0": "7"}, {"a": [[7]]}),
        ({"a/list_len": "2", "a/0": "1"}, {"a.list_len": 2, "a.0": 1}),
        ({"a/list_len": "99999999999", "a/0": "1"}, {"a.list_len": 99999999999, "a.0": 1}),
        ({"a/list_len": "True", "a/0": "1"}, {"a.list_len": True, "a.0": 1}),
        ({"a/list_len": "-1"}, {"a.list_len": -1}),
        ({"a/list_len": "1", "a/0": "1", "a/note": "x"}, {"a": [1], "a.note": "x"}),
        ({"list_len": "1"}, {"list_len": 1}),
        ({"a": {}}, {"a": {}}),
    ],
)
def test_lists_are_put_together_again(raw: Mapping[str, object], config: Mapping[str, Value]) -> None:
    assert canonical_config(raw) == config


def test_wandbs_wrappers_come_off_once() -> None:
    raw = {
        "lr": {"value": 1, "desc": None},
        "x": {"value": {"value": 2}},
        "_wandb": {"v": 1},
        "y": {"value": 1, "z": 2},
    }
    assert unwrap_wandb(raw) == {"lr": 1, "x": {"value": 2}, "y": {"value": 1, "z": 2}}


# equality


@given(values)
def test_a_value_is_the_same_as_itself(raw: Any) -> None:
    value = canonical_value(raw)
    assert same_value(value, value) and hash(value_key(value)) == hash(value_key(value))


@given(values, values)
def test_sameness_is_symmetric_and_agrees_with_the_key(left: Any, right: Any) -> None:
    a, b = canonical_value(left), canonical_value(right)
    assert same_value(a, b) == same_value(b, a) == (value_key(a) == value_key(b))
    assert all_same([a, b]) == same_value(a, b)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True),
        (0.0, -0.0, True),
        (True, 1, False),
        (False, 0, False),
        (False, None, False),
        ("1", 1, False),
        (math.nan, math.nan, True),
        (math.nan, None, False),
        (math.inf, -math.inf, False),
        ([1, 2], [1.0, 2.0], True),
        ([1, 2], [2, 1], False),
        ([True], [1], False),
        ([math.nan], [math.nan], True),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ({}, [], False),
        ({}, None, False),
        (MISSING, None, False),
        (MISSING, MISSING, True),
        ("missing", MISSING, False),
        (2**53, 2.0**53, True),
        (2**53 + 1, 2.0**53, False),
    ],
)
def test_what_is_the_same(left: Any, right: Any, same: bool) -> None:
    assert same_value(left, right) is same


@pytest.mark.parametrize(
    ("value", "text"), [(43, "43"), (43.0, "43"), (0.5, "0.5"), ("a", "a"), (None, "None"), (MISSING, "(absent)")]
)
def test_identities(value: Any, text: str) -> None:
    assert identity_text(value) == text
    assert identity_text("x" * 500) == "x" * 500


@given(numbers, numbers)
def test_equal_numbers_have_one_identity(left: float, right: float) -> None:
    assert (identity_text(left) == identity_text(right)) or not same_value(left, right)


def test_values_are_shown_short() -> None:
    assert len(show_value("x" * 500)) == 60 and show_value("abc") == "abc" and show_value([1]) == "[1]"
    assert not MISSING


# secrets


@pytest.mark.parametrize(
    "key",
    [
        "wandb_key",
        "stats_logger.wandb.wandb_api_key",
        "tracker_kwargs.api_key",
        "logger.wandb.key",
        "trainer.api-key",
        "hf_token",
        "hub_token",
        "a.token",
        "auth.access_token",
        "WANDB_API_KEY",
        "openai_api_key",
        "aws_secret_access_key",
        "access_key_id",
        "db.password",
        "passwd",
        "client_secret",
        "credentials",
        "wandb_token",
        "aws_session_token",
        "slack_token",
        "gitlab_token",
        "openai_key",
        "headers.Authorization",
        "passphrase",
        "slack_webhook",
        "SLACK_WEBHOOK_URL",
    ],
)
def test_secrets(key: str) -> None:
    assert is_secret(key) and is_secret(f"trainer.{key}") and is_secret(f"trainer/{key}")


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "tokenizer",
        "eos_token_id",
        "num_tokens",
        "token_level_loss",
        "use_token_level_loss",
        "eos_token",
        "pad_token",
        "special_tokens",
        "data.prompt_key",
        "data.reward_fn_key",
        "key",
        "monkey",
        "wandb.project",
        "n_keys",
        "author",
    ],
)
def test_no_secrets(key: str) -> None:
    assert not is_secret(key) and not is_secret(f"trainer.{key}")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([{"api_key": "sk-1", "name": "judge"}], "[{'api_key': '(redacted)', 'name': 'judge'}]"),
        ({"a": {"hf_token": "hf-1"}}, "{'a': {'hf_token': '(redacted)'}}"),
        ("postgresql://u:pass@h/db", "postgresql://u:(redacted)@h/db"),
        (["redis://:pass@h:1/0", "http://h:80/a@b"], "['redis://:(redacted)@h:1/0', 'http://h:80/a@b']"),
    ],
)
def test_shown_values_hold_no_secrets_within(value: Any, shown: str) -> None:
    assert show_value(value, 200) == shown


def test_vocabularies_name_further_secrets() -> None:
    assert is_secret("logger.key", ("logger.key",)) and not is_secret("other.key", ("logger.key",))


# JSON


class Colour(Enum):
    RED = "red"


@given(values)
def test_everything_becomes_strict_json(raw: Any) -> None:
    json.dumps(to_json_value(raw), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (np.float32("nan"), "NaN"),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(False), False),
        (True, True),
        (np.array([[1.0, math.inf]]), [[1.0, "Infinity"]]),
        ((1, {2: math.nan}), [1, {"2": "NaN"}]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (MISSING, "missing"),
        (Colour.RED, "red"),
        (None, None),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00+00:00"),
    ],
)
def test_json_values(value: Any, data: Any) -> None:
    got = to_json_value(value)
    assert got == data and type(got) is type(data)
    json.dumps(got, allow_nan=False)


def test_a_row_of_texts_says_how_many_it_leaves_out() -> None:
    assert listed([], 2) == "" and listed(["a"], 2) == "a" and listed(iter("ab"), 2) == "a, b"
    assert listed(dict.fromkeys("abcd"), 2) == "a, b and 2 more"
    assert listed(map(str, range(9))) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"

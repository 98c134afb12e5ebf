"""Hostile runs through the engine and every renderer: a sensible report in bounded time, and text stays text."""

from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostile.hostile_text import NAMES, VALUES
from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit
from pth_tracker.render import FORMATS, Format, render
from pth_tracker.values import canonical_config, canonical_value, same_value, show_value
from synthetic import FakeRun, audit_of, change, comparison, idle, make_run, with_metrics

MOST = 10_000_000
"""Characters of a report on a few runs, whatever they hold."""


def steers(char: str) -> bool:
    """Whether a terminal, an editor or a page would act on the character instead of showing it."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\n\t"


def shows(audit: Audit, form: Format) -> str:
    """The report, which is text that can be written, and steers nothing."""
    text = render(audit, form, ExitCode.CHECK_FAILED)
    assert len(text) < MOST
    text.encode()
    assert not any(map(steers, set(text)))
    if form.name == "json":
        json.loads(text, parse_constant=pytest.fail)
    if form.name == "junit":
        ET.fromstring(text)
    return text


def runs_named(text: str) -> list[FakeRun]:
    """A comparison with a fault to report, in which every word a tracker gives is ``text`` or has it in it."""
    runs = with_metrics(comparison(seeds=(41, 42)), "*", idle())
    named = []
    for number, run in enumerate(runs):
        words = {"name": f"{run.name}{text}", "group": text, "job_type": text, "tags": (text, text), "user": text}
        words |= {"host": text, "program": text, "commit": text, "url": text, "notes": (text,), "log_markers": (text,)}
        config = {**run.source.config, text: text, "nested": {text: {text: number}}, "listed": [text]}
        named += change([run], "*", **words, arguments=(text, f"--{text}={text}"), config=config)
    return with_metrics(named, "*", {text: 1.0, f"actor/{text}": [1.0, 2.0]})


@pytest.mark.parametrize("kind", NAMES)
def test_every_report_shows_hostile_text_as_text(kind: str) -> None:
    audit = audit_of(runs_named(NAMES[kind]))
    assert any(finding.rule == "idle-clip" for finding in audit.findings)
    for form in FORMATS:
        shows(audit, form)
    for shown in (repr(audit), str(audit), audit._repr_html_()):
        assert len(shown) < MOST
        assert not any(map(steers, set(audit._repr_html_())))


@pytest.mark.parametrize("kind", VALUES)
def test_every_report_survives_a_hostile_configuration(kind: str) -> None:
    runs = with_metrics(comparison(seeds=(41, 42)), "*", idle())
    odd = [
        replace(run, source=replace(run.source, config={**run.source.config, "odd": VALUES[kind] if number % 2 else 1}))
        for number, run in enumerate(runs)
    ]
    audit = audit_of(odd)
    assert any(finding.rule == "idle-clip" for finding in audit.findings)
    for form in FORMATS:
        shows(audit, form)


@pytest.mark.parametrize("kind", VALUES)
def test_a_hostile_value_has_one_form(kind: str) -> None:
    if kind == "object":
        return  # whose text names its place in memory
    value = canonical_value(VALUES[kind])
    assert same_value(value, canonical_value(VALUES[kind]))
    assert len(show_value(value)) <= 60
    flat = canonical_config({"k": VALUES[kind]})
    assert all(isinstance(key, str) for key in flat)
    assert len(flat) <= 100_000


@pytest.mark.slow
def test_a_hundred_thousand_settings_are_read_once_each() -> None:
    runs = [
        make_run(f"r{n}", config={f"key{i}": i + (i == n) for i in range(100_000)}, seed=n, number=n) for n in range(2)
    ]
    audit = audit_of(runs)
    for form in FORMATS:
        shows(audit, form)


def test_ten_thousand_metrics_are_asked_for_by_name() -> None:
    metrics = {f"metric{i}\x1b": 1.0 for i in range(10_000)}
    audit = audit_of(with_metrics(comparison(seeds=(41,)), "*", metrics))
    for form in FORMATS:
        assert "metric9999" not in shows(audit, form)


Series = Callable[[int], list[float]]
SERIES: dict[str, Series] = {
    "all NaN": lambda n: [np.nan] * n,
    "infinite": lambda n: [np.inf, -np.inf] * (n // 2),
    "largest": lambda n: [1.7e308, -1.7e308] * (n // 2),
    "subnormal": lambda n: [5e-324] * n,
    "negative zero": lambda n: [-0.0] * n,
    "one value": lambda n: [0.5],
    "mixed": lambda n: [np.nan, np.inf, 1e308, 5e-324, -1e308] * (n // 5),
}


@pytest.mark.parametrize("kind", SERIES)
def test_every_report_survives_hostile_numbers(kind: str) -> None:
    runs = comparison(seeds=(41, 42))
    keys = sorted({key for run in runs for key in run.points})
    audit = audit_of(with_metrics(runs, "ppo-*", {key: SERIES[kind](60) for key in keys}))
    for form in FORMATS:
        shows(audit, form)


@pytest.mark.parametrize("step", [-(2**63), 2**63 - 61, -1])
def test_every_report_survives_hostile_steps(step: int) -> None:
    runs = comparison(seeds=(41, 42))
    keys = sorted({key for run in runs for key in run.points})
    audit = audit_of(with_metrics(runs, "ppo-*", {key: {step: 1.0, step + 50: 2.0} for key in keys}))
    for form in FORMATS:
        shows(audit, form)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.text(st.characters(), max_size=20),
    config=st.dictionaries(st.text(st.characters(), max_size=12), JSON, max_size=6),
    values=st.lists(st.floats(), min_size=1, max_size=30),
    key=st.sampled_from(["actor/pg_clipfrac", "rollout_corr/k3_kl", "actor/lr", "critic/score/mean", "x\u202e"]),
)
def test_no_run_lets_an_error_out_of_any_renderer(
    name: str, config: dict[str, object], values: list[float], key: str
) -> None:
    runs = [make_run(f"a-{name}", number=1), make_run(f"b-{name}", number=2)]
    runs = [change([run], "*", config={**run.source.config, **config}, tags=(name,))[0] for run in runs]
    audit = audit_of(with_metrics(runs, "a-*", {key: values}))
    for form in FORMATS:
        shows(audit, form)
    assert not any(map(steers, audit._repr_html_()))

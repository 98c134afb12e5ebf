from __future__ import annotations

from pathlib import Path

import pytest

from pth_tracker.design.document import MAX_BYTES
from pth_tracker.design.load import load_design, with_command_line
from pth_tracker.design.schema import Design, MeanOver
from pth_tracker.errors import DesignError, ExitCode

WHOLE = """
arms: {grpo: {name: "grpo-*"}, tis: {config: {algorithm.rollout_correction.rollout_is: token}}}
baseline: tis
vary: [algorithm.rollout_correction.rollout_is]
replicate: [data.seed]
metric: {key: val-core/openai/gsm8k/acc/mean@1, higher_is_better: true, at: {mean_over: 20}}
task: [data.train_files]
benchmarks: []
stress: {key: trainer.sync_interval}
age: {expected: "min(update, 32)"}
tie_margin: 0.01
pairing: required
claims:
  - {text: "TIS is stable for all 100 updates", expect: {stable: tis, max_drop: 0.05}}
ignore: [{rule: idle-clip, arms: [grpo], reason: "the uncorrected baseline, on purpose"}]
rules: {kl_tolerance: 0.05, levels: {too-few-seeds: info}}
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "design.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_whole_design(tmp_path: Path) -> None:
    design = load_design(write(tmp_path, WHOLE))
    assert list(design.arms) == ["grpo", "tis"] and design.arms["grpo"].name == ("grpo-*",)
    assert design.metric is not None and design.metric.at == MeanOver(mean_over=20)
    assert design.source == "design.yaml" and design.ignore[0].arms == ("grpo",)
    assert design.rules.levels == {"too-few-seeds": "info"}


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("arms: {}\nbasline: x\n", 2, "basline", "did you mean 'baseline'?"),
        ("metric:\n  key: x\n  att: last\n", 3, "metric.att", "did you mean 'at'?"),
        ("zzz: 1\n", 1, "zzz", "known here are arms, baseline"),
        ("source: x\n", 1, "source", "unknown key"),
        ("arms:\n  a: {nam: x}\n", 2, "arms.a.nam", "did you mean 'name'?"),
        ("arms:\n  a: {}\n", 2, "arms.a", "an arm needs a name"),
        ("arms: {a: {name: x}}\nbaseline: b\n", 1, "", "baseline 'b' is none of the arms a"),
        ("tie_margin: -1\n", 1, "tie_margin", "greater than 0"),
        ("tie_margin: .inf\n", 1, "tie_margin", "finite"),
        ("rules:\n  kl_tolerance: .inf\n", 2, "rules.kl_tolerance", "finite"),
        ("rules:\n  kl_tolerance: 0\n", 2, "rules.kl_tolerance", "greater than 0"),
        ("rules:\n  levels:\n    idle-clip: loud\n", 3, "rules.levels.idle-clip", "'fail', 'warn', 'info' or 'off'"),
        ("ignore:\n  - rule: idle-clip\n", 2, "ignore.0.reason", "required"),
        ("ignore:\n  - rule: idle-clip\n    reason: no\n", 3, "ignore.0.reason", "string"),
        ("metric: {key: x, at: {mean_over: 0}}\n", 1, "metric.at.mean_over", "greater than or equal to 1"),
        ("metric: {key: x, at: lastt}\n", 1, "metric.at", "'last' or 'best'"),
        ("pairing: perhaps\n", 1, "pairing", "'required' or 'sensible'"),
        ("age: {expected: 'min(update'}\n", 1, "age", "no expression"),
        ("vary: {a: 1}\n", 1, "vary", "has to be a list"),
        ("arms: {a: {name: x}}\narms: {b: {name: y}}\n", 2, "arms", "given twice"),
        ("a: &x [1]\nb: *x\n", 1, "", "aliases"),
        ("- a\n- b\n", 1, "", "is a mapping"),
        ("", 1, "", "is a mapping"),
        ("arms: [", 1, "", ""),
        ("1: x\n", None, "", ""),
        ("a: \x07\n", None, "", ""),
        ("a: !!python/object/apply:os.system ['true']\n", 1, "", ""),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, line: int | None, key: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DesignError) as caught:
        load_design(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and words in message and caught.value.exit_code is ExitCode.USAGE
    assert key in message and "\n" not in message
    if line is not None:
        assert caught.value.line == line, message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path, write(tmp_path, b"\xff\xfe\x00")):
        with pytest.raises(DesignError, match="cannot be read"):
            load_design(path)
    with pytest.raises(DesignError, match="1,000,000 bytes"):
        load_design(write(tmp_path, " " * (MAX_BYTES + 1)))
    with pytest.raises(DesignError):
        load_design(write(tmp_path, "[" * 50_000))


def test_a_file_of_many_keys(tmp_path: Path) -> None:
    lines = "".join(f"   k{n}: {n}\n" for n in range(20_000))
    assert len(load_design(write(tmp_path, f"arms:\n a:\n  config:\n{lines}")).arms["a"].config) == 20_000


def test_the_command_line_comes_on_top(tmp_path: Path) -> None:
    design = load_design(write(tmp_path, WHOLE))
    assert with_command_line(design) is design and with_command_line(None) is None
    changed = with_command_line(design, arms=["a=x-*", "a=y-*", "b = z"], metric="score", vary=["k"], kl_tolerance=0.2)
    assert changed is not None
    assert {arm: own.name for arm, own in changed.arms.items()} == {"a": ("x-*", "y-*"), "b": ("z",)}
    assert changed.baseline == "" and changed.vary == ("k",) and changed.rules.kl_tolerance == 0.2
    assert changed.metric is not None and (changed.metric.key, changed.metric.at) == ("score", MeanOver(mean_over=20))
    assert changed.source == "design.yaml and the command line" and changed.replicate == ("data.seed",)
    kept = with_command_line(design, arms=["tis=t-*", "b=z"])
    assert kept is not None and kept.baseline == "tis"
    fresh = with_command_line(None, vary=["k"])
    assert fresh is not None and dict(fresh) == dict(Design(vary=("k",), source="command line"))


@pytest.mark.parametrize("spec", ["a", "a=", "=x", " = ", ""])
def test_arms_of_the_command_line_that_are_none(spec: str) -> None:
    with pytest.raises(DesignError, match="NAME=GLOB"):
        with_command_line(None, arms=[spec])


@pytest.mark.parametrize("tolerance", [0, -1, float("inf"), float("nan")])
def test_a_tolerance_that_is_none(tolerance: float) -> None:
    with pytest.raises(DesignError, match="above 0"):
        with_command_line(None, kl_tolerance=tolerance)

"""Every example in the documentation that can be run is run, and what it is said to print is printed."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
import yaml

from conftest import DemoRuns
from pth_tracker.cli import app, main
from pth_tracker.demo import ConsoleSink
from pth_tracker.design.load import load_design
from pth_tracker.errors import ExitCode
from pth_tracker.model import IDLE_CLIP, LOST_SEED, ROGUE_NORMALISER, STUCK_BATCH, Audit

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = "<!-- run by the tests -->\n"
BLOCK = re.compile(
    r"(?P<run><!-- run by the tests -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)


def text_of(page: Path) -> str:
    """A page with the files that it takes in."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r'^--8<-- "(.+)"$', lambda one: (ROOT / one[1]).read_text(encoding="utf-8"), text, flags=re.MULTILINE)


def blocks(page: Path, kind: str, run: bool | None = None) -> list[str]:
    """The blocks of code of one kind on a page; ``run``: only those that the tests run, or do not."""
    found = BLOCK.finditer(text_of(page))
    return [one["text"] for one in found if one["kind"] == kind and run in (None, bool(one["run"]))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def prepared(demo_template: Path, demo_runs: DemoRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the examples read."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "pth-demo").mkdir()
    shutil.copyfile(demo_template, folder / "pth-demo" / "mlflow.db")
    (folder / "logs").mkdir()
    for name, (config, history) in demo_runs.items():
        sink = ConsoleSink(folder / "logs" / f"{name}.txt")
        sink.start(name, config)
        for step, metrics in history.items():
            sink.log(step, metrics)
        sink.finish()
    files = (ROOT / "docs" / "howto" / "files.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"<!-- the file (\S+) of the tests -->\n```text\n(.*?)```", files, re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    design = re.search(r"<!-- the design of the tutorial, .*?-->\n```yaml\n(.*?)```", tutorial, re.DOTALL)
    assert design is not None
    (folder / "tutorial.yaml").write_text(design[1], encoding="utf-8")
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the working folder."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def masked(line: str) -> str:
    """A line without its numbers, which differ between machines, and without its margins."""
    return re.sub(r"\d+(?:\.\d+)?", "N", line).strip()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console", run=True)], ids=name_of)
def test_commands_print_what_the_page_says(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "console", run=True):
        command, _, said = block.partition("\n")
        assert command.startswith("$ pth-tracker "), command
        status = main(shlex.split(command)[2:])
        assert status in (ExitCode.OK, ExitCode.CHECK_FAILED), command
        out = capsys.readouterr()
        printed = {masked(line) for line in (out.out + out.err).split("\n")}
        missing = [line for line in said.split("\n") if line and masked(line) not in printed]
        assert not missing, f"{command} does not print {missing}"


def named_commands(page: Path) -> Iterator[list[str]]:
    """The words of every ``pth-tracker`` command in a block of a page."""
    text = "\n".join(block for kind in ("console", "yaml", "bash") for block in blocks(page, kind))
    text = re.sub(r"\\\n\s*", " ", text)
    for line in re.findall(r"^(?:\$ |\s*- |\s*run: |\s*)pth-tracker +(.*)$", text, re.MULTILINE):
        yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", [page for page in PAGES if list(named_commands(page))], ids=name_of)
def test_commands_and_options_on_a_page_exist(page: Path) -> None:
    known: Any = typer.main.get_command(app)
    for words in named_commands(page):
        if words[0].startswith("-"):
            continue
        assert words[0] in known.commands, f"there is no command {words[0]}"
        options = {one for parameter in known.commands[words[0]].params for one in parameter.opts} | {"--help"}
        for word in words[1:]:
            if word.startswith("-") and len(word) > 1:
                assert word.split("=")[0] in options, f"{words[0]} has no option {word}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=name_of)
def test_yaml_on_a_page_can_be_read(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        data = yaml.safe_load(block)
        assert isinstance(data, dict)
        if {"arms", "baseline"} <= set(data):
            (tmp_path / "design.yaml").write_text(block, encoding="utf-8")
            design = load_design(tmp_path / "design.yaml")
            assert design.baseline in design.arms and len(design.claims) == 2


def python_names(page: Path) -> dict[str, Any]:
    class Queue:
        def next(self) -> tuple[dict[str, Any], int]:
            return {"input_ids": np.arange(6).reshape(2, 3)}, 0

    logged: dict[int, dict[str, float]] = {}
    return {
        "updates": 3,
        "queue": Queue(),
        "logp_learner": np.full((2, 3), -1.0),
        "logp_sampler": np.full((2, 3), -1.5),
        "mask": np.ones((2, 3)),
        "logp_old": np.full((2, 3), -1.0),
        "logged": logged,
        "log": lambda metrics, step: logged.update({step: metrics}),
    }


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python", run=True)], ids=name_of)
def test_python_on_a_page_runs(page: Path, folder: Path) -> None:
    names = python_names(page)
    for block in blocks(page, "python", run=True):
        exec(compile(block, name_of(page), "exec"), names)
    if names["logged"]:
        assert sorted(names["logged"]) == [0, 1, 2]
        assert {"harness/batch_id", "harness/clip_fraction"} <= set(names["logged"][2])
    if "runs" in names:
        report = names["report"]
        assert isinstance(report, Audit)
        bugs = {finding.tag for finding in report.by_level("fail")}
        assert bugs == {IDLE_CLIP, LOST_SEED, STUCK_BATCH, ROGUE_NORMALISER}
        assert names["kl"].shape == (96, 12) and names["seeds"].isna().sum() == 3
        names["tracker"].close()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python", run=False)], ids=name_of)
def test_python_that_is_not_run_needs_what_is_not_here(page: Path) -> None:
    for block in blocks(page, "python", run=False):
        tree = ast.parse(block)
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        absent = {name for name in imported if find_spec(name.partition(".")[0]) is None}
        assert absent, f"mark this block as run by the tests:\n{block}"


def test_rules_linked_from_the_documentation_exist() -> None:
    from pth_tracker.checks import all_rules

    slugs = {rule.slug for rule in all_rules()}
    linked = {slug for page in PAGES for slug in re.findall(r"rules\.md#([\w-]+)", page.read_text(encoding="utf-8"))}
    assert linked and linked <= slugs

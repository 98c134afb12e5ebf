from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """The generator of the documentation, ``tools/docs.py``."""
    spec = spec_from_file_location("docs", ROOT / "tools" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_and_parts_are_those_of_the_command(docs: ModuleType) -> None:
    stale = [path.name for path, wanted in docs.pages().items() if path.read_text(encoding="utf-8") != wanted]
    assert not stale, "run `make docs`"
    for code in ExitCode:
        assert f"\n| {int(code)} | " in (ROOT / "docs" / "exit-status.md").read_text(encoding="utf-8")


def test_a_page_with_a_wrong_marker_is_refused(docs: ModuleType) -> None:
    with pytest.raises(SystemExit, match="the marked part 'a', which is none of"):
        docs.filled("<!-- begin a -->\n<!-- end a -->", {"b": ""})
    with pytest.raises(SystemExit, match="'a' has no end marker"):
        docs.filled("<!-- begin a -->\n", {"a": ""})
    assert docs.filled("x\n<!-- begin a -->\nold\n<!-- end a -->\ny", {"a": r"\1"}).split("\n")[2] == r"\1"


def masked(text: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "N", text)


def test_the_excerpt_in_the_readme_is_of_a_real_report(demo_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    excerpt = re.search(r"<!-- excerpt .*? -->\n```text\n(.*?)```", README, re.DOTALL)
    assert excerpt is not None
    main(["audit", "--project", "rl-stale-demo", "--tracker", f"sqlite:///{demo_store}", "--no-write"])
    report = masked(capsys.readouterr().out).split("\n")
    lines = masked(excerpt[1]).rstrip("\n").split("\n")
    assert len(lines) > 8
    assert [line for line in lines if line not in report] == []


def test_commands_named_in_the_readme_exist() -> None:
    named = set(re.findall(r"(?:`|\$ )pth-tracker ([a-z]+)", README))
    assert {"audit", "demo", "explain", "untag"} <= named
    for command in named:
        done = subprocess.run(
            [sys.executable, "-m", "pth_tracker", command, "--help"], capture_output=True, check=False
        )
        assert done.returncode == 0, command


def test_files_linked_from_the_documentation_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{page} links to {target}"

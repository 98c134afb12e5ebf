"""The notebooks run from top to bottom, and are committed without outputs or anything of one machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN = """
import sys
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

notebook = nbformat.read(sys.argv[1], as_version=4)
client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}})
try:
    client.execute()
except CellExecutionError as error:
    sys.exit(str(error))
nbformat.write(notebook, sys.argv[3])
"""


def test_there_are_the_notebooks_that_the_documentation_names() -> None:
    page = (ROOT / "docs" / "howto" / "notebooks.md").read_text(encoding="utf-8")
    assert [path.name for path in NOTEBOOKS] == re.findall(r"`(\d\d_\w+\.ipynb)`", page)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_bare(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
    assert not re.search(r"/(?:home|root|work|Users|tmp)/", text)
    first = "".join(notebook["cells"][0]["source"])
    assert first.startswith("# ") and "What you learn here" in first
    assert len(text) < 30_000


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ())]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.ipynb"
    command = [sys.executable, "-c", RUN, str(path), str(tmp_path), str(done)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    printed = outputs(done)
    warned = [out["text"] for out in printed if out["output_type"] == "stream" and out["name"] == "stderr"]
    assert not warned, "a reader would see these first"
    shown = "".join("".join(out.get("data", {}).get("text/html", "")) for out in printed)
    assert any("image/png" in out.get("data", {}) for out in printed) or path.stem.startswith("03")
    assert "<table>" in shown or "FAILED" in shown or "PASSED" in shown

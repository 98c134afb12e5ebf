"""Commands in processes of their own: with a limit on the size of files, or as a user with few rights."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from faults.outcome import Ended

NOBODY = 65534


def nobody() -> int:
    """The id of a user with no rights; skips where this one may not become another, or that one cannot run Python."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() or not setpriv:
        pytest.skip("only root may become another user, with setpriv")
    tried = subprocess.run(
        [setpriv, f"--reuid={NOBODY}", "--clear-groups", sys.executable, "-c", "import pth_tracker"],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip("another user cannot read this installation")
    return NOBODY


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter: pytest's own are closed to them at the start of every session."""
    folder = Path(tempfile.mkdtemp(prefix="pth-faults-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _limited(largest: int) -> Callable[[], None]:
    """What makes files of a process grow to ``largest`` bytes and no further."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def audit_within(
    command: Sequence[str],
    folder: Path,
    *,
    user: int = 0,
    largest: int = 0,
    stdout: IO[str] | int = subprocess.PIPE,
    stderr: IO[str] | int = subprocess.PIPE,
    **environment: str,
) -> Ended:
    """How a command of pth-tracker, or a whole one, ends in a process of its own in ``folder``."""
    whole = list(command) if command[0] == sys.executable else [sys.executable, "-m", "pth_tracker", *command]
    if user:
        folder.chmod(folder.stat().st_mode | 0o055)
        whole = [str(shutil.which("setpriv")), f"--reuid={user}", "--clear-groups", *whole]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PTH_TRACKER_")}
    done = subprocess.run(
        whole,
        cwd=folder,
        env={**plain, "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(folder), **environment},
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=_limited(largest) if largest else None,
    )
    return Ended(done.returncode, done.stdout or "", done.stderr or "")

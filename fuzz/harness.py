"""What the fuzz targets share: seeds on disk, Atheris set up, a scratch file to read from."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))


@cache
def scratch(name: str) -> Path:
    """A file of this process's own, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    return Path(folder) / name


def write_seeds(folder: Path, seeds: Iterable[bytes]) -> None:
    """Writes each seed under the name of its hash, as libFuzzer names its corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


def fuzz(check: Callable[[bytes], None], seeds: Iterable[bytes], prepare: Callable[[], object]) -> None:
    """Runs ``check`` under Atheris on ``TARGET.py CORPUS [libFuzzer options]`` until stopped.

    ``prepare`` imports what is to be instrumented. A corpus folder that is empty is filled with the seeds.
    """
    import atheris

    with atheris.instrument_imports(include=["pth_tracker", "pth_tracker_files", "pth_tracker_wandb"]):
        prepare()
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if not folders:
        raise SystemExit(f"usage: {Path(sys.argv[0]).name} CORPUS [-max_total_time=300] [-max_len=20000]")
    write_seeds(folders[0], seeds if not folders[0].is_dir() or not any(folders[0].iterdir()) else ())
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()

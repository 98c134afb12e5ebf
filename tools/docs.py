"""Writes the generated documentation: CHECKS.md, and the parts of README.md between markers.

    python tools/docs.py            writes what is out of date
    python tools/docs.py --check    writes nothing, names what is out of date and exits with 1

A marked part of README.md lies between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pth_tracker.checks import all_rules
from pth_tracker.errors import EXIT_PRIORITY
from pth_tracker.render.rules import checks_markdown
from pth_tracker.render.text import EXIT_WORDS

ROOT = Path(__file__).resolve().parent.parent


def help_text(*command: str) -> str:
    """What ``pth-tracker COMMAND --help`` prints at 80 columns."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PTH_TRACKER_")}
    done = subprocess.run(
        [sys.executable, "-m", "pth_tracker", *command, "--help"],
        env={**plain, "COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip("\n")


def console(*commands: tuple[str, ...]) -> str:
    """The help of several commands as one console block."""
    shown = [f"$ {' '.join(('pth-tracker', *command, '--help'))}\n{help_text(*command)}" for command in commands]
    return "```console\n" + "\n\n".join(shown) + "\n```"


def exit_table() -> str:
    """The exit statuses as a Markdown table, the one that wins first."""
    rows = [f"| {int(code)} | {EXIT_WORDS[code]} |" for code in EXIT_PRIORITY]
    return "\n".join(["| exit status | meaning |", "| ---: | --- |", *rows])


PARTS: Mapping[str, Callable[[], str]] = {
    "help": lambda: console((), ("audit",)),
    "exit-codes": exit_table,
}


def filled(page: str, parts: Mapping[str, str]) -> str:
    """``page`` with every marked part replaced.

    Raises:
        SystemExit: a marker is missing or unknown.
    """
    found = re.findall(r"<!-- begin ([\w-]+) -->", page)
    if sorted(found) != sorted(parts):
        raise SystemExit(f"README.md has the marked parts {found}, and should have {sorted(parts)}")
    for name, text in parts.items():
        block = f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->"
        pattern = rf"<!-- begin {name} -->\n.*?<!-- end {name} -->"
        page, number = re.subn(pattern, block.replace("\\", r"\\"), page, flags=re.DOTALL)
        if number != 1:
            raise SystemExit(f"README.md: the part {name!r} has no end marker")
    return page


def pages() -> dict[Path, str]:
    """Every page that is generated or holds a generated part, with the content that it should have."""
    readme = ROOT / "README.md"
    return {
        readme: filled(readme.read_text(encoding="utf-8"), {name: make() for name, make in PARTS.items()}),
        ROOT / "CHECKS.md": checks_markdown(all_rules()),
    }


def main(arguments: list[str]) -> int:
    """Writes, or with ``--check`` compares; yields the exit status."""
    stale = 0
    for path, wanted in pages().items():
        now = path.read_text(encoding="utf-8") if path.exists() else ""
        if now == wanted:
            continue
        stale += 1
        if "--check" in arguments:
            changes = difflib.unified_diff(
                now.splitlines(), wanted.splitlines(), path.name, "generated", lineterm="", n=1
            )
            print(f"{path.name} is out of date; run `make docs`:", *list(changes)[:40], sep="\n")
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {path.name}")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

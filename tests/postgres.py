"""A private PostgreSQL cluster, started and removed again; needs PostgreSQL's programs and no running server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class NoPostgres(Exception):
    """PostgreSQL is not installed, or cannot be run by this user; the message says which."""


def _programs() -> tuple[Path, list[str]]:
    """The folder of PostgreSQL's programs, and what goes before their commands.

    Raises:
        NoPostgres: there is none.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(p) for p in [shutil.which("initdb")] if p]
    if not found:
        raise NoPostgres("PostgreSQL is not installed (no initdb)")
    if os.geteuid():
        return found[-1].parent, []
    runuser = shutil.which("runuser")  # initdb refuses root
    if not runuser or subprocess.run(["id", "postgres"], capture_output=True, check=False).returncode:
        raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres")
    return found[-1].parent, [runuser, "-u", "postgres", "--"]


@contextmanager
def postgres_cluster() -> Iterator[str]:
    """The address of the cluster's database ``postgres``, its password included.

    Raises:
        NoPostgres: it cannot be run here.
    """
    programs, as_user = _programs()
    folder = Path("/tmp", f"pth-postgres-{os.getpid()}")  # short: a socket's path is limited to 107 bytes
    folder.mkdir()
    try:
        (folder / "password").write_text("s3cret-word\n")
        shutil.chown(folder, "postgres") if as_user else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        run: Callable[..., object] = lambda *command: subprocess.run(  # noqa: E731
            [*as_user, *map(str, command)], check=True, capture_output=True, cwd=folder
        )
        data, password = folder / "data", f"--pwfile={folder / 'password'}"
        run(programs / "initdb", "-D", data, "-U", "audit", "-A", "scram-sha-256", password, "-N")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        run(programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://audit:s3cret-word@127.0.0.1:{port}/postgres"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

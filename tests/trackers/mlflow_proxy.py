"""The far side of the wire, made to misbehave: a proxy before a real MLflow server that counts and breaks requests."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]


@dataclass(frozen=True)
class Broken:
    """What becomes of the real server's answer on its way."""

    drop: bool = False
    """The connection is closed without a word, and the real server is not asked."""
    cut: bool = False
    """It breaks off in the middle of its body."""
    delay: float = 0.0
    """Seconds of silence before it."""
    drip: float = 0.0
    """Seconds between its bytes."""


Rule = Callable[[str, str], "Answer | Broken | None"]
"""Path with query, and body, to the answer given instead of the real server's; None: ask the real one."""


@dataclass
class Proxy:
    """A running proxy."""

    uri: str = ""
    rule: Rule = lambda path, body: None
    requests: list[str] = field(default_factory=list)
    """The paths asked for, without queries."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """The method and path of each request, likewise."""

    def count(self, end: str) -> int:
        """How many requests went to the endpoint whose path ends so."""
        return sum(path.endswith(end) for path in self.requests)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no event."""


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy of the server at ``target`` (``""``: of none)."""
    state = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.requests.append(self.path.partition("?")[0])
            state.calls.append((self.command, state.requests[-1]))
            made = state.rule(self.path, body.decode("utf-8", "replace"))
            broken = made if isinstance(made, Broken) else Broken()
            time.sleep(broken.delay)
            if broken.drop:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, content = made if isinstance(made, tuple) else self.forward(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if broken.drip:
                for place in range(len(content)):
                    self.wfile.write(content[place : place + 1])
                    time.sleep(broken.drip)
                return
            self.wfile.write(content[: len(content) // 2] if broken.cut else content)

        def forward(self, body: bytes) -> Answer:
            headers = {"Content-Type": self.headers["Content-Type"]} if self.headers.get("Content-Type") else {}
            data = None if self.command in ("GET", "HEAD") else body
            request = urllib.request.Request(f"{target}{self.path}", data, headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the tests' output clean."""

    with _Quiet(("127.0.0.1", 0), Handler) as server:
        state.uri = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()

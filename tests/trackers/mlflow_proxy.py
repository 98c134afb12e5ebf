"""The far side of the wire, made to misbehave: a proxy before a real MLflow server that counts and breaks requests."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]
Rule = Callable[[str, str], "Answer | None"]
"""Path with query, and body, to the answer given instead of the real server's; None: ask the real one."""


@dataclass
class Proxy:
    """A running proxy."""

    uri: str = ""
    rule: Rule = lambda path, body: None
    requests: list[str] = field(default_factory=list)
    """The paths asked for, without queries."""

    def count(self, end: str) -> int:
        """How many requests went to the endpoint whose path ends so."""
        return sum(path.endswith(end) for path in self.requests)


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy of the server at ``target`` (``""``: of none)."""
    state = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.requests.append(self.path.partition("?")[0])
            made = state.rule(self.path, body.decode())
            status, content = made if made else self.forward(body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def forward(self, body: bytes) -> Answer:
            headers = {"Content-Type": self.headers["Content-Type"]} if self.headers.get("Content-Type") else {}
            request = urllib.request.Request(
                f"{target}{self.path}", body if self.command in ("POST", "PUT") else None, headers, method=self.command
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()

        do_GET = do_POST = do_PUT = answer

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the tests' output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.uri = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()

"""A stand-in for a W&B server on a loopback port: the real SDK logs runs to it and reads them back.

It speaks the wire protocol and nothing else: GraphQL over a hand-written schema, the file stream, exported histories
as parquet files, uploads and downloads. Tests count its requests, make it fail, delay or drop them, and change a run
between two of them.
"""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from graphql import GraphQLError

from wandb_server.resolvers import Resolvers
from wandb_server.store import Row, Store, StoredRun, wrap_config


@dataclass(frozen=True)
class Request:
    """One request that arrived, whatever became of it."""

    kind: str
    """``graphql``, ``stream``, ``export``, ``file``, ``artifact`` or ``other``."""
    operation: str
    """The GraphQL operation's name, else the method."""
    path: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""
    authorised: bool = True


@dataclass(frozen=True)
class Fault:
    """What becomes of a request instead of an answer."""

    status: int = 500
    drop: bool = False
    """Close the connection without a word."""
    truncate: bool = False
    """Answer as usual and break off in the middle of the body."""
    delay: float = 0.0
    """Seconds before; with `status` 0 the request is then answered as usual."""
    body: bytes | None = None
    """The whole answer, of this `status`."""
    drip: float = 0.0
    """Seconds between the bytes of the usual answer."""
    message: str = "trouble"
    retry_after: float = 0.02
    """Seconds after which the client is asked to try again: without it, it waits for whole seconds."""


Trouble = Callable[[Request], Fault | None]


class WandbServer:
    """The server and the handles by which a test drives it."""

    def __init__(self, entity: str = "team", api_key: str = "0123456789abcdef0123456789abcdef01234567") -> None:
        self.entity = entity
        self.api_key = api_key
        self.store = Store()
        self.requests: list[Request] = []
        self.refused: list[tuple[str, str]] = []
        """Operations answered with an error of the schema or a resolver, and the error."""
        self.trouble: Trouble | None = None
        self.before: Callable[[Request], None] | None = None
        """Called before each request is answered, e.g. to change a run between two requests."""
        self.resolvers = Resolvers(self.store, lambda: self.url, entity)
        self._http = _Listener(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def start(self) -> WandbServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def environment(self, folder: Path) -> dict[str, str]:
        """What a client's environment holds to use this server; the shortest waits, all its files in `folder`."""
        retries = {
            f"WANDB__{channel}_RETRY_{setting}": value
            for channel in ("GRAPHQL", "FILE_TRANSFER", "FILE_STREAM")
            for setting, value in (("MAX", "6"), ("WAIT_MIN_SECONDS", "1"), ("WAIT_MAX_SECONDS", "1"))
        }
        places = {f"WANDB_{name}_DIR": str(folder / name.lower()) for name in ("ARTIFACT", "CACHE", "CONFIG", "DATA")}
        access = {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.api_key, "NETRC": str(folder / "no-netrc")}
        return {**retries, **places, **access, "NO_PROXY": "127.0.0.1"}

    def add_run(
        self,
        project: str,
        name: str,
        config: Mapping[str, Any] | None = None,
        rows: Sequence[Row] = (),
        *,
        state: str = "finished",
        tags: Sequence[str] = (),
        exported: bool = True,
        files: int = 1,
        live_rows: int = 0,
        created: datetime | None = None,
        **attributes: Any,
    ) -> StoredRun:
        """Puts a run into the store as if it had been logged; rows without ``_step`` are numbered from 0."""
        with self.store.lock:
            run = self.store.create(self.entity, project, attributes.pop("run_id", name))
            run.display_name, run.state, run.tags = name, state, list(tags)
            run.config = attributes.pop("raw_config", None) or wrap_config(config or {})
            run.created = created or run.created
            run.heartbeat = self.store.now()
            run.rows = [{"_step": index, **row} for index, row in enumerate(rows)]
            run.summary = dict(run.rows[-1]) if run.rows else {}
            for attribute, value in attributes.items():
                if not hasattr(run, attribute):
                    raise TypeError(f"a run has no {attribute!r}")
                setattr(run, attribute, value)
            if exported and run.rows:
                run.export(files, live_rows)
            return run

    def run(self, project: str, name: str) -> StoredRun:
        run = self.store.find(self.entity, project, name)
        assert run is not None, f"no run {name} in {project}"
        return run

    @contextmanager
    def counting(self) -> Iterator[list[Request]]:
        """The requests that arrive within the block."""
        start = len(self.requests)
        seen: list[Request] = []
        yield seen
        seen.extend(self.requests[start:])


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event."""


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:  # noqa: N802
            self._serve(b"")

        def do_HEAD(self) -> None:  # noqa: N802
            self._serve(b"")

        def do_POST(self) -> None:  # noqa: N802
            self._serve(self._body())

        def do_PUT(self) -> None:  # noqa: N802
            self._serve(self._body())

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _serve(self, body: bytes) -> None:
            request = _describe(server, self.command, self.path, body, self.headers.get("Authorization"))
            server.requests.append(request)
            if server.before:
                server.before(request)
            fault = server.trouble(request) if server.trouble else None
            if fault is not None:
                time.sleep(fault.delay)
                if fault.drop:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if fault.body is not None:
                    self._send(fault.status, fault.body)
                    return
                if fault.drip:
                    self._drip(*_answer(server, request, body, self.command), fault.drip)
                    return
                if fault.truncate:
                    self._break_off(*_answer(server, request, body, self.command))
                    return
                if fault.status:
                    answer = json.dumps({"errors": [{"message": fault.message}]}).encode()
                    self._send(fault.status, answer, {"Retry-After": str(fault.retry_after)})
                    return
            self._send(*_answer(server, request, body, self.command))

        def _break_off(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _drip(self, status: int, body: bytes, pause: float) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for place in range(len(body)):
                self.wfile.write(body[place : place + 1])
                self.wfile.flush()
                time.sleep(pause)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


KINDS = {
    "graphql": "graphql",
    "files": "stream",
    "export": "export",
    "file": "file",
    "artifact-manifest": "artifact",
    "artifact-file": "artifact",
}


def _describe(server: WandbServer, method: str, target: str, body: bytes, credentials: str | None) -> Request:
    path = unquote(urlsplit(target).path)
    kind = KINDS.get(path.split("/")[1], "other")
    expected = "Basic " + base64.b64encode(f"api:{server.api_key}".encode()).decode()
    authorised = credentials == expected
    if kind != "graphql":
        return Request(kind, method, path, authorised=authorised)
    document = json.loads(body)
    words = document["query"].replace("(", " ").replace("{", " ").split()
    named = next((after for word, after in zip(words, words[1:]) if word in ("query", "mutation")), "?")
    operation = document.get("operationName") or named
    return Request(kind, operation, path, document.get("variables") or {}, document["query"], authorised)


Answer = tuple[int, bytes]


def _answer(server: WandbServer, request: Request, body: bytes, method: str) -> Answer:
    if request.kind in ("graphql", "stream") and not request.authorised:
        return 401, b'{"errors":[{"message":"user is not logged in"}]}'
    if request.kind == "graphql":
        return _graphql(server, request)
    with server.store.lock:
        if request.kind == "stream":
            return _file_stream(server, request, json.loads(body))
        return _content(server, request, body, method)


def _graphql(server: WandbServer, request: Request) -> Answer:
    try:
        result = server.resolvers.execute(request.query, request.variables)
    except GraphQLError as error:
        server.refused.append((request.operation, error.message))
        return 400, json.dumps({"errors": [{"message": error.message}]}).encode()
    answer: dict[str, Any] = {"data": result.data}
    if result.errors:
        answer["errors"] = [{"message": error.message} for error in result.errors]
        server.refused += [(request.operation, error.message) for error in result.errors]
    return (400 if result.data is None and result.errors else 200), json.dumps(answer).encode()


def _file_stream(server: WandbServer, request: Request, message: Mapping[str, Any]) -> Answer:
    _, _, entity, project, name, _ = request.path.split("/")
    run = server.store.find(entity, project, name)
    if run is None:
        return 404, b"{}"
    run.heartbeat = server.store.now()
    for file, chunk in (message.get("files") or {}).items():
        lines = chunk["content"]
        if file == "wandb-history.jsonl":
            del run.rows[chunk["offset"] :]
            run.rows.extend(json.loads(line) for line in lines)
        elif file == "wandb-events.jsonl":
            run.events = chunk["offset"] + len(lines)
        elif file == "wandb-summary.json":
            run.summary.update(json.loads(lines[-1]))
        elif file == "output.log":
            run.log_lines = max(run.log_lines, chunk["offset"] + len(lines))
    if message.get("complete"):
        run.state = "finished" if message.get("exitcode") == 0 else "failed"
        metadata = json.loads(run.files.get("wandb-metadata.json", b"{}"))
        run.program, run.args = metadata.get("program", run.program), metadata.get("args", run.args)
        run.host = metadata.get("host", run.host)
        run.export()
    elif run.state not in ("running", "preempting"):
        run.state = "running"
    return 200, b"{}"


def _content(server: WandbServer, request: Request, body: bytes, method: str) -> Answer:
    parts = request.path.split("/")
    holder: dict[str, bytes]
    if request.kind == "export":
        _, _, entity, project, name, file = parts
        run = server.store.find(entity, project, name)
        index = int(file.removesuffix(".parquet"))
        return (200, run.exports[index]) if run and index < len(run.exports) else (403, b"<Error>expired</Error>")
    if request.kind == "file":
        entity, project, name = parts[2:5]
        run = server.store.find(entity, project, name)
        if run is None:
            return 404, b"{}"
        holder, file = run.files, "/".join(parts[5:])
    elif request.kind == "artifact":
        artifact = server.store.artifact(parts[2])
        if artifact is None:
            return 404, b"{}"
        if parts[1] == "artifact-manifest":
            if method == "PUT":
                artifact.manifest = body
            return 200, artifact.manifest
        holder, file = artifact.files, "/".join(parts[3:])
    else:
        return 404, b"{}"
    if method == "PUT":
        holder[file] = body
        return 200, b""
    return (200, holder[file]) if file in holder else (404, b"{}")

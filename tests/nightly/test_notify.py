from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from conftest import free_port
from example_audits import full_audit, hostile_audit
from pth_tracker.errors import UsageError
from pth_tracker.nightly import notify
from pth_tracker.nightly.config import Target
from pth_tracker.nightly.notify import check_targets, message, send


class Receiver:
    """A real HTTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802
                receiver.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keeps the tests' output clean."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}/hook"


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def test_a_message_names_what_is_due_counts_the_rest_and_links() -> None:
    audit = full_audit()
    assert audit.since_last is not None
    what = message(audit, "stale", audit.since_last.new, "https://wiki/stale")
    assert what.title == f"pth-tracker: 1 new failure in {audit.project or 'stale'}"
    assert what.body.split("\n") == [
        "- Lost Seed on tis-{s42,s43,s44}: one order",
        "1 new, 1 still open, 1 resolved, 1 not looked at again, 1 of runs no longer selected",
        "https://wiki/stale",
    ]
    many = message(audit, "stale", audit.since_last.new * 13, "")
    assert many.body.count("Lost Seed") == 10 and "- and 3 more" in many.body and "13 new failures" in many.title


def test_names_that_would_ping_everybody_do_not() -> None:
    audit = hostile_audit()
    audit.project = "<!channel> @everyone\x1b[2J\nsecond"
    assert audit.since_last is not None
    what = message(audit, "x", audit.since_last.new, "")
    assert "@everyone" not in what.title and "<!channel" not in what.title and "\n" not in what.title
    assert all(line.replace("\u200b", "").isprintable() for line in what.body.split("\n"))


def test_messages_are_received_and_those_that_are_not_are_reported_without_their_address() -> None:
    what = message(full_audit(), "stale", full_audit().findings[:1], "")
    with receiving() as receiver:
        good = Target(receiver.url, "notify.0 (json)")
        gone = Target(f"json://user:hunter2@127.0.0.1:{free_port()}/secret", "notify.1 (json)")
        (error,) = send([gone, good], what)
        assert error.startswith("the notification to notify.1 (json) could not be sent: ")
        assert "hunter2" not in error and "secret" not in error
        (got,) = receiver.received
        assert got["title"] == what.title and got["message"] == what.body and got["type"] == "failure"
        receiver.status = 500
        (error,) = send([good], what)
        assert "notify.0 (json)" in error and "500" in error


def test_addresses_are_checked_before_any_work() -> None:
    check_targets([Target("json://127.0.0.1/x", "notify.0 (json)")])
    with pytest.raises(UsageError, match=r"audits.0.notify.0 \(slak\) is no address that Apprise reads") as caught:
        check_targets([Target("slak://TokenA/TokenB", "audits.0.notify.0 (slak)")])
    assert "TokenA" not in str(caught.value)


def test_without_apprise_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "find_spec", lambda name: None)
    check_targets([])
    with pytest.raises(UsageError, match=r"notify.0 \(json\) needs Apprise: pip install 'pth-tracker\[notify\]'"):
        check_targets([Target("json://127.0.0.1/x", "notify.0 (json)")])

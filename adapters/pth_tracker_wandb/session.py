"""One connection to a W&B server through the public SDK: how it is opened, asked and closed.

Since its release 0.30 the SDK sends every request through a helper process (wandb-core), of which all users in a
process share one. A session starts it if need be and stops it when the last session closes, unless somebody else in
this process uses it too.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import TrackerError
from pth_tracker_wandb.credentials import ServerAddress, has_credentials, without_secrets

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

MIN_TIMEOUT: Final = 120
"""Seconds to wait for an answer, the SDK's retries included; its own default of 19 ends before a rate limit does."""
HELPER_GRACE: Final = 5.0
"""Seconds in which the SDK's helper process has to end; it has nothing left to send when it is told to."""
BROKEN_OFF_RETRIES: Final = 3
_OPTIONAL_FIELDS: Final = frozenset({"runInfo"})
"""Fields that some servers do not have; a query goes without them there."""
_UNANSWERED: Final = ("did not respond in time", "is not running", "giving up", "deadline exceeded")
_GIVING_UP: Final = re.compile(r".*giving up after \d+ attempt\(s\):? ?(?:while retrying: )?")
_LAST_STATUS: Final = re.compile(r"giving up .*?HTTP (?:status )?(\d{3})")
_UNKNOWN_FIELD: Final = re.compile(r"Cannot query field [\"'](\w+)[\"']")


class _Users:
    """How many sessions of this process use the helper process, and whether others use it as well."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._sessions = 0
        self._shared = False

    def enter(self) -> None:
        from wandb.sdk import wandb_setup

        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._sessions = os.getpid(), 0
            if not self._sessions:
                self._shared = wandb_setup.singleton()._connection is not None
            self._sessions += 1

    def leave(self) -> None:
        from wandb.sdk import wandb_setup

        with self._lock:
            if self._pid != os.getpid():
                return
            self._sessions -= 1
            if self._sessions or self._shared or wandb_setup.singleton().most_recent_active_run is not None:
                return
            _stop_helper(wandb_setup.singleton()._connection)


_users = _Users()


def _stop_helper(connection: Any) -> None:
    """Stops the SDK's helper process, by force where it does not end by itself.

    The SDK waits for it without limit, and wandb-core (0.31 at least) drops the request to end when it arrives just as
    the answer to a request that was given up cannot be delivered.
    """
    import wandb

    def end() -> None:
        with contextlib.suppress(SystemExit):  # the helper's exit status, where it is not 0
            wandb.teardown()

    process: subprocess.Popen[bytes] | None = getattr(getattr(connection, "_proc", None), "_process", None)
    ending = threading.Thread(target=end, name="wandb-teardown", daemon=True)
    ending.start()
    ending.join(HELPER_GRACE)
    if ending.is_alive() and process is not None:
        process.kill()
        ending.join(HELPER_GRACE)


class RequestFailed(TrackerError):
    """A request that W&B did not answer as hoped."""

    def __init__(self, message: str, *, status: int = 0, unreachable: bool = False, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """Whether the API key was refused, as it would be for any other request."""
        self.status = status
        """Of HTTP; 0 where there was no answer, or an answer that only its text describes."""
        self.unreachable = unreachable
        """Whether no answer came at all."""


def timeout_seconds() -> int:
    """How long one request may take in all: ``WANDB_HTTP_TIMEOUT``, or at least two minutes."""
    text = os.environ.get("WANDB_HTTP_TIMEOUT", "")
    return max(1, int(text)) if text.isdigit() else MIN_TIMEOUT


def _prepare_environment() -> None:
    """Turns the SDK's error reporting and chatter off, before it is imported."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    if "wandb" not in sys.modules:
        os.environ.setdefault("WANDB_SILENT", "true")


class Session:
    """An open connection: GraphQL requests and downloads, with failures as one sentence each.

    The API key stays inside the SDK; a session shows only the server's address.
    """

    def __init__(self, address: ServerAddress) -> None:
        _prepare_environment()
        import wandb
        from wandb.sdk import wandb_setup

        base = address.base_url or wandb_setup.singleton().settings.base_url.rstrip("/")
        self.timeout = timeout_seconds()
        self._omitted: set[str] = set()
        self._key: str | None = None
        self._closed = False
        if not has_credentials(base):
            raise TrackerError(
                f"there are no credentials for W&B at {base}: set WANDB_API_KEY, or run `wandb login --host {base}`"
            )
        _users.enter()
        try:
            # The SDK of 0.30 prefers the key that it saw first in this process to the one that is set now.
            named = os.environ.get("WANDB_API_KEY") or None
            self.api = wandb.Api(overrides={"base_url": base}, timeout=self.timeout, api_key=named)
            self._key = self.api.api_key
        except Exception as error:  # the SDK and its helper process raise anything, here and below
            self.close()
            raise self._opening_failed(base, error) from None
        self.address = ServerAddress(base, address.entity)

    def __repr__(self) -> str:
        return f"Session({str(self.address)!r})"

    def _opening_failed(self, base: str, error: Exception) -> TrackerError:
        status = _status(error)
        text = without_secrets(str(error), self._key)
        if status in (401, 403) or "invalid credentials" in text:
            return RequestFailed(_refused(base, status), status=status, refused=True)
        if "API key" in text:
            return TrackerError(f"W&B at {base} cannot be used with this API key: {text}; set WANDB_API_KEY")
        return RequestFailed(_unanswered(base, self.timeout, text), unreachable=True)

    def entity(self) -> str:
        """The entity that projects without one belong to.

        Raises:
            TrackerError: there is none.
        """
        if self.address.entity:
            return self.address.entity
        try:
            entity = self.api.settings.get("entity") or self.api.default_entity
        except Exception as error:
            raise self.failure(error) from None
        if not entity:
            raise TrackerError(
                f"W&B at {self.address} has no default entity for this key: name the project ENTITY/PROJECT"
            )
        return str(entity)

    def fresh_api(self) -> Any:
        """The SDK's own API object, with nothing cached."""
        api: Any = self.api
        api.flush()
        getattr(api, "_projects", {}).clear()  # which `flush` leaves as they are
        return api

    def graphql(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """The ``data`` of one GraphQL request; the SDK retries what is worth retrying.

        Raises:
            RequestFailed: it was refused or never answered.
        """

        def send() -> Any:
            return self.api._service_api.execute_graphql(query, variables, omit_fields=sorted(self._omitted))

        try:
            answer: Any = _again_if_broken_off(send)
        except Exception as error:
            unknown = set(_UNKNOWN_FIELD.findall(str(error))) & (_OPTIONAL_FIELDS - self._omitted)
            if unknown:
                self._omitted |= unknown
                return self.graphql(query, variables)
            raise self.failure(error) from None
        if not all(isinstance(part, dict | None) for part in (answer, *(answer or {}).values())):
            raise self.not_understood()
        return answer or {}

    def not_understood(self) -> RequestFailed:
        """That an answer lacks what W&B's have, or has it of another kind."""
        return RequestFailed(
            f"W&B at {self.address.base_url} does not answer as W&B does: check WANDB_BASE_URL and any proxy"
        )

    def download(self, url: str, path: Path) -> None:
        """Brings the file at ``url`` to ``path``; the SDK retries, and only its own server sees the credentials.

        Raises:
            RequestFailed: it could not be had.
        """
        from wandb.proto import wandb_api_pb2

        messages: Any = wandb_api_pb2  # generated at run time, so that no type checker sees what is in it
        file = messages.DownloadFileRequest(path=str(path), url=url)

        def send() -> Any:
            request = messages.ApiRequest(download_file_request=file)
            return self.api._service_api.send_api_request(request, timeout=5 * self.timeout)

        try:
            _again_if_broken_off(send)
        except Exception as error:
            raise self.failure(error, download=True) from None

    def failure(self, error: Exception, download: bool = False) -> RequestFailed:
        """What went wrong, as one sentence without secrets."""
        status = _status(error)
        text = without_secrets(str(error), self._key)
        base = self.address.base_url
        if status == 401 and not download:
            return RequestFailed(_refused(base, status), status=status, refused=True)
        if not status and any(sign in text for sign in _UNANSWERED):
            last = _LAST_STATUS.search(text)
            known = int(last[1]) if last else 0
            return RequestFailed(_unanswered(base, self.timeout, text), status=known, unreachable=not last)
        answer = f"HTTP {status}: {text[:300]}" if status else text[:300]
        return RequestFailed(f"W&B at {base} answered {answer}", status=status)

    def close(self) -> None:
        """Lets go of the connection, and of the helper process if nobody else uses it."""
        if not self._closed:
            self._closed = True
            _users.leave()


def _again_if_broken_off(send: Callable[[], Any]) -> Any:
    """What ``send`` yields, tried again where an answer ends in its middle: that alone the SDK does not retry."""
    for _ in range(BROKEN_OFF_RETRIES):
        try:
            return send()
        except Exception as error:
            text = str(error)
            if "giving up" in text or not ("EOF" in text or "connection reset" in text):
                raise
    return send()


def _status(error: BaseException | None) -> int:
    """The HTTP status behind one of the SDK's errors, 0 where there is none."""
    for _ in range(5):
        if error is None:
            return 0
        status = getattr(getattr(error, "response", None), "http_status", None)
        if status:
            return int(status)
        error = getattr(error, "exc", None) or error.__cause__
    return 0


def _refused(base: str, status: int) -> str:
    code = f" (HTTP {status})" if status else ""
    return f"W&B at {base} refuses the API key{code}: set WANDB_API_KEY to a key of this server"


def _unanswered(base: str, seconds: int, text: str) -> str:
    """A sentence for a request that the SDK gave up after all its retries, or that took too long."""
    last = _LAST_STATUS.search(text)
    if last:
        why = "limits our requests" if last[1] == "429" else f"answers HTTP {last[1]}"
        return f"W&B at {base} {why} through all retries: try again later"
    cause = _GIVING_UP.sub("", text).partition(" while retrying")[0] if "giving up" in text else "no answer in time"
    return (
        f"W&B at {base} could not be reached within {seconds} s ({cause[:150]}): check WANDB_BASE_URL, the network "
        "and any proxy"
    )

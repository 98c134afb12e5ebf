"""Requests to an MLflow server, through MLflow's own helper: its authentication, certificates and retries."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from pth_tracker.errors import TrackerError
from pth_tracker_mlflow import sdk
from pth_tracker_mlflow.address import Store

API: Final = "/api/2.0/mlflow"
AJAX: Final = "/ajax-api/2.0/mlflow"
_FIRST: Final = {"max_retries": 1, "backoff_factor": 0.5, "backoff_jitter": 0.0, "timeout": 15}
_RETRIES: Final = {"max_retries": 3, "backoff_factor": 1.0}
_ANSWER_SECONDS: Final = 300
"""An answer that takes longer has stopped: time-outs alone never end one that comes byte by byte."""
_CHUNK: Final = 1 << 20
_BROKEN_OFF: Final = 2
"""How often a request is made again whose answer broke off: MLflow's helper makes again only what was not answered."""
_CREDENTIALS: Final = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


class Refused(TrackerError):
    """A request that the server answered, with something other than what was asked for."""

    def __init__(self, message: str, status: int, code: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status."""
        self.code = code
        """MLflow's error code, such as ``RESOURCE_DOES_NOT_EXIST``; ``""`` where it gives none."""
        self.reason = reason
        """What the server says, cleaned."""


class _BrokenOff(Exception):
    """An answer that ended before its end."""


@contextmanager
def understood(store: Store) -> Iterator[None]:
    """Within, what an answer lacks, or has of another kind than MLflow's, is one `TrackerError` sentence."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = store.scrub(f"{type(error).__name__}: {error}", 120)
        raise TrackerError(
            f"{store.address} does not answer as an MLflow server does ({what}): check the address"
        ) from None


class Server:
    """An MLflow server that answers; any number of threads may call it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        sdk.load()
        self.check()

    def check(self) -> None:
        """Asks for almost nothing, with little patience: a server that is away is told within seconds."""
        self._call("POST", f"{API}/experiments/search", first=True, json={"max_results": 1})

    def get(self, path: str, params: object, base: str = API, fresh: bool = False) -> dict[str, Any]:
        """The answer to a GET of ``path`` with these query parameters.

        A long request is better sent over a ``fresh`` connection: kept ones stay with one worker process of the
        server, and all of them may have met the same.
        """
        headers = {"Connection": "close"} if fresh else {}
        return self._call("GET", base + path, params=params, extra_headers=headers)

    def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """The answer to a POST of ``body``."""
        return self._call("POST", API + path, json=body)

    @cached_property
    def _credentials(self) -> Any:
        from mlflow.utils.credentials import get_default_host_creds

        return get_default_host_creds(self.store.uri)  # type: ignore[no-untyped-call]

    def _call(self, method: str, endpoint: str, first: bool = False, **content: object) -> dict[str, Any]:
        from mlflow.exceptions import MlflowException
        from mlflow.utils.rest_utils import http_request

        chosen = "MLFLOW_HTTP_REQUEST_MAX_RETRIES" in os.environ
        options: dict[str, Any] = dict(_FIRST) if first else {} if chosen else dict(_RETRIES)
        for attempt in range(_BROKEN_OFF + 1):
            try:
                response = http_request(  # type: ignore[no-untyped-call]
                    self._credentials, endpoint, method, raise_on_status=False, stream=True, **options, **content
                )
                body = self._body(response)
                break
            except MlflowException as error:
                raise TrackerError(f"{self.store.address} cannot be reached: {self._why(error)}") from None
            except _BrokenOff as error:
                if attempt == _BROKEN_OFF:
                    why = self.store.scrub(error, 160)
                    raise TrackerError(f"{self.store.address} breaks off its answers: {why}") from None
        if response.status_code != 200:
            raise self._refused(response.status_code, body.decode("utf-8", "replace"), endpoint)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise TrackerError(f"{self.store.address} does not answer as an MLflow server does: check the address")
        return answer

    def _body(self, response: Any) -> bytes:
        """The body of an answer, read as it comes, for as long as an answer may take.

        Raises:
            TrackerError: it takes longer.
            _BrokenOff: it ends before its end.
        """
        from urllib3.exceptions import HTTPError

        if response.raw is None:  # put together by MLflow's helper
            return bytes(response.content)
        parts: list[bytes] = []
        deadline = time.monotonic() + _ANSWER_SECONDS
        try:
            while part := response.raw.read1(_CHUNK, decode_content=True):
                parts.append(part)
                if time.monotonic() > deadline:
                    raise TrackerError(
                        f"{self.store.address} is too slow: an answer had not come whole after {_ANSWER_SECONDS} s"
                    )
        except (HTTPError, OSError) as error:
            raise _BrokenOff(str(error)) from None
        finally:
            response.close()
        return b"".join(parts)

    def _refused(self, status: int, text: str, endpoint: str) -> Refused:
        code, reason = "", text
        try:
            told = json.loads(text)
            if isinstance(told, dict):
                code, reason = str(told.get("error_code", "")), str(told.get("message", ""))
        except ValueError:
            pass
        reason = "" if reason.lstrip().startswith("<") else self.store.scrub(reason)
        told = f": {reason}" if reason else ""
        where = self.store.address
        if status == 401:
            sentence = f"{where} asks for credentials (401): {_CREDENTIALS}"
        elif status == 403:
            sentence = f"{where} does not allow this (403){told}"
        elif status == 404 and not code:
            sentence = f"{where} knows no {endpoint} (404): it is no MLflow server, or the address lacks a path"
        else:
            sentence = f"{where} failed ({status}){told}"
        return Refused(sentence, status, code, reason)

    def _why(self, error: BaseException) -> str:
        """The innermost reason of a failed connection, in a few words."""
        inner: BaseException = error
        seen: set[int] = set()
        while id(inner) not in seen:
            seen.add(id(inner))
            nested = getattr(inner, "reason", None)
            arguments = [item for item in inner.args if isinstance(item, BaseException)]
            following = nested if isinstance(nested, BaseException) else arguments[0] if arguments else None
            inner = following or inner.__cause__ or inner.__context__ or inner
        strerror = getattr(inner, "strerror", None)
        return self.store.scrub(strerror or inner, 160)

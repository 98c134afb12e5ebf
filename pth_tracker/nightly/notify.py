"""Messages about what newly failed, through Apprise; one that cannot be sent is reported and stops nothing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from pth_tracker.errors import UsageError
from pth_tracker.findings import Finding
from pth_tracker.model import Audit
from pth_tracker.nightly.config import Target
from pth_tracker.redaction import without_environment
from pth_tracker.render.news import in_short, named
from pth_tracker.render.text import counted, safe_text

REMEDY: Final = "pip install 'pth-tracker[notify]'"
SHOWN: Final = 10
"""Findings that one message names."""
_PINGS: Final = (("@", "@\u200b"), ("<!", "<\u200b!"))
"""What some services take for "alert everybody", with a space of no width that keeps them from it."""


@dataclass(frozen=True)
class Message:
    """What is sent."""

    title: str
    body: str


def message(audit: Audit, name: str, due: Sequence[Finding], link: str) -> Message:
    """What to say of the findings ``due``, with the state of the others in one line, and a link."""
    subject = audit.project or name
    lines = [f"- {named(audit, finding)}: {safe_text(finding.title)}" for finding in due[:SHOWN]]
    if len(due) > SHOWN:
        lines.append(f"- and {len(due) - SHOWN} more")
    news = audit.since_last
    rest = in_short(news) if news else ""
    body = "\n".join([*lines, *([rest] if rest else []), *([safe_text(link)] if link else [])])
    title = f"pth-tracker: {counted(len(due), 'new failure')} in {safe_text(subject)}"
    return Message(_harmless(title), _harmless(body))


def _harmless(text: str) -> str:
    text = without_environment(text)
    for ping, plain in _PINGS:
        text = text.replace(ping, plain)
    return text


def check_targets(targets: Iterable[Target]) -> None:
    """Makes sure, before any work is done, that messages could be sent.

    Raises:
        UsageError: Apprise is not installed, or reads one of the addresses as none.
    """
    wanted = list(targets)
    if not wanted:
        return
    if find_spec("apprise") is None:
        raise UsageError(f"{wanted[0].shown} needs Apprise: {REMEDY}")
    from apprise import Apprise

    with _quiet():
        for target in wanted:
            if Apprise.instantiate(target.url, suppress_exceptions=True) is None:
                raise UsageError(f"{target.shown} is no address that Apprise reads: see its list of services")


def send(targets: Sequence[Target], what: Message) -> list[str]:
    """Sends the message to every target; one sentence for each that it could not be sent to."""
    from apprise import Apprise, NotifyFormat, NotifyType

    failed: list[str] = []
    for target in targets:
        with _quiet() as said:
            try:
                sender = Apprise()
                sent = sender.add(target.url) and sender.notify(
                    what.body, what.title, notify_type=NotifyType.FAILURE, body_format=NotifyFormat.TEXT
                )
            except Exception as error:  # one of a hundred plugins
                sent, said = False, [type(error).__name__]
        if not sent:
            reason = next((text for text in reversed(said) if target.url not in text), "no reason is given")
            failed.append(f"the notification to {target.shown} could not be sent: {safe_text(reason)[:200]}")
    return failed


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Within, what Apprise would print of its troubles is collected, without what follows any address in it."""
    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage().partition("://")[0].partition("\n")[0])

    logger = logging.getLogger("apprise")
    handler, propagate = Collect(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what its hundred plugins import
            yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate

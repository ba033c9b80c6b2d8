"""Rejects messages that cannot be decoded or handled, and gives the reason."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.serialization import registry
from kombu.utils import json

from celery_delayq.integration import worker
from celery_delayq.utils import foreign
from celery_delayq.utils.message_json import decode
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)

#: The errors that Celery raises for a malformed task message.
MALFORMED_ERRORS = (*foreign.FOREIGN_ERRORS, DecodeError, ContentDisallowed)

_JSON_TYPE = "application/json"


class RejectsUndecodable:
    """A message that is rejected instead of acknowledged if it cannot be decoded."""

    undecodable: BaseException | None = None
    errors: list[Any]
    accept: Any
    body: Any
    content_type: Any
    channel: Any
    delivery_info: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.errors:  # the body cannot be decompressed
            _, self.undecodable, _ = self.errors[0]

    def _decode(self) -> Any:
        if self._is_usual_json:
            with suppress(Exception):  # kombu decodes again below, and raises its own error
                return decode(self.body)
        try:
            return super()._decode()  # type: ignore[misc]
        except Exception as exc:
            self.undecodable = exc
            raise

    @property
    def _is_usual_json(self) -> bool:
        """Whether kombu would decode the body with its own JSON decoder."""
        return (
            self.content_type == _JSON_TYPE
            and self.accept is not None
            and _JSON_TYPE in self.accept
            and isinstance(self.body, bytes)
            and self.body != b""
            and registry._decoders.get(_JSON_TYPE) is json.loads
        )

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge the message, or reject an undecodable one, which Celery and kombu would
        acknowledge too.
        """
        tag = (self.delivery_info or {}).get("consumer_tag")
        # A consumer with no_ack settles no message. kombu's ack checks no_ack, its reject does not.
        if self.undecodable is None or tag in (self.channel.no_ack_consumers or ()):
            super().ack(multiple)  # type: ignore[misc]
        else:
            self.reject()  # type: ignore[attr-defined]


def reason_of(message: Any) -> str:
    """Return the reason for rejecting a message, from its own or the current exception."""
    exc = getattr(message, "undecodable", None)
    if exc is not None:
        return f"undecodable message: {exc}"
    handled = sys.exc_info()[1]
    name = (getattr(message, "headers", None) or {}).get("task")
    if isinstance(handled, KeyError) and name in handled.args:
        return f"unknown task {name!r}"
    return "rejected" if handled is None else f"rejected: {type(handled).__name__}: {handled}"


def handle_or_refuse(
    handle: Callable[[Any], Any],
    message: Any,
    refuse: Callable[[Exception], object],
    errors: tuple[type[Exception], ...] = (Exception,),
) -> Any:
    """Handle a message. Refuse it after an error, since the next delivery would raise the same one.

    A MemoryError is raised: it ends the worker, and its messages are requeued.

    Parameters
    ----------
    refuse : Callable[[Exception], object]
        Called with the error, inside the ``except`` clause.

    Returns
    -------
    Any
        The result of *handle*; True for a refused message.
    """
    try:
        return handle(message)
    except MemoryError:
        raise
    except errors as exc:
        refuse(exc)
        return True


def log_refused(exc: Exception, *, by_worker: bool) -> str:
    """Log the error and return the reason for refusing a message.

    Outside a worker the error is raised.
    """
    if not by_worker:
        raise exc
    logger.exception("Celery cannot handle a message")
    return f"rejected: {described(exc)}"


def log_undecodable(queue: str, item: bytes, exc: Exception) -> None:
    """Log that an undecodable message is now a dead letter."""
    logger.error(
        "An undecodable message in queue %r is now a dead letter: %s: %r", queue, exc, item[:200]
    )


def drop_malformed(callback: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Wrap the callback for messages without acknowledgement: events, and commands to all workers.

    A message that Celery cannot handle does not end the worker.
    """

    def handle(message: Any) -> None:
        try:
            callback(message)
        except MALFORMED_ERRORS:
            if not worker.is_here():
                raise
            logger.exception("dropped a message of a fanout exchange that Celery cannot handle")

    return handle

"""Converts AMQP messages to and from kombu's envelope for Redis, which is the form of dead letters.

AMQP has a fixed set of properties, so a header contains the ``delayq`` property.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import amqp
from kombu.transport import pyamqp

from celery_delayq.errors import RecordError
from celery_delayq.model import delivery
from celery_delayq.model.envelope import LIMIT_FIELD, PROPERTY
from celery_delayq.transport.amqp import cascade
from celery_delayq.transport.amqp.frames import Content
from celery_delayq.transport.amqp.inbound import UNREADABLE_HEADER
from celery_delayq.transport.rejected import RejectsUndecodable
from celery_delayq.utils.foreign import loads, record_errors

#: The header with the ``delayq`` property, as JSON.
OWN_HEADER = "delayq"

#: The header with the number of a message's earlier deliveries. Only quorum queues set it.
_DELIVERY_COUNT_HEADER = "x-delivery-count"

#: Properties of AMQP that an envelope has too, with the same names.
_SHARED_PROPERTIES = (
    "priority",
    "correlation_id",
    "reply_to",
    "delivery_mode",
    "expiration",
    "message_id",
)


#: Encodings of bodies that stay bytes. kombu decodes UTF-8.
_BYTES_ENCODINGS = (None, "utf-8", "binary")


class Routed(NamedTuple):
    """A message, its exchange and its routing key.

    *due_ms* is the due time of a delayed message, in ms since 1970. The delay is computed when the
    message is sent. A message that is encoded already (``Content``) is sent unchanged.
    """

    message: Any | Content
    exchange: str
    routing_key: str
    due_ms: float | None = None


def is_task(message: Any) -> bool:
    """Return whether an AMQP message is a Celery task message (protocol 2)."""
    headers = message.properties.get("application_headers") or {}
    return "task" in headers and "id" in headers


def deliveries_before(message: Any) -> int:
    """Return the number of an AMQP message's earlier deliveries; from a classic queue 0 or 1."""
    count = (message.properties.get("application_headers") or {}).get(_DELIVERY_COUNT_HEADER)
    redelivered = bool((message.delivery_info or {}).get("redelivered"))
    return count if isinstance(count, int) else int(redelivered)


class Message(RejectsUndecodable, pyamqp.Message):
    """A received message, without the headers of the cascade."""

    headers: dict[str, Any]
    delivery_info: dict[str, Any]

    def __init__(self, msg: Any, channel: Any = None, **kwargs: Any) -> None:
        super().__init__(msg, channel, **kwargs)
        if isinstance(self.body, bytes) and self.content_encoding not in _BYTES_ENCODINGS:
            # Not by py-amqp, which would also replace the body of the received message.
            with suppress(RecordError), record_errors("text"):
                self.body = self.body.decode(self.content_encoding)
        if self.headers.get(cascade.TARGET_HEADER) == "":
            # So that a retry is sent to the queue by its name, as the task was.
            self.delivery_info = {**self.delivery_info, "exchange": ""}
        self.headers = cascade.original_headers(self.headers)
        for name in (_DELIVERY_COUNT_HEADER, OWN_HEADER, UNREADABLE_HEADER):
            self.headers.pop(name, None)
        self.properties = {
            **msg.properties,
            PROPERTY: {**own_of(msg), "deliveries": deliveries_before(msg) + 1},
        }
        self._sent = msg

    @property
    def _raw(self) -> dict[str, Any]:
        """The message as kombu's envelope."""
        properties: dict[str, Any] = {
            name: self.properties[name] for name in _SHARED_PROPERTIES if name in self.properties
        }
        info = self.delivery_info or {}
        return {
            "body": base64.b64encode(self._sent.body or b"").decode(),
            "content-type": self.content_type,
            "content-encoding": self.content_encoding,
            "headers": self.headers,
            "properties": {
                **properties,
                "body_encoding": "base64",
                "delivery_tag": properties.get("message_id", str(self.delivery_tag)),
                "delivery_info": {name: info.get(name) for name in ("exchange", "routing_key")},
                PROPERTY: self.properties[PROPERTY],
            },
        }

    def pack(self) -> bytes:
        """Return the message in the form of a dead letter."""
        return delivery.pack_received(self._raw)


def from_envelope(envelope: Mapping[str, Any]) -> Any:
    """Return the AMQP message of an envelope."""
    properties = dict(envelope["properties"])
    body: Any = envelope["body"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    return amqp.Message(
        body,
        content_type=envelope["content-type"],
        content_encoding=envelope["content-encoding"],
        application_headers=dict(envelope["headers"]),
        **{
            name: properties[name]
            for name in _SHARED_PROPERTIES
            if properties.get(name) is not None
        },
        **{PROPERTY: properties.get(PROPERTY) or {}},
    )


#: Fields of the ``delayq`` property that only Redis supports, with the options that set them.
REDIS_OPTIONS = {
    "unique": "unique_key",
    "skip_after": "skip_after",
    "budget": "retry_budget",
    LIMIT_FIELD: "limit",
}

#: Fields that no message on RabbitMQ has: :data:`REDIS_OPTIONS`, and fields that a worker or Redis
#: sets.
_UNSENT_FIELDS = frozenset(
    {*REDIS_OPTIONS, *("place", "queue", "deliveries", "label", "task", "retry_of")}
)


def own_of(message: Any) -> dict[str, Any]:
    """Return the ``delayq`` property of an AMQP message; empty if it is missing or malformed."""
    text = (message.properties.get("application_headers") or {}).get(OWN_HEADER)
    own = None
    if isinstance(text, str):
        with suppress(RecordError):
            own = loads(text)
    if not isinstance(own, dict):
        return {}
    return {name: value for name, value in own.items() if name not in _UNSENT_FIELDS}

"""What a channel notes in a delivered message: the place of its lease, and its deliveries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr

from celery_delayq.errors import RecordError
from celery_delayq.model.envelope import PROPERTY
from celery_delayq.utils import message_json
from celery_delayq.utils.foreign import record_errors

#: Stands for the name of the queue where no queue is bound to get a message. The task becomes a
#: dead letter: without a queue kombu would not publish, and the task would be lost.
UNBOUND_QUEUE = "\0unbound"

#: Most characters of the text that replaces a value which JSON cannot hold.
_MAX_TEXT_CHARACTERS = 1000


class LeasePlace(NamedTuple):
    """A lease: id of the Redis database, queue, delivery tag, and the message's label and mark."""

    database_id: str
    queue: str
    tag: str
    label: Any = ""
    limit: Any = ""


_LEASED = re.compile(rb"(\d+)!?\n")


def split_leased(value: bytes) -> tuple[int | None, bytes]:
    """Return the priority step and the message of a leased or quarantined value.

    The format is that of ``include/leases/lease.lua``; the step of an unreadable value is None.
    """
    if value.startswith(b"{"):
        return 0, value
    match = _LEASED.match(value)
    return (int(match[1]), value[match.end() :]) if match else (None, value)


def retry_of(message: Mapping[str, Any]) -> LeasePlace | None:
    """Return the lease of the message that *message* retries; None if it is no retry.

    :class:`~celery_delayq.DelayQ` notes the lease if the task acknowledges late.
    """
    own = message["properties"].get(PROPERTY)
    found = own.get("retry_of") if own else None
    return None if found is None else LeasePlace(*found)


def without_retry_note(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message for a plain publish: of a retry a copy without the notes of the retry."""
    if retry_of(message) is None:
        return message
    return _without(message, "retry_of", "retried_to")


def note_delivery(
    message: dict[str, Any], lease: LeasePlace, number: int, promoted: int | None = None
) -> None:
    """Note the lease and the deliveries of a message in the message itself.

    The bytes in Redis do not change.

    Parameters
    ----------
    number : int
        How often the message was delivered, this delivery included.
    promoted : int | None
        When the message was promoted, in ms since 1970; None if unknown.
    """
    properties = message["properties"]
    own = properties.get(PROPERTY)
    properties["delivery_tag"] = lease.tag
    own = {**(own or {}), "place": lease.database_id, "queue": lease.queue, "deliveries": number}
    if promoted is not None:
        own["promoted"] = promoted
    properties[PROPERTY] = own
    if number > 1:
        properties["delivery_info"]["redelivered"] = True


def without_delivery(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a message without the notes of :func:`note_delivery`."""
    return _without(message, "place", "queue", "deliveries", "promoted")


def pack_received(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a received message for a dead letter.

    A text replaces each value that JSON cannot hold.
    """
    sent = without_delivery(message)
    try:
        return _encoded(sent)
    except RecordError:
        parts = {name: _json_values(sent[name]) for name in ("headers", "properties")}
        return _encoded({**sent, **parts})


def _encoded(value: Any) -> bytes:
    with record_errors("message"):
        return message_json.encode(value)


def _json_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        key = name if isinstance(name, str) else saferepr(name, _MAX_TEXT_CHARACTERS)
        try:
            _encoded(value)
        except RecordError:
            value = saferepr(value, _MAX_TEXT_CHARACTERS)
        found[key] = value
    return found


def _without(message: Mapping[str, Any], *names: str) -> dict[str, Any]:
    properties = dict(message["properties"])
    own = {name: value for name, value in properties.pop(PROPERTY, {}).items() if name not in names}
    if "label" in own:  # scripts read the label at the beginning of the message
        return {**message, "properties": {PROPERTY: own, **properties}}
    return {**message, "properties": {**properties, **({PROPERTY: own} if own else {})}}

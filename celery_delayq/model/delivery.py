"""The data of a delivery in its message: where a worker's message is held."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr

from celery_delayq.errors import RecordError
from celery_delayq.model.envelope import PROPERTY
from celery_delayq.utils import message_json
from celery_delayq.utils.foreign import reading

#: What stands for the queues of a message that no queue is bound to get.
UNBOUND_QUEUE = "\0unbound"

#: Characters of the text that stands for a value which JSON cannot hold.
_MAX_TEXT_CHARACTERS = 1000


class HeldBy(NamedTuple):
    """Where a worker's message is held: Redis, queue and delivery tag; and its label, if any."""

    place: str
    queue: str
    tag: str
    label: Any = ""


_LEASED = re.compile(rb"(\d+)!?\n")


def split_held(value: bytes) -> tuple[int | None, bytes]:
    """Return priority step and message of a leased or quarantined value (``include/lease.lua``)."""
    if value.startswith(b"{"):
        return 0, value
    match = _LEASED.match(value)
    return (int(match[1]), value[match.end() :]) if match else (None, value)


def retry_of(message: Mapping[str, Any]) -> HeldBy | None:
    """Return where the message is held that this one retries, None for no retry.

    :class:`~celery_delayq.DelayQ` notes it where the task acknowledges late.
    """
    own = message["properties"].get(PROPERTY)
    found = own.get("retry_of") if own else None
    return None if found is None else HeldBy(*found)


def without_retry_note(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message that is to be sent like any other, a retry as a copy without the note."""
    if retry_of(message) is None:
        return message
    return _without(message, "retry_of", "retried_to")


def note_delivery(
    message: dict[str, Any], held: HeldBy, number: int, promoted: int | None = None
) -> None:
    """Note in a message where it is held, that this is its delivery *number* (from 1), and when it
    was *promoted*, in ms since 1970, where that is known.

    The bytes in Redis stay as they are.
    """
    properties = message["properties"]
    own = properties.get(PROPERTY)
    properties["delivery_tag"] = held.tag
    own = {**(own or {}), "place": held.place, "queue": held.queue, "deliveries": number}
    if promoted is not None:
        own["promoted"] = promoted
    properties[PROPERTY] = own
    if number > 1:
        properties["delivery_info"]["redelivered"] = True


def without_delivery(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a message without the notes of :func:`note_delivery`."""
    return _without(message, "place", "queue", "deliveries", "promoted")


def pack_received(message: Mapping[str, Any]) -> bytes:
    """Return a received message as a dead letter has it; what JSON cannot hold is a text there."""
    sent = without_delivery(message)
    try:
        return _encoded(sent)
    except RecordError:
        parts = {name: _as_json(sent[name]) for name in ("headers", "properties")}
        return _encoded({**sent, **parts})


def _encoded(value: Any) -> bytes:
    with reading("message"):
        return message_json.encode(value)


def _as_json(values: Mapping[Any, Any]) -> dict[str, Any]:
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
    if "label" in own:  # first, where scripts look for it
        return {**message, "properties": {PROPERTY: own, **properties}}
    return {**message, "properties": {**properties, **({PROPERTY: own} if own else {})}}

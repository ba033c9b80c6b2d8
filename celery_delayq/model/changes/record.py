"""Records with an edited message. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from celery_delayq.errors import InvalidOption, RecordError
from celery_delayq.model import envelope
from celery_delayq.model.envelope import PROPERTY, Due, Entry, Record, own_of
from celery_delayq.model.task_options import check_own
from celery_delayq.utils import message_json
from celery_delayq.utils.foreign import record_errors

#: Returns an edited copy of a decoded message.
Edit = Callable[[Mapping[str, Any]], Mapping[str, Any]]

#: The ``skip_after`` in a label that :func:`~celery_delayq.model.envelope.with_skip_after` wrote.
_ADDED_SKIP_AFTER = re.compile(r"\S* \S+ 0(\d+) ")


def edited_record(data: bytes, edit: Edit, step_of: Callable[[Mapping[str, Any]], int]) -> bytes:
    """Return the record of an edited message.

    The label has the same id, message id and ``skip_after``. Task, priority step, unique key, limit
    and ``expires`` are those of the edited message.

    Parameters
    ----------
    data : bytes
        The record of the message.
    edit : Edit
        Edits the message. It raises its own errors.
    step_of : Callable[[Mapping[str, Any]], int]
        Returns the priority step of a message.

    Raises
    ------
    RecordError
        The record is unreadable, or is not that of a task.
    """
    record = Record.unpack(data)
    message = message_json.decode(record.message)
    with record_errors("message"):
        envelope.check_envelope(message)
        if not envelope.is_task(message) or not isinstance(message["headers"]["task"], str):
            raise RecordError("it is no message of a task (protocol 2)")
        try:
            check_own(message["properties"])
        except InvalidOption as exc:
            raise RecordError(f"scripts cannot read its message: {exc}") from exc
        before = dict(own_of(message["properties"]))
        # A message without a label gets one: it names the message by the record's message id.
        own = before if "label" in before else {**before, "message_id": record.message_id}
        message = {**message, "properties": {**message["properties"], PROPERTY: own}}
    new = dict(edit(message))
    if new["headers"]["id"] != message["headers"]["id"]:
        raise RecordError("its id was changed")
    is_moved = new["properties"].get("priority") != message["properties"].get("priority")
    with record_errors("message"):
        entry = Entry.of(new, step_of(new) if is_moved else record.priority, Due(0))
        if found := _ADDED_SKIP_AFTER.match(str(before.get("label", ""))):
            entry = envelope.with_skip_after(entry, int(found[1]))
    return entry.data

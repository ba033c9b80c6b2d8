"""Makes the messages that replay dead letters. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from celery.utils.time import maybe_make_aware

from celery_delayq.errors import InvalidETA, InvalidOption, RecordError
from celery_delayq.model import envelope
from celery_delayq.model.changes import MessageEditor
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import (
    PROPERTY,
    Due,
    Entry,
    due_of_countdown,
    due_of_eta,
    entry_id,
    is_task,
    unique_key,
)
from celery_delayq.model.task_options import check_own
from celery_delayq.store.keys import Layout
from celery_delayq.utils.foreign import record_errors

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Our data in a message that do not hold for a new run of its task.
_FIRST_RUN_FIELDS = frozenset(
    {"label", "task", "eta", "place", "queue", "deliveries", "countdown", "retry_of", "retried_to"}
)


class ReplayChanges(NamedTuple):
    """Changes of the messages of a replay, and another queue for them; None for no change."""

    editor: MessageEditor | None = None
    queue: str | None = None


#: Separates the name of a retry budget from that of the replay.
_REPLAY_SEPARATOR = " again "


def replay_entry(
    dead_letter: DeadLetter,
    layout: Layout,
    due: Due,
    changes: ReplayChanges,
    message_id: str,
    run: str,
) -> Entry:
    """Return the entry that replays a dead letter into a queue with that layout.

    The other parameters and the errors are those of :func:`replay_message`.
    """
    new = replay_message(dead_letter, changes, message_id, run)
    label = bool(due.ms) or envelope.is_special(new)
    return Entry.of(new, layout.step_of(new), due, label=label)


def replay_message(
    dead_letter: DeadLetter, changes: ReplayChanges, message_id: str, run: str
) -> dict[str, Any]:
    """Return the message that replays a dead letter.

    Its number of retries is 0. The ETA and an expiry in the past are removed.

    Parameters
    ----------
    message_id : str
        The id of the new message, 32 characters.
    run : str
        The name of the replay. Tasks that are replayed together share their retry budgets again.

    Raises
    ------
    RecordError
        The dead letter is no message of a task, or its arguments cannot be decoded here.
    Exception
        The other errors of :meth:`MessageEditor.edit`.
    """
    if changes.queue is None and dead_letter.was_unbound:
        raise RecordError("it never had a queue; it needs one")
    message = dead_letter.message
    envelope.check_envelope(message)
    if message is None or not is_task(message):
        raise RecordError("the dead letter is no message of a task (protocol 2)")
    if changes.editor is not None:
        message = changes.editor.edit(message)
    headers, properties = dict(message["headers"]), dict(message["properties"])
    headers["retries"] = 0
    headers["eta"] = None
    if headers.get("expires") is not None and _has_passed(headers["expires"]):
        headers["expires"] = None
        properties.pop("expiration", None)
    own = _own_for_replay(properties.get(PROPERTY) or {}, run)
    own["message_id"] = properties["delivery_tag"] = message_id
    properties[PROPERTY] = own
    new = {**message, "headers": headers, "properties": properties}
    if changes.queue is not None:
        # Retries go to the queue of ``delivery_info``.
        properties["delivery_info"] = {"exchange": "", "routing_key": changes.queue}
    entry_id(headers["id"]).encode()  # raises an error for an id that cannot be sent
    check_own(properties)
    return new


def _own_for_replay(before: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Return our own data of a message for a new run of its task."""
    own = dict(before)
    if "unique" in own:
        own["unique"] = {**own["unique"], "key": unique_key(own)}
    for name in own.keys() & _FIRST_RUN_FIELDS:
        del own[name]
    if isinstance(own.get("budget"), list):
        name, most = own["budget"]
        # A new budget, since the old budget may be used up.
        own["budget"] = [
            f"{str(name).partition(_REPLAY_SEPARATOR)[0]}{_REPLAY_SEPARATOR}{run}",
            most,
        ]
    return own


def _has_passed(expires: Any) -> bool:
    try:
        at: datetime = maybe_make_aware(datetime.fromisoformat(str(expires)))
        return at <= datetime.now(timezone.utc)
    except ValueError:
        return False


def due_of(eta: datetime | str | None, countdown: float | None) -> Due:
    """Return the due time of a replay; raises InvalidETA for an invalid time, or for two times."""
    if eta is not None and countdown is not None:
        raise InvalidETA(f"eta={eta!r}, countdown={countdown!r}: give one of them")
    if eta is not None:
        return due_of_eta(eta)
    return Due(0) if countdown is None else due_of_countdown(countdown)


def make_replays(
    dead_letters: Sequence[DeadLetter],
    dues: Sequence[Due],
    make: Callable[[int, DeadLetter, Due], T],
) -> dict[int, T]:
    """Call *make* with the index and the due time of each dead letter; return its results by index.

    Dead letters whose messages cannot be replayed are left out: another producer's message may be
    anything.
    """
    found: dict[int, T] = {}
    for place, (dead_letter, due) in enumerate(zip(dead_letters, dues, strict=True)):
        try:
            with record_errors("message"):
                found[place] = make(place, dead_letter, due)
        except (RecordError, InvalidOption) as exc:
            logger.warning("Dead letter %r is not replayed: %r", dead_letter.id, exc)
    return found

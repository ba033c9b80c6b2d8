"""Converts messages of kombu to records of Redis and back. No I/O.

A record is one header line and then the message, with the bytes that go into the ready list::

    1 <priority step> <message_id> <task name, percent-encoded>\n{"body": …}

Scripts move these bytes and never parse JSON. ``1`` is the version of the format. The record of a
message of :data:`LARGE_MESSAGE_BYTES` or more is the message alone: its label has the message id,
and is followed by the task. So scripts move the record without a copy.

All attempts to publish one message have the same message id, and two messages never have the same
one. So the message id tells a repeated call from a second message with the same task id.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_delayq.errors import InvalidETA, RecordError
from celery_delayq.utils import message_json
from celery_delayq.utils.numbers import is_finite

#: Name of the message property that holds our own data. Celery copies headers into retries and
#: child tasks, but not properties.
PROPERTY = "delayq"

#: Bytes of a message from which on its record is the message itself.
LARGE_MESSAGE_BYTES = 65_536

#: Its task, among our own data.
TASK_FIELD = "task"

#: The mark of a task with a limit, among our own data: :func:`limit_mark`. Before a message is
#: encoded this is the lane alone.
LIMIT_FIELD = "limit"

#: Fields that only the sender needs.
_SENDER_FIELDS = frozenset({"countdown", "message_id", "retry_of", "retried_to"})

#: Fields that only a script can apply.
_SPECIAL_FIELDS = frozenset({"unique", "skip_after", LIMIT_FIELD})

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)

#: The last millisecond that a :class:`~datetime.datetime` can name, year 9999.
MAX_DUE_MS = 253_402_300_799_999

#: The longest countdown: one that begins in the year 2100 ends in the year 9999.
MAX_COUNTDOWN_MS = MAX_DUE_MS - 4_102_444_800_000


#: For ``isinstance``. Each message is a ``dict``, for which this is three times as fast
#: as ``Mapping`` alone.
MAPPINGS = (dict, Mapping)


def own_of(properties: Any) -> Mapping[str, Any]:
    """Return our own data among the properties of a message; empty if there is none."""
    own = properties.get(PROPERTY) if isinstance(properties, MAPPINGS) else None
    return own if isinstance(own, MAPPINGS) else {}


class Due(NamedTuple):
    """When an entry is due: in ms since 1970, or, if *relative*, in ms from now by Redis' clock."""

    ms: int
    relative: bool = False


#: The header line of a record; scripts read it by ``include/record.lua``.
_HEADER = re.compile(rb"1 (\d+) (\S+) (\S*)\n")
_WITHOUT_HEADER = re.compile(
    rb'{"properties": {"delayq": {"label": "\S* (\S+) \d+ \S+", "task": "([^\s"]*)"'
)


class Record(NamedTuple):
    """A record: one value in the hash of entries."""

    priority: int
    message_id: str
    task: str
    message: bytes

    def pack(self) -> bytes:
        """Return the bytes to store."""
        header = f"1 {self.priority} {self.message_id} {task_field(self.task)}\n".encode()
        if self.priority == 0 and len(self.message) >= LARGE_MESSAGE_BYTES:
            found = _WITHOUT_HEADER.match(self.message)
            if found and header == b"1 0 %b %b\n" % found.groups():
                return self.message
        return header + self.message

    @classmethod
    def unpack(cls, data: bytes) -> Record:
        """Read what :meth:`pack` wrote.

        Raises
        ------
        RecordError
            The bytes are no record of this version.
        """
        match = _HEADER.match(data)
        try:
            if match:
                task = task_name(match[3].decode())
                return cls(int(match[1]), match[2].decode(), task, data[match.end() :])
            if match := _WITHOUT_HEADER.match(data):
                return cls(0, match[1].decode(), task_name(match[2].decode()), data)
        except ValueError:
            pass
        raise RecordError(f"unreadable record, it begins with {data[:60]!r}")


class Entry(NamedTuple):
    """One message to schedule: the id of its entry, its due time and its packed record.

    *priority* is the priority step, which selects the ready list. *policy* says what happens if
    another entry has the unique key (``include/unique_policy.lua``); ``""`` without a unique key.
    """

    id: str
    due: Due
    priority: int
    data: bytes
    policy: str = ""

    @classmethod
    def of(cls, message: Mapping[str, Any], step: int, due: Due, *, label: bool = True) -> Entry:
        """Return the entry of a task message whose priority is in *step*.

        A message that is scheduled or :func:`is_special` needs a *label*. Only a message that goes
        to the ready list at once may go without.
        """
        headers = message["headers"]
        sent = message_json.encode(with_label(message) if label else without_eta(message))
        if label and len(sent) >= LARGE_MESSAGE_BYTES:
            sent = _with_task(sent, f', "{TASK_FIELD}": "{task_field(headers["task"])}"'.encode())
        record = Record(step, message_id_of(message), headers["task"], sent)
        return cls(entry_id(headers["id"]), due, step, record.pack(), _policy(message))


def entry_id(task_id: Any) -> str:
    """Return the id of an entry: the task's id without NULs, since NUL separates parts of names."""
    return str(task_id).replace("\0", "%00")


#: Ids that a label leaves as they are.
_PLAIN_ID = re.compile(r"[\w.~/:-]*", re.ASCII).fullmatch


@lru_cache(maxsize=1024)
def task_field(task: str) -> str:
    """Return a task's name percent-encoded, as in records and the index by task."""
    return quote(task)


@lru_cache(maxsize=1024)
def task_name(field: str) -> str:
    """Undo :func:`task_field`."""
    return unquote(field)


def due_of_countdown(countdown: Any, name: str = "countdown") -> Due:
    """Return the due time *countdown* seconds from now.

    Raises
    ------
    InvalidETA
        *countdown* is no finite number, or leads out of the years 1 to 9999.
    """
    seconds = countdown
    if type(countdown) not in (int, float, bool) and isinstance(countdown, Real):
        seconds = float(countdown)
    if not is_finite(seconds):
        raise InvalidETA(
            f"{name}={countdown!r}: expected a finite number of seconds, such as 30 or 0.5"
        )
    if abs(seconds) > MAX_COUNTDOWN_MS / 1000:
        raise InvalidETA(f"{name}={countdown!r}: leads out of the years 1 to 9999")
    return Due(math.ceil(float(seconds) * 1000), relative=True)


def due_of_eta(eta: Any) -> Due:
    """Return the due time of *eta*, rounded up to the millisecond.

    Parameters
    ----------
    eta : datetime | date | str
        A point in time, or its ISO 8601 form. A time without a time zone is in UTC, as in Celery's
        worker (``celery.worker.request.Request``).

    Raises
    ------
    InvalidETA
        *eta* is neither.
    """
    try:
        if isinstance(eta, str):
            moment = parse_iso(eta)
        elif isinstance(eta, datetime):
            moment = eta
        elif isinstance(eta, date):
            moment = datetime(eta.year, eta.month, eta.day)
        else:
            raise TypeError("not a point in time")
        if moment.tzinfo is None:
            moment = maybe_make_aware(moment)
        return Due(-((EPOCH - moment) // _MILLISECOND))
    except (ValueError, TypeError, OverflowError) as exc:
        raise InvalidETA(
            f"eta={eta!r}: expected a datetime of the years 1 to 9999 or its ISO 8601 form, "
            "such as '2030-01-31T09:00:00+00:00'; use countdown= for a number of seconds"
        ) from exc


def parse_iso(text: str) -> datetime:
    """Return a time in ISO 8601; raises ValueError for anything else."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # Python 3.10 reads only what isoformat() writes; Celery's parser reads all of ISO 8601.
        moment: datetime | None = maybe_iso8601(text)
        if moment is None:
            raise ValueError("empty") from None
        return moment


def is_task(message: Mapping[str, Any]) -> bool:
    """Return whether this is a Celery task message (protocol 2), the only kind with an ETA."""
    headers = message.get("headers")
    return isinstance(headers, dict) and "task" in headers and "id" in headers


def due_of(message: Mapping[str, Any]) -> Due | None:
    """Return when a task message is due by its ETA; None without an ETA.

    Raises
    ------
    InvalidETA
        The message's ETA cannot be read.
    """
    if not is_task(message) or message["headers"].get("eta") is None:
        return None
    return due_of_eta(message["headers"]["eta"])


def due_when_sent(message: Mapping[str, Any]) -> Due | None:
    """Return when a task message that is being sent is due; None without an ETA.

    :class:`~celery_delayq.DelayQ` notes the sender's countdown, together with the ETA that Celery
    computes from the countdown by the sender's clock. The countdown counts, by Redis' clock, unless
    a handler of ``before_task_publish`` has changed the ETA. After the publish only the ETA counts.

    Raises
    ------
    InvalidETA
        The message's ETA cannot be read.
    """
    eta = message["headers"].get("eta") if is_task(message) else None
    if eta is None:
        return None
    noted = (message["properties"].get(PROPERTY) or {}).get("countdown")
    match noted:
        case [countdown, eta_of_countdown] if eta_of_countdown == eta:
            return due_of_countdown(countdown)
    return due_of_eta(eta)


def message_id_of(message: Mapping[str, Any]) -> str:
    """Return the message id of *message*; a new one is noted in the properties.

    The message id is the first delivery tag: kombu repeats a failed publish with the same
    properties and a new delivery tag.
    """
    own = message["properties"].setdefault(PROPERTY, {})
    if "label" in own:  # the message was scheduled before
        return str(own["label"].split(" ")[1])
    return str(own.setdefault("message_id", message["properties"]["delivery_tag"]))[:16]


def without_eta(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of *message* without the header ``eta``; our own data keep the ETA.

    A Celery worker would hold a message with an ETA in a timer, even if the ETA has passed. The
    original is not changed: kombu publishes it again after a connection error, and for the second
    queue of a topic exchange.
    """
    headers, properties, own = _for_worker(message)
    if own:
        properties[PROPERTY] = own
    return {**message, "headers": headers, "properties": properties}


def with_label(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return :func:`without_eta` of *message* with a label in its first bytes.

    Scripts read the label ``<id> <message_id> <skip_after in ms> <unique key>``, percent-encoded
    (``include/record.lua``). A leading 0 of ``skip_after`` means that :func:`with_skip_after` wrote
    it. Behind the label is the mark of a limit. Both come first by the order of the JSON keys,
    which other readers ignore.
    """
    headers, properties, own = _for_worker(message)
    id, key = entry_id(headers["id"]), unique_key(own)
    label = label_of(id, message_id_of(message), own.get("skip_after", 0), key)
    if "unique" in own:  # the key is in the label
        own["unique"] = {name: value for name, value in own["unique"].items() if name != "key"}
    for name in ("label", TASK_FIELD):
        own.pop(name, None)
    begin = {"label": label}
    if LIMIT_FIELD in own:
        begin[LIMIT_FIELD] = limit_mark(own.pop(LIMIT_FIELD), headers.get("expires"))
    first = {"properties": {PROPERTY: {**begin, **own}, **properties}}
    return {**first, **message, **first, "headers": headers}


def limit_mark(lane: str, expires: Any) -> str:
    """Return the mark of a message with a limit: ``<lane> <expires>``.

    Parameters
    ----------
    lane : str
        The lane, or an earlier mark.
    expires : Any
        The header ``expires``. The mark has it in ms since 1970; 0 if it is missing or unreadable.
    """
    try:
        ms = 0 if expires is None else max(1, due_of_eta(expires).ms)
    except InvalidETA:
        ms = 0
    return f"{lane_in(lane)} {ms}"


def lane_in(mark: str) -> str:
    """Return the lane in a mark."""
    return mark.partition(" ")[0]


#: The mark behind the label of a message, and behind the task of a large one.
_LIMIT = re.compile(
    rb'{"properties": {"delayq": {"label": "\S* \S+ \d+ \S+", (?:"task": "[^\s"]*", )?'
    rb'"limit": "([!#-9;-~]+:[!#-~]*) (\d{1,15})"'
)

#: Most characters of a lane, as in ``include/record.lua``.
_MAX_LANE_LENGTH = 500


class LimitMark(NamedTuple):
    """The lane of a message with a limit, and its ``expires`` in ms since 1970; 0 without one."""

    lane: str
    expires_ms: int


def limit_of(message: bytes) -> LimitMark | None:
    """Return the mark in the first bytes of a message; None if scripts read none there."""
    found = _LIMIT.match(message)
    if found is None or len(found[1]) > _MAX_LANE_LENGTH:
        return None
    return LimitMark(found[1].decode(), int(found[2]))


def may_have_limit(record: bytes) -> bool:
    """Return whether :func:`limit_of` may find a mark in a record. Rarely there is none."""
    return record.find(b'", "limit": "', 0, 1000) >= 0


def _with_task(sent: bytes, task: bytes) -> bytes:
    """Return a message with its task behind its label, where scripts read the task."""
    found = _LABEL.match(sent)
    return sent[: found.end()] + task + sent[found.end() :] if found else sent


def _for_worker(message: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return copies of headers, other properties, and our own data, to which the ETA moves."""
    headers, properties = message["headers"], dict(message["properties"])
    own = {n: v for n, v in properties.pop(PROPERTY, {}).items() if n not in _SENDER_FIELDS}
    if headers.get("eta") is not None:
        own["eta"] = headers["eta"]
    return {**headers, "eta": None}, properties, own


def label_of(id: str, message_id: str, skip_after: int, key: str) -> str:
    """Return the label of a message with that entry id; *key* is ``""`` without a unique key."""
    # Scripts read an id without percent signs twice as fast, so the id keeps its colons.
    shown = id if _PLAIN_ID(id) else quote(id)
    return f"{shown} {message_id} {skip_after} {key or '-'}"


#: The beginning of a record whose label has no ``skip_after``, up to that 0.
_WITHOUT_TIME = re.compile(rb'(?:1 [^\n]*\n)?{"properties": {"delayq": {"label": "\S* \S+ 0(?= )')


def with_skip_after(entry: Entry, ms: int) -> Entry:
    """Return an entry that is dropped when it is *ms* late because no process dispatched.

    With 0 ms, or if the entry has its own ``skip_after``, the entry is returned unchanged.
    """
    found = _WITHOUT_TIME.match(entry.data) if ms else None
    if found is None:
        return entry
    head, rest = entry.data[: found.end()], entry.data[found.end() :]
    return entry._replace(data=b"%b%d%b" % (head, ms, rest))


#: The label of a message; scripts read it by ``include/record.lua``.
_LABEL = re.compile(rb'{"properties": {"delayq": {"label": "(\S*) (\S+) \d+ (\S+)"')


#: Label and mark.
_HEAD = re.compile(_LABEL.pattern + rb'(?:(?:, "task": "[^\s"]*")?, "limit": "[!#-~]+ \d{1,15}")?')


def head_of(message: bytes) -> bytes:
    """Return the first bytes of a message, up to the end of its label and the mark of its limit;
    empty without a label.
    """
    found = _HEAD.match(message)
    return found[0] if found else b""


def head_with(label: Any, mark: Any = "") -> bytes:
    """Return :func:`head_of` a message with that label, and that mark if it has a limit.

    Empty if scripts cannot read the label.
    """
    limit = f', "{LIMIT_FIELD}": "{mark}"' if mark else ""
    text = f'{{"properties": {{"{PROPERTY}": {{"label": "{label}"{limit}'
    return head_of(text.encode("ascii", "replace"))


class Label(NamedTuple):
    """The label in the first bytes of a message; *unique* is ``-`` without a unique key."""

    id: bytes
    message_id: bytes
    unique: bytes

    @classmethod
    def of(cls, message: bytes) -> Label | None:
        """Read the label of a message; None without a label."""
        found = _LABEL.match(message)
        return None if found is None else cls(unquote_to_bytes(found[1]), found[2], found[3])

    @property
    def name(self) -> bytes:
        """``id NUL message_id``; no other message has the same name."""
        return self.id + b"\0" + self.message_id


def unique_key(own: Mapping[str, Any]) -> str:
    """Return the unique key in our own data of a message; ``""`` without a unique key.

    The key begins with the first character of its scope. If there is a label, the label has it.
    """
    key: str = own.get("unique", {}).get("key") or own.get("label", "-").rpartition(" ")[2]
    return "" if key == "-" else key


def _policy(message: Mapping[str, Any]) -> str:
    """Return the policy for a taken unique key, as :attr:`Entry.policy` has it."""
    unique = own_of(message["properties"]).get("unique")
    if unique is None:
        return ""
    retry = "1" if message["headers"].get("retries") else "0"
    names = map(quote, unique.get("former_names", ()))
    return " ".join([unique["policy"][0], str(unique.get("max_wait", 0)), retry, *names])


def policy_of_existing(
    action: Literal["keep", "error"], names: Iterable[str], *, is_retry: bool = False
) -> str:
    """Return the policy for a message that exists already: it replaces no other message.

    Parameters
    ----------
    action : "keep" | "error"
        What happens if another message has the unique key.
    names : Iterable[str]
        The names of its task, as :meth:`~celery_delayq.model.names.Renames.all_names` returns them.
        A message of one of them may have the same unique key.
    """
    return " ".join([action[0], "0", "1" if is_retry else "0", *map(quote, names)])


def is_special(message: Mapping[str, Any]) -> bool:
    """Return whether a message goes through the schedule even if it is to run at once.

    Messages with a unique key, ``skip_after`` or a limit do.
    """
    own = message["properties"].get(PROPERTY)
    return bool(own) and not _SPECIAL_FIELDS.isdisjoint(own) and is_task(message)


def for_stock(message: Mapping[str, Any], eta: str | None) -> dict[str, Any]:
    """Return a copy of *message* as a stock producer would send it, with this ETA."""
    properties = {name: value for name, value in message["properties"].items() if name != PROPERTY}
    return {**message, "headers": {**message["headers"], "eta": eta}, "properties": properties}


def dead_letter_text(text: str) -> bytes:
    """Return an id or a reason for the header of a dead letter: one line, at most 1,000 bytes."""
    return " ".join(text.split())[:1000].encode("utf-8", "backslashreplace")


def check_envelope(message: Any) -> None:
    """Check that kombu can make a message of a decoded JSON value.

    Raises
    ------
    RecordError
        The value is no JSON object, or lacks the properties that every kombu message has.
    """
    properties = message.get("properties") if isinstance(message, dict) else None
    if (
        not isinstance(properties, dict)
        or "delivery_tag" not in properties
        or not isinstance(properties.get("delivery_info"), dict)
    ):
        raise RecordError("the message has no properties with delivery_tag and delivery_info")

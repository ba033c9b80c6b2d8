"""Templates of messages: Celery makes the first message of each kind, a template makes the others.

Messages of one kind have the same task and the same options. They differ only in ids, arguments and
times. A template holds the encoded text of the first message, with placeholders for these parts. A
template is used only if its text of the first call equals Celery's message byte for byte. Of tasks
whose messages may differ in other parts, Celery makes every message.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from json import JSONEncoder as StockEncoder
from typing import Any, NamedTuple

from celery import Celery, Task
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_make_aware
from kombu.utils.json import JSONEncoder, loads

from celery_delayq.integration.context import CONTEXT_FIELD, CONTEXT_OPTION, Sent
from celery_delayq.model import envelope, unique
from celery_delayq.model.compat.binding import has_own_apply_async
from celery_delayq.model.envelope import (
    LIMIT_FIELD,
    PROPERTY,
    Due,
    Entry,
    due_of_countdown,
    due_of_eta,
)
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.model.unique import Key
from celery_delayq.utils import message_json
from celery_delayq.utils.plain_repr import is_plain, plain_repr

#: Encodes bodies as Celery's ``json`` serializer does.
_encode: Callable[[Any], str] = JSONEncoder().encode

#: Encodes texts faster than ``json.dumps``.
dumps: Callable[[Any], str] = StockEncoder().encode


class TargetTask(NamedTuple):
    """The task of a call.

    Attributes
    ----------
    name : str
    task : Task | None
        None if this app does not know the task.
    uniform : bool
        Whether messages of the task differ only in the parts that a template fills in.
    """

    name: str
    task: Any = None
    uniform: bool = True

    @classmethod
    def of(cls, task: Task) -> TargetTask:
        """Return the target of a task of this app."""
        uniform = (
            not has_own_apply_async(task)
            and getattr(task.shadow_name, "__func__", None) is Task.shadow_name
            and getattr(task, "_dump_pydantic_arguments", None) is None
        )
        return cls(task.name, task, uniform)


class Job(NamedTuple):
    """A call of a task: the arguments of :meth:`celery.Celery.send_task`."""

    target: TargetTask
    id: str
    message_id: str
    args: Any
    kwargs: Any
    eta: Any
    countdown: Any
    expires: Any
    queue: Any
    priority: Any
    options: Mapping[str, Any]
    unique_key: Any = None


class EncodedCall(NamedTuple):
    """An encoded call with an ETA and keyword arguments.

    *eta* is in ISO 8601, in UTC; *due* is the same time. *key* is the text of the
    :class:`~.unique.Key`. *kwargs* are JSON; *shown* is their ``repr``, None if they are nested.
    """

    id: str
    message_id: str
    due: Due
    eta: str
    key: str
    kwargs: str
    shown: str | None


class Routed(NamedTuple):
    """An entry and its queues; a topic exchange may have several."""

    queues: tuple[str, ...]
    entry: Entry


def message_id_of_id(id: str, version: str = "") -> str:
    """Return the message id for a task id; of messages with one message id the first is stored."""
    text = f"{id}\0{version}" if version else id
    return blake2b(text.encode(), digest_size=8).hexdigest()


def template_key(job: Job) -> Any:
    """Return the key of all calls that one template can serve; None if no template can.

    The context of a call is not part of the key.
    """
    if (
        not job.target.uniform
        or type(job.args) not in (tuple, list)
        or type(job.kwargs) is not dict
        or (job.countdown and type(job.countdown) not in (int, float))
    ):
        return None
    due = "countdown" if job.countdown else "now" if job.eta is None else "eta"
    try:
        given = job.options
        if CONTEXT_OPTION in given:
            given = {name: value for name, value in given.items() if name != CONTEXT_OPTION}
        options = _encode(given) if given else ""
        priority = type(job.priority), job.priority
        unique_key = Key if type(job.unique_key) is Key else job.unique_key
        key = job.target.name, job.queue, priority, due, type(job.expires), options, unique_key
        hash(key)
    except (TypeError, ValueError):
        return None
    return key


class Template:
    """Makes the messages of calls of one kind.

    Placeholders such as ``%(id)s`` in *text* stand for the parts in which messages differ.
    """

    def __init__(
        self, app: Celery, job: Job, options: dict[str, Any], routed: Routed, text: str, tail: str
    ) -> None:
        name, task, _ = job.target
        self._text = text
        #: The end of the body: Celery's embedded options. The beginning is the JSON of arguments
        #: and keyword arguments without its last bracket.
        self._body_tail = tail
        self._queues, self._priority_step = routed.queues, routed.entry.priority
        self._policy = routed.entry.policy
        self._check_arguments = (
            getattr(task, "__header__", None) if task is not None and task.typing else None
        )
        self._zone = app.timezone
        self._sizes = app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize
        self._levels = getattr(app.conf, "task_repr_maxlevels", 3)
        self._expires = getattr(task, "expires", None)
        chosen = unique.options_of(task, options)
        if job.unique_key is not None:
            chosen["unique_key"] = job.unique_key
        self._unique_rule = unique.rule_of(name, task, chosen)
        self._skip_after = unique.skip_after_of(chosen)
        self._limited = limits_of(app).of(name, task)

    @classmethod
    def of(
        cls,
        app: Celery,
        job: Job,
        options: dict[str, Any],
        routed: Routed,
        message: Mapping[str, Any],
        sent: Sent | None = None,
    ) -> Template | None:
        """Return the template of a message that Celery has made; None if there can be none."""
        if routed.entry.data.startswith(b"{"):  # a large message, whose record has no header
            return None
        try:
            body = b64decode(message["body"]).decode()
            start = _encode([job.args, job.kwargs])[:-1]
        except (ValueError, TypeError):
            return None
        full_message = envelope.with_label(message)
        headers, properties = full_message["headers"], full_message["properties"]
        own = properties[PROPERTY]
        token = os.urandom(8).hex()

        def mark(mapping: dict[str, Any], key: str, name: str, value: Any = None) -> None:
            """Put a placeholder; with *value*, only where the message has this value."""
            if value is None or mapping.get(key) == value:
                mapping[key] = f"{token}{name}{token}"

        mark(own, "label", "label")
        for key in ("eta", CONTEXT_FIELD, LIMIT_FIELD):
            if key in own:
                mark(own, key, key)
        mark(headers, "id", "id")
        mark(headers, "root_id", "id", job.id)
        mark(headers, "argsrepr", "argsrepr")
        mark(headers, "kwargsrepr", "kwargsrepr")
        if headers.get("expires") is not None:
            mark(headers, "expires", "expires")
            mark(properties, "expiration", "expiration")
        mark(properties, "correlation_id", "id", job.id)
        mark(properties, "delivery_tag", "tag")
        mark(full_message, "body", "body")
        # Texts, each followed by the name of a placeholder.
        parts = re.split(f'"{token}(\\w+){token}"', message_json.encode(full_message).decode())
        if not body.startswith(start) or any(dumps(job.id) in text for text in parts[::2]):
            return None
        parts[::2] = [text.replace("%", "%%") for text in parts[::2]]
        parts[1::2] = [f"%({name})s" for name in parts[1::2]]
        version, step, _, task = (
            routed.entry.data.partition(b"\n")[0].decode().replace("%", "%%").split(" ")
        )
        text = f"{version} {step} %(message_id)s {task}\n" + "".join(parts)
        template = cls(app, job, options, routed, text, body[len(start) :])
        return template if template._reproduces(job, routed, message, sent) else None

    def fill(self, job: Job, sent: Sent | None = None) -> Routed:
        """Return the entry of a call of this kind, with the context *sent*."""
        if self._check_arguments is not None:
            self._check_arguments(*job.args, **job.kwargs)
        values: dict[str, Any] = {"tag": f'"{job.message_id}{os.urandom(8).hex()}"'}
        if sent is not None:
            values[CONTEXT_FIELD] = dumps(sent.text)
        countdown, eta, expires = job.countdown, job.eta, job.expires
        if expires is None:
            expires = self._expires
        due = Due(0)
        if countdown:
            due = due_of_countdown(countdown)
            values["eta"] = f'"{self._eta_after(countdown)}"'
        elif eta is not None:
            due = due_of_eta(eta)
            values["eta"] = dumps(eta) if isinstance(eta, str) else f'"{eta.isoformat()}"'
        if expires is not None:
            self._add_expires(values, expires)
        return Routed(self._queues, self._entry(job.id, due, self._record(job, values)))

    def fill_encoded(self, call: EncodedCall) -> Routed:
        """Return the entry of a call with the same argument names as the first call."""
        id, message_id, due, eta, key, kwargs, shown = call
        if shown is None or not is_plain(shown, self._sizes[1]):
            shown = self._repr(loads(kwargs), 1)
        values: dict[str, Any] = {"tag": f'"{message_id}{os.urandom(8).hex()}"', "eta": f'"{eta}"'}
        if self._expires is not None:
            self._add_expires(values, self._expires)
        if self._limited is not None:
            given = {} if self._limited.limit.key is None else loads(kwargs)
            self._add_limit(values, self._limited.lane_of((), given))
        unique_key = "" if self._unique_rule is None else self._unique_rule.key(key)
        record = self._fill_record(
            values, id, message_id, unique_key, f"[[], {kwargs}", "()", shown
        )
        return Routed(self._queues, self._entry(id, due, record))

    def _entry(self, id: str, due: Due, record: bytes) -> Entry:
        return Entry(envelope.entry_id(id), due, self._priority_step, record, self._policy)

    def _record(self, job: Job, values: dict[str, Any]) -> bytes:
        """Return the record of a call; *values* hold its times in JSON."""
        args, kwargs, given, rule = job.args, job.kwargs, job.unique_key, self._unique_rule
        key = ""
        if rule is not None:
            key = rule.key(given) if type(given) is Key else rule.key_of(args, kwargs)
        if self._limited is not None:
            self._add_limit(values, self._limited.lane_of(args, kwargs))
        body = _encode([args, kwargs])[:-1]
        shown = self._repr(args, 0), self._repr(kwargs, 1)
        return self._fill_record(values, job.id, job.message_id, key, body, *shown)

    def _fill_record(
        self, values: dict[str, Any], id: str, message_id: str, key: str, body: str, *shown: str
    ) -> bytes:
        """Return the record with all values.

        *body* is JSON without the last bracket, as :attr:`_body_tail` continues it; *shown* are the
        headers ``argsrepr`` and ``kwargsrepr``.
        """
        label = envelope.label_of(envelope.entry_id(id), message_id, self._skip_after, key)
        values["message_id"] = message_id
        values["label"] = f'"{label}"'
        values["id"] = dumps(id)
        values["argsrepr"], values["kwargsrepr"] = map(dumps, shown)
        values["body"] = f'"{b64encode((body + self._body_tail).encode()).decode()}"'
        return (self._text % values).encode()

    def _reproduces(
        self, job: Job, routed: Routed, message: Mapping[str, Any], sent: Sent | None
    ) -> bool:
        """Return whether the template makes the same bytes as Celery of the same call and times."""
        headers, properties = message["headers"], message["properties"]
        made = {
            "tag": properties["delivery_tag"],
            "eta": headers["eta"],
            "expires": headers["expires"],
            "expiration": properties.get("expiration"),
            CONTEXT_FIELD: properties[PROPERTY].get(CONTEXT_FIELD),
        }
        try:
            filled = self.fill(job, sent).entry
            record = self._record(job, {name: dumps(value) for name, value in made.items()})
        except Exception:
            return False
        return (record, filled.due) == (routed.entry.data, routed.entry.due)

    def _repr(self, value: Any, which: int) -> str:
        text = plain_repr(value, self._sizes[which])
        return saferepr(value, self._sizes[which], maxlevels=self._levels) if text is None else text

    def _eta_after(self, seconds: float) -> str:
        """Return the time *seconds* from now, in the text of Celery."""
        later = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        return later.astimezone(self._zone).isoformat()

    def _add_limit(self, values: dict[str, Any], lane: str) -> None:
        """Add the mark of the limit; *values* hold ``expires`` already."""
        expires = loads(values.get("expires", "null"))
        values[LIMIT_FIELD] = f'"{envelope.limit_mark(lane, expires)}"'

    def _add_expires(self, values: dict[str, Any], expires: Any) -> None:
        if isinstance(expires, datetime):
            text = expires.isoformat()
            seconds = (maybe_make_aware(expires) - datetime.now(timezone.utc)).total_seconds()
        else:
            text, seconds = self._eta_after(expires), expires
        values["expires"] = f'"{text}"'
        values["expiration"] = f'"{int(max(seconds, 0) * 1000)}"'

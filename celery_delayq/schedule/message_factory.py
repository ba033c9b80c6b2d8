"""Makes messages without a publish: Celery makes them, and templates copy them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery, signals
from celery.app.routes import MapRoute

from celery_delayq.integration import task_messages
from celery_delayq.integration.app_warnings import warn_of_naive_eta
from celery_delayq.integration.context import CONTEXT_OPTION, Sent, to_send
from celery_delayq.model import delivery, envelope
from celery_delayq.model.envelope import PROPERTY, Due, Entry
from celery_delayq.schedule.items import FIELD_OPTIONS, InvalidItem
from celery_delayq.schedule.message_template import Job, Routed, Template, template_key
from celery_delayq.store.scripting.pipelining import LOST_CONNECTION_ERRORS

#: Most templates kept: more kinds than that come one after another, not all at once.
MAX_TEMPLATES = 256

#: How often a template is tried for a kind that seems to have none.
TEMPLATE_ATTEMPTS = 3


class MessageFactory:
    """Makes the entries of calls: most by a template, the others by Celery.

    Parameters
    ----------
    app : Celery
        The app. The factory routes messages and declares queues on a connection of its own.
    common : Mapping[str, Any]
        Options of all calls.
    listeners : bool
        Whether Celery makes each message if Celery's signals of publishing have receivers.
    """

    def __init__(self, app: Celery, common: Mapping[str, Any], listeners: bool = True) -> None:
        self.app = app
        self._common = dict(common)
        self._uniform = _is_uniform(app) and not (listeners and _has_listeners())
        self._templates: dict[Any, Template | int] = {}
        self._kept: list[tuple[str, dict[str, Any]]] = []
        self._connection = app.connection_for_write()
        self.channel: Any = None
        self._producer: Any = None

    def __enter__(self) -> MessageFactory:
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.release()

    def make(self, job: Job) -> Routed:
        """Return the entry of a call.

        Raises
        ------
        Exception
            The errors of ``apply_async``, and :class:`InvalidItem` for a call that cannot be
            scheduled.
        """
        key = template_key(job) if self._uniform else None
        if key is None:
            return self._make_by_celery(job)[0]
        warn_of_naive_eta(self.app, job.eta)
        sent = to_send(self.app, job.options.get(CONTEXT_OPTION, self._common.get(CONTEXT_OPTION)))
        if sent is not None:
            # One template serves one trace only: listeners may change the headers with the trace.
            key = key, bool(sent.text), sent.trace
        template = self._templates.get(key, 0)
        if isinstance(template, Template):
            try:
                return template.fill(job, sent)
            except Exception:
                return self._make_by_celery(_with_context(job, sent))[
                    0
                ]  # raises Celery's own error
        routed, message = self._make_by_celery(_with_context(job, sent))
        if template < TEMPLATE_ATTEMPTS:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            options = {**self._common, **job.options}
            found = Template.of(self.app, job, options, routed, message, sent)
            self._templates[key] = found or template + 1
        return routed

    def template(self, job: Job) -> Template | None:
        """Return the template of calls like *job* without a context; None without a template."""
        key = template_key(job) if self._uniform else None
        template = self._templates.get(key)
        return template if isinstance(template, Template) else None

    def _connect(self) -> None:
        """Open a channel that collects messages and publishes none."""
        self.channel = self._connection.channel()
        self.channel._put = self._keep
        self.channel._put_fanout = lambda *_, **__: None  # the event task-sent
        self.channel.connection.batches += 1  # without kombu's retries
        self._producer = self.app.amqp.Producer(self.channel, auto_declare=False)

    def _keep(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if queue is delivery.UNBOUND_QUEUE:
            self.channel.add_dead_letter_unbound(message)
        else:
            self._kept.append((queue, message))

    def _make_by_celery(self, job: Job) -> tuple[Routed, Mapping[str, Any]]:
        """Have Celery make a message; repeat it once after a lost connection."""
        try:
            return self._make_once(job)
        except LOST_CONNECTION_ERRORS:
            with suppress(Exception):
                self._connection.release()
            self._connection = self.app.connection_for_write()
            self._connect()
            return self._make_once(job)

    def _make_once(self, job: Job) -> tuple[Routed, Mapping[str, Any]]:
        """Have Celery make and route a message."""
        self._kept.clear()
        send_call(self.app, job, self._common, self._producer)
        kept = [(q, m) for q, m in self._kept if envelope.is_task(m)]
        # A task's own `apply_async` may send several messages. A handler may change the id.
        kept = [(q, m) for q, m in kept if m["headers"]["id"] == job.id] or kept[-1:]
        temporary = [queue for queue, _ in kept if not self.channel.can_schedule(queue)]
        if not kept or temporary:
            where = ", ".join(map(repr, temporary)) or "no queue"
            raise InvalidItem(
                f"task {job.id} goes to {where}: expected a queue that lasts, not one that is "
                "deleted by itself, expires or belongs to a fanout exchange; send it by apply_async"
            )
        message = delivery.without_retry_note(kept[0][1])
        # The delivery tag of each message begins with its message id.
        properties = message["properties"]
        properties["delivery_tag"] = job.message_id + properties["delivery_tag"][16:]
        properties.setdefault(PROPERTY, {})["message_id"] = job.message_id
        step = self.channel.layout.step_of(message)
        entry = Entry.of(message, step, envelope.due_when_sent(message) or Due(0))
        return Routed(tuple(queue for queue, _ in kept), entry), message


def send_call(app: Celery, job: Job, common: Mapping[str, Any], producer: Any) -> None:
    """Have Celery send the message of a call by *producer*; raises ``apply_async``'s errors."""
    given = {name: value for name in FIELD_OPTIONS if (value := getattr(job, name)) is not None}
    ours = {"task_id": job.id, "producer": producer, "retry": False, "add_to_parent": False}
    options = {**common, **job.options, **given, **ours}
    name, task, _ = job.target
    if task is None:
        app.send_task(name, job.args, job.kwargs, **options)
    else:
        task.apply_async(job.args, job.kwargs, **options)


def _with_context(job: Job, sent: Sent | None) -> Job:
    """Return a call with the context *sent*, or with none."""
    return job._replace(options={**job.options, CONTEXT_OPTION: sent or False})


def _is_uniform(app: Celery) -> bool:
    """Return whether no part of an app lets messages of one kind differ by their arguments."""
    return (
        type(app).send_task is Celery.send_task
        and type(app.amqp) is task_messages.AMQP
        and all(type(router) is MapRoute for router in app.amqp.router.routes)
    )


def _has_listeners() -> bool:
    """Return whether Celery's signals of publishing have receivers."""
    sent = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    return any(signal.receivers for signal in sent)

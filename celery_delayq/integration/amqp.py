"""Celery's message factory, with our options, checks and context."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, partial
from inspect import signature
from typing import Any

from celery import Celery
from celery._state import get_current_task
from celery.app.amqp import AMQP as CeleryAMQP  # noqa: N811 - a class, named in capitals
from celery.signals import before_task_publish
from celery.utils.nodenames import anon_nodename
from kombu import Exchange, Producer, Queue

from celery_delayq.errors import ConfigError
from celery_delayq.integration import context
from celery_delayq.integration.worker_checks import CALL_OPTIONS, warn_of_naive_eta, warn_of_stock
from celery_delayq.model import canvas, retry_options, task_options, unique
from celery_delayq.model.delivery import LeasePlace
from celery_delayq.model.envelope import PROPERTY, due_of_countdown, due_of_eta, own_of, unique_key

#: Properties of a task's message that its retry keeps.
_RETRY_PROPERTIES = ("unique", "skip_after", "retry", "budget")


class _NoExchange(Exchange):
    """The exchange of a producer that has none: kombu makes no bound copy of it for each task."""

    def bind(self, _channel: Any) -> _NoExchange:
        return self


_new_producer = partial(Producer, exchange=_NoExchange())


class AMQPMixin:
    """Checks the options of a call at the call, and keeps the countdown apart.

    ``before_task_publish`` comes too late: Celery has made an ETA of the countdown by
    then, with the clock of this machine. Redis counts it with its own.
    """

    @property
    def producer_pool(self) -> Any:
        """Celery's pool, with producers that take less time to acquire."""
        pool = super().producer_pool  # type: ignore[misc]
        pool.Producer = _new_producer
        return pool

    def _create_task_sender(self) -> Callable[..., Any]:
        """Return Celery's sender, spared a fourth of its work.

        For each message Celery has kombu bind a copy of the queue and its exchange to the
        channel, only to find that the queue is declared already, and wrap the publishing in a
        retry, although in a batch nothing is sent yet (kombu does not retry a whole batch).
        """
        send: Callable[..., Any] = super()._create_task_sender()  # type: ignore[misc]
        checked = False

        def send_task_message(
            producer: Producer,
            name: str,
            message: Any,
            *,
            queue: Any = None,
            declare: Any = None,
            **options: Any,
        ) -> Any:
            nonlocal checked
            connection = producer.connection
            task_options.check_priority(options.get("priority"))
            context.carry(self.app, name, message, options)  # type: ignore[attr-defined]
            note_own = self._take_options(name, message, options)
            if not checked and connection is not None:
                checked = True
                warn_of_stock(connection)
            declared = (
                declare is None
                and isinstance(queue, Queue)
                and connection is not None
                and hash(queue) in connection.declared_entities  # as kombu looks it up
            )
            if declared and getattr(connection.transport, "batches", False):
                options["retry"] = False
            if before_task_publish.receivers:
                producer = _LastLook(producer, message, note_own, queue if declared else None)
            else:
                note_own(message.properties)
                declare = [] if declared else declare
            return send(producer, name, message, queue=queue, declare=declare, **options)

        return send_task_message

    def _take_options(
        self, name: str, message: Any, options: dict[str, Any]
    ) -> Callable[[dict[str, Any]], None]:
        """Take our options out of those of a call; return what notes their effect in properties.

        A task's own retry has what the running task has: options of one call are not carried
        into it.
        """
        # Not `app.tasks`, which would make the app ready.
        task = self.app._tasks.get(name)  # type: ignore[attr-defined]
        if (
            CALL_OPTIONS.isdisjoint(options)
            and not unique.has_options(task)
            # Not `get_current_task`, which takes as long as all of this.
            and not message.headers.get("parent_id")
            and not message.headers.get("retries")
        ):
            return _note_nothing
        given = {option: options.pop(option) for option in CALL_OPTIONS if option in options}
        if not isinstance(message.body, tuple):  # protocol 1, which has no ETA in its headers
            if given:
                raise ConfigError(f"{name}: {', '.join(given)} need task_protocol 2")
            return _note_nothing
        headers = message.headers
        running = get_current_task()
        request = None if running is None else running.request
        inherited = _inherited_by_retry(headers)

        def note_own(properties: dict[str, Any]) -> None:
            own = inherited
            if own is None:
                args, kwargs, _ = message.body
                own = unique.own_properties(
                    name, task, args, kwargs, unique.options_of(task, given)
                )
                own.update(retry_options.property_of_call(name, given))
                _share_budget(request, headers, own_of(properties), own)
            if own:
                properties.setdefault(PROPERTY, {}).update(own)

        return note_own

    def as_task_v1(self, *args: Any, **options: Any) -> Any:
        named = signature(CeleryAMQP.as_task_v1).bind(self, *args, **options).arguments
        _check(self.app, named.get("countdown"), named.get("eta"))  # type: ignore[attr-defined]
        message = super().as_task_v1(*args, **options)  # type: ignore[misc]
        task_options.check_sent(message.body)
        return message

    def as_task_v2(
        self,
        task_id: str,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: Any = None,
        eta: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        _check(self.app, countdown, eta)  # type: ignore[attr-defined]
        for option, value in (("argsrepr", args or ()), ("kwargsrepr", kwargs or {})):
            if options.get(option) is None:
                options[option] = plain_repr(value)
        options.setdefault("origin", _origin())
        message = super().as_task_v2(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )
        task_options.check_sent(message.headers)
        own: dict[str, Any] = {}
        message.properties[PROPERTY] = own
        if countdown:
            own["countdown"] = countdown, message.headers["eta"]
        if message.headers["retries"] and (held := _held_by_current_task(message.headers)):
            own["retry_of"] = held
        chain = message.body[2]["chain"]
        if chain and (group := canvas.group_of_chain(chain)):
            own[canvas.GROUP_FIELD] = group
        if not own:
            del message.properties[PROPERTY]
        return message


def _note_nothing(_properties: dict[str, Any]) -> None:
    pass


class _LastLook:
    """A producer that looks at a message when handlers of ``before_task_publish`` have had it.

    They may change its headers, properties and arguments: the message as it is published decides.

    Parameters
    ----------
    note_own : Callable[[dict[str, Any]], None]
        Notes the effect of our options in the properties.
    declared : Queue | None
        The queue that is declared already. Handlers find it in ``declare``.
    """

    def __init__(
        self,
        producer: Producer,
        message: Any,
        note_own: Callable[[dict[str, Any]], None],
        declared: Queue | None,
    ) -> None:
        self._producer = producer
        self._message = message
        self._note_own = note_own
        self._declared = declared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish the message, or the event that tells of it."""
        if body is self._message.body:
            task_options.check_priority(options.get("priority"))
            task_options.check_sent(self._message.headers or body)
            self._note_own(options)
            if self._declared is not None and _is_only(self._declared, options["declare"]):
                options["declare"] = []
        return self._producer.publish(body, **options)


def _is_only(queue: Queue, declare: Any) -> bool:
    return isinstance(declare, list) and len(declare) == 1 and declare[0] is queue


def _held_by_current_task(headers: Mapping[str, Any]) -> LeasePlace | None:
    """Return where the running task's message is held, if it acknowledges late and sends its retry:
    then the retry and the acknowledgement are one step.
    """
    request = context.request_retried_by(headers)
    if request is None or not get_current_task().acks_late:
        return None
    properties = request.get("properties")
    own = own_of(properties)
    if "place" not in own:  # not leased in Redis
        return None
    tag, label = properties["delivery_tag"], own.get("label", "")
    return LeasePlace(own["place"], own["queue"], tag, label)


def _inherited_by_retry(headers: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return our options of the running task if the message is its retry, else None."""
    request = context.request_retried_by(headers)
    if request is None:
        return None
    own = own_of(request.get("properties"))
    inherited = {name: own[name] for name in _RETRY_PROPERTIES if name in own}
    if "unique" in inherited:
        inherited["unique"] = {**own["unique"], "key": unique_key(own)}
    return inherited


def _share_budget(
    request: Any, headers: Mapping[str, Any], sent: Mapping[str, Any], own: dict[str, Any]
) -> None:
    """Give all members of a canvas, and the tasks they send, one budget of retries."""
    shared = None if request is None else own_of(request.get("properties")).get("budget")
    if "budget" not in own:
        if shared is not None:
            own["budget"] = shared
        return
    root = headers.get("root_id")
    # The members of a plain group share only its id.
    group = canvas.group_of(headers, sent)
    if shared is not None and shared[0] in (root, group):
        own["budget"] = shared  # the body of a chord has the option of the whole canvas
    else:
        own["budget"] = [group or root if root == headers["id"] else root, own["budget"]]


class AMQP(AMQPMixin, CeleryAMQP):
    """Celery's own message factory with our checks."""


def renew(app: Celery) -> None:
    """Have an app make its message factory anew, with the queues of the former one."""
    before = app.__dict__.get("amqp")
    if before is None or isinstance(before, AMQPMixin):
        return
    del app.__dict__["amqp"]
    if "queues" in before.__dict__:
        app.amqp.__dict__["queues"] = before.queues


#: Celery's name of this process, with its pid. Celery makes it anew for each message.
_origin = cache(anon_nodename)
os.register_at_fork(after_in_child=_origin.cache_clear)


#: Values whose ``repr`` is what Celery's ``saferepr`` makes of them, but for some texts.
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


def plain_repr(value: Any) -> str | None:
    """Return the ``saferepr`` of simple arguments, or None for others.

    It costs a tenth of the time in which Celery sends a task.
    """
    kind = type(value)
    if kind is dict:
        flat = all(type(k) is str and type(v) in _PLAIN_TYPES for k, v in value.items())
    else:
        flat = kind in (tuple, list) and all(type(v) in _PLAIN_TYPES for v in value)
    if not flat:
        return None
    text = repr(value)
    return text if is_plain(text) else None


def is_plain(text: str) -> bool:
    """Return whether ``saferepr`` gives the same text for simple arguments as ``repr``."""
    # It cuts long texts, and quotes and escapes in its own way.
    return len(text) <= CeleryAMQP.argsrepr_maxsize and "\\" not in text and '"' not in text


def _check(app: Celery, countdown: Any, eta: Any) -> None:
    # As in Celery: a countdown of 0 is none, and a countdown goes before an ETA.
    if countdown is not None and countdown != 0:
        due_of_countdown(countdown)
    elif eta is not None:
        if not isinstance(eta, (datetime, str)):
            # The transport reads the others; Celery breaks on what has no isoformat().
            due_of_eta(eta)
        warn_of_naive_eta(app, eta)

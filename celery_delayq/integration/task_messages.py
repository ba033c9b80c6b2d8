"""How ``app.amqp`` makes the messages of tasks: with our options, checks and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from inspect import signature
from typing import Any

from celery import Celery
from celery._state import get_current_task
from celery.app.amqp import AMQP as CeleryAMQP  # noqa: N811 - a class, named in capitals
from celery.signals import before_task_publish
from kombu import Producer, Queue

from celery_delayq.errors import ConfigError, InvalidLimit
from celery_delayq.integration import context
from celery_delayq.integration.app_warnings import (
    CALL_OPTIONS,
    KNOWN_OPTIONS,
    warn_of_misspelled_call,
    warn_of_naive_eta,
    warn_of_stock,
)
from celery_delayq.model import canvas, task_options, unique
from celery_delayq.model.delivery import LeasePlace
from celery_delayq.model.envelope import (
    LIMIT_FIELD,
    PROPERTY,
    due_of_countdown,
    due_of_eta,
    lane_in,
    own_of,
    unique_key,
)
from celery_delayq.model.limits import LIMIT_OPTION
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.model.names import Renames, renames_of
from celery_delayq.model.retries import options as retry_options

#: Our properties that a retry takes from the message of its task.
_RETRY_PROPERTIES = ("unique", "skip_after", "retry", "budget", LIMIT_FIELD)

#: The options of a call that the sender takes. ``limit`` is refused.
_TAKEN_OPTIONS = CALL_OPTIONS | {LIMIT_OPTION}


class AMQPMixin:
    """Checks the options of a call when it is made, and stores the countdown apart from the ETA.

    ``before_task_publish`` comes too late: Celery has already turned the countdown into an ETA
    by the clock of this machine. Redis applies the countdown to its own clock.
    """

    def _create_task_sender(self) -> Callable[..., Any]:
        """Return Celery's sender with our options, checks and context."""
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
            if not KNOWN_OPTIONS.issuperset(options):
                warn_of_misspelled_call(name, options)
            task_options.check_priority(options.get("priority"))
            context.carry(self.app, name, message, options)  # type: ignore[attr-defined]
            note_own = self._take_options(name, message, options)
            if not checked and connection is not None:
                checked = True
                warn_of_stock(connection)
            if (
                declare is None
                and isinstance(queue, Queue)
                and connection is not None
                and getattr(connection.transport, "batches", False)
                and hash(queue) in connection.declared_entities  # the same test as kombu's
            ):
                # Publishing only adds to a batch here, and kombu does not retry a whole batch.
                options["retry"] = False
            if before_task_publish.receivers:
                producer = _CompletingProducer(producer, message, note_own)
            else:
                note_own(message.properties)
            return send(producer, name, message, queue=queue, declare=declare, **options)

        return send_task_message

    def _take_options(
        self, name: str, message: Any, options: dict[str, Any]
    ) -> Callable[[dict[str, Any]], None]:
        """Remove our options from the options of a call.

        Return a function that writes the effect of our options into message properties. A retry
        keeps the properties of the running task, not the options of this call.
        """
        # Not `app.tasks`, which would make the app ready.
        task = self.app._tasks.get(name)  # type: ignore[attr-defined]
        limits = limits_of(self.app)  # type: ignore[attr-defined]
        if (
            _TAKEN_OPTIONS.isdisjoint(options)
            and not task_options.has_options(task)
            and not (limits.by_pattern and limits.of(name, task))
            # `get_current_task` takes as long as this whole test.
            and not message.headers.get("parent_id")
            and not message.headers.get("retries")
        ):
            return _note_nothing
        given = {option: options.pop(option) for option in _TAKEN_OPTIONS if option in options}
        if LIMIT_OPTION in given:
            raise InvalidLimit(f"{name}: limit can be given to a task only, not to one call")
        limited = limits.of(name, task)
        if not isinstance(message.body, tuple):  # protocol 1: no ETA in the headers
            if limited is not None:
                given[LIMIT_OPTION] = limited.limit
            if given:
                raise ConfigError(f"{name}: only with task_protocol 2: {', '.join(given)}")
            return _note_nothing
        headers = message.headers
        running = get_current_task()
        request = None if running is None else running.request
        renames = renames_of(self.app)  # type: ignore[attr-defined]
        inherited = _inherited_by_retry(name, headers, renames)

        def note_own(properties: dict[str, Any]) -> None:
            own = inherited
            if own is None:
                args, kwargs, _ = message.body
                own = unique.own_properties(
                    *(name, task, args, kwargs, unique.options_of(task, given)),
                    former_names=renames.former_names(name),
                )
                own.update(retry_options.property_of_call(name, given))
                if limited is not None:
                    own[LIMIT_FIELD] = limited.check().lane_of(args, kwargs)
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
        message = super().as_task_v2(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )
        task_options.check_sent(message.headers)
        own: dict[str, Any] = {}
        message.properties[PROPERTY] = own
        if countdown:
            own["countdown"] = countdown, message.headers["eta"]
        if message.headers["retries"] and (lease := _lease_of_current_task(message.headers)):
            own["retry_of"] = lease
        chain = message.body[2]["chain"]
        if chain and (group := canvas.group_of_chain(chain)):
            own[canvas.GROUP_FIELD] = group
        if not own:
            del message.properties[PROPERTY]
        return message


def _note_nothing(_properties: dict[str, Any]) -> None:
    pass


class _CompletingProducer:
    """A producer that completes a message after all handlers of ``before_task_publish``.

    The handlers may change headers, properties and arguments. The published message decides.

    Parameters
    ----------
    note_own : Callable[[dict[str, Any]], None]
        Writes the effect of our options into the properties.
    """

    def __init__(
        self,
        producer: Producer,
        message: Any,
        note_own: Callable[[dict[str, Any]], None],
    ) -> None:
        self._producer = producer
        self._message = message
        self._note_own = note_own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish the message, or the event ``task-sent``."""
        if body is self._message.body:
            task_options.check_priority(options.get("priority"))
            task_options.check_sent(self._message.headers or body)
            self._note_own(options)
        return self._producer.publish(body, **options)


def _lease_of_current_task(headers: Mapping[str, Any]) -> LeasePlace | None:
    """Return the lease of the running task's message if the message to send is its retry.

    Return None if the task does not acknowledge late. With the lease, the retry and the
    acknowledgement are one step.
    """
    request = context.request_retried_by(headers)
    if request is None or not get_current_task().acks_late:
        return None
    properties = request.get("properties")
    own = own_of(properties)
    if "place" not in own:  # not leased in Redis
        return None
    tag, label = properties["delivery_tag"], own.get("label", "")
    return LeasePlace(own["place"], own["queue"], tag, label, own.get(LIMIT_FIELD, ""))


def _inherited_by_retry(
    name: str, headers: Mapping[str, Any], renames: Renames
) -> dict[str, Any] | None:
    """Return our options of the running task if the message is its retry, else None.

    Parameters
    ----------
    name : str
        The name of the task. The message of the running task may have a former name.
    """
    request = context.request_retried_by(headers)
    if request is None:
        return None
    own = own_of(request.get("properties"))
    inherited = {name: own[name] for name in _RETRY_PROPERTIES if name in own}
    if "unique" in inherited:
        key = unique_key(own)
        former_names = renames.former_names(name)
        for each in former_names:
            key = unique.renamed_key(key, each, name)
        inherited["unique"] = {**own["unique"], "key": key}
        if former_names:
            inherited["unique"]["former_names"] = [*former_names]
    if LIMIT_FIELD in inherited:
        inherited[LIMIT_FIELD] = lane_in(str(own[LIMIT_FIELD]))
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
    # The members of a plain group have only the group id in common.
    group = canvas.group_of(headers, sent)
    if shared is not None and shared[0] in (root, group):
        own["budget"] = shared  # the body of a chord has the option of the whole canvas
    else:
        own["budget"] = [group or root if root == headers["id"] else root, own["budget"]]


class AMQP(AMQPMixin, CeleryAMQP):
    """Celery's own message factory with our checks."""


def recreate(app: Celery) -> None:
    """Create the message factory of an app again, with the queues of the previous factory."""
    before = app.__dict__.get("amqp")
    if before is None or isinstance(before, AMQPMixin):
        return
    del app.__dict__["amqp"]
    if "queues" in before.__dict__:
        app.amqp.__dict__["queues"] = before.queues


def _check(app: Celery, countdown: Any, eta: Any) -> None:
    # As in Celery: a countdown of 0 means no countdown, and a countdown overrides an ETA.
    if countdown is not None and countdown != 0:
        due_of_countdown(countdown)
    elif eta is not None:
        if not isinstance(eta, (datetime, str)):
            # The transport reads other types; Celery fails on a value without isoformat().
            due_of_eta(eta)
        warn_of_naive_eta(app, eta)

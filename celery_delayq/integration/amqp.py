"""What :class:`~celery_delayq.DelayQ` changes in a Celery app, all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from importlib.util import find_spec
from typing import Any

from celery import Celery, signals
from celery._state import get_current_task
from celery.app.amqp import AMQP as CeleryAMQP  # noqa: N811 - a class, named in capitals
from celery.app.control import Control as CeleryControl
from celery.app.task import Context
from kombu import Producer, Queue
from kombu.utils.imports import symbol_by_name

from celery_delayq.errors import ConfigError, InvalidRetry
from celery_delayq.integration import beat_guard, context, durable_revoke, hidden_url
from celery_delayq.integration import retries as attempts
from celery_delayq.integration.not_run import note_replaced, note_revoked
from celery_delayq.integration.services import Services, services_of
from celery_delayq.model import (
    canvas,
    publish_outcome,
    retry_options,
    task_options,
    unique,
)
from celery_delayq.model.delivery import HeldBy
from celery_delayq.model.envelope import PROPERTY, due_of_countdown, due_of_eta, own_of, unique_key
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)

#: All our options of one call.
OPTIONS = frozenset({*unique.OPTIONS, *retry_options.OPTIONS, *retry_options.TASK_OPTIONS})

#: Import paths of our tasks by which they may be sent, to the names that their messages have.
OTHER_NAMES = {"celery_delayq.webhook.post": "celery_delayq.webhook"}

#: What a task's message says that its retry says too.
_INHERITED = ("unique", "skip_after", "retry", "budget")


class AMQPMixin:
    """Checks what a call says at the call, and keeps the countdown apart.

    ``before_task_publish`` comes too late: Celery has made an ETA of the countdown by
    then, with the clock of this machine. Redis counts it with its own.
    """

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
            self._note_own(name, message, options)
            if not checked and connection is not None:
                checked = True
                warn_of_stock(connection)
            if (
                declare is None
                and isinstance(queue, Queue)
                and connection is not None
                and hash(queue) in connection.declared_entities  # as kombu looks it up
            ):
                declare = []
                if getattr(connection.transport, "batches", 0):
                    options["retry"] = False
            return send(producer, name, message, queue=queue, declare=declare, **options)

        return send_task_message

    def _note_own(self, name: str, message: Any, options: dict[str, Any]) -> None:
        """Take our options out of those of a call, and note in the message what they come to.

        A task's own retry has what the running task has: options of one call are not carried
        into it.
        """
        # Not `app.tasks`, which would make the app ready.
        task = self.app._tasks.get(name)  # type: ignore[attr-defined]
        running = get_current_task()
        if (
            running is None
            and OPTIONS.isdisjoint(options)
            and not unique.concerns(task)
            and not message.headers.get("retries")
        ):
            return
        given = {option: options.pop(option) for option in OPTIONS if option in options}
        if not isinstance(message.body, tuple):  # protocol 1, which has no ETA in its headers
            if given:
                raise ConfigError(f"{name}: {', '.join(given)} need task_protocol 2")
            return
        headers = message.headers
        request = None if running is None else running.request
        own = _inherited_by_retry(request, headers)
        if own is None:
            args, kwargs, _ = message.body
            own = unique.own_properties(name, task, args, kwargs, unique.options_of(task, given))
            own.update(retry_options.of_call(name, given))
            _share_budget(request, headers, own_of(message.properties), own)
        if own:
            message.properties.setdefault(PROPERTY, {}).update(own)

    def as_task_v1(
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
        _check(countdown, eta)
        message = super().as_task_v1(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )
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
        _check(countdown, eta)
        for option, value in (("argsrepr", args or ()), ("kwargsrepr", kwargs or {})):
            if options.get(option) is None:
                options[option] = plain_repr(value)
        message = super().as_task_v2(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )
        task_options.check_sent(message.headers)
        own = message.properties[PROPERTY] = {}
        if countdown:
            own["countdown"] = countdown
        retries = rest[3] if len(rest) > 3 else options.get("retries", 0)
        if retries and (held := _held_by_current_task(task_id, retries)):
            own["retry_of"] = held
        chain = message.body[2]["chain"]
        if chain and (group := canvas.group_of_chain(chain)):
            own[canvas.GROUP] = group
        if not own:
            del message.properties[PROPERTY]
        return message


def _held_by_current_task(task_id: str, retries: int) -> HeldBy | None:
    """Return where the running task's message is held, when it acknowledges late and the message
    being sent is its retry: then both happen in one step.
    """
    task = get_current_task()
    if task is None or not task.acks_late:
        return None
    request = task.request
    if request.id != task_id or request.retries + 1 != retries:
        return None
    properties = request.get("properties")
    own = own_of(properties)
    return (
        HeldBy(own["place"], own["queue"], properties["delivery_tag"]) if "queue" in own else None
    )


def _inherited_by_retry(request: Any, headers: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return our options of the running task where this is its retry, else None."""
    if request is None or not headers.get("retries"):
        return None
    if request.id != headers["id"] or request.retries + 1 != headers["retries"]:
        return None
    own = own_of(request.get("properties"))
    inherited = {name: own[name] for name in _INHERITED if name in own}
    if "unique" in inherited:
        inherited["unique"] = {**own["unique"], "key": unique_key(own)}
    return inherited


def _share_budget(
    request: Any, headers: Mapping[str, Any], sent: Mapping[str, Any], own: dict[str, Any]
) -> None:
    """Give all members of a canvas one budget of retries, and so what they send."""
    shared = None if request is None else own_of(request.get("properties")).get("budget")
    if "budget" not in own:
        if shared is not None:
            own["budget"] = shared
        return
    root = headers.get("root_id")
    # The members of a plain group have nothing but it in common.
    group = canvas.group_of(headers, sent)
    if shared is not None and shared[0] in (root, group):
        own["budget"] = shared  # the body of a chord has the option of the whole canvas
    else:
        own["budget"] = [group or root if root == headers["id"] else root, own["budget"]]


class AMQP(AMQPMixin, CeleryAMQP):
    """Celery's own message factory with our checks."""


def install(app: Celery, services: Services) -> None:
    """Hook into *app*. Doing it twice changes nothing more."""
    app._delayq_services = services
    base = symbol_by_name(app.amqp_cls)
    if not issubclass(base, AMQPMixin):
        # By name where possible: the app is pickled for children that are spawned.
        app.amqp_cls = (
            "celery_delayq.integration.amqp:AMQP"
            if base is CeleryAMQP
            else type("AMQP", (AMQPMixin, base), {})
        )
        before = app.__dict__.pop("amqp", None)
        if before is not None and "queues" in before.__dict__:
            app.amqp.__dict__["queues"] = before.queues
    base = symbol_by_name(app.control_cls)
    if not issubclass(base, durable_revoke.ControlMixin):
        app.control_cls = (
            "celery_delayq.integration.durable_revoke:Control"
            if base is CeleryControl
            else type("Control", (durable_revoke.ControlMixin, base), {})
        )
        app.__dict__.pop("control", None)
    if not hasattr(app.send_task, "delayq"):
        app.send_task = _telling_of_others(app, app.send_task)
    context.install()
    signals.task_retry.connect(note_superseded, dispatch_uid="celery_delayq.note_superseded")
    signals.worker_init.connect(_install_in_worker, dispatch_uid="celery_delayq.install")
    app.on_after_finalize.connect(_install_attempts, dispatch_uid="celery_delayq.attempts")
    if app.finalized:
        _install_attempts(app)
    signals.worker_ready.connect(check_worker, dispatch_uid="celery_delayq.check_worker")
    signals.worker_ready.connect(_begin_background, dispatch_uid="celery_delayq.background")
    hidden_url.install(app)
    beat_guard.install()


def _begin_background(sender: Any, **_: Any) -> None:
    services = services_of(sender.app)
    for begin in () if services is None else services.background:
        end = begin(sender.app)
        if end is not None:
            signals.worker_shutdown.connect(_ending(end), weak=False)


def _ending(end: Callable[[], object]) -> Callable[..., None]:
    def on_shutdown(**_: Any) -> None:
        end()

    return on_shutdown


def _install_in_worker(sender: Any, **_: Any) -> None:
    durable_revoke.install_in_worker()
    app = sender.app
    if getattr(app, "_delayq", None) is not None:
        tasks = app.tasks  # by now all of them are known
        try:
            _install_attempts(app)
        except InvalidRetry as exc:
            # As any other error, this one would only be logged.
            raise SystemExit(f"The worker cannot start: {exc}") from exc
        attempts.warn_of_unmatched(app._delayq.retries, tasks)


def _install_attempts(sender: Any, **_: Any) -> None:
    attempts.install(sender, sender._tasks, sender._delayq.retries)


def _telling_of_others(app: Celery, send: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``send_task`` return the result of the task that is kept where another one is not sent,
    and tell of the one whose place it takes that it will not run.
    """

    @wraps(send)
    def send_task(name: str, *args: Any, **kwargs: Any) -> Any:
        task_options.check_expires(kwargs.get("expires"))
        with publish_outcome.collecting() as collected:
            result = send(OTHER_NAMES.get(name, name), *args, **kwargs)
        for task_id, put, queue, record in collected:
            if put.state == "kept" and task_id == result.id and put.other != task_id:
                if kwargs.get("task_id"):
                    _note_not_sent(app, task_id, put.other, kwargs)
                result = _in_its_place(result, type(result)(put.other, app=app))
            elif put.state == "superseded":
                _running_request().superseded = True
            elif put.state == "replaced" and put.other != task_id:
                note_replaced(app, put.other, queue, record, f"replaced by {task_id}")
        return result

    send_task.delayq = True  # type: ignore[attr-defined]
    return send_task


def _running_request() -> Any:
    """Return the request of the running task, an empty one where none runs."""
    task = get_current_task()
    return Context() if task is None else task.request


def _in_its_place(result: Any, other: Any) -> Any:
    """Return the other result, by which the running task knows its child too."""
    children = _running_request().children
    if children and children[-1] is result:
        children[-1] = other
    return other


def _note_not_sent(app: Celery, task_id: str, other: str, options: Mapping[str, Any]) -> None:
    """Have the result of a task that is not sent say so: whoever chose its id may wait for it, as
    groups, chains and chords do.
    """
    chord = {name: options.get(name) for name in ("group_id", "group_index", "chord")}
    request = Context(id=task_id, group=chord.pop("group_id"), **chord)
    try:
        app.backend.mark_as_revoked(task_id, f"not sent, {other} has its unique key", request)
    except Exception:
        logger.exception("The result backend was not told that task %r is not sent", task_id)


def check_worker(sender: Any, **_: Any) -> None:
    """Warn when a worker with the extension consumes from stock Redis, acknowledges early although
    it was told to run each task at least once, or cannot send webhooks.
    """
    app = sender.app
    if isinstance(app.amqp, AMQPMixin):
        warn_of_stock(sender.connection)
    delayq = getattr(app, "_delayq", None)
    if getattr(delayq, "webhook", None) is not None and find_spec("httpx") is None:
        warn_once(
            logger,
            "DelayQ(app, webhook=…) is set, but httpx is not installed: webhooks that this worker "
            'takes are dead letters. pip install "celery-delayq[webhook]"',
        )
    wanted = ("task_acks_late", "task_reject_on_worker_lost")
    if getattr(delayq, "at_least_once", False):
        for setting in (name for name in wanted if not app.conf[name]):
            warn_once(
                logger,
                f"DelayQ(app, at_least_once=True) was followed by {setting}=False, which wins: a "
                "task whose process is killed does not run again. Remove one of them",
            )


def warn_of_stock(connection: Any) -> None:
    """Warn, once, when an app with the extension talks to Redis through kombu's own transport."""
    transport = connection.transport
    if transport.driver_type == "redis" and not hasattr(transport, "settings"):
        warn_once(
            logger,
            f"DelayQ(app) is set up, but the broker is {connection.as_uri()}: delayed tasks wait "
            "in worker memory as on stock Celery. Let the URL begin with delayq+redis://",
        )


def note_superseded(sender: Any, request: Any, **_: Any) -> None:
    """Tell that a task is not tried again, since another one has taken its unique key."""
    if getattr(request, "superseded", False):
        note_revoked(sender.app, [request.id], "replaced while it ran", request)


#: Values whose ``repr`` is what Celery's ``saferepr`` makes of them, but for some texts.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain_repr(value: Any) -> str | None:
    """Return what ``saferepr`` would make of simple arguments, None to leave them to it.

    It costs a tenth of the time in which Celery sends a task.
    """
    kind = type(value)
    if kind is dict:
        flat = all(type(k) is str and type(v) in _PLAIN for k, v in value.items())
    else:
        flat = kind in (tuple, list) and all(type(v) in _PLAIN for v in value)
    if not flat:
        return None
    text = repr(value)
    return text if is_plain(text) else None


def is_plain(text: str) -> bool:
    """Return whether ``saferepr`` makes of simple arguments what ``repr`` has made of them."""
    # It cuts long texts, and quotes and escapes in its own way.
    return len(text) <= CeleryAMQP.argsrepr_maxsize and "\\" not in text and '"' not in text


def _check(countdown: Any, eta: Any) -> None:
    # As in Celery: a countdown of 0 is none, and a countdown goes before an ETA.
    if countdown is not None and countdown != 0:
        due_of_countdown(countdown)
    elif eta is not None and not isinstance(eta, (datetime, str)):
        # The transport reads the others; Celery breaks on what has no isoformat().
        due_of_eta(eta)

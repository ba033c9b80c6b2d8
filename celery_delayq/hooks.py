"""What :class:`~celery_delayq.DelayQ` changes in a Celery app, all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from celery import Celery, signals
from celery._state import get_current_task
from celery.app.amqp import AMQP as CeleryAMQP  # noqa: N811 - a class, named in capitals
from kombu import Producer, Queue
from kombu.utils.imports import symbol_by_name

from celery_delayq.message import PROPERTY, HeldBy, due_of_countdown, due_of_eta

logger = logging.getLogger(__name__)


class AMQPMixin:
    """Checks ``eta`` and ``countdown`` at the call, and keeps the countdown apart.

    ``before_task_publish`` comes too late for both: Celery has made an ETA of the countdown by
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
        return super().as_task_v1(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )

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
        own = message.properties[PROPERTY] = {}
        if countdown:
            own["countdown"] = countdown
        retries = rest[3] if len(rest) > 3 else options.get("retries", 0)
        if retries and (held := _held_by_current_task(task_id, retries)):
            own["retry_of"] = held
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
    properties = request.get("properties") or {}
    own = properties.get(PROPERTY) or {}
    return (
        HeldBy(own["place"], own["queue"], properties["delivery_tag"]) if "queue" in own else None
    )


class AMQP(AMQPMixin, CeleryAMQP):
    """Celery's own message factory with our checks."""


def install(app: Celery) -> None:
    """Hook into *app*. Doing it twice changes nothing more."""
    base = symbol_by_name(app.amqp_cls)
    if not issubclass(base, AMQPMixin):
        # By name where possible: the app is pickled for children that are spawned.
        app.amqp_cls = (
            "celery_delayq.hooks:AMQP"
            if base is CeleryAMQP
            else type("AMQP", (AMQPMixin, base), {})
        )
        before = app.__dict__.pop("amqp", None)
        if before is not None and "queues" in before.__dict__:
            app.amqp.__dict__["queues"] = before.queues
    signals.task_prerun.connect(restore_eta, dispatch_uid="celery_delayq.restore_eta")
    signals.worker_ready.connect(check_worker, dispatch_uid="celery_delayq.check_worker")


def check_worker(sender: Any, **_: Any) -> None:
    """Warn when a worker with the extension consumes from stock Redis, or acknowledges early
    although it was told to run each task at least once.
    """
    app = sender.app
    if isinstance(app.amqp, AMQPMixin):
        warn_of_stock(sender.connection)
    wanted = ("task_acks_late", "task_reject_on_worker_lost")
    if getattr(getattr(app, "_delayq", None), "at_least_once", False):
        for setting in (name for name in wanted if not app.conf[name]):
            _warn_once(
                f"DelayQ(app, at_least_once=True) was followed by {setting}=False, which wins: a "
                "task whose process is killed does not run again. Remove one of them"
            )


def warn_of_stock(connection: Any) -> None:
    """Warn, once, when an app with the extension talks to Redis through kombu's own transport."""
    transport = connection.transport
    if transport.driver_type == "redis" and not hasattr(transport, "settings"):
        _warn_once(
            f"DelayQ(app) is set up, but the broker is {connection.as_uri()}: delayed tasks wait "
            "in worker memory as on stock Celery. Let the URL begin with delayq+redis://"
        )


@cache
def _warn_once(text: str) -> None:
    logger.warning(text)


def restore_eta(task: Any, **_: Any) -> None:
    """Let the running task read what its message could not say.

    ``self.request.eta`` is the original ETA in ISO 8601: the message came without one, since a
    worker parks every message that has an ETA. ``self.request.deliveries`` is how often the message
    was delivered, this time included.
    """
    request = task.request
    own = (request.get("properties") or {}).get(PROPERTY) or {}
    if request.eta is None:
        request.eta = own.get("eta")
    request.deliveries = own.get("deliveries", 1)


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
    # saferepr cuts long texts, and quotes and escapes in its own way.
    same = len(text) <= CeleryAMQP.argsrepr_maxsize and "\\" not in text and '"' not in text
    return text if same else None


def _check(countdown: Any, eta: Any) -> None:
    # As in Celery: a countdown of 0 is none, and a countdown goes before an ETA.
    if countdown is not None and countdown != 0:
        due_of_countdown(countdown)
    elif eta is not None and not isinstance(eta, (datetime, str)):
        # The transport reads the others; Celery breaks on what has no isoformat().
        due_of_eta(eta)

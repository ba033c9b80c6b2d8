"""What :class:`~celery_delayq.DelayQ` changes in a Celery app, all of it."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals
from celery.app import amqp as celery_amqp
from kombu.utils.imports import symbol_by_name

from celery_delayq.message import PROPERTY, due_of_countdown, due_of_eta


class AMQPMixin:
    """Checks ``eta`` and ``countdown`` at the call, and keeps the countdown apart.

    ``before_task_publish`` comes too late for both: Celery has made an ETA of the countdown by
    then, with the clock of this machine. Redis counts it with its own.
    """

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
        message = super().as_task_v2(  # type: ignore[misc]
            task_id, name, args, kwargs, countdown, eta, *rest, **options
        )
        if countdown:
            message.properties[PROPERTY] = {"countdown": countdown}
        return message


class AMQP(AMQPMixin, celery_amqp.AMQP):
    """Celery's own message factory with our checks."""


def install(app: Celery) -> None:
    """Hook into *app*. Doing it twice changes nothing more."""
    base = symbol_by_name(app.amqp_cls)
    if not issubclass(base, AMQPMixin):
        # By name where possible: the app is pickled for children that are spawned.
        app.amqp_cls = (
            "celery_delayq.hooks:AMQP"
            if base is celery_amqp.AMQP
            else type("AMQP", (AMQPMixin, base), {})
        )
        app.__dict__.pop("amqp", None)
    signals.task_prerun.connect(restore_eta, dispatch_uid="celery_delayq.restore_eta")


def restore_eta(task: Any, **_: Any) -> None:
    """Let the running task read its original ETA as ``self.request.eta``, in ISO 8601.

    The message came without one, since a worker parks every message that has an ETA.
    """
    request = task.request
    own = (request.get("properties") or {}).get(PROPERTY)
    if own and request.eta is None:
        request.eta = own.get("eta")


def _check(countdown: Any, eta: Any) -> None:
    # As in Celery: a countdown of 0 is none, and a countdown goes before an ETA.
    if countdown is not None and countdown != 0:
        due_of_countdown(countdown)
    elif eta is not None:
        due_of_eta(eta)

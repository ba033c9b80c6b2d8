"""Public API of administration: ``delayq.admin``."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from celery_delayq.admin import compat, rewrite
from celery_delayq.admin.masters_away import answering
from celery_delayq.admin.rabbitmq.broker import gather as gather_rabbitmq
from celery_delayq.admin.stats import Stats, gather
from celery_delayq.admin.why.reading import why
from celery_delayq.admin.why.reasons import Why
from celery_delayq.store.session import Session
from celery_delayq.utils.delegation import method_of, methods_name_arguments


@methods_name_arguments
class Admin:
    """Statistics, checks of what waits, and why a task has not run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    compat = method_of("_session", compat.compat)
    rename = method_of("_session", rewrite.rename)
    rewrite = method_of("_session", rewrite.rewrite)

    def stats(self, *, partial: bool = False) -> Stats:
        """Return the number of tasks by state, queue and task name, and their memory.

        Parameters
        ----------
        partial : bool
            Leave out unreachable masters of a Redis Cluster, and name them in ``away``. At least
            one master must answer. Without *partial*, an unreachable master is an error.

        Returns
        -------
        Stats
            The numbers of all queues that Redis knows or from which this app consumes. Different
            queues are read at different times. On RabbitMQ, a
            :class:`~celery_delayq.admin.rabbitmq.broker.RabbitMQStats`, which has fewer numbers.

        Raises
        ------
        ConfigError
            There is no app yet.
        NotSupported
            The app's broker is not of this package.
        BrokerUnavailable, CommandRefused
            Redis cannot be reached, or refuses a command.
        """
        if self._session.on_rabbitmq:
            return cast("Stats", gather_rabbitmq(self._session.app))
        consumed = self._session.app.amqp.queues.consume_from
        if not partial:
            return self._session.ask(lambda stores: gather(stores, consumed))
        answering_stores, away = answering(self._session.ask(lambda stores: stores))
        return replace(gather(answering_stores, consumed), away=away)

    def why(self, id: str, *, queue: str | None = None, ask_workers: bool = True) -> Why:
        """Return why a task has not run, or how it ended.

        The answer is joined from what is stored. For a finished task these are the dead letters,
        the revokes, and the history.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        queue : str | None
            The only queue to search; None for all queues.
        ask_workers : bool
            Whether to ask the workers, for one second, whether they consume the queue. They are
            asked if nothing but a worker is missing, and no process has a message of the queue.

        Raises
        ------
        InvalidFilter
            *id* is neither the id of a task nor its ``AsyncResult``.
        NotSupported
            The broker is RabbitMQ, and the task is not a dead letter.
        """
        return why(self._session, id, queue, ask_workers=ask_workers)

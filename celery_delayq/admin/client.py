"""Public API of administration. Called as ``delayq.admin``."""

from __future__ import annotations

from typing import cast

from celery_delayq.admin.rabbitmq.broker import gather as gather_rabbitmq
from celery_delayq.admin.stats import Stats, gather
from celery_delayq.store.session import Session


class Admin:
    """Statistics."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stats(self) -> Stats:
        """Return the number of tasks by state, queue and task, and their memory.

        Returns
        -------
        Stats
            Of all queues that Redis knows, and of those from which this app consumes. The numbers
            of different queues are of different moments. On RabbitMQ it is a
            :class:`~celery_delayq.admin.rabbitmq.broker.RabbitMQStats`, which tells less.

        Raises
        ------
        ConfigError
            There is no app yet.
        NotSupported
            The app's broker is not one of ours.
        BrokerUnavailable, CommandRefused
            Redis is away, or refused something.
        """
        if self._session.on_rabbitmq:
            return cast("Stats", gather_rabbitmq(self._session.app))
        consumed = self._session.app.amqp.queues.consume_from
        return self._session.ask(lambda shards: gather(shards, consumed))

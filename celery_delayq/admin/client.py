"""Public API of administration. Called as ``delayq.admin``."""

from __future__ import annotations

from celery_delayq.admin.stats import Stats, gather
from celery_delayq.store.session import Session


class Admin:
    """Tells what waits."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def stats(self, *, ready_limit: int = 100_000) -> Stats:
        """Return what waits, by queue and task, and what memory it takes.

        Parameters
        ----------
        ready_limit : int
            Most ready messages of a queue that are read to count them by task.

        Returns
        -------
        Stats
            Of all queues that Redis knows, and of those from which this app consumes. The numbers
            of different queues are of different moments.

        Raises
        ------
        ConfigError
            There is no app yet.
        NotSupported
            The app's broker is not one of ours.
        BrokerUnavailable, CommandRefused
            Redis is away, or refused something.
        """
        consumed = self._session.app.amqp.queues.consume_from
        return self._session.ask(lambda store: gather(store, consumed, ready_limit))

"""How many messages a channel may take, and whether it is worth to ask for them."""

from __future__ import annotations

from celery_delayq.integration import worker
from celery_delayq.transport.fair_share import BatchSize
from celery_delayq.transport.settle import SettleChannel


class Credit:
    """What the prefetch count leaves.

    Parameters
    ----------
    channel : SettleChannel
        The channel.
    batch : BatchSize
        How many messages to take at once where there is no limit.
    """

    def __init__(self, channel: SettleChannel, batch: BatchSize) -> None:
        self._channel = channel
        self._batch = batch

    @property
    def left(self) -> int:
        """How many messages may be taken beside those on their way."""
        channel = self._channel
        waiting: int = channel.fetched
        if channel.asks_for_each:
            return 0 if waiting else int(channel.qos.can_consume())
        credit: int | None = channel.qos.can_consume_max_estimate()
        if credit is None:  # no limit: one at a time but for a worker that wants it so
            credit = self._batch.size if channel.serves_worker else 1
        return credit - waiting

    @property
    def idle(self) -> int:
        """How many of them the worker could run at once."""
        fetched: int = self._channel.fetched
        return min(self.left, worker.idle_processes() - fetched)

    def is_worth_it(self, credit: int, taken: object) -> bool:
        """Return whether to ask now; not for each message alone while the pool has enough to do.

        *taken* are the messages that are here.
        """
        channel = self._channel
        enough = 3 * channel.qos.prefetch_count // 4
        if credit >= enough or not channel.leased_queues:
            return True
        return not (taken or (channel.serves_worker and worker.backlog()))

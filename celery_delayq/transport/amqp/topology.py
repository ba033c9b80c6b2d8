"""The exchanges and queues in which messages wait in RabbitMQ until they are due.

::

    level 2 ──1──► delay 2.1 ─┐      Each level is a headers exchange. It leads a message into the
       │   ──2──► delay 2.2 ─┤      queue of its digit, or on to the next level where that is 0.
       0   ──3──► delay 2.3 ─┤      A queue lets its messages go after its time to live, to the
       ▼                      ▼      next level.
    level 1 …                level 1 …
       ▼
    exit ──► to_queue (direct) ──► the queue of that name, or delayq.unroutable
       └───► exit queue of an exchange ──► that exchange
"""

from __future__ import annotations

from typing import Any

from celery_delayq.transport.amqp import cascade
from celery_delayq.transport.amqp.cascade import Delay, Hop

DURABLE = {"durable": True, "auto_delete": False}


class Topology:
    """The names of all that is declared, and how.

    Parameters
    ----------
    prefix : str
        The first word of all names.
    unit_ms : int
        The shortest delay, and the step of all.
    queue_type : str
        ``quorum`` or ``classic``.
    max_length : int
        Most messages of a delay queue, 0: no limit.
    """

    def __init__(self, prefix: str, unit_ms: int, queue_type: str, max_length: int) -> None:
        self.prefix = prefix
        self.unit_ms = unit_ms
        self._queue_type = queue_type
        self._max_length = max_length
        self.exit = f"{prefix}.exit"
        self.to_queue = f"{prefix}.to_queue"
        self.unroutable = f"{prefix}.unroutable"

    # -- names

    def level(self, level: int) -> str:
        """Return the exchange of a level; below the lowest one is the exit."""
        return self.exit if level < 0 else f"{self.prefix}.level.{level}"

    def delay_queue(self, hop: Hop) -> str:
        """Return the queue in which a message waits."""
        return f"{self.prefix}.delay.{hop.level}.{hop.digit}"

    def exit_queue(self, exchange: str) -> str:
        """Return the queue from which due messages go to an exchange."""
        return f"{self.prefix}.exit.{exchange}"

    # -- arguments

    def delay_arguments(self, hop: Hop) -> dict[str, Any]:
        """Return the arguments of a delay queue."""
        limit = {"x-max-length": self._max_length} if self._max_length else {}
        return {
            "x-message-ttl": hop.units * self.unit_ms,
            "x-dead-letter-exchange": self.level(hop.level - 1),
            **self._kept(),
            **limit,
        }

    def exit_arguments(self, exchange: str) -> dict[str, Any]:
        """Return the arguments of an exit queue."""
        return {"x-message-ttl": 0, "x-dead-letter-exchange": exchange, **self._kept()}

    def _kept(self) -> dict[str, Any]:
        """Return what keeps messages while they go from one queue to the next."""
        if self._queue_type == "classic":
            return {"x-queue-type": "classic"}
        return {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }


class Declarer:
    """Declares what the way of a message needs, once for each connection.

    Parameters
    ----------
    connection : amqp.Connection
        Declared on a channel of its own: an error closes it, and no other.
    """

    def __init__(self, connection: Any, topology: Topology) -> None:
        self._connection = connection
        self._topology = topology
        self._channel: Any = None
        self._levels = -1
        self._hops: set[Hop] = set()
        self._targets: set[str] = set()
        self._queues: set[str] = set()

    def prepare(self, delay: Delay, exchange: str, routing_key: str) -> None:
        """Declare all that a message passes.

        Raises
        ------
        amqp.exceptions.NotFound
            There is no queue *routing_key*, or no exchange of that name.
        amqp.exceptions.PreconditionFailed
            One of ours is declared already, with other arguments.
        """
        hops = [hop for hop in delay.hops() if hop not in self._hops]
        known = self._queues if exchange == "" else self._targets
        target = routing_key if exchange == "" else exchange
        if not hops and delay.entry <= self._levels and target in known:
            return
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        # Each call but the last one goes without waiting: one round trip in all.
        if self._levels < 0:
            self._declare_exit()
        for level in range(self._levels + 1, delay.entry + 1):
            self._declare_level(level)
        for hop in hops:
            self._declare_hop(hop)
        if exchange == "":
            self._bind_queue(routing_key)
        else:
            self._declare_target(exchange)
        self._levels = max(self._levels, delay.entry)
        self._hops.update(hops)
        known.add(target)

    def _declare_exit(self) -> None:
        channel, names = self._channel, self._topology
        channel.exchange_declare(names.exit, "headers", nowait=True, **DURABLE)
        channel.exchange_declare(names.unroutable, "fanout", nowait=True, **DURABLE)
        channel.queue_declare(
            names.unroutable, arguments={"x-queue-type": "quorum"}, nowait=True, **DURABLE
        )
        channel.queue_bind(names.unroutable, names.unroutable, nowait=True)
        channel.exchange_declare(
            names.to_queue,
            "direct",
            arguments={"alternate-exchange": names.unroutable},
            nowait=True,
            **DURABLE,
        )
        by_name = {"x-match": "all", cascade.TARGET: ""}
        channel.exchange_bind(names.to_queue, names.exit, arguments=by_name, nowait=True)

    def _declare_level(self, level: int) -> None:
        """Declare a level, and the way past it for a digit of 0."""
        channel, names = self._channel, self._topology
        channel.exchange_declare(names.level(level), "headers", nowait=True, **DURABLE)
        channel.exchange_bind(
            names.level(level - 1),
            names.level(level),
            arguments=cascade.matches(level, 0),
            nowait=True,
        )

    def _declare_hop(self, hop: Hop) -> None:
        channel, names = self._channel, self._topology
        queue = names.delay_queue(hop)
        arguments = names.delay_arguments(hop)
        channel.queue_declare(queue, arguments=arguments, nowait=True, **DURABLE)
        channel.queue_bind(
            queue, names.level(hop.level), arguments=cascade.matches(*hop), nowait=True
        )

    def _bind_queue(self, queue: str) -> None:
        self._channel.queue_bind(queue, self._topology.to_queue, routing_key=queue)

    def _declare_target(self, exchange: str) -> None:
        channel, names = self._channel, self._topology
        channel.exchange_declare(exchange, "direct", passive=True)
        queue = names.exit_queue(exchange)
        channel.queue_declare(
            queue, arguments=names.exit_arguments(exchange), nowait=True, **DURABLE
        )
        by_exchange = {"x-match": "all", cascade.TARGET: exchange}
        channel.queue_bind(queue, names.exit, arguments=by_exchange)

"""The exchanges and queues in which messages wait in RabbitMQ until they are due. No I/O.

::

    entry 2.1 ───► delay 2.1 ─┐      A message is sent to the entry exchange of its highest digit.
    entry 2.2 ───► delay 2.2 ─┤      When a delay queue's time to live is over, RabbitMQ moves the
    entry 2.3 ───► delay 2.3 ─┤      message to the next level. Each level is a headers exchange.
       ┌──────────────────────┘      The level routes the message to the queue of its digit, or to
       ▼                             the next level if the digit is 0.
    level 1 ──1──► delay 1.1 …
       │   ──2──► delay 1.2 …
       0   ──3──► delay 1.3 …
       ▼
    level 0 …
       ▼
    exit ──► to_queue (direct) ──► the queue of that name, or delayq.unroutable
       └───► exit queue of an exchange ──► that exchange
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from celery_delayq.errors import ConfigError
from celery_delayq.settings import Settings
from celery_delayq.transport.amqp import cascade
from celery_delayq.transport.amqp.cascade import BASE, LEVELS, Delay, Hop

#: The command that declares all queues, exchanges and bindings.
APPLY_COMMAND = "celery -A app delayq topology --apply"

#: RabbitMQ's limit for the length of a name, in bytes.
_MAX_NAME_BYTES = 255

#: The arguments of a queue that keeps a message until the next queue has stored it.
_QUORUM_ARGUMENTS: Mapping[str, Any] = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


#: The digits that have a queue.
_QUEUE_DIGITS = range(1, BASE)

#: The type of an entry exchange, and the type with which the exchange routes no messages.
OPEN_TYPE, CLOSED_TYPE = "fanout", "direct"


class ExchangeItem(NamedTuple):
    """An exchange to declare."""

    name: str
    type: str
    arguments: Mapping[str, Any]


class QueueItem(NamedTuple):
    """A queue to declare."""

    name: str
    arguments: Mapping[str, Any]


class Binding(NamedTuple):
    """A binding: *target* gets the messages of *source* that match the arguments."""

    source: str
    target: ExchangeItem | QueueItem
    arguments: Mapping[str, Any]


Item = ExchangeItem | QueueItem | Binding


class Topology:
    """The names and arguments of all queues, exchanges and bindings to declare.

    Raises
    ------
    ConfigError
        Delays of ``max_delay`` cannot be written in units of ``unit``.
    """

    def __init__(self, settings: Settings) -> None:
        self.prefix = settings.prefix
        self.unit_ms = round(settings.unit * 1000)
        self._queue_type = settings.queue_type
        self._max_length = settings.max_length
        self._dead_letters_age = settings.dead_letters_age
        #: The longest delay in units.
        self.longest = cascade.MAX_DELAY_UNITS
        if settings.max_delay:
            self.longest = -int(-settings.max_delay * 1000 // self.unit_ms)
        if self.longest > cascade.MAX_DELAY_UNITS:
            raise ConfigError(
                f"delayq setting max_delay={settings.max_delay:g}: with unit={settings.unit:g} "
                f"expected at most {cascade.MAX_DELAY_UNITS * self.unit_ms // 1000}"
            )
        self.exit = f"{self.prefix}.exit"
        self.to_queue = f"{self.prefix}.to_queue"
        self.unroutable = f"{self.prefix}.unroutable"
        self.dead_letters = f"{self.prefix}.dead_letters"
        self.settled = f"{self.prefix}.dead_letters.settled"

    @property
    def levels(self) -> range:
        """All levels that delays up to ``max_delay`` need."""
        return range(next(n for n in range(1, LEVELS + 1) if self.longest < BASE**n))

    def delay(self, ms: float) -> Delay | None:
        """Return a delay of at least *ms*; None for no delay. Raises errors of :meth:`Delay.of`."""
        return Delay.of(ms, self.unit_ms, self.longest)

    def entry(self, hop: Hop) -> str:
        """Return the entry exchange of the delay queue of *hop*."""
        return f"{self.prefix}.entry.{hop.level}.{hop.digit}"

    def entries(self) -> list[str]:
        """Return all entry exchanges."""
        return [self.entry(Hop(level, digit)) for level in self.levels for digit in _QUEUE_DIGITS]

    def level(self, level: int) -> str:
        """Return the exchange of a level; for a level below 0, the exit."""
        return self.exit if level < 0 else f"{self.prefix}.level.{level}"

    def delay_queues(self) -> list[str]:
        """Return the names of all delay queues, from the lowest level to the highest."""
        items = (item for level in self.levels for item in self.at_level(level))
        return [item.name for item in items if isinstance(item, QueueItem)]

    # -- items to declare, in this order

    def all(self) -> Iterator[Item]:
        """Yield all items except the exit queues."""
        yield from self.ends()
        for level in self.levels:
            yield from self.at_level(level)
        yield from self.streams()

    def ends(self) -> Iterator[Item]:
        """Yield the exits of due messages."""
        yield ExchangeItem(self.exit, "headers", {})
        yield ExchangeItem(self.unroutable, "fanout", {})
        kept = QueueItem(self.unroutable, {"x-queue-type": "quorum"})
        yield kept
        yield Binding(self.unroutable, kept, {})
        by_name = ExchangeItem(self.to_queue, "direct", {"alternate-exchange": self.unroutable})
        yield by_name
        yield Binding(self.exit, by_name, cascade.target_headers(""))

    def at_level(self, level: int) -> Iterator[Item]:
        """Yield the exchange of a level, its queues, and the bindings to the queues and the next
        level.
        """
        found = ExchangeItem(self.level(level), "headers", {})
        yield found
        below = ExchangeItem(self.level(level - 1), "headers", {})
        yield Binding(found.name, below, cascade.has_digit(level, 0))
        for digit in _QUEUE_DIGITS:
            yield from self.at_hop(Hop(level, digit))

    def at_hop(self, hop: Hop) -> Iterator[Item]:
        """Yield the delay queue of a digit, its binding to its level, and its entry exchange."""
        arguments: dict[str, Any] = {
            "x-message-ttl": hop.units * self.unit_ms,
            "x-dead-letter-exchange": self.level(hop.level - 1),
            **self._kept(),
        }
        if self._max_length:
            arguments["x-max-length"] = self._max_length
        queue = QueueItem(f"{self.prefix}.delay.{hop.level}.{hop.digit}", arguments)
        yield queue
        yield Binding(self.level(hop.level), queue, cascade.has_digit(*hop))
        yield ExchangeItem(self.entry(hop), OPEN_TYPE, {})
        yield Binding(self.entry(hop), queue, {})

    def at_exchange(self, exchange: str) -> Iterator[Item]:
        """Yield the exit queue for an exchange of the app."""
        name = f"{self.prefix}.exit.{exchange}"
        if len(name.encode()) > _MAX_NAME_BYTES:
            name = f"{self.prefix}.exit.{sha256(exchange.encode()).hexdigest()}"
        # Always a quorum queue: a classic queue drops messages that the exchange cannot route.
        arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": exchange, **_QUORUM_ARGUMENTS}
        queue = QueueItem(name, arguments)
        yield queue
        yield Binding(self.exit, queue, cascade.target_headers(exchange))

    def streams(self) -> Iterator[QueueItem]:
        """Yield the streams of dead letters."""
        age = self._dead_letters_age
        limit = {"x-max-age": f"{max(int(age), 1)}s"} if age else {}
        for name in (self.dead_letters, self.settled):
            yield QueueItem(name, {"x-queue-type": "stream", **limit})

    def _kept(self) -> Mapping[str, Any]:
        """Return the arguments that keep messages while they move from one queue to the next."""
        return {"x-queue-type": "classic"} if self._queue_type == "classic" else _QUORUM_ARGUMENTS

"""How messages get from Redis into a channel: requests, their replies, and what comes of queues
that are not leased.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import suppress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils.scheduling import priority_cycle
from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from celery_delayq.acks import AckBatch
from celery_delayq.lease import LOST
from celery_delayq.lease_store import Deliveries, Reserved
from celery_delayq.store import is_demoted
from celery_delayq.transport import worker
from celery_delayq.transport.rota import BatchSize, Rota, Share

if TYPE_CHECKING:
    from celery_delayq.transport.consume import ConsumeChannel

logger = logging.getLogger(__name__)

#: Seconds to wait for the reply to a request when the channel closes.
LAST_REPLY = 1.0


class Taken(NamedTuple):
    """A message that is leased to this process and not handed out yet."""

    queue: str
    tag: str
    message: bytes
    deliveries: Deliveries


class Request(NamedTuple):
    """A call of ``reserve.lua`` whose reply has not come; repeated with the same nonce."""

    share: Share
    nonce: str


class Popped(NamedTuple):
    """A message of a queue that is not leased."""

    queue: str
    message: bytes


class Intake:
    """Asks for messages on the channel's own connection, one round trip at a time.

    What is asked is one of: requests for messages, with acknowledgements riding along; a look
    whether empty queues have got something; or to be told when they have.
    """

    def __init__(self, channel: ConsumeChannel) -> None:
        self.taken: deque[Taken] = deque()
        self.rota = Rota()
        self.batch = BatchSize()
        #: Whether nothing was asked for until something is done; who does it rings the bell.
        self.starved = False
        self._channel = channel
        self._requests: list[Request] = []
        self._riding = AckBatch({})
        self._asked = ""
        self._looking = False
        self._looked = 0.0
        self._exhausted = False
        self._send_sources = True

    # -- asking

    def start(self) -> None:
        """Ask for messages or, where all queues are empty, wait until that changes."""
        if not self.ask() and self._exhausted and not self.taken:
            self._block()

    def ask(self) -> bool:
        """Send requests for what may be taken now; return whether there were any."""
        channel = self._channel
        self._exhausted = False
        if channel._in_poll:
            return False
        leased = [queue for queue in self._order() if channel.leases_from(queue)]
        if not self._requests and not self._plan(leased):
            return False
        self._let_off()
        self._riding = channel.keeper.acks.take()
        self._send("requests", [*self._calls(len(leased) > 1), *self._looks(leased)])
        return True

    def ask_ahead(self) -> None:
        """Ask for the next messages before those here are done, when they go quickly."""
        size = self.batch.size
        if size > 1 and not self._channel._in_poll and len(self.taken) <= size // 2:
            self.ask()

    def _plan(self, leased: list[str]) -> bool:
        """Make requests for what may be taken and is worth a round trip."""
        channel = self._channel
        credit = self._credit()
        self._exhausted = not leased
        self.starved = credit <= 0
        if not leased or self.starved:
            return False
        if channel.keeper.alone or not self._is_worth_it(credit):
            # An event loop turns with each task that is done; others have to be told.
            self.starved = channel.connection.cycle._in_protected_read
            return False
        shares = self.rota.deal(
            leased,
            min(credit, self.batch.size),
            len(channel.layout.steps),
            fair=not isinstance(channel._queue_cycle, priority_cycle),
        )
        self._exhausted = not shares
        self._requests = [Request(s, channel.keeper.new_nonce(s.queue)) for s in shares]
        return bool(shares)

    def _credit(self) -> int:
        """Return how many messages more may be taken, those on their way not among them."""
        qos = self._channel.qos
        waiting = len(self.taken) + sum(request.share.limit for request in self._requests)
        if "can_consume" in vars(qos):
            # Celery wants to be asked for each one (worker_disable_prefetch).
            return 0 if waiting else int(qos.can_consume())
        credit: int | None = qos.can_consume_max_estimate()
        if credit is None:  # no limit: one at a time but for a worker that wants it so
            credit = self.batch.size if worker.consumes_tasks(self._channel) else 1
        return credit - waiting

    def _is_worth_it(self, credit: int) -> bool:
        """Return whether to ask now; not for each message alone while the pool has enough to do."""
        half = self._channel.qos.prefetch_count // 2
        return credit >= half or not (self.taken or worker.backlog())

    def _calls(self, several: bool) -> list[tuple[Any, ...]]:
        channel, keeper = self._channel, self._channel.keeper
        calls = [
            channel.store.leases.reserve_call(
                share.queue,
                keeper.incarnation,
                keeper.lease,
                nonce,
                share.limit,
                share.lists,
                keeper.others(share.queue) if several else 0,
            )
            for share, nonce in self._requests
        ]
        calls += keeper.acks.calls(channel.store, self._riding)
        sources, self._send_sources = self._send_sources, False
        return [call.command(source=sources) for call in calls]

    def _looks(self, leased: list[str]) -> list[tuple[Any, ...]]:
        """Return the command that tells whether empty queues have got something meanwhile."""
        keys = self._channel.store.keys
        wake = [keys.queue(queue).wake for queue in self.rota.empty(leased)]
        return [("EXISTS", *wake)] if wake else []

    def _block(self) -> None:
        """Look at the ready lists, which stock producers fill without a sign, or wait for a sign.

        One look each ``block_timeout``, however many queues there are.
        """
        channel, keys = self._channel, self._channel.store.keys
        timeout = channel.settings.block_timeout
        queues = self._order()
        leased = [queue for queue in queues if channel.leases_from(queue)]
        now = time.monotonic()
        if leased and now - self._looked >= timeout and not channel.keeper.alone:
            self._looked = now
            lists = chain.from_iterable(keys.ready_lists(q, channel.layout) for q in leased)
            suspects = (keys.queue(queue).suspects for queue in leased)
            self._send("look", [("EXISTS", *lists, *suspects)])
            return
        wake = [keys.queue(queue).wake for queue in leased]
        popped = [queue for queue in queues if queue not in leased]
        steps = channel.layout.steps
        stock = [keys.ready(q, step, channel.layout) for step in steps for q in popped]
        if wake or stock:
            self._send("sign", [("BRPOP", *wake, *stock, timeout)])

    def _order(self) -> list[str]:
        """Return the consumed queues, the one whose turn it is first."""
        channel = self._channel
        order: list[str] = channel._queue_cycle.consume(len(channel.active_queues))
        return order

    def _send(self, asked: str, commands: list[tuple[Any, ...]]) -> None:
        channel = self._channel
        connection = channel.client.connection
        channel._in_poll = connection
        channel._brpop_sent_at = time.monotonic()
        self._asked = asked
        self._looking = asked == "requests" and commands[-1][0] == "EXISTS"
        connection.send_packed_command(connection.pack_commands(commands))

    # -- reading

    def read(self) -> Popped | None:
        """Read what came: messages are in :attr:`taken` then; return one that was popped.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError
            The connection is gone, or leads to a server that is no master any more.
        """
        try:
            if self._asked == "requests":
                self._read_requests()
                return None
            return self._read_sign()
        except ResponseError as exc:
            if not is_demoted(exc):
                raise
            raise ConnectionError(str(exc)) from exc

    def lost(self) -> None:
        """The connection is gone: what was on its way is sent again."""
        self._let_off()
        self._send_sources = True

    def _let_off(self) -> None:
        """Let others send the acknowledgements that did not arrive."""
        if self._riding:
            self._channel.keeper.acks.put_back(self._riding)
            self._riding = AckBatch({})

    def _read(self) -> Any:
        """Return the next reply, or the error that it is."""
        try:
            return self._channel.client.connection.read_response()
        except ResponseError as exc:
            if is_demoted(exc):
                raise
            if isinstance(exc, NoScriptError):
                self._send_sources = True
            return exc

    def _read_requests(self) -> None:
        """Read the replies to all requests, and to the acknowledgements that rode with them."""
        replies = [self._read() for _ in self._requests]
        acked = [self._read() for _ in self._riding.fields]
        if self._looking and self._read():
            self.rota.forget(self._channel.consumed)
        self._acked(acked)
        requests, self._requests = self._requests, []
        came = []
        for request, reply in zip(requests, replies, strict=True):
            queue = request.share.queue
            if isinstance(reply, NoScriptError):
                self._requests.append(request)
            elif isinstance(reply, ResponseError):
                logger.error("Queue %r is looked at later, reserving failed: %s", queue, reply)
                self._channel.keeper.abandon(queue, request.nonce)
                self.rota.learn(queue, 0)
            else:
                came.append(self.took(queue, request.nonce, Reserved.read(reply)))
        for taken in chain.from_iterable(zip_longest(*came)):
            if taken is not None:
                self.taken.append(taken)
                self._channel._queue_cycle.rotate(taken.queue)

    def _acked(self, replies: list[Any]) -> None:
        riding, self._riding = self._riding, AckBatch({})
        if not riding:
            return
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors:
            self._channel.keeper.acks.confirm(riding, sum(replies))
            return
        if not isinstance(errors[0], NoScriptError):
            logger.error("Redis refused acknowledgements, tried again: %s", errors[0])
        self._channel.keeper.acks.put_back(riding)

    def took(self, queue: str, nonce: str, reserved: Reserved) -> list[Taken]:
        """Note what came for a request as held, and return it."""
        self.rota.learn(queue, reserved.more)
        fields = [field for field, _, _ in reserved.messages]
        tags = self._channel.keeper.take(queue, nonce, fields, alone=reserved.alone)
        return [
            Taken(queue, tag, message, deliveries)
            for tag, (_, message, deliveries) in zip(tags, reserved.messages, strict=True)
        ]

    def _read_sign(self) -> Popped | None:
        """Read whether there is something, or a message of a queue that is popped."""
        channel = self._channel
        reply = channel.client.connection.read_response()
        if not reply:
            return None
        if self._asked == "look":
            self.rota.forget(channel.consumed)
            return None
        key = reply[0].decode()
        for queue in channel.consumed:
            if key == channel.store.keys.queue(queue).wake:
                self.rota.forget([queue])
                return None
        queue = key[len(channel.global_keyprefix) :].rsplit(channel.sep, 1)[0]
        channel._queue_cycle.rotate(queue)
        return Popped(queue, reply[1])

    # -- the end

    def take_all(self) -> list[Taken]:
        """Return what is here, which is then no longer here."""
        taken = list(self.taken)
        self.taken.clear()
        return taken

    def last(self, *, wait: bool) -> list[Taken]:
        """Return what is here, with *wait* also what comes soon for the last requests.

        The others are abandoned: what they may get is given back.
        """
        connection = self._channel._in_poll
        with suppress(*LOST):
            if wait and self._requests and connection and connection.can_read(LAST_REPLY):
                self._read_requests()
        if connection:
            connection.disconnect()
        self._let_off()
        for request in self._requests:
            self._channel.keeper.abandon(request.share.queue, request.nonce)
        self._requests = []
        return self.take_all()

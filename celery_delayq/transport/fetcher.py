"""Fetches messages from Redis for a channel: when to ask, for how much, and the replies."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import suppress
from itertools import chain, zip_longest
from threading import get_ident
from typing import Any

from kombu.utils.scheduling import priority_cycle
from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from celery_delayq.dispatch.acks import AckBatch
from celery_delayq.integration import worker
from celery_delayq.integration.pauses_and_revokes import Controls
from celery_delayq.integration.request import refuse_reserved
from celery_delayq.store.leases import Reserved
from celery_delayq.store.scripting.calls import pack
from celery_delayq.transport.fair_share import BatchSize, FairShare, Share
from celery_delayq.transport.idle import IdleWait
from celery_delayq.transport.requests import Popped, Request, SignsCall, Taken
from celery_delayq.transport.settle import SettleChannel

logger = logging.getLogger(__name__)

#: Seconds for which a queue is left alone that cannot be reserved from.
REFUSED = 1.0

#: Seconds to wait for the reply to a request when the channel closes.
LAST_REPLY = 1.0


class Fetcher:
    """Asks for messages on the channel's own connection, one round trip at a time.

    It asks for messages, with acknowledgements riding along; or whether empty queues have got
    something; or it blocks until they have.
    """

    def __init__(self, channel: SettleChannel) -> None:
        self.taken: deque[Taken] = deque()
        self.fair_share = FairShare()
        self.batch = BatchSize()
        self.controls = Controls()
        self.idle = IdleWait(channel)
        self._thread = 0
        self._channel = channel
        self._requests: list[Request] = []
        #: Acknowledgements that were sent with the requests.
        self._riding = AckBatch({})
        #: What the last commands ask for: "requests", "look" or "sign".
        self.asked = ""
        #: At which other queues the last commands look.
        self._signs = SignsCall()
        self._looking_popped: list[str] = []
        self._exhausted = False
        self._send_sources = True
        self._refused: dict[str, float] = {}
        self._popped_wait = False
        self._alone_next: str | None = None

    # -- asking

    def start(self) -> None:
        """Ask for messages or, where all queues are empty, wait until that changes."""
        self._thread = get_ident()
        if self._popped_wait and not self._channel._in_poll and not self._requests:
            self._popped_wait = False
            if lists := self._popped_lists():
                self._send("sign", pack([("BRPOP", *lists, 0.001)]))
        elif not self.ask() and self._exhausted and not self.taken:
            self._block()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the caller is another thread or greenlet than the one that polls."""
        return self._thread != get_ident()

    @property
    def is_awaiting(self) -> bool:
        """Whether a reply may bring messages."""
        return bool(self._requests and self._channel._in_poll)

    @property
    def is_content(self) -> bool:
        """Whether there is nothing to send now that no reply is awaited."""
        if self._requests or self._popped_wait or self._channel.asks_for_each:
            return False
        return not self._is_worth_it(self._credit())

    def ask(self) -> bool:
        """Send requests for what may be taken now; return whether there were any."""
        channel = self._channel
        self._exhausted = False
        if channel._in_poll:
            return False
        credit = 0 if self._requests else self._credit()
        if not self._requests and not self._is_worth_it(credit):
            return False
        leased = self._leased()
        if not self._requests and not self._plan(leased, credit):
            return False
        self._let_off()
        self._riding = channel.keeper.acks.take(ride=True)
        self._send("requests", self._calls() + self._looks(leased))
        return True

    def ask_ahead(self) -> None:
        """Ask for the next messages before those here are done, when they go quickly."""
        size = self.batch.size
        connection = self._channel.client.connection
        # One that was closed has to be registered with the poller first.
        ready = not self._channel._in_poll and connection is not None and connection._sock
        if size > 1 and ready and len(self.taken) <= size // 2:
            self.ask()

    def _plan(self, leased: list[str], credit: int) -> bool:
        """Make requests for at most *credit* messages."""
        channel = self._channel
        self._exhausted = not leased
        if not leased or credit <= 0 or channel.keeper.makes_room:
            return False
        lists = len(channel.layout.steps)
        alone, self._alone_next = self._alone_next, None
        if alone in leased:
            # A request of its own, since this message must be delivered alone.
            shares = [Share(alone, 1, lists)]
        else:
            fair = not isinstance(channel._queue_cycle, priority_cycle)
            credit = channel.credit_for(credit, self.fair_share.has_more(leased))
            shares = self.fair_share.deal(leased, min(credit, self.batch.size), lists, fair=fair)
        self._exhausted = not shares
        self._requests = [Request(s, channel.keeper.new_request_number(s.queue)) for s in shares]
        return bool(shares)

    def _credit(self) -> int:
        """Return how many messages may be taken beside those on their way."""
        channel = self._channel
        qos = channel.qos
        if channel.asks_for_each:
            return 0 if channel.fetched else int(qos.can_consume())
        credit: int | None = qos.can_consume_max_estimate()
        if credit is None:  # no limit: one at a time but for a worker that wants it so
            credit = self.batch.size if channel.serves_worker else 1
        return credit - channel.fetched if credit else 0

    @property
    def waiting(self) -> int:
        """How many messages are here, or may come, that are not handed out."""
        asked = sum([each.share.limit for each in self._requests]) if self._requests else 0
        return len(self.taken) + asked

    def _is_worth_it(self, credit: int) -> bool:
        """Return whether to ask now; not for each message alone while the pool has enough to do."""
        channel = self._channel
        if credit <= 0 or not channel.leased_queues:
            return not channel.leased_queues
        enough = credit >= channel.qos.prefetch_count // 2  # so that some are worked on meanwhile
        return enough or not (self.taken or (channel.serves_worker and worker.backlog()))

    def _calls(self) -> bytes:
        channel, keeper = self._channel, self._channel.keeper
        me, lease = keeper.worker_id, keeper.lease
        others, reports = keeper.others, channel.serves_worker
        acquire_call = channel.store.leases.acquire_call
        # Acknowledgements first: they may make room for a message that is delivered alone.
        calls = keeper.acks.calls(channel.store, self._riding)
        calls += [
            acquire_call(share.queue, me, lease, number, share.limit, share.lists, others, reports)
            for share, number in self._requests
        ]
        if not self._send_sources:
            return b"".join([call.packed() for call in calls])
        self._send_sources = False
        return pack([call.command(source=True) for call in calls])

    def _looks(self, leased: list[str]) -> bytes:
        """Return the commands that ask which other queues have got something."""
        look = self._signs = SignsCall()
        for queue in self.fair_share.empty(leased):
            look.add(queue, self.idle.sign(queue))
        if len(leased) > 1:
            for queue, lists in self.fair_share.behind(leased):
                look.add(queue, *self.idle.ready(queue)[:lists])
        looks = look.packed()
        self._looking_popped = self._popped_lists()
        if self._looking_popped:
            looks += pack([("EXISTS", *self._looking_popped)])
        return looks

    def _block(self) -> None:
        """Look at the ready lists, or wait for a sign."""
        leased = self._leased()
        if look := self.idle.look(leased):
            self._signs = look
            self._send("look", look.packed())
        elif wait := self.idle.wait(leased, self._popped_lists(), briefly=bool(self._refused)):
            self._send("sign", wait)

    def _leased(self) -> list[str]:
        """Return the queues to lease from."""
        leased = self._channel.leased_queues
        return [queue for queue in self._order() if queue in leased]

    def _popped_lists(self) -> list[str]:
        """Return the ready lists of the queues that are not leased, the most urgent first."""
        channel = self._channel
        popped = [queue for queue in self._order() if queue not in channel.leased_queues]
        ready, steps = channel.store.keys.ready, channel.layout.steps
        return [ready(queue, step, channel.layout) for step in steps for queue in popped]

    def _order(self) -> list[str]:
        """Return the consumed queues in turn, without those that Redis just refused."""
        now = time.monotonic()
        self._refused = {queue: until for queue, until in self._refused.items() if until > now}
        channel = self._channel
        order: list[str] = channel._queue_cycle.consume(len(channel.active_queues))
        return [queue for queue in order if queue not in self._refused]

    def _send(self, asked: str, commands: bytes) -> None:
        channel = self._channel
        connection = channel.client.connection
        self.asked = asked
        # No health check: it would wait for its reply here, and where it fails redis-py connects
        # again by itself, unknown to the poller.
        connection.send_packed_command([commands], check_health=False)
        channel._in_poll = connection
        channel._brpop_sent_at = time.monotonic()

    # -- reading

    def read(self) -> Popped | None:
        """Read replies into :attr:`taken`; return a message that was popped.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError
            The connection is lost, or its server is no longer a master.
        """
        try:
            if self.asked == "requests":
                self._read_requests()
                return None
            return self._read_sign()
        except ResponseError as exc:
            logger.error("waiting for messages failed: retry_s=%g: %s", REFUSED, exc)
            self._refused = dict.fromkeys(self._channel.consumed, time.monotonic() + REFUSED)
            return None

    def lost(self) -> None:
        """Note a lost connection: outstanding requests are sent again."""
        self._let_off()
        self._send_sources = True

    def _read(self) -> Any:
        """Return the next reply, which may be an error."""
        try:
            return self._channel.client.connection.read_response()
        except ResponseError as exc:
            if isinstance(exc, NoScriptError):
                self._send_sources = True
            return exc

    def _read_requests(self) -> None:
        """Read the replies to all requests, and to the acknowledgements that rode with them."""
        acked = [self._read() for _ in self._riding.fields]
        replies = [self._read() for _ in self._requests]
        for (_, request_number), reply in zip(self._requests, replies, strict=True):
            if not (isinstance(reply, ResponseError) or Reserved.answers(reply, request_number)):
                raise ConnectionError("out of step: the reply to another request has come")
        if self._signs.lists:
            self.fair_share.forget(self._signs.found(self._read()))
        if self._looking_popped and self._read():
            self._popped_wait = True
        # Before anything is handed out; where this fails, the same requests are sent again.
        self._learn([reply for reply in replies if not isinstance(reply, ResponseError)])
        self._acknowledged(acked)
        requests, self._requests = self._requests, []
        came = []
        for request, reply in zip(requests, replies, strict=True):
            queue = request.share.queue
            if isinstance(reply, NoScriptError):
                self._requests.append(request)
            elif isinstance(reply, ResponseError):
                logger.error("fetching failed: queue=%s retry_s=%g: %s", queue, REFUSED, reply)
                self._channel.keeper.abandon(queue, request.request_number)
                self._refused[queue] = time.monotonic() + REFUSED
            else:
                came.append(self.took(queue, request.request_number, Reserved.read(reply)))
                # A queue whose messages were all cancelled has had its turn, too.
                self._channel._queue_cycle.rotate(queue)
        for taken in chain.from_iterable(zip_longest(*came)):
            if taken is not None:
                self.taken.append(taken)
                self._channel._queue_cycle.rotate(taken.queue)

    def _let_off(self) -> None:
        """Put back acknowledgements that did not arrive."""
        if self._riding:
            self._channel.keeper.acks.put_back(self._riding)
            self._riding = AckBatch({})

    def _acknowledged(self, replies: list[Any]) -> None:
        """Handle the replies to acknowledgements, which may be errors."""
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors and self._riding:
            self._channel.keeper.acks.confirm(self._riding, replies)
            self._riding = AckBatch({})
        if errors and not isinstance(errors[0], NoScriptError):
            logger.error("Redis refused acknowledgements, which are sent again: %s", errors[0])
        self._let_off()

    def _learn(self, replies: list[Any]) -> None:
        """Read pauses and revokes that are older than the messages."""
        revisions = {Reserved.revision_in(reply) for reply in replies}
        # A lower one, too: a server that has taken over may not have got all.
        if revisions - {self.controls.revision}:
            channel, expires = self._channel, self._channel.settings.revoke_expires
            self.controls.learn(channel.store, for_worker=channel.serves_worker, expires=expires)
            if channel.serves_worker:
                refuse_reserved()

    def took(self, queue: str, request_number: str, reserved: Reserved) -> list[Taken]:
        """Note the messages of a reply as held, and return them."""
        self.fair_share.learn(queue, reserved.more)
        if reserved.messages:
            self.idle.took_some(from_others=reserved.others)
        if reserved.room:
            self._channel.keeper.make_room()
            self._alone_next = queue
        fields = [field for field, _, _ in reserved.messages]
        tags = self._channel.keeper.take(queue, request_number, fields, alone=reserved.alone)
        return [
            Taken(queue, tag, message, deliveries, *reserved.about(field))
            for tag, (field, message, deliveries) in zip(tags, reserved.messages, strict=True)
        ]

    def _read_sign(self) -> Popped | None:
        """Read whether there is something, or a message of a queue that is popped."""
        channel = self._channel
        reply = channel.client.connection.read_response()
        if not reply:
            return None
        if self.asked == "look":
            self.fair_share.forget(self._signs.found(reply))
            return None
        key = reply[0].decode()
        sign = self.idle.queue_of(key)
        if sign is not None:
            self.fair_share.forget([sign])
            return None
        queue = key[len(channel.global_keyprefix) :].rsplit(channel.sep, 1)[0]
        channel._queue_cycle.rotate(queue)
        return Popped(queue, reply[1])

    # -- the end

    def finish(self) -> None:
        """Read the outstanding replies, if they come soon."""
        channel = self._channel
        connection = channel._in_poll
        # Not `LOST`: this connection raises redis-py's own errors.
        with suppress(*channel.connection_errors, ResponseError):
            if self._requests and connection and connection.can_read(LAST_REPLY):
                channel._in_poll = None
                self._read_requests()

    def take_all(self) -> list[Taken]:
        """Return the fetched messages, and forget them."""
        taken = list(self.taken)
        self.taken.clear()
        return taken

    def last(self, *, wait: bool) -> list[Taken]:
        """Return the fetched messages; with *wait* also those that come soon.

        Other requests are abandoned: the keeper gives their messages back.
        """
        connection = self._channel._in_poll
        if wait:
            self.finish()
        if connection:
            connection.disconnect()
        self._let_off()
        self.abandon()
        return self.take_all()

    def abandon(self) -> None:
        """Forget the outstanding requests: the keeper gives back what they may have got."""
        for request in self._requests:
            self._channel.keeper.abandon(request.share.queue, request.request_number)
        self._requests = []

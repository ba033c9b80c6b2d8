"""Requests messages from Redis and reads the replies."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence, Set
from enum import Enum, auto
from itertools import chain, zip_longest
from threading import get_ident
from typing import Any

from kombu.utils.scheduling import priority_cycle, round_robin_cycle
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError

from celery_delayq.dispatch.acks import AckBatch
from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.integration import worker
from celery_delayq.integration.endings.request import refuse_reserved
from celery_delayq.integration.pauses_and_revokes import Controls
from celery_delayq.settings import Settings
from celery_delayq.store.leases import AcquireReply
from celery_delayq.store.scripting.calls import Call, pack
from celery_delayq.store.scripting.wire import Wire, socket_of
from celery_delayq.store.store import Store
from celery_delayq.transport.fair_share import BatchSize, FairShare, Share
from celery_delayq.transport.idle import IdleWait
from celery_delayq.transport.prefetch import Prefetch
from celery_delayq.transport.requests import FilledQueuesCall, Popped, Request, Taken

logger = logging.getLogger(__name__)

#: Seconds until a queue is asked again after Redis refused a request for it.
REFUSED_QUEUE_SECONDS = 1.0

#: Seconds to wait for the reply to a request when a queue is cancelled or the channel closes.
LAST_REPLY_SECONDS = 1.0

#: Timeout, in seconds, of a BRPOP after a look that has found a message to pop.
POP_SECONDS = 0.001


class State(Enum):
    """The replies that a :class:`Consumer` awaits, and the commands that it sends next."""

    #: No reply is awaited. Next: requests, a look or a wait.
    READY = auto()
    #: No reply is awaited. Next: a short BRPOP, since a popped queue has a message.
    POP = auto()
    #: No reply is awaited. Next: the same requests again: their replies were lost or not handled.
    REPEAT = auto()
    #: The replies to requests are awaited, and to the acknowledgements and looks sent with them.
    REQUESTED = auto()
    #: The reply to a look at the ready lists is awaited.
    LOOKING = auto()
    #: The reply to a BRPOP is awaited.
    BLOCKED = auto()
    #: The channel is closed. Nothing is sent any more.
    CLOSED = auto()


class PolledConnection:
    """The connection that kombu's poller opens and watches, as a pool for a :class:`Wire`.

    Parameters
    ----------
    client : redis.Redis
        kombu's client for waiting.
    """

    #: None: redis-py repeats no command here, since it would connect without the poller.
    retry = None

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def socket(self) -> Any:
        """The socket; None until the poller has connected."""
        return socket_of(self._client.connection)

    @property
    def connection(self) -> Any:
        """redis-py's connection; None before the first connection."""
        return self._client.connection

    def get_connection(self, *_command_name: str) -> PolledConnection:
        """Return this object: it is a pool with one connection."""
        return self

    def release(self, _connection: PolledConnection) -> None:
        """Leave the connection to the poller."""

    def send_packed_command(self, commands: Sequence[bytes]) -> None:
        """Send commands. A health check would wait for its reply here."""
        self._client.connection.send_packed_command(commands, check_health=False)

    def read_response(self) -> Any:
        """Return the next reply, or raise it."""
        return self._client.connection.read_response()

    def can_read(self, seconds: float) -> bool:
        """Wait at most *seconds* for data; return whether there is some."""
        connection = self._client.connection
        return connection is not None and bool(connection.can_read(seconds))

    def disconnect(self) -> None:
        """Close the connection, unless kombu has let it go."""
        if self._client.connection is not None:
            self._client.connection.disconnect()


class Consumer:
    """Requests messages on the connection of one channel, one round trip at a time.

    From state to state, by method:

    ========= =========================================== =========
    from      by                                          to
    ========= =========================================== =========
    READY     `start`, `next`: there are requests         REQUESTED
    READY     `start`, `next`: they cannot be sent        REPEAT
    READY     `start`: all queues are empty, or none is   LOOKING
              leased, and a look is due
    READY     `start`: the same, and no look is due       BLOCKED
    READY     `start`: no message may be taken, fetched   READY
              messages wait to be handed out, Redis has
              just refused all queues, or the command
              cannot be sent
    POP       `start`                                     BLOCKED
    POP       `start`: no queue is popped any more, Redis READY
              has just refused them, or the command
              cannot be sent
    REPEAT    `start`, `next`                             REQUESTED
    REPEAT    `start`, `next`: they cannot be sent        REPEAT
    REQUESTED `read`; `cancel`: the replies come soon     READY
    REQUESTED `read`, `cancel`: a look found a message to POP
              pop
    REQUESTED `read`, `cancel`: Redis lacks a script, or  REPEAT
              the connection is lost
    REQUESTED `drop_connection`                           REPEAT
    LOOKING   `read`, `drop_connection`                   READY
    BLOCKED   `read`, `drop_connection`                   READY
    REQUESTED `abandon`                                   READY
    REPEAT    `abandon`                                   READY
    LOOKING   `abandon`                                   READY
    BLOCKED   `abandon`                                   READY
    any       `close`                                     CLOSED
    ========= =========================================== =========

    In all other states these methods keep the state. `read` is called only for an awaited reply.

    Parameters
    ----------
    client : redis.Redis
        kombu's client for waiting. The poller opens its connection.
    store : Store
        The store.
    cycle : kombu.utils.scheduling.round_robin_cycle
        kombu's order of the consumed queues.
    prefetch : Prefetch
        The number of messages that may be taken.
    idle : IdleWait
        The wait while all queues are empty.
    settings : Settings
        ``revoke_expires`` is read.
    """

    #: The lease keeper, set before the first request.
    keeper: LeaseKeeper

    def __init__(
        self,
        client: Any,
        store: Store,
        cycle: round_robin_cycle,
        prefetch: Prefetch,
        idle: IdleWait,
        settings: Settings,
    ) -> None:
        self.state = State.READY
        #: Whether this consumer gets, or has got, the tasks of a Celery worker.
        self.serves_worker = False
        #: The consumed queues. The messages of `leased_queues` are leased, of others popped.
        self.queues: frozenset[str] = frozenset()
        self.leased_queues: frozenset[str] = frozenset()
        #: Messages that are not handed out yet.
        self.taken: deque[Taken] = deque()
        #: Number of messages to request at once.
        self.batch_size = BatchSize()
        self.controls = Controls()
        self.idle = idle
        #: Monotonic time at which the last commands were sent.
        self.sent_at = 0.0
        self._polled = PolledConnection(client)
        self._wire = Wire(self._polled)
        self._store = store
        self._cycle = cycle
        self._prefetch = prefetch
        self._settings = settings
        self._fair_share = FairShare()
        #: The thread or greenlet that polls.
        self._thread = 0
        #: The socket over which the sources of all scripts were sent.
        self._scripts_socket: Any = None
        #: Requests whose replies are awaited or lost.
        self._requests: list[Request] = []
        #: Acknowledgements that were sent with the requests.
        self._riding_acks = AckBatch({})
        #: The looks among the last commands.
        self._filled_call = FilledQueuesCall()
        self._looked_lists: list[str] = []
        #: Fetched messages of cancelled queues.
        self._cancelled: list[Taken] = []
        #: By queue that Redis refused: monotonic time until which it is not asked.
        self._refused: dict[str, float] = {}
        prefetch.add(self)

    # -- the queues

    def consume(self, queue: str, *, leased: bool) -> None:
        """Consume a queue from now on. Its messages are *leased*, or popped as on stock."""
        self.queues |= {queue}
        others = self.leased_queues - {queue}
        self.leased_queues = others | {queue} if leased else others
        self._fair_share.forget([queue])
        self._interrupt()

    def cancel(self, queue: str) -> None:
        """Consume a queue no more; :meth:`take_cancelled` returns its fetched messages."""
        self.queues -= {queue}
        self.leased_queues -= {queue}
        self._prefetch.note_waiting(self, queue, waits=False)
        self._interrupt()
        for taken in self.take_all():
            (self._cancelled if taken.queue == queue else self.taken).append(taken)
        self._read_last()  # behind those that are here

    def take_cancelled(self) -> list[Taken]:
        """Return the messages of cancelled queues, which the caller requeues.

        The list is empty while a reply may bring more of them: each requeue puts its messages at
        the head, so the messages that came first must be requeued last, or with the others.
        """
        if self.state is State.REQUESTED:
            return []
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def _interrupt(self) -> None:
        """End a long wait: the queues have changed."""
        if self.state is State.BLOCKED:
            self.idle.interrupt()

    # -- to request messages

    def start(self) -> None:
        """Request messages or, while all queues are empty, wait for messages."""
        self._thread = get_ident()
        if self.state is State.POP:
            self._pop()
        elif self.state is State.REPEAT:
            self._send_requests()
        elif self.state is State.READY:
            shares = self._shares()
            if shares:
                self._send_requests(shares)
            elif shares is not None and not self.taken:
                self._wait()
            elif self._prefetch.waiting:
                self.idle.look_soon()

    def next(self) -> Taken | None:
        """Return the next message to hand out.

        While messages are delivered quickly, the next ones are requested before the last one is
        handed out.
        """
        if not self.taken:
            return None
        size = self.batch_size.size
        # A connection that was closed has to be registered with the poller first.
        if size > 1 and len(self.taken) <= size // 2 and self._polled.socket is not None:
            if self.state is State.REPEAT:
                self._send_requests()
            elif self.state is State.READY and (shares := self._shares()):
                self._send_requests(shares)
        return self.taken.popleft()

    @property
    def has_nothing_to_send(self) -> bool:
        """Whether no reply is awaited and no command is to be sent."""
        if self.state is not State.READY or self._prefetch.asks_singly:
            return False
        if self._prefetch.waiting:
            return False
        return bool(self.leased_queues) and not self._is_worth_it(self._credit())

    @property
    def is_elsewhere(self) -> bool:
        """Whether the caller is another thread or greenlet than the one that polls."""
        return self._thread != get_ident()

    @property
    def fetched(self) -> int:
        """Number of requested and leased messages that are not handed out."""
        requested = sum([each.share.limit for each in self._requests]) if self._requests else 0
        return len(self.taken) + requested

    def _credit(self) -> int:
        # Without a limit: a batch for a worker, one message for any other consumer.
        return self._prefetch.credit(self.batch_size.size if self.serves_worker else 1)

    def _is_worth_it(self, credit: int) -> bool:
        """Return whether to send requests now: not for each message while the pool is busy.

        Without a prefetch limit each credit is worth a request.
        """
        if credit <= 0:
            return False
        # When half of the limit is free: meanwhile tasks of the other half run.
        enough = credit >= self._prefetch.half
        return enough or not (self.taken or (self.serves_worker and worker.backlog()))

    def _shares(self) -> list[Share] | None:
        """Return the requests to send: none while all queues are empty; None: not now."""
        if not self.leased_queues:
            return []
        credit = self._credit()
        if not self._is_worth_it(credit):
            return None
        leased, _ = self._queues_in_turn()
        if not leased:
            return []
        if not self.keeper.may_request():
            return None
        fair = not isinstance(self._cycle, priority_cycle)
        if self._prefetch.waiting:
            self._prefetch.keep_waiting(self, self._fair_share.in_turn(leased, fair=fair))
        credit = self._prefetch.part_of(credit, has_more=self._fair_share.has_more(leased))
        return self._fair_share.deal(
            leased,
            min(credit, self.batch_size.size),
            len(self._store.layout.steps),
            fair=fair,
        )

    def _send_requests(self, shares: Sequence[Share] = ()) -> None:
        """Send requests for *shares*; without shares, repeat the last requests."""
        keeper = self.keeper
        if shares:
            self._requests = [Request(s, keeper.new_request_number(s.queue)) for s in shares]
            self.state = State.REPEAT
        self._put_back_acks()
        self._riding_acks = keeper.acks.take(rides=True)
        calls = self._calls()
        looks, looked = self._looks()
        self._send(State.REQUESTED, self._packed(calls) + looks, len(calls) + looked)

    def _calls(self) -> list[Call]:
        """Return the calls for acknowledgements and requests."""
        keeper, leases = self.keeper, self._store.leases
        me, lease, others = keeper.worker_id, keeper.lease, keeper.leases_beside
        # Acknowledgements first: they may make room for a quarantined message.
        calls = keeper.acks.calls(self._store, self._riding_acks)
        free_slots = 0
        if self.idle.limited_queues:
            free_slots = self._prefetch.free_slots(
                sum([each.share.limit for each in self._requests])
            )
        each, more = divmod(free_slots, len(self._requests))
        calls += [
            leases.acquire_call(
                share.queue,
                me,
                lease,
                number,
                share.limit,
                share.lists,
                others=others,
                reports=self.serves_worker,
                scarce=each + (place < more),
                has_limits=share.queue in self.idle.limited_queues,
            )
            for place, (share, number) in enumerate(self._requests)
        ]
        return calls

    @property
    def scarce(self) -> int:
        """Number of leased messages with a scarce permit of a limit."""
        keeper = getattr(self, "keeper", None)
        return 0 if keeper is None else keeper.scarce

    def _packed(self, calls: Sequence[Call]) -> bytes:
        """Return calls packed, with their sources if the server may not have them."""
        sock = self._polled.socket
        source = sock is None or sock is not self._scripts_socket
        self._scripts_socket = sock
        return b"".join([call.packed(source=source) for call in calls])

    def _looks(self) -> tuple[bytes, int]:
        """Return the packed commands that find other queues with messages, and their number."""
        leased, popped = self._queues_in_turn()
        look = self._filled_call = FilledQueuesCall()
        lanes = bool(self.idle.limited_queues)
        for queue in self._fair_share.find_empty(leased):
            look.add(queue, *self.idle.wake_lists(queue, lanes=lanes))
        if len(leased) > 1:
            for queue, lists in self._fair_share.find_less_urgent(leased):
                look.add(queue, *self.idle.ready_lists(queue)[:lists])
        looks = look.packed()
        self._looked_lists = self._ready_lists(popped)
        if self._looked_lists:
            looks += pack([("EXISTS", *self._looked_lists)])
        return looks, bool(look.lists) + bool(self._looked_lists)

    def _pop(self) -> None:
        """Pop a message of a queue that is not leased, if there is still one."""
        self.state = State.READY
        _, popped = self._queues_in_turn()
        if lists := self._ready_lists(popped):
            self._send(State.BLOCKED, pack([("BRPOP", *lists, POP_SECONDS)]))

    def _wait(self) -> None:
        """Look at the ready lists, or wait for a wake-up."""
        leased, popped = self._queues_in_turn()
        lists = self._ready_lists(popped)
        if look := self.idle.look(leased):
            self._filled_call = look
            self._send(State.LOOKING, look.packed())
        elif wait := self.idle.wait(leased, lists, briefly=bool(self._refused)):
            self._send(State.BLOCKED, wait)

    def _queues_in_turn(self) -> tuple[list[str], list[str]]:
        """Return the queues to lease from and those to pop from, the queue in turn first.

        Queues that Redis has just refused are left out.
        """
        now = time.monotonic()
        self._refused = {queue: until for queue, until in self._refused.items() if until > now}
        leased, popped = list[str](), list[str]()
        for queue in self._cycle.consume(len(self._cycle.items)):
            if queue not in self._refused:
                (leased if queue in self.leased_queues else popped).append(queue)
        return leased, popped

    def _ready_lists(self, queues: Sequence[str]) -> list[str]:
        """Return the ready lists of queues, the most urgent first."""
        ready, layout = self._store.keys.ready, self._store.layout
        return [ready(queue, step, layout) for step in layout.steps for queue in queues]

    def _send(self, state: State, commands: bytes, number: int = 1) -> None:
        self._wire.send(commands, number)
        self.state = state
        self.sent_at = time.monotonic()

    # -- reading

    @property
    def awaited_connection(self) -> Any:
        """The connection on which a reply is awaited; None if no reply is."""
        state = self.state
        if state is State.REQUESTED or state is State.BLOCKED or state is State.LOOKING:
            return self._polled.connection
        return None

    def read(self) -> Popped | None:
        """Read replies into :attr:`taken`; return a message that was popped.

        Raises
        ------
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError
            The connection is lost, or its server is no longer a master.
        """
        state = self.state
        try:
            if state is State.REQUESTED:
                self._read_requests()
                return None
            self.state = State.READY
            if state is State.BLOCKED:
                return self._read_popped()
            if reply := self._wire.read():
                self._fair_share.forget(self._filled_call.found(reply))
            return None
        except ResponseError as exc:
            logger.error("waiting for messages failed: retry_s=%g: %s", REFUSED_QUEUE_SECONDS, exc)
            self._refused = dict.fromkeys(self.queues, time.monotonic() + REFUSED_QUEUE_SECONDS)
            self._abandon_requests()
            return None

    def drop_connection(self) -> None:
        """Close a lost connection; requests without a reply are sent again."""
        # First the state: kombu notes the closed connection and calls this again.
        if self.state is State.REQUESTED:
            self.state = State.REPEAT
        elif self.state is State.LOOKING or self.state is State.BLOCKED:
            self.state = State.READY
        self._put_back_acks()
        self._wire.drop()

    def _read(self) -> Any:
        """Return the next reply, which may be an error."""
        try:
            return self._wire.read()
        except ResponseError as exc:
            if isinstance(exc, NoScriptError):
                self._scripts_socket = None
            return exc

    def _read_requests(self) -> None:
        """Read the replies to all requests, and to the commands sent with them."""
        self.state = State.REPEAT  # until all replies have come and been handled
        acked = [self._read() for _ in self._riding_acks.fields]
        replies = [self._read() for _ in self._requests]
        for (_, request_number), reply in zip(self._requests, replies, strict=True):
            if not (
                isinstance(reply, ResponseError) or AcquireReply.answers(reply, request_number)
            ):
                raise ConnectionError("out of step: the reply to another request has come")
        if self._filled_call.lists:
            self._fair_share.forget(self._filled_call.found(self._read()))
        may_pop = self._read() if self._looked_lists else 0
        self._acknowledged(acked)
        # Before messages are handed out: pauses and revokes must be known.
        known = [reply for reply in replies if not isinstance(reply, ResponseError)]
        self._update_controls({*map(AcquireReply.revision_in, known)})
        requests, self._requests = self._requests, []
        messages_by_queue = []
        for request, reply in zip(requests, replies, strict=True):
            queue = request.share.queue
            if isinstance(reply, NoScriptError):
                self._requests.append(request)
            elif isinstance(reply, ResponseError):
                logger.error(
                    "fetching failed: queue=%s retry_s=%g: %s", queue, REFUSED_QUEUE_SECONDS, reply
                )
                self.keeper.abandon_request(queue, request.request_number)
                self._refused[queue] = time.monotonic() + REFUSED_QUEUE_SECONDS
            else:
                messages_by_queue.append(
                    self._note_leased(queue, request.request_number, AcquireReply.read(reply))
                )
                # A queue whose messages were all cancelled has had its turn too.
                self._cycle.rotate(queue)
        for taken in chain.from_iterable(zip_longest(*messages_by_queue)):
            if taken is not None:
                (self.taken if taken.queue in self.queues else self._cancelled).append(taken)
                self._cycle.rotate(taken.queue)
        if not self._requests:
            self.state = State.POP if may_pop else State.READY

    def _put_back_acks(self) -> None:
        """Have acknowledgements without a reply sent again."""
        if self._riding_acks:
            self.keeper.acks.put_back(self._riding_acks)
            self._riding_acks = AckBatch({})

    def _acknowledged(self, replies: list[Any]) -> None:
        """Handle the replies to acknowledgements; some may be errors."""
        errors = [reply for reply in replies if isinstance(reply, ResponseError)]
        if not errors and self._riding_acks:
            self.keeper.acks.confirm(self._riding_acks, replies)
            self._riding_acks = AckBatch({})
        if errors and not isinstance(errors[0], NoScriptError):
            logger.error("Redis refused acknowledgements, which are sent again: %s", errors[0])
        self._put_back_acks()

    def _update_controls(self, revisions: Set[int]) -> None:
        """Read pauses and revokes again if their revision in a reply is another one."""
        # Also a lower revision: a server that has taken over may lack some.
        if revisions - {self.controls.revision}:
            expires = self._settings.revoke_expires
            self.controls.learn(self._store, for_worker=self.serves_worker, expires=expires)
            if self.serves_worker:
                refuse_reserved()

    def _note_leased(self, queue: str, request_number: str, reply: AcquireReply) -> list[Taken]:
        """Note the messages of a reply as leased, and return them."""
        self._fair_share.note_first_list(queue, reply.first_list)
        self.idle.note_limits(queue, has_limits=reply.has_limits)
        waits = reply.lanes_wait and queue in self.leased_queues
        self._prefetch.note_waiting(self, queue, waits=waits)
        if reply.messages:
            self.idle.note_messages(from_others=reply.others)
        if reply.must_make_room:
            self.keeper.make_room()
            self._fair_share.serve_alone(queue)
        fields = [field for field, _, _ in reply.messages]
        tags = self.keeper.note_leased(
            queue,
            request_number,
            fields,
            alone=reply.alone,
            permits=reply.permits,
            scarce=reply.scarce,
        )
        return [
            Taken(queue, tag, message, deliveries, *reply.about(field))
            for tag, (field, message, deliveries) in zip(tags, reply.messages, strict=True)
        ]

    def _read_popped(self) -> Popped | None:
        """Read a wake-up, or a message of a queue that is not leased."""
        reply = self._wire.read()
        if not reply:
            return None
        key = reply[0].decode()
        woken = self.idle.queue_of(key)
        if woken is not None:
            self._fair_share.forget([woken])
            return None
        queue = key[len(self._store.keys.prefix) :].rsplit(self._store.layout.sep, 1)[0]
        self._cycle.rotate(queue)
        return Popped(queue, reply[1])

    # -- one message, and the end

    def get(self, queue: str, keeper: LeaseKeeper) -> Taken | None:
        """Lease one message of a queue and wait for the reply; None if the queue is empty."""
        self.keeper = keeper
        while True:
            others = keeper.busy
            request_number = keeper.new_request_number(queue)
            reply = self._store.leases.acquire(
                queue,
                keeper.worker_id,
                keeper.lease,
                request_number,
                1,
                others,
                has_limits=queue in self.idle.limited_queues,
                reports=self.serves_worker,
            )
            if self.serves_worker:
                self._update_controls({reply.revision})
            taken = self._note_leased(queue, request_number, reply)
            if taken:
                return taken[0]
            if reply.must_make_room or reply.lanes_wait or not reply.first_list:
                return None
            # A later request, of another thread, has overtaken this one.

    def take_all(self) -> list[Taken]:
        """Return the fetched messages, and forget them."""
        taken = list(self.taken)
        self.taken.clear()
        return taken

    def abandon(self) -> None:
        """Close the connection and forget the requests without a reply.

        The lease keeper requeues the messages that these requests may have leased.
        """
        self.drop_connection()
        self._abandon_requests()
        self._prefetch.keep_waiting(self, ())

    def _abandon_requests(self) -> None:
        for request in self._requests:
            self.keeper.abandon_request(request.share.queue, request.request_number)
        self._requests = []
        if self.state is State.REPEAT:
            self.state = State.READY

    def close(self, *, wait: bool) -> list[Taken]:
        """Return the fetched messages; with *wait* also those that come within a second.

        Requests without a reply are abandoned.
        """
        if self.state is State.CLOSED:
            return []
        if wait:
            self._read_last()
        self.abandon()
        self.state = State.CLOSED
        self._prefetch.remove(self)
        cancelled, self._cancelled = self._cancelled, []
        return cancelled + self.take_all()

    def _read_last(self) -> None:
        """Read the awaited replies to requests, if they come within a second."""
        try:
            if self.state is State.REQUESTED and self._polled.can_read(LAST_REPLY_SECONDS):
                self._read_requests()
        except (RedisError, OSError):
            self.drop_connection()

"""The base of the state machine: processes that lease, crash and repeat, and dispatchers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from celery_delayq.model.envelope import Due, Entry, Record, task_field
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.leases import AcquireReply
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import FAR, QUEUE, Bench
from tests.support.lease_time import go_unwatched, pass_time
from tests.support.leases import ack, replace
from tests.support.model_queue import QueueModel
from tests.support.model_tracking import Label, about

LAYOUT = Layout(steps=(0, 3, 9))
LEASE = 600

#: Redis stores a hash with values of this length as a table.
LONG = 120

#: A task that can be late may start this long after its due (ms). A due in 1970 is later.
SKIP = 10**9

steps = st.sampled_from(LAYOUT.steps)
limits = st.sampled_from([1, 2, 3, 3, 10])
#: A few ids, so that the same id is sent twice.
ids = st.sampled_from(["a", "b", "c ä%"])
begins = st.sampled_from([b"{", b"!\n", b"\n", b"3!\n", b"\xff\x00"])
max_deliveries = st.sampled_from([1, 1, 2, 2, 3, 0])
#: Details of a dead letter. Scripts do not read them.
details = st.sampled_from([b"", b'{"retries": 3}', b"3 4\n"])


class LeaseMachine(RuleBasedStateMachine):
    """Redis and the model; both get the same calls."""

    redis: RedisUnderTest

    def __init__(self) -> None:
        super().__init__()
        self.client = self.redis.client
        self.client.flushall()
        self.store = Bench(self.client, Keys(), LAYOUT)
        self.model = QueueModel(name=QUEUE, layout=LAYOUT)
        self.number = 0
        self.live: list[str] = ["w0", "w1"]
        #: The fields that each live process has received, also those that were taken from it since.
        self.fields_of: dict[str, list[str]] = {"w0": [], "w1": []}
        #: By process: number and limit of a request whose reply was lost.
        self.lost_replies: dict[str, tuple[str, int]] = {}
        #: All sent requests: process, number and limit.
        self.sent_requests: list[tuple[str, str, int]] = []
        #: Requests that returned messages: process and number.
        self.used: set[tuple[str, str]] = set()
        #: Process, field and entry.
        self.last_retry: tuple[str, str, Entry] | None = None
        #: Message ids of cancelled messages.
        self.cancelled: set[str] = set()
        #: Whether a consumer has popped the marker since a script set it.
        self.popped = False
        #: Whether the marker was deleted because the queue is or was paused.
        self.was_paused = False
        self.store.next_queue()

    def next(self) -> int:
        self.number += 1
        return self.number

    def new_message(self, begin: bytes = b"{") -> bytes:
        return (b"%b message %d " % (begin, self.next())).ljust(LONG, b".")

    def new_entry(
        self,
        id: str,
        due: int,
        step: int,
        *,
        task: str = "tasks.t",
        unique: str = "-",
        skip: int = 0,
        policy: str = "",
        labelled: bool = True,
        message_id: str = "",
    ) -> Entry:
        message_id, message = message_id or f"n{self.next()}", self.new_message()
        if labelled:
            label = f"{quote(id)} {message_id} {skip} {unique}".encode()
            own = b'"label": "%b", "task": "%b"' % (label, task_field(task).encode())
            message = b'{"properties": {"delayq": {%b' % own + message
        data = Record(step, message_id, task, message).pack()
        if labelled and step == 0 and self.number % 2:
            data = message  # like a large message; scripts ignore its length
        return Entry(id, Due(due), step, data, policy)

    def some_fields(self, data: st.DataObject, who: str) -> list[str]:
        """Draw some fields that a process has received, in the order in which it received them."""
        fields = self.fields_of[who]
        places = data.draw(st.sets(st.integers(0, len(fields) - 1), min_size=1, max_size=4))
        return [fields[place] for place in sorted(places)]

    def forget(self, who: str, fields: list[str], data: st.DataObject) -> None:
        """Let the process forget fields, some of them only after a repeated call."""
        if data.draw(st.booleans()):
            self.fields_of[who] = [name for name in self.fields_of[who] if name not in fields]

    def who_holds(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([who for who in self.live if self.fields_of[who]]))

    def any_holds(self) -> bool:
        return any(self.fields_of[who] for who in self.live)

    # -- producers

    @initialize(data=st.data())
    def several_messages_are_ready(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(0, 5))):
            self.publish_ready(data.draw(steps), data.draw(begins))

    @rule(step=steps, begin=begins)
    def publish_ready(self, step: int, begin: bytes) -> None:
        message = self.new_message(begin)
        self.model.push(step, message)
        self.store.push(message, step=step)

    @rule(step=steps)
    def a_stock_producer_sends_one(self, step: int) -> None:
        message = self.new_message()
        self.model.stock_sends(step, message)
        self.client.lpush(self.store.keys.ready(QUEUE, step, LAYOUT), message)
        self.popped = True

    # -- dispatchers

    @precondition(lambda self: self.model.scheduled)
    @rule(data=st.data(), due=st.integers(1, 9))
    def an_entry_becomes_due(self, data: st.DataObject, due: int) -> None:
        self.make_due(data.draw(st.sampled_from(sorted(self.model.scheduled))), due)

    def make_due(self, name: str, due: int) -> None:
        self.store.become_due(name, due)
        self.model.becomes_due(name, due)

    @rule(limit=limits)
    def promote(self, limit: int) -> None:
        promoted = self.store.promote(QUEUE, LAYOUT, limit)

        assert (promoted.moved, promoted.dead_lettered) == self.model.promote(limit)
        self.next_due_is(promoted.look.due)

    def next_due_is(self, due: int | None) -> None:
        next_due = self.model.next_due
        assert (due and about(due)) == (next_due and about(next_due))

    @rule(away=st.none() | st.integers(-30, 30))
    def look(self, away: int | None) -> None:
        """Look at the next-due index, perhaps after hours without a look or a set clock."""
        if away:
            go_unwatched(self.client, away * 3600)
            if away < 0:
                self.model.clock_is_set_back()
        look = self.store.next_queue(LEASE)

        self.next_due_is(look.due)
        ended = self.model.lease_ends is not None and self.model.lease_ends <= self.model.now
        assert look.reclaim_expired == ((QUEUE,) if ended else ())

    @rule(minutes=st.sampled_from([4, 11, 11]))
    def lease_time_passes(self, minutes: int) -> None:
        pass_time(self.client, minutes * 60)
        self.model.now += minutes * 60

    @precondition(lambda self: self.model.ends)
    @rule(data=st.data(), limit=st.integers(1, 4), max_deliveries=max_deliveries)
    def reclaim_any(self, data: st.DataObject, limit: int, max_deliveries: int) -> None:
        self.reclaim_expired(
            data.draw(st.sampled_from(sorted(self.model.ends))), limit, max_deliveries
        )

    @precondition(lambda self: self.model.ends)
    @rule(limit=st.integers(1, 4), max_deliveries=max_deliveries, times=st.integers(1, 4))
    def reclaim_those_that_ended_first(self, limit: int, max_deliveries: int, times: int) -> None:
        more = True
        while more and times:
            who, found = self.model.first_ended_lease(), self.store.leases.first_ended_lease(QUEUE)
            assert who is not None
            assert found is not None
            # If several leases end together, the reply may name any; chance must not decide.
            assert self.model.ends[found] == self.model.ends[who]
            more = self.reclaim_expired(who, limit, max_deliveries)
            times -= 1

    def reclaim_expired(self, who: str, limit: int, max_deliveries: int) -> bool:
        before = self.store.leases.leased_fields(QUEUE, who)
        reclaimed = self.store.leases.reclaim_expired(QUEUE, LAYOUT, who, limit, max_deliveries)
        taken = before - self.store.leases.leased_fields(QUEUE, who)
        held = sorted(before, key=lambda field: [int(part) for part in field.split(":")])
        assert taken == set(held[-limit:] if self.model.ended(who) else ())
        assert reclaimed == self.model.reclaim_expired(who, taken, max_deliveries)
        return reclaimed.more

    # -- consumers

    @precondition(lambda self: len(self.live) < 3)
    @rule()
    def a_process_starts(self) -> None:
        who = f"v{self.next()}"
        self.live.append(who)
        self.fields_of[who] = []

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        reclaimed=st.booleans(),
        limit=st.integers(1, 4),
        max_deliveries=max_deliveries,
    )
    def a_process_crashes(
        self, data: st.DataObject, reclaimed: bool, limit: int, max_deliveries: int
    ) -> None:
        who = data.draw(st.sampled_from(self.live))
        self.live.remove(who)
        self.lost_replies.pop(who, None)
        if reclaimed:
            self.lease_time_passes(11)
            while who in self.model.ends:
                self.reclaim_expired(who, limit, max_deliveries)
            self.a_process_starts()

    @rule()
    def a_consumer_pops_the_marker(self) -> None:
        assert (self.client.rpop(self.store.keys.queue(QUEUE).wake) == b"") == self.model.marker
        self.model.marker = False
        self.popped = True

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        limit=limits,
        lists=st.sampled_from([1, 2, 3, 3, 3]),
        others=st.sampled_from([0, 0, 0, 2]),
        lost=st.booleans(),
    )
    def acquire(self, data: st.DataObject, limit: int, lists: int, others: int, lost: bool) -> None:
        who = data.draw(st.sampled_from(self.live))
        if who in self.lost_replies:  # the process repeats lost requests first
            self.ask_again(who, lists, others)
            return
        request_number = str(self.next())
        self.sent_requests.append((who, request_number, limit))
        acquired = self.ask(who, request_number, limit, lists, others)
        if lost:
            self.lost_replies[who] = request_number, limit
        else:
            self.note_received(who, acquired)

    @precondition(lambda self: self.lost_replies)
    @rule(data=st.data(), lists=st.integers(1, 3), others=st.sampled_from([0, 2]))
    def lease_again(self, data: st.DataObject, lists: int, others: int) -> None:
        self.ask_again(data.draw(st.sampled_from(sorted(self.lost_replies))), lists, others)

    def ask_again(self, who: str, lists: int, others: int) -> None:
        request_number, limit = self.lost_replies.pop(who)
        self.note_received(who, self.ask(who, request_number, limit, lists, others))

    @precondition(lambda self: self.sent_requests)
    @rule(data=st.data(), lists=st.integers(1, 3), others=st.sampled_from([0, 2]))
    def a_request_arrives_once_more(self, data: st.DataObject, lists: int, others: int) -> None:
        """The request came over a closed connection; nobody reads the reply."""
        who, request_number, limit = data.draw(st.sampled_from(self.sent_requests))
        known = int(request_number) <= self.model.request_numbers.get(who, 0)
        unanswered = who not in self.live or self.lost_replies.get(who) == (request_number, limit)
        # When no message of a process is left, the request numbers that it has used are forgotten.
        # A request never comes so late that it meets its own repeat: that would use fields again.
        if known or (unanswered and (who, request_number) not in self.used):
            self.ask(who, request_number, limit, lists, others)

    @precondition(lambda self: self.lost_replies)
    @rule(data=st.data())
    def give_back_what_a_lost_reply_may_have_told(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.lost_replies)))
        request_number, _ = self.lost_replies.pop(who)
        self.give_back(who, request_number)

    def give_back(self, who: str, request_number: str) -> None:
        there = self.store.leases.leased_fields(QUEUE, who)
        fields = sorted(name for name in there if self.is_of(name, request_number))
        self.put_back(who, fields)

    def is_of(self, name: str, request_number: str) -> bool:
        return name.partition(":")[0] == request_number

    def ask(
        self, who: str, request_number: str, limit: int, lists: int, others: int
    ) -> AcquireReply:
        # Some processes are workers, others only consume.
        reports = who[-1] in "13579"
        acquired = self.store.acquire(
            request_number, limit, who=who, lists=lists, others=others, reports=reports
        )
        marks = {field: mark._replace(late_ms=0) for field, mark in acquired.marks.items()}
        expected = acquired._replace(marks=marks)
        assert expected == self.model.acquire(
            who, LEASE, request_number, limit, lists, others, reports=reports
        )
        labels = [
            Label.of(message)
            for field, message, _ in acquired.messages
            if field not in acquired.marks
        ]
        assert not self.cancelled & {label.message_id for label in labels if label}
        if acquired.messages:
            self.used.add((who, request_number))
        return acquired

    def note_received(self, who: str, acquired: AcquireReply) -> None:
        self.fields_of[who] += [field for field, _, _ in acquired.messages]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(self.live))
        assert self.store.leases.extend(QUEUE, who, LEASE) == self.model.extend(who, LEASE)

    @precondition(any_holds)
    @rule(data=st.data(), foreign=st.lists(st.sampled_from(["1:9", "999:1", "x"]), max_size=2))
    def ack(self, data: st.DataObject, foreign: list[str]) -> None:
        who = self.who_holds(data)
        fields = self.some_fields(data, who) + foreign
        self.forget(who, fields, data)
        assert ack(self.store, QUEUE, who, fields) == self.model.ack(who, fields)

    @precondition(any_holds)
    @rule(
        data=st.data(),
        last=st.booleans(),
        counted=st.sampled_from(["nothing", "requeued", "crashed", "died"]),
        max_deliveries=max_deliveries,
    )
    def requeue(self, data: st.DataObject, last: bool, counted: Any, max_deliveries: int) -> None:
        who = self.who_holds(data)
        fields = self.some_fields(data, who)
        self.forget(who, fields, data)
        self.put_back(who, fields, last=last, counted=counted, max_deliveries=max_deliveries)

    def put_back(
        self,
        who: str,
        fields: list[str],
        *,
        last: bool = False,
        counted: Any = "nothing",
        max_deliveries: int = 0,
    ) -> None:
        how = {"last": last, "counted": counted, "max_deliveries": max_deliveries}
        found = self.store.leases.requeue(QUEUE, who, fields, **how)
        assert found == self.model.requeue(who, fields, **how)

    @precondition(any_holds)
    @rule(data=st.data(), id=ids, details=details)
    def reject(self, data: st.DataObject, id: str, details: bytes) -> None:
        who = self.who_holds(data)
        name = data.draw(st.sampled_from(self.fields_of[who]))
        self.forget(who, [name], data)
        expected = self.model.reject(who, name, id, "rejected", details)
        assert self.store.leases.dead_letter(QUEUE, who, name, id, "rejected", details) == expected

    @precondition(any_holds)
    @rule(
        data=st.data(),
        step=steps,
        id=ids,
        due=st.just(1) | st.integers(FAR, FAR + 9),
        when_due=st.sampled_from(["push", "leave"]),
        labelled=st.booleans(),
    )
    def retry(
        self, data: st.DataObject, step: int, id: str, due: int, when_due: Any, labelled: bool
    ) -> None:
        who = self.who_holds(data)
        name = data.draw(st.sampled_from(self.fields_of[who]))
        self.replace_held(who, name, self.new_entry(id, due, step, labelled=labelled), when_due)

    def replace_held(self, who: str, name: str, what: Entry, when_due: Any) -> None:
        record = Record.unpack(what.data)
        expected = self.model.retry(
            who, name, what.id, what.due.ms, record, what.policy[:1], when_due=when_due
        )
        assert self.send_retry(who, name, what, when_due) == expected
        if expected in ("scheduled", "ready", "superseded"):
            self.last_retry = who, name, what

    @precondition(lambda self: self.last_retry)
    @rule(when_due=st.sampled_from(["push", "leave", "keep"]))
    def retry_again(self, when_due: Any) -> None:
        assert self.last_retry is not None
        who, name, what = self.last_retry
        there = name in self.model.leased.get(who, {})
        assert self.send_retry(who, name, what, when_due) == ("duplicate" if there else "gone")

    def send_retry(self, who: str, name: str, what: Entry, when_due: Any) -> str:
        return replace(self.store, QUEUE, what, QUEUE, who, name, when_due=when_due)

    @precondition(lambda self: self.model.turn)
    @rule()
    def the_turn_to_take_a_quarantined_expires(self) -> None:
        self.client.delete(self.store.keys.queue(QUEUE).quarantine_turn)
        self.model.turn = None

"""The state machine of limits: two queues, three lanes, and limits that come, change and go.

A rate has an interval that does not pass in a test. The machine does not say which message is next.
It reads all keys after each step, and checks what limits promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Due, Entry, Record, task_field
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, Swap
from celery_delayq.store.dead_letters import Replay, digest_of, read_codes
from celery_delayq.store.keys import Keys
from celery_delayq.store.leases import AcquireReply
from celery_delayq.store.periodic import EntryTicks, EntryWrite, fired
from celery_delayq.store.repair import StockMessage
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.replies import EntriesReply, Unacked
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import DEFAULT, FAR, LEASE, Bench, labelled, member, message_of
from tests.support.lease_time import go_unwatched, pass_time
from tests.support.leases import ack, replace
from tests.support.model_tracking import Label, label_of

HOUR_US = 3_600_000_000
QUEUES = ("q", "p")
LANES = ("api:a", "api:b", "one:")
LIMITS = ("api", "one")
TASKS = ("tasks.t", "tasks.u")

queues = st.sampled_from(QUEUES)
limit_names = st.sampled_from(LIMITS)
definitions = st.tuples(
    st.sampled_from([0, 0, HOUR_US]), st.integers(1, 3), st.integers(0, 3), st.booleans()
)
#: Ids: a few are sent several times.
SHARED_IDS = ("same", "c ä%")


class Sent(NamedTuple):
    """A message that was published."""

    id: str
    message_id: str
    lane: str
    expires: int
    skip: int
    task: str


class Limit(NamedTuple):
    """A definition of a limit."""

    interval: int
    burst: int
    concurrency: int
    fair: bool


class Place(NamedTuple):
    """Where a message is: its state, its queue, and of a leased message the process."""

    state: str
    queue: str
    who: str = ""


class NotingBench(Bench):
    """A store that notes the names of the scripts that it calls, without variants."""

    called: set[str]

    def run(self, call: Call) -> Any:
        """Make a call."""
        self.called.add(call.name.partition("+")[0])
        return super().run(call)


class LimitMachine(RuleBasedStateMachine):
    """Redis, and what is known of the messages and limits."""

    redis: RedisUnderTest
    #: The scripts that the rules have called.
    called: ClassVar[set[str]]

    def __init__(self) -> None:
        super().__init__()
        self.client = self.redis.client
        self.client.flushall()
        self.store = NotingBench(self.client, Keys(), DEFAULT)
        self.store.called = self.called
        self.store.next_queue()
        self.number = 0
        self.sent: dict[str, Sent] = {}
        self.limits: dict[tuple[str, str], Limit] = {}
        #: Messages by their places after the last step.
        self.places: dict[str, Place] = {}
        #: Messages that may leave all places, or have left them.
        self.may_go: set[str] = set()
        #: The messages that have a permit.
        self.permits: set[str] = set()
        #: Used slots of each lane, at most its burst.
        self.used: Counter[str] = Counter()
        #: Queues whose sign for lanes is lost, until the fleet looks at all queues.
        self.signless: set[str] = set()

    def next(self) -> int:
        self.number += 1
        return self.number

    # -- what Redis has

    def found_places(self) -> dict[str, Place]:
        """Return the place of each message; a message has one."""
        found: list[tuple[str, Place]] = []

        def note(message: bytes, place: Place) -> None:
            label = label_of(message)
            found.append((label.message_id, place))

        for queue in QUEUES:
            key = self.store.keys.queue(queue)
            for name in self.store.keys.ready_lists(queue, DEFAULT):
                for message in self.client.lrange(name, 0, -1):
                    note(message, Place("ready", queue))
            for data in self.client.hvals(key.entries):
                note(Record.unpack(data).message, Place("scheduled", queue))
            for item in self.client.lrange(key.quarantined, 0, -1):
                note(item.partition(b"\n")[2], Place("quarantined", queue))
            for who in self.processes(queue):
                for value in self.client.hvals(key.leased(who)):
                    if value:
                        note(split_leased(value)[1], Place("leased", queue, who))
            for each in self.store.dead_letters.all(queue):
                note(each.message, Place("dead", queue))
        counted = Counter(message_id for message_id, _ in found)
        assert max(counted.values(), default=1) == 1, counted.most_common(3)
        return dict(found)

    def processes(self, queue: str) -> list[str]:
        return sorted(who.decode() for who in self.client.zrange(f"{{{queue}}}:leases", 0, -1))

    def fields(self) -> list[tuple[str, str, str, str]]:
        """Return queue, process, field and message id of all leased messages, in a fixed order."""
        found = []
        for queue in QUEUES:
            for who in self.processes(queue):
                values = self.client.hgetall(self.store.keys.queue(queue).leased(who))
                for field, value in sorted(values.items()):
                    label = Label.of(split_leased(value)[1]) if value else None
                    found.append((queue, who, field.decode(), label.message_id if label else ""))
        return found

    def limit(self, lane: str) -> Limit | None:
        """Return the definition that counts; what people have set wins."""
        name = lane.partition(":")[0]
        return self.limits.get(("o", name)) or self.limits.get(("c", name))

    def held(self, queue: str, lane: str) -> list[bytes]:
        """Return the members of a lane."""
        return [*self.client.zrangebylex(f"{{{queue}}}:held", f"[{lane}\0", f"({lane}\1")]

    def is_blocked(self, lane: str) -> bool:
        """Return whether a limit allows no message of a lane now."""
        limit = self.limit(lane)
        if limit is None:
            return False
        taken = sum(1 for each in self.permits if self.sent[each].lane == lane)
        if limit.concurrency and taken >= limit.concurrency:
            return True
        used = self.client.zscore("delayq:slots", lane) or 0
        ahead = used - self.store.now_ms() * 1000 - (limit.burst - 1) * limit.interval
        return limit.interval > 0 and ahead > 60_000_000

    def paused(self, queue: str, task: str = "") -> bool:
        field = f"t{task_field(task)}" if task else f"q{queue}"
        return bool(self.client.hexists("delayq:control", field))

    # -- producers

    def new(
        self, data: st.DataObject, due: int, *, id: str = "", lane: str | None = None
    ) -> tuple[Entry, Sent]:
        id = id or data.draw(st.sampled_from(("", "", *SHARED_IDS))) or f"m{self.next()}"
        if lane is None:
            lane = data.draw(st.sampled_from(("", *LANES, *LANES)))
        sent = Sent(
            id,
            f"n{self.next()}",
            lane,
            data.draw(st.sampled_from((0, 0, 0, 1, FAR))),
            data.draw(st.sampled_from((0, 0, 0, 10**9))),
            data.draw(st.sampled_from(TASKS)),
        )
        unique = data.draw(st.sampled_from(("-", "-", "-", "sk", "dk")))
        made = labelled(
            id,
            due,
            message_id=sent.message_id,
            lane=lane,
            expires=sent.expires,
            skip_after=sent.skip,
            task=sent.task,
            priority=data.draw(st.sampled_from((0, 0, 3, 9))),
            unique=unique,
            policy="" if unique == "-" else f"{data.draw(st.sampled_from('rlke'))} 0 0",
        )
        return made, sent

    def key_owners(self, *made: Entry) -> set[str]:
        """Return messages that a message with a unique key may replace."""
        if all(each.policy == "" for each in made):
            return set()
        return {*self.places} | {Record.unpack(each.data).message_id for each in made}

    @initialize(data=st.data())
    def some_limits_are_defined(self, data: st.DataObject) -> None:
        for name in LIMITS:
            self.define(name, "c", data.draw(st.none() | definitions))

    @initialize(data=st.data())
    def some_are_leased(self, data: st.DataObject) -> None:
        for queue in QUEUES:
            some = [self.new(data, 0) for _ in range(data.draw(st.integers(1, 4)))]
            self.sent |= {sent.message_id: sent for _, sent in some}
            self.may_go |= self.key_owners(*(made for made, _ in some))
            self.store.put(*(made for made, _ in some), queue=queue)
            self.lease(queue, "w0", 3, 3, False)

    @initialize(data=st.data())
    def some_are_dead(self, data: st.DataObject) -> None:
        for queue in QUEUES:
            made, sent = self.new(data, 0)
            self.sent[sent.message_id] = sent
            self.store.dead_letters.add(queue, sent.id, "failed", message_of(made))

    @rule(data=st.data(), queue=queues, due=st.sampled_from((0, 0, 1, FAR)), imports=st.booleans())
    def publish(self, data: st.DataObject, queue: str, due: int, imports: bool) -> None:
        some = [self.new(data, due) for _ in range(data.draw(st.integers(1, 4)))]
        entries = [made for made, _ in some]
        self.sent |= {sent.message_id: sent for _, sent in some}
        self.may_go |= self.key_owners(*entries)
        if imports:
            self.store.run(self.store.import_call(queue, entries, f"t{self.next()}"))
        else:
            self.store.put(*entries, queue=queue)
        if due == 0 and data.draw(st.booleans()):
            assert all(
                put.state == "duplicate" or policy
                for put, policy in zip(
                    EntriesReply.read(self.store.run(self.put_call(queue, entries))).puts,
                    [each.policy for each in entries],
                    strict=True,
                )
            )

    def put_call(self, queue: str, entries: list[Entry]) -> Any:
        call = self.store.schedule_call(queue)
        for each in entries:
            call.add(each)
        return call

    @rule(data=st.data(), queue=queues, quarantined=st.sampled_from((False, False, True)))
    def push(self, data: st.DataObject, queue: str, quarantined: bool) -> None:
        """Older code, stock workers and operators push messages that have marks."""
        made, sent = self.new(data, 0)
        made = made._replace(policy="")
        self.sent[sent.message_id] = sent
        self.may_go |= {sent.message_id} if sent.skip else set()
        if quarantined:
            self.client.lpush(self.store.keys.queue(queue).quarantined, b"0\n" + message_of(made))
        else:
            self.store.push(message_of(made), queue=queue)

    @rule(data=st.data(), queue=queues, due=st.sampled_from((1, FAR)))
    def a_periodic_entry_fires(self, data: st.DataObject, queue: str, due: int) -> None:
        some = [self.new(data, due) for _ in range(data.draw(st.integers(1, 2)))]
        self.sent |= {sent.message_id: sent for _, sent in some}
        entries = [made for made, _ in some]
        self.may_go |= self.key_owners(*entries)
        periodic, keys = self.store.periodic, self.store.keys
        periodic.write([EntryWrite("tick", "", "old\n{}", 5)])
        ticks = EntryTicks("tick", "old", "new", 70, "old", 60, entries)
        [codes] = fired(self.store.run(periodic.fire_call(queue, [ticks])))
        assert len(codes) == len(entries)
        self.client.delete(keys.periodic, keys.periodic_at, keys.ticks)

    # -- stock workers, and moves from and to stock

    @rule(queue=queues)
    def a_stock_worker_takes_one(self, queue: str) -> None:
        for name in self.store.keys.ready_lists(queue, DEFAULT):
            if message := self.client.rpop(name):
                label = label_of(message)
                self.may_go.add(label.message_id)
                return

    @rule(data=st.data(), queue=queues, due=st.sampled_from((1, FAR)))
    def take_from_unacked(self, data: st.DataObject, queue: str, due: int) -> None:
        made, sent = self.new(data, due)
        self.sent[sent.message_id] = sent
        self.client.hset("unacked", "tag", "[{}, '', 'q']")
        self.client.zadd("unacked_index", {"tag": 5})
        state = self.store.take_from_unacked(
            queue, made._replace(policy=""), Unacked("unacked", "unacked_index", "tag")
        )
        assert state == ("scheduled" if due == FAR else "ready")

    @rule(data=st.data(), queue=queues)
    def give_back(self, data: st.DataObject, queue: str) -> None:
        """The messages keep their marks, as those of producers that a stock worker requeues."""
        names = sorted(self.client.hkeys(self.store.keys.queue(queue).entries))
        if not names:
            return
        drawn = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        some = []
        for name, score, record in self.store.repair.scheduled(queue, [*map(bytes.decode, drawn)]):
            assert score is not None
            assert record is not None
            some.append(StockMessage(name, score, record, Record.unpack(record).message))
        assert {*self.store.repair.give_back(queue, DEFAULT, some)} == {"d"}

    @rule(queue=queues)
    def drop_cancelled(self, queue: str) -> None:
        tracking = self.store.repair_tracking
        marked = [each for each in tracking.tracked(queue, "waiting") if each.value[:1] == b"!"]
        for name in self.store.keys.ready_lists(queue, DEFAULT):
            tracking.drop_cancelled(queue, name, {each.message: each for each in marked})

    @rule(data=st.data(), queue=queues, lane=st.sampled_from(("", *LANES)))
    def update(self, data: st.DataObject, queue: str, lane: str) -> None:
        """Give an entry another lane, expiry, task or priority."""
        records = self.client.hgetall(self.store.keys.queue(queue).entries)
        if not records:
            return
        name, before = data.draw(st.sampled_from(sorted(records.items())))
        label = label_of(Record.unpack(before).message)
        expires, task = data.draw(st.sampled_from((0, 1, FAR))), data.draw(st.sampled_from(TASKS))
        sent = self.sent[label.message_id]._replace(lane=lane, expires=expires, task=task)
        how: dict[str, Any] = {"lane": lane, "expires": expires, "task": task}
        how |= {"priority": data.draw(st.sampled_from((0, 3, 9))), "unique": label.unique}
        how |= {"message_id": label.message_id, "skip_after": label.skip}
        after = labelled(label.id, **how)
        swap = Swap(name.decode(), before, after.data)
        assert self.store.control.swap(queue, [swap]) == ["d"]
        self.sent[label.message_id] = sent

    # -- limits

    @rule(
        name=limit_names,
        by=st.sampled_from("co"),
        definition=st.none() | definitions,
    )
    def define(self, name: str, by: str, definition: tuple[int, int, int, bool] | None) -> None:
        """Define, change or remove a limit, and have its lanes tried again."""
        before = [self.limit(lane) for lane in LANES]
        if definition is None:
            self.client.hdel("delayq:limits", by + name)
            self.limits.pop((by, name), None)
        else:
            limit = self.limits[by, name] = Limit(*definition)
            self.store.define_limit(
                name,
                interval_us=limit.interval,
                burst=limit.burst,
                concurrency=limit.concurrency,
                fair=limit.fair,
                by=by,
            )
        for lane, earlier in zip(LANES, before, strict=True):
            limit_now = self.limit(lane)
            if limit_now and limit_now != earlier and limit_now.interval:
                self.used[lane] = min(self.used[lane], limit_now.burst)
        for queue in QUEUES:
            self.store.run_steps(self.store.task_limits.wake_lanes_steps(queue, name))

    # -- dispatchers

    @rule(queue=queues, limit=st.sampled_from((1, 3, 100)))
    def promote(self, queue: str, limit: int) -> None:
        self.store.promote(queue, limit=limit)

    @rule(data=st.data(), queue=queues, due=st.integers(1, 9), promotes=st.booleans())
    def some_become_due(self, data: st.DataObject, queue: str, due: int, promotes: bool) -> None:
        key = self.store.keys.queue(queue)
        waiting = self.client.zrangebyscore(key.due, FAR, f"({PAUSED_OFFSET_MS}")
        if not waiting:
            return
        for name in data.draw(st.lists(st.sampled_from(sorted(waiting)), min_size=1, unique=True)):
            record = Record.unpack(self.client.hget(key.entries, name) or b"")
            text = name.decode()
            score = int(self.client.zscore(key.due, name) or 0)
            self.client.zrem(key.tasks, member(record.task, score, text))
            self.client.zadd(key.tasks, {member(record.task, due, text): 0})
            self.client.zadd(key.due, {name: due})
            self.client.zadd("delayq:next_due", {queue: due}, lt=True)
        if promotes:
            self.store.promote(queue)

    @rule(away=st.sampled_from((0, 0, 30, -30)), at_ready=st.booleans())
    def look(self, away: int, at_ready: bool) -> None:
        """Look at the next-due index, perhaps after the clock was set, and at all queues."""
        if away:
            go_unwatched(self.client, away * 3600)
        self.store.next_queue(LEASE)
        if at_ready:
            self.look_at_ready()

    # -- consumers

    @rule(
        queue=queues,
        who=st.sampled_from(("w0", "w1")),
        limit=st.sampled_from((1, 2, 5, 100)),
        limited=st.sampled_from((0, 1, 3, 100)),
        reports=st.booleans(),
        repeats=st.booleans(),
    )
    def acquire(
        self,
        queue: str,
        who: str,
        limit: int,
        limited: int,
        reports: bool,
        repeats: bool,
    ) -> None:
        self.lease(queue, who, limit, limited, reports)
        if repeats:
            self.lease(queue, who, limit, limited, reports, repeated=True)

    def lease(
        self,
        queue: str,
        who: str,
        limit: int,
        limited: int,
        reports: bool,
        *,
        repeated: bool = False,
    ) -> AcquireReply:
        before = {lane: self.held(queue, lane) for lane in LANES}
        dead = {each for each, place in self.places.items() if place.state == "dead"}
        key = self.store.keys.queue(queue)
        quarantined = self.client.llen(key.quarantined)
        number = str(self.number if repeated else self.next())
        acquired = self.store.acquire(
            number, limit, who=who, queue=queue, reports=reports, scarce=limited
        )
        if repeated:
            return acquired
        taken = Counter(self.sent[each].lane for each in self.permits)
        leased, slots = Counter[str](), Counter[str]()
        for field, message, _ in acquired.messages:
            label = label_of(message)
            sent = self.sent[label.message_id]
            rule_now = self.limit(sent.lane) if sent.lane else None
            if field in acquired.permits:
                self.permits.add(label.message_id)
                leased[sent.lane] += 1
                slots[sent.lane] += sent.expires != 1
            else:
                assert not rule_now or field in acquired.marks
        for lane, number_leased in leased.items():
            if (rule_now := self.limit(lane)) and rule_now.concurrency:
                assert taken[lane] + number_leased <= rule_now.concurrency
            if rule_now and rule_now.interval:
                assert self.used[lane] + slots[lane] <= rule_now.burst
                self.used[lane] += slots[lane]
        # The entries of a lane leave it in their order.
        for lane, members in before.items():
            left = {*self.held(queue, lane)} & {*members}
            gone = [each not in left for each in members]
            assert gone == sorted(gone, reverse=True), (lane, members, left)
        self.check_all_was_taken(queue, limit, limited, quarantined)
        self.may_go |= {
            each
            for each, place in self.found_places().items()
            if place.state == "dead" and each not in dead
        }
        return acquired

    def check_all_was_taken(self, queue: str, limit: int, limited: int, quarantined: int) -> None:
        """With slots for all, what is left is blocked."""
        if limit < 100 or limited < 100 or quarantined or self.paused(queue):
            return
        for lane in filter(partial(self.held, queue), LANES):
            assert self.is_blocked(lane), (lane, self.held(queue, lane))

    @rule(queue=queues)
    def a_consumer_pops_the_sign_and_dies(self, queue: str) -> None:
        if self.client.lpop(self.store.keys.queue(queue).lanes_wake) is not None:
            self.signless.add(queue)

    def look_at_ready(self) -> None:
        """Look at all queues, as the fleet does."""
        self.store.wake_ready(self.store.ready_of([(queue, DEFAULT) for queue in QUEUES]))
        self.signless.clear()

    def ack(self, queue: str, who: str, fields: list[str]) -> int:
        """Acknowledge messages, and let the turns of the other queues of their lanes pass."""
        known = ack(self.store, queue, who, fields)
        now = self.store.now_ms()
        for each in QUEUES:
            lanes = self.store.keys.queue(each).lanes
            leave_turns = self.client.zrangebyscore(lanes, f"({now * 1000}", (now + 1000) * 1000)
            if leave_turns:
                self.client.zadd(lanes, dict.fromkeys(leave_turns, now * 1000))
                self.client.zadd("delayq:next_due", {each: now}, lt=True)
        return known

    @precondition(lambda self: self.fields())
    @rule(data=st.data())
    def ack_some(self, data: st.DataObject) -> None:
        for queue, who, field, message_id in data.draw(
            st.lists(st.sampled_from(self.fields()), min_size=1, max_size=4, unique=True)
        ):
            assert self.ack(queue, who, [field]) == 1
            self.may_go.add(message_id)

    @precondition(lambda self: self.fields())
    @rule(data=st.data())
    def older_code_acks_one(self, data: st.DataObject) -> None:
        """Older code leaves the permit, and the next audit gives the permit back."""
        queue, who, field, message_id = data.draw(st.sampled_from(self.fields()))
        self.store.run(self.store.leases.ack_call(queue, who, {field: b""}))
        self.may_go.add(message_id)
        _, found = self.store.repair_tracking.check_permits(0, repair=True)
        repaired = sum(each.repaired for _, batch in found for each in batch.found)
        assert repaired == (message_id in self.permits)

    @precondition(lambda self: self.fields())
    @rule(
        data=st.data(),
        last=st.booleans(),
        counted=st.sampled_from(("nothing", "requeued", "crashed", "died")),
    )
    def requeue(self, data: st.DataObject, last: bool, counted: Any) -> None:
        queue, who, field, _ = data.draw(st.sampled_from(self.fields()))
        self.store.leases.requeue(queue, who, [field], last=last, counted=counted, max_deliveries=2)

    @precondition(lambda self: any(each[3] for each in self.fields()))
    @rule(
        data=st.data(),
        due=st.sampled_from((1, FAR)),
        when_due=st.sampled_from(("push", "leave", "keep", "keep")),
        moves=st.sampled_from((False, False, True)),
    )
    def retry(self, data: st.DataObject, due: int, when_due: Any, moves: bool) -> None:
        """A retry, or with 'keep' the message itself: its task is paused."""
        some = [each for each in self.fields() if each[3]]
        queue, who, field, message_id = data.draw(st.sampled_from(some))
        sent = self.sent[message_id]
        to = QUEUES[queue == "q"] if moves else queue
        if when_due == "keep":
            value = self.client.hget(self.store.keys.queue(queue).leased(who), field) or b""
            step, message = int(value[:1]), split_leased(value)[1]
            label = label_of(message)
            record = Record(step, message_id, sent.task, message)
            policy = "" if label.unique == "-" else "r 0 1"
            what, to = Entry(sent.id, Due(2), step, record.pack(), policy), queue
        else:
            what, new = self.new(data, due, id=sent.id, lane=sent.lane)
            what = what._replace(policy=what.policy and what.policy[:-1] + "1")
            self.sent[new.message_id] = new
            self.may_go |= {message_id, new.message_id}
        if replace(self.store, to, what, queue, who, field, when_due=when_due) == "due":
            self.may_go -= {message_id}

    @precondition(lambda self: any(each[3] for each in self.fields()))
    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        some = [each for each in self.fields() if each[3]]
        queue, who, field, message_id = data.draw(st.sampled_from(some))
        assert self.store.leases.dead_letter(
            queue, who, field, self.sent[message_id].id, "rejected"
        )

    @rule(queue=queues, most=st.sampled_from((1, 100)))
    def leases_end(self, queue: str, most: int) -> None:
        pass_time(self.client, LEASE + 120)
        while who := self.store.leases.first_ended_lease(queue):
            if not self.store.leases.reclaim_expired(queue, DEFAULT, who, most, 2).more:
                break

    # -- operators

    def draw_ids(self, data: st.DataObject) -> list[str]:
        here = sorted({self.sent[each].id for each in self.places})
        return data.draw(st.lists(st.sampled_from(here), min_size=1, max_size=3, unique=True))

    def with_ids(self, some: list[str]) -> set[str]:
        return {each for each in self.places if self.sent[each].id in some}

    @precondition(lambda self: self.places)
    @rule(data=st.data(), queue=queues)
    def cancel(self, data: st.DataObject, queue: str) -> None:
        some = self.draw_ids(data)
        self.may_go |= self.with_ids(some)
        self.store.control.cancel(queue, DEFAULT, some)

    @precondition(lambda self: self.places)
    @rule(data=st.data(), queue=queues)
    def reschedule(self, data: st.DataObject, queue: str) -> None:
        moves = [(id, Due(FAR + self.next()), None) for id in self.draw_ids(data)]
        self.store.control.reschedule(queue, moves)

    @precondition(lambda self: self.places)
    @rule(data=st.data(), queue=queues)
    def run_now(self, data: st.DataObject, queue: str) -> None:
        self.store.control.run_now(queue, DEFAULT, self.draw_ids(data))

    @rule(
        which=st.sampled_from((*QUEUES, *TASKS)),
        resume=st.sampled_from((False, True, True)),
    )
    def pause(self, which: str, resume: bool) -> None:
        how: Any = {"queue": which} if which in QUEUES else {"task": which}
        self.store.control.pause([*QUEUES], resume=resume, **how)

    @rule(queue=queues, chance=st.integers(0, 9))
    def purge(self, queue: str, chance: int) -> None:
        if chance == 0:
            self.may_go |= {
                each
                for each, place in self.places.items()
                if place.queue == queue and place.state in ("scheduled", "ready", "quarantined")
            }
            self.store.purge(queue)
            self.signless.add(queue)

    @precondition(lambda self: any(place.state == "dead" for place in self.places.values()))
    @rule(data=st.data(), due=st.sampled_from((0, FAR)))
    def replay(self, data: st.DataObject, due: int) -> None:
        with_dead = {place.queue for place in self.places.values() if place.state == "dead"}
        queue = data.draw(st.sampled_from(sorted(with_dead)))
        stored = [*self.store.dead_letters.all(queue)]
        stored.sort(key=lambda each: each.message)
        dead = data.draw(st.sampled_from(stored))
        label = label_of(dead.message)
        old = self.sent[label.message_id]
        made, new = self.new(data, due, id=old.id, lane=old.lane)
        made = made._replace(policy=made.policy and "e 0 0")
        self.sent[new.message_id] = new
        self.may_go |= {old.message_id} | self.key_owners(made)
        replay = Replay(dead.id, dead.died_ms, made, digest_of(dead.data))
        call = self.store.dead_letters.replay_call(
            queue, queue, DEFAULT, [replay], f"t{self.next()}"
        )
        assert read_codes(self.store.run(call))[0] in "dk"

    @precondition(lambda self: any(place.state == "dead" for place in self.places.values()))
    @rule(queue=queues)
    def replay_in_place(self, queue: str) -> None:
        """No dead letter here has Celery's spelling: all of them must be read."""
        reply = self.store.dead_letters.replay_in_place(
            queue, DEFAULT, "-inf", "+inf", b"", f"{self.next():032}"
        )
        assert reply.number == 0

    @rule(queue=queues)
    def fsck(self, queue: str) -> None:
        """Lanes and permits are as they should be."""
        tracking = self.store.repair_tracking
        assert tracking.check_lanes(queue, 0, repair=False).found == []
        assert tracking.check_forgotten_lanes(queue, 0, repair=False).found == []
        _, found = tracking.check_permits(0, repair=False)
        assert [batch.found for _, batch in found if batch.found] == []

    @rule(queue=queues)
    def release_quarantined(self, queue: str) -> None:
        self.store.repair.release_quarantined(queue, DEFAULT)

    @rule(queue=queues)
    def the_turn_to_take_a_quarantined_ends(self, queue: str) -> None:
        self.client.delete(self.store.keys.queue(queue).quarantine_turn)


def held_entries(machine: LimitMachine, queue: str) -> Iterator[tuple[bytes, int, Record]]:
    """Yield name, due and record of the entries that wait and whose tasks are not paused."""
    key = machine.store.keys.queue(queue)
    paused = {*machine.client.zrange(key.paused_due, 0, -1)}
    for name, score in machine.client.zrange(key.due, 0, -1, withscores=True):
        if score >= PAUSED_OFFSET_MS:
            due = int(score - PAUSED_OFFSET_MS)
            record = Record.unpack(machine.client.hget(key.entries, name) or b"")
            if member(record.task, due, name.decode()) not in paused:
                yield name, due, record

"""A call moves or reads at least one message and about 1 MB at most; the next call goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Record
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, EntryCondition
from celery_delayq.store.control import MAX_PAGE_BYTES
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair import Batch
from celery_delayq.store.repair_tracking import MAX_READ_BYTES, Tracked
from celery_delayq.store.scan import Stretch
from tests.lua.bench import FAR, QUEUE, Bench, Recording, bodies, entry, labelled, member, repeating

#: Number of messages, and bytes of each.
COUNT, SIZE = 48, 150_000
#: Most messages of a call: the last one exceeds 1 MB.
MOST = 1_000_000 // SIZE + 1
#: Most fields that HSCAN returns for a COUNT of 10. It returns whole buckets, of two tables while a
#: hash grows. Valkey 9 returned up to 27 for hashes with 1 to 1,500 fields.
SCANNED = 30
#: Bytes of a message that is larger than the limit of any call.
HUGE = 3_000_000

NAMES = [f"id{n:02}" for n in range(COUNT)]
MESSAGES = [b"{%02d" % n + b"." * SIZE for n in range(COUNT)]

#: Messages that each call takes: the most, and the last call the rest.
STEPS = [MOST] * (COUNT // MOST) + [COUNT % MOST] * (COUNT % MOST > 0)


def schedule(store: Bench) -> None:
    for n, name in enumerate(NAMES):
        store.schedule(QUEUE, entry(name, FAR + n, message=MESSAGES[n]))


def read_records(store: Bench, names: Sequence[str]) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < len(names):
        found += store.run_steps(store.control.records_steps(QUEUE, names[len(found) :]))
    return found


def make_due(store: Bench) -> None:
    key = store.keys.queue(QUEUE)
    store.client.zadd(key.due, {name: n + 1 for n, name in enumerate(NAMES)})
    store.client.zadd(store.keys.next_due, {QUEUE: 1})


def ready(store: Bench) -> list[bytes]:
    """Return the ready messages, the next to run first."""
    return cast("list[bytes]", store.client.lrange(QUEUE, 0, -1))[::-1]


def add_dead_letters(store: Bench) -> None:
    for name, message in zip(NAMES, MESSAGES, strict=True):
        store.dead_letters.add(QUEUE, name, "why", message)


def put_hash(store: Bench, name: str) -> None:
    store.client.hset(name, mapping=dict(zip(NAMES, MESSAGES, strict=True)))


def put_periodic(store: Bench) -> None:
    put_hash(store, store.keys.periodic)
    store.client.zadd(store.keys.periodic_at, dict.fromkeys(NAMES, 1))


def read_upcoming(store: Bench) -> list[bytes]:
    """Return the records of all entries that a look at the schedule returns."""
    found: list[bytes] = []
    while records := store.periodic.claim_due(100, 1_000_000).records:
        found += [record.encode() for _, record in records]
    return found


def pause_due(store: Bench) -> None:
    schedule(store)
    key = store.keys.queue(QUEUE)
    for n, name in enumerate(NAMES):
        store.client.zadd(key.due, {name: PAUSED_OFFSET_MS + FAR + n})
        store.client.zadd(key.paused_due, {member("tasks.t", FAR + n, name): 0})


def lease_all(store: Bench) -> list[str]:
    """Lease the messages, and return their fields."""
    store.push(*MESSAGES)
    return lease(store)


def lease(store: Bench) -> list[str]:
    fields: list[str] = []
    while len(fields) < COUNT:
        got = store.acquire(str(len(fields) + 1), 100)
        fields += [field for field, _, _ in got.messages]
    store.client.delete(store.keys.queue(QUEUE).wake)
    return fields


def size_of(reply: Any) -> int:
    """Return the number of bytes in a reply."""
    if isinstance(reply, list):
        return sum(map(size_of, reply))
    return len(reply) if isinstance(reply, bytes) else 0


def test_promote_takes_about_a_megabyte_and_says_that_more_is_due(store: Bench) -> None:
    schedule(store)
    make_due(store)
    steps = []
    while moved := (promoted := store.promote()).moved:
        steps.append(moved)
        # A dispatcher continues at once if more entries are due.
        assert (promoted.look.wait == 0) == (sum(steps) < COUNT)

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_reserve_takes_about_a_megabyte_and_says_that_more_is_ready(store: Bench) -> None:
    store.push(*MESSAGES)
    taken: list[bytes] = []
    steps, message_id = [], 0
    while len(taken) < COUNT:
        message_id += 1
        acquired = store.acquire(str(message_id), 100)
        taken += bodies(acquired)
        steps.append(len(acquired.messages))
        assert (acquired.first_list > 0) == (len(taken) < COUNT)
        # A repeated call gives the same reply.
        assert bodies(store.acquire(str(message_id), 100)) == bodies(acquired)

    assert (steps, taken) == (STEPS, MESSAGES)


@pytest.mark.parametrize("last", [False, True])
def test_requeue_keeps_the_order_over_its_calls(store: Bench, last: bool) -> None:
    fields = lease_all(store)
    recording = Recording(store)

    assert recording.requeue(*fields, last=last) == (COUNT, 0)

    assert ready(store) == MESSAGES
    assert len(recording.calls) == len(STEPS)


def test_requeue_goes_on_after_a_reply_was_lost(store: Bench) -> None:
    fields = lease_all(store)

    repeating(store).requeue(*fields)

    assert ready(store) == MESSAGES


def test_reclaim_takes_about_a_megabyte_and_says_that_there_is_more(store: Bench) -> None:
    lease_all(store)
    store.pass_time()
    steps, more = [], True
    while more:
        reclaimed = store.reclaim_expired()
        steps.append(reclaimed.requeued)
        more = reclaimed.more

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_release_quarantined_takes_about_a_megabyte(store: Bench) -> None:
    store.client.lpush("{q}:quarantined", *(b"0\n" + message for message in MESSAGES))

    repair = store.repair
    steps = [*iter(lambda: repair.release_quarantined(QUEUE, Layout())[0], 0)]

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_calls_of_a_page_read_about_a_megabyte_and_no_call_more(store: Bench) -> None:
    schedule(store)
    recording = Recording(store)

    first = recording.control.page(QUEUE, EntryCondition(), 100)
    calls = len(recording.calls)
    rest = recording.control.page(QUEUE, EntryCondition(), 100, first.end)

    assert [each.name for each in (*first.entries, *rest.entries)] == NAMES
    assert len(first.entries) == calls * MOST
    assert calls == -(-MAX_PAGE_BYTES // (MOST * SIZE))
    assert len(recording.calls) == len(STEPS)


def test_dead_letters_are_reported_about_a_megabyte_at_once(store: Bench) -> None:
    add_dead_letters(store)

    assert [len(page) for page in store.dead_letters.pages(QUEUE)] == STEPS


@pytest.mark.parametrize(("newest", "order"), [(False, MESSAGES), (True, MESSAGES[::-1])])
def test_a_list_is_read_about_a_megabyte_at_once(
    store: Bench, newest: bool, order: list[bytes]
) -> None:
    store.push(*MESSAGES)

    parts = list(store.scan.messages(QUEUE, 0, COUNT, 100, newest=newest))

    assert [one for part in parts for one in part] == order
    assert [len(part) for part in parts] == STEPS


def test_acknowledgements_are_settled_about_a_megabyte_at_once(store: Bench) -> None:
    for n, name in enumerate(NAMES):
        small = labelled(name, FAR + n)
        large = small.data[:-3] + b"." * SIZE + small.data[-3:]
        store.schedule(QUEUE, small._replace(data=large))
    make_due(store)
    while store.promote().moved:
        pass
    fields = lease(store)
    recording = Recording(store)

    assert recording.ack(*fields) == COUNT

    assert len(recording.calls) == len(STEPS)
    assert not store.client.exists("{q}:leased:me", "{q}:leased_index")


# -- reads

#: Calls that scan a hash. Redis returns all members of a bucket together.
HASHES = {"held", "unacked", "periodic", "entries", "dead_letters"}


def most_of(what: str) -> int:
    """Return the most messages of a call."""
    return SCANNED if what in HASHES else MOST


#: By name: how to store the messages, and a call that reads and returns them.
READS: dict[str, tuple[Callable[[Bench], object], Callable[[Bench], list[bytes]]]] = {
    "ready": (
        lambda store: store.push(*MESSAGES),
        lambda store: [*store.ready_messages(QUEUE, Layout(), 100)],
    ),
    "records": (
        schedule,
        lambda store: [
            Record.unpack(data).message
            for data in read_records(store, [*NAMES, "gone"])
            if data is not None
        ],
    ),
    "stretch": (
        schedule,
        lambda store: [
            Record.unpack(data).message
            for part in store.scan.entries(Stretch.of(QUEUE, EntryCondition()), 100)
            for _, data, _ in part
        ],
    ),
    "dead letters by id": (
        add_dead_letters,
        lambda store: [
            each.message
            for each in store.dead_letters.read(QUEUE, [b"gone", *map(str.encode, NAMES)])
        ],
    ),
    "held": (
        lease_all,
        lambda store: [split_leased(value)[1] for _, value in store.scan.leased(QUEUE, "me")],
    ),
    "unacked": (
        lambda store: put_hash(store, "unacked"),
        lambda store: [data for _, data in store.scan.fields("unacked")],
    ),
    "periodic": (
        lambda store: put_hash(store, store.keys.periodic),
        lambda store: [record.encode() for _, record in store.periodic.all()],
    ),
    "upcoming": (put_periodic, read_upcoming),
}


@pytest.mark.parametrize("what", READS)
def test_no_reply_has_much_more_than_a_megabyte(store: Bench, what: str) -> None:
    prepare, read = READS[what]
    prepare(store)
    recording = Recording(store)

    assert sorted(read(recording)) == MESSAGES

    sizes = [size_of(reply) for reply in recording.replies]
    assert max(sizes) < most_of(what) * SIZE + 10_000
    # The replies have all messages.
    assert sum(sizes) > COUNT * SIZE


def test_digests_of_all_messages_are_made_a_megabyte_at_once(store: Bench) -> None:
    lease_all(store)
    other = [b"ready" + message for message in MESSAGES]
    alone = [b"alone" + message for message in MESSAGES]
    store.push(*other)
    store.client.lpush("{q}:quarantined", *(b"0\n" + message for message in alone))
    recording = Recording(store)

    found = recording.repair._digests(QUEUE, Layout())

    assert found == {
        hashlib.sha1(each).hexdigest().encode() for each in (*MESSAGES, *other, *alone)
    }
    assert max(map(size_of, recording.replies)) < most_of("held") * SIZE + 10_000


# -- repairs

#: Checks that look at all members of a key, and read a message for each.
LOOKS: dict[str, tuple[Callable[[Bench], object], Callable[[Bench], Callable[..., Any]]]] = {
    "index": (schedule, lambda store: store.repair.check_index),
    "entries": (schedule, lambda store: store.repair.check_entries),
    "dead_letters": (add_dead_letters, lambda store: store.repair.check_dead_letters),
    "periodic": (
        lambda store: put_hash(store, store.keys.periodic),
        lambda store: store.repair.check_periodic,
    ),
    "paused_due": (pause_due, lambda store: store.repair_tracking.check_paused_due),
}


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("what", LOOKS)
def test_a_look_reads_about_a_megabyte(store: Bench, what: str, repair: bool) -> None:
    prepare, looks = LOOKS[what]
    prepare(store)
    recording = Recording(store)
    looked, cursor = 0, None
    while cursor != 0:
        batch = looks(recording)(QUEUE, cursor or 0, repair=repair)
        looked += batch.looked
        cursor = batch.cursor

    assert looked == COUNT
    assert max(int(reply[1]) for reply in recording.replies) <= most_of(what)


def test_what_is_gone_is_reported_when_all_can_be_read_at_one_moment(store: Bench) -> None:
    store.push(*MESSAGES[:MOST])
    store.acquire("1", 100)
    seen = [Tracked(b"id", b"m1 5 - task me")]
    store.client.hset("{q}:leased_index", *seen[0])

    def look() -> Batch | None:
        return store.repair_tracking.check_gone(QUEUE, ["me"], seen, repair=False)

    found = look()
    assert found is not None
    assert [(each.kind, each.number) for each in found.found] == [("gone_running", 1)]
    for n in range(MAX_READ_BYTES // HUGE + 1):
        store.hold(b"%d" % n + b"." * HUGE, number=f"{100 + n}")
    assert look() is None


@pytest.mark.parametrize("number", [1, 3])
def test_one_that_is_too_large_is_moved_alone(store: Bench, number: int) -> None:
    huge = [b"%d" % n + b"." * HUGE for n in range(number)]
    fields = []
    for n in range(number):
        fields += store.hold(huge[n], number=str(n + 1))
    store.requeue(*fields)

    assert [hashlib.sha1(one).digest() for one in ready(store)] == [
        hashlib.sha1(one).digest() for one in huge
    ]
    assert [len(bodies(store.acquire(str(n)))) for n in range(10, 10 + number)] == [1] * number

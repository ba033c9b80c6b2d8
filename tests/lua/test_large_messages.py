"""No call moves or reads more than about 1 MB of messages, but one at least; the next goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_delayq.model.envelope import Entry, Record
from celery_delayq.model.lookup import PAUSED_OFFSET, Where
from celery_delayq.store.keys import Layout
from celery_delayq.store.periodic import PeriodicStore
from celery_delayq.store.repair import Batch, RepairStore
from celery_delayq.store.repair_tracking import MOST_BYTES, RepairTracking, Tracked
from celery_delayq.store.scan import ScanStore, Stretch
from tests.lua.conftest import FAR, QUEUE, Bench, bodies, entry, labelled, member

#: How many messages there are, and how large they are.
COUNT, SIZE = 48, 150_000
#: Messages that a call may take: what does not fit into 1 MB is the last one.
MOST = 1_000_000 // SIZE + 1
#: Most fields that HSCAN returns where it is asked for 10: whole buckets, of two tables while one
#: grows. Valkey 9 was seen to return 27, of hashes with 1 to 1,500 fields.
SCANNED = 30
#: A message that is too large for any call, and one that is small.
HUGE = 3_000_000

NAMES = [f"id{n:02}" for n in range(COUNT)]
MESSAGES = [b"{%02d" % n + b"." * SIZE for n in range(COUNT)]

Step = Callable[[Bench], Any]


def in_steps(step: Callable[[], int]) -> list[int]:
    """Return how many messages each call took, until there is none."""
    steps = []
    while taken := step():
        steps.append(taken)
    return steps


#: What every call takes of so many: as much as it may, and the last one the rest.
STEPS = [MOST] * (COUNT // MOST) + [COUNT % MOST] * (COUNT % MOST > 0)


def entries_of() -> list[Entry]:
    """Return entries with the messages, without labels."""
    return [entry(name, FAR + n, message=MESSAGES[n]) for n, name in enumerate(NAMES)]


def labelled_entries(unique: str | None = None) -> list[Entry]:
    """Return entries with labels, each with a unique key of its own by default."""
    entries = []
    for n, name in enumerate(NAMES):
        small = labelled(name, FAR + n, unique=unique or f"dkey{n}")
        entries.append(small._replace(data=small.data[:-3] + b"." * SIZE + small.data[-3:]))
    return entries


def schedule(store: Bench, entries: list[Entry] | None = None) -> None:
    for each in entries or entries_of():
        store.schedule(QUEUE, each)


def make_due(store: Bench) -> None:
    key = store.keys.queue(QUEUE)
    for n in range(COUNT):
        store.client.zadd(key.due, {f"id{n:02}": n + 1})
    store.client.zadd(store.keys.next_due, {QUEUE: 1})


def ready(store: Bench) -> list[bytes]:
    """Return what is ready, the next to run first."""
    return cast("list[bytes]", store.client.lrange(QUEUE, 0, -1))[::-1]


def test_promote_takes_about_a_megabyte_and_says_that_more_is_due(store: Bench) -> None:
    schedule(store)
    make_due(store)
    steps = []
    while moved := (promoted := store.promote()).moved:
        steps.append(moved)
        # So a dispatcher goes on at once.
        assert (promoted.look.wait == 0) == (sum(steps) < COUNT)

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_reserve_takes_about_a_megabyte_and_says_that_more_is_ready(store: Bench) -> None:
    store.push(*MESSAGES)
    taken: list[bytes] = []
    steps, message_id = [], 0
    while len(taken) < COUNT:
        message_id += 1
        reserved = store.reserve(str(message_id), 100)
        taken += bodies(reserved)
        steps.append(len(reserved.messages))
        assert (reserved.more > 0) == (len(taken) < COUNT)
        # The same call again tells the same.
        assert bodies(store.reserve(str(message_id), 100)) == bodies(reserved)

    assert (steps, taken) == (STEPS, MESSAGES)


@pytest.mark.parametrize("last", [False, True])
def test_requeue_keeps_the_order_over_its_calls(store: Bench, last: bool) -> None:
    fields = lease_all(store)
    calls = count_calls(store)

    assert store.requeue(*fields, last=last) == (COUNT, 0)

    assert ready(store) == MESSAGES
    assert calls() == len(STEPS)


def test_requeue_goes_on_after_a_reply_was_lost(store: Bench) -> None:
    fields = lease_all(store)
    run = store.run
    lost: list[Any] = []

    def lose_one(call: Any) -> Any:
        reply = run(call)
        if len(lost) == 1:
            lost.append(reply)
            reply = run(call)
        lost.append(reply)
        return reply

    store.run = lose_one  # type: ignore[method-assign]
    store.requeue(*fields)

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

    assert in_steps(lambda: RepairStore(store).release_quarantined(QUEUE, Layout())[0]) == STEPS
    assert ready(store) == MESSAGES


def test_pages_have_about_a_megabyte_of_records_and_no_call_more(store: Bench) -> None:
    schedule(store)
    calls = count_calls(store)

    found = store.control.page(QUEUE, Where(), 100)

    assert [each.name for each in found.entries] == [f"id{n:02}" for n in range(COUNT)]
    assert calls() == len(STEPS)


def test_dead_letters_are_told_about_a_megabyte_at_once(store: Bench) -> None:
    for n, message in enumerate(MESSAGES):
        store.add_dead_letter(QUEUE, f"id{n:02}", "why", message)

    steps = [len(page) for page in store.dead_letters.pages(QUEUE)]

    assert steps == STEPS


@pytest.mark.parametrize(("newest", "order"), [(False, MESSAGES), (True, MESSAGES[::-1])])
def test_a_list_is_read_about_a_megabyte_at_once(
    store: Bench, newest: bool, order: list[bytes]
) -> None:
    store.push(*MESSAGES)

    parts = list(ScanStore(store).messages(QUEUE, 0, COUNT, 100, newest=newest))

    assert [one for part in parts for one in part] == order
    assert [len(part) for part in parts] == STEPS


def test_acknowledgements_are_settled_about_a_megabyte_at_once(store: Bench) -> None:
    entries = labelled_entries("-")
    schedule(store, entries)
    make_due(store)
    while store.promote().moved:
        pass
    fields = lease(store)
    calls = count_calls(store)

    assert store.ack(*fields) == COUNT

    assert calls() == len(STEPS)
    assert not store.client.exists("{q}:leased:me", "{q}:leased_index")


# -- to look at

#: Calls that scan a hash: Redis returns all members of a bucket together.
HASHES = {"held", "unacked", "periodic", "entries", "dead_letters", "held messages"}


def most_of(what: str) -> int:
    """Return most messages of a call."""
    return SCANNED if what in HASHES else MOST


#: By name: how to store the messages, and a call that reads and returns them.
READS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], list[bytes]]]] = {
    "ready": (
        lambda store: store.push(*MESSAGES),
        lambda store: [*store.ready_messages(QUEUE, Layout(), 100)],
    ),
    "records": (
        lambda store: schedule(store),
        lambda store: [
            Record.unpack(data).message
            for data in store.control.records(QUEUE, [*NAMES, "gone"]).values()
        ],
    ),
    "stretch": (
        lambda store: schedule(store),
        lambda store: [
            Record.unpack(data).message
            for part in ScanStore(store).entries(Stretch.of(QUEUE, Where()), 100)
            for _, data, _ in part
        ],
    ),
    "dead letters by id": (
        lambda store: add_dead_letter(store),
        lambda store: [
            each.message
            for each in store.dead_letters.read(QUEUE, [b"gone", *map(str.encode, NAMES)])
        ],
    ),
    "held": (
        lambda store: hold_all(store),
        lambda store: [
            value.partition(b"\n")[2] for _, value in ScanStore(store).held(QUEUE, "me")
        ],
    ),
    "unacked": (
        lambda store: put_hash(store, "unacked"),
        lambda store: [data for _, data in store.held_messages("unacked")],
    ),
    "periodic": (
        lambda store: put_hash(store, store.keys.periodic),
        lambda store: [record.encode() for _, record in PeriodicStore(store).all()],
    ),
    "upcoming": (
        lambda store: put_periodic(store),
        lambda store: read_upcoming(store),
    ),
}


@pytest.mark.parametrize("what", READS)
def test_no_reply_has_much_more_than_a_megabyte(store: Bench, what: str) -> None:
    prepare, read = READS[what]
    prepare(store)
    replies = record_replies(store)

    assert sorted(read(store)) == MESSAGES

    sizes = [size_of(reply) for reply in replies]
    assert max(sizes) < most_of(what) * SIZE + 10_000
    # Nothing was read in another way.
    assert sum(sizes) > COUNT * SIZE


def test_digests_of_all_messages_are_made_a_megabyte_at_once(store: Bench) -> None:
    hold_all(store)
    other = [b"ready" + message for message in MESSAGES]
    alone = [b"alone" + message for message in MESSAGES]
    store.push(*other)
    store.client.lpush("{q}:quarantined", *(b"0\n" + message for message in alone))
    replies = record_replies(store)

    found = RepairStore(store)._digests(QUEUE, Layout())

    assert found == {
        hashlib.sha1(each).hexdigest().encode() for each in (*MESSAGES, *other, *alone)
    }
    assert max(map(size_of, replies)) < most_of("held") * SIZE + 10_000


# -- to repair

#: What looks at all members of a key, and reads a message for each.
LOOKS: dict[str, tuple[Callable[[Bench], None], Callable[[Bench], Callable[..., Any]]]] = {
    "index": (lambda store: schedule(store), lambda store: RepairStore(store).index),
    "entries": (lambda store: schedule(store), lambda store: RepairStore(store).entries),
    "dead_letters": (
        lambda store: add_dead_letter(store),
        lambda store: RepairStore(store).dead_letters,
    ),
    "periodic": (
        lambda store: put_hash(store, store.keys.periodic),
        lambda store: RepairStore(store).periodic,
    ),
    "paused_due": (lambda store: pause_due(store), lambda store: RepairTracking(store).paused_due),
}


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("what", LOOKS)
def test_a_look_reads_about_a_megabyte(store: Bench, what: str, repair: bool) -> None:
    prepare, looks = LOOKS[what]
    prepare(store)
    replies = record_replies(store)
    looked, cursor = 0, None
    while cursor != 0:
        batch = looks(store)(QUEUE, cursor or 0, repair=repair)
        looked += batch.looked
        cursor = batch.cursor

    assert looked == COUNT
    assert max(int(reply[1]) for reply in replies) <= most_of(what)


def test_what_is_gone_is_told_when_all_can_be_read_at_one_moment(store: Bench) -> None:
    hold_all(store)
    seen = [Tracked(b"id", b"m1 5 - task me")]
    store.client.hset("{q}:leased_index", *seen[0])

    def look() -> Batch | None:
        return RepairTracking(store).gone(QUEUE, ["me"], seen, repair=False)

    found = look()
    assert found is not None
    assert [(each.kind, each.number) for each in found.found] == [("gone_running", 1)]
    for n in range(MOST_BYTES // HUGE):
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
    assert [len(bodies(store.reserve(str(n)))) for n in range(10, 10 + number)] == [1] * number


def add_dead_letter(store: Bench) -> None:
    for name, message in zip(NAMES, MESSAGES, strict=True):
        store.add_dead_letter(QUEUE, name, "why", message)


def put_hash(store: Bench, name: str) -> None:
    store.client.hset(name, mapping=dict(zip(NAMES, MESSAGES, strict=True)))


def put_periodic(store: Bench) -> None:
    put_hash(store, store.keys.periodic)
    store.client.zadd(store.keys.periodic_at, dict.fromkeys(NAMES, 1))


def read_upcoming(store: Bench) -> list[bytes]:
    """Return the records of all entries that are to be looked at."""
    found: list[bytes] = []
    while records := PeriodicStore(store).claim_due(100, 1_000_000).records:
        found += [record.encode() for _, record in records]
    return found


def pause_due(store: Bench) -> None:
    schedule(store)
    key = store.keys.queue(QUEUE)
    for n, name in enumerate(NAMES):
        store.client.zadd(key.due, {name: PAUSED_OFFSET + FAR + n})
        store.client.zadd(key.paused_due, {member("tasks.t", FAR + n, name): 0})


def hold_all(store: Bench) -> None:
    lease_all(store)


def lease_all(store: Bench) -> list[str]:
    store.push(*MESSAGES)
    return lease(store)


def lease(store: Bench) -> list[str]:
    fields: list[str] = []
    while len(fields) < COUNT:
        got = store.reserve(str(len(fields) + 1), 100)
        fields += [field for field, _, _ in got.messages]
    store.client.delete(store.keys.queue(QUEUE).wake)
    return fields


def size_of(reply: Any) -> int:
    """Return how many bytes a reply has."""
    if isinstance(reply, list):
        return sum(map(size_of, reply))
    return len(reply) if isinstance(reply, bytes) else 0


def record_replies(store: Bench) -> list[Any]:
    """Return a list that gets the replies of all scripts from now on."""
    run, replies = store.run, []

    def recorded(call: Any) -> Any:
        replies.append(run(call))
        return replies[-1]

    store.run = recorded  # type: ignore[method-assign]
    return replies


def count_calls(store: Bench) -> Callable[[], int]:
    """Return what tells how many calls of scripts were made since."""
    run, calls = store.run, []

    def counted(call: Any) -> Any:
        calls.append(call)
        return run(call)

    store.run = counted  # type: ignore[method-assign]
    return lambda: len(calls)

"""No call moves or reads more than about 1 MB of messages, but one at least; the next goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_delayq.keys import Layout
from celery_delayq.letter_store import ROOM
from celery_delayq.mend_store import MendStore
from celery_delayq.places import Where
from celery_delayq.scan_store import ScanStore
from celery_delayq.store import Store
from tests.lua.conftest import LEASE, QUEUE, bodies, entry, hold, push, reserve
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")

#: How many messages there are, and how large they are.
COUNT, SIZE = 12, 300_000
#: Messages that a call may take: what does not fit into 1 MB is the last one.
MOST = 1_000_000 // SIZE + 1
#: A message that is too large for any call, and one that is small.
HUGE = 3_000_000

MESSAGES = [b"{%02d" % n + b"." * SIZE for n in range(COUNT)]

Step = Callable[[Store], Any]


def in_steps(step: Callable[[], int]) -> list[int]:
    """Return how many messages each call took, until there is none."""
    steps = []
    while taken := step():
        steps.append(taken)
    return steps


#: What every call takes of so many: as much as it may, and the last one the rest.
STEPS = [MOST] * (COUNT // MOST) + [COUNT % MOST] * (COUNT % MOST > 0)


def schedule(store: Store) -> None:
    for n, message in enumerate(MESSAGES):
        store.schedule(QUEUE, entry(f"id{n:02}", 4_000_000_000_000 + n, message=message))


def make_due(store: Store) -> None:
    key = store.keys.queue(QUEUE)
    for n in range(COUNT):
        store.client.zadd(key.due, {f"id{n:02}": n + 1})
    store.client.zadd(store.keys.agenda, {QUEUE: 1})


def ready(store: Store) -> list[bytes]:
    """Return what is ready, the next to run first."""
    return cast("list[bytes]", store.client.lrange(QUEUE, 0, -1))[::-1]


def test_promote_takes_about_a_megabyte_and_says_that_more_is_due(store: Store) -> None:
    schedule(store)
    make_due(store)
    steps = []
    while moved := (promoted := store.promote(QUEUE, Layout(), 100)).moved:
        steps.append(moved)
        # So a dispatcher goes on at once.
        assert (promoted.look.wait == 0) == (sum(steps) < COUNT)

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_reserve_takes_about_a_megabyte_and_says_that_more_is_ready(store: Store) -> None:
    push(store, *MESSAGES)
    taken: list[bytes] = []
    steps, nonce = [], 0
    while len(taken) < COUNT:
        nonce += 1
        reserved = reserve(store, str(nonce), 100)
        taken += bodies(reserved)
        steps.append(len(reserved.messages))
        assert (reserved.more > 0) == (len(taken) < COUNT)
        # The same call again tells the same.
        assert bodies(reserve(store, str(nonce), 100)) == bodies(reserved)

    assert (steps, taken) == (STEPS, MESSAGES)


@pytest.mark.parametrize("last", [False, True])
def test_requeue_keeps_the_order_over_its_calls(store: Store, last: bool) -> None:
    fields = lease_all(store)
    calls = count_calls(store)

    assert store.leases.requeue(QUEUE, "me", fields, last=last) == (COUNT, 0)

    assert ready(store) == MESSAGES
    assert calls() == len(STEPS)


def test_requeue_goes_on_after_a_reply_was_lost(store: Store) -> None:
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
    store.leases.requeue(QUEUE, "me", fields)

    assert ready(store) == MESSAGES


def test_reap_takes_about_a_megabyte_and_says_that_there_is_more(store: Store) -> None:
    lease_all(store)
    pass_time(store.client, LEASE + 60)
    steps, more = [], True
    while more:
        reaped = store.leases.reap(QUEUE, Layout(), "me", 100, 5)
        steps.append(reaped.requeued)
        more = reaped.more

    assert steps == STEPS
    assert ready(store) == MESSAGES


def test_absolve_takes_about_a_megabyte(store: Store) -> None:
    store.client.lpush("{q}:suspects", *(b"0\n" + message for message in MESSAGES))

    assert in_steps(lambda: MendStore(store).absolve(QUEUE, Layout())[0]) == STEPS
    assert ready(store) == MESSAGES


def test_pages_have_about_a_megabyte_of_records_and_no_call_more(store: Store) -> None:
    schedule(store)
    calls = count_calls(store)

    found = store.control.page(QUEUE, Where(), 100)

    assert [each.name for each in found.entries] == [f"id{n:02}" for n in range(COUNT)]
    assert calls() == len(STEPS)


def test_dead_letters_are_told_about_a_megabyte_at_once(store: Store) -> None:
    for n, message in enumerate(MESSAGES):
        store.bury(QUEUE, f"id{n:02}", "why", message)

    steps = [len(page) for page in store.letters.pages(QUEUE, room=ROOM)]

    assert steps == STEPS


def test_a_list_is_read_a_few_messages_at_once(store: Store) -> None:
    push(store, *MESSAGES)

    parts = list(ScanStore(store).messages(QUEUE, 0, COUNT, 100))

    assert [one for part in parts for one in part] == MESSAGES
    assert len(parts) > 1


@pytest.mark.parametrize("number", [1, 3])
def test_one_that_is_too_large_is_moved_alone(store: Store, number: int) -> None:
    huge = [b"%d" % n + b"." * HUGE for n in range(number)]
    fields = []
    for n in range(number):
        fields += hold(store, huge[n], nonce=str(n + 1))
    store.leases.requeue(QUEUE, "me", fields)

    assert [hashlib.sha1(one).digest() for one in ready(store)] == [
        hashlib.sha1(one).digest() for one in huge
    ]
    assert [len(bodies(reserve(store, str(n)))) for n in range(10, 10 + number)] == [1] * number


def lease_all(store: Store) -> list[str]:
    push(store, *MESSAGES)
    fields: list[str] = []
    while len(fields) < COUNT:
        got = reserve(store, str(len(fields) + 1), 100)
        fields += [field for field, _, _ in got.messages]
    store.client.delete(store.keys.queue(QUEUE).wake)
    return fields


def count_calls(store: Store) -> Callable[[], int]:
    """Return what tells how many calls of scripts were made since."""
    run, calls = store.run, []

    def counted(call: Any) -> Any:
        calls.append(call)
        return run(call)

    store.run = counted  # type: ignore[method-assign]
    return lambda: len(calls)

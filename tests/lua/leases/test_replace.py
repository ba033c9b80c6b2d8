"""replace.lua: the replacement of a leased message is scheduled in the same step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.store.leases import WhenDue
from tests.lua.bench import (
    ENTRY,
    FAR,
    LAYOUT,
    QUEUE,
    Bench,
    Calls,
    any_bytes,
    as_scheduled,
    bodies,
    counts,
    entry,
    labelled,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/replace": (
        lambda s: s.run(
            s.leases.replace_call("q", ENTRY, "p", "me", "1:1", head=b"", when_due="push")
        ),
        b"ready",
    ),
}


def test_a_retry_is_scheduled_and_an_empty_value_stays_until_the_acknowledgement(
    store: Bench,
) -> None:
    store.hold(b"a", b"b")

    assert store.replace(entry("r", FAR)) == "scheduled"

    assert store.state() == as_scheduled(entry("r", FAR)) | {
        "delayq:lease_ends": {b"q": 10},
        "{q}:leased:me": {b"1:1": b"", b"1:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
    }


def test_a_retry_that_is_due_is_ready_at_once(store: Bench) -> None:
    store.hold(b"a")
    store.push(b"waiting", step=3)

    assert store.replace(entry("r", 1, priority=3)) == "ready"

    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "q\x06\x163": [b'{"id": "r"}', b"waiting"],
        "{q}:leased:me": {b"1:1": b""},
        "{q}:leases": {b"me": 10},
        "{q}:wake": [b""],
    }


def test_what_is_due_is_left_alone_where_it_is_not_to_be_handed_out(store: Bench) -> None:
    store.hold(b"a")
    before = store.state()

    assert store.replace(entry("r", 1), when_due="leave") == "due"
    assert store.state() == before


def test_what_is_not_due_is_scheduled_also_where_it_is_not_to_be_handed_out(store: Bench) -> None:
    store.hold(b"a")

    assert store.replace(entry("r", FAR), when_due="leave") == "scheduled"
    assert store.client.hgetall("{q}:leased:me") == {b"1:1": b""}


def test_a_countdown_counts_from_the_clock_of_redis(store: Bench) -> None:
    store.hold(b"a")
    before = store.now_ms()

    assert store.replace(entry("r", 60_000, relative=True)) == "scheduled"

    due = store.client.zscore("{q}:due", "r")
    assert before + 60_000 <= due <= store.now_ms() + 60_001
    assert store.client.zscore("delayq:next_due", "q") == due


def test_how_often_the_message_was_delivered_is_forgotten_with_it(store: Bench) -> None:
    store.hold(b"a", b"b")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 0 0") | counts(b"b", b"2 0 0"))

    store.replace(entry("r", FAR))

    assert store.state()["{q}:deliveries"] == counts(b"b", b"2 0 0")


def test_a_retry_may_go_to_another_queue(store: Bench) -> None:
    store.hold(b"a")

    assert store.replace(entry("r", FAR), to="other") == "scheduled"

    assert store.state() == {
        "delayq:next_due": {b"other": FAR},
        "delayq:queues": {b"other": LAYOUT},
        "delayq:lease_ends": {b"q": 10},
        "{other}:due": {b"r": FAR},
        "{other}:entries": {b"r": b'1 0 n-r tasks.t\n{"id": "r"}'},
        "{other}:tasks": {b"tasks.t\x00004000000000000\x00r": 0},
        "{q}:leased:me": {b"1:1": b""},
        "{q}:leases": {b"me": 10},
    }


def test_a_retry_has_the_id_of_its_task_and_does_not_take_the_place_of_an_entry_of_it(
    store: Bench,
) -> None:
    store.schedule(QUEUE, entry("r", FAR, message_id="first"))
    store.hold(b"a")

    assert store.replace(entry("r", FAR + 1, message_id="second")) == "scheduled"

    assert store.client.zrange("{q}:due", 0, -1) == [b"r", b"r\x00second"]
    assert store.scheduled(QUEUE, "tasks.t") == 2


def test_a_retry_wakes_the_dispatchers(store: Bench) -> None:
    store.hold(b"a")
    with store.wakeups() as heard:
        store.replace(entry("r", 60_000, relative=True))

    [(wait, queue)] = heard
    assert 59_000_000 < wait <= 60_001_000
    assert queue == "q"


@any_bytes
def test_the_place_of_any_message_can_be_taken(store: Bench, message: bytes) -> None:
    store.hold(message)
    store.delivered(message, b"1 0 0")
    large = b'{"n": 12345678901234567, "empty": [], "x": "' + message + b'"}'

    assert store.replace(entry("r", 20, relative=True, message=large)) == "scheduled"
    assert store.ack("1:1") == 1
    store.promote_soon()

    assert bodies(store.acquire("2")) == [large]
    assert not store.client.exists("{q}:deliveries")


def test_a_quarantined_may_be_retried(store: Bench) -> None:
    store.quarantine(b"deadly", step=3)
    assert store.acquire().alone

    assert store.replace(entry("r", FAR)) == "scheduled"

    assert store.state()["{q}:leased:me"] == {b"1:1": b""}
    assert "{q}:deliveries" not in store.state()


# -- a lost lease


def test_a_second_message_of_an_id_leaves_no_name_when_its_retry_goes_to_another_queue(
    store: Bench,
) -> None:
    fields = store.lease(labelled("a"), labelled("a", message_id="second"))
    for number, field in enumerate(fields):
        what = labelled("a", message_id=f"retry{number}")
        assert store.replace(what, field=field, to="other") == "scheduled"

    assert store.client.hgetall("{q}:leased_index") == {}


def test_what_was_given_to_others_meanwhile_is_theirs_to_retry(store: Bench) -> None:
    store.hold(b"a")
    store.pass_time()
    store.reclaim_expired()
    store.acquire("1", who="other")
    before = store.state()

    assert store.replace(entry("r", FAR)) == "gone"
    assert store.state() == before
    assert store.replace(entry("r", FAR), who="other") == "scheduled"


# -- a reply was lost


#: By name: the retry that is sent twice, steps between both calls, and the second reply.
AGAIN: dict[str, tuple[Entry, list[Callable[[Bench], object]], str]] = {
    "scheduled": (entry("r", FAR), [], "duplicate"),
    "ready": (entry("r", 1), [], "duplicate"),
    "promoted": (entry("r", 5, relative=True), [lambda s: s.promote_soon()], "duplicate"),
    "done": (entry("r", 1), [lambda s: s.acquire("2"), lambda s: s.ack("2:1")], "duplicate"),
    "acknowledged": (entry("r", FAR), [lambda s: s.ack("1:1")], "gone"),
    "acknowledged when it is due": (entry("r", 1), [lambda s: s.ack("1:1")], "gone"),
}


@pytest.mark.parametrize("state", AGAIN)
@pytest.mark.parametrize("when_due", ["push", "leave"])
def test_doing_it_again_stores_nothing_more(store: Bench, state: str, when_due: WhenDue) -> None:
    retry, between, expected = AGAIN[state]
    store.hold(b"a")
    store.replace(retry)
    for step in between:
        step(store)
    before = store.state()

    assert store.replace(retry, when_due=when_due) == expected
    assert store.state() == before


@pytest.mark.parametrize("due_ms", [1, FAR])
@pytest.mark.parametrize("when_due", ["push", "leave"])
def test_without_the_message_nothing_is_stored(
    store: Bench, due_ms: int, when_due: WhenDue
) -> None:
    store.hold(b"b")
    before = store.state()

    assert store.replace(entry("r", due_ms), field="1:2", when_due=when_due) == "gone"
    assert store.state() == before


def test_what_was_published_as_usual_before_is_stored_once(store: Bench) -> None:
    store.hold(b"a")
    store.schedule(QUEUE, entry("r", FAR))

    assert store.replace(entry("r", FAR)) == "scheduled"

    assert store.client.zrange("{q}:due", 0, -1) == [b"r"]
    assert store.scheduled(QUEUE, "tasks.t") == 1
    assert store.client.hgetall("{q}:leased:me") == {b"1:1": b""}

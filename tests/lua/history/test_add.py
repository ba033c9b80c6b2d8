"""The history: one line for each run, written once with the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.settings import Limits
from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import Acked
from celery_delayq.store.scripting.calls import Call
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import (
    FAR,
    QUEUE,
    Bench,
    Calls,
    bench,
    entry,
    labelled,
    message_of,
    repeating,
    retried,
)
from tests.support.leases import replace_call

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "history/add": (lambda s: s.history.add("me", 2, 100, [b"line"]), 1),
}

KEY, INDEX = "delayq:history", "delayq:history_index"


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    return bench(delayq_redis, history=1000)


@pytest.fixture(params=["once", "lost reply"])
def caller(request: pytest.FixtureRequest, store: Bench) -> Bench:
    """A store that makes each call once, or twice, as after a lost reply."""
    return store if request.param == "once" else repeating(store)


def lines(store: Bench) -> list[bytes]:
    return [line for _, line in store.history.read("0", "+", 1000)]


def ack(store: Bench, **runs: bytes) -> int:
    """Acknowledge the messages in the named places, with their lines."""
    call = store.leases.ack_call(QUEUE, "me", {f"1:{n[1:]}": run for n, run in runs.items()})
    return Acked(*store.run(call)).known


def retry_call(store: Bench, what: Entry, field: str, run: bytes) -> Call:
    """Return the call that schedules a retry and records the run before it."""
    return replace_call(store, QUEUE, what, QUEUE, "me", field, when_due="push", run=run)


# -- ack


def test_what_is_done_is_reported_in_order(store: Bench, caller: Bench) -> None:
    store.hold(b"a", b"b", b"c")

    ack(caller, _1=b"run of a", _3=b"run of c")

    assert lines(store) == [b"run of a", b"run of c"]
    assert store.client.hgetall("{q}:leased:me") == {b"1:2": b"0\nb"}


def test_the_line_tells_also_of_what_is_tracked_and_counted(store: Bench, caller: Bench) -> None:
    one = labelled("one")
    store.hold(message_of(one), b"other")
    store.client.hset("{q}:leased_index", "one", "n-one 5 - tasks.t me")
    store.delivered(message_of(one), b"1 0 0")

    ack(caller, _1=b"run of one", _2=b"run of other")

    assert lines(store) == [b"run of one", b"run of other"]
    assert not store.client.exists("{q}:leased_index", "{q}:deliveries", "{q}:leased:me")


def test_what_is_done_without_a_run_is_not_told(store: Bench) -> None:
    store.hold(b"a", b"b")

    assert ack(store, _1=b"", _2=b"run of b") == 2
    assert lines(store) == [b"run of b"]


def test_what_is_not_held_any_more_is_not_told(store: Bench) -> None:
    store.hold(b"a", who="other")

    assert ack(store, _1=b"run of a") == 0
    assert lines(store) == []


def test_without_a_history_nothing_is_reported(store: Bench) -> None:
    store.limits = lambda _queue: Limits()
    store.hold(b"a")

    assert ack(store, _1=b"run of a") == 1
    assert not store.client.exists(KEY)


def test_many_at_once(store: Bench) -> None:
    store.hold(*(b"%d" % n for n in range(500)))

    assert ack(store, **{f"_{n}": b"run %d" % n for n in range(1, 501)}) == 500
    assert lines(store) == [b"run %d" % n for n in range(1, 501)]


# -- retry and reject


def test_a_retry_tells_of_its_run_and_the_ack_does_not_tell_again(
    store: Bench, caller: Bench
) -> None:
    [field] = store.hold(b"a")
    call = retry_call(caller, entry("r", FAR), field, b"tried")
    caller.run(call)
    assert lines(store) == [b"tried"]

    ack(caller, _1=b"acknowledged")

    assert lines(store) == [b"tried"]
    assert not store.client.exists("{q}:leased:me")


def test_a_retry_whose_lease_is_gone_is_not_told(store: Bench) -> None:
    call = retry_call(store, entry("r", FAR), "1:1", b"tried")

    assert store.run(call) == b"gone"
    assert lines(store) == []


def test_a_retry_that_lost_its_unique_key_is_reported(store: Bench) -> None:
    one, other = labelled("one", unique="dk"), labelled("other", unique="dk")
    store.put(one)
    store.become_due("one")
    store.promote(limit=1)
    [(field, _, _)] = store.acquire().messages
    store.put(other)
    again = retried(one, "again")
    call = retry_call(store, again, field, b"tried")

    assert store.run(call) == b"superseded"
    assert lines(store) == [b"tried"]


def test_a_dead_letter_tells_of_its_run(store: Bench, caller: Bench) -> None:
    store.hold(b"a")

    caller.leases.dead_letter(QUEUE, "me", "1:1", "id", "failed", b"", b"run of a")

    assert lines(store) == [b"run of a"]
    assert len(list(store.dead_letters.all(QUEUE))) == 1


def test_a_dead_letter_without_a_run_is_not_told(store: Bench) -> None:
    store.hold(b"a")

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "unknown task")
    assert not store.client.exists(KEY)


# -- early acks


def test_runs_that_were_acknowledged_before_are_reported_once(store: Bench, caller: Bench) -> None:
    store.leases.claim("me", 60.0)

    caller.history.add("me", 2, 1000, [b"a", b"b"])
    caller.history.add("me", 3, 1000, [b"c"])

    assert lines(store) == [b"a", b"b", b"c"]
    assert 0 < store.client.pttl("delayq:worker_id:me") <= 60_000


def test_the_same_numbers_of_another_process_are_other_calls(store: Bench) -> None:
    for who in ("me", "you"):
        store.leases.claim(who, 60.0)
        assert store.history.add(who, 2, 1000, [who.encode()]) == 1

    assert lines(store) == [b"me", b"you"]


def test_a_process_that_counts_as_gone_tells_and_does_not_come_back_by_it(store: Bench) -> None:
    assert store.history.add("me", 2, 1000, [b"a"]) == 1
    assert not store.client.exists("delayq:worker_id:me")
    assert lines(store) == [b"a"]


# -- size of the history, keys of another type, and a full server


def test_about_as_many_are_kept_as_wanted(store: Bench) -> None:
    store.limits = lambda _queue: Limits(history=200)
    for number in range(10):
        message_id = str(number + 1)
        fields = store.hold(*(b"%d" % n for n in range(100)), number=message_id)
        store.run(store.leases.ack_call(QUEUE, "me", dict.fromkeys(fields, b"run")))

    assert 200 <= len(lines(store)) < 400
    assert store.history.oldest_offset() is not None


#: By name: a call that ends the message under ``1:1`` and records its run.
ENDS: dict[str, Callable[[Bench], object]] = {
    "ack": lambda s: ack(s, _1=b"1 a run"),
    "dead letter": lambda s: s.leases.dead_letter(QUEUE, "me", "1:1", "id", "why", b"", b"1 a run"),
    "retry": lambda s: s.run(retry_call(s, entry("r", FAR), "1:1", b"1 a run")),
}


@pytest.mark.parametrize("other", [KEY, INDEX, "full server"])
@pytest.mark.parametrize("end", ENDS)
def test_a_history_that_cannot_be_written_keeps_no_message_held(
    store: Bench, end: str, other: str
) -> None:
    store.hold(b"a")
    if other == "full server":
        store.fill()
    else:
        store.client.sadd(other, "not ours")

    assert ENDS[end](store)

    assert store.client.hgetall("{q}:leased:me") in ({}, {b"1:1": b""})
    if other != "full server":
        assert store.client.smembers(other) == {b"not ours"}
    if other == INDEX:
        assert lines(store) == [b"1 a run"]


def test_a_full_server_has_no_room_for_runs_that_free_none(store: Bench) -> None:
    store.fill()

    assert store.history.add("me", 2, 1000, [b"a"]) == 1
    assert lines(store) == []


# -- when an entry became ready


def test_a_message_tells_when_it_became_ready(store: Bench) -> None:
    store.put(labelled("a"), labelled("b"))
    store.become_due("a")
    before = store.now_ms()
    store.promote(QUEUE, Layout(limits=Limits(history=200)), 1)
    store.become_due("b")
    store.promote(limit=1)

    acquired = store.acquire()

    assert list(acquired.promoted) == ["1:1"]
    assert before <= acquired.promoted["1:1"] <= store.now_ms()
    assert [field for field, _, _ in acquired.messages] == ["1:1", "1:2"]
    assert store.acquire().promoted == {}, "a repeat does not know"
    assert store.client.hget("{q}:leased_index", "a") == b"n-a 1 - tasks.t me"


def test_one_that_was_cancelled_or_came_back_does_not_tell(store: Bench) -> None:
    store.put(labelled("a"), labelled("b"))
    store.become_due("a")
    store.become_due("b")
    store.promote(QUEUE, Layout(limits=Limits(history=200)), 2)
    store.cancel("a")
    fields = [field for field, _, _ in store.acquire().messages]
    store.requeue(*fields)

    again = store.acquire("2")

    assert [message for _, message, _ in again.messages] == [message_of(labelled("b"))]
    assert again.promoted == {}

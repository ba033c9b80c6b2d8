"""Changes that wait for Redis are made in their order, once it takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from celery_delayq.dispatch.acks import MOST_FAILURES, Changes, Tally
from celery_delayq.errors import BrokerUnavailable, CommandRefused, StoreFull
from celery_delayq.store.scripting.errors import error_of
from tests.support.leases import keeper, take

STORE: Any = object()


def failing(times: int, error: Exception, made: list[str]) -> Callable[[Any], None]:
    """Return a change that fails so many times."""
    errors = [error] * times

    def make(store: Any) -> None:
        if errors:
            raise errors.pop()
        made.append("first")

    return make


@pytest.fixture
def changes() -> Changes:
    return Changes(lambda: None)


@pytest.mark.parametrize(
    ("error", "times"),
    [(BrokerUnavailable(), 100), (ValueError("I/O operation on closed file"), MOST_FAILURES - 1)],
)
def test_what_fails_is_made_again_before_what_came_later(
    error: Exception, times: int, changes: Changes
) -> None:
    made: list[str] = []
    changes.add(failing(times, error, made))
    changes.add(lambda _: made.append("second"))

    for _ in range(times):
        with pytest.raises(type(error)):
            changes.flush(STORE)
    assert made == []
    changes.flush(STORE)

    assert made == ["first", "second"]
    assert not changes


@pytest.mark.parametrize(
    "answer",
    [
        "NOREPLICAS Not enough good replicas to write. script: 51, on @user_script:81.",
        "Error running script (call to f_51): @user_script:81: -NOREPLICAS Not enough replicas",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    ],
)
def test_what_no_server_takes_for_now_is_made_when_it_does(answer: str, changes: Changes) -> None:
    made: list[str] = []
    changes.add(failing(100, error_of(ResponseError(answer)), made))

    for _ in range(100):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["first"]
    assert not changes


@pytest.mark.parametrize(
    "error", [StoreFull("no memory"), error_of(ResponseError("NOPERM no permissions"))]
)
def test_what_needs_memory_or_a_right_waits_and_lets_others_go_first(
    error: Exception, changes: Changes
) -> None:
    made: list[str] = []
    changes.add(failing(3, error, made))
    changes.add(lambda _: made.append("second"))

    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
        assert made == ["second"]
    changes.flush(STORE)

    assert made == ["second", "first"]
    assert not changes


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CommandRefused("user_script:1: attempt to index nil"), BrokerUnavailable),
        (ValueError(), ValueError),
    ],
)
def test_what_cannot_be_made_is_logged_with_what_is_lost(
    error: Exception, raised: type[Exception], changes: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    changes.add(failing(MOST_FAILURES, error, made), "task-1 is lost")
    changes.add(lambda _: made.append("second"))

    for _ in range(MOST_FAILURES - 1):
        with pytest.raises(raised):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["second"]
    assert caplog.messages == ["A change was not made. task-1 is lost"]


def test_what_a_key_of_another_type_refuses_is_kept_until_it_passes(changes: Changes) -> None:
    made: list[str] = []
    times = 2 * MOST_FAILURES
    changes.add(failing(times, CommandRefused("WRONGTYPE"), made))

    for _ in range(times):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["first"]


def test_those_that_are_refused_take_no_longer_than_others_may(changes: Changes) -> None:
    """Leases are extended in between, so each turn has an end."""
    made: list[str] = []
    for _ in range(5):
        changes.add(failing(1, StoreFull("OOM"), made))

    for _ in range(5):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE, until=0.0)
    assert made == []
    changes.flush(STORE)

    assert made == ["first"] * 5


def test_what_is_given_up_is_logged(changes: Changes, caplog: pytest.LogCaptureFixture) -> None:
    changes.add(lambda _: None, "task-1 is lost")
    changes.add(lambda _: None)

    changes.give_up()

    assert caplog.messages == ["Redis was away when this process ended. task-1 is lost"]


# -- of a lease keeper


def test_an_acknowledgement_waits_to_be_sent_by_queue() -> None:
    one = keeper()
    tags = [*take(one, "a", 2), *take(one, "b", 1)]
    for tag in tags:
        one.ack(tag)

    assert one.held == {}
    assert one.acks.take().fields == {"a": {"1:1": b"", "1:2": b""}, "b": {"2:1": b""}}
    assert not one.acks.take()


@pytest.mark.parametrize("end", ["ack", "drop"])
def test_an_acknowledgement_for_what_is_not_held_does_nothing_and_is_counted(end: str) -> None:
    one = keeper()
    [tag] = take(one, "q", 1)
    assert one.drop(tag) is not None  # requeued, say
    assert one.tally == Tally()

    for foreign in (tag, "me:7:1", "you:1:1"):
        getattr(one, end)(foreign)

    assert one.tally == Tally(foreign_acks=3)
    assert not one.acks.take()


def test_acknowledgements_whose_connection_was_lost_are_sent_again_in_their_order() -> None:
    one = keeper()
    tags = take(one, "q", 4)
    for tag in tags[:2]:
        one.ack(tag)
    batch = one.acks.take()
    for tag in tags[2:]:
        one.ack(tag)
    one.acks.put_back(batch)

    again = one.acks.take()
    assert sorted(again.fields["q"]) == ["1:1", "1:2", "1:3", "1:4"]
    # Redis knew but the last two: the others had arrived, and their reply was lost.
    one.acks.confirm(again, [[2, 4]])
    assert one.tally == Tally()


def test_what_redis_does_not_know_any_more_was_acknowledged_late() -> None:
    one = keeper()
    for tag in take(one, "q", 3):
        one.ack(tag)
    one.acks.confirm(one.acks.take(), [[1, 3]])

    assert one.tally == Tally(late_acks=2)


def test_acknowledgements_that_were_too_much_for_one_call_are_sent_next_in_their_order() -> None:
    one = keeper()
    for tag in take(one, "q", 4):
        one.ack(tag)
    batch = one.acks.take()
    fields = [*batch.fields["q"]]
    one.acks.confirm(batch, [[1, 1]])

    assert [*one.acks.take().fields["q"]] == fields[1:]
    assert one.tally == Tally()


def test_putting_acknowledgements_back_wakes_the_thread() -> None:
    """Who took them may be the last to come by for a long time."""
    one = keeper()
    [tag] = take(one, "q", 1)
    one.ack(tag)
    batch = one.acks.take()
    # As the thread does when it wakes and finds nothing.
    one._signal.wait(0)
    one._signal.take_back()

    one.acks.put_back(batch)

    assert one._signal._given

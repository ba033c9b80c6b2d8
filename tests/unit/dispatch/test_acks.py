"""Acknowledgements of a lease keeper are sent until Redis has answered."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.dispatch.acks import LeaseTally
from tests.support.leases import keeper, take


def test_an_acknowledgement_waits_to_be_sent_by_queue() -> None:
    one = keeper()
    tags = [*take(one, "a", 2), *take(one, "b", 1)]
    for tag in tags:
        one.ack(tag)

    assert one.leased == {}
    assert one.acks.take().fields == {"a": {"1:1": b"", "1:2": b""}, "b": {"2:1": b""}}
    assert not one.acks.take()


@pytest.mark.parametrize("end", ["ack", "release"])
def test_an_acknowledgement_for_what_is_not_held_does_nothing_and_is_counted(end: str) -> None:
    one = keeper()
    [tag] = take(one, "q", 1)
    assert one.release(tag) is not None  # requeued, say
    assert one.tally == LeaseTally()

    for foreign in (tag, "me:7:1", "you:1:1"):
        getattr(one, end)(foreign)

    assert one.tally == LeaseTally(foreign_acks=3)
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
    assert one.tally == LeaseTally()


def test_what_redis_does_not_know_any_more_was_acknowledged_late() -> None:
    one = keeper()
    for tag in take(one, "q", 3):
        one.ack(tag)
    one.acks.confirm(one.acks.take(), [[1, 3]])

    assert one.tally == LeaseTally(late_acks=2)


def test_acknowledgements_that_were_too_much_for_one_call_are_sent_next_in_their_order() -> None:
    one = keeper()
    for tag in take(one, "q", 4):
        one.ack(tag)
    batch = one.acks.take()
    fields = [*batch.fields["q"]]
    one.acks.confirm(batch, [[1, 1]])

    assert [*one.acks.take().fields["q"]] == fields[1:]
    assert one.tally == LeaseTally()


def test_putting_acknowledgements_back_wakes_the_thread() -> None:
    """Who took them may be the last to come by for a long time."""
    one = keeper()
    [tag] = take(one, "q", 1)
    one.ack(tag)
    batch = one.acks.take()
    # As the thread does when it wakes and finds nothing.
    one._work_event.wait(0)
    one._work_event.clear()

    one.acks.put_back(batch)

    assert one._work_event._is_set


class Store:
    """A store that acknowledges all."""

    def __init__(self) -> None:
        self.leases = self
        self.sent: list[str] = []
        self.has_permits: list[bool] = []

    def ack_call(
        self, _queue: str, _me: str, fields: dict[str, bytes], has_permits: bool
    ) -> list[str]:
        """Return a call."""
        self.has_permits.append(has_permits)
        return [*fields]

    def run(self, call: list[str]) -> list[int]:
        """Run it."""
        self.sent += call
        return [len(call)] * 2


def test_the_thread_sends_at_its_second_look_what_no_request_took_along() -> None:
    store: Any = Store()
    one = keeper()
    tags = take(one, "q", 3)
    one.ack(tags[0])
    one.acks.send_due(store)
    assert store.sent == []
    one.acks.take(rides=True)
    one.ack(tags[1])
    one.acks.send_due(store)
    assert store.sent == []
    one.ack(tags[2])

    one.acks.send_due(store)

    assert store.sent == [one.field(tag) for tag in tags[1:]]


def test_the_thread_sends_at_once_what_gives_back_one_of_the_last_permits() -> None:
    store: Any = Store()
    one = keeper()
    fields = ["1:1", "1:2", "1:3"]
    tags = one.note_leased("q", "1", fields, permits=fields[:2], scarce=fields[:1])

    one.ack(tags[1])
    one.ack(tags[2])
    one.acks.send_due(store)
    assert store.sent == []
    one.ack(tags[0])
    one.acks.send_due(store)

    assert store.sent == ["1:2", "1:3", "1:1"]
    assert (one.scarce, store.has_permits) == (0, [True])

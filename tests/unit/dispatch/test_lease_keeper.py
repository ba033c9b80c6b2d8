"""What a process knows of what it holds, its signal to its thread, and what a message is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ResponseError

from celery_delayq.dispatch.acks import Tally
from celery_delayq.dispatch.lease_keeper import LeaseKeeper, new_worker_id
from celery_delayq.model.delivery import HeldBy, note_delivery
from celery_delayq.settings import Settings
from celery_delayq.testing import wait_until
from celery_delayq.utils import native_threads


class Message:
    """Stands for what was handed out."""


class AnyStore:
    """Stands for a store and all its parts: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any) -> None:
        """Be any of its methods."""


class BeatingStore(AnyStore):
    """Counts the beats for the one message that is held."""

    def __init__(self) -> None:
        self.beats: list[str] = []

    def beat(self, queue: str, *_: Any) -> int:
        """Extend the lease."""
        self.beats.append(queue)
        return 1


def keeper(
    claim: Callable[[str, float], bool] = lambda *_: True,
    name: Callable[[], str] = lambda: "me",
    **settings: Any,
) -> LeaseKeeper:
    """Return a keeper that never runs its thread, and so needs no store."""
    options = Settings.from_options({"delayq": settings})
    store: Any = None
    return LeaseKeeper(store, claim, options, name, start=lambda _: None)


def take(one: LeaseKeeper, queue: str, number: int, *, alone: bool = False) -> list[str]:
    """Have *one* hold so many messages that came with a request."""
    message_id = one.new_request_number(queue)
    fields = [f"{message_id}:{place}" for place in range(1, number + 1)]
    return one.take(queue, message_id, fields, alone=alone)


def test_an_worker_id_is_claimed_for_three_leases() -> None:
    claimed: list[tuple[str, float]] = []

    def claim(name: str, seconds: float) -> bool:
        claimed.append((name, seconds))
        return True

    assert keeper(claim, lease=7).worker_id == "me"
    assert claimed == [("me", 21.0)]


def test_an_worker_id_that_is_in_use_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    names = iter(["used", "used too", "free"])

    made = keeper(lambda name, _: name == "free", lambda: next(names))

    assert made.worker_id == "free"
    assert [record.getMessage() for record in caplog.records] == [
        "Worker id used is in use, taking another one",
        "Worker id used too is in use, taking another one",
    ]


def test_worker_ids_differ_and_name_the_process() -> None:
    names = {new_worker_id() for _ in range(100)}

    assert len(names) == 100
    assert len({name.rpartition(".")[0] for name in names}) == 1
    assert not any(":" in name for name in names)


def test_tags_tell_the_process_the_request_and_the_place() -> None:
    one = keeper()
    assert take(one, "q", 2) == ["me:1:1", "me:1:2"]
    assert take(one, "q", 1) == ["me:2:1"]

    assert [one.field(tag) for tag in one.held] == ["1:1", "1:2", "2:1"]
    assert one.owns("me:9:9")
    assert not one.owns("you:1:1")


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


def test_what_was_handed_out_is_told_from_what_was_taken_away() -> None:
    one = keeper()
    kept, gone = take(one, "q", 2)
    one.drop(gone)
    message = Message()

    assert one.handed_out(kept, message)
    assert not one.handed_out(gone, message)
    kept_by = one.held[kept].message
    assert kept_by is not None
    assert kept_by() is message


def test_what_was_taken_before_a_lease_ended_is_not_handed_out_and_what_comes_then_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = keeper(lease=7)
    message = Message()
    [early] = take(one, "q", 1)
    later = time.monotonic() + 7.001
    monkeypatch.setattr(time, "monotonic", lambda: later)

    [late] = take(one, "q", 1)

    assert not one.handed_out(early, message)
    assert one.handed_out(late, message)


def test_beside_what_is_delivered_alone_nothing_is_taken_until_it_is_done() -> None:
    one = keeper()
    [tag] = take(one, "q", 1, alone=True)
    assert one.makes_room
    one.ack(tag)

    assert not one.makes_room


def test_who_makes_room_takes_nothing_until_nothing_is_held() -> None:
    one = keeper()
    [tag] = take(one, "q", 1)
    one.make_room()
    assert one.makes_room
    one.ack(tag)

    assert not one.makes_room


def test_room_is_not_made_for_longer_than_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    one = keeper(lease=7)
    take(one, "q", 1)
    one.make_room()
    later = time.monotonic() + 7.001
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert not one.makes_room


def test_what_is_held_and_what_is_asked_for_keeps_a_process_busy() -> None:
    one = keeper()
    take(one, "a", 2)
    take(one, "b", 3)
    one.new_request_number("b")

    assert one.busy == 6


# -- the signal


def waited(signal: native_threads.Signal, seconds: float) -> float:
    start = time.monotonic()
    signal.wait(seconds)
    return time.monotonic() - start


def test_a_signal_that_was_given_before_lets_one_wait_return_at_once() -> None:
    signal = native_threads.Signal()
    signal.give()
    signal.give()

    assert waited(signal, 5) < 1
    assert waited(signal, 0.05) >= 0.05


def test_a_signal_wakes_the_thread_that_waits() -> None:
    signal = native_threads.Signal()
    took: list[float] = []
    thread = threading.Thread(target=lambda: took.append(waited(signal, 10)))
    thread.start()
    signal.give()
    thread.join(5)

    assert len(took) == 1
    assert took[0] < 5


def test_a_signal_can_be_given_again_after_it_was_taken_back() -> None:
    signal = native_threads.Signal()
    for _ in range(3):
        signal.give()
        assert waited(signal, 5) < 1
        signal.take_back()
    assert waited(signal, 0.05) >= 0.05


def test_no_signal_is_lost_between_threads() -> None:
    """The thread takes back, looks, and waits; what is given in between must wake it."""
    signal = native_threads.Signal()
    given, seen = 0, 0
    done = threading.Event()

    def work() -> None:
        nonlocal seen
        while not done.is_set():
            signal.take_back()
            if seen < given:
                seen = given
            else:
                signal.wait(10)

    def all_seen(number: int) -> bool:
        return seen == number

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(1, 301):
        given = number
        signal.give()
        if number % 10 == 0:
            wait_until(partial(all_seen, number), timeout=3, what="it is seen", interval=0.0005)
    done.set()
    signal.give()
    thread.join(5)
    assert not thread.is_alive()


def test_a_negative_wait_returns_at_once() -> None:
    assert waited(native_threads.Signal(), -1) < 1


# -- what a message is told

HELD = HeldBy("here", "q", "me:1:1")


def envelope(**own: Any) -> dict[str, Any]:
    properties: dict[str, Any] = {"delivery_tag": "t", "delivery_info": {"routing_key": "q"}}
    if own:
        properties["delayq"] = own
    return {"body": "", "properties": properties}


def test_the_first_delivery_is_no_redelivery() -> None:
    message = envelope()
    note_delivery(message, HELD, 1)

    assert message["properties"] == {
        "delivery_tag": "me:1:1",
        "delivery_info": {"routing_key": "q"},
        "delayq": {"place": "here", "queue": "q", "deliveries": 1},
    }


def test_a_later_delivery_is_one_and_keeps_what_is_ours() -> None:
    own = {"eta": "2030-01-01T00:00:00+00:00"}
    message = envelope(**own)
    before = json.dumps(own)
    note_delivery(message, HELD, 3)

    assert message["properties"]["delivery_info"] == {"routing_key": "q", "redelivered": True}
    assert message["properties"]["delayq"] == {
        **own,
        "place": "here",
        "queue": "q",
        "deliveries": 3,
    }
    assert json.dumps(own) == before


def test_what_is_left_to_do_starts_a_thread_that_has_ended() -> None:
    """The last channel has gone and nothing is held, when a task that was acknowledged fails."""
    started: list[Callable[[], None]] = []

    store: Any = AnyStore()
    options = Settings.from_options({"delayq": {}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me", start=started.append)
    one.join()
    one.leave()
    [run] = started
    run()  # to its end, as nothing is left to do
    made: list[Any] = []

    one.changes.add(made.append)
    [_, again] = started
    again()

    assert made == [store]


def test_no_thread_begins_before_the_last_one_has_closed_its_connections() -> None:
    """Else it would lose its own connection, and with eventlet wait for an answer for ever."""
    done: list[str] = []
    made = threading.Event()

    class Store(AnyStore):
        """Adds a change while the first thread gives up its name."""

        def disclaim(self, *_: Any) -> None:
            """Give up a name."""
            if not done:
                one.changes.add(make)
                made.wait(0.2)
            done.append("gave up its name")

        def disconnect(self) -> None:
            """Close all connections."""
            done.append("closed its connections")

    def make(_: object) -> None:
        done.append("made the change")
        made.set()

    store: Any = Store()
    options = Settings.from_options({"delayq": {}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    one.join()
    one.leave()
    wait_until(lambda: len(done) == 5, what="both threads end")

    assert done == [
        "gave up its name",
        "closed its connections",
        "made the change",
        "gave up its name",
        "closed its connections",
    ]


def test_a_process_does_not_end_while_something_is_being_given_back() -> None:
    asked, answered = threading.Event(), threading.Event()
    given_back: list[list[str]] = []

    class Store(AnyStore):
        """Answers late."""

        def requeue(self, _queue: str, _me: str, fields: list[str], **_: Any) -> tuple[int, int]:
            """Give back."""
            asked.set()
            answered.wait(10)
            given_back.append(fields)
            return len(fields), 0

    store: Any = Store()
    options = Settings.from_options({"delayq": {}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    one.join()
    [tag] = take(one, "q", 1)
    one.orphan([tag])
    asked.wait(10)

    threading.Timer(0.2, answered.set).start()
    one.end(time.monotonic() + 10)
    one.leave()

    assert given_back == [[one.field(tag)]]


def test_changes_that_come_all_the_time_let_no_lease_end() -> None:
    """Each is made in 1 ms, and leads to the next; the lease is 1 s."""
    store: Any = BeatingStore()

    def make_another(_: object) -> None:
        time.sleep(0.001)
        if len(store.beats) < 3:
            one.changes.add(make_another)

    options = Settings.from_options({"delayq": {"lease": 1}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    [tag] = take(one, "q", 1)

    one.changes.add(make_another)
    wait_until(lambda: not one.changes, what="three beats")
    one.drop(tag)

    assert store.beats == ["q"] * 3


def test_changes_are_made_where_no_lease_can_be_extended() -> None:
    refused: list[None] = []

    class Store(AnyStore):
        """Has an account without the right to extend anything."""

        def renew(self, *_: Any) -> None:
            """Be refused."""
            refused.append(None)
            raise ResponseError("NOPERM this user has no permissions to run the 'pexpire' command")

    store: Any = Store()
    options = Settings.from_options({"delayq": {"lease": 1}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    [tag] = take(one, "q", 1)
    made: list[int] = []

    def make(number: int, _: Any) -> None:
        made.append(number)

    one.join()
    wait_until(lambda: refused, what="a beat that fails")

    for number in range(3):
        one.changes.add(partial(make, number))

    wait_until(lambda: not one.changes, what="all changes are made")
    one.drop(tag)
    one.leave()
    assert made == [0, 1, 2]


def test_a_process_ends_at_once_where_a_task_outlived_its_connection() -> None:
    store: Any = AnyStore()
    options = Settings.from_options({"delayq": {}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    one.join()
    [tag] = take(one, "q", 1)
    message = Message()
    one.handed_out(tag, message)
    one.orphan([tag])
    one.drop(tag)
    one.leave()

    one.end(time.monotonic() + 60)
    assert not one._orphans


def test_a_change_that_fails_again_and_again_lets_no_lease_end() -> None:
    """With a lease of 1 s the thread extends it each third of a second, and tries each sixth."""
    store: Any = BeatingStore()
    beats_before: list[int] = []
    done: list[None] = []

    def fail(_: object) -> None:
        beats_before.append(len(store.beats))
        raise RuntimeError("it cannot be made")

    options = Settings.from_options({"delayq": {"lease": 1}})
    one = LeaseKeeper(store, lambda *_: True, options, lambda: "me")
    [tag] = take(one, "q", 1)

    one.changes.add(fail)
    one.changes.add(lambda _: done.append(None))
    wait_until(lambda: done, what="it is given up")
    one.drop(tag)

    assert len(beats_before) == 10
    assert beats_before[-1] >= 3

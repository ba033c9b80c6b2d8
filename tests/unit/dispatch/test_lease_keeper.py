"""What a lease keeper knows of its leased messages, and what its thread does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_delayq.dispatch.lease_keeper import LeaseKeeper, ThreadState, new_worker_id
from celery_delayq.errors import CommandRefused
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.leases import Message, keeper, take


class AnyStore:
    """Stands for a store and all its parts: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any) -> None:
        """Act as any of the store's methods."""


class BeatingStore(AnyStore):
    """Counts heartbeats for the one leased message."""

    def __init__(self) -> None:
        self.beats: list[str] = []

    def extend(self, queue: str, *_: Any) -> int:
        """Extend the lease."""
        self.beats.append(queue)
        return 1


def test_a_worker_id_is_claimed_for_three_leases() -> None:
    claimed: list[tuple[str, float]] = []

    def claim(name: str, seconds: float) -> bool:
        claimed.append((name, seconds))
        return True

    assert keeper(claim, lease=7).worker_id == "me"
    assert claimed == [("me", 21.0)]


def test_a_worker_id_that_is_in_use_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
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

    assert [one.field(tag) for tag in one.leased] == ["1:1", "1:2", "2:1"]
    assert one.owns("me:9:9")
    assert not one.owns("you:1:1")


def test_what_was_handed_out_differs_from_what_was_taken_away() -> None:
    one = keeper()
    kept, gone = take(one, "q", 2)
    one.release(gone)
    message = Message()

    assert one.note_handed_out(kept, message)
    assert not one.note_handed_out(gone, message)
    kept_by = one.leased[kept].message
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

    assert not one.note_handed_out(early, message)
    assert one.note_handed_out(late, message)


@pytest.mark.parametrize("alone", [True, False], ids=["delivered alone", "making room"])
def test_nothing_is_taken_until_nothing_is_held(alone: bool) -> None:
    one = keeper()
    [tag] = take(one, "q", 1, alone=alone)
    if not alone:
        one.make_room()
    assert not one.may_request()
    one.ack(tag)

    assert one.may_request()


def test_room_is_not_made_for_longer_than_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    one = keeper(lease=7)
    take(one, "q", 1)
    one.make_room()
    later = time.monotonic() + 7.001
    monkeypatch.setattr(time, "monotonic", lambda: later)

    assert one.may_request()


def test_what_is_held_and_what_is_asked_for_keeps_a_process_busy() -> None:
    one = keeper()
    take(one, "a", 2)
    take(one, "b", 3)
    one.new_request_number("b")

    assert one.busy == 6


def test_after_making_room_in_vain_quarantined_messages_are_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = keeper(lease=7)
    [tag] = take(one, "q", 1)
    one.make_room()
    one.new_request_number("q")
    assert one.leases_beside == 1
    later = time.monotonic() + 7.001
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert one.may_request()

    assert one.leases_beside == -1
    one.release(tag)
    assert one.leases_beside == 0


# -- its thread


def test_the_thread_goes_from_state_to_state() -> None:
    """As the table in the docstring of its states says."""
    started: list[Callable[[], None]] = []
    seen: list[ThreadState] = []

    class Held(dict[str, Any]):
        """Notes the state in which the thread looks for something to do."""

        def __len__(self) -> int:
            seen.append(one._thread_state)
            return super().__len__()

    def see(_: object) -> None:
        seen.append(one._thread_state)

    def state() -> ThreadState:
        return one._thread_state

    one = keeper(store=AnyStore(), start=started.append)
    one.leased = Held()
    assert state() is ThreadState.STOPPED
    one.add_channel()
    one.add_channel()
    assert state() is ThreadState.RUNNING
    one.remove_channel()
    one.remove_channel()
    one.changes.add(see)

    [run] = started
    run()
    assert seen == [ThreadState.DECIDING, ThreadState.RUNNING, ThreadState.DECIDING]
    assert state() is ThreadState.STOPPED

    one.changes.add(see)
    assert state() is ThreadState.RUNNING
    one.end(until=0.0)
    assert state() is ThreadState.ENDED
    _, orphaned_fields = started
    orphaned_fields()
    one.changes.add(see)
    assert state() is ThreadState.ENDED
    assert (len(started), len(seen)) == (2, 3)


def test_what_is_left_to_do_starts_a_thread_that_has_ended() -> None:
    """The last channel has gone and nothing is held, when a task that was acknowledged fails."""
    started: list[Callable[[], None]] = []

    store = AnyStore()
    one = keeper(store=store, start=started.append)
    one.add_channel()
    one.remove_channel()
    [run] = started
    run()  # to its end, as nothing is left to do
    made: list[Any] = []

    one.changes.add(made.append)
    [_, orphaned_fields] = started
    orphaned_fields()

    assert made == [store]


@pytest.mark.parametrize(
    "leave",
    [lambda one: one.requeue_idle(["me:1:1"]), lambda one: one.abandon_request("q", "1")],
    ids=["a task that was cut off", "a request without a reply"],
)
def test_what_is_to_be_requeued_starts_a_thread_that_has_ended(
    leave: Callable[[LeaseKeeper], None],
) -> None:
    """Else the end of the process would wait for it, in vain."""
    started: list[Callable[[], None]] = []

    class Store(AnyStore):
        """Holds nothing."""

        def leased_fields(self, *_: Any) -> set[str]:
            """Return the fields of what is held."""
            return set()

    one = keeper(store=Store(), start=started.append)
    leave(one)

    [run] = started
    run()

    one.end(time.monotonic() + 60)
    assert not one._tags_to_requeue
    assert not one._abandoned_requests


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

    one = keeper(store=Store(), start=None)
    one.add_channel()
    one.remove_channel()
    wait_until(lambda: len(done) == 5, what="both threads end")

    assert done == [
        "gave up its name",
        "closed its connections",
        "made the change",
        "gave up its name",
        "closed its connections",
    ]


def test_a_process_does_not_end_while_something_is_being_requeued() -> None:
    open_requests, answered = threading.Event(), threading.Event()
    requeued: list[list[str]] = []

    class Store(AnyStore):
        """Answers late."""

        def requeue(self, _queue: str, _me: str, fields: list[str], **_: Any) -> tuple[int, int]:
            """Give back."""
            open_requests.set()
            answered.wait(TIMEOUT)
            requeued.append(fields)
            return len(fields), 0

    one = keeper(store=Store(), start=None)
    one.add_channel()
    [tag] = take(one, "q", 1)
    one.requeue_idle([tag])
    open_requests.wait(TIMEOUT)

    threading.Timer(0.2, answered.set).start()
    one.end(time.monotonic() + 10)
    one.remove_channel()

    assert requeued == [[one.field(tag)]]


def test_changes_that_come_all_the_time_let_no_lease_end() -> None:
    """Each is made in 1 ms, and leads to the next; the lease is 1 s."""
    store: Any = BeatingStore()

    def make_another(_: object) -> None:
        time.sleep(0.001)
        if len(store.beats) < 3:
            one.changes.add(make_another)

    one = keeper(store=store, start=None, lease=1)
    [tag] = take(one, "q", 1)

    one.changes.add(make_another)
    wait_until(lambda: not one.changes, what="three beats")
    one.release(tag)

    assert store.beats == ["q"] * 3


def test_changes_are_made_where_no_lease_can_be_extended() -> None:
    refused: list[None] = []

    class Store(AnyStore):
        """Has an account without the right to extend anything."""

        def renew(self, *_: Any) -> None:
            """Be refused."""
            refused.append(None)
            raise CommandRefused("NOPERM this user has no permissions to run the 'pexpire' command")

    one = keeper(store=Store(), start=None, lease=1)
    [tag] = take(one, "q", 1)
    made: list[int] = []

    def make(number: int, _: Any) -> None:
        made.append(number)

    one.add_channel()
    wait_until(lambda: refused, what="a beat that fails")

    for number in range(3):
        one.changes.add(partial(make, number))

    wait_until(lambda: not one.changes, what="all changes are made")
    one.release(tag)
    one.remove_channel()
    assert made == [0, 1, 2]


def test_a_process_ends_at_once_where_a_task_outlived_its_connection() -> None:
    one = keeper(store=AnyStore(), start=None)
    one.add_channel()
    [tag] = take(one, "q", 1)
    message = Message()
    one.note_handed_out(tag, message)
    one.requeue_idle([tag])
    one.release(tag)
    one.remove_channel()

    one.end(time.monotonic() + 60)
    assert not one._tags_to_requeue


def test_a_change_that_fails_again_and_again_lets_no_lease_end() -> None:
    """With a lease of 1 s the thread extends it each third of a second, and tries each sixth."""
    store: Any = BeatingStore()
    beats_before: list[int] = []
    done: list[None] = []

    def fail(_: object) -> None:
        beats_before.append(len(store.beats))
        raise RuntimeError("it cannot be made")

    one = keeper(store=store, start=None, lease=1)
    [tag] = take(one, "q", 1)

    one.changes.add(fail)
    one.changes.add(lambda _: done.append(None))
    wait_until(lambda: done, what="it is given up")
    one.release(tag)

    assert len(beats_before) == 10
    assert beats_before[-1] >= 3

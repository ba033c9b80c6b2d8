"""pause.lua, and how dispatch/promote.lua and leases/acquire.lua keep to it: paused and due,
unparked, not handed out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LAYOUT,
    QUEUE,
    entry,
    fill,
    labelled,
    make_ready,
    push,
    put,
    repeating,
    reserve,
    state,
)
from tests.lua.pausing import overdue, pause, promote, resume
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.usefixtures("watched")


# -- the script


def test_what_is_paused_is_listed_with_since_when(store: Store) -> None:
    before = store.now_ms()

    assert pause(store, task="shop.send mail")
    assert pause(store, queue="q")

    controls = store.control.controls()
    assert controls.revision == 2
    [(task, since)] = controls.tasks.items()
    assert task == "shop.send mail"
    assert before <= since <= controls.queues["q"] <= store.now_ms()
    assert state(store).keys() == {"delayq:control"}


def test_doing_it_again_changes_nothing(store: Store) -> None:
    pause(store)
    before = state(store)

    assert not pause(store)
    assert state(store) == before
    assert resume(store)
    before = state(store)
    assert before["delayq:control"] == {b"revision": b"2"}
    assert not resume(store)
    assert state(store) == before


def test_a_repeat_of_each_is_the_same_as_once(store: Store) -> None:
    pause(repeating(store))
    assert store.control.controls().revision == 1
    resume(repeating(store))
    assert store.control.controls() == (2, {}, {})


def test_consumers_are_told_the_revision(store: Store) -> None:
    assert reserve(store).revision == 0
    pause(store)
    resume(store)
    push(store, b"{}")
    assert reserve(store).revision == 2


def test_when_it_goes_on_dispatchers_look_at_once(store: Store) -> None:
    put(store, labelled("a"))
    pause(store)
    with store.client.pubsub(ignore_subscribe_messages=True) as ears:
        ears.subscribe(store.keys.wake)
        ears.get_message(timeout=5)
        resume(store)
        heard = ears.get_message(timeout=5)

    assert heard
    assert heard["data"].endswith(b" q")
    assert int(heard["data"].split()[0]) <= 0
    assert store.client.zscore("delayq:next_due", "q") <= store.now_ms()


@pytest.mark.parametrize("paused", [False, True], ids=["was not paused", "was paused"])
@pytest.mark.parametrize("kind", ["queue", "task"])
def test_a_queue_without_a_schedule_leaves_no_trace_when_it_goes_on(
    store: Store, kind: str, paused: bool
) -> None:
    named = {"queue": QUEUE} if kind == "queue" else {"task": "tasks.t"}
    if paused:
        pause(store, **named)

    assert resume(store, **named) is paused

    assert state(store) == ({"delayq:control": {b"revision": b"2"}} if paused else {})


def test_even_a_full_server_pauses_and_lets_go(store: Store) -> None:
    pause(store, task="t")
    fill(store)

    assert pause(store, task="u")
    assert resume(store, task="t")
    assert store.control.controls().tasks.keys() == {"u"}


@pytest.mark.parametrize(
    ("do", "key"),
    [(pause, "delayq:control"), (resume, "delayq:control"), (resume, "delayq:next_due")],
)
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, do: Callable[[Store], bool], key: str
) -> None:
    pause(store, task="t")
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        do(store)

    assert snapshot(store.client) == before


# -- a paused queue


def test_nothing_of_a_paused_queue_moves(store: Store) -> None:
    overdue(store, "a")
    pause(store, queue="q")
    before = state(store)

    promoted = store.promote(QUEUE, Layout(), 100)
    assert (promoted.moved, promoted.dead_lettered, promoted.look.queue) == (0, 0, None)
    del before["delayq:next_due"]
    assert state(store) == before

    resume(store, queue="q")
    assert promote(store) == 1


def test_other_queues_go_on(store: Store) -> None:
    store.schedule("other", entry("b", FAR))
    overdue(store, "a")
    pause(store, queue="q")

    assert store.promote(QUEUE, Layout(), 100).look[1:] == ("other", FAR, ())
    assert store.next_queue()[1:] == ("other", FAR, ())


def test_nothing_of_a_paused_queue_is_handed_out_and_nobody_is_woken(store: Store) -> None:
    make_ready(store, labelled("a"))
    push(store, b"{}")
    pause(store, queue="q")

    reserved = reserve(store)
    assert (reserved.more, reserved.messages) == (0, [])
    assert "{q}:wake" not in state(store)
    assert store.client.llen("q") == 2

    resume(store, queue="q")
    assert len(reserve(store, "2").messages) == 2


def test_what_is_held_is_told_again_though_the_queue_is_paused(store: Store) -> None:
    push(store, b"{}")
    first = reserve(store)
    pause(store, queue="q")

    assert reserve(store).messages == first.messages
    assert store.leases.requeue(QUEUE, "me", ["1:1"]) == (1, 0)
    assert reserve(store, "2").messages == []


def test_what_is_to_be_delivered_alone_waits_too(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"0\n{}")
    pause(store, queue="q")
    reserved = reserve(store)
    assert (reserved.messages, reserved.alone, reserved.room) == ([], False, False)

    resume(store, queue="q")
    assert reserve(store, "2").alone


def test_what_is_sent_meanwhile_is_kept(store: Store) -> None:
    pause(store, queue="q")
    put(store, labelled("ready", 1), labelled("due", 20, relative=True))
    while store.now_ms() < int(store.client.zscore("{q}:due", "due") or 0):
        pass
    assert promote(store) == 0

    resume(store, queue="q")
    assert promote(store) == 1
    assert len(reserve(store).messages) == 2
    assert state(store)["delayq:queues"] == {b"q": LAYOUT}

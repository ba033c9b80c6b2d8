"""pause.lua, and its effect on dispatch/promote.lua and leases/acquire.lua."""

from __future__ import annotations

import pytest

from tests.lua.bench import FAR, LAYOUT, QUEUE, Bench, Calls, entry, labelled

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/pause": (lambda s: s.control.pause(["q"], task="t"), b"1"),
}

# -- the script


def test_what_is_paused_is_listed_with_since_when(store: Bench) -> None:
    before = store.now_ms()

    assert store.pause(task="shop.send mail")
    assert store.pause(queue="q")

    controls = store.control.controls()
    assert controls.revision == 2
    [(task, since)] = controls.tasks.items()
    assert task == "shop.send mail"
    assert before <= since <= controls.queues["q"] <= store.now_ms()
    assert store.state().keys() == {"delayq:control"}


def test_doing_it_again_changes_nothing(store: Bench) -> None:
    store.pause()
    before = store.state()

    assert not store.pause()
    assert store.state() == before
    assert store.resume()
    before = store.state()
    assert before["delayq:control"] == {b"revision": b"2"}
    assert not store.resume()
    assert store.state() == before


def test_consumers_get_the_revision(store: Bench) -> None:
    assert store.acquire().revision == 0
    store.pause()
    store.resume()
    store.push(b"{}")
    assert store.acquire().revision == 2


def test_when_it_goes_on_dispatchers_look_at_once(store: Bench) -> None:
    store.put(labelled("a"))
    store.pause()
    with store.wakeups() as heard:
        store.resume()

    [(wait, queue)] = heard
    assert wait <= 0
    assert queue == "q"
    assert store.client.zscore("delayq:next_due", "q") <= store.now_ms()


@pytest.mark.parametrize("paused", [False, True], ids=["was not paused", "was paused"])
@pytest.mark.parametrize("kind", ["queue", "task"])
def test_a_queue_without_a_schedule_leaves_no_trace_when_it_goes_on(
    store: Bench, kind: str, paused: bool
) -> None:
    named = {"queue": QUEUE} if kind == "queue" else {"task": "tasks.t"}
    if paused:
        store.pause(**named)

    assert store.resume(**named) is paused

    assert store.state() == ({"delayq:control": {b"revision": b"2"}} if paused else {})


# -- a paused queue


def test_nothing_of_a_paused_queue_moves(store: Bench) -> None:
    store.overdue("a")
    store.pause(queue="q")
    before = store.state()

    promoted = store.promote()
    assert (promoted.moved, promoted.dead_lettered, promoted.look.queue) == (0, 0, None)
    del before["delayq:next_due"]
    assert store.state() == before

    store.resume(queue="q")
    assert store.promote().moved == 1


def test_other_queues_go_on(store: Bench) -> None:
    store.schedule("other", entry("b", FAR))
    store.overdue("a")
    store.pause(queue="q")

    assert store.promote().look[1:4] == ("other", FAR, ())
    assert store.next_queue()[1:4] == ("other", FAR, ())


def test_nothing_of_a_paused_queue_is_handed_out_and_nobody_is_woken(store: Bench) -> None:
    store.make_ready(labelled("a"))
    store.push(b"{}")
    store.pause(queue="q")

    acquired = store.acquire()
    assert (acquired.first_list, acquired.messages) == (0, [])
    assert "{q}:wake" not in store.state()
    assert store.client.llen("q") == 2

    store.resume(queue="q")
    assert len(store.acquire("2").messages) == 2


def test_what_is_held_is_reported_again_though_the_queue_is_paused(store: Bench) -> None:
    store.push(b"{}")
    first = store.acquire()
    store.pause(queue="q")

    assert store.acquire().messages == first.messages
    assert store.requeue("1:1") == (1, 0)
    assert store.acquire("2").messages == []


def test_what_is_to_be_delivered_alone_waits_too(store: Bench) -> None:
    store.client.lpush("{q}:quarantined", b"0\n{}")
    store.pause(queue="q")
    acquired = store.acquire()
    assert (acquired.messages, acquired.alone, acquired.must_make_room) == ([], False, False)

    store.resume(queue="q")
    assert store.acquire("2").alone


def test_what_is_sent_meanwhile_is_kept(store: Bench) -> None:
    store.pause(queue="q")
    store.put(labelled("ready", 1), labelled("due", 20, relative=True))
    while store.now_ms() < int(store.client.zscore("{q}:due", "due") or 0):
        pass
    assert store.promote().moved == 0

    store.resume(queue="q")
    assert store.promote().moved == 1
    assert len(store.acquire().messages) == 2
    assert store.state()["delayq:queues"] == {b"q": LAYOUT}

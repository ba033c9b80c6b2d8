"""next_queue.lua, dispatch/defer_queue.lua, deadletters/add.lua and scripts that read a queue."""

from __future__ import annotations

from typing import cast

from celery_delayq.model.envelope import with_skip_after
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting import scripts
from tests.lua.bench import DEFAULT, FAR, QUEUE, Bench, Calls, entry, labelled
from tests.support import TIMEOUT
from tests.support.lease_time import CLOCK, set_clock_back

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "dispatch/next_queue": (
        lambda s: s.next_queue(skipped=["r"]),
        [5, b"q", b"7", 0, 1, 2, 1, b"q"],
    ),
    "dispatch/defer_queue": (lambda s: s.defer_queue("q", 1.0, ["r"]), [5, b"q", b"7"]),
    "schedule/counts": (
        lambda s: s.gauges.sizes("q", Layout()),
        [b"5 1 1 7 0 0 0 0 - 0 me", b"acked 1"],
    ),
    "scan/tasks": (lambda s: s.run_steps(s.scheduled_tasks_steps("q")), [b"", b"tasks.add", 1]),
    "deadletters/add": (lambda s: s.dead_letters.add("q", "id", "reason", b"{}"), 1),
}


def test_an_empty_next_due_has_nothing_to_look_at(store: Bench) -> None:
    before = store.now_ms()

    look = store.next_queue()

    assert (look.queue, look.due, look.wait) == (None, None, None)
    assert before <= look.now // 1000 <= store.now_ms()


def test_a_deferred_queue_comes_later_but_a_new_entry_brings_it_forward(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", 100, relative=True))

    deferred = store.defer_queue("q", 60)
    assert deferred.due is not None
    assert 59_000 < deferred.due - deferred.now / 1000 <= 60_000

    store.schedule(QUEUE, entry("b", 200, relative=True))
    soon = store.next_queue()
    assert soon.due is not None
    assert soon.due - soon.now / 1000 <= 201


def test_queues_that_are_left_to_others_are_passed_over(store: Bench) -> None:
    store.client.zadd("delayq:next_due", {"a": 1, "b": 2, "c": 3})
    store.client.delete("delayq:clock")

    left = ["other", "b", "a"]
    looks = [
        store.next_queue(skipped=left[:2]),
        store.next_queue(skipped=left),
        store.defer_queue("none", 60, left),
        store.promote("none", Layout(), 1, skipped=left).look,
        store.next_queue(skipped=[*left, "c"]),
    ]

    assert [look.queue for look in looks] == ["a", "c", "c", "c", None]
    # The entries are overdue nevertheless: no dispatcher has noted that nothing is due.
    assert not store.client.hexists("delayq:clock", "dispatched")


def test_a_queue_without_a_schedule_is_not_put_on_the_next_due_by_deferring(store: Bench) -> None:
    store.defer_queue("q", 60)

    assert store.state() == {}


def test_scheduled_entries_are_counted_by_task(store: Bench) -> None:
    for n in range(3):
        store.schedule(QUEUE, entry(f"m{n}", FAR, task="mail"))
    store.schedule(QUEUE, entry("x", FAR, task="mail.other"))
    store.schedule(QUEUE, entry("y", FAR, task="with space"))

    counts = store.run_steps(store.scheduled_tasks_steps("q"))
    assert counts == {"mail": 3, "mail.other": 1, "with space": 1}
    assert store.scheduled("q", "mail") == 3
    assert store.scheduled("q", "with space") == 1
    assert store.scheduled("q", "mai") == 0
    assert store.scheduled("q") == 5


def test_a_script_that_the_server_forgot_is_sent_again(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR))
    store.client.script_flush()

    assert store.schedule(QUEUE, entry("b", FAR))[0] == "scheduled"


def test_every_script_is_loaded_and_refers_to_no_key_by_name(store: Bench) -> None:
    for name in scripts.names():
        source = scripts.load(name).source
        assert "@include" not in source
        assert "delayq:" not in source
        assert "cjson" not in source
        assert store.client.script_load(source) == scripts.load(name).sha


def test_sizes_are_reported_even_by_a_full_server(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR))
    store.schedule(QUEUE, entry("b", FAR + 1))
    store.schedule(QUEUE, entry("c", 0, priority=3))
    store.dead_letters.add("q", "d", "undecodable", b"")
    store.client.zadd("{q}:due", {"b": 5})
    store.fill()

    before = store.now_ms()

    sizes = store.gauges.sizes("q", Layout())

    assert before <= sizes.now <= store.now_ms()
    assert sizes[1:7] == (2, 1, 1, 1, 5, 0)


def test_what_waits_to_be_delivered_alone_counts_as_ready(store: Bench) -> None:
    store.client.lpush("q", b"a")
    store.client.lpush("{q}:quarantined", b"0\nb", b"3\nc")

    assert store.gauges.sizes("q", Layout()).ready == 3


def test_the_others_hear_when_the_one_on_duty_looks(store: Bench) -> None:
    with store.client.pubsub(ignore_subscribe_messages=True) as one:
        one.subscribe(store.keys.fleet)
        one.get_message(timeout=TIMEOUT)
        alone = store.next_queue(dispatcher="on duty", is_subscribed=True, ready_every=1.0)
        with store.client.pubsub(ignore_subscribe_messages=True) as other:
            other.subscribe(store.keys.fleet)
            other.get_message(timeout=TIMEOUT)
            looks = [
                store.next_queue(dispatcher=who, is_subscribed=True, ready_every=ready)
                for who, ready in (("on duty", 1.0), ("off duty", 1.0), ("on duty", 0.0))
            ]
            heard = [
                message and message["data"]
                for message in (
                    one.get_message(timeout=TIMEOUT),
                    *(other.get_message(timeout=seconds) for seconds in (TIMEOUT, TIMEOUT, 0.1)),
                )
            ]

    assert [(look.on_duty, look.fleet) for look in (alone, *looks)] == [
        (True, 1),
        (True, 2),
        (False, 2),
        (True, 2),
    ]
    # The message also says whether a dispatcher looks at the ready lists.
    assert heard == [b"1", b"1", b"1", None]


def test_after_the_clock_was_set_back_each_look_brings_a_portion_of_the_queues_forward(
    store: Bench,
) -> None:
    number = 3_500
    store.client.zadd("delayq:next_due", {f"queue-{n}": FAR for n in range(number)})
    set_clock_back(store.client, 3600)
    portions: list[int] = []
    while (forward := _forward(store)) < number:
        store.next_queue()
        portions.append(_forward(store) - forward)

    assert len(portions) >= 3
    assert max(portions) <= 1_100
    store.next_queue()
    assert not store.client.hexists(CLOCK, "cursor"), "it looks on and on"


def _forward(store: Bench) -> int:
    return cast(int, store.client.zcount("delayq:next_due", "-inf", FAR - 1))


def test_what_an_absence_has_left_is_missed_also_after_the_next_one(store: Bench) -> None:
    """A dispatcher comes after an hour and dies at once; the next one comes seconds later."""
    store.schedule(QUEUE, with_skip_after(labelled("tick"), 1_000))
    tick = store.now_ms() - 1_800_000
    store.client.zadd(store.keys.queue(QUEUE).due, {"tick": tick})
    store.client.zadd("delayq:next_due", {QUEUE: tick})
    store.client.hset(CLOCK, "seen", tick - 1_800_000)
    assert store.next_queue().queue == QUEUE
    for field in ("seen", "away_from", "away_to"):
        store.client.hincrby(CLOCK, field, -3_000)

    store.next_queue()
    assert store.promote(QUEUE, DEFAULT, 10).moved == 0
    assert store.scheduled(QUEUE) == 0

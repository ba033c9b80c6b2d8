"""Published, imported, fired and promoted messages are counted, each once."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.store.periodic import EntryTicks, EntryWrite
from tests.lua.bench import DEFAULT, QUEUE, Bench, entry, labelled
from tests.lua.totals.counting import Counting


def test_what_is_published_is_accepted_and_what_waits_already_is_not(
    twice: Bench, new: Counting
) -> None:
    twice.put(labelled("a"), labelled("b", 1), labelled("a"))
    assert new() == {"accepted": 2}

    assert twice.put(labelled("a")) != []
    assert new() == {}


def test_what_is_to_run_at_once_is_accepted_each_time(store: Bench, new: Counting) -> None:
    store.push(b"one", b"two")
    store.push(b"one", step=3)

    assert new() == {"accepted": 3}


def test_what_a_full_queue_refuses_is_not_accepted(store: Bench, new: Counting) -> None:
    call = store.schedule_call(QUEUE)
    call.args[3] = 1
    call.add(labelled("a"))
    call.add(labelled("b"))
    store.run(call)

    assert new() == {"accepted": 1}


@pytest.mark.parametrize("policy", ["k 0 0", "e 0 0"])
def test_what_another_has_the_key_of_is_not_accepted(
    store: Bench, new: Counting, policy: str
) -> None:
    store.put(labelled("a", unique="dk"), labelled("b", unique="dk", policy=policy))

    assert new() == {"accepted": 1}


@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0"])
def test_one_that_takes_the_place_of_a_scheduled_one_replaces_it(
    twice: Bench, new: Counting, policy: str
) -> None:
    twice.put(labelled("a", unique="dk"))
    twice.put(labelled("b", unique="dk", policy=policy))

    assert new() == {"accepted": 2, "replaced": 1}


def test_a_ready_one_is_replaced_when_it_is_dropped(store: Bench, new: Counting) -> None:
    store.make_ready(labelled("a", unique="dk"))
    store.put(labelled("b", unique="dk"))
    assert new() == {"accepted": 2, "promoted": 1}

    store.acquire()
    assert new() == {"replaced": 1}


def test_a_retry_whose_message_was_acknowledged_before_is_retried_and_accepted(
    twice: Bench, new: Counting
) -> None:
    call = twice.schedule_call(QUEUE, retry=True)
    call.add(labelled("a"))
    twice.run(call)

    assert new() == {"accepted": 1, "retried": 1}


def test_imported_entries_are_accepted_once(twice: Bench, new: Counting) -> None:
    twice.run(twice.import_call(QUEUE, [labelled("a"), entry("b", 5)], "token"))

    assert new() == {"accepted": 2}


def test_ticks_are_counted_by_outcome(twice: Bench, new: Counting) -> None:
    store, gauges = twice.periodic, twice.gauges
    store.write([EntryWrite("name", "", "line\n{}", 7)])

    def fire(line: str, then: str, refused: str, *entries: Any) -> None:
        call = store.fire_call(QUEUE, [EntryTicks("name", line, then, 7, refused, 7, [*entries])])
        twice.run(call)

    def keeping(id: str) -> Entry:
        return labelled(id, unique="dp", policy="k 0 0")

    fire("line", "line2", "line2", keeping("a"))
    fire("line2", "line3", "line3", keeping("b"))
    fire("line3", "line4", "line3", keeping("c"))  # it waits, and is tried again

    assert new() == {"accepted": 1}
    ticks = gauges.server().ticks
    assert ticks.outcomes == {"scheduled": 1, "overlap": 1, "duplicate": 0}
    assert ticks.epoch


def test_what_is_due_is_promoted(store: Bench, new: Counting) -> None:
    store.overdue("a", "b")
    store.promote()

    assert new() == {"accepted": 2, "promoted": 2}


def test_what_is_run_now_is_promoted_once(twice: Bench, new: Counting) -> None:
    twice.put(labelled("a"), labelled("b"))

    twice.control.run_now(QUEUE, DEFAULT, ["a", "unknown"])

    assert new() == {"accepted": 2, "promoted": 1}


def test_what_is_too_late_and_what_is_unreadable_is_dead(store: Bench, new: Counting) -> None:
    store.put(labelled("late", skip_after=1), labelled("spoilt"))
    store.become_due("late")
    store.become_due("spoilt", 2)
    store.client.hset("{q}:entries", "spoilt", "junk")
    store.promote()
    store.acquire()

    assert new() == {"accepted": 2, "promoted": 1, "dead:skipped": 1, "dead:corrupt": 1}


def test_a_dispatcher_notes_that_nothing_is_left_or_that_it_promotes(store: Bench) -> None:
    store.client.delete("delayq:clock")
    store.overdue("a")
    store.next_queue()
    gauges = store.gauges
    assert gauges.server().dispatched is None

    store.promote()
    assert gauges.server().dispatched is None
    store.promote(note=True)
    noted = gauges.server().dispatched
    assert noted == pytest.approx(store.now_ms(), abs=60_000)

    store.client.hdel("delayq:clock", "seen")  # written a few times a second at most
    store.client.hset("delayq:clock", "dispatched", 5)
    store.next_queue()
    assert gauges.server().dispatched != 5

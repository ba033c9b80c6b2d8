"""add.lua: from the publisher into the schedule, or directly to ready."""

from __future__ import annotations

import pytest

from celery_delayq.errors import StoreFull
from tests.lua.bench import ENTRY, FAR, LAYOUT, QUEUE, REGISTERED, Bench, Calls, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "schedule/add": (lambda s: s.schedule("q", ENTRY), [5, b"s"]),
}


def test_a_message_for_later_is_stored_indexed_and_put_on_the_next_due(store: Bench) -> None:
    state = store.schedule(QUEUE, entry("a", FAR, task="shop.send mail"))

    assert state == ("scheduled", FAR)
    assert store.state() == {
        "delayq:next_due": {b"q": FAR},
        "delayq:queues": {b"q": LAYOUT},
        "{q}:due": {b"a": FAR},
        "{q}:entries": {b"a": b'1 0 n-a shop.send%20mail\n{"id": "a"}'},
        "{q}:tasks": {b"shop.send%20mail\x00004000000000000\x00a": 0},
    }


@pytest.mark.parametrize("due_ms", [-62_135_596_800_000, 0, 1])
def test_a_message_for_the_past_is_ready_at_once_without_its_header(
    store: Bench, due_ms: int
) -> None:
    state = store.schedule(QUEUE, entry("a", due_ms, priority=3))

    assert state == ("ready", due_ms)
    assert store.state() == REGISTERED | {
        "q\x06\x163": [b'{"id": "a"}'],
        "{q}:wake": [b""],
    }


def test_a_countdown_counts_from_the_clock_of_redis(store: Bench) -> None:
    before = store.now_ms()
    _, due = store.schedule(QUEUE, entry("a", 60_000, relative=True))
    after = store.now_ms()

    assert before + 60_000 <= due <= after + 60_001
    assert store.client.zscore("{q}:due", "a") == due


def test_a_repeated_call_changes_nothing(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR))
    before = store.state()

    assert store.schedule(QUEUE, entry("a", FAR))[0] == "duplicate"
    assert store.schedule(QUEUE, entry("a", FAR + 5))[0] == "duplicate"
    assert store.state() == before


def test_the_same_id_sent_twice_on_purpose_is_two_entries(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR, message_id="first"))
    store.schedule(QUEUE, entry("a", FAR + 1, message_id="second"))

    assert store.schedule(QUEUE, entry("a", FAR + 1, message_id="second"))[0] == "duplicate"
    assert store.client.zrange("{q}:due", 0, -1) == [b"a", b"a\x00second"]
    assert sorted(store.client.hkeys("{q}:entries")) == [b"a", b"a\x00second"]
    assert store.scheduled("q", "tasks.t") == 2


def test_a_repeat_is_a_duplicate_whatever_became_of_an_entry_of_the_same_id(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR, message_id="first"))
    store.schedule(QUEUE, entry("a", FAR + 1, message_id="second"))
    store.release(store.read("a", b"the first"))  # or it was promoted

    assert store.schedule(QUEUE, entry("a", FAR + 1, message_id="second"))[0] == "duplicate"
    assert store.scheduled("q") == 1


def test_only_what_is_earliest_of_all_wakes_the_dispatchers(store: Bench) -> None:
    now = store.now_ms()
    with store.wakeups() as heard:
        store.schedule(QUEUE, entry("later", now + 900_000))
        store.schedule(QUEUE, entry("latest", now + 950_000))
        store.schedule(QUEUE, entry("earliest", now + 800_000))

    [later, earliest] = [wait for wait, _ in heard]
    assert 890_000_000 < later <= 900_000_000
    assert 790_000_000 < earliest <= 800_000_000


def test_the_next_due_names_the_earliest_entry_of_each_queue(store: Bench) -> None:
    for id, due in (("b", FAR + 2), ("a", FAR + 1), ("c", FAR + 3)):
        store.schedule(QUEUE, entry(id, due))

    assert store.client.zscore("delayq:next_due", "q") == FAR + 1


@pytest.mark.parametrize("due_ms", [FAR, 0])
def test_a_full_server_refuses_the_whole_entry(store: Bench, due_ms: int) -> None:
    store.fill()

    with pytest.raises(StoreFull, match="no memory left"):
        store.schedule(QUEUE, entry("a", due_ms))

    store.make_room()
    assert store.state() == {}


def test_large_messages_and_any_bytes_pass_unchanged(store: Bench) -> None:
    message = (
        b'{"n": 12345678901234567, "empty": [], "x": "' + bytes(range(128, 256)) * 8192 + b'"}'
    )
    store.schedule(QUEUE, entry("a", 5, relative=True, message=message))

    store.promote_soon()

    assert store.client.lrange("q", 0, -1) == [message]


def test_one_call_takes_many_messages(store: Bench) -> None:
    entries = [entry(f"e{n}", FAR - n, priority=n % 10 // 3 * 3) for n in range(500)]
    entries.insert(3, entry("past", 5, priority=9))
    entries.insert(7, entries[0])

    call = store.schedule_call(QUEUE)
    for each in entries:
        call.add(each)
    before = store.now_ms()
    now, states = store.run(call)

    assert before <= now <= store.now_ms()
    assert states == b"sssrsssd" + b"s" * 494
    assert store.client.zcard("{q}:due") == store.client.hlen("{q}:entries") == 500
    assert store.scheduled("q", "tasks.t") == 500
    assert store.client.zscore("delayq:next_due", "q") == FAR - 499
    assert store.client.lrange("q\x06\x169", 0, -1) == [b'{"id": "past"}']

"""compare_and_set.lua, claim_due.lua and fire.lua: a write needs the expected state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import ResponseError

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Entry
from celery_delayq.store.periodic import EntryTicks, EntryWrite, PeriodicStore, fired
from tests.lua.bench import ENTRY, FAR, Bench, Calls, entry, labelled, message_of, repeating

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "periodic/claim_due": (
        lambda s: s.periodic.claim_due(10, 500, ["other"]),
        [5000, b"7", b"", 1, b"name", b"line\n{}"],
    ),
    "periodic/compare_and_set": (
        lambda s: s.periodic.write([EntryWrite("name", "", "line\n{}", 7)]),
        b"d",
    ),
    "periodic/fire": (
        lambda s: s.run(
            s.periodic.fire_call("q", [EntryTicks("name", "line", "then", 7, "line", 6, [ENTRY])])
        ),
        [b"s"],
    ),
}

ENTRIES, LOOKS = "delayq:periodic", "delayq:periodic_at"


def gate(store: Bench) -> PeriodicStore:
    return store.periodic


def put(store: Bench, name: str = "a", line: str = "old", look: int | None = 5) -> None:
    assert gate(store).write([EntryWrite(name, "", f"{line}\n{{}}", look)]) == ["done"]


def shot(*entries: Entry, name: str = "a", line: str = "old", refused: str = "old") -> EntryTicks:
    return EntryTicks(name, line, "new", 70, refused, 60, entries)


def fire(store: Bench, *shots: EntryTicks) -> Sequence[str]:
    return fired(store.run(gate(store).fire_call("q", shots)))


def kept(store: Bench) -> tuple[object, object]:
    found = store.state()
    return found.get(ENTRIES), found.get(LOOKS)


# -- writing


def test_an_entry_is_written_once(store: Bench) -> None:
    put(store)

    assert gate(store).write([EntryWrite("a", "", "other\n{}", 6)]) == ["changed"]
    assert kept(store) == ({b"a": b"old\n{}"}, {b"a": 5.0})


def test_the_same_again_is_done(store: Bench) -> None:
    assert gate(repeating(store)).write([EntryWrite("a", "", "old\n{}", 5)]) == ["done"]
    assert kept(store) == ({b"a": b"old\n{}"}, {b"a": 5.0})


def test_an_entry_changes_only_from_how_it_is_known(store: Bench) -> None:
    for name in ("a", "b", "c"):
        put(store, name)

    written = gate(store).write(
        [
            EntryWrite("a", "old", "new\n{}", None),
            EntryWrite("b", "ol", "new\n{}", 7),
            EntryWrite("c", "old", ""),
            EntryWrite("d", "old", "new\n{}", 7),
        ]
    )

    assert written == ["done", "changed", "done", "unknown"]
    assert kept(store) == ({b"a": b"new\n{}", b"b": b"old\n{}"}, {b"b": 5.0})


def test_an_edit_is_repeated_when_another_came_between(store: Bench) -> None:
    put(store)
    seen = []

    def edit(record: str | None) -> EntryWrite:
        seen.append(record)
        if len(seen) == 1:
            gate(store).write([EntryWrite("a", "old", "between\n{}", 6)])
        return EntryWrite("a", (record or "").partition("\n")[0], "last\n{}", 7)

    assert gate(store).edit("a", edit) == "between\n{}"
    assert seen == ["old\n{}", "between\n{}"]
    assert kept(store) == ({b"a": b"last\n{}"}, {b"a": 7.0})


# -- which caller gets which entry


def test_what_is_handed_out_is_left_alone_for_a_while(store: Bench) -> None:
    now = store.now_ms()
    for n, look in enumerate((now - 20, now - 10, now - 30, FAR)):
        put(store, f"e{n}", look=look)

    first = gate(store).claim_due(2, 100_000)
    second = gate(store).claim_due(10, 100_000)
    third = gate(store).claim_due(10, 100_000)

    assert first.records == [("e2", "old\n{}"), ("e0", "old\n{}")]
    assert first.next == now - 10
    assert second.records == [("e1", "old\n{}")]
    assert third.records == []
    assert now + 100_000 <= (third.next or 0) < FAR
    assert now <= first.now // 1000


def test_what_is_left_to_others_keeps_its_time_and_is_not_waited_for(store: Bench) -> None:
    now = store.now_ms()
    for n, look in enumerate((now - 30, now - 20, now - 10, FAR)):
        put(store, f"e{n}", look=look)

    found = gate(store).claim_due(1, 100_000, ["e0", "gone"])
    assert found.records == [("e1", "old\n{}")]
    assert found.next == now - 10
    assert store.client.zscore(LOOKS, "e0") == now - 30

    assert gate(store).claim_due(10, 100_000, ["e0", "e2", "e3"])[1:4] == (
        int(store.client.zscore(LOOKS, "e1") or 0),
        [],
        "",
    )
    assert [name for name, _ in gate(store).claim_due(10, 100_000).records] == ["e0", "e2"]


def test_without_entries_there_is_nothing_to_look_at(store: Bench) -> None:
    assert gate(store).claim_due(10, 100)[1:4] == (None, [], "")
    assert store.state() == {}


def test_a_look_at_what_is_gone_is_forgotten(store: Bench) -> None:
    store.client.zadd(LOOKS, {"gone": 5})

    assert gate(store).claim_due(10, 100)[1:4] == (None, [], "")
    assert store.state() == {}


# -- a clock that is set back

AHEAD = 3_600_000


def test_claim_due_reports_a_clock_that_was_set_back_until_entries_are_corrected(
    store: Bench,
) -> None:
    put(store, "a", look=FAR)
    assert gate(store).claim_due(10, 100).set_back == ""
    now = store.now_ms()
    then = str(now + AHEAD)
    store.client.hset("delayq:clock", "ticked", then)

    assert [gate(store).claim_due(10, 100).set_back for _ in range(2)] == [then, then]
    assert gate(store).claim_due(10, 100, corrected="5").set_back == then
    assert gate(store).claim_due(10, 100, corrected=then).set_back == ""
    assert gate(store).claim_due(10, 100).set_back == ""
    assert now <= int(store.client.hget("delayq:clock", "ticked") or 0) <= store.now_ms()


@pytest.mark.parametrize(("ahead", "is_reported"), [(-AHEAD, False), (500, False), (60_000, True)])
def test_claim_due_reports_only_a_clock_that_was_set_back_by_seconds(
    store: Bench, ahead: int, is_reported: bool
) -> None:
    put(store, "a", look=FAR)
    then = str(store.now_ms() + ahead)
    store.client.hset("delayq:clock", "ticked", then)

    assert gate(store).claim_due(10, 100).set_back == (then if is_reported else "")


def test_entries_with_a_late_look_are_corrected_and_paused_ones_stay(store: Bench) -> None:
    now = store.now_ms()
    for name in ("moved", "left", "same", "late"):
        put(store, name, look=FAR)
    put(store, "paused", look=FAR)
    store.client.zrem(LOOKS, "paused")

    def correct(name: str, record: str) -> EntryWrite | None:
        return {
            "moved": EntryWrite(name, "old", "new\n{}", now + 5),
            "left": None,
            "same": EntryWrite(name, "old", record, FAR),
            "late": EntryWrite(name, "old", record, now + 7),
            "paused": EntryWrite(name, "old", record, None),
        }[name]

    gate(store).correct_looks(now, correct)

    records = store.client.hgetall(ENTRIES)
    assert kept(store)[1] == {b"moved": now + 5, b"left": FAR, b"same": FAR, b"late": now + 7}
    assert {name: record for name, record in records.items() if record != b"old\n{}"} == {
        b"moved": b"new\n{}"
    }


# -- firing


def test_ticks_are_scheduled_and_the_entry_is_written_again(store: Bench) -> None:
    put(store)

    assert fire(store, shot(entry("a:1", 1), entry("a:2", FAR))) == ["rs"]

    found = store.state()
    assert found[ENTRIES] == {b"a": b"new\n{}"}
    assert found[LOOKS] == {b"a": 70.0}
    assert found["q"] == [message_of(entry("a:1"))]
    assert found["{q}:due"] == {b"a:2": float(FAR)}
    assert found["{q}:entries"].keys() == {b"a:2"}
    assert found["delayq:next_due"] == {b"q": float(FAR)}


def test_who_comes_second_schedules_nothing(store: Bench) -> None:
    put(store)
    fire(store, shot(entry("a:1", FAR)))
    before = store.state()

    assert fire(store, shot(entry("a:1", FAR, message_id="other"))) == ["-"]
    assert fire(store, shot(entry("b:1", FAR), name="b")) == ["-"]
    assert store.state() == before


def test_a_repeat_schedules_nothing_more(store: Bench) -> None:
    put(store)

    assert fire(repeating(store), shot(entry("a:1", FAR), entry("a:2", 1))) == ["-"]

    found = store.state()
    assert found["{q}:due"] == {b"a:1": float(FAR)}
    assert found["q"] == [message_of(entry("a:2"))]


def test_of_several_entries_each_stands_for_itself(store: Bench) -> None:
    put(store, "a")
    put(store, "c")

    fired = fire(
        store,
        shot(entry("a:1", FAR)),
        shot(entry("b:1", FAR), name="b"),
        shot(entry("c:1", FAR), entry("c:2", FAR), name="c"),
    )

    assert fired == ["s", "-", "ss"]
    assert store.state()["{q}:due"].keys() == {b"a:1", b"c:1", b"c:2"}


@pytest.mark.parametrize(("refused", "stands"), [("old", b"old\n{}"), ("passed", b"passed\n{}")])
def test_what_another_tick_holds_back_leaves_the_entry_as_said(
    refused: str, stands: bytes, store: Bench
) -> None:
    held: dict[str, Any] = {"unique": "dperiodic", "policy": "k 0 0"}
    put(store)
    fire(store, shot(labelled("a:1", **held)))
    gate(store).write([EntryWrite("a", "new", "old\n{}", 5)])

    assert fire(store, shot(labelled("a:2", **held), refused=refused)) == ["K"]
    assert kept(store) == ({b"a": stands}, {b"a": 60.0})
    assert store.state()["{q}:due"].keys() == {b"a:1"}


def test_a_full_server_leaves_the_tick_to_be_fired(store: Bench) -> None:
    put(store)
    before = store.state()
    store.fill()
    with pytest.raises(StoreFull):
        fire(store, shot(entry("a:1", FAR)))

    assert store.state() == before
    store.make_room()
    assert fire(store, shot(entry("a:1", FAR))) == ["s"]


@pytest.mark.parametrize("key", [ENTRIES, LOOKS, "{q}:due", "{q}:entries", "q"])
def test_a_key_of_another_type_is_refused_before_anything_is_written(
    key: str, store: Bench
) -> None:
    put(store)
    store.client.delete(key)
    store.client.set(key, "taken")
    before = store.state()

    with pytest.raises(ResponseError, match=f"WRONGTYPE {key.replace('{', '.').replace('}', '.')}"):
        fire(store, shot(entry("a:1", 1)))
    assert store.state() == before

"""import.lua: exported entries are stored once, and a repeat gets the state of each."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Entry
from tests.lua.bench import (
    ENTRY,
    FAR,
    QUEUE,
    Bench,
    Calls,
    as_scheduled,
    entry,
    labelled,
    repeating,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "schedule/import": (lambda s: s.run(s.import_call("q", [ENTRY], "token")), b"s"),
}


def imported(store: Bench, *entries: Entry, token: str = "mine") -> list[Any]:
    call = store.import_call(QUEUE, entries, token)
    return store.run_all([call])


def test_each_is_reported_as_by_the_schedule(store: Bench) -> None:
    store.put(labelled("other", unique="sk"), entry("b", FAR))
    kept = labelled("a", unique="sk", policy="k 0 0")

    answers = imported(store, kept, entry("b", FAR), entry("c", FAR + 1), entry("d", 1))

    assert answers == [b"Kdsr"]
    assert set(store.state()["{q}:due"]) == {b"other", b"b", b"c"}
    assert store.state()["q"] == [b'{"id": "d"}']


@pytest.mark.parametrize("between", ["nothing", "cancelled"])
def test_a_repeat_gets_the_same_answer_and_stores_nothing_more(store: Bench, between: str) -> None:
    one, two = entry("a", FAR), entry("b", FAR)
    call = store.import_call(QUEUE, [one, two], "mine")

    def cancel() -> None:
        if between == "cancelled":
            store.control.cancel(QUEUE, store.layout, ["b"])

    assert repeating(store, cancel).run(call) == b"ss"
    assert store.state() == as_scheduled(one, *([two] if between == "nothing" else []))


def test_another_import_meets_duplicates(store: Bench) -> None:
    imported(store, entry("a", FAR))

    assert imported(store, entry("a", FAR), token="another") == [b"d"]


def test_a_full_server_refuses_one_call_and_not_the_others(store: Bench) -> None:
    store.fill()

    [answer] = imported(store, entry("a", FAR))

    assert isinstance(answer, StoreFull)
    store.make_room()
    assert store.state() == {}

"""The hash of the counters: its begin, writes that fail, and the scripts that write it."""

from __future__ import annotations

import re
from importlib.resources import files

from celery_delayq.store.scripting import scripts
from tests.lua.bench import QUEUE, Bench, labelled
from tests.lua.totals.counting import Counting, counted
from tests.support.totals import totals_of


def test_counting_begins_anew_where_the_counters_are_gone(store: Bench) -> None:
    store.put(labelled("a"))
    first = totals_of(store.client, QUEUE).epoch
    store.put(labelled("b"))
    assert totals_of(store.client, QUEUE).epoch == first

    store.client.delete("{q}:totals")
    store.put(labelled("c"))

    second = totals_of(store.client, QUEUE)
    assert int(first) < int(second.epoch) <= (store.now_ms() + 1) * 1000
    assert second.accepted == 1


def test_a_key_of_another_type_counts_nothing_and_holds_nothing_up(store: Bench) -> None:
    store.client.set("{q}:totals", "of somebody else")

    held = store.lease(labelled("a"))
    store.push(b"b")
    assert store.replace(labelled("c"), field=held[0]) == "scheduled"
    store.requeue(*[field for field, _, _ in store.acquire("2").messages])
    assert store.ack(*held) == 1
    assert store.purge(QUEUE) == (1, 1)

    assert counted(store) == {}
    assert store.client.get("{q}:totals") == b"of somebody else"


def test_a_full_server_counts_what_it_does(store: Bench, new: Counting) -> None:
    held = store.hold(b"one", b"two")
    new()
    store.fill()
    try:
        store.ack(held[0])
        store.requeue(held[1], counted="requeued")
        store.acquire("2")
    finally:
        store.make_room()

    assert new() == {"acked": 1, "redelivered": 1}


#: Calls that bring messages into a queue, make them ready or take them out.
MOVES = re.compile(
    r"'(?:[LR]PUSH|[LR]POP|LREM)'|\b(?:store_message|put_entry|put_ready|take_entry|remove_entry|"
    r"add_dead_letter|end_batch|release)\("
)


def test_each_script_that_moves_messages_counts() -> None:
    lua = files("celery_delayq").joinpath("store", "lua")
    sources = {name: lua.joinpath(f"{name}.lua").read_text("utf-8") for name in scripts.names()}
    moving = {name for name, source in sources.items() if MOVES.search(source)}
    counting = {
        name
        for name, source in sources.items()
        if re.search(r"add_total\(|end_batch\(|forget_cancelled\(", source)
    }

    assert moving <= counting
    # The first two remove messages with their hash field or key.
    assert counting - moving == {"leases/ack", "schedule/purge", "repair/totals"}

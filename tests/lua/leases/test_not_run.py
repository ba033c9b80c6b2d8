"""acquire.lua: a worker gets messages that do not run, to report them; others drop them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.store.leases import Mark
from tests.lua.bench import QUEUE, REGISTERED, Bench, bodies, counts, labelled, message_of
from tests.lua.totals.counting import counted
from tests.support.leases import ack

#: Why a message does not run, and the counter of its end.
HOW = {"cancelled": "cancelled", "replaced": "replaced", "skipped": "dead:skipped"}

every_way = pytest.mark.parametrize("how", HOW)

WHAT = labelled("a", skip_after=1000, unique="dk")


def not_to_run(store: Bench, how: str) -> None:
    """Make a message ready that will not run."""
    store.make_ready(WHAT, due_ms=store.now_ms())
    if how == "cancelled":
        store.cancel("a")
    elif how == "replaced":
        store.put(labelled("new", unique="dk", policy="r 0 0"))
        store.cancel("new")
    else:
        store.set_ready_index_due("a", 5)


def marks(store: Bench, number: str, who: str = "me") -> list[str]:
    """Lease for a worker; return the marks of its messages."""
    acquired = store.acquire(number, who=who, reports=True)
    assert bodies(acquired) == [message_of(WHAT)] * len(acquired.marks)
    return [mark.why for mark in acquired.marks.values()]


def settle(store: Bench, how: str, number: str, who: str = "me") -> None:
    if how == "skipped":
        assert store.leases.dead_letter(QUEUE, who, f"{number}:1", "a", "skipped: late")
    else:
        ack(store, QUEUE, who, [f"{number}:1"])


@every_way
def test_it_is_leased_and_its_end_is_counted_once(store: Bench, how: str) -> None:
    not_to_run(store, how)
    before = counted(store)

    assert marks(store, "1") == [how]
    assert "{q}:unique" not in store.state()
    assert store.cancel("a") == ["u"]
    settle(store, how, "1")

    new = {name: number - before.get(name, 0) for name, number in counted(store).items()}
    assert {name: number for name, number in new.items() if number} == {HOW[how]: 1}
    assert {"{q}:leased_index", "{q}:ready_index", "{q}:leased:me"}.isdisjoint(store.state())


@every_way
@pytest.mark.parametrize("back", ["reply lost", "requeued", "worker died", "quarantined"])
def test_it_keeps_its_mark_whatever_happens_to_its_worker(
    store: Bench, how: str, back: str
) -> None:
    not_to_run(store, how)
    assert marks(store, "1") == [how]

    if back == "reply lost":
        assert marks(store, "1") == [how]
        settle(store, how, "1")
        return
    if back == "requeued":
        store.requeue("1:1")
    else:
        store.pass_time()
        store.reclaim_expired(max_deliveries=1 if back == "quarantined" else 0)
    assert marks(store, "2", who="other") == [how]
    settle(store, how, "2", "other")
    assert {"{q}:leased_index", "{q}:ready_index", "{q}:deliveries"}.isdisjoint(store.state())


def test_lateness_is_that_of_the_moment_when_it_is_leased(store: Bench) -> None:
    not_to_run(store, "skipped")
    now = store.now_ms()

    [mark] = store.acquire(reports=True).marks.values()

    assert mark.why == "skipped"
    assert now - 5 <= mark.late_ms <= store.now_ms() - 5


@every_way
def test_it_is_dropped_where_another_one_has_its_id(store: Bench, how: str) -> None:
    """Callers that wait for the id wait for the other message."""
    not_to_run(store, how)
    store.put(labelled("a", message_id="other"))

    assert marks(store, "1") == []
    assert len([*store.dead_letters.all(QUEUE)]) == (how == "skipped")
    assert store.client.hkeys("{q}:entries") == [b"a"]


OTHERS: dict[str, Callable[[Bench], object]] = {
    "ready": lambda store: store.make_ready(labelled("a", message_id="other")),
    "listed as a duplicate": lambda store: store.put(
        labelled("a", message_id="o1"), labelled("a", message_id="o2")
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_other_one_may_be_anywhere(store: Bench, other: str) -> None:
    not_to_run(store, "cancelled")
    OTHERS[other](store)
    store.client.hdel("{q}:entries", "a")

    assert all(mark is None for mark in store.acquire(reports=True).marks.values())


def test_one_listed_as_a_duplicate_itself_is_leased(store: Bench) -> None:
    store.make_ready(labelled("a", message_id="first"))
    store.make_ready(labelled("a", message_id="second"))
    store.cancel("a")

    acquired = store.acquire(limit=1, reports=True)
    assert acquired.messages == []
    assert [*store.acquire("2", reports=True).marks.values()] == [Mark("cancelled")]
    store.ack("2:1")
    found = store.state()
    assert found.keys() - {"delayq:lease_ends", "{q}:leases"} == REGISTERED.keys()


def test_deliveries_are_forgotten(store: Bench) -> None:
    store.lease(labelled("a"))
    store.requeue("1:1", counted="requeued")
    assert store.state()["{q}:deliveries"] == counts(message_of(labelled("a")), b"0 0 1")
    store.cancel("a")

    store.acquire("2", reports=True)
    store.ack("2:1")

    assert "{q}:deliveries" not in store.state()

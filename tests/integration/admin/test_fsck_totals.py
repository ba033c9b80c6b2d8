"""``fsck`` compares the counters with the messages that are there."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_delayq.store.repair_tracking import RepairTracking
from celery_delayq.store.store import Store
from tests.support.drift import by_kind, labelled, lease, look, numbers, put, schedule
from tests.support.totals import totals_of


def counted(store: Store) -> dict[str, int]:
    counts = totals_of(store.client, "q").counts
    return {name: number for name, number in counts.items() if number}


@pytest.fixture
def _some_messages(store: Store) -> None:
    """Scheduled, ready, leased and replaced by a retry."""
    schedule(store, "a", "b")
    lease(store, "c", "d")
    call = store.leases.replace_call(
        "q", labelled("e"), "q", "me", "1:1", head=b"", when_due="push"
    )
    store.run(call)
    put(store, labelled("f", due=1))


@pytest.mark.usefixtures("_some_messages")
def test_nothing_is_wrong_where_scripts_alone_have_written(store: Store) -> None:
    report = look(store)

    assert (report.findings, report.notes) == ([], [])


@pytest.mark.usefixtures("_some_messages")
def test_stock_producers_and_stock_workers_are_no_finding(store: Store, redis: Redis) -> None:
    redis.lpush("q", "x", "y", "z")
    assert numbers(look(store)) == {}

    redis.delete("q")
    assert numbers(look(store)) == {}


@pytest.mark.usefixtures("_some_messages")
def test_lost_messages_count_as_taken(store: Store, redis: Redis) -> None:
    redis.delete("{q}:due", "{q}:entries", "{q}:tasks")
    before = counted(store)

    assert by_kind(look(store))["totals_differ"].examples == ["counted 5, there 2"]
    assert counted(store) == before

    assert look(store, repair=True).unrepaired == 0
    assert counted(store) == before | {"taken": 3}
    assert numbers(look(store)) == {}


@pytest.mark.usefixtures("_some_messages")
def test_messages_from_before_the_counters_count_as_accepted(store: Store, redis: Redis) -> None:
    redis.delete("{q}:totals")
    assert numbers(look(store)) == {}  # nothing was counted

    schedule(store, "g")

    # Those in the ready list are counted when they are taken.
    assert by_kind(look(store, repair=True))["totals_differ"].examples == ["counted 1, there 5"]
    assert counted(store) == {"accepted": 5}
    assert numbers(look(store)) == {}


@pytest.mark.usefixtures("_some_messages")
def test_a_key_of_another_type_is_reported(store: Store, redis: Redis) -> None:
    redis.delete("{q}:totals")
    redis.set("{q}:totals", "mine")

    assert by_kind(look(store, repair=True))["wrong_type"].examples == [
        "{q}:totals is a string, expected a hash"
    ]


@pytest.mark.usefixtures("_some_messages")
def test_what_cannot_be_compared_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RepairTracking, "check_totals", lambda *_, **__: None)

    [note] = look(store).notes

    assert note.startswith("q: the counters were not compared")


@pytest.mark.usefixtures("_some_messages")
def test_the_script_leaves_it_where_another_process_holds_something(store: Store) -> None:
    tracking = store.repair_tracking

    assert tracking.check_totals("q", store.layout, [], repair=True) is None
    assert tracking.check_totals("q", store.layout, ["me"], repair=True) is not None

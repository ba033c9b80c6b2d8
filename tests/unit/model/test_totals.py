"""The counters of a queue: what is read from Redis, and what follows from it."""

from __future__ import annotations

from celery_delayq.model.totals import OUTCOMES, REASONS, TickTotals, Totals
from tests.support.totals import present_by

STORED = {
    b"epoch": b"1764028800000000",
    b"accepted": b"10",
    b"pushed": b"20",
    b"promoted": b"9",
    b"acked": b"7",
    b"cancelled": b"1",
    b"replayed": b"2",
    b"dead:failed": b"3",
    b"dead:unbound": b"1",
    b"aside": b"1",
    b"ready": b"-12",
}


def test_messages_published_to_run_at_once_are_accepted_too() -> None:
    totals = Totals.read(STORED)

    assert totals.epoch == "1764028800000000"
    assert totals.counts == {
        "accepted": 30,
        "promoted": 9,
        "retried": 0,
        "redelivered": 0,
        "replayed": 2,
        "acked": 7,
        "cancelled": 1,
        "replaced": 0,
        "moved": 0,
        "purged": 0,
        "taken": 0,
        "aside": 1,
    }
    assert totals.dead_lettered == {
        **dict.fromkeys(REASONS, 0),
        "failed": 3,
        "unbound": 1,
    }


def test_what_has_not_gone_is_present() -> None:
    assert present_by(Totals.read(STORED)) == 30 + 2 - (7 + 1 + 3)


def test_nothing_and_bad_fields_count_as_zero() -> None:
    nothing = Totals()

    assert Totals.read({}) == nothing
    assert Totals.read({b"acked": b"many", b"dead:failed": b"\xff", b"else": b"5"}) == nothing
    assert present_by(nothing) == 0


def test_ticks_are_counted_by_outcome() -> None:
    assert TickTotals.read({}) == TickTotals()
    assert TickTotals.read({b"epoch": b"5", b"scheduled": b"3", b"other": b"1"}) == TickTotals(
        epoch="5", outcomes={**dict.fromkeys(OUTCOMES, 0), "scheduled": 3}
    )

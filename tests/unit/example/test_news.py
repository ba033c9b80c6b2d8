"""The example's news: when delays and cancellations become known, and what is done about them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from unittest.mock import Mock, call

import pytest

from celery_delayq.errors import InvalidETA
from celery_delayq.model.scheduled import Outcome
from example_project import changes
from example_project.changes import NewsDesk
from example_project.news import News, changes_after, news_of
from example_project.plan import Kind, as_datetime, remind
from tests.unit.example.flying import BEGINS, CLOCK, at, flight


def desk_for(
    news: Sequence[News], monkeypatch: pytest.MonkeyPatch, outcome: Outcome | Exception
) -> tuple[NewsDesk, Mock, Mock]:
    """Return a desk, what it asks of the extension, and what it writes down."""
    delayq, records = Mock(["cancel", "reschedule"]), Mock(["add_change"])
    delayq.cancel.side_effect = delayq.reschedule.side_effect = repeat(outcome)
    monkeypatch.setattr(changes, "delayq", delayq)
    return NewsDesk(news, CLOCK, records), delayq, records


def test_a_delay_is_known_as_long_beforehand_as_it_is_long() -> None:
    late = flight("A", at(12), late=45)

    assert news_of([late]) == [News(late, known=at(11, 15))]


def test_a_cancellation_is_known_before_the_first_reminder_is_due() -> None:
    cancelled = flight("A", at(12), late=None)

    (news,) = news_of([cancelled])

    assert news.known == at(6)
    assert news.known < remind(Kind.CHECK_IN, cancelled, cancelled.scheduled, BEGINS).planned


@pytest.mark.parametrize("late", [-20, 0, 14])
def test_there_is_no_news_of_a_flight_on_time(late: int) -> None:
    assert news_of([flight("A", at(12), late=late)]) == []


def test_news_is_in_the_order_in_which_it_becomes_known() -> None:
    soon, cancelled, long_before = (
        flight("A", at(12), late=15),
        flight("B", at(12), late=None),
        flight("C", at(12), late=400),
    )

    assert [news.flight for news in news_of([soon, cancelled, long_before])] == [
        long_before,
        cancelled,
        soon,
    ]
    assert changes_after(news_of([soon, cancelled, long_before])) == {"move": 4, "cancel": 2}


def test_both_reminders_of_a_late_flight_are_moved_by_its_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = flight("A", at(12), late=240)
    desk, delayq, records = desk_for([News(late, at(8))], monkeypatch, Outcome.DONE)

    desk.apply_until(now_ms=CLOCK.real_ms(at(8)))

    check_in_ms, boarding_ms = CLOCK.real_ms(at(13)), CLOCK.real_ms(at(15, 30))
    assert delayq.mock_calls == [
        call.reschedule("check-in:A", eta=as_datetime(check_in_ms)),
        call.reschedule("boarding:A", eta=as_datetime(boarding_ms)),
    ]
    assert records.mock_calls == [
        call.add_change("check-in:A", "move", "done", check_in_ms),
        call.add_change("boarding:A", "move", "done", boarding_ms),
    ]


@pytest.mark.parametrize(("outcome", "counted"), [(Outcome.DONE, 2), (Outcome.RUNNING, 0)])
def test_both_reminders_of_a_cancelled_flight_are_cancelled(
    outcome: Outcome, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = flight("A", at(12), late=None)
    desk, delayq, records = desk_for([News(cancelled, at(6))], monkeypatch, outcome)

    desk.apply_until(now_ms=CLOCK.real_ms(at(6)))

    assert delayq.mock_calls == [call.cancel("check-in:A"), call.cancel("boarding:A")]
    assert records.mock_calls == [
        call.add_change("check-in:A", "cancel", outcome.value),
        call.add_change("boarding:A", "cancel", outcome.value),
    ]
    assert desk.cancelled == counted


def test_nothing_is_done_before_the_news_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = flight("A", at(12), late=None), flight("B", at(13), late=None)
    desk, delayq, _ = desk_for(news_of([first, second]), monkeypatch, Outcome.DONE)

    desk.apply_until(now_ms=CLOCK.real_ms(at(6)) - 0.1)
    assert delayq.mock_calls == []
    assert desk.next_ms == CLOCK.real_ms(at(6))

    desk.apply_until(now_ms=CLOCK.real_ms(at(6)))
    assert delayq.mock_calls == [call.cancel("check-in:A"), call.cancel("boarding:A")]
    assert desk.next_ms == CLOCK.real_ms(at(7))
    assert not desk.is_done

    desk.apply_until(now_ms=CLOCK.real_ms(at(23)))
    assert len(delayq.mock_calls) == 4
    assert desk.is_done


def test_a_new_time_that_has_passed_as_well_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    late = flight("A", at(12), late=15)
    desk, _, records = desk_for([News(late, at(11, 45))], monkeypatch, InvalidETA("in the past"))

    desk.apply_until(now_ms=CLOCK.real_ms(at(11, 45)))

    assert [each.args[2] for each in records.mock_calls] == ["past", "past"]

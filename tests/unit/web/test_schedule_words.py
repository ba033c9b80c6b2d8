"""Schedules in words."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from celery.schedules import BaseSchedule, crontab, schedule

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.serialization import describe
from celery_delayq.web.schedule_words import in_words, read_schedule


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (crontab(), "every minute"),
        (crontab(minute="*/5"), "every 5 minutes"),
        (crontab(minute="*/1", hour=3), "every minute of hour 3"),
        (crontab(minute=7), "at minute 7 of every hour"),
        (crontab(minute=5, hour=9), "at 09:05"),
        (crontab(minute=5, hour="*/2"), "at minute 5 of every 2 hours"),
        (crontab(minute="0,30", hour="8-17"), "at minute 0, 30 of hour 8-17"),
        (crontab(minute=0, hour=9, day_of_week="mon-fri"), "at 09:00, on mon-fri"),
        (crontab(minute=0, hour=8, day_of_week=1), "at 08:00, on mon"),
        (crontab(minute=0, hour=8, day_of_week="0,2-4"), "at 08:00, on sun, tue-thu"),
        (crontab(minute=0, hour=8, day_of_week="*/2"), "at 08:00, on */2"),
        (
            crontab(minute=0, hour=0, day_of_month=1, month_of_year="1,7"),
            "at 00:00, on day 1, in month 1, 7",
        ),
        (schedule(timedelta(minutes=5)), "every 5m"),
    ],
)
def test_a_schedule_is_said_in_words(given: BaseSchedule, words: str) -> None:
    assert in_words(given) == words


#: Texts of a form, and what they mean: a schedule as the command line shows it.
TEXTS = {
    "every 90": "every 1m 30s",
    "every 1h 30m": "every 1h 30m",
    "every 5m, rounded": "every 5m, rounded",
    "30m": "every 30m",
    "0 9 * * mon-fri": "0 9 * * mon-fri",
    "0 9 1 1 1": "0 9 1 1 1",
    "FREQ=MONTHLY;BYDAY=-1FR": "FREQ=MONTHLY;BYDAY=-1FR",
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_a_text_of_a_form_is_a_schedule(text: str, expected: str) -> None:
    found = read_schedule(text)

    assert isinstance(found, BaseSchedule)
    assert describe(found) == expected
    assert describe(read_schedule(expected)) == expected


@pytest.mark.parametrize("text", ["2030-01-31T09:00", "at 2030-01-31T09:00"])
def test_a_time_is_a_single_run(text: str) -> None:
    assert read_schedule(text) == datetime(2030, 1, 31, 9)


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "every",
        "every day",
        "every 1e400",
        "90",
        "* * * *",
        "99 9 * * *",
        "FREQ=x",
        "\udcff",
    ],
)
def test_other_texts_are_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"every 30m|FREQ|rule"):
        read_schedule(text)

"""Schedules in words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery.schedules import BaseSchedule, crontab, schedule

from celery_delayq.web.words import in_words


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
        (
            crontab(minute=0, hour=0, day_of_month=1, month_of_year="1,7"),
            "at 00:00, on day 1, in month 1, 7",
        ),
        (schedule(timedelta(minutes=5)), "every 5m"),
    ],
)
def test_a_schedule_is_said_in_words(given: BaseSchedule, words: str) -> None:
    assert in_words(given) == words

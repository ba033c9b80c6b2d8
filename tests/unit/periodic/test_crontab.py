"""Cron expressions come back as they were spelled."""

from __future__ import annotations

from typing import Any

import pytest
from celery.schedules import crontab
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.periodic.crontab import crontab_text, read_crontab
from celery_delayq.periodic.serialization import describe, dumps_form, loads_form

# -- spellings of crontabs


@pytest.mark.parametrize(
    ("given_schedule", "text"),
    [
        (crontab(minute="*/5"), "*/5 * * * *"),
        (crontab(minute="0-59/7", hour="8-17"), "0-59/7 8-17 * * *"),
        (crontab(minute="0,15,30"), "0,15,30 * * * *"),
        (crontab(minute="0, 15, 30"), "0,15,30 * * * *"),
        (crontab(minute=" 5 "), "5 * * * *"),
        (crontab(minute=[45, 0, 15]), "0,15,45 * * * *"),
        (crontab(minute={30}, hour=(9, 8)), "30 8,9 * * *"),
        (crontab(minute=range(0, 60, 20)), "0,20,40 * * * *"),
        (crontab(minute=0, hour=0), "0 0 * * *"),
        (crontab(minute=True), "1 * * * *"),
        (crontab(day_of_week="mon,wed,fri"), "* * * * mon,wed,fri"),
        (crontab(day_of_week="Sunday"), "* * * * Sunday"),
        (crontab(day_of_week=[6, 0]), "* * * * 0,6"),
        (crontab(day_of_week="sat-mon"), "* * * * sat-mon"),
        (crontab(month_of_year="jan-mar,december"), "* * * jan-mar,december *"),
        (crontab(month_of_year="*/3", day_of_month="1-7,31"), "* * 1-7,31 */3 *"),
    ],
)
def test_a_crontab_is_kept_as_it_is_spelled(given_schedule: crontab, text: str) -> None:
    again = loads_form({"crontab": text})

    assert dumps_form(given_schedule) == {"crontab": text}
    assert again == given_schedule
    assert dumps_form(again) == {"crontab": text}


def spelled(lowest: int, highest: int) -> st.SearchStrategy[Any]:
    number = st.integers(lowest, highest)
    some = st.sets(number, min_size=1, max_size=5)
    return st.one_of(
        st.just("*"),
        number,
        number.map(str),
        some,
        some.map(list),
        some.map(lambda numbers: ", ".join(map(str, numbers))),
        st.integers(1, highest - 1).map("*/{}".format),
        st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}"),
    )


crontabs = st.builds(
    crontab,
    minute=spelled(0, 59),
    hour=spelled(0, 23),
    day_of_week=spelled(0, 6),
    day_of_month=spelled(1, 28),
    month_of_year=spelled(1, 12),
)


@given(given_schedule=crontabs)
def test_a_crontab_of_any_spelling_comes_back(given_schedule: crontab) -> None:
    form = dumps_form(given_schedule)
    again = loads_form(form)

    assert again == given_schedule
    assert dumps_form(again) == form
    assert describe(given_schedule) == form["crontab"]


def test_fields_may_be_apart_by_any_white_space() -> None:
    assert crontab_text(read_crontab(" 0  9\t* * mon-fri\n")) == "0 9 * * mon-fri"

"""What a form says: times, numbers and names."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_delayq.errors import InvalidETA
from celery_delayq.web.query import Query, mark_of, quoted, unquoted

NOW = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
BERLIN = timezone(timedelta(hours=1))


def test_a_time_is_in_the_zone_of_the_page() -> None:
    query = Query("", {"at": ["9:00"], "none": [" "]}, BERLIN)

    assert query.moment("at", NOW) == datetime(2030, 1, 31, 9, tzinfo=BERLIN)
    assert query.moment("none", NOW) is None


def test_another_text_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(InvalidETA, match="at='soon': expected a time such as 2030-01-31T09:00"):
        Query("", {"at": ["soon"]}).moment("at", NOW)


def test_a_wrong_number_or_choice_is_the_default() -> None:
    query = Query("", {"n": ["-1"], "huge": ["9" * 100], "by": ["drop table"]})

    assert (query.number("n"), query.number("huge"), query.number("none")) == (0, 0, 0)
    assert query.choice("by", ["queue", "task"]) == "queue"


@pytest.mark.parametrize("id", ["\ud800", "a\udcff\ud800b"])
def test_an_id_to_which_no_address_leads_can_be_written(id: str) -> None:
    assert quoted(id).isascii()
    assert unquoted(quoted(id)) != id


@pytest.mark.parametrize("id", ["a/b", "a\0b", "\u202etxt", "a\r\nb", "\udcff", "%2F", "x:1", " "])
def test_any_id_comes_back_from_a_form(id: str) -> None:
    ms, _, rest = mark_of(17, id).partition(":")

    assert (ms, unquoted(rest)) == ("17", id)
    assert quoted(id).isascii()

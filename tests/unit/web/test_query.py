"""What a form says: times, numbers and names."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_delayq.errors import InvalidETA
from celery_delayq.web.query import Query, mark_of, quoted, unquoted

NOW = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h30m", NOW + timedelta(minutes=90)),
        ("-1d", NOW - timedelta(days=1)),
        (" 2030-02-01T00:00 ", datetime(2030, 2, 1, tzinfo=BERLIN)),
        ("2030-02-01T00:00:00Z", datetime(2030, 2, 1, tzinfo=timezone.utc)),
        ("", None),
    ],
)
def test_a_time_is_exact_or_a_distance(text: str, expected: datetime | None) -> None:
    assert Query("", {"at": [text]}, BERLIN).moment("at", NOW) == expected


@pytest.mark.parametrize("text", ["soon", "90", "2030-13-01", "9999999999d", "1e9h"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidETA, match="at="):
        Query("", {"at": [text]}).moment("at", NOW)


def test_a_wrong_number_or_choice_is_the_default() -> None:
    query = Query("", {"n": ["-1"], "huge": ["9" * 100], "by": ["drop table"]})

    assert (query.number("n"), query.number("huge"), query.number("none")) == (0, 0, 0)
    assert query.choice("by", ["queue", "task"]) == "queue"


@pytest.mark.parametrize("id", ["a/b", "a\0b", "\u202etxt", "a\r\nb", "\udcff", "%2F", "x:1", " "])
def test_any_id_comes_back_from_a_form(id: str) -> None:
    ms, _, rest = mark_of(17, id).partition(":")

    assert (ms, unquoted(rest)) == ("17", id)
    assert quoted(id).isascii()

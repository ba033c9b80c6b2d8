"""Times that people type: one table for pages and the command line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from celery_delayq.model.typed_times import read_typed_time

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
#: In Berlin it is the first of February already.
NOW = datetime(2030, 1, 31, 23, 30, tzinfo=UTC)


def berlin(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0
) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        (" 2030-02-01T00:00 ", berlin(2030, 2, 1)),
        ("2030-02-01", berlin(2030, 2, 1)),
        ("2030-02-01 9:05", berlin(2030, 2, 1, 9, 5)),
        ("2030-02-01T00:00:00Z", datetime(2030, 2, 1, tzinfo=UTC)),
        ("today", berlin(2030, 2, 1)),
        ("Tomorrow", berlin(2030, 2, 2)),
        ("yesterday 17:00", berlin(2030, 1, 31, 17)),
        ("tomorrow at 9:00", berlin(2030, 2, 2, 9)),
        ("tomorrow,  9:00:30", berlin(2030, 2, 2, 9, 0, 30)),
        ("17:00", berlin(2030, 2, 1, 17)),
        ("at 8:15", berlin(2030, 2, 1, 8, 15)),
    ],
)
def test_a_point_in_time_is_one_in_the_zone(text: str, expected: datetime) -> None:
    for unsigned in ("from now", "ago"):
        assert read_typed_time(text, NOW, BERLIN, unsigned) == expected


@pytest.mark.parametrize(
    ("text", "from_now", "ago"),
    [
        ("1h30m", 5400, -5400),
        ("2 days", 172_800, -172_800),
        ("-1d", -86_400, -86_400),
        ("+1d", 86_400, 86_400),
        ("in 2 hours", 7200, 7200),
        ("In 5 Min", 300, 300),
        ("3d ago", -259_200, -259_200),
        ("1 week ago", -604_800, -604_800),
    ],
)
def test_a_distance_leads_where_its_sign_says(text: str, from_now: float, ago: float) -> None:
    assert read_typed_time(text, NOW) == NOW + timedelta(seconds=from_now)
    assert read_typed_time(text, NOW, unsigned="ago") == NOW + timedelta(seconds=ago)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "soon",
            "90",
            "in",
            "ago",
            "in 2 hours ago",
            "-1h ago",
            "+1h ago",
            "in -",
            "in -1h",
            "in +1h",
        ),
        *("24:00", "9:60", "9", "9:5", "tomorrow9:00", "at", "today at", "17:00 tomorrow"),
        *(
            "2030-13-01",
            "2030-02-30",
            "9999999999d",
            "1e9h",
            "\u0669:\u0660\u0660",
            "now now",
            "next week",
        ),
    ],
)
@pytest.mark.parametrize("zone", [BERLIN, None])
def test_another_text_is_refused(text: str, zone: ZoneInfo | None) -> None:
    with pytest.raises((ValueError, OverflowError)):
        read_typed_time(text, NOW, zone)


def test_days_at_the_ends_of_the_calendar_are_refused() -> None:
    for day, text in ((datetime.max, "tomorrow"), (datetime.min, "yesterday")):
        with pytest.raises((ValueError, OverflowError)):
            read_typed_time(text, day.replace(tzinfo=UTC), UTC)

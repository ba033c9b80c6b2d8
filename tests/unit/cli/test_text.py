"""What people type and are shown: durations, names that others chose."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.cli.text import number_of, quoted, stamp
from celery_delayq.model.typed_times import read_typed_time
from celery_delayq.utils.text import UNIT_SECONDS, distance, seconds_of, span, spelled
from tests.support.cli import clock_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((f"2{unit}", 2 * seconds) for unit, seconds in UNIT_SECONDS.items()),
        ("90", 90),
        ("1.5", 1.5),
        ("1h30m", 5400),
        ("1H 30M", 5400),
        ("0.5h", 1800),
        ("-10m", -600),
        ("+10m", 600),
        ("-1h30m", -5400),
        ("2 hours", 7200),
        ("1 day 30 minutes", 88_200),
        ("1w 2 Days", 777_600),
        ("5min", 300),
        ("10secs", 10),
        ("0", 0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(text, bare=False) == (None if text[-1].isdigit() else seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "m", "1x", "1h1h", "30m1h", "1h-30m", "--1", "1e3", "inf", "nan", "٣", "1h30"],
)
def test_what_is_no_duration_is_not_guessed(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("show", "number", "text"),
    [
        (span, 0, "0s"),
        (span, 59.4, "59s"),
        (span, 60, "1m"),
        (span, 305, "5m 5s"),
        (span, 3600, "1h"),
        (span, 3605, "1h"),
        (span, 7500, "2h 5m"),
        (span, 86_400 * 3 + 60, "3d"),
        (span, 86_400 * 3 + 3600 * 4, "3d 4h"),
        (span, 86_400 * 99_999, "99,999d"),
        (span, -305, "5m 5s"),
        (distance, 7500, "in 2h 5m"),
        (distance, -300, "5m ago"),
        (distance, 0.2, "now"),
        (partial(number_of, one="entry", many="entries"), 1, "1 entry"),
        (partial(number_of, one="entry", many="entries"), 1204, "1,204 entries"),
    ],
)
def test_a_number_is_shown_in_words(show: Callable[[float], str], number: float, text: str) -> None:
    assert show(number) == text


@given(st.integers(1, 10**9))
def test_a_duration_of_one_unit_is_read_as_it_is_written(days: int) -> None:
    assert seconds_of(span(days * 86_400).replace(",", "")) == days * 86_400


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    with clock_of("JST-9"):
        yield


@pytest.mark.usefixtures("in_tokyo")
def test_a_time_is_read_as_it_is_shown() -> None:
    expected = datetime(2030, 1, 31, 18, 5, tzinfo=timezone.utc)

    for text in ("2030-02-01T03:05:00+09:00", "2030-02-01 03:05", "2030-01-31T18:05:00Z"):
        assert read_typed_time(text, expected) == expected
    assert read_typed_time("2030-02-01", expected) == datetime(2030, 1, 31, 15, tzinfo=timezone.utc)
    for text in ("", "soon", "2030-13-01", "0001-01-01"):  # the last one is before UTC's year 1
        with pytest.raises(ValueError):
            read_typed_time(text, expected)


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (datetime(2030, 1, 31, 18, 5, 9), "2030-02-01T03:05:09+09:00"),
        (datetime(2030, 1, 31, 18, 5, 9, 7000), "2030-02-01T03:05:09.007+09:00"),
        (datetime(2030, 1, 31, 18, 5, 9, 7), "2030-02-01T03:05:09.000007+09:00"),
        (datetime.max, "9999-12-31T23:59:59.999999+00:00"),  # it has no local form
        (datetime.min, "0001-01-01T09:00:00+09:00"),
    ],
)
def test_a_moment_is_shown_in_local_time_or_else_in_utc(moment: datetime, shown: str) -> None:
    assert stamp(moment.replace(tzinfo=timezone.utc)) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shop.remind", "shop.remind"),
        ("a b", "a b"),
        ("[red]x[/red] {y}", "[red]x[/red] {y}"),
        ("Grüße 你好", "Grüße 你好"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[31m\x07\0", r"\x1b[31m\x07\x00"),
        ("\x9b31m", r"\u009b31m"),
        ("a\u202eb\u200b\u2028", r"a\u202eb\u200b\u2028"),
        ("\udcff", r"\xff"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_could_steer_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert spelled(text) == shown
    assert spelled(text).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "5e2c0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5",
        "a b  c ",
        "it's",
        '$HOME `id` \\ "x" *',
        "a\nb",
        "\x1b[31mred\x07",
        "it's\nan \\x41 \\",
        "\x9b\u202e\U000e0001ü",
        "\udcff7",
        "",
    ],
)
def test_what_is_quoted_means_the_same_to_a_shell(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(text)}"],
        env={"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )

    assert done.stdout == text.encode("utf-8", "surrogateescape")
    assert quoted(text).isprintable()

"""What people type and are shown: durations, names that others chose."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.cli.text import (
    distance,
    number_of,
    quoted,
    read_stamp,
    seconds_of,
    span,
    stamp,
)
from celery_delayq.utils.text import spelled
from tests.support.cli import clock_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5", 1.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1H 30M", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("0.5h", 1800),
        ("-10m", -600),
        ("+10m", 600),
        ("-1h30m", -5400),
        ("0", 0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "m", "1x", "1h1h", "30m1h", "1h-30m", "--1", "1e3", "inf", "nan", "٣", "1h30"],
)
def test_what_is_no_duration_is_not_guessed(text: str) -> None:
    assert seconds_of(text) is None


def test_a_number_may_be_too_bare() -> None:
    assert seconds_of("20300131", bare=False) is None
    assert seconds_of("90s", bare=False) == 90


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (60, "1m"),
        (305, "5m 5s"),
        (3600, "1h"),
        (3605, "1h"),
        (7500, "2h 5m"),
        (86_400 * 3 + 60, "3d"),
        (86_400 * 3 + 3600 * 4, "3d 4h"),
        (86_400 * 99_999, "99,999d"),
        (-305, "5m 5s"),
    ],
)
def test_a_duration_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_what_is_told_of_a_distance() -> None:
    assert distance(7500) == "in 2h 5m"
    assert distance(-300) == "5m ago"
    assert distance(0.2) == "now"


@given(st.integers(1, 10**9))
def test_a_duration_of_one_unit_is_read_as_it_is_told(days: int) -> None:
    assert seconds_of(span(days * 86_400).replace(",", "")) == days * 86_400


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    with clock_of("JST-9"):
        yield


@pytest.mark.usefixtures("in_tokyo")
def test_a_time_is_read_as_it_is_shown() -> None:
    expected = datetime(2030, 1, 31, 18, 5, tzinfo=timezone.utc)

    for text in ("2030-02-01T03:05:00+09:00", "2030-02-01 03:05", "2030-01-31T18:05:00Z"):
        assert read_stamp(text) == expected
    assert read_stamp("2030-02-01") == datetime(2030, 1, 31, 15, tzinfo=timezone.utc)
    for text in ("", "soon", "2030-13-01", "0001-01-01"):  # the last one is before UTC's year 1
        with pytest.raises(ValueError):
            read_stamp(text)


@pytest.mark.usefixtures("in_tokyo")
def test_a_moment_is_told_as_the_clock_on_the_wall_shows_it() -> None:
    moment = datetime(2030, 1, 31, 18, 5, 9, tzinfo=timezone.utc)

    assert stamp(moment) == "2030-02-01T03:05:09+09:00"
    assert stamp(moment.replace(microsecond=7000)) == "2030-02-01T03:05:09.007+09:00"
    assert stamp(moment.replace(microsecond=7)) == "2030-02-01T03:05:09.000007+09:00"


@pytest.mark.usefixtures("in_tokyo")
def test_a_moment_that_has_no_local_form_is_told_in_utc() -> None:
    last = datetime.max.replace(tzinfo=timezone.utc)
    first = datetime.min.replace(tzinfo=timezone.utc)

    assert stamp(last) == "9999-12-31T23:59:59.999999+00:00"
    assert stamp(first).startswith("0001-01-01T")


def test_one_is_not_many() -> None:
    assert number_of(1, "entry", "entries") == "1 entry"
    assert number_of(1204, "entry", "entries") == "1,204 entries"


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

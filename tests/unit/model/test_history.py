"""Runs as the history keeps them."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidCursor, InvalidFilter, RecordError
from celery_delayq.integration.endings.run_history import due_ms
from celery_delayq.model.history import Ending, Run, RunRecord, check_range, read_runs, reason_of

PLAIN = RunRecord(
    "0f3c2a4e-7f55-4d0c-9c52-0d4d6f1d2b11", "shop.remind", "mail", "w1@host",
    1_700_000_000_000, 1_700_000_000_002, 1_700_000_000_010, 1_700_000_000_050,
    "FAILURE", 2, 3, "ValueError: no such order",
)  # fmt: skip
TIMES = st.none() | st.integers(0, 10**13)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def test_a_run_is_one_short_line() -> None:
    data = PLAIN.pack()

    assert data == (
        b"1 0f3c2a4e-7f55-4d0c-9c52-0d4d6f1d2b11 shop.remind mail w1@host 1700000000000 "
        b"1700000000002 1700000000010 1700000000050 FAILURE 2 3 ValueError: no such order"
    )


@given(st.tuples(*[TEXTS] * 4), st.tuples(*[TIMES] * 3), st.integers(0, 10**13), TEXTS)
def test_what_is_packed_is_read_again(
    names: tuple[str, ...], times: tuple[Any, ...], ended: int, reason: str
) -> None:
    record = RunRecord(*names, *times, ended, "SUCCESS", 0, 1, reason)  # type: ignore[call-arg,arg-type]

    assert RunRecord.unpack(record.pack()) == record


def test_what_no_encoding_knows_does_not_keep_a_run_out() -> None:
    record = PLAIN._replace(id="\ud800", task="", reason="\ud800")

    again = RunRecord.unpack(record.pack())

    assert again._replace(id="", task="", reason="") == record._replace(id="", task="", reason="")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"1", b"2" + PLAIN.pack()[1:], PLAIN.pack().replace(b" 2 3 ", b" two 3 "),
     b" ".join(PLAIN.pack().split(b" ")[:12])],
)  # fmt: skip
def test_bytes_that_are_no_run_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="unreadable run"):
        RunRecord.unpack(data)


def test_readers_pass_over_what_they_cannot_read(caplog: pytest.LogCaptureFixture) -> None:
    entries = [("1-0", PLAIN.pack()), ("2-0", b"2 of a later version"), ("3-0", PLAIN.pack())]

    with caplog.at_level(logging.WARNING):
        assert [run.offset for run in read_runs(entries)] == ["1-0", "3-0"]
    assert "Entry 2-0 of the history is left out" in caplog.text


def test_times_are_in_utc_and_none_where_they_are_not_known() -> None:
    run = Run.of("5-0", PLAIN._replace(due=None, promoted=None, started=None))

    assert (run.due, run.promoted, run.started) == (None, None, None)
    assert run.ended == datetime(2023, 11, 14, 22, 13, 20, 50_000, tzinfo=timezone.utc)
    assert Run.of("5-0", PLAIN).promoted == datetime(
        2023, 11, 14, 22, 13, 20, 2_000, tzinfo=timezone.utc
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (ValueError("a\n  b"), ("FAILURE", "ValueError: a b")),
        (ValueError(), ("FAILURE", "ValueError")),
        (ValueError("x" * 1000), ("FAILURE", "ValueError: " + "x" * 188)),
        (Unspeakable(), ("FAILURE", "Unspeakable: <no text>")),
        (Retry("why", exc=KeyError("k")), ("RETRY", "KeyError: 'k'")),
        (Retry(), ("RETRY", "")),
        (Reject("bad"), ("REJECTED", "bad")),
        (Ignore(), ("IGNORED", "")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_run_has_ended(exc: BaseException, expected: tuple[str, str]) -> None:
    assert Ending.of(exc) == expected


def test_an_exception_that_no_process_can_hand_to_another_has_its_own_name() -> None:
    class Local(Exception):
        exc_cls_name = "Original"

    assert reason_of(Local("text")) == "Original: text"


@pytest.mark.parametrize("after", ["", "x", "1-", "-", "1-2-3", "(1-0", None, 5])
def test_what_is_no_offset_is_refused(after: Any) -> None:
    with pytest.raises(InvalidCursor, match="expected the offset of a run"):
        check_range(after, None)


@pytest.mark.parametrize("count", [-1, 1.5, True, "1"])
def test_what_is_no_count_is_refused(count: Any) -> None:
    with pytest.raises(InvalidFilter, match="expected a number of runs"):
        check_range("0", count)


@pytest.mark.parametrize(
    ("eta", "ms"),
    [
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20.000001+00:00", 1_700_000_000_001),
        ("2023-11-14T22:13:20.001000+00:00", 1_700_000_000_001),
        ("2023-11-15T03:43:20.000500+05:30", 1_700_000_000_001),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("no time", None),
        (5, None),
        (None, None),
    ],
)
def test_when_a_run_was_due_is_rounded_up_as_when_it_is_scheduled(eta: Any, ms: int | None) -> None:
    assert due_ms({"eta": eta}) == ms

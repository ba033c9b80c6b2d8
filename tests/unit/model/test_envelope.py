"""Envelope and record: ETAs are read as Celery reads them, nothing is rewritten in place."""

from __future__ import annotations

import copy
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.utils.time import maybe_iso8601, maybe_make_aware
from hypothesis import example, given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidETA, RecordError
from celery_delayq.model import envelope
from celery_delayq.model.envelope import Due, Entry, Record, due_of_countdown, due_of_eta
from celery_delayq.utils import message_json


def task_message(eta: str | None = "2030-01-01T00:00:00+00:00", **headers: Any) -> dict[str, Any]:
    return {
        "body": "W10=",
        "headers": {"task": "tasks.t", "id": "id-1", "eta": eta, **headers},
        "properties": {"delivery_tag": "tag-1", "delivery_info": {}, "priority": 0},
    }


@given(st.datetimes(timezones=st.just(timezone.utc)))
@example(datetime.min.replace(tzinfo=timezone.utc))
def test_an_eta_is_rounded_up_so_that_nothing_is_early(moment: datetime) -> None:
    due = due_of_eta(moment)

    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert timedelta(milliseconds=due.ms - 1) < since <= timedelta(milliseconds=due.ms)
    assert not due.relative
    assert due_of_eta(moment.isoformat()) == due


NAIVE = ["2030-01-31T09:00:00", "2030-01-31T09:00:00.123456", "20300131T090000", "2030-01-31"]


@pytest.mark.parametrize("text", [*NAIVE, "2030-01-31T09:00:00+02:00", "2030-01-31T09:00:00Z"])
def test_a_text_means_what_celerys_worker_reads_in_it(text: str) -> None:
    by_worker = maybe_make_aware(maybe_iso8601(text))

    assert due_of_eta(text) == due_of_eta(by_worker)


@pytest.mark.parametrize(
    "eta", [5, 1.5, True, float("nan"), "soon", "20000-01-01T00:00:00", "", object(), b"2030"]
)
def test_what_is_no_point_in_time_is_refused_by_value(eta: Any) -> None:
    with pytest.raises(InvalidETA, match="ISO 8601") as caught:
        due_of_eta(eta)

    assert repr(eta) in str(caught.value)


@pytest.mark.parametrize(
    ("countdown", "ms"), [(1, 1000), (0.5, 500), (0.0001, 1), (-3, -3000), (1e9, 10**12)]
)
def test_a_countdown_is_in_seconds(countdown: float, ms: int) -> None:
    assert due_of_countdown(countdown) == Due(ms, relative=True)


@pytest.mark.parametrize(
    "countdown",
    [math.nan, math.inf, -math.inf, "10", True, None, [1], 1e15, 1e306, -1e306, 10**400],
)
def test_a_countdown_that_is_no_finite_number_or_too_large_is_refused_by_value(
    countdown: Any,
) -> None:
    with pytest.raises(InvalidETA) as caught:
        due_of_countdown(countdown)

    assert f"countdown={countdown!r}" in str(caught.value)


@given(
    st.integers(0, 9),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.binary(max_size=200),
)
def test_a_record_is_read_as_it_was_written(priority: int, task: str, message: bytes) -> None:
    record = Record(priority, "n-1", task, message)

    assert Record.unpack(record.pack()) == record
    assert record.pack().count(b"\n") == 1 + message.count(b"\n")


@pytest.mark.parametrize("data", [b"", b"1 0 n t", b"2 0 n t\n{}", b"\xff\n", b"1 x n t\n{}"])
def test_other_bytes_are_no_record(data: bytes) -> None:
    with pytest.raises(RecordError, match="unreadable"):
        Record.unpack(data)


def test_an_entry_leaves_the_message_as_kombu_will_send_it_again() -> None:
    message = task_message()
    before = copy.deepcopy(message)

    Entry.of(message, 3, Due(5))

    own = message["properties"].pop("delayq")
    assert own == {"message_id": "tag-1"}
    assert message == before


def test_a_repeated_publish_has_the_message_id_of_the_first_though_another_delivery_tag() -> None:
    message = task_message()
    first = Entry.of(message, 0, Due(5))
    message["properties"]["delivery_tag"] = "tag-2"

    again = Entry.of(message, 0, Due(5))
    assert Record.unpack(again.data).message_id == Record.unpack(first.data).message_id == "tag-1"


def test_the_stored_message_has_no_eta_and_remembers_it() -> None:
    message = task_message(empty=[], big=12345678901234567)
    envelope.message_id_of(message)

    stored = envelope.without_eta(message)

    assert stored["headers"] == {**message["headers"], "eta": None}
    assert stored["properties"]["delayq"] == {"eta": "2030-01-01T00:00:00+00:00"}
    assert b"12345678901234567" in message_json.encode(stored)
    assert b'"empty": []' in message_json.encode(stored)


@pytest.mark.parametrize("change", [envelope.without_eta, envelope.with_label])
def test_stock_gets_what_was_sent_with_the_eta_that_counts_by_now(change: Any) -> None:
    message = task_message()
    original = copy.deepcopy(message)
    envelope.message_id_of(message)
    changed = change(message)

    assert envelope.for_stock(changed, original["headers"]["eta"]) == original
    original["headers"]["eta"] = "2031-02-03T04:05:06.789000+00:00"
    assert envelope.for_stock(changed, "2031-02-03T04:05:06.789000+00:00") == original
    original["headers"]["eta"] = None
    assert envelope.for_stock(changed, None) == envelope.for_stock(original, None) == original


@pytest.mark.parametrize("id", ["id-1", "with space", "ünï", "50%", ""])
def test_the_label_of_a_message_is_read_from_its_bytes(id: str) -> None:
    message = task_message(id=id)
    message_id = envelope.message_id_of(message)

    sent = message_json.encode(envelope.with_label(message))
    found = envelope.Label.of(sent)

    assert found == (id.encode(), message_id.encode(), b"-")
    label = envelope.own_of(message_json.decode(sent)["properties"])["label"]
    assert envelope.head_with(label) == envelope.head_of(sent)
    assert sent.startswith(envelope.head_of(sent))
    assert envelope.Label.of(message_json.encode(task_message(id=id))) is None


@pytest.mark.parametrize("label", ["", 3, None, ["id"], "id 1", "\udfff m x -"])
def test_a_label_that_scripts_cannot_read_has_no_head(label: object) -> None:
    assert envelope.head_with(label) == b""


@pytest.mark.parametrize("task", ["tasks.t", "with space", "ünï", 'quo"ted', "50%", ""])
@pytest.mark.parametrize(
    ("size", "step", "own"),
    [
        (10, 0, {}),
        (envelope.LARGE_MESSAGE_BYTES, 0, {}),
        (envelope.LARGE_MESSAGE_BYTES, 3, {}),
        (envelope.LARGE_MESSAGE_BYTES, 0, {"task": 5}),
    ],
    ids=["small", "large", "large with a priority", "large with another task"],
)
def test_the_record_of_a_large_message_is_the_message(
    size: int, step: int, own: dict[str, Any], task: str
) -> None:
    message = task_message(task=task)
    message["body"] = "x" * size
    message["properties"]["delayq"] = own

    entry = Entry.of(message, step, Due(5))

    record = Record.unpack(entry.data)
    assert record[:3] == (step, "tag-1", task)
    assert (record.message == entry.data) == (size >= envelope.LARGE_MESSAGE_BYTES and step == 0)
    assert message_json.decode(record.message)["body"] == message["body"]
    # It may be put off, exported and imported: the bytes stay the same.
    assert record.pack() == entry.data
    again = Entry.of(message_json.decode(record.message), step, Due(5))
    assert Record.unpack(again.data)[:3] == record[:3]
    ticked = Record.unpack(envelope.with_skip_after(entry, 70).data)
    assert ticked[:3] == record[:3]
    assert ticked.message == record.message.replace(b" 0 -", b" 070 -", 1)


def test_a_large_message_with_another_task_has_a_record_with_a_header() -> None:
    message = task_message()
    message["body"] = "x" * envelope.LARGE_MESSAGE_BYTES
    record = Record.unpack(Entry.of(message, 0, Due(5)).data)

    for wrong in (record._replace(task="tasks.u"), record._replace(message_id="tag-2")):
        assert Record.unpack(wrong.pack()) == wrong


def test_the_senders_countdown_goes_before_the_eta_made_of_it() -> None:
    message = task_message()
    message["properties"]["delayq"] = {"countdown": (2.5, message["headers"]["eta"])}

    assert envelope.due_when_sent(message) == Due(2500, relative=True)
    assert envelope.due_of(message) == due_of_eta(message["headers"]["eta"])


def test_an_eta_that_a_handler_has_changed_goes_before_the_countdown() -> None:
    message = task_message()
    message["properties"]["delayq"] = {"countdown": (2.5, "2029-12-31T23:59:57+00:00")}

    assert envelope.due_when_sent(message) == due_of_eta(message["headers"]["eta"])


NO_TASK = {"headers": {"eta": "not for us"}, "properties": {}}


@pytest.mark.parametrize(
    "message",
    [task_message(eta=None), NO_TASK, {"headers": {}, "properties": {}}, {"properties": {}}],
)
def test_a_message_that_is_no_task_with_an_eta_has_no_due(message: dict[str, Any]) -> None:
    assert envelope.due_of(message) is None


NO_PROPERTIES = [[], {"delivery_tag": 1}, {"delivery_info": {}}]


@pytest.mark.parametrize(
    "message", [None, [], "text", {}, *({"properties": each} for each in NO_PROPERTIES)]
)
def test_what_kombu_could_make_no_message_of_is_found(message: Any) -> None:
    envelope.check_envelope(task_message())
    with pytest.raises(RecordError):
        envelope.check_envelope(message)


# -- limits


def limited(lane: str = "stripe:c1", eta: str | None = None, **headers: Any) -> dict[str, Any]:
    message = task_message(eta, **headers)
    message["properties"]["delayq"] = {"skip_after": 5, "limit": lane}
    return message


@pytest.mark.parametrize(
    ("expires", "ms"),
    [
        (None, 0),
        ("2030-01-01T00:00:00+00:00", 1_893_456_000_000),
        ("2030-01-01T02:00:00+02:00", 1_893_456_000_000),
        (datetime(2030, 1, 1, tzinfo=timezone.utc), 1_893_456_000_000),
        ("1960-01-01T00:00:00+00:00", 1),
        ("soon", 0),
        (5, 0),
        ([], 0),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_the_mark_of_a_limit_is_behind_the_label(expires: Any, ms: int, large: bool) -> None:
    message = limited(expires=expires)
    if large:
        message["body"] = "x" * envelope.LARGE_MESSAGE_BYTES

    data = Entry.of(message, 0, Due(0)).data

    sent = Record.unpack(data).message
    task = b'"task": "tasks.t", ' if large else b""
    label = b'{"properties": {"delayq": {"label": "id-1 tag-1 5 -", '
    assert sent.startswith(b'%b%b"limit": "stripe:c1 %d", "skip_after": 5' % (label, task, ms))
    assert envelope.limit_of(sent) == envelope.LimitMark("stripe:c1", ms)
    assert data.startswith(label + task if large else b"1 0 tag-1 tasks.t\n" + label)
    assert envelope.head_of(sent) == b'%b%b"limit": "stripe:c1 %d"' % (label, task, ms)
    assert envelope.Label.of(sent) == envelope.Label(b"id-1", b"tag-1", b"-")


def test_a_message_that_is_sent_again_has_one_mark_with_its_own_expiry() -> None:
    first = limited(expires="2030-01-01T00:00:00+00:00")
    sent = message_json.decode(Record.unpack(Entry.of(first, 0, Due(0)).data).message)
    assert sent["properties"]["delayq"]["limit"] == "stripe:c1 1893456000000"

    sent["headers"]["expires"] = None
    again = Record.unpack(Entry.of(sent, 0, Due(0)).data).message

    assert envelope.limit_of(again) == envelope.LimitMark("stripe:c1", 0)
    assert again.count(b'"limit"') == 1


def test_a_mark_that_scripts_do_not_find_is_none() -> None:
    sent = Record.unpack(Entry.of(limited(), 0, Due(0)).data).message
    assert envelope.limit_of(sent) is not None

    for other in (
        sent.replace(
            b'"limit": "stripe:c1 0", "skip_after": 5', b'"skip_after": 5, "limit": "x 0"'
        ),
        sent.replace(b" 0", b""),
        sent.replace(b'"label"', b'"labels"'),
        b" " + sent,
        message_json.encode(limited()),
    ):
        assert other != sent
        assert envelope.limit_of(other) is None


def test_a_task_with_a_limit_goes_through_the_schedule() -> None:
    message = limited()
    del message["properties"]["delayq"]["skip_after"]
    assert envelope.is_special(message)

    del message["properties"]["delayq"]["limit"]
    assert not envelope.is_special(message)
    assert not envelope.is_special({**limited(), "headers": {}})

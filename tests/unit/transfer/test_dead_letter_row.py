"""A dead letter outside Redis comes back byte for byte; what is none is refused with its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import RecordError
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.transfer.archiver import MAX_BACKOFF_SECONDS, backoff
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS, DeadLetterRow
from celery_delayq.transfer.dead_letter_sql import _escaped, _unescaped
from tests.support.dead_letters import details, message, stored
from tests.support.exports import HEADER, read, written

#: Names as Redis may hold them: any bytes.
names = st.binary(max_size=30).map(lambda data: data.decode("utf-8", "surrogateescape"))


def row(**changed: Any) -> DeadLetterRow:
    given = {"queue": "q", "id": "id-1", "data": stored(5, "failed", message("id-1"), details())}
    return DeadLetterRow.of_data(**{**given, **changed})


@given(queue=names.filter(bool), id=names, data=st.binary(max_size=300))
def test_a_dead_letter_comes_back_byte_for_byte(queue: str, id: str, data: bytes) -> None:
    made = row(queue=queue, id=id, data=data)

    lines = written(DEAD_LETTERS, made)

    assert lines.count(b"\n") == 3
    assert lines.isascii()
    assert read(DEAD_LETTERS, lines) == [(1, HEADER), (2, made)]


@given(name=names)
def test_a_name_comes_back_from_a_database(name: str) -> None:
    told = _escaped(name)

    assert _unescaped(told) == name
    assert "\0" not in told
    told.encode()  # is text, without bytes that are none
    if name.isprintable() and name.isascii() and "%" not in name:
        assert told == name


def test_what_differs_has_another_digest() -> None:
    rows = [
        row(),
        row(queue="qi"),
        row(id="id-2"),
        row(queue="qid-", id="1"),
        row(data=row().data + b" "),
        row(data=stored(6, "failed", message("id-1"), details())),
    ]

    assert row().digest == row().digest
    assert len({each.digest for each in rows}) == len(rows)


def test_one_that_was_restored_beside_another_has_its_own_id_again() -> None:
    made = row()
    duplicate = DeadLetter.of("q", DeadLetterRecord.unpack(made.duplicate, made.data))
    other = DeadLetter.of("q", DeadLetterRecord.unpack("id-1\0" + "0" * 40, made.data))

    assert DeadLetterRow.of(duplicate).id == "id-1"
    assert DeadLetterRow.of(duplicate).digest == made.digest
    assert DeadLetterRow.of(other).id == other.id


def test_a_line_tells_people_what_died() -> None:
    line = json.loads(written(DEAD_LETTERS, row()).splitlines()[1])

    assert line.pop("dead_letter").encode() == row().data
    assert line == {
        "queue": "q",
        "id": "id-1",
        "died": "1970-01-01T00:00:00.005+00:00",
        "task": "shop.mail",
        "task_id": "id-1",
        "reason": "failed",
        "exception": "ValueError",
        "retries": 3,
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (None, "expected an object, got NoneType"),
        ([], "expected an object, got list"),
        ({"queue": None}, "queue: expected a text, got NoneType"),
        ({"queue": ...}, "queue: expected a text, got nothing"),
        ({"queue": ""}, "queue: expected a text, got ''"),
        ({"queue": "\ud800"}, "queue: no UTF-8"),
        ({"id": 7}, "id: expected a text, got int"),
        ({"id": "\ud800"}, "id: no UTF-8"),
        ({"dead_letter": ...}, "dead_letter: expected a text, got nothing"),
        ({"dead_letter": ["x"]}, "dead_letter: expected a text, got list"),
        ({"dead_letter": "\ud800"}, "dead_letter: it cannot be read"),
        ({"dead_letter_base64": "not base64"}, "dead_letter_base64: it cannot be read"),
        ({"dead_letter_base64": "AAA"}, "dead_letter_base64: it cannot be read"),
        ({"dead_letter_base64": None}, "dead_letter_base64: expected a text, got NoneType"),
    ],
)
def test_a_line_that_is_none_is_refused(changed: Any, reason: str) -> None:
    line = changed
    if isinstance(changed, dict):
        fields = {**row().fields(), **changed}
        line = {name: value for name, value in fields.items() if value is not ...}

    with pytest.raises(RecordError, match=reason):
        DeadLetterRow.of_fields(line)


def test_waits_grow_to_a_minute() -> None:
    waits = [backoff(failures) for failures in (*range(6), 10_000)]

    assert waits == [
        10,
        20,
        40,
        MAX_BACKOFF_SECONDS,
        MAX_BACKOFF_SECONDS,
        MAX_BACKOFF_SECONDS,
        MAX_BACKOFF_SECONDS,
    ]

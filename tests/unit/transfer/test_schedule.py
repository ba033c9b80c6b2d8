"""What stands in a file: entries come back byte for byte, what is none is refused by its line."""

from __future__ import annotations

import gzip
import json
import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import RecordError, TransferError
from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.model.names import NO_RENAMES
from celery_delayq.model.scheduled import Filter
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, ListedEntry, Name
from celery_delayq.store.keys import Layout
from celery_delayq.transfer import export_format, jsonl, schedule, schedule_row
from celery_delayq.transfer.schedule_row import SCHEDULE, ScheduleRow
from tests.support import exports
from tests.support.exports import HEADER

written, read = partial(exports.written, SCHEDULE), partial(exports.read, SCHEDULE)
DUE = 1_900_000_000_123

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def entry(id: str = "id-1", task: str = "t", retries: int = 0, **own: Any) -> Entry:
    message = {
        "body": "W10=",
        "headers": {"task": task, "id": id, "eta": None, "retries": retries, "big": 2**70},
        "properties": {"delivery_tag": "0123456789abcdefgh", "delivery_info": {}, "delayq": own},
    }
    return Entry.of(message, 3, Due(DUE))


def listed(made: Entry, queue: str = "q", due: int = DUE, name: str = "") -> ScheduleRow:
    """The row of an entry in Redis."""
    return ScheduleRow.of_listed(queue, ListedEntry(Name(name or made.id), due, made.data))


def row(**changed: Any) -> ScheduleRow:
    return listed(entry())._replace(**changed)


def fields(**changed: Any) -> dict[str, Any]:
    """The fields of a line; what is changed to ... is missing."""
    found: dict[str, Any] = {**json.loads(written(row()).splitlines()[1]), **changed}
    return {name: value for name, value in found.items() if value is not ...}


@given(id=texts, task=texts, queue=texts.filter(bool), paused_due=st.booleans())
def test_an_entry_comes_back_byte_for_byte(
    id: str, task: str, queue: str, paused_due: bool
) -> None:
    made = entry(id, task)
    score = DUE + PAUSED_OFFSET_MS if paused_due else DUE

    row = listed(made, queue, score)
    data = written(row)

    assert data.count(b"\n") == 3
    assert data.isascii()
    assert read(data) == [(1, HEADER), (2, row)]
    assert row.due_ms == DUE
    assert row.entry(Layout()) == made


def test_a_name_of_a_duplicate_is_its_id_and_message_id() -> None:
    row = listed(entry(), name="id-1\0" + "0123456789abcdef")

    assert (row.id, row.message_id) == ("id-1", "0123456789abcdef")


def test_a_due_after_the_year_9999_has_no_date() -> None:
    made = ScheduleRow.of_fields(fields(due_ms=253_402_300_800_000, due=None))

    assert made.due is None
    assert read(written(made))[1] == (2, made)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"queue": ...}, "queue: expected a text, got nothing"),
        ({"queue": ""}, "the name of a queue"),
        ({"queue": "delayq:clock"}, "queue: expected another name"),
        ({"id": 7}, "id: expected a text, got int"),
        ({"id": "a\0b"}, "NUL"),
        ({"id": "id-2"}, "label of the message has another"),
        ({"id": "\ud800"}, "no UTF-8"),
        ({"due_ms": "1"}, "due_ms: expected a whole number, got str"),
        ({"due_ms": 1.5, "due": None}, "got float"),
        ({"due_ms": True, "due": None}, "got bool"),
        ({"due_ms": -1, "due": None}, "due_ms=-1"),
        ({"due_ms": 10**15, "due": None}, "expected ms since 1970"),
        ({"due_ms": 5}, 'leave "due" out'),
        ({"due": "soon"}, "ISO 8601"),
        ({"due": 5}, "ISO 8601"),
        ({"step": -1}, "priority step"),
        ({"step": 2**40}, "priority step"),
        ({"message_id": "a b"}, "visible ASCII"),
        ({"message_id": ""}, "visible ASCII"),
        ({"message_id": "other"}, "another id or message id"),
        ({"message": {}}, "message: expected a text, got dict"),
        ({"message": "{"}, "the message is no JSON: Expecting property name"),
        ({"message": "[" * 100_000}, "no JSON"),
        ({"message": "[]"}, "no properties"),
        (
            {"message": '{"properties": {"delivery_tag": 1, "delivery_info": {}}}'},
            "not that of a task",
        ),
        ({"message": " " + fields()["message"]}, "not that of a task"),
        ({"message": fields()["message"].replace(": ", ":")}, "rewritten"),
    ],
)
def test_a_line_that_is_no_entry_is_refused_by_its_number(changed: Any, reason: str) -> None:
    bad = json.dumps(fields(**changed)).encode()
    good = written(row())

    [_, (line, told), (_, last)] = read(
        b"\n".join([good.splitlines()[0], b"", bad, *good.splitlines()[1:]])
    )

    assert line == 3
    assert reason in told
    assert last == row()


@given(place=st.integers(0, 10_000), text=st.sampled_from(["", '"', "{", "}", "\\", "x", "0", ","]))
def test_a_changed_message_is_refused_as_by_a_look_at_all_of_it(place: int, text: str) -> None:
    given_row = row(message=_with_change(listed(entry()).message, place, text))

    def reason() -> str:
        try:
            given_row.checked()
        except RecordError as exc:
            return str(exc)
        return ""

    fast = reason()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_row, "_is_task_message", lambda _: False)
        assert reason() == fast


def _with_change(message: str, place: int, text: str) -> str:
    """Return a message with another text in place of one character."""
    place %= len(message)
    return message[:place] + text + message[place + 1 :]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"garbage", "no JSON: Expecting value at character 1"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"5", "expected an object, got int"),
        (b"[" * 100_000, "no JSON"),
        (b'{"due_ms": 1' + b"0" * 5000 + b"}", "4300"),
    ],
)
def test_what_is_no_object_is_refused_by_its_line(line: bytes, reason: str) -> None:
    [(number, told)] = read(b"\n" + line)

    assert number == 2
    assert reason in told


def test_a_file_may_have_several_exports_and_lines_without_a_header() -> None:
    data = written(row())
    line = data.splitlines()[1]

    assert read(b"\xef\xbb\xbf" + line + b"\r\n \n" + line) == [(1, row()), (3, row())]
    assert read(data + data) == [(1, HEADER), (2, row()), (4, HEADER), (5, row())]
    assert read(written()) == [(1, HEADER)]


def test_what_was_cut_off_is_known_also_between_two_lines() -> None:
    whole = written(row(), row())

    assert read(b"".join(whole.splitlines(keepends=True)[:2]))[-1] == (
        3,
        "the export that begins in line 1 has no last line: it was cut off",
    )
    [*_, (_, half), (line, cut)] = read(whole[:-60])
    assert (line, "cut off" in cut, "no JSON" in half) == (4, True, True)


def test_a_packed_file_is_read_up_to_where_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with jsonl.writing(path, SCHEDULE) as target:
        target.begin(HEADER)
        for n in range(300):
            target.write([listed(entry(f"id-{n}"))])
        target.end(300, 0)
    whole = path.read_bytes()
    assert gzip.decompress(whole).count(b"\n") == 302

    path.write_bytes(whole[: len(whole) // 2])
    with jsonl.reading(path, SCHEDULE) as lines:
        found = [told for _, told in lines]

    assert sum(isinstance(told, ScheduleRow) for told in found) > 50
    assert [told for told in found if isinstance(told, str)] == [
        "the file is damaged from here on (Compressed file ended before the end-of-stream marker "
        "was reached)",
        "the export that begins in line 1 has no last line: it was cut off",
    ]


def test_an_empty_file_is_no_export() -> None:
    told = "the file is empty, it has no header"
    assert [read(b""), read(b"\n \n")] == [[(1, told)], [(3, told)]]


def test_a_later_version_is_not_read() -> None:
    header = {"format": "celery_delayq.schedule", "version": 2}

    with pytest.raises(TransferError, match="version 2 of the format"):
        read(json.dumps(header).encode())


def test_an_import_never_replaces() -> None:
    unique: Any = {"unique": {"key": "dt:k", "policy": "replace"}}

    made = [entry(), entry(**unique), entry(**unique, retries=2)]

    policies = [listed(each).entry(Layout()).policy for each in made]

    assert policies == ["", "k 0 0", "k 0 1"]


def test_a_step_that_the_target_has_not_is_the_one_below() -> None:
    made = row().entry(Layout(steps=(0, 2, 5)))

    assert (made.priority, Record.unpack(made.data).priority) == (2, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "unreadable record"),
        (b"1 0 n t\n{\xff}", "no UTF-8"),
        (b"1 00 n t\n" + row().message.replace("0123456789abcdef ", "n ").encode(), "spelled"),
        (b"1 0 n t\n{}", "no properties"),
    ],
)
def test_a_record_that_would_not_come_back_is_reported(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        ScheduleRow.of_listed("q", ListedEntry(Name("id-1"), DUE, data))


# -- files


def test_a_new_file_is_private_and_one_that_is_there_stays_as_open_as_it_was(
    tmp_path: Path,
) -> None:
    new, old, link = tmp_path / "new", tmp_path / "old", tmp_path / "link"
    old.write_bytes(b"before")
    old.chmod(0o664)
    link.symlink_to(old)

    for path in (new, link):
        with jsonl.writing(path, SCHEDULE) as target:
            target.begin(HEADER)

    assert [path.stat().st_mode & 0o777 for path in (new, old)] == [0o600, 0o664]
    assert link.is_symlink()
    assert old.read_bytes() == new.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old", "link"}


def test_after_an_error_the_file_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"before")

    def fail() -> None:
        with jsonl.writing(path, SCHEDULE) as target:
            target.begin(HEADER)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert path.read_bytes() == b"before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_device_is_written_to_and_stays_one() -> None:
    null = Path("/dev/null")

    with jsonl.writing(null, SCHEDULE) as target:
        target.begin(HEADER)

    assert null.is_char_device()


# -- what is refused before anything is done


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://:hunter2@localhost/0", "expected a path, '-', sqlite:///path or postgresql://"),
        ("mysql://u:hunter2@localhost/0", "expected a path"),
        ("postgresql://u:hunter2@localhost:port/x", "no URL of a database"),
        ("sqlite://", "expected a file"),
    ],
)
def test_another_url_is_refused_without_its_password(url: str, reason: str) -> None:
    for opened in (
        schedule._writing(url, Filter(), NO_RENAMES, prune=False),
        schedule.reading(url, Filter(), NO_RENAMES),
    ):
        with pytest.raises(TransferError, match=reason) as caught:
            opened.__enter__()
        assert "hunter2" not in str(caught.value)


def test_without_sqlalchemy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "celery_delayq.transfer.schedule_sql", raising=False)
    monkeypatch.delattr("celery_delayq.transfer.schedule_sql", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)

    with pytest.raises(TransferError, match=r'pip install "celery-delayq\[sql\]"'):
        schedule._writing("sqlite:///a.db", Filter(), NO_RENAMES, prune=False)


def test_without_its_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(TransferError, match=r'pip install "celery-delayq\[sql\]" "psycopg'):
        schedule.reading("postgres://localhost/x", Filter(), NO_RENAMES).__enter__()


def test_a_file_cannot_be_pruned() -> None:
    with pytest.raises(TransferError, match="only rows of a database"):
        schedule._writing("a.jsonl", Filter(), NO_RENAMES, prune=True)


def test_a_filter_is_reported_as_it_was_given() -> None:
    when = datetime(2030, 1, 1, tzinfo=timezone.utc)

    assert export_format.shown_filter(Filter("q", due_from=when, priority=0)) == {
        "queue": "q",
        "due_from": "2030-01-01T00:00:00+00:00",
        "priority": 0,
    }

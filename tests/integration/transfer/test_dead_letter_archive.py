"""Dead letters to databases and files and back: each once, and byte for byte."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.store.dead_letters import PAGE_DEAD_LETTERS, DeadLetterStore
from celery_delayq.transfer import dead_letter_archive
from celery_delayq.transfer.results import Archived, Imported
from tests.integration.conftest import MakeApp, query
from tests.support.dead_letters import AT, dead_letters, details, fill, message, stored

HOSTILE = ("with space", "{brace}:%00", "100%", "ünï☃ '\"\\", "nul\0inside", "x" * 10_000, "-")


def keep_hostile(delayq: DelayQ) -> None:
    """Something of each kind that there is, and of what is none."""
    keep = delayq.store.dead_letters.restore
    for n, text in enumerate(HOSTILE):
        reason = f"failed: {text} \x1b[31m"
        told = details(text, worker=text, traceback=f"{text}\n\ud800")
        queue = f"q {text[:200]}"
        sent = message(text, text, root_id=text, group=text, retries=2**70)
        data = stored(AT + n, reason, sent, told)
        keep(queue, [(text, AT + n, data)])
        keep(queue, [(f"{text}\0{AT}-1", AT + n, stored(AT + n, reason, b"\xff\0\xfe no json"))])
    keep("celery", [(b"\xff\xfe".decode("utf-8", "surrogateescape"), AT, b"1 %d 0 r\n" % AT)])


# -- there and back


def test_a_move_and_a_restore_lose_nothing(delayq: DelayQ, elsewhere: DelayQ, place: str) -> None:
    fill(delayq, 1_203)
    fill(delayq, 51, queue="mail")
    keep_hostile(delayq)
    before = dead_letters(delayq)
    number = len(before)
    move = "://" in place

    report = delayq.archive_dead(place) if move else delayq.export_dead(place)

    assert (report.looked, report.dead_letters, report.new) == (number, number, number)
    assert (report.total, report.moved, report.gone) == (number, number * move, 0)
    assert dead_letters(delayq) == ({} if move else before)

    assert elsewhere.import_dead(place, dry_run=True).outcomes == {"restored": number}
    assert dead_letters(elsewhere) == {}
    imported = elsewhere.import_dead(place)
    assert (imported.outcomes, imported.total) == ({"restored": number}, number)
    assert dead_letters(elsewhere) == before
    for dry_run in (True, False):
        assert elsewhere.import_dead(place, dry_run=dry_run).outcomes == {"duplicate": number}
    assert dead_letters(elsewhere) == before

    assert delayq.import_dead(place).looked == number
    assert dead_letters(delayq) == before


def test_archiving_again_what_was_restored_adds_nothing(delayq: DelayQ, database: str) -> None:
    fill(delayq, 700)
    keep_hostile(delayq)
    number = len(dead_letters(delayq))

    delayq.archive_dead(database)
    delayq.import_dead(database)
    again = delayq.archive_dead(database)

    assert (again.dead_letters, again.new, again.moved) == (number, 0, number)
    assert dead_letters(delayq) == {}
    assert query(database, "SELECT count(*) FROM dead_letters") == [(number,)]


def test_an_export_leaves_them_and_a_move_marks_their_rows(delayq: DelayQ, database: str) -> None:
    ids = fill(delayq, 5)
    before = dead_letters(delayq)
    moved = "SELECT id FROM dead_letters WHERE moved_at IS NOT NULL ORDER BY id"

    assert (delayq.export_dead(database).new, delayq.export_dead(database).new) == (5, 0)
    assert dead_letters(delayq) == before
    assert query(database, moved) == []

    report = delayq.archive_dead(database, DeadFilter(task_id=ids[2]))
    assert (report.dead_letters, report.new, report.moved) == (1, 0, 1)
    assert query(database, moved) == [(ids[2],)]
    assert len(dead_letters(delayq)) == 4


def test_a_dead_letter_without_a_date_comes_back_as_of_now(delayq: DelayQ, place: str) -> None:
    store = delayq.store
    store.register("celery")
    store.client.hset("{celery}:dead", "rotten", b"\xffno dead letter")
    store.client.zadd("{celery}:dead_at", {"rotten": 7})

    delayq.export_dead(place)
    delayq.purge_all(DeadFilter(), everything=True)
    assert dead_letters(delayq) == {}
    assert delayq.import_dead(place).outcomes == {"restored": 1}

    [(data, died)] = dead_letters(delayq).values()
    assert data == b"\xffno dead letter"
    # Else it would be the first that is too old to be kept.
    assert 0 <= store.now_ms() - died < 60_000


def test_a_dead_letter_from_after_all_time_comes_back(delayq: DelayQ, place: str) -> None:
    data = stored(10**19, "failed", message("late"))
    delayq.store.dead_letters.restore("celery", [("late", AT, data)])

    delayq.export_dead(place)
    delayq.store.client.delete("{celery}:dead", "{celery}:dead_at")

    assert delayq.import_dead(place).outcomes == {"restored": 1}
    assert dead_letters(delayq) == {("celery", b"late"): (data, 1e19)}


def test_one_that_is_restored_beside_another_stays_the_same_row(
    delayq: DelayQ, database: str
) -> None:
    keep = delayq.store.dead_letters.restore
    first, second = (stored(AT + n, "failed", message("one")) for n in range(2))
    keep("celery", [("one", AT, first)])
    delayq.archive_dead(database)
    keep("celery", [("one", AT + 1, second)])

    assert delayq.import_dead(database).outcomes == {"restored": 1}
    assert {data for data, _ in dead_letters(delayq).values()} == {first, second}
    assert delayq.import_dead(database).outcomes == {"duplicate": 1}
    assert delayq.import_dead(database, dry_run=True).outcomes == {"duplicate": 1}

    report = delayq.archive_dead(database)
    assert (report.new, report.moved) == (1, 2)
    assert query(database, "SELECT id FROM dead_letters ORDER BY died_ms") == [("one",), ("one",)]
    assert dead_letters(delayq) == {}


@pytest.mark.parametrize(
    ("room", "transactions"), [(300_000, 17), (dead_letter_archive.PAGE_BYTES, 2)]
)
def test_large_dead_letters_are_not_read_all_at_once_nor_written(
    delayq: DelayQ, database: str, monkeypatch: pytest.MonkeyPatch, room: int, transactions: int
) -> None:
    monkeypatch.setattr(dead_letter_archive, "PAGE_BYTES", room)
    pages, sizes = DeadLetterStore.pages, []

    def noting(*args: Any, **kwargs: Any) -> Any:
        for found in pages(*args, **kwargs):
            sizes.append(sum(len(each.data) for each in found))
            yield found

    monkeypatch.setattr(DeadLetterStore, "pages", noting)
    fill(delayq, PAGE_DEAD_LETTERS, queue="a")
    fill(delayq, 80, queue="b", size=50_000)

    written: list[int] = []
    report = delayq.archive_dead(database, progress=lambda report: written.append(report.moved))

    assert report.moved == PAGE_DEAD_LETTERS + 80
    # A call of Redis tells about 1 MB, and a transaction has several calls or a part of one.
    assert len(sizes) == 5
    assert 1_000_000 <= max(sizes) <= 1_100_000
    assert len(written) == transactions


# -- which ones


def keep_various(delayq: DelayQ) -> None:
    keep = delayq.store.dead_letters.restore
    kinds = (
        ("mail", "shop.mail", "failed: Timeout", "Timeout", "root", None),
        ("mail", "shop.bill", "failed: DECLINED", "Declined", "root", "group"),
        ("bills", "shop.bill", "killed its workers", None, None, "group"),
        ("bills", "shop.ü\0", "failed: ÜBEL", "Übel\0", "ü", None),
    )
    for n, (queue, task, reason, exception, root, group) in enumerate(kinds):
        told = details(exception) if exception else b""
        data = message(f"id-{n}", task, root_id=root, group=group)
        died = AT + n * 1000
        keep(queue, [(f"dead_letter-{n}", died, stored(died, reason, data, told))])


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"queue": "mail"}, {0, 1}),
        ({"task": "shop.ü\0"}, {3}),
        ({"reason": "declined"}, {1}),
        ({"reason": "übel"}, {3}),
        ({"exception": "Übel\0"}, {3}),
        ({"root_id": "root", "group_id": "group"}, {1}),
        ({"died_from": datetime.fromtimestamp(AT / 1000 + 1, timezone.utc)}, {1, 2, 3}),
        ({"died_to": datetime.fromtimestamp(AT / 1000 + 1, timezone.utc)}, {0, 1}),
        ({"queue": "mail", "task": "none"}, set()),
    ],
)
def test_both_ways_only_what_a_filter_means(
    delayq: DelayQ, elsewhere: DelayQ, tmp_path: Path, filter: dict[str, Any], wanted: set[int]
) -> None:
    keep_various(delayq)
    which = DeadFilter(**filter)
    ids = {f"dead_letter-{n}" for n in wanted}
    every, some = f"sqlite:///{tmp_path}/every.db", f"sqlite:///{tmp_path}/some.db"
    file = tmp_path / "some.jsonl"

    delayq.export_dead(every)
    assert delayq.export_dead(file, which).dead_letters == len(wanted)
    assert {json.loads(line).get("id") for line in file.read_bytes().splitlines()[1:-1]} == ids
    assert elsewhere.import_dead(every, which).outcomes["restored"] == len(wanted)
    assert {each.id for each in elsewhere.dead_letters()} == ids
    assert delayq.archive_dead(some, which).moved == len(wanted)
    assert {each.id for each in delayq.dead_letters()} == {
        f"dead_letter-{n}" for n in range(4)
    } - ids
    assert dict(query(some, "SELECT id, id FROM dead_letters")).keys() == ids


def test_only_what_died_long_enough_ago(delayq: DelayQ, database: str) -> None:
    fill(delayq, 3, queue="old", age=600)
    fill(delayq, 4, queue="new", age=30)

    assert delayq.archive_dead(database, older_than=300).moved == 3
    assert delayq.archive_dead(database, older_than=300).looked == 0
    limit = datetime.now(timezone.utc) - timedelta(seconds=900)
    assert delayq.archive_dead(database, DeadFilter(died_to=limit), older_than=1).moved == 0
    assert delayq.archive_dead(database, older_than=1).moved == 4


# -- with others


def test_what_is_replayed_in_between_is_not_forgotten_twice(
    app: Celery, delayq: DelayQ, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(delayq, 5)
    discard = DeadLetterStore.delete

    def late(self: DeadLetterStore, queue: str, names: Any, token: str, **more: Any) -> Any:
        assert delayq.replay(ids[1], countdown=3600)
        # And one that has died again since, under the same id.
        assert delayq.replay(ids[2], countdown=3600)
        delayq.cancel(ids[2])
        self.add(queue, ids[2], "failed again", message(ids[2]))
        # And one with other arguments: the database has the former ones only.
        delayq.rewrite(lambda call: {"args": ["new"]} if call.id == ids[3] else None)
        return discard(self, queue, names, token, **more)

    monkeypatch.setattr(DeadLetterStore, "delete", late)
    report = delayq.archive_dead(database)

    assert (report.dead_letters, report.moved, report.gone) == (5, 2, 3)
    assert [each.id for each in delayq.entries()] == [ids[1]]
    found = {each.id: (each.reason, each.args) for each in delayq.dead_letters()}
    assert found == {ids[2]: ("failed again", [ids[2], ""]), ids[3]: ("it failed", ["new"])}
    rows = query(database, "SELECT id FROM dead_letters WHERE moved_at IS NULL ORDER BY id")
    assert rows == [(ids[1],), (ids[2],), (ids[3],)]


@pytest.mark.full
def test_several_archive_at_once(make_app: MakeApp, delayq: DelayQ, database: str) -> None:
    fill(delayq, 4_000)
    fill(delayq, 1_000, queue="mail")
    before = dead_letters(delayq)
    many = [DelayQ.of(make_app()) for _ in range(4)]

    with ThreadPoolExecutor(len(many)) as pool:
        reports: list[Archived] = [*pool.map(lambda each: each.archive_dead(database), many)]

    assert dead_letters(delayq) == {}
    assert sum(report.moved for report in reports) == 5_000
    assert sum(report.new for report in reports) == 5_000
    assert query(database, "SELECT count(*), count(moved_at) FROM dead_letters") == [(5000, 5000)]
    with ThreadPoolExecutor(len(many)) as pool:
        back: list[Imported] = [*pool.map(lambda each: each.import_dead(database), many)]
    assert sum(report.outcomes["restored"] for report in back) == 5_000
    assert dead_letters(delayq) == before

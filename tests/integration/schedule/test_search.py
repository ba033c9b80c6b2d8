"""Calls that find scheduled tasks by their arguments."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Filter, Outcome
from celery_delayq.errors import InvalidCursor, InvalidFilter
from celery_delayq.schedule import client, pages
from celery_delayq.store import control, paging

QUEUES = ("celery", "mail", "bills")


def remind(order_id: int, note: str = "") -> None:
    """Stand for any task."""


@pytest.fixture(autouse=True)
def _tasks(app: Celery) -> None:
    app.task(name="shop.remind", shared=False)(remind)


@pytest.fixture
def orders(delayq: DelayQ) -> None:
    """Three hundred tasks in three queues, by turns for the orders 0 to 9; 2,000 of others."""
    items: list[dict[str, Any]] = []
    for n in range(300):
        given = {"args": (n % 10,)} if n % 2 else {"kwargs": {"order_id": n % 10}}
        items.append({**given, "countdown": 3600 + n, "id": f"id-{n:03}", "queue": QUEUES[n % 3]})
    others = ({"args": ("x",), "countdown": 3600 + n / 7} for n in range(2000))
    delayq.schedule_many([*items, *others], task="shop.remind", queue="celery")


def expected(order: int, queues: Any = QUEUES) -> list[str]:
    return [f"id-{n:03}" for n in range(300) if n % 10 == order and QUEUES[n % 3] in queues]


def ids(found: Any) -> list[str]:
    return [each.id for each in found]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("queue", [None, "mail"])
def test_entries_are_found_in_order_of_due(delayq: DelayQ, queue: str | None) -> None:
    wanted = expected(7, QUEUES if queue is None else (queue,))
    filter = Filter(queue, arg={"order_id": 7})

    assert ids(delayq.entries(filter)) == wanted
    assert ids(delayq.list(filter)) == wanted
    assert delayq.count(filter) == len(wanted)
    assert ids(delayq.entries(queue=queue, task="shop.remind", arg={"order_id": 7})) == wanted
    assert ids(delayq.entries(queue=queue, task="shop.none", arg={"order_id": 7})) == []


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("queue", [None, "mail"])
def test_pages_lead_from_one_to_the_next(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch, queue: str | None, limit: int
) -> None:
    monkeypatch.setattr(paging, "SEARCH_ENTRIES", 50)
    monkeypatch.setattr(client, "MAX_SEARCHED_ENTRIES", 200)
    filter = Filter(queue, arg={"order_id": 7})
    found: list[str] = []
    looked, cursor = 0, None
    while True:
        page = delayq.list(filter, limit=limit, cursor=cursor)
        assert len(page) <= limit
        assert page.looked < 250
        found, looked, cursor = [*found, *ids(page)], looked + page.looked, page.cursor
        if cursor is None:
            break

    assert found == expected(7, QUEUES if queue is None else (queue,))
    assert looked == (2300 if queue is None else 100)


@pytest.mark.parametrize("arg", [None, {"order_id": 7}])
@pytest.mark.parametrize("queue", [None, "mail"])
def test_pages_of_large_messages_are_short(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch, queue: str | None, arg: Any
) -> None:
    for module in (control, paging):
        monkeypatch.setattr(module, "MAX_PAGE_BYTES", 300_000)
    large = {"note": "x" * 100_000}
    items: list[dict[str, Any]] = [
        {"args": (7,), "kwargs": large, "countdown": 60 + n, "id": f"{n}", "queue": QUEUES[n % 3]}
        for n in range(60)
    ]
    delayq.schedule_many(items, task="shop.remind")
    filter = Filter(queue, arg=arg)
    found: list[str] = []
    cursor = None
    while True:
        page = delayq.list(filter, limit=50, cursor=cursor)
        if arg is None:  # a search reads several pages for one
            assert 0 < len(page) <= (3 if queue is None else 10)  # one call reads about 1 MB
        found, cursor = [*found, *ids(page)], page.cursor
        if cursor is None:
            break

    assert found == [each["id"] for each in items if queue in (None, each["queue"])]
    monkeypatch.setattr(client, "MAX_SEARCHED_ENTRIES", 200)
    assert ids(delayq.entries(filter)) == found


def test_progress_is_reported_for_short_pages_too(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_PAGE_BYTES", 300_000)
    large = {"args": (7, "x" * 100_000), "countdown": 60}
    delayq.schedule_many([large] * 60, task="shop.remind")
    seen: list[tuple[int, int]] = []

    delayq.run_all_now(
        arg={"order_id": 7}, progress=lambda bulk: seen.append((bulk.found, bulk.looked))
    )

    before = [found for found, looked in seen if not looked]
    assert len(before) > 3
    assert before == sorted({*before})


def test_a_cursor_belongs_to_its_arguments(delayq: DelayQ, app: Celery) -> None:
    for n in range(3):
        app.send_task("shop.remind", (1,), countdown=60 + n)
    cursor = delayq.list(arg={"order_id": 1}, limit=1).cursor

    assert len(delayq.list(arg={"order_id": 1}, limit=9, cursor=cursor)) == 2
    with pytest.raises(InvalidCursor):
        delayq.list(arg={"order_id": 2}, cursor=cursor)


@pytest.mark.usefixtures("orders")
def test_only_what_is_found_is_changed(delayq: DelayQ) -> None:
    wanted = {"order_id": 7}
    dues = {each.id: each.due for each in delayq.entries(arg=wanted)}

    assert delayq.reschedule_all(arg=wanted, by=60, dry_run=True).done == 30
    assert delayq.reschedule_all(arg=wanted, by=60).outcomes == {Outcome.DONE: 30}
    moved = {
        each.id: (each.due - dues[each.id]).total_seconds() for each in delayq.entries(arg=wanted)
    }
    assert moved == dict.fromkeys(expected(7), 60.0)
    assert delayq.cancel_all(arg=wanted, queue="mail").done == len(expected(7, ("mail",)))
    assert delayq.run_all_now(arg=wanted).done == 20
    assert delayq.count(arg=wanted) == 0
    assert delayq.count() == 2270


def test_what_nobody_can_decode_is_counted_and_stays(app: Celery, delayq: DelayQ) -> None:
    app.conf.accept_content = ["json", "pickle"]
    for n, serializer in enumerate(("json", "pickle")):
        app.send_task(
            "shop.remind", (7,), countdown=60 + n, serializer=serializer, task_id=serializer
        )
    app.send_task("shop.gone", (7,), countdown=90, task_id="gone")

    page = delayq.list(arg={"order_id": 7})

    assert (ids(page), page.looked, page.unknown) == (["json"], 3, 2)
    assert ids(delayq.entries(arg={"order_id": 7}, unpickle=True)) == ["json", "pickle"]
    assert delayq.cancel_all(arg={"order_id": 7}).done == 1
    assert ids(delayq.entries()) == ["pickle", "gone"]


def test_an_unreadable_entry_is_in_no_ones_way(app: Celery, delayq: DelayQ, redis: Any) -> None:
    for id in ("broken", "fine"):
        app.send_task("shop.remind", (7,), countdown=60, task_id=id)
    redis.hset("{celery}:entries", "broken", b"\xff no record")

    assert ids(delayq.entries(arg={"order_id": 7})) == ["fine"]
    assert delayq.cancel_all(arg={"order_id": 7}).done == 1
    assert delayq.count() == 1


@pytest.mark.usefixtures("orders")
def test_exports_and_imports_search_too(delayq: DelayQ, tmp_path: Path) -> None:
    every, some = str(tmp_path / "every.jsonl"), str(tmp_path / "some.jsonl")
    delayq.export_to(every)

    assert delayq.export_to(some, arg={"order_id": 7}).entries == 30
    delayq.cancel_all(everything=True)
    imported = delayq.import_from(every, arg={"order_id": 3})

    assert imported.outcomes == {"scheduled": 30, "filtered": 2270}
    assert delayq.import_from(some).outcomes == {"scheduled": 30}
    assert ids(delayq.entries(task="shop.remind")) == sorted([*expected(7), *expected(3)])
    with pytest.raises(InvalidFilter, match="prune"):
        delayq.export_to("sqlite:///x.db", arg={"order_id": 7}, prune=True)


def test_the_first_entries_come_before_all_are_read(
    delayq: DelayQ, orders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "SEARCH_ENTRIES", 50)
    reads: list[int] = []
    read_page = paging.read_page

    def counting(*args: Any, **kwargs: Any) -> Any:
        reads.append(1)
        return read_page(*args, **kwargs)

    monkeypatch.setattr(pages, "read_page", counting)
    first = next(delayq.entries(arg={"order_id": "x"}))

    assert first.args == ["x"]
    assert len(reads) == 1


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_entries(delayq: DelayQ) -> None:
    def peak() -> int:
        tracemalloc.start()
        assert delayq.count(arg={"order_id": 7}) == 0
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    def add(number: int) -> None:
        items = [{"args": ("x" * 500,), "countdown": 3600} for _ in range(number)]
        delayq.schedule_many(items, task="shop.remind")

    add(1000)
    peak()  # what is imported and remembered once
    small = peak()
    add(9000)

    assert peak() < 1.5 * small

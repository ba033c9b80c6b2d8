"""Calls that find dead letters by their arguments, and pages of dead letters."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DeadFilter, DelayQ, Outcome
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.deadletters import client
from celery_delayq.errors import InvalidCursor, InvalidFilter
from celery_delayq.store.dead_letters import DeadLetterStore
from tests.support.dead_letters import details, message, stored

QUEUES = ("bills", "celery", "mail")

#: Time of death of the first dead letter (ms). Three die at each moment.
BEGAN = 1_700_000_000_000

NUMBER = 300


def remind(order_id: int, note: str = "") -> None:
    """Stand for any task."""


@pytest.fixture(autouse=True)
def _tasks(app: Celery) -> None:
    app.task(name="shop.remind", shared=False)(remind)


def died(id: str, args: list[Any], kwargs: dict[str, Any], task: str = "shop.remind") -> bytes:
    """Return the message of a task with these arguments."""
    whole = json.loads(message(id, task))
    return json.dumps({**whole, "body": json.dumps([args, kwargs, {}])}).encode()


def keep(delayq: DelayQ, id: str, sent: bytes, queue: str = "celery", ms: int = BEGAN) -> None:
    data = stored(ms, "it failed", sent, details())
    delayq.store.register(queue)
    delayq.store.dead_letters.restore(queue, [(id, ms, data)])


@pytest.fixture
def orders(delayq: DelayQ) -> None:
    """Dead letters in three queues, by turns for the orders 0 to 9."""
    for n in range(NUMBER):
        args, kwargs = ([n % 10], {}) if n % 2 else ([], {"order_id": n % 10})
        id = f"id-{n:03}"
        keep(delayq, id, died(id, args, kwargs), QUEUES[n % 3], BEGAN + n // 3)


def expected(order: int, queues: Any = QUEUES) -> list[str]:
    """Return the ids in order: of those of one moment, by queue."""
    found = [n for n in range(NUMBER) if n % 10 == order and QUEUES[n % 3] in queues]
    return [f"id-{n:03}" for n in sorted(found, key=lambda n: (n // 3, QUEUES[n % 3]))]


def ids(found: Any) -> list[str]:
    return [each.id for each in found]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("queue", [None, "mail"])
def test_dead_letters_are_found_in_the_order_of_their_deaths(
    delayq: DelayQ, queue: str | None
) -> None:
    wanted = expected(7, QUEUES if queue is None else (queue,))
    filter = DeadFilter(queue, arg={"order_id": 7})

    assert ids(delayq.dead_letters(filter)) == wanted
    assert ids(delayq.list_dead(filter)) == wanted
    assert delayq.count_dead(filter) == len(wanted)
    assert ids(delayq.dead_letters(queue=queue, task="shop.remind", arg={"order_id": 7})) == wanted
    assert ids(delayq.dead_letters(queue=queue, exception="None", arg={"order_id": 7})) == []
    assert ids(delayq.dead_letters(arg={"0": 7}, queue=queue)) == [
        id for id in wanted if int(id[3:]) % 2
    ]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("arg", [None, {"order_id": 7}])
@pytest.mark.parametrize("queue", [None, "mail"])
def test_pages_lead_from_one_to_the_next(
    delayq: DelayQ,
    monkeypatch: pytest.MonkeyPatch,
    queue: str | None,
    arg: dict[str, Any] | None,
    limit: int,
) -> None:
    monkeypatch.setattr(client, "MAX_SEARCHED", 40)
    filter = DeadFilter(queue, arg=arg)
    found: list[str] = []
    looked, cursor = 0, None
    for number in count():
        page = delayq.list_dead(filter, limit=limit, cursor=cursor)
        if number == 1:  # who dies meanwhile is left out
            sent = died("late", [7], {})
            keep(delayq, "late", sent, "mail", delayq.session.now_ms() + 1000)
        assert len(page) <= limit
        assert page.looked <= 40
        found, looked, cursor = [*found, *ids(page)], looked + page.looked, page.cursor
        if cursor is None:
            break

    assert found == ids(each for each in delayq.dead_letters(filter) if each.id != "late")
    assert looked == (NUMBER if queue is None else NUMBER // 3)


def test_broken_records_and_scores_are_in_no_ones_way(delayq: DelayQ, redis: Redis) -> None:
    """An unreadable dead letter has no time of death of its own, only its place in the index."""
    for n in range(12):
        id = f"id-{n:02}"
        keep(delayq, id, died(id, [n], {}), QUEUES[n % 2], BEGAN + n)
    for queue in QUEUES[:2]:
        for n in range(6):
            redis.hset(f"{{{queue}}}:dead", f"x{n}", b"\xff no dead letter")
            score = ("inf", "-inf", f"{BEGAN}.5", f"{BEGAN + 5}", "inf", "0")[n]
            redis.zadd(f"{{{queue}}}:dead_at", {f"x{n}": float(score)})
    every = [(each.queue, each.id) for each in delayq.dead_letters()]
    assert len(every) == 24

    for limit in (1, 2, 5):
        found: list[tuple[str, str]] = []
        cursor = None
        for _ in range(30):
            page = delayq.list_dead(limit=limit, cursor=cursor)
            found += [(each.queue, each.id) for each in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == every
    page = delayq.list_dead(arg={"order_id": 7})
    assert (ids(page), page.looked, page.unknown) == (["id-07"], 24, 12)


@pytest.mark.parametrize("limit", [1, 10])
def test_a_page_of_many_queues_reads_few_of_them(delayq: DelayQ, redis: Redis, limit: int) -> None:
    for n in range(40):
        for number in range(10):
            id = f"{n:02}-{number}"
            keep(delayq, id, died(id, [n], {}), f"q{n:02}", BEGAN + 1000 * n + number)
    found: list[str] = []
    cursor = None
    for _ in range(5):
        redis.config_resetstat()
        page = delayq.list_dead(limit=limit, cursor=cursor)
        stats = redis.info("commandstats")
        found, cursor = [*found, *ids(page)], page.cursor
        # A page of a queue is one call, and the next queue says whether there are more.
        assert stats["cmdstat_evalsha"]["calls"] <= 1 + limit // 4

    assert found == [f"{n // 10:02}-{n % 10}" for n in range(5 * limit)]


@pytest.mark.usefixtures("orders")
def test_a_wrong_cursor_is_refused(delayq: DelayQ, app: Celery) -> None:
    cursor = delayq.list_dead(arg={"order_id": 1}, limit=1).cursor
    app.send_task("shop.remind", (1,), countdown=60)
    app.send_task("shop.remind", (1,), countdown=61)
    of_schedule = delayq.list(limit=1).cursor

    assert ids(delayq.list_dead(arg={"order_id": 1}, cursor=cursor)) == expected(1)[1:]
    for other in ({"arg": {"order_id": 2}}, {}, {"queue": "mail", "arg": {"order_id": 1}}):
        with pytest.raises(InvalidCursor, match="this cursor goes with DeadFilter"):
            delayq.list_dead(cursor=cursor, **other)
    wrong: Any
    for wrong in ("", "nonsense", "W10", of_schedule, 5, "é"):
        with pytest.raises(InvalidCursor, match=r"is no cursor|goes with Filter"):
            delayq.list_dead(cursor=wrong)
    for limit in (0, 10_001):
        with pytest.raises(ValueError, match="limit="):
            delayq.list_dead(limit=limit)


@pytest.mark.parametrize("wrong", [{}, {"": 1}, {"a": object()}, "a=1", {1: 2}])
def test_wrong_arguments_are_refused(delayq: DelayQ, wrong: Any) -> None:
    with pytest.raises(InvalidFilter, match="arg="):
        delayq.dead_letters(arg=wrong)
    with pytest.raises(InvalidFilter, match="unpickle=True without arg"):
        delayq.purge_all(unpickle=True)
    dead = DeadFilter(arg={"order_id": 1})
    keep(delayq, "a", died("a", [1], {}))
    with pytest.raises(InvalidFilter, match="this call cannot search by argument"):
        dead.matches(next(delayq.dead_letters()))


@pytest.mark.usefixtures("orders")
def test_only_what_is_found_is_changed(delayq: DelayQ) -> None:
    wanted = {"order_id": 7}

    assert delayq.purge_all(arg=wanted, dry_run=True).done == 30
    assert delayq.purge_all(arg=wanted, queue="mail").done == len(expected(7, ("mail",)))
    assert delayq.replay_all(arg=wanted, to_queue="slow").outcomes == {Outcome.DONE: 20}
    assert delayq.count_dead(arg=wanted) == 0
    assert delayq.count_dead() == NUMBER - 30
    assert delayq.stats().ready == 20


def pickled(id: str) -> bytes:
    whole = json.loads(message(id, "shop.remind"))
    body = base64.b64encode(pickle.dumps(((7,), {}, {}))).decode()
    whole["properties"]["body_encoding"] = "base64"
    parts = {"content-type": "application/x-python-serialize", "content-encoding": "binary"}
    return json.dumps({**whole, "body": body, **parts}).encode()


@pytest.fixture
def three(app: Celery, delayq: DelayQ) -> None:
    """One that is found, one whose content is not decoded, and one of another app."""
    app.conf.accept_content = ["json", "pickle"]
    keep(delayq, "json", died("json", [7], {}))
    keep(delayq, "pickle", pickled("pickle"))
    keep(delayq, "gone", died("gone", [7], {}, "shop.gone"))


@pytest.mark.usefixtures("three")
def test_what_nobody_can_decode_is_counted_and_stays(delayq: DelayQ, tmp_path: Path) -> None:
    wanted = {"order_id": 7}

    page = delayq.list_dead(arg=wanted)
    assert (ids(page), page.looked, page.unknown) == (["json"], 3, 2)
    assert sorted(ids(delayq.dead_letters(arg=wanted, unpickle=True))) == ["json", "pickle"]
    exported = delayq.export_dead(tmp_path / "some.jsonl", arg=wanted)
    assert (exported.dead_letters, exported.unknown) == (1, 2)
    archived = delayq.archive_dead(f"sqlite:///{tmp_path}/x.db", arg=wanted)
    assert (archived.moved, archived.unknown) == (1, 2)
    delayq.export_dead(tmp_path / "rest.jsonl")
    imported = delayq.import_dead(tmp_path / "rest.jsonl", arg=wanted)
    assert imported.outcomes == {"unknown": 2, "filtered": 0}
    assert delayq.import_dead(f"sqlite:///{tmp_path}/x.db", arg=wanted).outcomes["restored"] == 1
    for change in (delayq.replay_all, delayq.purge_all):
        assert change(arg=wanted, dry_run=True).unknown == 2
    assert delayq.purge_all(arg=wanted).unknown == 2
    assert sorted(ids(delayq.dead_letters())) == ["gone", "pickle"]
    assert delayq.replay_all(arg=wanted, unpickle=True).outcomes == {Outcome.DONE: 1}
    assert ids(delayq.dead_letters()) == ["gone"]


@pytest.mark.usefixtures("orders")
def test_the_same_with_asyncio(delayq: DelayQ) -> None:
    async def read() -> tuple[list[str], list[str], int, int]:
        async with AsyncDelayQ(delayq) as q:
            first = await q.list_dead(arg={"order_id": 7}, limit=4)
            rest = await q.list_dead(arg={"order_id": 7}, cursor=first.cursor)
            every = [each.id async for each in q.dead_letters(arg={"order_id": 7})]
            number = await q.count_dead(arg={"order_id": 7})
            purged = await q.purge_all(arg={"order_id": 7})
            return [*ids(first), *ids(rest)], every, number, purged.done

    assert asyncio.run(read()) == (expected(7), expected(7), 30, 30)


@pytest.mark.usefixtures("orders")
def test_the_first_ones_come_before_all_are_read(
    delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[int] = []
    places: Any = DeadLetterStore.places

    def counting(*args: Any, **kwargs: Any) -> Any:
        for page in places(*args, page=10, **kwargs):
            pages.append(len(page))
            yield page

    monkeypatch.setattr(DeadLetterStore, "places", counting)

    assert next(delayq.dead_letters(arg={"order_id": 7})).id == expected(7)[0]
    assert 0 < sum(pages) < NUMBER

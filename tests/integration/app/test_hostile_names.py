"""Ids, names, queues and keys that are anybody's: refused at the call, or as good as any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Filter, Item, Outcome
from celery_delayq.admin.repair import check
from celery_delayq.errors import DelayQError, InvalidOption
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.settings import Settings
from celery_delayq.store.keys import DEFAULT_SEPARATOR
from tests.integration.conftest import MakeApp
from tests.support.keyspace import snapshot

#: No key in Redis can hold it: JSON may, UTF-8 does not.
LONE = "a\ud800b"

#: What others have been fooled by: steering a terminal, SQL, HTML, shells, paths, formats, sheets.
NAMES = {
    "nul": "a\0b",
    "lines": "a\r\nb",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "c1": "\x9b31m",
    "bidi": "\u202etxt.exe",
    "html": "<script>alert(1)</script>",
    "sql": "x'); DROP TABLE delayq_entries;--",
    "formula": "=cmd|'/c calc'!A1",
    "path": "../../etc/passwd",
    "quotes": "\"'`\\",
    "braces": "{x}}{{0}",
    "percent": "%s%(id)s%00%",
    "dash": "--help",
    "space": " ",
    "kombu's separator": f"a{DEFAULT_SEPARATOR}3",
    "our keys": "celery}:due",
    "emoji": "\U0001f600",
    "long": "x" * 1_000_000,
}

#: Every call of ours that takes a name, given one.
CALLS: dict[str, Callable[[DelayQ, Any, str], Any]] = {
    "task_id": lambda _, add, name: add.apply_async(task_id=name, countdown=60),
    "task_id, at once": lambda _, add, name: add.apply_async(task_id=name),
    "queue": lambda _, add, name: add.apply_async(queue=name, countdown=60),
    "queue, at once": lambda _, add, name: add.apply_async(queue=name),
    "exchange": lambda _, add, name: add.apply_async(exchange=name, routing_key="a"),
    "shadow": lambda _, add, name: add.apply_async(shadow=name, countdown=60),
    "root_id": lambda _, add, name: add.apply_async(root_id=name),
    "parent_id": lambda _, add, name: add.apply_async(parent_id=name),
    "group_id": lambda _, add, name: add.apply_async(group_id=name),
    "unique_key": lambda _, add, name: add.apply_async(unique_key=lambda *_: name, countdown=60),
    "argument": lambda _, add, name: add.apply_async((name,), unique_key="{0}"),
    "task": lambda delayq, _, name: delayq.app.send_task(name, countdown=60),
    "item's id": lambda delayq, add, name: many(delayq, add, Item(id=name)),
    "item's version": lambda delayq, add, name: many(delayq, add, Item(id="a", version=name)),
    "item's queue": lambda delayq, add, name: many(delayq, add, Item(queue=name)),
    "item's task": lambda delayq, _, name: many(delayq, name, Item()),
    "item's key": lambda delayq, add, name: many(delayq, add, Item((name,), unique_key="{0}")),
    "get": lambda delayq, _, name: delayq.get(name),
    "get, queue": lambda delayq, _, name: delayq.get("a", queue=name),
    "find": lambda delayq, _, name: delayq.find(name),
    "list, queue": lambda delayq, _, name: delayq.list(queue=name),
    "list, task": lambda delayq, _, name: delayq.list(task=name),
    "count": lambda delayq, _, name: delayq.count(task=name),
    "entries": lambda delayq, _, name: [*delayq.entries(Filter(queue=name))],
    "cancel": lambda delayq, _, name: delayq.cancel(name),
    "cancel, queue": lambda delayq, _, name: delayq.cancel("a", queue=name),
    "cancel_ids": lambda delayq, _, name: delayq.cancel_ids([name]),
    "cancel_all": lambda delayq, _, name: delayq.cancel_all(Filter(task=name)),
    "cancel_canvas": lambda delayq, _, name: delayq.cancel_canvas(root_id=name),
    "update": lambda delayq, _, name: delayq.update(name, priority=3),
    "reschedule": lambda delayq, _, name: delayq.reschedule(name, countdown=5),
    "run_now": lambda delayq, _, name: delayq.run_now(name),
    "pause, queue": lambda delayq, _, name: delayq.pause(queue=name),
    "pause, task": lambda delayq, _, name: delayq.pause(task=name),
    "resume": lambda delayq, _, name: delayq.resume(task=name),
    "revoke": lambda delayq, _, name: delayq.app.control.revoke(name),
    "dead_letter": lambda delayq, _, name: delayq.dead_letter(name),
    "dead_letters": lambda delayq, _, name: [*delayq.dead_letters(queue=name)],
    "replay": lambda delayq, _, name: delayq.replay(name),
    "replay to": lambda delayq, _, name: delayq.replay_all(DeadFilter(task="a"), queue=name),
    "purge": lambda delayq, _, name: delayq.purge(name),
    "periodic.add": lambda delayq, add, name: delayq.periodic.add(name, 60, add, (1, 2)),
    "periodic, task": lambda delayq, _, name: delayq.periodic.add("a", 60, name),
    "periodic, queue": lambda delayq, add, name: delayq.periodic.add(
        "a", 60, add, (1, 2), queue=name
    ),
    "periodic, key": lambda delayq, add, name: delayq.periodic.add(
        "a", 60, add, (1, 2), unique_key=name
    ),
    "periodic.get": lambda delayq, _, name: delayq.periodic.get(name),
    "periodic.update": lambda delayq, _, name: delayq.periodic.update(name, max_runs=2),
    "periodic.remove": lambda delayq, _, name: delayq.periodic.remove(name),
    "periodic.pause": lambda delayq, _, name: delayq.periodic.pause(name),
    "periodic.resume": lambda delayq, _, name: delayq.periodic.resume(name),
    "periodic.run_now": lambda delayq, _, name: delayq.periodic.run_now(name),
    "periodic.next": lambda delayq, _, name: delayq.periodic.next(name),
}


def many(delayq: DelayQ, task: Any, item: Item) -> None:
    """Schedule one item, and raise why it is refused."""
    report = delayq.schedule_many([item], task=task, countdown=60)
    if report.refusals:
        error = report.refusals[-1].error
        assert error is not None
        raise error


def anything(*_: Any, **__: Any) -> None:
    """Stand for any task."""


@pytest.fixture
def add(app: Celery) -> Any:
    """A task that takes anything."""
    return app.task(name="tasks.any", shared=False)(anything)


@pytest.mark.parametrize("call", CALLS)
def test_a_text_that_no_key_can_hold_is_refused_by_name(
    call: str, delayq: DelayQ, add: Any, redis: Redis
) -> None:
    add.apply_async(task_id="first", countdown=60)
    before = snapshot(redis)

    with pytest.raises(DelayQError, match=r"a\\ud800b.*: expected a text that UTF-8 can hold"):
        CALLS[call](delayq, add, LONE)

    assert snapshot(redis) == before


@pytest.mark.parametrize("call", ["task_id", "task_id, at once", "queue", "exchange", "root_id"])
def test_the_transport_alone_refuses_it_too(call: str, make_app: MakeApp, redis: Redis) -> None:
    app = make_app(extension=False, result_backend=None)
    add = app.task(name="tasks.any", shared=False)(anything)
    add.apply_async(task_id="first", countdown=60)
    before = snapshot(redis)

    with pytest.raises(DelayQError, match=r"a\\ud800b.*: expected a text that UTF-8 can hold"):
        CALLS[call](DelayQ(), add, LONE)

    assert snapshot(redis) == before


@pytest.mark.parametrize("name", ["delayq:clock", "{celery}:due", "{celery}:leased:me"])
def test_a_queue_whose_list_would_be_a_key_of_ours_is_refused(
    name: str, make_app: MakeApp, redis: Redis
) -> None:
    for extension in (True, False):
        app = make_app(extension=extension)
        for options in ({}, {"countdown": 60}):
            with pytest.raises(InvalidOption, match="would be a key of celery_delayq"):
                app.send_task("tasks.add", (1, 2), queue=name, **options)
    for call in ("item's queue", "entries", "pause, queue", "replay to", "periodic, queue"):
        with pytest.raises(DelayQError, match="would be a key of celery_delayq"):
            CALLS[call](DelayQ.of(make_app()), "tasks.other", name)
    assert snapshot(redis) == {}

    app.send_task("tasks.add", (1, 2), queue="{orders}:high")
    assert redis.llen("{orders}:high") == 1


def test_arguments_and_headers_may_be_any_text(delayq: DelayQ, add: Any) -> None:
    add.apply_async((LONE,), {LONE: LONE}, headers={"own": LONE}, task_id="1", countdown=60)
    many(delayq, add, Item((LONE,), {LONE: LONE}, id="2", options={"headers": {"own": LONE}}))

    for id in ("1", "2"):
        found = delayq.get(id)
        assert found is not None
        assert (found.args, found.kwargs, found.headers["own"]) == ([LONE], {LONE: LONE}, LONE)


@pytest.mark.parametrize("name", NAMES)
def test_any_other_name_is_one_like_all(name: str, app: Celery, delayq: DelayQ, add: Any) -> None:
    text = NAMES[name]
    options: dict[str, Any] = {
        "queue": text,
        "unique_key": lambda *_: f"key {text}",
        "task_id": text,
    }

    app.send_task(text, countdown=60, **{**options, "unique_key": "{{x"})
    add.apply_async((text,), countdown=60, **{**options, "task_id": f"{text}2"})
    many(delayq, add, Item((text,), id=f"{text}3", queue=text))

    [report] = {id(each): each for each in check(delayq.session.stores, Settings())}.values()
    assert report.findings == []
    assert [entry.id for entry in delayq.entries(queue=text)] == [text, f"{text}2", f"{text}3"]
    first = delayq.get(text)
    assert first is not None
    assert (first.id, first.task, first.queue) == (text, text, text)
    assert delayq.count(task=text) == 1
    assert delayq.pause(task=text)
    assert [*delayq.paused().tasks] == [text]
    assert delayq.resume(task=text)
    assert delayq.run_now(f"{text}2", queue=text) is Outcome.DONE
    assert delayq.reschedule(text, countdown=90) is Outcome.DONE
    assert [delayq.cancel(f"{text}{n}") for n in ("", "2", "3")] == [Outcome.DONE] * 3
    assert delayq.count() == 0


def test_dead_letters_of_any_name_go_to_a_database_and_come_back(
    delayq: DelayQ, database: str, redis: Redis
) -> None:
    for name in NAMES.values():
        headers = {"id": name, "task": name, "root_id": name, "group": name}
        details = dict.fromkeys(("exception", "message", "traceback", "worker"), name)
        for message in (json.dumps({"headers": headers}).encode(), b"none\xff" + name.encode()):
            delayq.store.dead_letters.add(name, name, name, message, json.dumps(details).encode())
    before = snapshot(redis)
    assert len([*delayq.dead_letters()]) == 2 * len(NAMES)
    assert all(delayq.count_dead(queue=name, task=name) == 1 for name in NAMES.values())

    assert delayq.archive_dead(database).moved == 2 * len(NAMES)
    assert [*delayq.dead_letters()] == []
    for name in NAMES.values():
        assert delayq.import_dead(database, DeadFilter(queue=name)).outcomes == {"restored": 2}

    assert snapshot(redis) == before


def test_log_lines_hold_no_controls_of_an_id(
    delayq: DelayQ, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    id = "\x1b[2J\nTask forged[1] succeeded"
    add.apply_async(task_id=id, exchange="nowhere", routing_key="a")
    delayq.store.dead_letters.add("celery", id, "no message", b"no message")
    [dead_letter] = delayq.dead_letters(queue="celery")
    delayq.replay(dead_letter)

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(r"\x1b[2J")[0] for line in lines] == ["Task '", "Dead letter '"]
    assert "".join(lines).isprintable()

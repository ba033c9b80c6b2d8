"""The client for asyncio on a real Redis: what it stores and gives is what the sync client does."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import datetime
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from kombu import Exchange, Queue
from kombu.exceptions import SerializerNotInstalled
from redis import Redis

from celery_delayq import DeadFilter, DelayQ, Filter
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import (
    InvalidETA,
    InvalidOption,
    NotSupported,
    QueueFull,
    StoreFull,
    UniqueConflict,
)
from celery_delayq.model.scheduled import Outcome
from tests.integration.aio.conftest import run
from tests.integration.conftest import MakeApp, Through, ready, stored
from tests.support import TIMEOUT


def test_a_task_is_sent_found_moved_and_cancelled(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        sent = await client.apply_async(add, (1, 2), countdown=60)
        found = await client.get(sent.id)
        moved = await client.reschedule(sent.id, countdown=600)
        later = await client.get(sent.id)
        outcome = await client.cancel(sent.id)
        return sent, found, moved, later, outcome, await client.get(sent.id)

    sent, found, moved, later, outcome, after = run(delayq, use)

    assert (found.id, found.task, found.args) == (sent.id, "tasks.add", [1, 2])
    assert moved is Outcome.DONE
    assert (later.due - found.due).total_seconds() > 500
    assert (outcome, after, stored(redis)) == (Outcome.DONE, None, [])
    assert sent.state == "REVOKED"


def test_a_message_is_the_one_of_the_sync_client(delayq: DelayQ, add: Any, redis: Redis) -> None:
    options: dict[str, Any] = {
        "eta": "2099-01-01T00:00:00+00:00",
        "task_id": "one",
        "priority": 3,
        "headers": {"x": 1},
    }
    add.apply_async((1, 2), **options)
    [sync] = stored(redis)
    redis.flushdb()

    run(delayq, lambda client: client.apply_async(add, (1, 2), **options))

    [own] = stored(redis)
    for message in (sync, own):
        message["properties"].pop("delivery_tag")
        message["properties"]["delayq"].pop("label")  # with the message id
    assert own == sync


def test_a_thousand_calls_at_once_are_stored_once_each(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def use(client: AsyncDelayQ) -> list[str]:
        calls = (client.apply_async(add, (n, n), countdown=60) for n in range(1000))
        return [result.id for result in await asyncio.gather(*calls)]

    ids = run(delayq, use, connections=1)

    assert sorted(each["headers"]["id"] for each in stored(redis)) == sorted(ids)


def test_a_task_without_a_delay_is_ready(delayq: DelayQ, add: Any, redis: Redis) -> None:
    sent = run(delayq, lambda client: client.apply_async(add, (1, 2)))

    assert [each["headers"]["id"] for each in ready(redis)] == [sent.id]


def test_a_task_whose_eta_was_long_ago_is_ready(delayq: DelayQ, add: Any, redis: Redis) -> None:
    sent = run(delayq, lambda client: client.apply_async(add, (1, 2), eta=datetime(1, 1, 1)))

    assert [each["headers"]["id"] for each in ready(redis)] == [sent.id]


def test_tasks_are_sent_by_name_as_signature_and_as_canvas(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def use(client: AsyncDelayQ) -> None:
        await client.apply_async("tasks.add", (1, 1))
        await client.apply_async(add.s(2).set(queue="other"), (2,))
        await client.apply_async(chain(add.s(3, 3), add.s(3)), countdown=60)
        await client.apply_async(group(add.s(4, 4), add.s(4, 5)))
        await client.apply_async(chord([add.s(5, 5), add.s(5, 6)], add.s(5)))

    run(delayq, use)

    assert [each["headers"]["argsrepr"] for each in ready(redis)] == [
        *("(1, 1)", "(4, 4)", "(4, 5)", "(5, 5)", "(5, 6)")
    ]
    assert [each["headers"]["argsrepr"] for each in ready(redis, "other")] == ["(2, 2)"]
    assert [each["headers"]["argsrepr"] for each in stored(redis)] == ["(3, 3)"]


def test_a_unique_task_gives_the_result_of_the_one_that_is_kept(delayq: DelayQ, add: Any) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        unique: dict[str, Any] = {"countdown": 60, "unique_key": "one"}
        first = await client.apply_async(add, (1, 2), on_conflict="keep", **unique)
        second = await client.apply_async(add, (1, 2), on_conflict="keep", **unique)
        with pytest.raises(UniqueConflict):
            await client.apply_async(add, (1, 2), on_conflict="error", **unique)
        third = await client.apply_async(add, (1, 2), on_conflict="replace", **unique)
        return first, second, third

    first, second, third = run(delayq, use)

    assert second.id == first.id != third.id
    assert first.state == "REVOKED"


def test_context_variables_and_context_values_travel(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    variable = contextvars.ContextVar("variable", default="none")
    seen: list[tuple[str, bool]] = []

    @signals.before_task_publish.connect(weak=False, dispatch_uid="aio")
    def note(**_: Any) -> None:
        seen.append((variable.get(), threading.current_thread() is threading.main_thread()))

    async def send(client: AsyncDelayQ, user: str) -> None:
        variable.set(user)
        with client.context(user=user):
            await client.apply_async(add, (user, ""), countdown=60)
            await client.apply_async(chain(add.s(user, ""), add.s("")), countdown=60)

    async def use(client: AsyncDelayQ) -> None:
        await asyncio.gather(*(send(client, user) for user in ("ann", "bob")))

    try:
        run(delayq, use)
    finally:
        signals.before_task_publish.disconnect(dispatch_uid="aio")

    assert sorted(seen) == [("ann", False), ("ann", True), ("bob", False), ("bob", True)]
    for message in stored(redis):
        assert message["headers"]["argsrepr"][2:5] in message["properties"]["delayq"]["context"]


def test_pausing_dead_letters_counts_and_pages(delayq: DelayQ, add: Any, redis: Redis) -> None:
    delayq.store.dead_letters.add("celery", "dead-1", "broken", b"{}")
    delayq.store.register("celery")

    async def use(client: AsyncDelayQ) -> Any:
        for n in range(250):
            await client.apply_async(add, (n, 0), countdown=1000 + n)
        assert await client.pause(queue="celery")
        assert (await client.paused()).queues.keys() == {"celery"}
        assert await client.resume(queue="celery")
        entries = [(each.args or ())[0] async for each in client.entries()]
        page = await client.list(limit=10)
        dead = [each.id async for each in client.dead_letters(queue="celery")]
        dead_letter = await client.dead_letter("dead-1")
        outcome = await client.purge("dead-1")
        runs = [each async for each in client.history()]
        bulk = await client.cancel_all(Filter(), everything=True)
        return (
            entries,
            len(page),
            dead,
            dead_letter and dead_letter.id,
            outcome,
            runs,
            bulk.total,
            await client.count(),
        )

    found = run(delayq, use)

    assert found == ([*range(250)], 10, ["dead-1"], "dead-1", Outcome.DONE, [], 250, 0)


def test_periodic_entries(delayq: DelayQ, add: Any) -> None:
    async def use(client: AsyncDelayQ) -> Any:
        await client.periodic.add("tick", 60, add, (1, 2))
        names = [each.name for each in await client.periodic.list()]
        assert [each.name async for each in client.periodic.iterate()] == names
        return names, await client.periodic.remove("tick")

    assert run(delayq, use) == (["tick"], True)


def test_replaying_a_dead_letter(delayq: DelayQ, add: Any, redis: Redis) -> None:
    add.apply_async((1, 2), task_id="one")
    [data] = redis.lrange("celery", 0, -1)
    redis.delete("celery")
    delayq.store.dead_letters.add("celery", "one", "broken", data)

    async def use(client: AsyncDelayQ) -> Any:
        return await client.replay("one"), await client.count_dead(DeadFilter())

    assert run(delayq, use) == (Outcome.DONE, 0)
    assert [each["headers"]["id"] for each in ready(redis)] == ["one"]


def test_topics_and_unbound_keys_at_the_same_time(through: Through, redis: Redis) -> None:
    news = Queue("news", Exchange("news", type="topic"), routing_key="news.#")
    proxy, delayq = through(task_queues=[Queue("celery"), news], task_publish_retry=False)
    add = delayq.app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> list[str]:
        await client.apply_async(add, (0, 0), queue="news", task_id="first", countdown=60)
        proxy.latency = 0.05  # so that all threads wait for a reply
        keys = [("news.one" if n % 2 else "other", n) for n in range(40)]
        calls = (
            client.apply_async(add, (n, n), exchange="news", routing_key=key, countdown=60)
            for key, n in keys
        )
        await asyncio.gather(*calls)
        return [str(each.task) async for each in client.dead_letters()]

    dead = run(delayq, use)

    assert dead == ["tasks.add"] * 20
    args = sorted(each["headers"]["argsrepr"] for each in stored(redis, "news"))
    assert args == sorted(["(0, 0)", *(f"({n}, {n})" for n in range(1, 40, 2))])


def test_events_of_sent_tasks(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(task_send_sent_event=True)

    async def use(client: AsyncDelayQ) -> None:
        await asyncio.gather(
            *(client.apply_async("tasks.add", (n, n), countdown=60) for n in range(40))
        )

    with redis.pubsub() as events:
        events.psubscribe("*celeryev*")
        assert events.get_message(timeout=TIMEOUT)
        run(DelayQ.of(app), use)
        seen = [events.get_message(timeout=TIMEOUT) for _ in range(40)]

    assert all("task.sent" in str(each) for each in seen)


# -- bad input


def test_a_full_queue_refuses(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(broker_transport_options={"delayq": {"max_scheduled": 3}})
    add = app.tasks["tasks.add"]

    async def use(client: AsyncDelayQ) -> list[Any]:
        calls = [client.apply_async(add, (n, n), countdown=60) for n in range(10)]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = run(DelayQ.of(app), use)

    assert sum(isinstance(each, QueueFull) for each in found) == 7
    assert len(stored(redis)) == 3


def test_a_server_without_memory_refuses(delayq: DelayQ, add: Any, redis: Redis) -> None:
    async def use(client: AsyncDelayQ) -> None:
        await client.cancel((await client.apply_async(add, (1, 2), countdown=60)).id)
        redis.config_set("maxmemory", "1")
        try:
            with pytest.raises(StoreFull):
                await client.apply_async(add, (1, 2), countdown=60)
        finally:
            redis.config_set("maxmemory", "0")
        await client.apply_async(add, (1, 2), countdown=60)

    run(delayq, use)

    assert len(stored(redis)) == 1


def test_a_message_that_cannot_be_made_is_the_error_of_the_call(
    delayq: DelayQ, add: Any, redis: Redis
) -> None:
    async def use(client: AsyncDelayQ) -> None:
        with pytest.raises(InvalidETA):
            await client.apply_async(add, (1, 2), countdown=float("nan"))
        with pytest.raises(Exception, match="not JSON serializable"):
            await client.apply_async(add, (object(), 2), countdown=60)
        with pytest.raises(TypeError):
            await client.apply_async(add, (1, 2, 3))
        with pytest.raises(SerializerNotInstalled):
            await client.apply_async(add, (1, 2), serializer="none such")
        for wrong in (17, None, [add.s(1, 2)]):
            with pytest.raises(InvalidOption, match="task="):
                await client.apply_async(wrong)
        await client.apply_async(add, (1, 2), countdown=60)

    run(delayq, use)

    assert len(stored(redis)) == 1


def test_an_eager_task_runs_in_a_thread(make_app: MakeApp) -> None:
    app = make_app(task_always_eager=True)

    @app.task(shared=False)
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def use(client: AsyncDelayQ) -> Any:
        return await client.apply_async(where), await client.apply_async(where.s())

    assert [each.result for each in run(DelayQ.of(app), use)] == [False, False]


def test_a_stock_broker_is_not_supported(stock: Celery) -> None:
    with pytest.raises(NotSupported, match=r"delayq\+redis"):
        run(DelayQ(stock), lambda client: client.get("one"))

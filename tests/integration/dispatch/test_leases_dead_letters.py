"""What will not run is a dead letter: why, how often it was tried, the message byte for byte."""

from __future__ import annotations

import json

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.dead_letters import reasons
from tests.support.scene import Leases


def ready(client: Redis, queue: str = "celery") -> dict[str, bytes]:
    """Return the messages of a ready list by the id of the task."""
    items = client.lrange(queue, 0, -1)
    return {json.loads(item)["headers"]["id"]: item for item in items}


def left(client: Redis) -> set[str]:
    """Return our keys about messages that are neither scheduled, ready nor dead."""
    keys = {key.decode() for key in client.keys("{*")}
    return {
        key
        for key in keys
        if key.endswith((":deliveries", ":quarantined", ":quarantine_turn")) or ":leased:" in key
    }


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_what_celery_rejects_is_a_dead_letter_with_its_reason(pool: str, leases: Leases) -> None:
    leases.app.send_task("lease.reject", (False,), task_id="rejected")
    leases.app.send_task("who.knows", task_id="unknown")
    leases.app.send_task("lease.unsendable", task_id="unsendable")
    leases.app.send_task("lease.add", (1, 1), task_id="good")
    sent = ready(leases.client)
    # Scheduled first: what is dead then is what was promoted.
    leases.app.send_task("lease.reject", (False,), task_id="rejected later", countdown=0.3)
    leases.start(pool)

    wait_until(
        lambda: len(reasons(leases.delayq)) == 4 and not leases.leased_ids(), what="four are dead"
    )

    dead = reasons(leases.delayq)
    [later] = dead.keys() - set(sent.values())
    assert dead.keys() == {later, *(item for id, item in sent.items() if id != "good")}
    assert json.loads(later)["headers"].items() >= {"id": "rejected later", "eta": None}.items()
    assert dead[sent["rejected"]] == dead[later]
    for id, part in {
        "rejected": "not to my taste",
        "unknown": "unknown task 'who.knows'",
        "unsendable": "serializ",
    }.items():
        assert part in dead[sent[id]], dead
    assert sorted(leases.runs("task", "id")) == [
        ("add", "good"),
        ("reject", "rejected"),
        ("reject", "rejected later"),
        ("unsendable", "unsendable"),
    ]
    assert left(leases.client) == set()


def test_a_rejected_message_of_no_task_is_a_dead_letter(
    delayq: DelayQ, connection: Connection, redis: Redis
) -> None:
    simple = connection.SimpleQueue("a")
    simple.put("text")
    [sent] = redis.lrange("a", 0, -1)
    simple.get(timeout=TIMEOUT).reject()
    [dead_letter] = delayq.store.dead_letters.all("a")
    assert (dead_letter.message, dead_letter.reason) == (sent, "rejected")
    simple.close()


def test_what_a_stock_worker_held_and_is_bound_nowhere_is_a_dead_letter(
    app: Celery, delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    """kombu puts it back after its visibility timeout, and drops it when there is no binding."""
    client = delayq_redis.client
    exchange = Exchange("ships", "direct")
    queue = Queue("harbour", exchange, "harbour")
    with Connection(delayq_redis.url) as stock:
        producer = stock.Producer()
        for text in ("lost", "kept"):
            producer.publish(text, exchange=exchange, routing_key="harbour", declare=[queue])
        channel = stock.channel()
        taken = [queue(channel).get(), queue(channel).get()]
        assert [message.payload for message in taken] == ["lost", "kept"]
        tag = taken[0].delivery_tag
        before = client.hget("unacked", tag)
        with Connection(delayq_broker_url) as ours:
            qos = ours.channel().qos
            qos.restore_by_tag(taken[1].delivery_tag)
            assert client.llen("harbour") == 1
            client.delete("_kombu.binding.ships", "_kombu.binding_permanent.ships")
            qos.restore_by_tag(tag)
        assert client.hlen("unacked") == client.zcard("unacked_index") == 0
        channel.qos._delivered.clear()

    [dead_letter] = DelayQ.of(app).store.dead_letters.all("harbour")
    assert dead_letter.message == before
    assert "no queue is bound to exchange 'ships'" in dead_letter.reason


def test_a_reply_of_a_worker_is_dropped_when_whoever_asked_has_gone(
    app: Celery, delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    replies = app.control.mailbox.reply_exchange
    with Connection(delayq_redis.url) as asker, Connection(delayq_broker_url) as ours:
        queue = Queue("one call", replies, "one call")
        asker.Producer().publish("pong", exchange=replies, routing_key="one call", declare=[queue])
        channel = asker.channel()
        reply = queue(channel).get()
        client.delete("_kombu.binding.reply.celery.pidbox")

        ours.channel().qos.restore_by_tag(reply.delivery_tag)

        assert client.hlen("unacked") == client.zcard("unacked_index") == 0
        assert list(DelayQ.of(app).dead_letters()) == []
        channel.qos._delivered.clear()


def test_a_task_that_kills_its_child_is_dead_after_so_many_deaths(leases: Leases) -> None:
    leases.app.send_task("lease.die", task_id="killer")
    for n in range(6):
        leases.app.send_task("lease.add", (n, n), task_id=f"neighbour {n}")
    sent = ready(leases.client)["killer"]
    worker = leases.start("prefork", delayq={"max_deliveries": 2})

    wait_until(lambda: reasons(leases.delayq), what="it is dead")
    wait_until(lambda: not leases.leased_ids(), what="all is done")

    assert reasons(leases.delayq) == {sent: "killed its process 3 times"}
    deaths = [
        (n, again)
        for task, n, again in leases.runs("task", "deliveries", "redelivered")
        if task == "die"
    ]
    assert deaths == [(1, False), (2, True), (3, True)]
    neighbours = [id for id, task in leases.runs("id", "task") if task == "add"]
    assert sorted(neighbours) == [f"neighbour {n}" for n in range(6)]
    assert worker.running
    assert left(leases.client) == set()


def test_a_task_that_kills_its_worker_is_delivered_alone_before_it_becomes_a_dead_letter(
    leases: Leases,
) -> None:
    options = {"prefetch": 6, "delayq": {"max_deliveries": 2, "lease": SHORT_LEASE}}
    leases.app.send_task("lease.die_with_worker", task_id="killer")
    for n in range(4):
        leases.app.send_task("lease.add", (n, n), task_id=f"neighbour {n}")
    sent = ready(leases.client)["killer"]

    for _ in range(3):
        worker = leases.start("prefork", **options)
        assert worker.wait() == -9
    judge = leases.start("prefork", **options)
    wait_until(lambda: reasons(leases.delayq), what="it is dead")
    wait_until(
        lambda: leases.client.llen("log") == 7 and not leases.leased_ids(), what="all is done"
    )

    reason = "its worker died 3 times, the last time with no other message"
    assert reasons(leases.delayq) == {sent: reason}
    deaths = [seen for id, *seen in leases.runs("id", "deliveries", "held") if id == "killer"]
    assert [(n, beside > 1) for n, beside in deaths] == [(1, True), (2, True), (3, False)]
    neighbours = [id for id, task in leases.runs("id", "task") if task == "add"]
    assert sorted(neighbours) == [f"neighbour {n}" for n in range(4)]
    assert judge.running
    assert left(leases.client) == set()

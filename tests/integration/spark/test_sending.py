"""Without Spark: rows become the same messages as by ``schedule_many``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from celery import Celery
from kombu import Exchange, Queue

from celery_delayq import DelayQ
from celery_delayq.model.envelope import Record
from celery_delayq.spark.access import Access, open_client
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write.refused_rows import Refusals
from celery_delayq.spark.write.rows import TaskRows
from celery_delayq.spark.write.sender import RowSender
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.utils.message_json import decode
from tests.integration.conftest import MakeApp
from tests.integration.spark.flights import OPTIONS

pytestmark = pytest.mark.nightly

FAR = datetime(2099, 5, 17, 12, 0, 0, 250_001, tzinfo=timezone.utc)
NUMBER = 30


def remind(**kwargs: Any) -> None:
    """Stand for a task."""


def records(redis: RedisUnderTest) -> dict[str, Any]:
    """Return the stored data of each task, without its random parts."""
    there = {}
    for id, data in redis.client.hgetall("{celery}:entries").items():
        record = Record.unpack(data)
        message = decode(record.message)
        tag = message["properties"].pop("delivery_tag")
        there[id.decode()] = record._replace(message=b""), message, tag[:16]
    return {
        "entries": there,
        "due": redis.client.zrange("{celery}:due", 0, -1, withscores=True),
        "tasks": redis.client.zrange("{celery}:tasks", 0, -1),
        "unique": redis.client.hgetall("{celery}:unique"),
    }


@pytest.fixture
def client(delayq_redis: RedisUnderTest, delayq_broker_url: str) -> Iterator[DelayQ]:
    with open_client(Access(url=delayq_broker_url)) as delayq:
        yield delayq


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"gate": ["B7", '"Ä%s\\', None] * 10, "pax": [3, None, -1] * 10},
        {"late": [0.1, float("nan"), None] * 10, "open": [True, False, None] * 10},
        {"long": ["x" * 2000] * NUMBER, "100%": [1] * NUMBER, "it's": [2] * NUMBER},
        {"price": pa.array([Decimal("1.50"), None, Decimal("-2")] * 10)},
        {"day": [date(2031, 1, 2)] * NUMBER, "at": [FAR] * NUMBER, "raw": [b"\xff"] * NUMBER},
        {"crew": [{"b": 1, "a": [None, {"c": FAR}]}] * NUMBER},
    ],
    ids=lambda columns: " ".join(columns) or "none",
)
@pytest.mark.parametrize("etacolumn", ["remind_at", None])
def test_a_row_becomes_the_message_that_schedule_many_makes(
    client: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    columns: dict[str, Any],
    etacolumn: str | None,
) -> None:
    # Given rows with arguments of some types, and keys with all kinds of characters
    keys = [f"{n}:{mark}" for n, mark in zip(range(NUMBER), "aä% /\\'\"\t:" * 3, strict=True)]
    remind_at = [FAR + timedelta(seconds=n) for n in range(NUMBER)]
    batch = pa.RecordBatch.from_pydict({"flight": keys, "remind_at": remind_at, **columns})
    how = options(
        delayq_broker_url,
        etacolumn=etacolumn,
        delaycolumn=None if etacolumn else "wait",
        onconflict="replace",
        priority=3,
        batchsize=7,
    )
    if etacolumn is None:
        wait = pa.array([86_400 + n for n in range(NUMBER)])
        batch = batch.drop_columns(["remind_at"]).append_column("wait", wait)

    # When they are sent as rows, and then as items
    sums = RowSender(client, how, Refusals(None, "none")).send(iter([batch]))
    sent = records(delayq_redis)
    delayq_redis.client.flushdb()
    rows = TaskRows(how, batch.schema)
    report = client.schedule_many(
        [rows.item(row) for row in rows.read(batch)],
        task="mail.remind",
        priority=3,
        on_conflict="replace",
        unique_scope="done",
    )
    made = records(delayq_redis)

    # Then both are the same
    assert sums == {"new": NUMBER, "kept": 0, "replaced": 0, "refused": 0}
    assert report.counts == {"scheduled": NUMBER}
    if etacolumn is None:  # it counts from when it is sent
        for state in (sent, made):
            state["due"] = [name for name, _ in state["due"]]
            state["tasks"] = [name.rpartition(b"\0")[2] for name in state["tasks"]]
            for _, message, _ in state["entries"].values():
                message["properties"]["delayq"].pop("eta")
    assert sent == made


def options(url: str, **given: Any) -> WriteOptions:
    return WriteOptions(access=Access(url=url), **{**OPTIONS, **given})


def rows(first: int, number: int, **columns: Any) -> pa.RecordBatch:
    keys = [f"UA{n}" for n in range(first, first + number)]
    at = pa.array([FAR] * number)
    return pa.RecordBatch.from_pydict({"flight": keys, "remind_at": at, **columns})


def test_rows_of_a_task_that_expires_do_so_too(
    delayq_redis: RedisUnderTest, delayq_broker_url: str
) -> None:
    app = Celery("shop", broker=delayq_broker_url, set_as_current=False)
    app.task(name="mail.remind", shared=False, lazy=False, expires=3600)(remind)
    refused = Refusals(None, "none")

    sums = RowSender(DelayQ(app), options(delayq_broker_url), refused).send(iter([rows(0, 3)]))
    app.close()

    assert sums["new"] == 3
    now = datetime.now(timezone.utc)
    for _, message, _ in records(delayq_redis)["entries"].values():
        expires = datetime.fromisoformat(message["headers"]["expires"])
        assert timedelta(minutes=55) < expires - now < timedelta(minutes=61)
        assert 3_500_000 < int(message["properties"]["expiration"]) <= 3_600_000


def test_rows_that_go_to_several_queues_are_counted_once(
    make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_broker_url: str
) -> None:
    topic = Exchange("events", type="topic")
    queues = [Queue("a", topic, routing_key="#"), Queue("b", topic, routing_key="#")]
    app = make_app(task_queues=queues)
    app.conf.task_routes = {"mail.remind": {"queue": "a", "routing_key": "new"}}
    with app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    refused = Refusals(None, "none")

    sums = RowSender(DelayQ.of(app), options(delayq_broker_url), refused).send(iter([rows(0, 3)]))

    assert sums == {"new": 3, "kept": 0, "replaced": 0, "refused": 0}
    assert [delayq_redis.client.zcard(f"{{{name}}}:due") for name in "ab"] == [3, 3]


def test_what_is_refused_late_is_reported_though_much_else_is_refused_meanwhile(
    client: DelayQ, delayq_redis: RedisUnderTest, delayq_broker_url: str, tmp_path: Path
) -> None:
    # Given five rows that are there already
    how = options(delayq_broker_url, onconflict="error", refused=str(tmp_path))
    RowSender(client, how, Refusals(None, "none")).send(iter([rows(0, 5, gate=["B7"] * 5)]))

    # When they come again, changed, and behind them thousands that nothing identifies
    blank = rows(0, 3000, gate=["B7"] * 3000).set_column(0, "flight", pa.array([" "] * 3000))
    last = rows(10, 1, gate=["B7"])
    with Refusals(str(tmp_path), "refused.parquet") as refused:
        batches = iter([rows(0, 5, gate=["C1"] * 5), blank, last])
        sums = RowSender(client, how, refused).send(batches)

    # Then each is reported
    assert sums == {"new": 1, "kept": 0, "replaced": 0, "refused": 3005}
    told = pq.read_table(tmp_path / "refused.parquet").to_pylist()
    conflicts = {row["flight"] for row in told if "has the same unique key" in row["_error"]}
    assert conflicts == {f"UA{n}" for n in range(5)}
    assert len(told) == 3005


@pytest.mark.parametrize("fresh", [0, 1], ids=["all known", "one of a hundred new"])
def test_rows_that_are_done_are_not_kept(
    client: DelayQ, delayq_redis: RedisUnderTest, delayq_broker_url: str, fresh: int
) -> None:
    how = options(delayq_broker_url)
    number, size = 200, 100
    text = ["x" * 1000] * size
    seen: list[int] = []

    def batches(first: int) -> Iterator[pa.RecordBatch]:
        for n in range(number):
            seen.append(pa.total_allocated_bytes())
            start = n * size
            # The last row of each batch is another one in the second run.
            batch = rows(start, size, text=text)
            keys = batch.column("flight").to_pylist()
            keys[-1] = f"{keys[-1]}-{first}"
            yield batch.set_column(0, "flight", pa.array(keys))

    RowSender(client, how, Refusals(None, "none")).send(batches(0))
    seen.clear()
    sums = RowSender(client, how, Refusals(None, "none")).send(batches(fresh))

    assert sums["new"] == fresh * number
    # A batch is about 100 KB, and all of them 20 MB.
    assert max(seen) - min(seen) < 2_000_000

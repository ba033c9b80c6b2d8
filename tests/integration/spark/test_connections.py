"""Each running Spark task has few connections to Redis, and closes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark import jobs
from tests.integration.spark.conftest import Read, running

#: One would do: what makes messages has two of its own until all are sent.
PER_TASK = 3


class Connections:
    """Those to Redis that were made since."""

    def __init__(self, redis: RedisUnderTest) -> None:
        self._client = redis.client
        self._before = {each["id"] for each in redis.client.client_list()}

    def count(self) -> int:
        return len(self._left())

    def wait_none_left(self) -> None:
        wait_until(lambda: not self._left(), TIMEOUT, lambda: f"none to be left: {self._left()}")

    def _left(self) -> list[Any]:
        return [each for each in self._client.client_list() if each["id"] not in self._before]


@pytest.mark.nightly
def test_each_spark_task_that_writes_has_few_connections_and_closes_them(
    spark: Any, delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    connections, client = Connections(delayq_redis), delayq_redis.client
    slowly = {"url": delayq_broker_url, "batchsize": "20", "ratelimit": "200"}

    # Given eight parts on two cores, of which the first two have begun.
    with running(jobs.write_range, spark, slowly, 3200, 8) as job:
        entries, ids = "{celery}:entries", ["mail.remind:UA0", "mail.remind:UA400"]
        job.wait_until(lambda: all(client.hmget(entries, ids)), "rows of both in Redis")
        assert connections.count() <= 2 * PER_TASK

    assert job.error is None
    assert client.zcard("{celery}:due") == 3200 - 14
    connections.wait_none_left()


@pytest.mark.nightly
def test_each_spark_task_that_reads_leaves_no_connection(
    spark: Any, read: Read, delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    jobs.write_range(spark, {"url": delayq_broker_url}, 4000)
    connections = Connections(delayq_redis)

    assert read("scheduled", schema="id STRING", partitions=8, batchsize=100).count() == 4000 - 16
    connections.wait_none_left()

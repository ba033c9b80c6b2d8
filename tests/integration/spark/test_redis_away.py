"""Redis goes away in the midst of a job: it fails and says why, and the next one does the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.spark.jobs import _one_line as one_line
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark import jobs
from tests.integration.spark.conftest import running
from tests.integration.spark.flights import calls, calls_of, good
from tests.support.proxy import Proxy

NUMBER = 3000


@pytest.fixture
def proxy(delayq_redis: RedisUnderTest) -> Iterator[Proxy]:
    with Proxy(delayq_redis.port) as proxy:
        yield proxy


def tasks_running(spark: Any) -> int:
    """Return how many tasks of Spark run now, also of jobs that have failed."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(info.numRunningTasks() for info in infos)


def test_a_job_that_loses_redis_fails_and_the_next_completes_it(
    spark: Any, delayq: DelayQ, delayq_redis: RedisUnderTest, proxy: Proxy, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    slowly = {
        "url": f"redis://127.0.0.1:{proxy.port}/0",
        "batchsize": "100",
        "ratelimit": "400",
        "report": str(report),
        "refused": str(tmp_path / "refused"),
    }
    due = "{celery}:due"

    # Given a job that has written a part of its rows, when Redis goes away.
    with running(jobs.write_range, spark, slowly, NUMBER) as job:
        job.wait_until(lambda: delayq_redis.client.zcard(due) >= 300, "some rows in Redis")
        proxy.refuse()

    # Then it fails, and says what there is to do about it.
    assert "Connection" in job.reason
    assert str(proxy.port) in job.reason
    assert "go on with item" in job.reason
    assert len(job.reason) < 400
    assert json.loads(report.read_text())["state"] == "aborted"
    assert not (tmp_path / "refused").exists() or not [*(tmp_path / "refused").iterdir()]
    # What Spark has not ended yet would write more, once Redis is back.
    wait_until(lambda: tasks_running(spark) == 0, TIMEOUT, "the end of all tasks of the job")
    there = delayq_redis.client.zcard(due)
    assert 300 <= there < NUMBER

    # When Redis is back, the same job does the rest.
    proxy.accept()
    jobs.write_range(spark, {**slowly, "ratelimit": "100000"}, NUMBER)

    told = json.loads(report.read_text())
    assert (told["state"], told["refused"]) == ("committed", 12)
    assert (told["new"], told["kept"]) == (NUMBER - 12 - there, there)
    assert calls(delayq) == calls_of(good(NUMBER))


@pytest.mark.parametrize("fault", ["while it plans", "while it reads"])
def test_reading_without_redis_fails_and_says_where_it_was(
    spark: Any, delayq: DelayQ, delayq_redis: RedisUnderTest, proxy: Proxy, fault: str
) -> None:
    options = {"url": f"redis://127.0.0.1:{proxy.port}/0", "batchsize": "10"}
    jobs.write_range(spark, options, 1000)

    frame = spark.read.format("celery_delayq").options(**options).load()
    if fault == "while it reads":
        assert frame.rdd.getNumPartitions() == 8
    proxy.refuse()
    with pytest.raises(Exception, match="Connection") as raised:
        frame.collect()

    assert str(proxy.port) in one_line(str(raised.value))
    proxy.accept()
    again = spark.read.format("celery_delayq").options(**options).load()
    assert again.count() == 1000 - 4

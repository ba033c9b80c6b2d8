"""Jobs with an app find and write what waits under a former name of a task."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.spark import restore as restore_job
from celery_delayq.spark.reconcile import Options, reconcile
from tests.integration.spark.conftest import Archive, Read, Write
from tests.integration.spark.flights import SCHEMA, flight

APP = "tests.apps.notify_tasks:app"
FORMER, NAME = "mail.remind", "mail.notify"


def tasks_of(delayq: DelayQ) -> dict[str, str]:
    return {each.id: each.task for each in delayq.entries()}


@pytest.mark.nightly
def test_a_former_name_of_a_task_is_the_task(
    spark: Any,
    delayq: DelayQ,
    delayq_broker_url: str,
    read: Read,
    write: Write,
    archive: Archive,
    tmp_path: Any,
) -> None:
    rows = [flight(number) for number in range(4)]
    changed = [(key, at, "Z9", pax) for key, at, _, pax in rows[:2]]
    ids = [f"{FORMER}:{key}" for key, *_ in rows]
    access = {"url": delayq_broker_url, "app": APP}
    write(rows[:3])
    assert tasks_of(delayq) == dict.fromkeys(ids[:3], FORMER)

    # Its ids begin with the former name: a write with it goes on, and the present task runs.
    told = write([*changed[:1], *rows[1:]], app=APP, onconflict="replace")
    assert (told["replaced"], told["kept"], told["new"]) == (1, 2, 1)
    names = Counter(tasks_of(delayq).values())
    assert names == {FORMER: 2, NAME: 2}
    assert {*tasks_of(delayq)} == {*ids}

    assert read("scheduled", task=NAME, app=APP).count() == 4
    assert read("scheduled", task=NAME).count() == 2
    assert read("scheduled", task=FORMER, app=APP).count() == 2

    frame = spark.createDataFrame([*changed, *rows[2:]], SCHEMA)
    options = Options(task=FORMER, key="flight", eta="remind_at", access=access)
    summary = reconcile(spark, frame, options)
    assert (summary.kept, summary.replaced, summary.new, summary.orphans) == (3, 1, 0, 0)
    assert Counter(tasks_of(delayq).values()) == {FORMER: 1, NAME: 3}

    archive("scheduled")
    assert delayq.cancel_all(everything=True).done == 4
    wanted = restore_job.Options(access=access, task=NAME)
    restored = restore_job.restore(spark, str(tmp_path / "archive"), wanted)
    assert restored.outcomes == {"scheduled": 4}

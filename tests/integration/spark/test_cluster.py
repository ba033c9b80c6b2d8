"""Jobs on a cluster, whose executors are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.integration.spark import jobs
from tests.integration.spark.cluster import Cluster
from tests.integration.spark.flights import calls, calls_of, good
from tests.support.runs import finished

pytestmark = pytest.mark.nightly

SHOP = """
from celery import Celery

app = Celery("shop", broker="redis://nowhere.invalid/0", set_as_current=False)
app.conf.task_routes = {"mail.remind": {"queue": "mail"}}

@app.task(name="mail.remind", shared=False)
def remind(gate, pax, note): ...
"""


def test_what_executors_write_executors_read(cluster: Cluster, tmp_path: Path) -> None:
    cluster.do(jobs.write_range, cluster.options, 2000)
    assert calls(cluster.delayq) == calls_of(good(2000))

    options = {**cluster.options, "batchsize": "100"}
    ids = cluster.do(jobs.read_on_all, options, str(tmp_path), executors=2)

    assert sorted(ids) == sorted(calls_of(good(2000)))


def test_the_password_is_needed_in_the_environment_of_executors_only(cluster: Cluster) -> None:
    cluster.accept_passwords_of_executors_only()

    cluster.do(jobs.write_range, cluster.options, 500)
    assert calls(cluster.delayq) == calls_of(good(500))

    # Spark gives their environment to what plans on the driver, too.
    assert len(cluster.do(jobs.read, cluster.options)) == 500 - 2


def test_an_app_that_was_shipped_to_executors_says_where_tasks_go(
    cluster: Cluster, tmp_path: Path
) -> None:
    module = tmp_path / "cluster_shop.py"
    module.write_text(SHOP)
    cluster.do(jobs.ship, str(module))

    cluster.do(jobs.write_range, {**cluster.options, "app": "cluster_shop:app"}, 500)

    assert calls(cluster.delayq) == calls_of(good(500))
    assert cluster.redis.zcard("{mail}:due") == 500 - 2


def test_the_history_is_streamed(cluster: Cluster, tmp_path: Path) -> None:
    runs = [finished(f"id {n}", ended=n) for n in range(300)]
    cluster.delayq.store.history.add("me", 1, 1000, runs)

    for _ in "12":
        cluster.do(jobs.stream, {**cluster.options, "batchsize": "50"}, str(tmp_path))

    ids = cluster.do(jobs.parquet_ids, str(tmp_path / "runs"))
    assert sorted(ids) == sorted(f"id {n}" for n in range(300))


def test_rows_of_a_database_are_reconciled(cluster: Cluster) -> None:
    told = [cluster.do(jobs.reconcile_values, cluster.options, 60) for _ in "12"]

    assert [(each.rows, each.new, each.kept) for each in told] == [(60, 60, 0), (60, 0, 60)]
    assert calls(cluster.delayq).keys() == {f"mail.remind:UA{n}" for n in range(60)}

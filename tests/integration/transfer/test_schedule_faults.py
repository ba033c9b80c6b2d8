"""Exports and imports of the schedule are killed, and servers go away in the middle."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TransferError
from celery_delayq.testing import ManagedProcess
from celery_delayq.transfer.results import Exported, Imported
from tests.integration.conftest import Through, query
from tests.support.postgres import PostgresServer
from tests.support.schedules import fill, state

# -- what is interrupted


SCRIPT = """
import sys, time
from celery import Celery
from celery_delayq import DelayQ

def stop(report):
    print("half way", report.looked, flush=True)
    time.sleep(600)

broker, run, place = sys.argv[1:]
app = Celery("killed", broker=broker)
getattr(DelayQ(app), run)(place, progress=stop)
"""


def port_of(delayq: DelayQ) -> int:
    """Return the port of the Redis of an app."""
    return int(delayq.store.client.connection_pool.connection_kwargs["port"])


def kill_half_way(broker: str, run: str, place: str) -> None:
    """Kill a process that exports or imports when it has done a part of it."""
    with ManagedProcess([sys.executable, "-c", SCRIPT, broker, run, place]) as process:
        process.wait_log("^half way [1-9]")
        process.kill()


def test_an_export_that_was_killed_leaves_all_as_it_was(
    app: Celery, delayq: DelayQ, delayq_broker_url: str, elsewhere: DelayQ, place: str
) -> None:
    app.send_task("t", task_id="before", countdown=3600)
    delayq.export_to(place)
    fill(app)

    kill_half_way(delayq_broker_url, "export_to", place)

    assert elsewhere.import_from(place).outcomes == {"scheduled": 1}
    assert delayq.export_to(place).entries == 1214
    assert elsewhere.import_from(place).outcomes == {"scheduled": 1213, "duplicate": 1}


def test_an_import_that_was_killed_is_completed_by_the_next(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, other: EmbeddedRedis, place: str
) -> None:
    fill(app)
    delayq.export_to(place)

    kill_half_way(other.url_for("delayq+redis"), "import_from", place)
    imported = elsewhere.count()
    assert 499 <= imported < 1213  # the next batch is sent before the first one is reported

    report = elsewhere.import_from(place)
    assert report.outcomes == {"scheduled": 1213 - imported, "duplicate": imported}
    assert state(elsewhere) == state(delayq)


@pytest.mark.full
@pytest.mark.parametrize("place", ["export.jsonl", "postgresql"], indirect=True)
def test_redis_goes_away_in_the_middle(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, through: Through, place: str
) -> None:
    fill(app)
    proxy, proxied = through(port_of(delayq))

    def refuse(report: Exported | Imported) -> None:
        if report.looked:
            proxy.refuse()

    with pytest.raises(TransferError, match=r"stopped after \d+ entries, nothing is kept"):
        proxied.export_to(place, progress=refuse)
    if "://" not in place:
        assert not Path(place).exists()
    delayq.export_to(place)

    proxy, proxied = through(port_of(elsewhere))
    with pytest.raises(TransferError, match=r"stopped after \d+ entries, run it again"):
        proxied.import_from(place, progress=refuse)
    imported = elsewhere.count()
    assert 499 <= imported < 1213
    proxy.accept()
    report = proxied.import_from(place)
    assert report.outcomes == {"scheduled": 1213 - imported, "duplicate": imported}
    assert state(elsewhere) == state(delayq)


def test_a_lost_connection_is_made_again_and_nothing_is_added_twice(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, through: Through, file: Path
) -> None:
    fill(app)
    delayq.export_to(file)
    proxy, proxied = through(port_of(elsewhere))

    report = proxied.import_from(file, progress=lambda _: proxy.cut_all())

    assert report.looked == 1213
    assert report.missing == 0
    assert state(elsewhere) == state(delayq)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # psycopg cannot close its cursor then
def test_the_database_goes_away_in_the_middle(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, postgres: PostgresServer
) -> None:
    fill(app)
    url = postgres.new_database()

    def end(_: object) -> None:
        postgres.disconnect_clients(url)

    with pytest.raises(TransferError, match=r"stopped after [1-9].* nothing is kept") as caught:
        delayq.export_to(url, progress=end)
    assert "hunter2" not in str(caught.value)
    assert query(url, "SELECT count(*) FROM delayq_entries") == [(0,)]
    delayq.export_to(url)

    with pytest.raises(TransferError, match=r"stopped after [1-9]\d* entries, run it") as caught:
        elsewhere.import_from(url, progress=end)
    gc.collect()
    there = elsewhere.count()
    assert f"stopped after {there} entries" in str(caught.value)
    assert elsewhere.import_from(url).outcomes == {"scheduled": 1213 - there, "duplicate": there}

"""Archiving is killed, and databases and Redis go away: no dead letter is lost, none is there
twice."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.errors import TransferError
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.processes import ProcessFailed
from celery_delayq.transfer.results import Archived, Imported
from tests.integration.conftest import Through, query
from tests.support import TIMEOUT
from tests.support.dead_letters import fill
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.full

SCRIPT = """
import sys
from celery import Celery
from celery_delayq import DelayQ

broker, method, place = sys.argv[1:]
delayq = DelayQ(Celery("killed", broker=broker))
begun = []

def note(report):
    if not begun:
        begun.append(True)
        print("begun", flush=True)

report = getattr(delayq, method)(place, progress=note)
print("done", report.looked, flush=True)
"""


def archived(database: str) -> list[str]:
    """The ids of all rows."""
    if database.startswith("sqlite") and not Path(database.removeprefix("sqlite:///")).exists():
        return []
    with suppress(Exception):  # the table is not there yet
        return [id for (id,) in query(database, "SELECT id FROM dead_letters")]
    return []


def dead_letters(redis: RedisUnderTest, queue: str = "celery") -> dict[str, bytes]:
    """The dead letters in Redis, and that each is listed."""
    found = redis.client.hgetall(f"{{{queue}}}:dead")
    assert {*redis.client.zrange(f"{{{queue}}}:dead_at", 0, -1)} == {*found}
    return {id.decode(): data for id, data in found.items()}


def kill_again_and_again(
    broker: str, method: str, place: str, kills: int, check: Callable[[], object]
) -> int:
    """Run it and kill it at random moments, until it may end; return how often it was killed."""
    killed = 0
    for turn in range(kills + 1):
        with ManagedProcess([sys.executable, "-c", SCRIPT, broker, method, place]) as process:
            if turn < kills:
                process.wait_log("^begun")
                # So long as a batch takes, about: any moment of it may be the one.
                time.sleep(random.uniform(0, 0.25))
                process.kill()
                killed += "done" not in process.log
            else:
                assert process.wait(timeout=TIMEOUT) == 0, process.log
        check()
    return killed


@pytest.mark.parametrize("kills", [3, pytest.param(6, marks=pytest.mark.nightly)])
def test_archiving_is_killed_at_any_moment(
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    database: str,
    kills: int,
) -> None:
    """The moments are random: three in `make test-full`, six more in `make nightly`."""
    # So many that each killed run leaves some to the next one.
    number = 3_500 * kills
    ids = {*fill(delayq, number)}
    before = dead_letters(delayq_redis)

    def check() -> None:
        rows = archived(database)
        assert len({*rows}) == len(rows)
        assert {*rows} | {*dead_letters(delayq_redis)} == ids

    killed = kill_again_and_again(delayq_broker_url, "archive_dead", database, kills, check)

    assert killed >= kills / 2
    assert dead_letters(delayq_redis) == {}
    assert sorted(archived(database)) == sorted(ids)
    assert delayq.import_dead(database).outcomes == {"restored": number}
    assert dead_letters(delayq_redis) == before


def test_a_restore_is_killed_at_any_moment(
    delayq: DelayQ, delayq_redis: RedisUnderTest, delayq_broker_url: str, database: str
) -> None:
    fill(delayq, 10_000)
    before = dead_letters(delayq_redis)
    delayq.archive_dead(database)

    killed = kill_again_and_again(delayq_broker_url, "import_dead", database, 3, lambda: None)

    assert killed >= 1
    assert dead_letters(delayq_redis) == before
    assert len(archived(database)) == 10_000


# -- databases


def test_a_database_that_is_away_costs_nothing(
    delayq: DelayQ, delayq_redis: RedisUnderTest, postgres: PostgresServer, tmp_path: Path
) -> None:
    fill(delayq, 10)
    before = dead_letters(delayq_redis)
    good = postgres.new_database()
    locked = tmp_path / "folder.db"
    locked.mkdir()

    for url in (
        good.replace("tester:", "stranger:"),
        good.replace(f":{postgres.port}/", ":1/"),
        f"{good}_not",
        f"sqlite:///{locked}",
    ):
        for call in (delayq.archive_dead, delayq.export_dead):
            with pytest.raises(TransferError) as caught:
                call(url)
            assert "hunter2" not in str(caught.value)
            assert caught.value.__cause__ is None or "hunter2" not in str(caught.value.__cause__)
    assert dead_letters(delayq_redis) == before


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # psycopg cannot close its cursor then
def test_the_database_goes_away_in_the_middle(
    delayq: DelayQ, delayq_redis: RedisUnderTest, postgres: PostgresServer
) -> None:
    ids = {*fill(delayq, 2_000)}
    before = dead_letters(delayq_redis)
    url = postgres.new_database()

    def end(_: object) -> None:
        postgres.disconnect_clients(url)

    stopped = r"stopped after [\d,]+ dead letters, run it again"
    with pytest.raises(TransferError, match=stopped) as caught:
        delayq.archive_dead(url, progress=end)
    assert "hunter2" not in str(caught.value)
    left = dead_letters(delayq_redis)
    assert 0 < len(left) < 2_000
    assert {*archived(url)} | {*left} == ids

    assert delayq.archive_dead(url).moved == len(left)
    with pytest.raises(TransferError, match="run it again"):
        delayq.import_dead(url, progress=end)
    gc.collect()
    delayq.import_dead(url)
    assert dead_letters(delayq_redis) == before


def test_a_database_that_is_full_keeps_dead_letters_in_redis(
    delayq: DelayQ, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    fill(delayq, 4_000)
    url = f"sqlite:///{tmp_path}/small.db"
    delayq.archive_dead(url, DeadFilter(task="none"))
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_500_000, -1));"
        + SCRIPT.replace("begun.append(True)", "pass").replace('"begun"', '"batch"')
    )
    command = [sys.executable, "-c", script, delayq_redis.server.url_for("delayq+redis")]

    with ManagedProcess([*command, "archive_dead", url]) as process, suppress(ProcessFailed):
        process.wait(timeout=TIMEOUT)

    assert "TransferError" in process.log
    rows, left = archived(url), dead_letters(delayq_redis)
    assert 0 < len(left) < 4_000
    assert len({*rows} | {*left}) == 4_000
    delayq.archive_dead(url)
    assert len(archived(url)) == 4_000


# -- Redis


def test_redis_goes_away_in_the_middle(
    delayq: DelayQ, delayq_redis: RedisUnderTest, through: Through, database: str
) -> None:
    ids = {*fill(delayq, 2_000)}
    before = dead_letters(delayq_redis)
    proxy, proxied = through(delayq_redis.port)

    def refuse(report: Archived | Imported) -> None:
        proxy.refuse()

    with pytest.raises(TransferError, match=r"stopped after [\d,]+ dead letters, run it again"):
        proxied.archive_dead(database, progress=refuse)
    left = dead_letters(delayq_redis)
    assert {*archived(database)} | {*left} == ids
    proxy.accept()
    proxied.archive_dead(database)
    assert dead_letters(delayq_redis) == {}
    with pytest.raises(TransferError, match="run it again"):
        proxied.import_dead(database, progress=refuse)
    proxy.accept()
    proxied.import_dead(database)
    assert dead_letters(delayq_redis) == before
    assert sorted(archived(database)) == sorted(ids)


def test_a_lost_connection_is_made_again(
    delayq: DelayQ, delayq_redis: RedisUnderTest, through: Through, database: str
) -> None:
    fill(delayq, 300)
    before = dead_letters(delayq_redis)
    proxy, proxied = through(delayq_redis.port)

    proxied.archive_dead(database)
    report = proxied.import_dead(database, progress=lambda _: proxy.cut_all())

    assert report.looked == 300
    assert dead_letters(delayq_redis) == before


def test_a_full_redis_is_reported_and_the_restore_may_be_repeated(
    delayq: DelayQ, delayq_redis: RedisUnderTest, database: str
) -> None:
    fill(delayq, 300)
    before = dead_letters(delayq_redis)
    delayq.archive_dead(database)
    delayq_redis.client.config_set("maxmemory", 1)

    with pytest.raises(TransferError, match="no memory left"):
        delayq.import_dead(database)
    # Moving frees memory, so a full Redis lets it pass.
    delayq_redis.client.config_set("maxmemory", 0)
    assert delayq.import_dead(database).looked == 300
    delayq_redis.client.config_set("maxmemory", 1)
    assert delayq.archive_dead(database).moved == 300
    delayq_redis.client.config_set("maxmemory", 0)
    delayq.import_dead(database)
    assert dead_letters(delayq_redis) == before

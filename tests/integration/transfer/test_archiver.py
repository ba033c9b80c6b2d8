"""Workers move old dead letters to a database by themselves."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.settings import Limits
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transfer.archiver import Archiver
from tests.apps import shared_locks
from tests.integration.conftest import MakeApp, Through, query
from tests.support import TIMEOUT
from tests.support.dead_letters import fill as fill_queue
from tests.support.postgres import PASSWORD, PostgresServer

StartWorker = Callable[..., WorkerProcess]
Start = Callable[..., Archiver]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start archivers that look all the time."""
    started: list[Archiver] = []

    def begin(app: Celery, url: str, after: float = 0.0, **options: Any) -> Archiver:
        archiver = Archiver(app, url, after, **{"interval": 0.1, **options})
        archiver.start()
        started.append(archiver)
        return archiver

    yield begin
    for archiver in started:
        archiver.stop()


def fill(delayq: DelayQ, number: int, *, queue: str = "celery", age: float = 60.0) -> list[str]:
    """Keep dead letters of a queue whose consumers have an archive."""
    store = delayq.store
    layout = replace(store.layout, limits=Limits(archived=True))
    store.client.hset(store.keys.queues, queue, layout.text)
    return fill_queue(delayq, number, queue=queue, age=age)


def options(url: str, after: float = 0.0) -> dict[str, str]:
    """The environment of a worker that archives."""
    own = {"dead_letters_archive": url, "dead_letters_archive_after": after}
    return {"APP_SETTINGS": json.dumps({"broker_transport_options": {"delayq": own}})}


# -- in workers


@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_a_worker_moves_dead_letters_and_tells_nobody_the_password(
    app: Celery, delayq: DelayQ, postgres: PostgresServer, delayq_worker: StartWorker, pool: str
) -> None:
    url = postgres.new_database()
    ids = fill(delayq, 1_200)
    kwargs = {"concurrency": 2, "extra_args": FAST_START, "env": options(url)}
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool=pool, **kwargs)

    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "all dead letters are archived")

    assert app.send_task("add", (2, 3)).get(timeout=TIMEOUT) == 5
    moved = "SELECT id FROM dead_letters WHERE moved_at IS NOT NULL"
    wait_until(lambda: len(query(url, moved)) == 1_200, what="all rows are marked")
    assert {id for (id,) in query(url, moved)} == {*ids}
    inspect = app.control.inspect(timeout=TIMEOUT, limit=1)
    shown = repr([inspect.conf(with_defaults=True), inspect.stats(), inspect.report()])
    assert "dead_letters_archive" in shown
    worker.wait_log("archived dead letters: moved=1200")
    worker.term()
    assert worker.wait(timeout=TIMEOUT) == 0
    address = f"127.0.0.1:{postgres.port}/{url.rpartition('/')[2]}"
    assert f"archiving dead letters: database=postgresql://{address} after_s=0" in worker.log
    for secret in ("hunter2", PASSWORD):
        assert secret not in worker.log
        assert secret not in shown


@pytest.mark.full
def test_a_worker_that_is_killed_loses_nothing(
    delayq: DelayQ, database: str, delayq_worker: StartWorker
) -> None:
    ids = {*fill(delayq, 8_000)}
    env = options(database)
    kwargs = {"pool": "solo", "extra_args": FAST_START, "env": env}
    first = delayq_worker("tests.apps.delayq_tasks:app", **kwargs)
    wait_until(lambda: delayq.count_dead() < 8_000, TIMEOUT, "it has begun", interval=0.001)
    first.send_signal(signal.SIGKILL)
    first.wait()

    left = delayq.count_dead()
    delayq_worker("tests.apps.delayq_tasks:app", **kwargs)
    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "another one goes on")

    assert left > 0
    rows = [id for (id,) in query(database, "SELECT id FROM dead_letters")]
    assert len(rows) == 8_000
    assert {*rows} == ids


@pytest.mark.parametrize(
    ("missing", "told"),
    [("sqlalchemy", "databases need SQLAlchemy"), ("psycopg", "the driver of postgresql")],
)
def test_what_is_missing_is_one_error_and_the_worker_works(
    app: Celery, delayq: DelayQ, delayq_worker: StartWorker, tmp_path: Path, missing: str, told: str
) -> None:
    fill(delayq, 3)
    (tmp_path / "poor.py").write_text(
        f"import sys\nsys.modules[{missing!r}] = None\nfrom tests.apps.delayq_tasks import app\n"
    )
    env = options("postgresql://tester:hunter2@127.0.0.1:1/db")
    worker = delayq_worker(
        "poor:app", pool="solo", extra_args=FAST_START, env={**env, "PYTHONPATH": f"{tmp_path}:."}
    )

    wait_until(lambda: "cannot archive dead letters" in worker.log, TIMEOUT, "it is logged")
    assert app.send_task("add", (2, 3)).get(timeout=TIMEOUT) == 5

    assert worker.log.count("cannot archive dead letters") == 1
    assert re.search(f"{told}.+pip install", worker.log)
    assert "hunter2" not in worker.log
    assert delayq.count_dead() == 3


@pytest.mark.full
@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_its_log_lines_stop_no_worker_of_greenlets(
    app: Celery, delayq: DelayQ, delayq_worker: StartWorker, tmp_path: Path, pool: str
) -> None:
    """A greenlet would wait for ever for a lock of logging that another thread holds."""
    fill(delayq, 3)
    (tmp_path / "slow_log.py").write_text(
        "from celery.signals import after_setup_logger\n"
        "from celery_delayq.utils import native_threads\n"
        "from tests.apps import shared_locks\n"
        "from tests.apps.delayq_tasks import app\n\n"
        f"shared_locks.watch({pool!r})\n\n"
        "@after_setup_logger.connect\n"
        "def be_slow(logger, **_):\n"
        "    for handler in logger.handlers:\n"
        "        handler.flush = lambda: native_threads.sleep(0.05)\n"
    )
    env = {**options(f"sqlite:///{tmp_path}/archive.db"), "PYTHONPATH": f"{tmp_path}:."}
    results = [app.send_task("add", (number, 1)) for number in range(100)]

    worker = delayq_worker("slow_log:app", pool=pool, extra_args=FAST_START, env=env)

    assert [each.get(timeout=TIMEOUT) for each in results] == [*range(1, 101)]
    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "all dead letters are archived")
    worker.wait_log("archived dead letters: moved=3")
    assert shared_locks.FOUND not in worker.log


# -- what is moved, and when


def test_dead_letters_stay_for_as_long_as_they_should(
    app: Celery, delayq: DelayQ, database: str, start: Start
) -> None:
    fill(delayq, 5, queue="old", age=600)
    new = fill(delayq, 4, queue="new", age=20)

    start(app, database, 300)

    wait_until(lambda: delayq.count_dead() == 4, what="the old ones are archived")
    assert {each.id for each in delayq.dead_letters()} == {*new}


def test_dead_letters_of_others_on_this_redis_are_left_alone(
    app: Celery, delayq: DelayQ, database: str, start: Start
) -> None:
    fill_queue(delayq, 3, queue="others")
    fill(delayq, 4)

    start(app, database)

    wait_until(lambda: delayq.count_dead() == 3, what="ours are archived")
    assert {each.queue for each in delayq.dead_letters()} == {"others"}


def test_what_was_restored_stays_for_as_long_again(
    app: Celery, delayq: DelayQ, database: str, start: Start
) -> None:
    fill(delayq, 20, age=600)
    restored = fill(delayq, 5, queue="mail", age=600)
    start(app, database, 300)
    wait_until(lambda: delayq.count_dead() == 0, what="all are archived")

    assert delayq.import_dead(database).outcomes == {"restored": 25}
    [dead_letter] = fill(delayq, 1, queue="other", age=500)
    fill(delayq, 30, queue="late", age=400)
    wait_until(lambda: delayq.count_dead() <= 25, what="the others are archived")
    assert dead_letter not in {each.id for each in delayq.dead_letters()}
    assert delayq.count_dead() == 25

    # As if the restore had been longer ago.
    long_ago = "2020-01-01 00:00:00+00:00"
    query(database, f"UPDATE dead_letters SET restored_at = '{long_ago}' WHERE queue = 'mail'")
    wait_until(lambda: delayq.count_dead() == 20, what="these are archived again")
    assert not {*restored} & {each.id for each in delayq.dead_letters()}


def test_of_several_workers_one_works_at_a_time(
    make_app: MakeApp, delayq: DelayQ, database: str, start: Start
) -> None:
    for _ in range(4):
        start(make_app(), database)
    fill(delayq, 3_000)

    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "all are archived")

    marked = "SELECT count(*), count(moved_at) FROM dead_letters"
    wait_until(lambda: query(database, marked) == [(3000, 3000)], what="all rows are marked")
    ttl = delayq.store.client.pttl(delayq.store.keys.archiving)
    assert ttl <= 100


# -- what goes wrong


def test_a_database_that_is_away_is_reported_once_and_tried_again(
    app: Celery,
    delayq: DelayQ,
    postgres: PostgresServer,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = postgres.new_database()
    fill(delayq, 10)
    caplog.set_level(logging.INFO, "celery_delayq")

    def told(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    def allow(connections: bool) -> None:
        with postgres.connect() as connection:
            name = url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {connections}".encode())

    allow(False)
    archiver = start(app, url, interval=0.05)
    wait_until(lambda: archiver.loop.failures >= 3, TIMEOUT, "it is tried again")
    assert delayq.count_dead() == 10
    # The turn of another worker tells nothing of the database.
    delayq.store.client.set(delayq.store.keys.archiving, "1", px=2_000)
    wait_until(lambda: not delayq.store.client.exists(delayq.store.keys.archiving), what="its end")
    assert archiver.loop.failures >= 3
    assert told("reconnected, dead-letter archiver resumed") == 0
    allow(True)
    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "it goes on")
    wait_until(lambda: told("reconnected, dead-letter archiver resumed"), what="that is logged")

    assert told("the database is away, dead-letter archiver waits") == 1
    [warning] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"127.0.0.1:{postgres.port}" in warning.getMessage()
    assert "hunter2" not in caplog.text
    assert not warning.exc_info


def test_redis_away_is_nothing_to_tell_of(
    through: Through,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    database: str,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(delayq, 10)
    caplog.set_level(logging.INFO, "celery_delayq")
    proxy, proxied = through(delayq_redis.port)
    proxy.refuse()
    archiver = start(proxied.app, database)
    wait_until(lambda: "archiving dead letters" in caplog.text, TIMEOUT, "it has begun")
    assert archiver.loop.failures == 0
    proxy.accept()
    wait_until(lambda: delayq.count_dead() == 0, TIMEOUT, "it goes on")
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_one_that_stops_does_not_keep_anybody_waiting(
    app: Celery, delayq: DelayQ, database: str, start: Start
) -> None:
    fill(delayq, 2_000)
    archiver = start(app, database)
    wait_until(lambda: delayq.count_dead() < 2_000, TIMEOUT, "it has begun", interval=0.001)

    archiver.stop()

    left = delayq.count_dead()
    assert query(database, "SELECT count(*) FROM dead_letters")[0][0] + left >= 2_000

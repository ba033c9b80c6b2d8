"""Pending rows of a database are compared with the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.spark.reconcile import Options, Summary, TooManyOrphans, read_jdbc, reconcile
from celery_delayq.spark.reconcile.job import _ReconcileJob as Job
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.spark import jobs
from tests.integration.spark.conftest import CommandLine, jdbc_options, running
from tests.integration.spark.flights import NOON, SCHEMA, Row, calls, expected, flight, flights
from tests.support.dead_letters import message
from tests.support.postgres import PostgresServer
from tests.support.runs import finished

TASK = "mail.remind"

Reconcile = Callable[..., Summary]


def remind(gate: str, pax: int) -> None:
    """Stand for any task."""


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app()
    app.task(name=TASK, shared=False)(remind)
    return app


@pytest.fixture
def run(spark: Any, delayq_broker_url: str) -> Reconcile:
    """Reconcile rows, given as a list or a data frame."""

    def run(rows: Any, **options: Any) -> Summary:
        frame = spark.createDataFrame(rows, SCHEMA) if isinstance(rows, list) else rows
        given = {"task": TASK, "key": "flight", "eta": "remind_at", **options}
        return reconcile(spark, frame, Options(access={"url": delayq_broker_url}, **given))

    return run


def call(app: Celery, row: Row, **options: Any) -> str:
    """Schedule the task of a row as an app without Spark does."""
    key, at, gate, pax = row
    id = f"{TASK}:{key}"
    kwargs = {"gate": gate, "pax": pax}
    app.send_task(TASK, kwargs=kwargs, task_id=id, **{"eta": at, **options})
    return id


def said(**numbers: Any) -> Summary:
    present = dict.fromkeys(("leased", "ready", "retry", "elsewhere", "dead", "finished"), 0)
    return Summary(**{**numbers, "present": {**present, **numbers.get("present", {})}})


def everything(redis: RedisUnderTest) -> dict[bytes, Any]:
    """Return all data of Redis that does not expire. The fields of a hash have no order."""
    client = redis.client
    keys = [key for key in client.scan_iter() if client.ttl(key) == -1]
    return {
        key: client.hgetall(key) if client.type(key) == b"hash" else client.dump(key)
        for key in keys
    }


def make_states(app: Celery, delayq: DelayQ) -> None:
    """Bring a task into each state: leased 1, ready 2, retry 3, elsewhere 4, dead 5, finished 6."""
    for n in (1, 2):
        delayq.run_now(call(app, flight(n)))
        if n == 1:
            delayq.store.leases.acquire("celery", "me", 600.0, "1", 1)
    call(app, flight(3, minutes=9), retries=1)
    call(app, flight(4), queue="other")
    id = f"{TASK}:UA005"
    delayq.store.dead_letters.add("celery", id, "it failed", message(id, TASK))
    now = delayq.store.now_ms()
    ended = {f"{TASK}:UA006": 60, f"{TASK}:UA007": 9000}
    runs = [finished(id, now - 1000 * ago, task=TASK) for id, ago in ended.items()]
    delayq.store.history.add("me", 1, 1000, runs)


def test_each_kind_of_row_gets_what_it_needs(
    run: Reconcile, app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    make_states(app, delayq)
    call(app, flight(10))  # as its row
    call(app, flight(11), unique_key="UA011")  # as its row
    call(app, flight(12, minutes=5))  # another ETA, no key
    call(app, flight(13, gate="C1"), unique_key="somebody's")  # other arguments, another key
    call(app, flight(90))  # an orphan
    call(app, flight(91), queue="other")  # another one
    call(app, flight(92), queue="other", retries=1)  # its row was done meanwhile
    delayq.run_now(call(app, flight(15)))  # still in its list
    delayq.cancel(f"{TASK}:UA015")
    others = {f"tasks.add:{TASK}:UA014", "an id of Celery"}  # not meant
    app.send_task("tasks.add", (1, 2), task_id=f"tasks.add:{TASK}:UA014", eta=NOON)
    app.send_task(TASK, ("B7", 1), task_id="an id of Celery", eta=NOON)
    rows = [flight(n) for n in (*range(1, 8), *range(10, 16))]
    before = everything(delayq_redis)
    present = {"leased": 1, "ready": 1, "retry": 1, "elsewhere": 1, "dead": 1, "finished": 1}
    told = {"rows": 13, "present": present, "new": 3, "replaced": 2, "kept": 2, "orphans": 2}

    # UA007 has finished long ago, UA014 never was, UA015 was cancelled.
    assert run(rows, finished_within=3600, dry_run=True) == said(**told, dry_run=True)
    assert everything(delayq_redis) == before

    assert run(rows, finished_within=3600) == said(**told)
    left = [flight(3, minutes=9), flight(4), flight(90), flight(91), flight(92)]
    there = expected(*left, *(flight(n) for n in (7, 10, 11, 12, 13, 14, 15)))
    found = calls(delayq)
    assert {id: found[id] for id in found.keys() - others} == there
    assert others < found.keys()

    # A second time there is nothing to do but to cancel what is asked for now.
    before = delayq_redis.client.hgetall("{celery}:entries")
    again = {**told, "new": 0, "replaced": 0, "kept": 7}
    assert run(rows, finished_within=3600, orphans="cancel") == said(**again, cancelled=2)
    assert before.pop(f"{TASK}:UA090".encode())
    assert delayq_redis.client.hgetall("{celery}:entries") == before
    assert calls(delayq).keys() == {*there, *others} - {f"{TASK}:UA090", f"{TASK}:UA091"}


def test_what_comes_while_the_job_looks_is_not_scheduled_again(
    run: Reconcile, app: Celery, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Job._write

    def write_after_some_have_come(job: Any, rows: Any) -> Any:
        call(app, flight(1))  # without a key, which would do it
        delayq.run_now(call(app, flight(2)))
        delayq.cancel(call(app, flight(3)))
        return write(job, rows)

    monkeypatch.setattr(Job, "_write", write_after_some_have_come)

    told = run(flights(5))

    assert told == said(rows=5, new=3, kept=2)
    assert calls(delayq) == expected(*(flight(n) for n in (0, 1, 3, 4)))
    assert [queue.ready for queue in delayq.stats().queues] == [1]


def test_more_orphans_than_expected_change_nothing(
    run: Reconcile, app: Celery, delayq_redis: RedisUnderTest
) -> None:
    for n in (1, 2, 3):
        call(app, flight(n))
    before = everything(delayq_redis)

    # A query that finds one row where it should find three, and a new one
    rows = [flight(1), flight(9)]
    with pytest.raises(TooManyOrphans, match="2 scheduled tasks have no row, and max_orphans is 1"):
        run(rows, orphans="cancel", max_orphans=1)
    assert everything(delayq_redis) == before

    told = run(rows, orphans="cancel", max_orphans=2)
    assert told == said(rows=2, new=1, kept=1, orphans=2, cancelled=2)


# -- rows that are wrong


def test_rows_that_are_wrong_are_reported_and_put_aside(
    run: Reconcile, spark: Any, delayq: DelayQ, tmp_path: Path
) -> None:
    rows = [
        flight(1),
        flight(2),
        flight(2, gate="C1"),
        (None, NOON, "B7", 3),
        ("UA004", None, "B7", 4),
        (" ", NOON, "B7", 5),
    ]
    folder = tmp_path / "refused"

    told = run(rows, refused=str(folder))
    assert (told.rows, told.new, told.refused) == (6, 1, 5)
    assert calls(delayq) == expected(flight(1))
    reasons = {
        (row.flight, row.pax): row._error for row in spark.read.parquet(str(folder)).collect()
    }
    assert reasons == {
        ("UA002", 2): "flight: 2 rows have the key of 'mail.remind:UA002'",
        (None, 3): "flight is None: nothing identifies the row",
        ("UA004", 4): "remind_at is null: nothing says when",
        (" ", 5): "flight is ' ': nothing identifies the row",
    }
    assert told.why in reasons.values()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "nr"}, "key='nr': no such column; there are: flight, remind_at, gate, pax"),
        ({"key": "remind_at"}, "key='remind_at' is of type timestamp: expected text"),
        ({"eta": "gate"}, "etacolumn='gate' is of type string: expected a timestamp"),
        ({"created": "gate"}, "created='gate' is of type string: expected a timestamp"),
        ({"arguments": ["gates"]}, "arguments='gates': no such column"),
        ({"arguments": ["pax", "flight"]}, "arguments='flight' is the key already"),
        ({"orphans": "kill"}, "orphans='kill': 'kill' is not one of 'report', 'cancel'"),
        ({"access": {"url": "redis://:hunter2@localhost/0"}}, "the option url has a password"),
    ],
)
def test_options_that_are_wrong_are_reported(
    spark: Any, options: dict[str, Any], problem: str
) -> None:
    rows = spark.createDataFrame([], SCHEMA)
    given = {"task": TASK, "key": "flight", "eta": "remind_at", **options}
    with pytest.raises(ConfigError, match=problem):
        reconcile(spark, rows, Options(**given))


# -- a job that fails


def test_a_job_that_was_killed_is_completed_by_the_next(
    run: Reconcile, spark: Any, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    rows = flights(300)

    def first(_: Any) -> None:
        run(rows, batchsize=10, ratelimit=40)

    with running(first, spark) as job:
        try:
            job.wait_until(lambda: delayq.count() >= 20, "some rows to be written")
        finally:
            spark.sparkContext.cancelAllJobs()
    assert job.error is not None
    jobs.wait_idle(spark)

    told = run(rows)
    assert (told.rows, told.replaced, told.refused) == (300, 0, 0)
    assert told.new + told.kept == 300
    assert told.new > 0
    assert told.kept >= 20
    assert calls(delayq) == expected(*rows)


# -- databases


@pytest.fixture
def derby(spark: Any, tmp_path: Path) -> Iterator[tuple[str, Callable[..., None]]]:
    """The URL of a database inside Spark's Java, and a function that runs statements."""
    system, manager = spark._jvm.java.lang.System, spark._jvm.java.sql.DriverManager
    system.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/shop"
    spark._jvm.org.apache.derby.jdbc.EmbeddedDriver()
    connection = manager.getConnection(f"{url};create=true")

    def execute(*statements: str) -> None:
        for each in statements:
            statement = connection.createStatement()
            statement.execute(each)
            statement.close()

    yield url, execute
    connection.close()
    with pytest.raises(Exception, match="shutdown"):  # so it tells that it was
        manager.getConnection(f"{url};shutdown=true")


@pytest.mark.nightly
def test_rows_of_a_database_are_reconciled(
    run: Reconcile,
    spark: Any,
    derby: tuple[str, Callable[..., None]],
    app: Celery,
    delayq: DelayQ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, execute = derby
    now = datetime.now(timezone.utc)

    def insert(row: Row, age: float) -> str:
        key, at, gate, pax = row
        made = f"{now - timedelta(seconds=age):%F %T}"
        return f"INSERT INTO app.r VALUES ('{key}', '{at:%F %T}', '{gate}', {pax}, '{made}', 'x')"

    execute(
        "CREATE TABLE app.r (flight VARCHAR(9), remind_at TIMESTAMP, gate VARCHAR(9), pax INT, "
        "created TIMESTAMP, note VARCHAR(9))",
        *(insert(flight(n), 7200) for n in range(20)),
        *(insert(flight(n), 60) for n in range(20, 23)),
    )
    late, gone = call(app, flight(30)), call(app, flight(31))
    monkeypatch.setenv("DELAYQ_JDBC_PASSWORD", "hunter2")
    options = {
        "key": "FLIGHT", "eta": "REMIND_AT", "created": "CREATED", "orphans": "cancel",
        "arguments": ["gate", "pax"],
    }  # fmt: skip
    ranges = ("PAX", "0", "30", 2)
    rows = read_jdbc(spark, url, user="me", query="SELECT * FROM app.r", partitioned=ranges)
    rows = rows.withColumnsRenamed({"GATE": "gate", "PAX": "pax"})
    cancel = Job._cancel

    def cancel_after_a_row_has_come(job: Any, ids: Any, ready: bool) -> int:
        execute(insert(flight(30), 0))
        return cancel(job, ids, ready)

    monkeypatch.setattr(Job, "_cancel", cancel_after_a_row_has_come)

    # What the database means by a time without a zone is not what another Java would read.
    zones = spark._jvm.java.util.TimeZone
    zones.setDefault(zones.getTimeZone("America/New_York"))
    try:
        with pytest.raises(ConfigError, match="take them for times of America/New_York"):
            read_jdbc(spark, url, table="app.r")
    finally:
        zones.setDefault(zones.getTimeZone("UTC"))

    told = run(rows, **options)

    assert told == said(rows=23, young=3, new=20, orphans=2, cancelled=1)
    assert calls(delayq) == expected(*(flight(n) for n in (*range(20), 30)))
    assert {late, gone} & calls(delayq).keys() == {late}
    shown = rows._jdf.queryExecution().toString()
    assert "JDBCRelation" in shown
    assert "hunter2" not in shown


def test_the_command_reconciles_rows_of_postgresql_and_keeps_the_password(
    command_line: CommandLine, postgres: PostgresServer, app: Celery, delayq: DelayQ
) -> None:
    database = postgres.new_database().rpartition("/")[2]
    with postgres.connect(database) as connection:
        connection.execute(
            "CREATE TABLE reminders (flight text, remind_at timestamptz, gate text, pax int, "
            "sent boolean, created timestamp)"
        )
        for n in range(6):
            key, at, gate, pax = flight(n)
            connection.execute(
                "INSERT INTO reminders VALUES (%s, %s, %s, %s, %s, %s)",
                (key, at, gate, pax, n == 5, datetime(2026, 1, 1)),
            )
    call(app, flight(0))

    told, said = command_line.run(
        "reconcile",
        *jdbc_options(postgres, database),
        *("--query", "SELECT * FROM reminders WHERE NOT sent"),
        *("--task", TASK, "--key", "flight", "--eta", "remind_at", "--arguments", "gate,pax"),
        *("--created-column", "created", "--grace", "60"),
    )

    assert (told["rows"], told["new"], told["kept"]) == (5, 4, 1)
    assert calls(delayq) == expected(*map(flight, range(5)))
    assert "hunter2" not in said

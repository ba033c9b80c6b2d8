"""The Spark session of a test run, command lines of jobs, and a cluster."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_delayq import DelayQ
from celery_delayq.spark.session import setting
from celery_delayq.store.keys import Layout
from celery_delayq.testing import wait_until
from celery_delayq.testing.processes import ManagedProcess
from celery_delayq.testing.servers import new_server
from tests.integration.spark import jobs
from tests.integration.spark.cluster import SECRETS, Cluster
from tests.integration.spark.driver import QUICK, Driver, configured, run_stream, settings
from tests.integration.spark.flights import OPTIONS, SCHEMA
from tests.support import TIMEOUT
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.skips import left_out, need_java

if TYPE_CHECKING:
    from celery_delayq.spark.archive import Summary as Archived
    from celery_delayq.spark.restore import Summary as Restored

#: Reads a table with these options.
Read = Callable[..., Any]

#: Writes rows with these options, and returns what the job reports.
Write = Callable[..., Mapping[str, Any]]

#: Archives these tables with these options.
Archive = Callable[..., "Archived"]

#: Restores with these options.
Restore = Callable[..., "Restored"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep Spark out of ``make test``, and let warnings of others pass."""
    item.add_marker(pytest.mark.full)
    for warning in (
        "Call to deprecated setex:DeprecationWarning",  # Celery's result backend, newest redis-py
        "PySpark does not yet fully support pandas:FutureWarning",
    ):
        item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, with the data source registered."""
    need_java()
    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, and of sockets that py4j leaves open
        from pyspark.sql import SparkSession

        import celery_delayq.spark

        options = {**settings(folder), "spark.task.maxFailures": "1"}
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in options.items():
            builder = builder.config(name, value)
        # Spark's own processes keep these variables. Later tests are to start others without them.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            patch.delenv("SPARK_LOCAL_DIRS", raising=False)
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            # So that workers find the tests' own modules, too.
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        celery_delayq.spark.register(session)
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def no_task_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """End a test when its tasks of Spark have ended: they would write into the next one's Redis."""
    yield
    if "spark" in request.fixturenames:
        jobs.wait_idle(request.getfixturevalue("spark"))


@pytest.fixture
def read(spark: Any, delayq_broker_url: str) -> Read:
    """Read a table of the test's Redis; *schema* for some columns only."""

    def load(table: str, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read if schema is None else spark.read.schema(schema)
        given = {"url": delayq_broker_url, "table": table, **options}
        return reader.format("celery_delayq").options(**given).load()

    return load


@pytest.fixture
def write(spark: Any, delayq_broker_url: str, tmp_path: Path) -> Write:
    """Write rows to the test's Redis, as of `flights` unless options say something else."""

    def save(rows: Any, schema: str = SCHEMA, **options: Any) -> Mapping[str, Any]:
        frame = spark.createDataFrame(rows, schema) if isinstance(rows, list) else rows
        report = tmp_path / "report.json"
        given = {"url": delayq_broker_url, "report": str(report), **OPTIONS, **options}
        given = {name: value for name, value in given.items() if value is not None}
        frame.write.format("celery_delayq").mode("append").options(**given).save()
        told: Mapping[str, Any] = json.loads(report.read_text())
        return told

    return save


@pytest.fixture
def stream(spark: Any, delayq_broker_url: str, tmp_path: Path) -> Callable[..., list[str]]:
    """Read all there is of the history since the last time; the ids, in order."""

    def once(**options: str) -> list[str]:
        found: list[str] = []
        given = {"url": delayq_broker_url, "table": "history", **options}
        writer = (
            spark.readStream.format("celery_delayq")
            .options(**given)
            .load()
            .writeStream.foreachBatch(
                lambda rows, _: found.extend(row.id for row in rows.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_stream(writer.start)
        return found

    return once


@pytest.fixture
def archive(spark: Any, delayq_broker_url: str, tmp_path: Path) -> Archive:
    """Archive tables of the test's Redis."""
    from celery_delayq.spark import archive as module

    def save(*tables: str, **options: Any) -> Archived:
        wanted = module.Options(tables=tables, access={"url": delayq_broker_url}, **options)
        return module.archive(spark, str(tmp_path / "archive"), wanted)

    return save


@pytest.fixture
def restore(spark: Any, delayq_broker_url: str, tmp_path: Path) -> Restore:
    """Restore what was archived."""
    from celery_delayq.spark import restore as module

    def put_back(**options: Any) -> Restored:
        wanted = module.Options(access={"url": delayq_broker_url}, **options)
        return module.restore(spark, str(tmp_path / "archive"), wanted)

    return put_back


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Filters are handed to the data source."""
    with setting(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        yield


def pause_due(delayq: DelayQ, queue: str) -> bool:
    """Promote, and return whether an entry of a paused task is due."""
    store = delayq.store
    store.promote(queue, Layout(), 100)
    return bool(store.client.zcard(store.keys.queue(queue).paused_due))


class CommandLine:
    """Runs a job of the package in a process of its own, which logs all."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        # Without a time zone: jobs set it.
        conf = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": QUICK}
        self._env = {
            **configured(folder / "conf", conf, level="info"),
            "DELAYQ_URL": url,
            "DELAYQ_JDBC_PASSWORD": PASSWORD,
            "TZ": "America/New_York",  # must not matter
        }

    def process(self, job: str, *words: str) -> ManagedProcess:
        """Return a process that runs a job."""
        command = [sys.executable, "-m", "celery_delayq.spark", job, "--json", *words]
        log = self._folder / "job.log"
        return ManagedProcess(command, env=self._env, cwd=self._folder, log_file=log)

    def run(self, job: str, *words: str) -> tuple[dict[str, Any], str]:
        """Run a job to its end; return its JSON and its whole log."""
        with self.process(job, *words) as process:
            code = process.wait(TIMEOUT)
            assert code == 0, process.log[-3000:]
            # The log has Spark's own lines, so a password would be in it, too.
            assert re.search(r" INFO .*: Running Spark version", process.log)
            told = [line for line in process.log.splitlines() if line.startswith("{")]
            return json.loads(told[-1]), process.log


def jdbc_options(postgres: PostgresServer, database: str) -> list[str]:
    """Return the options of a database; the test is skipped without its JDBC driver."""
    jar = Path("/usr/share/java/postgresql.jar")
    if not jar.exists():
        raise left_out(f"needs {jar}: apt install libpostgresql-jdbc-java")
    url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/{database}"
    return ["--jars", str(jar), "--user", "tester", "--jdbc-url", url]


@pytest.fixture
def command_line(delayq_broker_url: str, tmp_path: Path) -> CommandLine:
    """Command lines of jobs on the test's Redis."""
    need_java()
    return CommandLine(delayq_broker_url, tmp_path)


class Running:
    """A job that runs beside the test."""

    error: BaseException | None = None

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition; raise the error of the job if it fails before."""
        wait_until(lambda: self.error or condition(), TIMEOUT, what)
        if self.error is not None:
            raise self.error

    @property
    def reason(self) -> str:
        """The line of Spark's error that the command would show."""
        from celery_delayq.spark.jobs import _one_line

        assert self.error is not None
        return _one_line(str(self.error))


@contextmanager
def running(job: Any, spark: Any, *given: Any) -> Iterator[Running]:
    """Run a job during the block, and wait for its end."""
    it = Running()

    def run() -> None:
        try:
            # Makes it the session of this thread: Spark looks for data sources in no other.
            spark.createDataFrame([(1,)], "n INT")
            job(spark, *given)
        except BaseException as exc:
            it.error = exc

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield it
    finally:
        thread.join()


@pytest.fixture(scope="package")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for the tests that need one."""
    need_java()
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    (folder / "events").mkdir()
    conf = {
        "spark.log.level": "INFO",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.buffer.kb": "1k",
        "spark.executorEnv.DELAYQ_PASSWORD": SECRETS["executors"],
        # Spark's own message of a slow event has all settings, passwords among them.
        "spark.scheduler.listenerbus.logSlowEvent": "false",
        "spark.task.maxFailures": "4",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    }
    env = {
        "DELAYQ_PASSWORD": SECRETS["driver"],
        "DELAYQ_JDBC_PASSWORD": SECRETS["database"],
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    driver = Driver(folder / "driver", "local-cluster[1,1,1024]", conf, env, level="info")
    with new_server(password=SECRETS["executors"]) as server, driver:
        # Another worker on another address: Spark runs no second attempt on the host of the first.
        master = driver.wait_log(r"Starting Spark master at (\S+)", TIMEOUT)[1]
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        worker = ManagedProcess(
            [
                *(str(program), "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.2"),
                *("--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(folder / "work2"), master),
            ],
            env={**driver.env, "SPARK_LOCAL_IP": "127.0.0.2"},
            log_file=folder / "worker.log",
        )
        with worker:
            worker.wait_log("Successfully registered with master", TIMEOUT)
            driver.wait_log(r"Registered executor .*(\n.*)*Registered executor ", TIMEOUT)
            cluster = Cluster(driver, server, folder)
            yield cluster
            cluster.close()


@pytest.fixture
def cluster(started_cluster: Cluster) -> Cluster:
    """The cluster, with an empty Redis."""
    started_cluster.reset()
    return started_cluster

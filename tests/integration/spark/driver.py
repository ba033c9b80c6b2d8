"""A Spark driver in a process of its own, which runs functions for tests and may be killed."""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_delayq.spark.jdbc import UTC_OPTION
from celery_delayq.testing import wait_until
from celery_delayq.testing.processes import ManagedProcess
from tests.support import TIMEOUT

if TYPE_CHECKING:
    from typing_extensions import Self


#: Makes Java compile less, since most code of a test runs once, and verify no class of Spark's.
QUICK = (
    "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

_LOGGING = """\
# In a shell Spark only logs what this file says about its own loggers.
rootLogger.level = {level}
logger.spark.name = org.apache.spark
logger.spark.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


#: What Spark says where a Python did not start in time.
_TOO_LATE = "Python worker failed to connect back"


def settings(folder: Path) -> dict[str, str]:
    """Return the settings of all Sparks of tests; their files are in *folder*."""
    return {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {QUICK} {UTC_OPTION}",
        "spark.executor.extraJavaOptions": f"{QUICK} {UTC_OPTION}",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.memory": "1g",
        # A Python starts in more than the usual 15 s where many tests run side by side.
        "spark.python.authenticate.socketTimeout": "120s",
    }


def configured(folder: Path, conf: Mapping[str, str], level: str) -> dict[str, str]:
    """Write files with settings, and return the variables by which a Spark finds them.

    So no setting is on a command line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in {**settings(folder), **conf}.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    (folder / "log4j2.properties").write_text(_LOGGING.format(level=level))
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }


def despite_late_python(run: Callable[[], None]) -> None:
    """Call *run*. If Spark did not wait for its Python, call *run* again, for at most `TIMEOUT`.

    Spark waits 10 s for the Python of a stream, and no setting changes that. A busy machine may
    need longer, several times in a row. Any other error is raised at once.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            run()
        except Exception as exc:
            if _TOO_LATE not in str(exc) or time.monotonic() > deadline:
                raise
        else:
            return


def run_stream(start: Callable[[], Any]) -> None:
    """Start a stream, and wait for its end, at most `TIMEOUT`."""

    def run() -> None:
        assert start().awaitTermination(TIMEOUT), "the stream has not ended in time"

    despite_late_python(run)


class JobFailed(Exception):
    """The error of a job, in the words of Spark."""


class Driver(ManagedProcess):
    """The driver of an application, with ``spark`` in it; a context manager.

    Parameters
    ----------
    folder
        Its files, with its log ``driver.log``.
    master
        As Spark takes it.
    conf
        Settings in addition to those of all tests.
    env
        Variables in addition to those of the tests.
    level
        The log level of the driver and of executors.
    """

    def __init__(
        self,
        folder: Path,
        master: str,
        conf: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
        level: str = "warn",
    ) -> None:
        self.folder = folder
        given = {
            "spark.master": master,
            "spark.app.name": "tests",
            "spark.ui.showConsoleProgress": "false",
        }
        variables = configured(folder, {**given, **conf}, level)
        self._address = folder / "jobs"
        self._connection: Any = None
        super().__init__(
            [sys.executable, "-m", "tests.integration.spark.driver", str(self._address)],
            env={**variables, **env},
            cwd=folder,
            log_file=folder / "driver.log",
        )

    def __exit__(self, *error: Any) -> None:
        if self._connection is not None:
            self._connection.close()
            with suppress(Exception):
                self.wait(TIMEOUT)  # it ends by itself, with its executors
        super().__exit__(*error)

    def begin(self, job: Callable[..., Any], *given: Any, **named: Any) -> Self:
        """Start a job: a function of a module, with the session as its first argument."""
        if self._connection is None:
            self._connection = self._connected()
        self._connection.send((f"{job.__module__}:{job.__name__}", given, named))
        return self

    def end(self, timeout: float = TIMEOUT) -> Any:
        """Wait for the end of the job, and return its result.

        Raises
        ------
        JobFailed
            It raised an error.
        """
        if not self._connection.poll(timeout):
            raise self._failure(f"nothing was done within {timeout:g} s")
        good, result = self._connection.recv()
        if not good:
            raise JobFailed(result)
        return result

    def do(self, job: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run a job, and return its result."""
        return self.begin(job, *given, **named).end()

    def _connected(self) -> Connection:
        return wait_until(self._try_to_connect, TIMEOUT, "the driver to listen")

    def _try_to_connect(self) -> Any:
        if not self.running:
            raise self._failure("has ended")
        try:
            return Client(str(self._address), "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):  # its file is there a bit earlier
            return None


def _serve(address: str) -> None:
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    import celery_delayq.spark

    spark = SparkSession.builder.getOrCreate()
    celery_delayq.spark.register(spark)
    with Listener(address, "AF_UNIX") as listener, listener.accept() as connection:
        while True:
            try:
                name, given, named = connection.recv()
            except EOFError:
                break
            module, _, function = name.partition(":")
            try:
                job = getattr(importlib.import_module(module), function)
                told = True, job(spark, *given, **named)
            except Exception as exc:
                traceback.print_exc()
                told = False, str(exc)
            connection.send(told)
    spark.stop()


if __name__ == "__main__":
    _serve(sys.argv[1])

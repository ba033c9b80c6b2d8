"""A Spark session of the demonstration, on two cores."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import celery_delayq.spark
from celery_delayq.spark.session import interrupts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKOUT = Path(__file__).resolve().parents[2]
_STOP_TIMEOUT_S = 15.0


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Yield a session that knows the data source; its files and its log are in `folder`."""
    celery_delayq.spark.check()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    from pyspark.sql import SparkSession

    # Executors import the app of this checkout.
    paths = filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH")))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("SPARK_LOCAL_DIRS", None)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # the demonstration shows its own
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Java runs for minutes only: the time of its second compiler does not pay off.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={folder} -XX:-UsePerfData -XX:TieredStopAtLevel=1"
        ),
    }
    builder = SparkSession.builder.master("local[2]").appName("flight reminders")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _errors_to(folder / "spark.log"):
        spark = builder.getOrCreate()
    # Java ignores Ctrl-C, and Spark's own stop waits for running work.
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    try:
        celery_delayq.spark.register(spark)
        with interrupts():
            yield spark
        spark.stop()
    finally:
        java.terminate()
        try:
            java.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Let programs that are started meanwhile write their errors to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)

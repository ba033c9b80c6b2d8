"""A Spark of the test run's own, and what it reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Reads a table with these options.
Read = Callable[..., Any]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def java() -> Path:
    """Return Java's program; without one the tests are left out, with CI=true they fail."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    reason = "Spark needs Java 17 or newer, on PATH or by JAVA_HOME: apt install openjdk-17-jre"
    if program is not None:
        told = subprocess.run([program, "-version"], capture_output=True, text=True).stderr
        version = re.search(r'version "(?:1\.)?(\d+)', told)
        if version is not None and int(version[1]) >= 17:
            return Path(program)
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All share one Spark, so one process runs them all."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, with the data source registered."""
    java()
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pandas, and of sockets that py4j leaves open
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.delenv("SPARK_LOCAL_DIRS", raising=False)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # So that workers find the tests' own modules, too.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        from pyspark.sql import SparkSession

        import celery_delayq.spark

        options = {
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
            "spark.driver.memory": "1g",
            "spark.task.maxFailures": "1",
        }
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in options.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        celery_delayq.spark.register(session)
        yield session
        session.stop()


@pytest.fixture
def read(spark: Any, delayq_broker_url: str) -> Read:
    """Read a table of the test's Redis; *schema* for some columns only."""

    def load(table: str, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read if schema is None else spark.read.schema(schema)
        given = {"url": delayq_broker_url, "table": table, **options}
        return reader.format("celery_delayq").options(**given).load()

    return load


@pytest.fixture
def pushdown(spark: Any) -> Iterator[None]:
    """Filters are handed to the data source."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)

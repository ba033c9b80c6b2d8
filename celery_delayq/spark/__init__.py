"""Apache Spark in and out of the queue: the data source ``celery_delayq``, and jobs.

>>> import celery_delayq.spark
>>> celery_delayq.spark.register(spark)  # doctest: +SKIP
>>> rows.write.format("celery_delayq").mode("append").options(  # doctest: +SKIP
...     task="mail.remind", idcolumn="flight", etacolumn="remind_at"
... ).save()

Needs PySpark 4.1 or newer, which needs Java 17: ``pip install "celery-delayq[spark]"``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from celery_delayq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check", "check_java", "register"]

MIN_SPARK = (4, 1)
MIN_JAVA = 17


def register(spark: SparkSession) -> None:
    """Register ``format("celery_delayq")`` in a session, for reading and writing.

    Raises
    ------
    ConfigError
        PySpark or pyarrow is missing, or too old.
    """
    check()
    from celery_delayq.spark.source import Source

    spark.dataSource.register(Source)


def check(*more: str) -> None:
    """Raise :class:`ConfigError` if the extra ``[spark]`` is missing or too old.

    Parameters
    ----------
    more : str
        Further required modules of the extra, besides PySpark and pyarrow.
    """
    advice = 'install it with: pip install "celery-delayq[spark]"'
    try:
        for name in ("pyarrow", *more):
            import_module(name)
        import pyspark
    except ImportError as exc:
        raise ConfigError(f"{exc.name} is missing; {advice}") from exc
    version = pyspark.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_SPARK:
        raise ConfigError(f"PySpark {version} is too old, expected 4.1 or newer; {advice}")


def check_java() -> None:
    """Raise :class:`ConfigError` if Spark would find no Java, or a Java that is too old.

    Spark's own error only says that Java has ended.
    """
    advice = f"install Java {MIN_JAVA} or newer (apt install openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if program is None:
        where = f"none in JAVA_HOME, {home}; correct that, or" if home else "none on PATH;"
        raise ConfigError(f"Spark needs Java, and there is {where} {advice}")
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if version is not None and int(version[1]) < MIN_JAVA:
        raise ConfigError(
            f"Java {version[1]} ({program}) is too old for Spark; {advice}, and set JAVA_HOME to it"
        )

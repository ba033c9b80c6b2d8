"""Reads a database by JDBC without showing its password."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from celery_delayq.errors import ConfigError
from celery_delayq.utils.credentials import has_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Environment variable with the password of the database.
PASSWORD_VARIABLE = "DELAYQ_JDBC_PASSWORD"

#: Option of Java.
UTC_OPTION = "-Duser.timezone=UTC"

#: Drivers that Java does not find by itself in jars that Spark adds.
_DRIVERS = {
    "jdbc:derby:": "org.apache.derby.jdbc.EmbeddedDriver",
    "jdbc:postgresql:": "org.postgresql.Driver",
}
_PASSWORD = re.compile(r"(?i)(?:password|pwd)\s*=|//[^/?;]*:[^/?;@]*@|:[^/@:]+/[^/@]+@")

#: URLs of Oracle without a user and a password: they have a colon and an @, too.
_WITHOUT_LOGIN = re.compile(r"^jdbc:oracle:\w+:@")


def check_url(url: str) -> None:
    """Raise :class:`ConfigError` for a URL with a password, which plans and logs would show."""
    if _PASSWORD.search(url) or has_password(_WITHOUT_LOGIN.sub("", url).removeprefix("jdbc:")):
        raise ConfigError(
            f"the JDBC URL has a password, which Spark would show; give it by the environment "
            f"variable {PASSWORD_VARIABLE}"
        )


def read_jdbc(
    spark: SparkSession,
    url: str,
    *,
    table: str | None = None,
    query: str | None = None,
    user: str | None = None,
    driver: str | None = None,
    partitioned: tuple[str, str, str, int] | None = None,
) -> DataFrame:
    """Return rows of a database, whose password is in the variable :data:`PASSWORD_VARIABLE`.

    Timestamps without a time zone are UTC, as in Celery.

    Parameters
    ----------
    table, query : str | None
        Exactly one of them.
    partitioned : tuple[str, str, str, int] | None
        Column, lower bound, upper bound and number of ranges to read in parallel.

    Raises
    ------
    ConfigError
        The URL has a password, or timestamps have no time zone and Java is not in UTC.
    """
    if (table is None) == (query is None):
        raise ConfigError("give either a table or a query")
    check_url(url)
    given: dict[str, Any] = {
        "url": url,
        "user": user,
        "password": os.environ.get(PASSWORD_VARIABLE),
        "driver": driver or next((d for p, d in _DRIVERS.items() if url.startswith(p)), None),
        "dbtable": table if query is None else f"({query}) pending",
        "preferTimestampNTZ": "true",
        "fetchsize": 5000,
    }
    if partitioned is not None:
        names = ("partitionColumn", "lowerBound", "upperBound", "numPartitions")
        given.update(zip(names, partitioned, strict=True))
    options = {name: str(value) for name, value in given.items() if value is not None}
    rows = spark.read.format("jdbc").options(**options).load()
    if "timestamp_ntz" not in {kind for _, kind in rows.dtypes}:
        return rows
    # JDBC reads times without a time zone in the zone of Java, which may skip some hours of the
    # year. The zone of executors cannot be checked here.
    jvm: Any = spark._jvm
    zone = jvm.java.util.TimeZone.getDefault()
    if not zone.hasSameRules(jvm.java.util.TimeZone.getTimeZone("UTC")):
        raise ConfigError(
            "the database has timestamps without a time zone, which are UTC, and Spark's Java "
            f"would take them for times of {zone.getID()}: set spark.driver.extraJavaOptions and "
            f"spark.executor.extraJavaOptions to {UTC_OPTION}"
        )
    return rows

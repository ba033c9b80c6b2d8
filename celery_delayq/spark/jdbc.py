"""Rows of a database, without showing its password."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from celery_delayq.errors import ConfigError
from celery_delayq.utils.credentials import has_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Where the password of the database is looked for.
PASSWORD = "DELAYQ_JDBC_PASSWORD"

#: What tells Java so.
IN_UTC = "-Duser.timezone=UTC"

#: Drivers whose jars may come after Java has looked for them.
_DRIVERS = {
    "jdbc:derby:": "org.apache.derby.jdbc.EmbeddedDriver",
    "jdbc:postgresql:": "org.postgresql.Driver",
}
_PASSWORD = re.compile(r"(?i)(?:password|pwd)\s*=|//[^/?;]*:[^/?;@]*@|:[^/@:]+/[^/@]+@")

#: Oracle has its @, and a colon before that, without a login, too.
_WITHOUT_LOGIN = re.compile(r"^jdbc:oracle:\w+:@")


def connecting(url: str, user: str | None = None, driver: str | None = None) -> dict[str, str]:
    """Return the options by which Spark connects to a database, with the password.

    Raises
    ------
    ConfigError
        The URL has a password in it, which plans and logs would show.
    """
    if _PASSWORD.search(url) or has_password(_WITHOUT_LOGIN.sub("", url).removeprefix("jdbc:")):
        raise ConfigError(
            f"the JDBC URL has a password, which Spark would show; give it by the environment "
            f"variable {PASSWORD}"
        )
    given = {
        "url": url,
        "user": user,
        "password": os.environ.get(PASSWORD),
        "driver": driver or next((d for p, d in _DRIVERS.items() if url.startswith(p)), None),
    }
    return {name: value for name, value in given.items() if value is not None}


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
    """Return rows of a database; the password is that of :data:`PASSWORD` in the environment.

    Timestamps without a time zone are UTC, as everywhere in Celery; see :func:`check_zone`.

    Parameters
    ----------
    table, query : str | None
        One of them.
    partitioned : tuple[str, str, str, int] | None
        A column, its lower and upper bound and a number: read in so many parts side by side.

    Raises
    ------
    ConfigError
        The URL has a password in it, which plans and logs would show, or there are timestamps
        without a time zone that Java would read otherwise.
    """
    if (table is None) == (query is None):
        raise ConfigError("give either a table or a query")
    given: dict[str, Any] = {
        **connecting(url, user, driver),
        "dbtable": table if query is None else f"({query}) pending",
        "preferTimestampNTZ": "true",
        "fetchsize": 5000,
    }
    if partitioned is not None:
        names = ("partitionColumn", "lowerBound", "upperBound", "numPartitions")
        given.update(zip(names, partitioned, strict=True))
    options = {name: str(value) for name, value in given.items() if value is not None}
    rows = spark.read.format("jdbc").options(**options).load()
    if "timestamp_ntz" in {kind for _, kind in rows.dtypes}:
        check_zone(spark)
    return rows


def check_zone(spark: SparkSession) -> None:
    """Check that Java takes timestamps without a time zone for what they are here: UTC.

    JDBC has them in the zone of the Java that reads or writes them, and in some zones some times of
    a year are not there.

    Raises
    ------
    ConfigError
        The driver's Java is in another zone. That of executors cannot be seen from here.
    """
    jvm: Any = spark._jvm
    zone = jvm.java.util.TimeZone.getDefault()
    if not zone.hasSameRules(jvm.java.util.TimeZone.getTimeZone("UTC")):
        raise ConfigError(
            "the database has timestamps without a time zone, which are UTC, and Spark's Java "
            f"would take them for times of {zone.getID()}: set spark.driver.extraJavaOptions and "
            f"spark.executor.extraJavaOptions to {IN_UTC}"
        )

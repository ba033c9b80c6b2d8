"""Rows of a database, without showing its password."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from celery_delayq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Where the password of the database is looked for.
PASSWORD = "DELAYQ_JDBC_PASSWORD"

#: Drivers whose jars may come after Java has looked for them.
_DRIVERS = {
    "jdbc:derby:": "org.apache.derby.jdbc.EmbeddedDriver",
    "jdbc:postgresql:": "org.postgresql.Driver",
}
_PASSWORD = re.compile(r"(?i)[?;&:]\s*(?:password|pwd)\s*=|//[^/?;]*:[^/?;@]*@|:[^/@:]+/[^/@]+@")


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

    Timestamps without a time zone are UTC, as everywhere in Celery.

    Parameters
    ----------
    table, query : str | None
        One of them.
    partitioned : tuple[str, str, str, int] | None
        A column, its lower and upper bound and a number: read in so many parts side by side.

    Raises
    ------
    ConfigError
        The URL has a password in it, which plans and logs would show.
    """
    if _PASSWORD.search(url):
        raise ConfigError(
            f"the JDBC URL has a password, which Spark would show; give it by the environment "
            f"variable {PASSWORD}"
        )
    if (table is None) == (query is None):
        raise ConfigError("give either a table or a query")
    given: dict[str, Any] = {
        "url": url,
        "dbtable": table if query is None else f"({query}) pending",
        "user": user,
        "password": os.environ.get(PASSWORD),
        "driver": driver or next((d for p, d in _DRIVERS.items() if url.startswith(p)), None),
        "preferTimestampNTZ": "true",
        "fetchsize": 5000,
    }
    if partitioned is not None:
        names = ("partitionColumn", "lowerBound", "upperBound", "numPartitions")
        given.update(zip(names, partitioned, strict=True))
    options = {name: str(value) for name, value in given.items() if value is not None}
    return spark.read.format("jdbc").options(**options).load()

"""Which URLs of databases have a password, as far as text tells it."""

from __future__ import annotations

import pytest

from celery_delayq.errors import ConfigError
from celery_delayq.spark.jdbc import check_url, read_jdbc


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db:5432/shop?user=me",
        "jdbc:postgresql://db1:5432,db2:5432/shop",
        "jdbc:mysql://me@db:3306/shop",
        "jdbc:sqlserver://db:1433;databaseName=shop;user=me@here",
        "jdbc:oracle:thin:@//db:1521/shop",
        "jdbc:oracle:thin:@db:1521:shop",
        "jdbc:derby:memory:shop",
    ],
)
def test_a_url_without_a_password_is_taken(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db/shop?user=me&password=hunter2",
        "jdbc:sqlserver://db;user=me;password=hunter2",
        "jdbc:mysql://me:hunter2@db/shop",
        "jdbc:mysql://me:hun/ter?2@db/shop",
        "jdbc:oracle:thin:me/hunter2@db:1521:shop",
        "jdbc:oracle:thin:me/hunter2@//db:1521/shop",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="the JDBC URL has a password") as raised:
        read_jdbc(None, url, table="reminders")  # type: ignore[arg-type]
    assert "hun" not in str(raised.value)

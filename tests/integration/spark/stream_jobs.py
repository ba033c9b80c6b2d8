"""A stream from the history into the queue, which a `Driver` runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Given = Mapping[str, str]


def follow(spark: Any, url: str, checkpoint: str, more: Given | None = None) -> None:
    """Schedule a task for each run that is new in the history, until there are no more by now."""
    runs = (
        spark.readStream.format("celery_delayq")
        .options(url=url, table="history", batchsize="50")
        .load()
        .selectExpr("`offset`", "ended + INTERVAL 100 YEARS AS at", "id AS run")
    )
    given = {"task": "audit.check", "idcolumn": "offset", "etacolumn": "at", "batchsize": "50"}
    query = (
        runs.writeStream.format("celery_delayq")
        .options(url=url, **{**given, **(more or {})})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

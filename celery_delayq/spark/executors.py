"""Changes the queue on executors, row by row, and sums up what became of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from celery_delayq.app import DelayQ
from celery_delayq.spark.access import Access, open_client

#: Record batches of a Spark task.
Batches = Iterator[pa.RecordBatch]

_OUTCOME_SCHEMA = pa.schema({"outcome": pa.string(), "number": pa.int64(), "why": pa.string()})

#: Most connections that cancel or remove in parallel, for any number of executors.
MAX_CONNECTIONS = 8


class Outcomes(NamedTuple):
    """Numbers of rows by outcome, and the reason of one refused row, or ``""``."""

    numbers: Mapping[Any, int]
    why: str = ""


def change_rows(
    rows: DataFrame,
    access: Access,
    change: Callable[[DelayQ, Batches], Outcomes],
    connections: int = MAX_CONNECTIONS,
) -> Outcomes:
    """Call *change* on executors with the rows, and return the sums.

    Each executor calls *change* with a client of the queue. At most *connections* calls run in
    parallel.
    """

    def run(batches: Batches) -> Batches:
        with open_client(access) as delayq:
            numbers, why = change(delayq, batches)
        found = {"outcome": [*numbers], "number": [*numbers.values()], "why": [why] * len(numbers)}
        yield pa.RecordBatch.from_pydict(found, _OUTCOME_SCHEMA)

    columns = "outcome STRING, number BIGINT, why STRING"
    done = rows.coalesce(connections).mapInArrow(run, columns)
    sums = done.groupBy("outcome").agg(F.sum("number"), F.max("why")).collect()
    numbers = {outcome: int(number) for outcome, number, _ in sorted(sums)}
    return Outcomes(numbers, max((why for *_, why in sums), default=""))

"""Computes the figures of a report in Spark. Times are ms since 1970."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from celery_delayq.charts.scales import Quantiles
from celery_delayq.model.scheduled import moment
from celery_delayq.spark.report.figures import AttemptCount, Figures, Reason, Step

MINUTE_MS, HOUR_MS = 60_000, 3_600_000

_DURATIONS = ("promotion", "wait", "lateness", "runtime")
_CELERY_STATES = {
    "succeeded": "SUCCESS",
    "failed": "FAILURE",
    "retried": "RETRY",
    "rejected": "REJECTED",
    "revoked": "REVOKED",
    "ignored": "IGNORED",
}

#: Names of grouping sets. A bit is set if the set lacks task, queue or hour, in this order.
_GROUPING_SETS = {0b111: "total", 0b011: "tasks", 0b101: "queues", 0b110: "hours"}

#: Quantiles of up to about so many runs are exact. For more runs the error of their rank is less
#: than 1/10000.
_QUANTILE_ACCURACY = 10_000

#: Most reasons in a report.
_MAX_REASONS = 50


def _quantiles(name: str) -> Column:
    return F.struct(
        F.count(name),
        F.count_if(F.col(name) < 0),
        F.percentile_approx(name, [0.5, 0.9, 0.99], _QUANTILE_ACCURACY),
        F.max(name),
    ).alias(name)


def _read(value: Any) -> Quantiles:
    runs, early, found, most = value
    p50, p90, p99 = found or (None, None, None)
    return Quantiles(runs, early, p50, p90, p99, most)


def by_kind(runs: DataFrame, first: int, last: int) -> dict[str, Any]:
    """Return the figures of all runs, and those by task, queue and hour."""
    sums = {
        "runs": F.count("*"),
        **{name: F.count_if(F.col("state") == state) for name, state in _CELERY_STATES.items()},
        "redelivered": F.count_if("redelivered"),
        "immediate": F.count_if(F.col("due").isNull()),
        "advanced": F.count_if("advanced"),
    }
    which = F.grouping_id().alias("which")
    rows = (
        runs.groupingSets([[], ["task"], ["queue"], ["hour"]], "task", "queue", "hour")
        .agg(
            which,
            F.struct(*(column.alias(name) for name, column in sums.items())).alias("sums"),
            *map(_quantiles, _DURATIONS),
        )
        .collect()
    )
    peaks = _peaks(runs)
    figures: dict[str, dict[Any, Figures]] = {"total": {}, "tasks": {}, "queues": {}, "hours": {}}
    for row in rows:
        kind = _GROUPING_SETS[row.which]
        key: Any = None if kind == "total" else row[kind[:-1]]
        begins, ends = (key, min(key + HOUR_MS, last)) if kind == "hours" else (first, last)
        minutes = max(ends - max(begins, first), 1000) / MINUTE_MS
        quantiles: dict[str, Any] = {name: _read(row[name]) for name in _DURATIONS}
        figures[kind][key] = Figures(
            **row.sums.asDict(),
            failure_rate=row.sums.failed / row.sums.runs,
            per_minute=row.sums.runs / minutes,
            peak_minute=peaks[kind, key],
            **quantiles,
        )
    by_runs = {
        name: dict(sorted(figures[name].items(), key=lambda pair: (-pair[1].runs, str(pair[0]))))
        for name in ("tasks", "queues")
    }
    hours = {moment(ms): figures["hours"][ms] for ms in sorted(figures["hours"])}
    return {"total": figures["total"][None], **by_runs, "hours": hours}


def _peaks(runs: DataFrame) -> dict[tuple[str, Any], int]:
    """Return the number of runs in the busiest minute, by kind and key."""
    minutes = runs.groupingSets(
        [["minute", "hour"], ["minute", "task"], ["minute", "queue"]],
        *("minute", "hour", "task", "queue"),
    ).agg(F.grouping_id().alias("which"), F.count("*").alias("ended"))
    found: dict[tuple[str, Any], int] = {("total", None): 0}
    kinds = {0b0011: "hours", 0b0101: "tasks", 0b0110: "queues"}
    for row in minutes.groupBy("which", "hour", "task", "queue").agg(F.max("ended")).collect():
        kind = kinds[row[0]]
        found[kind, row[kind[:-1]]] = row[-1]
        found["total", None] = max(found["total", None], row[-1])
    return found


def attempts(runs: DataFrame) -> tuple[AttemptCount, ...]:
    by_id = runs.groupBy("task", "id").count().withColumnRenamed("count", "attempts")
    rows = by_id.groupBy("task", "attempts").count().collect()
    return tuple(sorted((AttemptCount(*row) for row in rows), key=lambda x: (x.task, x.attempts)))


def reasons(runs: DataFrame) -> tuple[Reason, ...]:
    rows = (
        runs.where(F.col("state").isin("FAILURE", "RETRY", "REJECTED", "REVOKED"))
        .groupBy("task", "state", "reason")
        .agg(F.count("*").alias("runs"), F.max("ended").alias("last"))
        .orderBy(F.desc("runs"), F.desc("last"), "task", "state", "reason")
        .limit(_MAX_REASONS)
        .collect()
    )
    return tuple(
        Reason(task, state, reason, number, moment(ms)) for task, state, reason, number, ms in rows
    )


def timeline(runs: DataFrame, begins: int, last: int, step: int) -> tuple[Step, ...]:
    """Return planned and started runs in steps of *step* seconds."""
    width = step * 1000
    low, high = begins // width, last // width

    def events(what: str, time: str) -> DataFrame:
        at = F.least(F.greatest(F.floor(F.col(time) / width), F.lit(low)), F.lit(high))
        late = F.col("lateness") if what == "planned" else F.lit(None).cast("bigint")
        return runs.where(F.lit(True) if what == "ended" else F.col("planned")).select(
            at.alias("at"), F.lit(what).alias("what"), "state", late.alias("lateness")
        )

    times = events("planned", "due").unionAll(events("started", "started"))
    what, state = F.col("what"), F.col("state")
    ended = what == "ended"
    rows = (
        times.unionAll(events("ended", "ended"))
        .groupBy("at")
        .agg(
            *(F.count_if(what == each).alias(each) for each in ("planned", "started", "ended")),
            F.count_if(ended & (state == "FAILURE")).alias("failed"),
            F.count_if(ended & (state == "RETRY")).alias("retried"),
            _quantiles("lateness"),
        )
        .collect()
    )
    found = {row.at: row for row in rows}
    return tuple(_steps(found, low, high, width))


def _steps(found: Mapping[int, Any], low: int, high: int, width: int) -> Iterator[Step]:
    behind = 0
    for place in range(low, high + 1):
        at, row = moment(place * width), found.get(place)
        if row is None:
            yield Step(at, behind=behind)
            continue
        behind += row.planned - row.started
        yield Step(
            at,
            row.planned,
            row.started,
            row.started - row.planned,
            behind,
            row.ended,
            row.failed,
            row.retried,
            _read(row.lateness),
        )

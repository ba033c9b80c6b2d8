"""The flights of 2013 as a data frame, and their rows for the queue."""

from __future__ import annotations

import zipfile
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from example_project.flights import FlightDataError, data_file, midnight
from example_project.plan import LEAD, Kind

ZONE = "America/New_York"
#: Time before the departure, as in the demonstration of one day.
REMINDER_LEAD = LEAD[Kind.BOARDING]


def unpack(folder: Path) -> Path:
    """Unpack the CSV file of the data into a folder; return its path."""
    with zipfile.ZipFile(data_file()) as archive:
        return Path(archive.extract("flights.csv", folder))


def read_flights(
    spark: SparkSession, path: Path, first: date, limit: int | None = None
) -> DataFrame:
    """Read flights: id, day, passengers' view, the scheduled departure and the delay.

    Parameters
    ----------
    limit : int
     None
        Number of flights, from the day `first` on; those of January follow those of December.

    Raises
    ------
    FlightDataError
        Clock times of New York and UTC times in the data do not agree.
    """
    csv = spark.read.csv(str(path), header=True, nullValue="NA")
    number = {
        name: F.col(name).cast("int")
        for name in ("year", "month", "day", "flight", "sched_dep_time", "dep_delay")
    }
    clock = number["sched_dep_time"]
    parts = (number["year"], number["month"], number["day"])
    hour, minute = F.floor(clock / 100), clock % 100
    scheduled = F.make_timestamp(*parts, hour, minute, F.lit(0), F.lit(ZONE))
    day = F.make_date(*parts)
    flights = csv.select(
        F.concat_ws("-", day, "carrier", "flight", "origin").alias("flight"),
        day.alias("day"),
        "carrier",
        number["flight"].alias("number"),
        "origin",
        F.col("dest").alias("destination"),
        scheduled.alias("scheduled"),
        # A clock time without a date may be of the next day; the delay tells which day it is.
        F.when(F.col("dep_time").isNotNull(), number["dep_delay"]).alias("delay"),
        F.to_timestamp("time_hour").alias("hour"),
    )
    if limit is not None:
        before = F.col("scheduled") < F.lit(midnight(first))
        flights = flights.orderBy(before, "scheduled", "flight").limit(limit)
    flights = flights.cache()
    wrong = flights.where(F.date_trunc("hour", "scheduled") != F.col("hour")).first()
    if wrong is not None:
        raise FlightDataError(f"{wrong.flight} does not leave within the hour of its time_hour")
    return flights.drop("hour")


def is_late() -> Column:
    """Return whether a flight left later than scheduled."""
    return F.coalesce(F.col("delay"), F.lit(0)) > 0


def is_cancelled() -> Column:
    """Return whether a flight never left."""
    return F.col("delay").isNull()


def departure_known() -> Column:
    """Return when a flight departs by the news; `None` if it is cancelled."""
    late_by = F.when(is_late(), F.col("delay")).otherwise(0)
    departure = F.col("scheduled") + F.make_dt_interval(mins=late_by)
    return F.when(~is_cancelled(), departure)


def reminded() -> Column:
    """Return when passengers are reminded, by the column `departure`."""
    before = F.lit(REMINDER_LEAD // timedelta(minutes=1))
    return F.col("departure") - F.make_dt_interval(mins=before)


def rows(flights: DataFrame, remind_at: Column) -> DataFrame:
    """Return the rows for the queue: the key, the due, and the arguments of the task."""
    there = F.from_utc_timestamp("departure", ZONE)
    return flights.select(
        "flight",
        remind_at.alias("remind_at"),
        "carrier",
        "number",
        "origin",
        "destination",
        F.date_format(there, "yyyy-MM-dd HH:mm").alias("departs"),
    )

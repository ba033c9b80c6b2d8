"""Show that Spark works, and its effect on the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_POLL_INTERVAL_S = 0.25


@contextmanager
def watching(console: Console, spark: SparkSession, waits: Callable[[], int]) -> Iterator[None]:
    """Show the tasks of Spark's stage as a bar, and how many tasks `waits` counts as scheduled."""
    columns = (
        SpinnerColumn(finished_text=" "), BarColumn(20),
        TextColumn("[dim]{task.fields[stage]}"), TextColumn("{task.fields[waits]:,} in the queue"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=None, stage="", waits=waits())
        over = threading.Event()

        def look() -> None:
            while not over.wait(_POLL_INTERVAL_S):
                stage, done, total = _stage(spark)
                progress.update(
                    bar, completed=done, total=total or None, stage=stage, waits=waits()
                )

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        progress.update(bar, completed=1, total=1, stage="", waits=waits())


def _stage(spark: SparkSession) -> tuple[str, int, int]:
    """Return the name of the running stage, its finished tasks, and all its tasks."""
    tracker = spark.sparkContext.statusTracker()
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            name = f"stage {stage_id}: {stage.numCompletedTasks}/{stage.numTasks}"
            return name, stage.numCompletedTasks, stage.numTasks
    return "planning", 0, 0

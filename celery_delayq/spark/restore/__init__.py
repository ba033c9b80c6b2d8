"""Restore the schedule or dead letters from an archive.

::

    python -m celery_delayq.spark restore --folder s3a://shop/delayq --dry-run
    python -m celery_delayq.spark restore --folder s3a://shop/delayq --overdue skip
    python -m celery_delayq.spark restore --folder s3a://shop/delayq --table dead_letters \\
        --task shop.ship --since 2030-01-31

The job may be killed and repeated: entries that are in Redis stay as they are.
"""

from __future__ import annotations

from celery_delayq.spark.restore.job import RestoreOptions as Options
from celery_delayq.spark.restore.job import RestoreSummary as Summary
from celery_delayq.spark.restore.job import command, restore

__all__ = ["Options", "Summary", "command", "restore"]

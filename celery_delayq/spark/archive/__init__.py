"""Archive the history, dead letters and the schedule in Parquet files, each row once.

::

    python -m celery_delayq.spark archive --folder s3a://shop/delayq
    python -m celery_delayq.spark archive --folder s3a://shop/delayq \\
        --tables dead_letters --older-than 604800 --remove

The job may be killed and repeated: the next job adds the missing rows.
:mod:`celery_delayq.spark.restore` puts an archive back.

In Python::

    from celery_delayq.spark.archive import Options, archive
    summary = archive(spark, "s3a://shop/delayq", Options())
"""

from __future__ import annotations

from celery_delayq.spark.archive.commits import ArchiveError
from celery_delayq.spark.archive.job import ArchiveOptions as Options
from celery_delayq.spark.archive.job import ArchiveSummary as Summary
from celery_delayq.spark.archive.job import archive, command

__all__ = ["ArchiveError", "Options", "Summary", "archive", "command"]

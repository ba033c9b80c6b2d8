"""Compare pending rows of a database with the queue, and schedule the missing ones.

::

    python -m celery_delayq.spark reconcile --jdbc-url jdbc:postgresql://db/shop \\
        --query "SELECT flight, remind_at, gate, created FROM reminders WHERE NOT sent" \\
        --task mail.remind --key flight --eta remind_at --created-column created

Rows and entries are joined by the id ``<task>:<key>`` that the writer of the data source gives.
Only rows that are missing or have changed are written, so the next job completes one that failed,
and a second job finds nothing to do.
"""

from __future__ import annotations

from celery_delayq.spark.jdbc import read_jdbc
from celery_delayq.spark.reconcile.cli import command
from celery_delayq.spark.reconcile.job import reconcile
from celery_delayq.spark.reconcile.options import ReconcileOptions as Options
from celery_delayq.spark.reconcile.options import ReconcileSummary as Summary
from celery_delayq.spark.reconcile.options import TooManyOrphans

__all__ = ["Options", "Summary", "TooManyOrphans", "command", "read_jdbc", "reconcile"]

"""Compare pending rows of a database with the queue, and schedule the missing rows.

::

    python -m celery_delayq.spark reconcile --jdbc-url jdbc:postgresql://db/shop \\
        --query "SELECT flight, remind_at, gate, created FROM reminders WHERE NOT sent" \\
        --task mail.remind --key flight --eta remind_at --created-column created

Rows and entries are joined by the id ``<task>:<key>``, which the writer of the data source uses.
Only missing and changed rows are written. So after a failed job the next job writes the rest, and
after a complete job the next job writes nothing.
"""

from __future__ import annotations

from celery_delayq.spark.jdbc import read_jdbc
from celery_delayq.spark.reconcile.job import command, reconcile
from celery_delayq.spark.reconcile.options import ReconcileOptions as Options
from celery_delayq.spark.reconcile.options import ReconcileSummary as Summary
from celery_delayq.spark.reconcile.options import TooManyOrphans

__all__ = ["Options", "Summary", "TooManyOrphans", "command", "read_jdbc", "reconcile"]

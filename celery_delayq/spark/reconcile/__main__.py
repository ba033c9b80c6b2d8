"""``python -m celery_delayq.spark.reconcile``."""

from __future__ import annotations

from celery_delayq.spark.reconcile import command

if __name__ == "__main__":
    command(prog_name="reconcile")

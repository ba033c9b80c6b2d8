"""``python -m celery_delayq.spark.restore``."""

from __future__ import annotations

from celery_delayq.spark.restore import command

if __name__ == "__main__":
    command(prog_name="restore")

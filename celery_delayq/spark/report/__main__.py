"""``python -m celery_delayq.spark.report``."""

from __future__ import annotations

from celery_delayq.spark.report import command

if __name__ == "__main__":
    command(prog_name="report")

"""``python -m celery_delayq.spark.archive``."""

from __future__ import annotations

from celery_delayq.spark.archive import command

if __name__ == "__main__":
    command(prog_name="archive")

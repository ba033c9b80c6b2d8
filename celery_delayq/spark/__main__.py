"""``python -m celery_delayq.spark <job> …``."""

from __future__ import annotations

import click

from celery_delayq.errors import ConfigError
from celery_delayq.spark import check


@click.group()
def main() -> None:
    """Apache Spark jobs on the queue (celery_delayq).

    Exit codes: 0 for success, 1 after an error or refused rows, 2 for wrong options. --json prints
    JSON to standard output.
    """


def _add_jobs() -> None:
    try:
        check()
    except ConfigError as exc:
        raise SystemExit(f"Error: {exc}") from exc
    from celery_delayq.spark import archive, reconcile, report, restore

    for job in (reconcile, report, archive, restore):
        main.add_command(job.command)


if __name__ == "__main__":
    _add_jobs()
    main(prog_name="python -m celery_delayq.spark")

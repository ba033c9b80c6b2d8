"""Report how tasks ran and what is scheduled, from the history of runs or an archive of it.

::

    python -m celery_delayq.spark report --since 2026-01-31 --html report.html

In Python::

    from celery_delayq.spark.report import Options, page, report
    run_report = report(spark, Options(access={"url": "redis://localhost:6379/0"}))
    run_report.tasks["mail.remind"].lateness.p99          # ms
    Path("report.html").write_text(page(run_report), "utf-8")
"""

from __future__ import annotations

from celery_delayq.spark.report.figures import RunReport as Report
from celery_delayq.spark.report.html_page import page
from celery_delayq.spark.report.job import ReportOptions as Options
from celery_delayq.spark.report.job import command, report, save

__all__ = ["Options", "Report", "command", "page", "report", "save"]

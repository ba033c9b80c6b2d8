"""An app whose module of tasks makes the extension: too late for Flower."""

from __future__ import annotations

from celery import Celery

app = Celery("late", include=["late_flower_tasks"])

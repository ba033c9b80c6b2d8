"""The tasks of `late_flower`."""

from __future__ import annotations

from late_flower import app  # type: ignore[import-not-found]

from celery_delayq import DelayQ

DelayQ(app)

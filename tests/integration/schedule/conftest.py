"""How long ``schedule_many`` waits."""

from __future__ import annotations

import pytest

from celery_delayq.schedule import schedule_many


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches fill, however slow this machine is."""
    monkeypatch.setattr(schedule_many, "FLUSH_SECONDS", 60.0)

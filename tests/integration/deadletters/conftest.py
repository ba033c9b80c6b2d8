"""A dead letter of a task that no worker has run."""

from __future__ import annotations

import pytest

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import DeadLetter
from tests.apps.retry_tasks import RetryScene


@pytest.fixture
def dead_letter(delayq: DelayQ, scene: RetryScene) -> DeadLetter:
    """The only dead letter: of the task "a", which ends when it is run."""
    scene.send("plain", "done")
    scene.dead_letter_ready()
    [found] = delayq.dead_letters()
    return found

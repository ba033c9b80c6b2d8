"""Fixtures that several tests of the command line share."""

from __future__ import annotations

import pytest

from celery_delayq import DelayQ
from tests.support.dead_letters import details, message, stored


@pytest.fixture
def four_dead_letters(delayq: DelayQ) -> None:
    """Four dead letters that died a day, an hour, a minute and a second ago."""
    now = delayq.store.now_ms()
    keep = delayq.store.dead_letters.restore
    kinds = (
        ("nine", "celery", "shop.mail", 86_400, "Timeout", "root-1", None),
        ("ten", "celery", "shop.mail", 3600, "Declined", "root-1", "group-1"),
        ("eleven", "bills", "shop.bill", 60, "Timeout", None, "group-1"),
        ("twelve", "bills", "shop.bill", 1, None, None, None),
    )
    for id, queue, task, ago, exception, root, group in kinds:
        died = now - ago * 1000
        reason = f"failed after 3 retries: {exception}" if exception else "killed its worker"
        told = details(exception) if exception else b""
        data = stored(died, reason, message(id, task, root_id=root, group=group), told)
        keep(queue, [(id, died, data)])

"""What ``DelayQ`` answers about pauses and entries: aware times, and nothing secret."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.support.cli import CommandLine


def redis_time(delayq: DelayQ) -> datetime:
    return datetime.fromtimestamp(delayq.store.now_ms() / 1000, timezone.utc)


@pytest.mark.parametrize("kind", ["queue", "task"])
def test_paused_tells_since_when_as_an_aware_time_in_utc(
    app: Celery, delayq: DelayQ, kind: str
) -> None:
    before = redis_time(delayq)
    delayq.pause(**{kind: "mail"})
    after = redis_time(delayq)

    paused = delayq.paused()

    [since] = getattr(paused, f"{kind}s").values()
    assert paused._asdict() == {"queues": {}, "tasks": {}, f"{kind}s": {"mail": since}}
    assert before <= since <= after
    assert since.utcoffset() == timedelta(0)
    told = CommandLine(app)("paused", "--json").json
    assert told == {"queues": {}, "tasks": {}, f"{kind}s": {"mail": since.isoformat()}}


def test_the_repr_of_an_entry_shows_what_is_needed_and_nothing_secret(
    app: Celery, delayq: DelayQ
) -> None:
    app.send_task(
        "tasks.add",
        ("s3cret", 1),
        {"token": "s3cret"},
        eta=datetime(2100, 1, 2, 3, 4, 5, 678000, timezone.utc),
        task_id="a",
        queue="mail",
        headers={"authorization": "s3cret"},
        unique_key="s3cret",
    )

    for entry in (*delayq.list(), delayq.get("a")):
        assert repr(entry) == (
            "<ScheduledTask 'a' 'tasks.add' in 'mail': "
            "scheduled, due 2100-01-02T03:04:05.678000+00:00>"
        )

"""Data that others write into Redis cannot steer the terminal of `fsck`."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.cli import CommandLine

#: Clears the screen and sets its title; one such byte alone is a control in some terminals.
STEERING = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"


@pytest.mark.parametrize("columns", [80, 200])
def test_fsck_shows_no_control_of_an_id_or_a_queue(
    app: Celery, delayq_redis: RedisUnderTest, columns: int
) -> None:
    app.send_task("t", task_id=f"id {STEERING}", queue=f"queue {STEERING}", countdown=60)
    delayq_redis.client.zrem(f"{{queue {STEERING}}}:due", f"id {STEERING}")

    ran = CommandLine(app)("fsck", columns=columns)

    assert ran.code == 1
    assert ran.out.replace("\n", "").isprintable()
    shown = "".join(ran.out.split())
    assert r"id\x1b[2J" in shown
    # The queue has a column of its own, in several lines.
    assert ran.out.count(r"\x1b[2J") > 1 if columns == 200 else "queue" in shown


def test_fsck_of_an_unknown_queue_shows_no_control_of_those_that_are_known(
    app: Celery, delayq: DelayQ
) -> None:
    app.send_task("t", queue=f"queue {STEERING}", countdown=60)

    ran = CommandLine(app)("fsck", "--queue", "other")

    assert ran.code == 1
    assert ran.err.replace("\n", "").isprintable()
    assert r"queue \x1b[2J" in ran.err

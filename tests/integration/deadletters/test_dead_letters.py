"""What only Redis' dead letters tell: their bytes, and messages that are none of Celery's."""

from __future__ import annotations

import json

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from tests.apps.retry_tasks import RetryScene
from tests.support import TIMEOUT


def test_the_message_of_a_failed_task_is_kept_byte_for_byte(
    delayq: DelayQ, scene: RetryScene
) -> None:
    scene.send("plain", "ValueError")
    [sent] = scene.client.lrange("celery", 0, -1)
    scene.start()

    scene.wait_dead("a")

    assert next(iter(delayq.dead_letters())).dead_lettered.message == sent


def test_what_was_rejected_or_not_known_or_late_or_no_message(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    scene.send("quick", ["reject", "not to my taste"], id="rejected")
    app.send_task("who.knows", task_id="unknown", kwargs={"x": 1})
    scene.send("brief", "done", id="late", countdown=0.01)
    scene.wait_past(scene.now() + 0.6)
    junk = {b"\xff\x00 junk", b'"text"', b"{}", b""}
    scene.client.lpush("celery", *junk)
    scene.start()
    wait_until(lambda: delayq.count_dead() == 7, TIMEOUT, "all of them are dead")
    scene.wait_empty()

    found = {dead_letter.task_id: dead_letter for dead_letter in delayq.dead_letters()}
    rejected, unknown, late = (found[id] for id in ("rejected", "unknown", "late"))
    assert (rejected.reason, rejected.retries, rejected.deliveries) == ("not to my taste", 0, 1)
    assert (unknown.reason, unknown.task) == ("unknown task 'who.knows'", "who.knows")
    assert (unknown.args, unknown.kwargs) == ([], {"x": 1})
    assert late.reason.startswith("skipped: ")
    assert late.due is not None
    assert late.due < late.died

    strange = [dead_letter for dead_letter in delayq.dead_letters() if not dead_letter.task_id]
    assert {dead_letter.dead_lettered.message for dead_letter in strange} == junk
    for dead_letter in strange:
        told = (dead_letter.task, dead_letter.args, dead_letter.traceback, dead_letter.due)
        assert told == (None,) * 4
        assert dead_letter.reason
        json.dumps(dead_letter.as_dict())
        assert delayq.replay(dead_letter) is Outcome.UNREADABLE
        assert delayq.purge(dead_letter) is Outcome.DONE
    assert delayq.count_dead() == 3

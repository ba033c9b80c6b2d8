"""The block of docs/remove.md deletes all keys of the package, and no others."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.model.names import QUEUE_KEYS
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support.dead_letters import fill
from tests.support.page_blocks import blocks_of
from tests.support.scene import StartWorker

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs" / "remove.md"


#: Queues whose names mean others to a glob or a regular expression, or are no UTF-8.
QUEUES = ("mail[1]", "a*", "b?", "c.d", "e|f", "{g}", "\\h")
NO_UTF8 = b"\xff"
#: Names of Celery's temporary queues, which are in no registry.
UUID = b"0a1b2c3d-0123-4567-89ab-0123456789ab"
TEMPORARY = (
    UUID,
    UUID + b".reply.celery.pidbox",
    b"celeryev." + UUID,
    b"mail@host-1.celery.pidbox",
)


def use_all(app: Celery) -> None:
    """Leave keys of each kind."""
    delayq = DelayQ.of(app)
    for queue in QUEUES:
        app.send_task("tasks.add", (1, 2), countdown=3600, queue=queue)
    app.send_task("tasks.add", (1, 2), countdown=3600, unique_key="a")
    app.tasks["tasks.add"].limit = Limit("adding", rate=1, key="{x}")
    app.tasks["tasks.add"].apply_async((1, 2), countdown=3600)
    delayq.periodic.add("nightly", 3600, "tasks.add", (1, 2))
    delayq.pause(task="tasks.other")
    app.control.revoke("b")
    fill(delayq, 2)


def test_the_block_deletes_our_keys_only(
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": "shop."})
    use_all(app)
    use_all(make_app())
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    worker.stop()
    [block] = [each for each in blocks_of(PAGE) if each.language == "python"]
    code = block.code.replace("redis://localhost:6379/0", delayq_redis.url)
    others = {
        *(b"other", b"shop.other", b"{other}", b"{other}:due", b"{celery}:mine", b"{celery}:dues"),
        *(b"{mail1}:due", b"{abc}:due", b"{bb}:due", b"{cxd}:due", b"{e}:due", b"{a*}:mine"),
        *(b"{%b}:mine" % UUID, b"{%b.reply}:totals" % UUID, b"{celeryev.x}:totals"),
        *(b"delayqs:mine", b"shop.{celery}:mine", b"shop.{abc}:due", b"x{celery}:due"),
    }
    for name in others:
        delayq_redis.client.set(name, "1")
    for begin in (b"shop.", b""):
        delayq_redis.client.hset(begin + b"delayq:queues", NO_UTF8, "{}")
        delayq_redis.client.set(begin + b"{" + NO_UTF8 + b"}:due", "1")
        for queue, word in product(TEMPORARY, sorted(QUEUE_KEYS)):
            delayq_redis.client.set(begin + b"{%b}:%b" % (queue, word.encode()), "1")

    capsys.readouterr()
    for prefix in ('b"shop."', 'b""'):
        names: dict[str, Any] = {}
        exec(code.replace(', b""', f", {prefix}"), names)
        assert {*names["words"].split()} == QUEUE_KEYS

    kept = {key for key in delayq_redis.client.scan_iter() if b"_kombu" not in key}
    assert kept == others
    printed = capsys.readouterr().out
    assert str(b"{%b.reply}:totals" % UUID) in printed
    assert str(b"{other}:due") in printed
    assert "mine" not in printed

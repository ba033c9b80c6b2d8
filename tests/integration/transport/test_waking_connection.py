"""Greenlets that wait for a reply when their connection is closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT

#: Closes a connection while a greenlet waits there for an element that never comes.
WAIT_AND_CLOSE = """
import sys
import {pool}
{patch}
from kombu import Connection
import celery_delayq

connection = Connection(sys.argv[1])
client = connection.default_channel.client
waiting = {pool}.spawn(lambda: client.blpop("nothing", 0))
while client.info("clients")["blocked_clients"] == 0:
    {pool}.sleep(0.01)
connection.close()
with {pool}.Timeout(20):
    try:
        {join}
    except Exception as exc:  # redis-py's own, of several classes
        print("ended")
"""


@pytest.mark.parametrize(
    ("pool", "patch", "join"),
    [
        ("eventlet", "eventlet.monkey_patch()", "waiting.wait()"),
        ("gevent", "import gevent.monkey; gevent.monkey.patch_all()", "waiting.get()"),
    ],
)
def test_a_greenlet_does_not_wait_for_a_reply_on_a_closed_connection(
    pool: str, patch: str, join: str, delayq_redis: RedisUnderTest
) -> None:
    script = WAIT_AND_CLOSE.format(pool=pool, patch=patch, join=join)

    ended = subprocess.run(
        [sys.executable, "-c", script, f"delayq+{delayq_redis.url}"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )

    assert ended.stdout == "ended\n", ended.stderr

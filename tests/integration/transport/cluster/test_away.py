"""Remote control while the shard of its bindings, or of an asker's replies, is away."""

from __future__ import annotations

from itertools import count

import pytest
from kombu.pidbox import Mailbox

from celery_delayq.model.cluster_tags import tag_of
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT
from tests.support.cluster import TAGS, Cluster

pytestmark = pytest.mark.full


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    return shared_cluster


def have_replies_in(mailbox: Mailbox, tag: str) -> None:
    """Have the queue of replies belong to a hash tag; its name comes from process and thread."""
    names = (f"asker-{number}" for number in count())
    own = next(name for name in names if tag_of(f"{name}.reply.celery.pidbox", TAGS) == tag)
    mailbox.__class__ = type("Asker", (Mailbox,), {"oid": own})


def test_workers_and_askers_go_on(scene: ClusterScene) -> None:
    shard, bindings, replies = scene.shard(11), TAGS[0], TAGS[5]
    worker = scene.work(11, pool="threads")
    have_replies_in(scene.app.control.mailbox, replies)
    inspect = scene.app.control.inspect(timeout=1)

    def answers() -> bool:
        return bool(inspect.ping() == {worker.hostname: {"ok": "pong"}})

    wait_until(answers, TIMEOUT, "an answer")

    with scene.cluster.without(bindings):
        wait_until(answers, TIMEOUT, "an answer without bindings")
    wait_until(answers, TIMEOUT, "an answer, when the binding is stored again")

    with scene.cluster.without(replies):
        assert inspect.ping() is None  # as where no worker answers
        worker.wait_log("reply of remote control dropped, the shard is away")
        scene.send("plain", id="a", queue=shard.queue)
        scene.wait_state("a")

    wait_until(answers, TIMEOUT, "an answer")
    assert "Control command error" not in worker.log
    assert "Connection to broker lost" not in worker.log

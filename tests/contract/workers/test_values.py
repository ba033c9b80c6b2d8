"""Values that are sent with a task arrive on every broker: context, and webhooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_delayq.model.context import context
from celery_delayq.testing import POOLS, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.webhook import TASK_NAME, DeliveryRefused, verify
from tests.integration.conftest import MakeApp, module_app
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.context import ADA, ContextScene, with_context_tasks
from tests.support.receiver import Receiver
from tests.support.scene import StartWorker


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return with_context_tasks(make_app())


@pytest.fixture
def look(app: Celery) -> Any:
    return app.tasks["look"]


@pytest.fixture
def scene(
    broker: Broker, app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> ContextScene:
    return broker.show(ContextScene(delayq_redis, app, delayq_worker))


@pytest.mark.parametrize("pool", POOLS)
def test_the_handler_has_what_was_bound_where_its_task_was_sent(
    look: Any, scene: ContextScene, pool: str
) -> None:
    with context(**ADA):
        look.delay("now")
        look.apply_async(("later",), countdown=0.2)
        look.apply_async(("own",), countdown=0.2, context={"user": "bob", "n": None})
        look.apply_async(("none",), context=False)
    look.delay("outside")
    scene.start(pool)

    assert scene.contexts(5) == {
        "now": ADA,
        "later": ADA,
        "own": {"user": "bob", "roles": ADA["roles"]},
        "none": {},
        "outside": {},
    }


def test_a_retry_has_what_was_bound(look: Any, scene: ContextScene) -> None:
    scene.start("prefork")
    with context(**ADA):
        calls = [
            look.delay("retry", "retry"),
            look.apply_async(("autoretry", "autoretry"), countdown=0.2),
            look.apply_async(("own", "retry"), context={"user": "bob"}),
        ]
    assert [call.get(timeout=TIMEOUT) for call in calls] == ["retry", "autoretry", "own"]

    runs = {(run["name"], run["retries"]): run["context"] for run in scene.read()}
    assert runs == {
        **{(name, retries): ADA for name in ("retry", "autoretry") for retries in (0, 1)},
        **{("own", retries): {**ADA, "user": "bob"} for retries in (0, 1)},
    }


def test_the_whole_canvas_has_it(look: Any, app: Celery, scene: ContextScene) -> None:
    scene.start("threads", concurrency=2)
    with context(**ADA):
        later = look.si("chain 2").set(countdown=0.2)
        chain(look.si("chain 1"), later, group(look.si("chain 3a"), look.si("chain 3b")))()
        group(look.si("group 1"), look.si("group 2").set(context={"user": "bob"}))()
        chord([look.si("head 1"), look.si("head 2").set(countdown=0.2)])(look.si("body"))
        errors = [app.signature("failed"), app.signature("told")]
        look.apply_async(("linked", "fail"), link_error=errors, link=look.si("never"))
        look.apply_async(("link",), link=[look.si("callback 1"), look.si("callback 2")])
        app.tasks["replacing"].delay()
    look.delay("nobody", "canvas")

    replaced = {**ADA, "step": "replaced"}
    assert scene.contexts(23) == {
        **{f"chain {n}": ADA for n in ("1", "2", "3a", "3b")},
        "group 1": ADA,
        "group 2": {**ADA, "user": "bob"},
        **dict.fromkeys(("head 1", "head 2", "body", "linked", "failed", "told"), ADA),
        **dict.fromkeys(("link", "callback 1", "callback 2"), ADA),
        **dict.fromkeys(("r1", "r2", "r3"), replaced),
        **{name: {} for name in ("nobody", "a", "b", "c", "then")},
    }


# -- webhooks


@pytest.fixture
def post(broker: Broker, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The task of an app on the broker of this test."""
    from tests.apps import webhook_tasks

    with module_app(webhook_tasks.app, delayq_redis, broker.url):
        yield webhook_tasks.app.tasks[TASK_NAME]


def died(post: Any) -> list[str]:
    """Return the ids of the dead letters."""
    return [dead_letter.id for dead_letter in post.app._delayq.dead_letters()]


@pytest.mark.parametrize("pool", POOLS)
def test_every_pool_sends_delayed_webhooks_that_the_receiver_can_check(
    pool: str, delayq_worker: StartWorker, post: Any
) -> None:
    from tests.apps.webhook_tasks import SECRET

    delayq_worker("tests.apps.webhook_tasks:app", pool=pool)
    with Receiver(200) as receiver:
        result = post.apply_async(
            (receiver.url("/orders"), {"id": 7}), {"headers": {"X-A": "b"}}, countdown=0.2
        )

        assert result.get(timeout=TIMEOUT) == 200

    [request] = receiver.requests
    assert verify(SECRET, request.headers, request.body) == result.id
    assert json.loads(request.body) == {"id": 7}
    assert request.headers["X-A"] == "b"


def test_a_webhook_is_tried_again_under_its_id_and_is_a_dead_letter_in_the_end(
    delayq_worker: StartWorker, post: Any
) -> None:
    delayq_worker("tests.apps.webhook_tasks:app", pool="threads")
    with Receiver(500, 503, 200, 410) as receiver:
        result = post.apply_async((receiver.url(), {"id": 7}), retry_intervals=(0.05, 0.05))
        assert result.get(timeout=TIMEOUT) == 200
        refused = post.apply_async((receiver.url(),))
        with pytest.raises(DeliveryRefused, match="410"):
            refused.get(timeout=TIMEOUT)

    told = [(request.headers["Idempotency-Key"], request.body) for request in receiver.requests]
    assert told[:3] == [(result.id, b'{"id":7}')] * 3
    wait_until(lambda: died(post) == [refused.id], TIMEOUT, "it is a dead letter")

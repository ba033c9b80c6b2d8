"""An app with a limit, and tasks that wait in its lanes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit

#: Fair, so that each due task waits in its lane until a worker takes it.
STRIPE = Limit("stripe", rate="100/m", burst=20, concurrency=8, key="{customer}", fair=True)

Hold = Callable[..., list[str]]


def _pay(customer: str, amount: int = 5) -> None:
    """Stand for any task."""


@pytest.fixture
def hold(app: Celery, delayq: DelayQ) -> Hold:
    """Send due tasks of customers, which are held; return their ids."""
    pay = app.task(name="shop.pay", limit=STRIPE, acks_late=True, shared=False)(_pay)
    delayq.store.task_limits.announce({"stripe": STRIPE.definition.text})
    delayq.store.register("celery")

    def send(*customers: str, queue: str = "celery") -> list[str]:
        delayq.store.register(queue)
        return [pay.apply_async((each,), queue=queue).id for each in customers]

    return send

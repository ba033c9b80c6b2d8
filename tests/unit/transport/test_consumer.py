"""When a consumer asks for messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.integration import worker
from celery_delayq.transport.consumer import Consumer
from celery_delayq.transport.prefetch import Prefetch

#: What a channel may have handed out.
PREFETCH = 8


@pytest.mark.parametrize(
    ("handed_out", "backlog", "leased", "asks"),
    [
        (0, 0, True, True),
        (7, 0, True, True),
        (7, 1, True, False),
        (4, 1, True, True),
        (8, 0, True, False),
        (8, 1, True, False),
        (8, 0, False, True),
    ],
    ids=[
        "nothing is handed out",
        "the pool has nothing that waits",
        "the pool has enough to do",
        "half of the prefetch is free",
        "the prefetch is used up",
        "the prefetch is used up and tasks wait",
        "only queues without leases are consumed",
    ],
)
def test_it_asks_where_it_may_take_a_message_and_that_is_worth_a_request(
    handed_out: int,
    backlog: int,
    leased: bool,
    asks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "backlog", lambda: backlog)
    qos = SimpleNamespace(
        prefetch_count=PREFETCH, can_consume_max_estimate=lambda: PREFETCH - handed_out
    )
    nothing: Any = SimpleNamespace()
    consumer = Consumer(nothing, nothing, nothing, Prefetch(qos), nothing, nothing)
    consumer.serves_worker = True
    consumer.leased_queues = frozenset({"q"} if leased else ())

    assert consumer.has_nothing_to_send is not asks

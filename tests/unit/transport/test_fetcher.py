"""When a fetcher asks for messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.integration import worker
from celery_delayq.transport.fetcher import Fetcher

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
    fetcher: Any = Fetcher.__new__(Fetcher)
    fetcher.taken, fetcher._requests, fetcher._popped_wait = [], [], False
    fetcher._channel = SimpleNamespace(
        qos=SimpleNamespace(
            prefetch_count=PREFETCH,
            can_consume_max_estimate=lambda: PREFETCH - handed_out,
        ),
        asks_for_each=False,
        serves_worker=True,
        leased_queues=frozenset({"q"} if leased else ()),
        fetched=0,
    )

    assert fetcher.is_content is not asks

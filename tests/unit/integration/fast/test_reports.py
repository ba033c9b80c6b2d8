"""A child of a prefork pool pickles plain reports in the plain way."""

from __future__ import annotations

from typing import Any

import pytest
from billiard.queues import _SimpleQueue
from billiard.reduction import ForkingPickler

from celery_delayq.integration.fast import reports

BEGUN = (1, (7, None, 0.5, 4711, None))


class Special:
    """What billiard pickles in a way of its own, as it does sockets and connections."""


def test_plain_reports_are_pickled_here_and_others_by_billiard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_billiard: list[Any] = []

    def pickled(cls: Any, message: Any, protocol: Any = None) -> Any:
        by_billiard.append(message)
        return dumps(cls, message, protocol)

    dumps = ForkingPickler.dumps.__func__
    monkeypatch.setattr(ForkingPickler, "dumps", classmethod(pickled))
    monkeypatch.setattr(ForkingPickler, "_extra_reducers", {Special: lambda _: (str, ("special",))})
    stock = getattr(_SimpleQueue.put, "__wrapped__", _SimpleQueue.put)
    put = reports.pickling_plainly(_SimpleQueue, stock)
    queue = _SimpleQueue()

    special = (2, (7, (False, Special())))
    for message in (BEGUN, special):
        put(queue, message)

    assert by_billiard == [special]
    assert [queue.get(), queue.get()] == [BEGUN, (2, (7, (False, "special")))]
    queue.close()

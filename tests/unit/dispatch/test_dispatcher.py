"""What a dispatcher does first, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.settings import Settings


@pytest.mark.parametrize(("seconds_left", "portions"), [(0.0, 1), (1.0, 5)])
def test_entries_that_are_due_go_before_most_portions_of_the_ready_lists(
    monkeypatch: pytest.MonkeyPatch, seconds_left: float, portions: int
) -> None:
    none: Any = SimpleNamespace(subscribed=False)
    dispatcher = Dispatcher(none, Settings())
    looked: list[Any] = []
    monkeypatch.setattr("celery_delayq.dispatch.dispatcher.PORTION_EVERY", 60.0)
    monkeypatch.setattr(type(dispatcher._timer), "wait", lambda _: seconds_left)
    monkeypatch.setattr(dispatcher.ready_lists, "go_on", looked.append)

    for _ in range(5):
        dispatcher._look_on(none)

    assert len(looked) == portions
